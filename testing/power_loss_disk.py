"""Disk that simulates power cuts: it tracks the durable content of each file and folder.

It replaces `os` in store/env/local_folder.py and works on a real folder. A power cut keeps synced data. Of an unsynced
file it may leave any mixture of blocks that were written, are zero, hold older content, or lie beyond its end (file
systems show no other file's bytes there); of an unsynced folder any of the names made or removed since its sync, in any
order, with the durable part of their files. LMDB writes its file without this module: the content is durable after the
sync that LMDB makes at a commit, if it was opened to sync; the name needs a sync of its folder like any other.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from epochlog.store.catalog.lmdb import catalog
from epochlog.store.env import local_folder as files_module

BLOCK = 512
"""Bytes that reach the disk atomically: the smallest unit that disks guarantee."""

Tree = dict[str, bytes | None]
"""Content by path relative to the base folder, parents first; None is a folder."""

UNKNOWN = {
    *("rename", "renames", "replace", "link", "symlink", "truncate", "ftruncate", "fdopen", "posix_fallocate"),
    *("remove", "removedirs", "rmdir", "makedirs", "mknod", "sync", "fdatasync"),
    *("pwrite", "pwritev", "writev", "sendfile", "copy_file_range"),
}
"""Functions of `os` that change files and that this module does not simulate."""


@dataclass(eq=False)
class File:
    """Content of a file at its last sync, and the writes since, as (offset, bytes)."""

    synced: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    foreign: bool = False  # written without this module: the real file has the content


@dataclass(eq=False)
class Folder:
    """Nodes that each name has had since the folder's last sync; the first of them is durable."""

    names: dict[str, list[File | Folder | None]] = field(default_factory=dict)

    def now(self) -> dict[str, File | Folder]:
        return {name: states[-1] for name, states in self.names.items() if states[-1] is not None}

    def put(self, name: str, node: File | Folder | None) -> None:
        self.names.setdefault(name, [None]).append(node)

    def sync(self) -> None:
        self.names = {name: [node] for name, node in self.now().items()}


@dataclass
class OpenedFile:
    node: File | Folder
    path: str
    offset: int = 0


