"""History of a table without a history_retention of its own: rows of two days, as long as that takes little space.

Pure functions. `edge_ms` is the time of the oldest epoch that can be read. It stands while the history grows, and the
history is then as old as the time since. Where replaced rows come to take more bytes than the others, the edge follows
the clock at twice its speed, until LEAST_HISTORY is left: the history is never released faster than it was earned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta

from epochlog.store.catalog.keys import kept_history_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import Record, checked
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_runs
from epochlog.store.metadata.table_options import LEAST_HISTORY, LONGEST_HISTORY
from epochlog.store.metadata.version import TableVersion
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.epoch import to_unix_ms

LEAST_MS, LONGEST_MS = (span // timedelta(milliseconds=1) for span in (LEAST_HISTORY, LONGEST_HISTORY))
SMALL_BYTES = 256 * 1024
"""Bytes of replaced rows that any table may keep: of small ones, the files' own footers are larger than the rows."""
GROWS_AGAIN_PERCENT = 75
"""A history that has become too large grows again when it takes less than this percentage of the bytes of the rows."""


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """Direction in which the history of a table goes since a time, and its oldest time then (Unix ms)."""

    grows: bool
    edge_ms: int
    since_ms: int

    def edge_at(self, now_ms: int) -> int:
        """Return the time of the oldest epoch to keep at `now_ms`: LEAST_HISTORY to LONGEST_HISTORY ago."""
        edge_ms = self.edge_ms if self.grows else self.edge_ms + 2 * max(now_ms - self.since_ms, 0)
        return min(max(edge_ms, now_ms - LONGEST_MS), now_ms - LEAST_MS)

    def to_record(self) -> Record:
        return asdict(self)

    @classmethod
    @checked
    def from_record(cls, record: Record) -> KeptHistory:
        return cls(bool(record["grows"]), int(record["edge_ms"]), int(record["since_ms"]))


@dataclass(frozen=True, slots=True)
class HistorySize:
    """Bytes of the files of a table's runs: of replaced rows (`history`) and of the newest ones (`live`)."""

    history: int
    live: int

    @classmethod
    def of(cls, runs: Iterable[SortedRun]) -> HistorySize:
        sizes = [(sum(part.bytes for part in run.history), run.live_bytes) for run in runs]
        return cls(sum(history for history, _ in sizes), sum(live for _, live in sizes))

    def grows(self, *, growing: bool) -> bool:
        """Return True if the history may grow. growing: it does so now."""
        most = max(self.live, SMALL_BYTES)
        return self.history <= most if growing else self.history * 100 < most * GROWS_AGAIN_PERCENT


def next_history(before: KeptHistory | None, size: HistorySize, oldest_ms: int, now_ms: int) -> KeptHistory:
    """Return the direction of a history from now on. before: the recorded one; None: it grows since its beginning.
    oldest_ms: the time of the oldest epoch that can still be read.
    """
    before = before or KeptHistory(grows=True, edge_ms=oldest_ms, since_ms=oldest_ms)
    grows = size.grows(growing=before.grows)
    return before if grows == before.grows else KeptHistory(grows, max(before.edge_at(now_ms), oldest_ms), now_ms)


def read_history(view: ReadTxn, table: TableDef, version: TableVersion, now_ms: int) -> KeptHistory | None:
    """Decide the direction of a table's history now; None if it has a history_retention of its own."""
    if table.options.history_retention is not None:
        return None
    oldest_ms = to_unix_ms(max(version.safe_epoch, table.created))
    size = HistorySize.of(get_runs(view, table.id)) if version.runs else HistorySize(0, 0)
    return next_history(recorded_history(view, table.id), size, oldest_ms, now_ms)


def recorded_history(view: ReadTxn, table_id: int) -> KeptHistory | None:
    """Return the recorded direction of a table's history; None while it grows since its beginning."""
    record = view.get(kept_history_key(table_id))
    return None if record is None else KeptHistory.from_record(record)


def turned(view: ReadTxn, table_id: int, history: KeptHistory | None) -> KeptHistory | None:
    """Return the direction of a table's history if it is another one than recorded, else None."""
    before = recorded_history(view, table_id)
    return history if history is not None and history.grows != (before is None or before.grows) else None
