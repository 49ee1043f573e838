"""Folding a table's L0 into one sorted Parquet run: two pure functions round one job.

`pick(version, entries, ...) -> Task | None` decides, `run_task` reads and writes files, `finish` (through
apply_compaction) puts the result in place if its inputs are still there. Commits go on meanwhile: they only add
entries above the task's epoch.

A run keeps the newest version of each live key in its parts, and what was replaced in its history parts for as long
as an epoch at or above safe_epoch can see it. So reads of the present never pay for the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import TableDropped, WriteFailed
from .catalog import Txn, View
from .definitions import TableDef, get_runs, get_table, get_version
from .epoch import from_unix_ms
from .files import Files
from .holds import holds_of
from .keys import KeyCodec, sort_indices
from .merge import Rows, lookup, merge, newest_wins
from .records import head_key, log_key, runs_key
from .run import EPOCH, UNTIL, Part, Run, read_part, write_part
from .schema import TableSchema
from .segment import SegmentReader
from .version import LogEntry, Runs, TableVersion, apply_runs, apply_safe_epoch, runs_to_record

if TYPE_CHECKING:
    from .handle import Handle

PART_ROWS = 1 << 20
FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Task:
    """Fold the run before and the L0 entries into one run that covers (0, hi].

    Versions not seen from `safe_epoch` on go.
    """

    inputs: tuple[Run, ...]
    entries: tuple[LogEntry, ...]
    hi: int
    safe_epoch: int


def pick(version: TableVersion, runs: Runs, entries: Sequence[LogEntry], *, least_segments: int) -> Task | None:
    """The next compaction of a table, or None while its L0 holds fewer than `least_segments` segments."""
    segments = sum(len(entry.segments) for entry in entries)
    if segments < max(1, least_segments):
        return None
    return Task(runs, tuple(entries), version.max_committed_epoch, version.safe_epoch)


def compact_table(handle: Handle, table: TableDef, *, full: bool = False) -> bool:
    """Compact one table if it is due (`full`: if there is anything in L0); True when a new run took effect.

    False also when another compaction was first, or the table was dropped meanwhile: then nothing is left behind.
    """
    raise_safe_epoch(handle, table)

    def look(view: View) -> Task | None:
        version = get_version(view, table.id, table.name)
        entries = [
            LogEntry.from_record(record)
            for _, record in view.scan(
                log_key(table.id, version.compacted_epoch + 1), log_key(table.id, version.max_committed_epoch + 1)
            )
        ]
        return pick(
            version, get_runs(view, table.id), entries, least_segments=1 if full else table.options.compact_segments
        )

    task = handle.catalog.read(look)
    if task is None:
        return False
    output = run_task(handle.files, table.schema, task, lambda: handle.new_path(table.id, ".parquet"))

    def finish(tx: Txn) -> bool:
        get_table(tx, table.id, table.name)
        version = get_version(tx, table.id, table.name)
        if get_runs(tx, table.id) != task.inputs:
            return False
        tx.put(head_key(table.id), apply_runs(version, (output,), task.entries).to_record())
        tx.put(runs_key(table.id), runs_to_record((output,)))
        for entry in task.entries:  # the log let go of these before; now reads have, too
            if entry.epoch < version.log_start:
                tx.delete(log_key(table.id, entry.epoch))
        return True

    took_effect = False
    with suppress(TableDropped):
        took_effect = handle.catalog.transact(finish)
    if not took_effect:
        _remove(handle.files, output)
    return took_effect


def _remove(files: Files, run: Run) -> None:
    """Remove the files of a run that no version has taken; what resists is left to vacuum."""
    for part in (*run.parts, *run.history):
        with suppress(WriteFailed):
            files.delete(part.path)


def raise_safe_epoch(handle: Handle, table: TableDef) -> None:
    """Let go of history older than the table's retention, but of nothing that is held; a transaction of its own."""
    now_ms = handle.catalog.now_ms()
    target = from_unix_ms(now_ms - round(table.options.history_retention.total_seconds() * 1000))

    def raised(view: View) -> TableVersion | None:
        version = get_version(view, table.id, table.name)
        held = [
            hold.read_epoch
            for hold in holds_of(view, table.id, now_ms, handle.leases.live)
            if hold.read_epoch is not None
        ]
        after = apply_safe_epoch(version, min([target, *held]))
        return after if after != version else None

    def body(tx: Txn) -> None:
        after = raised(tx)
        if after is not None:
            tx.put(head_key(table.id), after.to_record())

    if handle.catalog.read(raised) is not None:
        handle.catalog.transact(body)


# ---- the work ----------------------------------------------------------------------------------------------------


def run_task(files: Files, table: TableSchema, task: Task, new_path) -> Run:
    """Read the inputs, write the parts, return the run that describes them. Only the small side is ever sorted."""
    codec, columns = KeyCodec(table.schema, table.primary_key), table.schema.names
    live, history = _old_run(files, table, codec, task, columns)
    changes = _changes(files, table, codec, task.entries, columns)
    if changes is not None:
        newest, replaced = _split_versions(changes)
        ends = _first_epochs(changes)
        overwritten = _overwritten(live, ends)
        history = [rows for rows in (*history, replaced, overwritten) if rows is not None]
        live = merge(live, newest, keep_tombstones=False)
    kept = [_still_seen(rows, task.safe_epoch) for rows in history]
    past = _sorted_union([rows for rows in kept if len(rows.keys)])
    return Run(
        lo=0,
        hi=task.hi,
        parts=tuple(_write(files, table, codec, live, new_path, history=False)),
        history=tuple(_write(files, table, codec, past, new_path, history=True)) if past is not None else (),
    )