class PowerLossDisk:
    """Replacement of the module `os` for a folder, whose content is durable when the disk is made.

    on_step: called with the operation and the path before each operation that changes anything, and before each
    transaction of the catalog. `survivals` at that moment returns the possible results of a power cut there, so one run
    of a scenario covers all of them.

    `fail` can be set to make operations fail: it gets the operation ("mkdir", "create", "write", "sync", "unlink",
    "transact") and the path, and returns the error or None. After a failed sync the unsynced data is lost, though it
    can still be read, and the next sync succeeds. `most_bytes` limits the bytes of one write. `steps` lists the
    operations so far.
    """

    def __init__(self, base: Path, on_step: Callable[[str], None] | None = None) -> None:
        self.base = str(base)
        self.steps: list[str] = []
        self.on_step = on_step or (lambda what: None)
        self.fail: Callable[[str, str], OSError | None] = lambda operation, path: None
        self.most_bytes: int | None = None
        self._lock = threading.RLock()
        self._opened: dict[int, OpenedFile] = {}
        self._root = self._adopt(self.base)

    def __getattr__(self, name: str) -> Any:
        assert name not in UNKNOWN, f"store/env/local_folder.py calls os.{name}, which this disk does not simulate"
        return getattr(os, name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the library of this process work on this disk, like a process that has just started, until the block
        ends.
        """
        transact = catalog.LmdbCatalog.transact

        def watched(instance: catalog.LmdbCatalog, body: Callable[[Any], Any]) -> Any:
            folder = str(instance._folder)
            self.step("transact", folder)
            result = transact(instance, body)
            with instance._environment() as env:
                if env.flags()["sync"]:
                    self.catalog_synced(folder)
            return result

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(files_module, "os", self))
            stack.enter_context(mock.patch.object(files_module, "_synced", set()))
            stack.enter_context(mock.patch.object(catalog, "lmdb", _WatchedLmdb(self)))
            stack.enter_context(mock.patch.object(catalog.LmdbCatalog, "transact", watched))
            yield

    # ---- calls of store/env/local_folder.py --------------------------------------------------------------------------

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        path = os.fspath(path)
        with self._lock:
            created = flags & os.O_CREAT and not os.path.lexists(path)
            if created:
                self._step("create", path)
            handle = os.open(path, flags, mode)
            if created:
                self._folder_of(path).put(os.path.basename(path), File())
            self._opened[handle] = OpenedFile(self._node(path), path)
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
                if isinstance(opened.node, File):  # the kernel reports the error once, and discards the data
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

    # ---- steps of LMDB ---------------------------------------------------------------------------------------------

    def catalog_synced(self, folder: str) -> None:
        """Record that LMDB has synced its data file."""
        with self._lock:
            parent = self._node(folder)
            assert isinstance(parent, Folder)
            self._find_foreign(parent, folder)
            node = parent.now()["data.mdb"]
            assert isinstance(node, File)
            node.synced = Path(folder, "data.mdb").read_bytes()

    def step(self, what: str, path: str) -> None:
        """Record an operation that does not pass through this disk."""
        with self._lock:
            self._step(what, path)

    # ---- survivals -------------------------------------------------------------------------------------------------

    def survivals(self, dice: random.Random, count: int) -> list[Tree]:
        """Return trees that a power cut now may leave: without all unsynced data, with all of it, and
        `count` between.
        """
        with self._lock:
            self._find_all_foreign(self._root, self.base)
            choices = [_Nothing(), _Everything(), *(_Chance(dice) for _ in range(count))]
            trees: list[Tree] = []
            for choice in choices:
                tree: Tree = {}
                self._survive(self._root, self.base, "", choice, tree)
                if tree not in trees:
                    trees.append(tree)
            return trees

    def _survive(self, folder: Folder, path: str, prefix: str, choice: _Choice, tree: Tree) -> None:
        for name, states in sorted(folder.names.items()):
            node, child_path = choice.name(states), f"{prefix}{name}"
            if isinstance(node, Folder):
                tree[child_path] = None
                self._survive(node, f"{path}/{name}", f"{child_path}/", choice, tree)
            elif node is not None:
                tree[child_path] = choice.content(node.synced, self._content(node, f"{path}/{name}"))

    def _content(self, node: File, path: str) -> bytes:
        if not node.foreign:
            return _written(node)
        return Path(path).read_bytes() if os.path.exists(path) else node.synced

    # ---- the model -------------------------------------------------------------------------------------------------

    def _step(self, operation: str, path: str) -> None:
        operation_text = f"{operation} {os.path.relpath(path, self.base)}"
        self.on_step(operation_text)
        self.steps.append(operation_text)
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
                return Folder()  # above the base: durable, and not simulated
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
        """Add the names that were created there without this module."""
        for entry in os.scandir(path):
            if entry.name not in folder.now():
                folder.put(entry.name, Folder() if entry.is_dir() else File(foreign=True))

    def _find_all_foreign(self, folder: Folder, path: str) -> None:
        self._find_foreign(folder, path)
        for name, node in folder.now().items():
            if isinstance(node, Folder):
                self._find_all_foreign(node, f"{path}/{name}")


def _written(node: File) -> bytes:
    """Return the content with all writes since the last sync."""
    content = bytearray(node.synced)
    for offset, data in node.writes:
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data
    return bytes(content)


# ---- choices of surviving data ---------------------------------------------------------------------------------


class _Nothing:
    """Choice without any unsynced data."""

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return states[0]

    def content(self, synced: bytes, written: bytes) -> bytes:
        return synced


class _Everything(_Nothing):
    """Choice with all unsynced data."""

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return states[-1]

    def content(self, synced: bytes, written: bytes) -> bytes:
        return written


class _Chance(_Nothing):
    """Random choice for each name and each block."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def name(self, states: list[File | Folder | None]) -> File | Folder | None:
        return self._dice.choice(states)

    def content(self, synced: bytes, written: bytes) -> bytes:
        if synced == written:
            return written
        dice = self._dice
        prefix = written[
            : dice.choice([0, len(written) // 2, dice.randrange(len(written) + 1), len(written), len(written)])
        ]
        lost = [synced, bytes(len(prefix))]  # older content, or zeros
        blocks = [
            dice.choice([prefix, prefix, *lost])[start : start + BLOCK].ljust(min(BLOCK, len(prefix) - start), b"\0")
            for start in range(0, len(prefix), BLOCK)
        ]
        return b"".join(blocks) if dice.random() < 0.7 else prefix


_Choice = _Nothing


def write_tree(tree: Tree, base: Path) -> None:
    """Create a folder with a surviving tree in it."""
    base.mkdir()
    for path, content in tree.items():
        if content is None:
            (base / path).mkdir()
        else:
            (base / path).write_bytes(content)


class _WatchedLmdb:
    """Module `lmdb`, whose environments report their syncs to the disk."""

    def __init__(self, disk: PowerLossDisk) -> None:
        self._disk = disk
        self._real = catalog.lmdb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, folder: str, **options: Any) -> _WatchedEnvironment:
        self._disk.step("open", folder)
        environment = _WatchedEnvironment(self._real.open(folder, **options), self._disk, folder)
        self._disk.step("opened", folder)
        return environment


class _WatchedEnvironment:
    """LMDB environment that reports its syncs to the disk."""

    def __init__(self, real: Any, disk: PowerLossDisk, folder: str) -> None:
        self._real, self._disk, self._folder = real, disk, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sync(self, force: bool = False) -> None:
        self._real.sync(force)
        self._disk.catalog_synced(self._folder)
