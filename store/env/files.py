"""Protocol of files under one root, with the errors and checks that all implementations share."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from epochlog.errors import InvalidInput, WriteFailed

from .os_refusals import is_forbidden, is_missing, read_failed

SMALL_BYTES = 64 << 10
"""Size up to which a file is read as a whole: a local one is not mapped, since a map costs more than a copy."""

_TO_READ = "To read a store where nothing may be written, open it with epochlog.open(root, read_only=True)"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Entry of a listing: path relative to the root, size in bytes, time of the last change in Unix ms."""

    path: str
    size: int
    modified_ms: int


class Files(Protocol):
    """Files under one root, by relative path with /. Immutable and picklable: Spark's workers receive it.

    Files are written once, under final unique names, and are never changed or renamed. A read raises FileNotFoundError
    for a missing file, and ReadFailed if the file system does not answer or refuses. Every call raises InvalidInput for
    a path that escapes the root.
    """

    remote: ClassVar[bool]
    """True if a read is a download; else a read maps the file into memory."""

    @property
    def read_only(self) -> bool:
        """Return True if the store was opened read-only: writes raise StoreReadOnly, and nothing holds files that it
        reads.
        """
        ...

    @property
    def place(self) -> str:
        """Return the root without passwords, for messages and for the keys of caches."""
        ...

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        """Write a new file and the folders above it; the file is durable on return.

        Raises FileExistsError if the path exists, and WriteFailed, which names path and reason. A failed sync is not
        repeated: the file is deleted if that is possible.
        """
        ...

    def read(self, path: str) -> pa.Buffer:
        """Return all bytes of the file, mapped into memory if it is local and larger than SMALL_BYTES."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Open the file for random access; the caller closes it."""
        ...

    def size(self, path: str) -> int: ...

    def stamp(self, path: str) -> tuple[str | int, ...]:
        """Return values that identify the file's current bytes: they change with every write to the file."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str = "") -> list[FileInfo]:
        """List all files below a folder ("" is the root), sorted by path; an empty list if the folder is missing."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        ...


def inside_root(path: str) -> str:
    """Return `path` if it is a plain path inside the root; else raise InvalidInput."""
    if not path or path.startswith("/") or "\0" in path or "\\" in path or "//" in path or path.endswith("/"):
        raise InvalidInput(f"path {path!r} escapes the store root or is not a plain relative path with /")
    if any(part in (".", "..") for part in path.split("/")):
        raise InvalidInput(f"path {path!r} escapes the store root or is not a plain relative path with /")
    return path


def write_failed(path: str, error: Exception) -> WriteFailed:
    """Return the error for a file that was not written, with what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    if is_forbidden(error):
        return WriteFailed(f"{path} was not written: {reason}; no reader sees any of it. {_TO_READ}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteFailed(f"{path} was not written: the disk is full ({reason}); free some space and write again")
    return WriteFailed(f"{path} was not written: {reason}; no reader sees any of it. Fix the cause and write again")


def delete_failed(path: str, error: Exception) -> WriteFailed:
    """Return the error for a file that was not deleted."""
    reason = getattr(error, "strerror", None) or str(error)
    return WriteFailed(f"{path} was not deleted: {reason}" + f". {_TO_READ}" * is_forbidden(error))


@contextmanager
def reading(full: str) -> Iterator[None]:
    """Translate the errors of a read: FileNotFoundError for a missing file, ReadFailed for any other refusal."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and is_missing(error):
            raise FileNotFoundError(errno.ENOENT, "no such file", full) from error
        raise read_failed(full, error) from error
