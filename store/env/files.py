"""Protocol of files under one root, and the errors and checks that all implementations of it share."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from epochlog.errors import InvalidInput, WriteFailed

from .os_refusals import is_missing, read_failed


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
        """Return the root without passwords, for messages and as the name of the root in caches."""
        ...

    def write(self, path: str, data: pa.Buffer | bytes) -> None:
        """Write a new file and the folders above it; it is durable on return. FileExistsError if the path is taken.

        WriteFailed names path and reason. A sync that failed is not tried again; the file is removed if that can be.
        """
        ...

    def read(self, path: str) -> pa.Buffer:
        """Return the whole file, mapped into memory if it is local."""
        ...

    def open_input(self, path: str) -> pa.NativeFile:
        """Open the file for random access; the caller closes it."""
        ...

    def size(self, path: str) -> int: ...

    def stamp(self, path: str) -> tuple[str | int, ...]:
        """Return values that identify the file's present bytes: they change with every write to the file."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str = "") -> list[FileInfo]:
        """List all files below a folder ("" is the root), sorted by path; none if the folder does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        ...


def inside_root(path: str) -> str:
    """Return `path` if it is a plain path inside the root; else raise InvalidInput."""
    if not path or path.startswith("/") or "\0" in path or "\\" in path or "//" in path or path.endswith("/"):
        raise InvalidInput(f"{path!r} is no path inside the store")
    if any(part in (".", "..") for part in path.split("/")):
        raise InvalidInput(f"{path!r} is no path inside the store")
    return path


def write_failed(path: str, error: Exception) -> WriteFailed:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteFailed(f"{path} was not written: the disk is full ({reason}); make room and write again")
    return WriteFailed(f"{path} was not written: {reason}; nothing of it is visible, write again when that is mended")


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
