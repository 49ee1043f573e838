"""Traces of finished compactions and passes of packing: the files that each read and wrote, and why it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from epochlog.store.catalog.keys import TRACE_PREFIX, head_key, table_prefix, trace_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.version import LogEntry, PackingSums
from epochlog.store.sst.sorted_run import RunFile, SortedRun

from .task_record import Work

KEPT_TRACES = 256
"""Traces that a table keeps, the newest, of both kinds."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Finished compaction of a table, and why it was picked. Rows and bytes are those of all inputs and outputs;
    `reused` bytes were neither read nor written.
    """

    at_ms: int
    by: str
    reason: str
    after: int
    until: int
    runs: int
    segments: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    bytes_reused: int
    pieces: int
    took_ms: int

    def to_record(self) -> Record:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PackTrace:
    """Finished pass that packed a table's log, with earlier packs that a killed process left without a trace."""

    at_ms: int
    by: str
    packed: PackingSums
    took_ms: int

    def to_record(self) -> Record:
        return asdict(self)


def read_traces(view: ReadTxn, table_id: int) -> list[Trace | PackTrace]:
    """Return a table's finished compactions and passes of packing, newest first; the last KEPT_TRACES."""
    prefix = table_prefix(TRACE_PREFIX, table_id)
    records = (record for _, record in scan_prefix(view, prefix, reverse=True))
    return [
        PackTrace(**{**record, "packed": PackingSums(**record["packed"])}) if "packed" in record else Trace(**record)
        for record in records
    ]


def trace_of(
    work: Work, old: Sequence[RunFile], output: SortedRun, entries: Sequence[LogEntry], now_ms: int, took_ms: int
) -> Trace:
    """Return the trace of a compaction. `old`: the files of its input runs; `entries`: its log entries."""
    segments = [segment for entry in entries for segment in entry.segments]
    written = {part.path for part in work.parts} - {subcompaction.reused for subcompaction in work.subcompactions}
    fresh = [part for part in (*output.parts, *output.history) if part.path in written]
    stays = [part for part in (*output.parts, *output.history) if part.path not in written]
    read = [*(part for part in old if part not in stays), *segments]
    return Trace(
        at_ms=now_ms,
        by=work.by,
        reason=work.task.reason,
        after=work.task.lo,
        until=work.task.hi,
        runs=work.task.runs,
        segments=len(segments),
        rows_in=sum(file.rows for file in read),
        rows_out=sum(part.rows for part in fresh),
        bytes_in=sum(file.bytes for file in read),
        bytes_out=sum(part.bytes for part in fresh),
        bytes_reused=sum(part.bytes for part in stays),
        pieces=len(work.subcompactions),
        took_ms=took_ms,
    )


def trace_packing(tx: Txn, table: TableDef, by: str, now_ms: int, took_ms: int) -> None:
    """Record a trace of the packs of a table that none has yet, if there are any. Raises TableDropped. Part of a
    transaction.
    """
    version = get_version(tx, table.id, table.name)
    if version.packing is not None:
        tx.put(head_key(table.id), replace(version, packing=None).to_record())
        number = move_counters(tx, Counters.read(tx))
        put_trace(tx, table.id, number, PackTrace(now_ms, by, version.packing, took_ms))


def put_trace(tx: Txn, table_id: int, number: int, trace: Trace | PackTrace) -> None:
    """Record a trace, and delete those beyond the newest KEPT_TRACES. Call inside a transaction."""
    tx.put(trace_key(table_id, number), trace.to_record())
    prefix = table_prefix(TRACE_PREFIX, table_id)
    for key in [key for key, _ in scan_prefix(tx, prefix, reverse=True)][KEPT_TRACES:]:
        tx.delete(key)
