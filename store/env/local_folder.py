"""Implementation of Files on a local folder. No other module opens, syncs, lists or deletes local files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import pyarrow as pa

from .failpoints import hit, is_armed
from .files import SMALL_BYTES, FileInfo, delete_failed, inside_root, reading, write_failed
from .os_refusals import is_missing, read_failed
from .read_only import refuse_write

_SYNCED_LIMIT = 10_000
_synced: set[str] = set()  # folders whose names this process has made durable
_synced_lock = threading.Lock()


def make_private_dir(folder: str | Path, *, sync: bool = True) -> None:
    """Make a folder (0700) and the missing folders above it. With `sync` the names of all are durable on return."""
    folder = os.path.abspath(folder)
    created = _make_dirs(folder)
    if created:
        hit("folder:made")
    if not sync:
        return
    with _synced_lock:
        if folder in _synced and not created:
            return
    # Another process may have made an existing folder just now, and not synced it: sync it once.
    sync_dir(os.path.dirname(folder))
    for parent in created:
        sync_dir(os.path.dirname(parent))
    with _synced_lock:
        if len(_synced) >= _SYNCED_LIMIT:
            _synced.clear()
        _synced.add(folder)


def _make_dirs(folder: str) -> list[str]:
    """Make the missing folders, uppermost first, and return their paths."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    created = []
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError as error:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder", path) from error
        created.append(path)  # also if another process made it just now: its name may not be durable
    return created


def sync_dir(folder: str | Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files in a local folder; large ones are read through memory maps. The mode of files is 0600, that of folders
    0700.
    """

    root: str
    durability: str = "disk"
    read_only: bool = False
    remote: ClassVar[bool] = False

    @property
    def place(self) -> str:
        return self.root

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        full = self._full(path)
        if self.read_only:
            refuse_write(self.place)
        disk = self.durability == "disk"
        try:
            self._make_folders(full)
            handle = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            raise write_failed(full, error) from error
        hit("write:created")
        try:
            try:
                _write_all(handle, memoryview(data))
                hit("write:written")
                if disk:
                    os.fsync(handle)
            finally:
                os.close(handle)
            hit("write:synced")
            if disk:
                sync_dir(os.path.dirname(full))
        except OSError as error:
            _try_delete(full)
            raise write_failed(full, error) from error
        hit("write:done")

    def read(self, path: str) -> pa.Buffer:
        full = self._full(path)
        with reading(full):
            data = _read_small(full)
            if data is not None:
                return pa.py_buffer(data)
            with pa.memory_map(full) as mapped:
                return mapped.read_buffer()

    def open_input(self, path: str) -> pa.NativeFile:
        full = self._full(path)
        with reading(full):
            return pa.memory_map(full) if _size_of(full) else pa.BufferReader(b"")

    def size(self, path: str) -> int:
        full = self._full(path)
        with reading(full):
            return _size_of(full)

    def stamp(self, path: str) -> tuple[str | int, ...]:
        full = self._full(path)
        with reading(full):
            status = os.stat(full)
        return full, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def exists(self, path: str) -> bool:
        full = self._full(path)
        try:
            with reading(full):
                return stat.S_ISREG(os.stat(full).st_mode)
        except FileNotFoundError:
            return False

    def list(self, prefix: str = "") -> list[FileInfo]:
        start = self._full(prefix) if prefix else self.root
        files = []
        for folder, _, names in os.walk(start, onerror=_refuse_to_list):
            for name in names:
                full = os.path.join(folder, name)
                try:
                    with reading(full):
                        status = os.stat(full, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted during the listing
                path = os.path.relpath(full, self.root).replace(os.sep, "/")
                files.append(FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000))
        return sorted(files, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        full = self._full(path)
        if self.read_only:
            refuse_write(self.place)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise delete_failed(full, error) from error
        hit("delete:done")

    def _full(self, path: str) -> str:
        return os.path.join(self.root, inside_root(path))

    def _make_folders(self, full: str) -> None:
        """Make the root and every folder down to the file."""
        disk = self.durability == "disk"
        folder = os.path.dirname(full)
        parts = PurePosixPath(folder).relative_to(self.root).parts
        for depth in range(len(parts) + 1):
            make_private_dir(os.path.join(self.root, *parts[:depth]), sync=disk)


def _size_of(full: str) -> int:
    """Return the size in bytes of a regular file; raise FileNotFoundError for any other kind of path."""
    return _regular_size(full, os.stat(full))


def _regular_size(full: str, status: os.stat_result) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no such file", full)
    return status.st_size


def _read_small(full: str) -> bytes | None:
    """Return the bytes of a regular file of at most SMALL_BYTES; None for a larger one."""
    handle = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # the open of a named pipe must not wait
    try:
        size = _regular_size(full, os.fstat(handle))
        if size > SMALL_BYTES:
            return None
        data = os.read(handle, size)
        while len(data) < size and (more := os.read(handle, size - len(data))):  # some file systems return less
            data += more
        return data
    finally:
        os.close(handle)


def _write_all(handle: int, data: memoryview) -> None:
    view = data.cast("B")
    if is_armed("write:half"):
        view = view[os.write(handle, view[: len(view) // 2]) :]
        hit("write:half")
    while view:
        view = view[os.write(handle, view) :]


def _try_delete(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the caller raises the first error; vacuum deletes a file that stays


def _refuse_to_list(error: OSError) -> None:
    """Raise ReadFailed for a folder that cannot be listed; ignore a folder that was deleted during the listing."""
    if not is_missing(error):
        raise read_failed(str(error.filename), error) from error


_temporary: list[tempfile.TemporaryDirectory[str]] = []


def private_temporary_folder(prefix: str) -> str:
    """Create a folder of this user alone in the system's temporary folder; it is deleted when the process ends."""
    _temporary.append(tempfile.TemporaryDirectory(prefix=prefix))
    return _temporary[-1].name
