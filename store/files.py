"""The one place that opens, syncs, lists and deletes data files, in a local folder or any pyarrow file system."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import InvalidInput, ReadFailed, WriteFailed
from .failpoints import is_armed, reached
from .paths import has_unique_name
from .refusals import is_missing, read_failed
from .urls import masked, without_secrets

DURABILITIES = ("disk", "os")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as a listing shows it: path relative to the root, size in bytes, time of its last change in Unix ms."""

    path: str
    size: int
    modified_ms: int


class Files(Protocol):
    """Files under one root, by relative path with /. Immutable and picklable: Spark's workers receive it.

    Files are written once, under final unique names, and are never changed or renamed. Reading a file that is not
    there raises FileNotFoundError, a store that does not answer or refuses ReadFailed; a path that would leave the root
    InvalidInput.
    """

    remote: ClassVar[bool]
    """Whether a read is a download; else it maps the file into memory."""

    @property
    def place(self) -> str:
        """The root, without passwords: what messages and caches call it."""
        ...

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        """Make a new file, folders included; it is durable when this returns. FileExistsError if it is there already.

        WriteFailed names path and reason. A sync that failed is not tried again; the file is removed if that can be.
        """
        ...

    def read(self, path: str) -> pa.Buffer:
        """The whole file, mapped into memory where it is local."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """The file for random access; close it after use."""
        ...

    def size(self, path: str) -> int: ...

    def stamp(self, path: str) -> tuple[str | int, ...]:
        """Names the file, and changes when anybody writes to it: what is known of its bytes holds as long."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str = "") -> list[FileInfo]:
        """All files in a folder (the root for "") and its folders, by path; nothing when it is not there."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...


def open_files(root: str | Path, durability: str = "disk") -> Files:
    """Files at a local path, a file:// URI or any URI that pyarrow.fs knows (s3://, gs://, hdfs://…). Touches nothing.

    durability "disk": a write survives power loss; "os": it survives the end of the process.
    """
    if durability not in DURABILITIES:
        raise InvalidInput(f"durability must be one of {DURABILITIES}, not {durability!r}")
    text = os.fspath(root)
    if "://" not in text:
        return LocalFiles(os.path.abspath(os.path.expanduser(text)), durability)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidInput(f"root {masked(text)!r} cannot be used: {without_secrets(error, text)}") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidInput(f"root {text!r}: a file:// URI names no other host; write file:///path")
        return LocalFiles(os.path.abspath(unquote(parts.path)), durability)
    try:
        filesystem, base = pafs.FileSystem.from_uri(_with_less_requests(text))
    except (pa.ArrowException, ValueError, OSError) as error:  # which quotes what it was given
        reason = without_secrets(without_secrets(error, _with_less_requests(text)), text)
        raise InvalidInput(f"root {masked(text)!r} cannot be used: {reason}") from None
    return ArrowFiles(filesystem, base.rstrip("/"), masked(text))


def inside_root(path: str) -> str:
    """`path` itself if it stays inside the root."""
    if not path or path.startswith("/") or "\0" in path or "\\" in path or "//" in path or path.endswith("/"):
        raise InvalidInput(f"{path!r} is no path inside the store")
    if any(part in (".", "..") for part in path.split("/")):
        raise InvalidInput(f"{path!r} is no path inside the store")
    return path


def _failed(path: str, error: Exception) -> WriteFailed:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteFailed(f"{path} was not written: the disk is full ({reason}); make room and write again")
    return WriteFailed(f"{path} was not written: {reason}; nothing of it is visible, write again when that is mended")


# ---- local folders -------------------------------------------------------------------------------------------------

_SYNCED_LIMIT = 10_000
_synced: set[str] = set()  # folders whose names this process has seen to be durable
_synced_lock = threading.Lock()


def make_private_dir(folder: str | Path, *, sync: bool = True) -> None:
    """Make a folder (0700) and what is missing above it. With `sync` the names of all of them are durable on return."""
    folder = os.path.abspath(folder)
    made = _make_dirs(folder)
    if made:
        reached("folder:made")
    if not sync:
        return
    with _synced_lock:
        if folder in _synced and not made:
            return
    # Names that another process has just made may not be durable yet, so an existing folder is synced once, too.
    sync_dir(os.path.dirname(folder))
    for parent in made:
        sync_dir(os.path.dirname(parent))
    with _synced_lock:
        if len(_synced) >= _SYNCED_LIMIT:
            _synced.clear()
        _synced.add(folder)


def _make_dirs(folder: str) -> list[str]:
    """Makes what is missing, uppermost first; returns what it made."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    made = []
    for name in reversed(missing):
        try:
            os.mkdir(name, 0o700)
        except FileExistsError as error:
            if not os.path.isdir(name):
                raise NotADirectoryError(errno.ENOTDIR, f"{name} is not a folder", name) from error
        made.append(name)  # made by another at the same moment: no reason to take its name for durable
    return made