def _old_run(
    files: Files, table: TableSchema, codec: KeyCodec, task: Task, columns: Sequence[str]
) -> tuple[Rows, list[Rows]]:
    """The rows of the run before, with their epochs; and its history, with the epochs that end each row."""
    schema = pa.schema([*table.schema, pa.field(EPOCH, pa.int64())])
    live = Rows(pa.array([], codec.key_type), schema.empty_table(), None)
    history: list[Rows] = []
    for run in task.inputs:
        parts = [read_part(files, part, table, codec, [*columns, EPOCH]) for part in run.parts]
        if parts:
            live = Rows(pa.concat_arrays([p.keys for p in parts]), _stacked([p.data for p in parts]), None)
        history += [read_part(files, part, table, codec, [*columns, EPOCH, UNTIL]) for part in run.history]
    return live, history


def _changes(
    files: Files, table: TableSchema, codec: KeyCodec, entries: Sequence[LogEntry], columns: Sequence[str]
) -> Rows | None:
    """All versions in L0, sorted by key and then epoch; keys repeat, the data has the epoch each became visible at."""
    found: list[Rows] = []
    for entry in entries:
        rows = [SegmentReader(files, segment, table, codec).read(columns) for segment in entry.segments]
        rows = [part for part in rows if len(part.keys)]
        if rows:
            merged = newest_wins(rows) if len(rows) > 1 else rows[0]
            epochs = pa.array(np.full(len(merged.keys), entry.epoch, np.int64))
            found.append(Rows(merged.keys, merged.data.append_column(EPOCH, epochs), merged.deleted))
    if not found:
        return None
    keys = pa.concat_arrays([rows.keys for rows in found])
    deleted = np.concatenate([_tombstones(rows) for rows in found])
    data = _stacked([rows.data for rows in found])
    order = sort_indices(keys)  # stable, and entries come oldest first
    take = pa.array(order)
    return Rows(keys.take(take), data.combine_chunks().take(take), deleted[order])


def _split_versions(changes: Rows) -> tuple[Rows, Rows | None]:
    """The newest version of each key (tombstones too).

    And the others, less tombstones, with the epoch that ended them.
    """
    last = np.append(_differs(changes.keys), True)
    epochs = changes.data.column(EPOCH).to_numpy()
    deleted = _tombstones(changes)
    newest = _take(changes, np.flatnonzero(last))
    older = np.flatnonzero(~last)
    ends = epochs[older + 1]
    kept = ~deleted[older]
    if not kept.any():
        return newest, None
    replaced = _take(changes, older[kept])
    return newest, Rows(replaced.keys, replaced.data.append_column(UNTIL, pa.array(ends[kept])), None)


def _first_epochs(changes: Rows) -> Rows:
    """For each key the first epoch at which L0 changes it."""
    first = np.insert(_differs(changes.keys), 0, True)
    rows = _take(changes, np.flatnonzero(first))
    return Rows(rows.keys, rows.data.select([EPOCH]), None)


def _overwritten(live: Rows, ends: Rows) -> Rows | None:
    """Rows of the run before that L0 replaces or deletes, with the epoch that ended them."""
    at = lookup(live, ends.keys)
    hit = at >= 0
    if not hit.any():
        return None
    rows = _take(live, at[hit])
    return Rows(rows.keys, rows.data.append_column(UNTIL, ends.data.column(EPOCH).filter(pa.array(hit))), None)


def _still_seen(rows: Rows, safe_epoch: int) -> Rows:
    """Rows that some epoch at or above safe_epoch can see."""
    seen = rows.data.column(UNTIL).to_numpy() > safe_epoch
    return rows if seen.all() else _take(rows, np.flatnonzero(seen))


def _sorted_union(found: Sequence[Rows]) -> Rows | None:
    if not found:
        return None
    keys = pa.concat_arrays([rows.keys for rows in found])
    data = _stacked([rows.data for rows in found]).combine_chunks()
    epochs = data.column(EPOCH).to_numpy()
    by_epoch = np.argsort(epochs, kind="stable")
    order = by_epoch[sort_indices(keys.take(pa.array(by_epoch)))]
    return _take(Rows(keys, data, None), order)


def _write(files: Files, table: TableSchema, codec: KeyCodec, rows: Rows, new_path, *, history: bool) -> list[Part]:
    """Parts with disjoint key ranges; versions of one key stay in one part."""
    parts: list[Part] = []
    starts = np.insert(_differs(rows.keys), 0, True) if len(rows.keys) else np.empty(0, np.bool_)
    at = 0
    while at < len(rows.keys):
        end = min(at + PART_ROWS, len(rows.keys))
        while end < len(rows.keys) and not starts[end]:
            end += 1
        piece = Rows(rows.keys.slice(at, end - at), rows.data.slice(at, end - at), None)
        parts.append(write_part(files, new_path(), table, codec, piece, history=history))
        at = end
    return parts


def _differs(keys: pa.Array) -> np.ndarray:
    """bool[len - 1]: where a key is another than the one before it."""
    if len(keys) < 2:
        return np.empty(0, np.bool_)
    return pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)


def _stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables end to end; what came from a file and what was computed may differ in what they say of nulls."""
    return pa.concat_tables(tables, promote_options="default")


def _tombstones(rows: Rows) -> np.ndarray:
    return rows.deleted if rows.deleted is not None else np.zeros(len(rows.keys), np.bool_)


def _take(rows: Rows, positions: np.ndarray) -> Rows:
    take = pa.array(positions)
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    return Rows(rows.keys.take(take), rows.data.take(take), deleted)
