"""A disk whose power may fail: it stands in for `os` in store/files.py, works on a real folder and keeps what would
survive there.

What a power cut may leave, of what was not synced: of a file any mixture of blocks that are there, are zero, hold what
the file held before, or lie beyond its end (file systems show no other file's bytes there); of a folder any of the
names made or removed since its sync, in any order, with whatever is durable of what they name. LMDB's file is written
behind this module's back: its content is durable from the sync that LMDB makes at a commit, if it was opened to sync;
its name needs its folder's sync as any other.

`fail` makes an operation fail: it is given the operation and the path, and returns the error or None. After a sync that
failed what was to be synced is lost, though it can still be read, and the next sync succeeds.

`on_step` is called before each operation that changes anything and before each transaction of the catalog. What a real
power cut there would leave is given by `survivals` at that moment, so that one run of a scenario shows them all.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochlog.store import files as files_module
from epochlog.store import lmdb_catalog

BLOCK = 512
"""What reaches the disk as one, as the least that disks promise."""

Tree = dict[str, bytes | None]
"""Paths relative to the base folder, upper ones first; None is a folder."""

UNKNOWN = {
    *("rename", "renames", "replace", "link", "symlink", "truncate", "ftruncate", "fdopen", "posix_fallocate"),
    *("remove", "removedirs", "rmdir", "makedirs", "mknod", "sync", "fdatasync"),
    *("pwrite", "pwritev", "writev", "sendfile", "copy_file_range"),
}
"""What this module would have to learn before store/files.py may call it."""


@dataclass(eq=False)
class File:
    """`synced` is its content at its last sync; `writes` came since, as (offset, bytes)."""

    synced: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    foreign: bool = False  # written by others: the content is that of the real file


@dataclass(eq=False)
class Folder:
    """For each name what it has stood for, since the folder's last sync; the first of them is durable."""

    names: dict[str, list[File | Folder | None]] = field(default_factory=dict)

    def now(self) -> dict[str, File | Folder]:
        return {name: states[-1] for name, states in self.names.items() if states[-1] is not None}

    def put(self, name: str, node: File | Folder | None) -> None:
        self.names.setdefault(name, [None]).append(node)

    def sync(self) -> None:
        self.names = {name: [node] for name, node in self.now().items()}


@dataclass
class Opened:
    node: File | Folder
    path: str
    offset: int = 0


class Disk:
    """Stands in for the module `os`. `base` is durable as it is when the disk is made."""

    def __init__(self, base: Path, on_step: Callable[[str], None] | None = None) -> None:
        self.base = str(base)
        self.steps: list[str] = []
        self.on_step = on_step or (lambda what: None)
        self.fail: Callable[[str, str], OSError | None] = lambda operation, path: None
        self.most_bytes: int | None = None  # that one `write` takes
        self._lock = threading.RLock()
        self._opened: dict[int, Opened] = {}
        self._root = self._adopt(self.base)

    def __getattr__(self, name: str) -> Any:
        assert name not in UNKNOWN, f"store/files.py calls os.{name}, of which this disk knows nothing"
        return getattr(os, name)

    # ---- what store/files.py calls ---------------------------------------------------------------------------------

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        path = os.fspath(path)
        with self._lock:
            made = flags & os.O_CREAT and not os.path.lexists(path)
            if made:
                self._step("create", path)
            handle = os.open(path, flags, mode)
            if made:
                self._folder_of(path).put(os.path.basename(path), File())
            self._opened[handle] = Opened(self._node(path), path)
            return handle

    def write(self, handle: int, data: bytes | memoryview) -> int:
        with self._lock:
            opened = self._opened[handle]
            self._step("write", opened.path)
            count = os.write(handle, data[: self.most_bytes])
            assert isinstance(opened.node, File)
            opened.node.writes.append((opened.offset, bytes(data[:count])))
            opened.offset += count
            return count

    def fsync(self, handle: int) -> None:
        with self._lock:
            opened = self._opened[handle]
            try:
                self._step("sync", opened.path)
            except OSError:
                if isinstance(opened.node, File):  # the kernel tells it once, and forgets what it could not write
                    opened.node.writes = []
                raise
            if isinstance(opened.node, Folder):
                self._find_foreign(opened.node, opened.path)
                opened.node.sync()
            else:
                opened.node.synced, opened.node.writes = _written(opened.node), []

    def close(self, handle: int) -> None:
        with self._lock:
            self._opened.pop(handle, None)
            os.close(handle)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        with self._lock:
            self._step("mkdir", path)
            os.mkdir(path, mode)
            self._folder_of(path).put(os.path.basename(path), Folder())

    def unlink(self, path: str) -> None:
        with self._lock:
            if os.path.lexists(path):
                self._step("unlink", path)
            os.unlink(path)
            self._folder_of(path).put(os.path.basename(path), None)

    # ---- what LMDB does --------------------------------------------------------------------------------------------

    def catalog_synced(self, folder: str) -> None:
        """LMDB has synced its data file."""
        with self._lock:
            parent = self._node(folder)
            assert isinstance(parent, Folder)
            self._find_foreign(parent, folder)
            node = parent.now()["data.mdb"]
            assert isinstance(node, File)
            node.synced = Path(folder, "data.mdb").read_bytes()

    def step(self, what: str, path: str) -> None:
        """Something is about to happen that this disk does not see."""
        with self._lock:
            self._step(what, path)

    # ---- what survives ---------------------------------------------------------------------------------------------

    def survivals(self, dice: random.Random, count: int) -> list[Tree]:
        """What a power cut now may leave: nothing that was not synced, all of it, and `count` things between."""
        with self._lock:
            self._find_all_foreign(self._root, self.base)
            choices = [_Nothing(), _Everything(), *(_Chance(dice) for _ in range(count))]
            found: list[Tree] = []
            for choice in choices:
                tree: Tree = {}
                self._survive(self._root, self.base, "", choice, tree)
                if tree not in found:
                    found.append(tree)
            return found

    def _survive(self, folder: Folder, path: str, prefix: str, choice: _Choice, tree: Tree) -> None:
        for name, states in sorted(folder.names.items()):
            node, below = choice.name(states), f"{prefix}{name}"
            if isinstance(node, Folder):
                tree[below] = None
                self._survive(node, f"{path}/{name}", f"{below}/", choice, tree)
            elif node is not None:
                tree[below] = choice.content(node.synced, self._content(node, f"{path}/{name}"))

    def _content(self, node: File, path: str) -> bytes:
        if not node.foreign:
            return _written(node)
        return Path(path).read_bytes() if os.path.exists(path) else node.synced

    # ---- the model -------------------------------------------------------------------------------------------------

    def _step(self, operation: str, path: str) -> None:
        what = f"{operation} {os.path.relpath(path, self.base)}"
        self.on_step(what)
        self.steps.append(what)
        error = self.fail(operation, path)
        if error is not None:
            raise error

    def _adopt(self, path: str) -> Folder:
        folder = Folder()
        for entry in os.scandir(path):
            node = self._adopt(entry.path) if entry.is_dir() else File(Path(entry.path).read_bytes())
            if isinstance(node, File) and entry.name.endswith(".mdb"):
                node.foreign = True
            folder.names[entry.name] = [node]
        return folder

    def _node(self, path: str) -> File | Folder:
        node: File | Folder = self._root
        for part in Path(os.path.relpath(path, self.base)).parts:
            if part == "..":
                return Folder()  # above the base: durable, and not looked at
            assert isinstance(node, Folder)
            if part not in node.now():
                node.put(part, Folder() if os.path.isdir(path) else File(foreign=True))
            node = node.now()[part]
        return node

    def _folder_of(self, path: str) -> Folder:
        node = self._node(os.path.dirname(path))
        assert isinstance(node, Folder)
        return node

    def _find_foreign(self, folder: Folder, path: str) -> None:
        """Names that somebody else has made there."""
        for entry in os.scandir(path):
            if entry.name not in folder.now():
                folder.put(entry.name, Folder() if entry.is_dir() else File(foreign=True))

    def _find_all_foreign(self, folder: Folder, path: str) -> None:
        self._find_foreign(folder, path)
        for name, node in folder.now().items():
            if isinstance(node, Folder):
                self._find_all_foreign(node, f"{path}/{name}")


