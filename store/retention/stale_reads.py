"""Stale reads: a missing file raises SnapshotExpired if vacuum deleted it, Corrupt if the catalog still reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from epochlog.errors import Corrupt, SnapshotExpired
from epochlog.store.env.paths import table_of
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.sst.data_file import FileGone

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

T = TypeVar("T")


def translate_stale_read(handle: Handle, read: Callable[[], T]) -> T:
    """Return the result of `read`; raise SnapshotExpired, or Corrupt, for a file that is missing."""
    try:
        return read()
    except FileGone as error:
        raise _reason(handle, error) from error


def retry_stale_plan(handle: Handle, read: Callable[[], T]) -> T:
    """Return the result of `read`, which plans and reads; repeat it as long as it meets a stale read."""
    while True:
        with suppress(SnapshotExpired):
            return translate_stale_read(handle, read)


def translate_stale_reads(handle: Handle, found: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator; raise SnapshotExpired, or Corrupt, for a file that is missing."""
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
