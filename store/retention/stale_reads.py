"""Stale reads: a missing file raises SnapshotExpired if vacuum deleted it, Corrupt if the catalog still reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from epochlog.errors import Corrupt, SnapshotExpired
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.files import Files
from epochlog.store.env.paths import table_of
from epochlog.store.epochs.epoch_errors import KEEP_EPOCHS
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.shared_files import is_shared
from epochlog.store.sst.data_file import FileMissing

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

T = TypeVar("T")


@contextmanager
def stale_reads_translated(handle: Handle) -> Iterator[None]:
    """Run a read as a context manager: a missing file raises SnapshotExpired, or Corrupt if the catalog still reaches
    it.
    """
    try:
        yield
    except FileMissing as error:
        raise _explain_missing(handle, error) from error


def retry_stale_plan(handle: Handle, read: Callable[[], T]) -> T:
    """Return the result of `read`, which plans and reads; repeat it after each stale read."""
    while True:
        with suppress(SnapshotExpired), stale_reads_translated(handle):
            return read()


def translate_stale_reads(handle: Handle, items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator. A missing file raises SnapshotExpired, or Corrupt if the catalog still reaches
    it.
    """
    with stale_reads_translated(handle):
        yield from items


def _explain_missing(handle: Handle, error: FileMissing) -> SnapshotExpired | Corrupt:
    table_id = table_of(handle.store_id, error.path)

    def is_reached(view: ReadTxn, table_id: int) -> bool:
        return is_shared(view, table_id, error.path) or error.path in files_of(view, table_id)

    if table_id is None or handle.catalog.read(lambda view: is_reached(view, table_id)):
        return error
    return vacuumed(handle.files, f"{error.path} was released and vacuumed after this read had begun", "read again")


def vacuumed(files: Files, problem: str, again: str) -> SnapshotExpired:
    """Return the error of a read whose file vacuum has deleted. again: how to repeat the read. What keeps files in a
    store that is opened for writing keeps none where the store is opened read-only.
    """
    if not files.read_only:
        return SnapshotExpired(f"{problem}; {again}, or keep a snapshot open while reading")
    return SnapshotExpired(
        f"{problem}: nothing holds what a store reads that is opened read-only. For one more try {again}; for longer "
        f"reads, {KEEP_EPOCHS}"
    )