def _written(node: File) -> bytes:
    """The content with all that was written."""
    data = bytearray(node.synced)
    for offset, piece in node.writes:
        data.extend(bytes(max(0, offset + len(piece) - len(data))))
        data[offset : offset + len(piece)] = piece
    return bytes(data)


# ---- who decides what survives -----------------------------------------------------------------------------------


class _Nothing:
    """What was not synced is lost."""

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return states[0]

    def content(self, synced: bytes, now: bytes) -> bytes:
        return synced


class _Everything(_Nothing):
    """All of it had reached the disk."""

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return states[-1]

    def content(self, synced: bytes, now: bytes) -> bytes:
        return now


class _Chance(_Nothing):
    """Each name and each block by itself."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return self._dice.choice(states)

    def content(self, synced: bytes, now: bytes) -> bytes:
        if synced == now:
            return now
        dice = self._dice
        kept = now[: dice.choice([0, len(now) // 2, dice.randrange(len(now) + 1), len(now), len(now)])]
        lost = [synced, bytes(len(kept))]  # as it was, never written
        blocks = [
            dice.choice([kept, kept, *lost])[at : at + BLOCK].ljust(min(BLOCK, len(kept) - at), b"\0")
            for at in range(0, len(kept), BLOCK)
        ]
        return b"".join(blocks) if dice.random() < 0.7 else kept


_Choice = _Nothing


def write_tree(tree: Tree, base: Path) -> None:
    """Make a folder what survived."""
    base.mkdir()
    for path, content in tree.items():
        if content is None:
            (base / path).mkdir()
        else:
            (base / path).write_bytes(content)


# ---- in place of the real one -------------------------------------------------------------------------------------


def install(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library work on this disk, as a process that has just begun."""
    monkeypatch.setattr(files_module, "os", disk)
    monkeypatch.setattr(files_module, "_synced", set())
    monkeypatch.setattr(lmdb_catalog, "lmdb", _WatchedLmdb(disk))
    real = lmdb_catalog.LmdbCatalog.transact

    def transact(self: lmdb_catalog.LmdbCatalog, body: Callable[[Any], Any]) -> Any:
        folder = str(self._folder)
        disk.step("transact", folder)
        result = real(self, body)
        with self._environment() as env:
            if env.flags()["sync"]:
                disk.catalog_synced(folder)
        return result

    monkeypatch.setattr(lmdb_catalog.LmdbCatalog, "transact", transact)


class _WatchedLmdb:
    """The module `lmdb`, whose environments tell the disk when they sync."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._real = lmdb_catalog.lmdb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, folder: str, **options: Any) -> _WatchedEnvironment:
        self._disk.step("open", folder)
        environment = _WatchedEnvironment(self._real.open(folder, **options), self._disk, folder)
        self._disk.step("opened", folder)
        return environment


class _WatchedEnvironment:
    def __init__(self, real: Any, disk: Disk, folder: str) -> None:
        self._real, self._disk, self._folder = real, disk, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sync(self, force: bool = False) -> None:
        self._real.sync(force)
        self._disk.catalog_synced(self._folder)