def sync_dir(folder: str | Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files in a local folder, read through memory maps. Files are 0600, folders 0700."""

    root: str
    durability: str = "disk"
    remote: ClassVar[bool] = False

    @property
    def place(self) -> str:
        return self.root

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        full = self._full(path)
        disk = self.durability == "disk"
        try:
            self._make_folders(full)
            handle = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            raise _failed(full, error) from error
        reached("write:created")
        try:
            try:
                _write_all(handle, memoryview(data))
                reached("write:written")
                if disk:
                    os.fsync(handle)
            finally:
                os.close(handle)
            reached("write:synced")
            if disk:
                sync_dir(os.path.dirname(full))
        except OSError as error:
            _try_remove(full)
            raise _failed(full, error) from error
        reached("write:done")

    def read(self, path: str) -> pa.Buffer:
        full = self._full(path)
        with _reading(full):
            if not _size_of(full):
                return pa.py_buffer(b"")  # an empty file cannot be mapped
            with pa.memory_map(full) as mapped:
                return mapped.read_buffer()

    def open_input(self, path: str) -> pa.NativeFile:
        full = self._full(path)
        with _reading(full):
            return pa.memory_map(full) if _size_of(full) else pa.BufferReader(b"")

    def size(self, path: str) -> int:
        full = self._full(path)
        with _reading(full):
            return _size_of(full)

    def stamp(self, path: str) -> tuple[str | int, ...]:
        full = self._full(path)
        with _reading(full):
            status = os.stat(full)
        return full, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def exists(self, path: str) -> bool:
        full = self._full(path)
        try:
            with _reading(full):
                return stat.S_ISREG(os.stat(full).st_mode)
        except FileNotFoundError:
            return False

    def list(self, prefix: str = "") -> list[FileInfo]:
        top = self._full(prefix) if prefix else self.root
        found = []
        for folder, _, names in os.walk(top, onerror=_refuse_to_list):
            for name in names:
                full = os.path.join(folder, name)
                try:
                    with _reading(full):
                        status = os.stat(full, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted while the listing ran
                path = os.path.relpath(full, self.root).replace(os.sep, "/")
                found.append(FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000))
        return sorted(found, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteFailed(f"{full} was not deleted: {error.strerror}") from error
        reached("delete:done")

    def _full(self, path: str) -> str:
        return os.path.join(self.root, inside_root(path))

    def _make_folders(self, full: str) -> None:
        """The root and every folder down to the file."""
        disk = self.durability == "disk"
        folder = os.path.dirname(full)
        below = PurePosixPath(folder).relative_to(self.root).parts
        for depth in range(len(below) + 1):
            make_private_dir(os.path.join(self.root, *below[:depth]), sync=disk)


def _size_of(full: str) -> int:
    """FileNotFoundError where no file lies there, but a folder or anything else."""
    status = os.stat(full)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "no such file", full)
    return status.st_size


def _write_all(handle: int, data: memoryview) -> None:
    view = data.cast("B")
    if is_armed("write:half"):
        view = view[os.write(handle, view[: len(view) // 2]) :]
        reached("write:half")
    while view:
        view = view[os.write(handle, view) :]


def _try_remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the first error is the one to tell; vacuum finds what stays


# ---- other file systems --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrowFiles:
    """Files below `base` in a pyarrow file system. An object is durable when its store has taken it.

    Every request has its price there, so a name that ends with a random number is not asked for before it is written.
    """

    filesystem: pafs.FileSystem
    base: str
    place: str = ""
    remote: ClassVar[bool] = True

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        full = self._full(path)
        if not has_unique_name(path) and self._is_taken(path):
            raise FileExistsError(errno.EEXIST, "the file is there already", full)
        try:
            stream = self._create(full)
        except OSError as error:
            raise _failed(full, error) from error
        try:
            stream.write(data)
            stream.close()
        except OSError as error:
            self._try_close_and_delete(stream, full)
            raise _failed(full, error) from error

    def read(self, path: str) -> pa.Buffer:
        with self.open_input(path) as file, _reading(self._full(path)):
            return file.read_buffer()

    def open_input(self, path: str) -> pa.NativeFile:
        full = self._full(path)
        with _reading(full):
            return self.filesystem.open_input_file(full)

    def size(self, path: str) -> int:
        return self._info(path).size

    def stamp(self, path: str) -> tuple[str | int, ...]:
        info = self._info(path)
        return self.filesystem.type_name, info.path, info.size, info.mtime_ns or 0

    def exists(self, path: str) -> bool:
        full = self._full(path)
        with _reading(full):
            return self.filesystem.get_file_info(full).type == pafs.FileType.File

    def list(self, prefix: str = "") -> list[FileInfo]:
        top = self._full(prefix) if prefix else self.base
        with _reading(top):
            infos = self.filesystem.get_file_info(pafs.FileSelector(top, allow_not_found=True, recursive=True))
        skip = len(self.base) + 1 if self.base else 0
        found = [
            FileInfo(info.path[skip:], info.size, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.type == pafs.FileType.File
        ]
        return sorted(found, key=lambda info: info.path)

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            self.filesystem.delete_file(full)
        except FileNotFoundError:
            return
        except OSError as error:
            if self._is_gone(path):
                return  # some stores report what is gone as any other error
            raise WriteFailed(f"{full} was not deleted: {error}") from error

    def _full(self, path: str) -> str:
        return f"{self.base}/{inside_root(path)}" if self.base else inside_root(path)

    def _info(self, path: str) -> pafs.FileInfo:
        full = self._full(path)
        with _reading(full):
            info = self.filesystem.get_file_info(full)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, "no such file", full)
        return info

    def _is_taken(self, path: str) -> bool:
        try:
            return self.exists(path)
        except ReadFailed as error:
            raise WriteFailed(f"{self._full(path)} was not written: {error}") from error

    def _is_gone(self, path: str) -> bool:
        try:
            return not self.exists(path)
        except ReadFailed:
            return False

    def _create(self, full: str) -> pa.NativeFile:
        try:
            return self.filesystem.open_output_stream(full)
        except FileNotFoundError:  # real folders have to be made; in object stores there are none
            self.filesystem.create_dir(os.path.dirname(full), recursive=True)
            return self.filesystem.open_output_stream(full)

    def _try_close_and_delete(self, stream: pa.NativeFile, full: str) -> None:
        for undo in (stream.close, lambda: self.filesystem.delete_file(full)):
            try:
                undo()
            except OSError:
                continue  # the first error is the one to tell; vacuum finds what stays


@contextmanager
def _reading(full: str) -> Iterator[None]:
    """A request to a file system, which may be far away: FileNotFoundError, or ReadFailed for all else it refuses."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and is_missing(error):
            raise FileNotFoundError(errno.ENOENT, "no such file", full) from error
        raise read_failed(full, error) from error


def _refuse_to_list(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one; one that went meanwhile is."""
    if not is_missing(error):
        raise read_failed(str(error.filename), error) from error


def _with_less_requests(uri: str) -> str:
    """S3 takes a small object in one request, if a stream may be opened before the object is begun."""
    if not uri.startswith("s3://") or "allow_delayed_open=" in uri:
        return uri
    return f"{uri}{'&' if urlsplit(uri).query else '?'}allow_delayed_open=true"
