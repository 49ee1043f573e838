"""Stand-in for a process that rewrites the log: each commit's files to files with other paths and equal rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, TypeVar

import epochlog as el
from epochlog.store.catalog.keys import LOG_PREFIX, log_key, table_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.env.paths import SEGMENT_ENDING
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import LogEntry
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch_set import FAR

T = TypeVar("T")


def pack(store: el.Store, table: str = "r", after: int = 0, until: int = int(FAR)) -> int:
    """Rewrite the log of the commits in (after, until], in one transaction; delete the former files that no hold pins.
    Return the number of deleted files.
    """
    handle = store._handle

    def entries_of(view: ReadTxn) -> tuple[int, list[LogEntry]]:
        table_id = find_table(view, table).id
        records = [record for _, record in scan_prefix(view, table_prefix(LOG_PREFIX, table_id))]
        return table_id, [entry for entry in map(LogEntry.from_record, records) if after < entry.epoch <= until]

    table_id, entries = handle.catalog.read(entries_of)
    rewritten = [_rewritten(handle, entry) for entry in entries]

    def swap(tx: Txn) -> None:
        assert entries_of(tx)[1] == entries, "another transaction changed the log meanwhile"
        for entry in rewritten:
            tx.put(log_key(table_id, entry.epoch), entry.to_record())
        former = [(file.path, file.bytes) for entry in entries for file in entry.files]
        mark_unreachable(tx, table_id, former, handle.catalog.now_ms())
        move_counters(tx, Counters.read(tx))

    handle.catalog.transact(swap)
    return len(store.vacuum(grace=0).deleted)


def _rewritten(handle: Handle, entry: LogEntry) -> LogEntry:
    def copied(file: Segment) -> Segment:
        path = handle.new_path(file.table_id, SEGMENT_ENDING)
        handle.files.write(path, handle.files.read(file.path))
        return replace(file, path=path)

    groups = (
        replace(group, segments=tuple(map(copied, group.segments)), images=tuple(map(copied, group.images)))
        for group in entry.groups
    )
    return replace(entry, groups=tuple(groups))


class PackedBetween:
    """Packer that works after each read and each transaction of this thread through another open store."""

    def __init__(self, reader: el.Store, packer: el.Store, table: str = "r") -> None:
        self._catalog: Any = reader._handle.catalog
        self._pack = lambda: pack(packer, table)
        self._thread = threading.get_ident()
        self.deleted = 0

    def __enter__(self) -> Self:
        for name in ("read", "transact"):
            setattr(self._catalog, name, self._packed_after(getattr(self._catalog, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("read", "transact"):
            delattr(self._catalog, name)

    def _packed_after(self, call: Callable[..., T]) -> Callable[..., T]:
        def called(body: Callable[..., T]) -> T:
            result = call(body)
            if threading.get_ident() == self._thread:
                self.deleted += self._pack()
            return result

        return called
