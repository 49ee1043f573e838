"""Compaction under way: the record of a task, of the subcompactions that are done, and of its owner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from epochlog.store.catalog.keys import COMPACT_PREFIX, compact_key, table_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_runs, get_table, get_version
from epochlog.store.metadata.version import LogEntry, Runs
from epochlog.store.sst.sorted_run import RunFile

from .strategy import CompactionTask
from .subcompactions import Subcompaction

Parts = tuple[tuple[RunFile, ...], tuple[RunFile, ...]]
"""Live and history parts of a subcompaction."""
_PLAIN = ("owner", "process", "by", "since_ms", "expires_ms")
"""Fields of `Work` that its record has as they are."""


class CompactionOutcome(StrEnum):
    """Result of a compaction call. NOTHING: no task was due. PROGRESS: some subcompactions are done, more are left.
    DONE: the new run is in place. BUSY: another process works on the task. LOST: the inputs have gone; nothing is left
    behind.
    """

    NOTHING = "nothing"
    PROGRESS = "progress"
    DONE = "done"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Work:
    """Task under way: its subcompactions, the parts of those that are done, and its owner."""

    task: CompactionTask
    subcompactions: tuple[Subcompaction, ...]
    owner: str
    process: str
    by: str
    since_ms: int
    expires_ms: int
    done: dict[int, Parts]
    taken_over: bool = False

    def to_record(self) -> Record:
        """Return the record of the task without its finished subcompactions: each of these has a record of its own."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        ranges = [[each.low, each.high, each.reused] for each in self.subcompactions]
        return {**plain, "task": self.task.to_record(), "pieces": ranges}

    @property
    def parts(self) -> tuple[RunFile, ...]:
        return tuple(part for live, history in self.done.values() for part in (*live, *history))


def read_work(view: ReadTxn, table_id: int) -> Work | None:
    """Return the unfinished compaction of a table, whose process may have died; None without one."""
    record = view.get(compact_key(table_id))
    if record is None:
        return None
    prefix = table_prefix(COMPACT_PREFIX, table_id)
    done = {int(key[-8:], 16): parts_from_record(finished) for key, finished in scan_prefix(view, prefix)}
    return Work(
        task=CompactionTask.from_record(record["task"]),
        subcompactions=tuple(Subcompaction(*key_range) for key_range in record["pieces"]),
        done=done,
        **{name: record[name] for name in _PLAIN},
    )


def parts_to_record(parts: Parts) -> Record:
    """Return the record of the parts of a subcompaction."""
    live, history = ([part.to_record() for part in kind] for kind in parts)
    return {"live": live, "history": history}


def parts_from_record(record: Record) -> Parts:
    """Return the parts of a subcompaction from their record."""
    return tuple(map(RunFile.from_record, record["live"])), tuple(map(RunFile.from_record, record["history"]))


def read_inputs(view: ReadTxn, table: TableDef, task: CompactionTask) -> tuple[Runs, list[LogEntry]] | None:
    """Return the runs and log entries that a task merges; None if another compaction has taken some of them."""
    get_table(view, table.id, table.name)
    version = get_version(view, table.id, table.name)
    runs = task.inputs(get_runs(view, table.id))
    if runs is None or (task.l0_after is not None and version.compacted_epoch != task.l0_after):
        return None
    return runs, read_entries(view, table.id, task)


def read_entries(view: ReadTxn, table_id: int, task: CompactionTask) -> list[LogEntry]:
    """Return the log entries that a task merges."""
    return [] if task.l0_after is None else get_entries(view, table_id, task.l0_after, task.hi)


def delete_work(tx: Txn, table_id: int) -> None:
    """Delete the records of a compaction under way. Call inside a transaction."""
    prefix = table_prefix(COMPACT_PREFIX, table_id)
    for key in [key for key, _ in scan_prefix(tx, prefix)]:
        tx.delete(key)
    tx.delete(compact_key(table_id))
