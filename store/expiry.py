"""What a reader is told whose file is gone: that it took too long, if vacuum took the file; else that it is damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ..errors import Corrupt, SnapshotExpired
from .datafile import FileGone
from .paths import table_of
from .reach import files_of

if TYPE_CHECKING:
    from .handle import Handle

T = TypeVar("T")


def told(handle: Handle, read: Callable[[], T]) -> T:
    """What `read` gives; SnapshotExpired for a file that went after the read had been planned."""
    try:
        return read()
    except FileGone as error:
        raise _reason(handle, error) from error


def planned_anew(handle: Handle, read: Callable[[], T]) -> T:
    """What `read` gives, which plans and reads; once more when vacuum was quicker."""
    while True:
        with suppress(SnapshotExpired):
            return told(handle, read)


def told_each(handle: Handle, found: Iterator[T]) -> Iterator[T]:
    """The same for what comes one by one."""
    try:
        yield from found
    except FileGone as error:
        raise _reason(handle, error) from error


def _reason(handle: Handle, error: FileGone) -> SnapshotExpired | Corrupt:
    table_id = table_of(handle.store_id, error.path)
    if table_id is None or error.path in handle.catalog.read(lambda view: files_of(view, table_id)):
        return error
    return SnapshotExpired(
        f"{error.path} was let go of and vacuumed after this read had begun: read it again, or hold what is read with "
        "a snapshot for longer"
    )
