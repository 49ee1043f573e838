"""Expiry of rows: deletes of the rows whose time is older than the table's ttl, as ordinary commits of a root table.

Rules: docs/SEMANTICS.md, 1.23 and 1.24. Rows are chosen at a boundary from the newest state. If another commit of the
table lands first, the keys that it changed are decided again, so that no row is deleted that was renewed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_changes
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import ROWS_EXPIRED
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.known_clocks import MAX_JUMP_MS
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.sst.merge import lookup
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, remove_segments
from epochlog.store.types.epoch import to_unix_ms
from epochlog.store.types.read_options import ReadOptions

from .boundaries import newest_boundary_before
from .change import CommitConflict, TableChange
from .failures import TtlAltered
from .root_commit import RootCommit
from .transaction import commit_changes

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

BATCH_ROWS = 1 << 20
"""Most rows that one commit expires; their keys are in memory."""
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of the expired rows of a table, as of its commit `base`."""

    table: TableDef
    """Table with the columns and the ttl of the time of the choice; `keys` has these columns."""
    keys: pa.Table
    base: int
    cutoff: pa.Scalar
    more: bool
    """True if more expired rows may be left for another commit."""

    @property
    def expired(self) -> pc.Expression:
        """Return the condition of expired rows, in the columns of `table`."""
        return pc.field(self.table.options.ttl_column) <= self.cutoff


def expire_rows(handle: Handle, table: TableDef) -> int:
    """Delete the rows whose ttl has passed at the newest boundary; return their number. Raises TableDropped.

    A table without a ttl, a finished one and an output have none. Each commit has at most BATCH_ROWS of them.
    """
    count = 0
    while True:
        chosen = retry_stale_plan(handle, lambda: _choose(handle, table))
        if chosen is None or not chosen.keys.num_rows:
            return count
        count += _commit(handle, chosen)
        if not chosen.more:
            return count


def _choose(handle: Handle, table: TableDef) -> Choice | None:
    """Choose expired rows from the newest state; None for a table without expiry, and in a store whose newest epoch is
    more than MAX_JUMP_MS ahead of the clock, where rows could expire too early.
    """

    def plan(view: ReadTxn) -> tuple[TableDef, ScanPlan | None, int]:
        current = get_table(view, table.id, table.name)
        ended = get_version(view, table.id, table.name).end_epoch is not None
        now_ms = handle.clock_guard.slowest_ms(view)
        leads = to_unix_ms(Counters.read(view).last_epoch) > now_ms + MAX_JUMP_MS
        expires = current.options.ttl is not None and not current.derived and not ended and not leads
        return current, plan_scan(view, current, None) if expires else None, now_ms

    current, newest, now_ms = handle.catalog.read(plan)
    ttl, column = current.options.ttl, current.options.ttl_column
    if newest is None or ttl is None or column is None:
        return None
    boundary_ms = to_unix_ms(newest_boundary_before(now_ms, handle.interval_ms))
    limit = cutoff(current.schema.schema.field(column).type, boundary_ms, ttl)
    keys, more = _first_keys(handle, newest, pc.field(column) <= limit)
    return Choice(current, keys, newest.epoch, limit, more)


def cutoff(kind: pa.DataType, boundary_ms: int, ttl: timedelta) -> pa.Scalar:
    """Return the newest value of a column of this type whose ttl has passed at a time (Unix ms). Pure.

    A timestamp without a time zone is in UTC, and a date is its first moment in UTC.
    """
    ms = boundary_ms - ttl // timedelta(milliseconds=1)
    if pa.types.is_date(kind):
        days = ms // _DAY_MS
        return pa.scalar(days, pa.int32()).cast(pa.date32()).cast(kind)
    per_ms = {"s": 1 / 1000, "ms": 1, "us": 1_000, "ns": 1_000_000}[kind.unit]
    value = ms // 1000 if kind.unit == "s" else ms * int(per_ms)
    return pa.scalar(max(value, -(1 << 63)), pa.int64()).cast(kind)


def _first_keys(handle: Handle, plan: ScanPlan, expired: pc.Expression) -> tuple[pa.Table, bool]:
    """Return the keys of the first BATCH_ROWS rows that pass, and True if there may be more."""
    names = list(plan.table.primary_key)
    batches, count = [pa.RecordBatch.from_pylist([], plan.table.key_schema)], 0
    for batch in plan.batches(handle.files, ReadOptions(names, expired)):
        batches.append(batch.slice(0, BATCH_ROWS - count))
        count += batches[-1].num_rows
        if count == BATCH_ROWS:
            return pa.Table.from_batches(batches[1:]), True
    return pa.Table.from_batches(batches[1:] or batches), False


def _commit(handle: Handle, chosen: Choice) -> int:
    """Commit the deletes of the chosen keys; return their number, 0 if none is left to delete."""
    table, keys, base = chosen.table, chosen.keys, chosen.base
    while keys.num_rows:
        segments = _write_deletes(handle, table, keys)
        change = TableChange(table, segments, "expire", base=base, by_ttl=True)
        hit("expire:before-commit")
        try:
            commit_changes(handle, [change], RootCommit(), delete_refused=True)
        except TtlAltered:  # its files are deleted
            return 0
        except CommitConflict:
            remove_segments(handle.files, segments)
        else:
            hit("expire:after-commit")
            handle.log(ROWS_EXPIRED, table=table.name, rows=keys.num_rows)
            return keys.num_rows
        again = retry_stale_plan(handle, lambda keys=keys, base=base: _decide_again(handle, chosen, keys, base))
        if again is None:  # the options were altered, or the log does not reach back: the next call chooses anew
            return 0
        keys, base = again
    return 0


def _write_deletes(handle: Handle, table: TableDef, keys: pa.Table) -> tuple[Segment, ...]:
    with SegmentWriter(handle.write_target(table)) as writer:
        writer.delete(keys)
        return tuple(writer.finish())


def _decide_again(handle: Handle, chosen: Choice, keys: pa.Table, base: int) -> tuple[pa.Table, int] | None:
    """Return those of the keys whose rows are expired in the newest state, and its commit. Only keys of later commits
    are looked up. None if the ttl was altered, or the log does not reach back.
    """

    def plan(view: ReadTxn) -> tuple[ScanPlan, LogPlan] | None:
        table = chosen.table
        current = get_table(view, table.id, table.name)
        if current.expiry != table.expiry or base < get_version(view, table.id, table.name).log_start:
            return None
        schema = table.schema.with_lineage(current.schema.lineage)  # the columns of the choice
        changes = plan_changes(view, current, base, by_commit=True, columns=Columns(schema, whole=True))
        return plan_scan(view, current, None, schema), changes

    planned = handle.catalog.read(plan)
    if planned is None:
        return None
    newest, log = planned
    encoded = newest.codec.encode(keys)
    renewed = pa.concat_arrays([pa.array([], encoded.type), *_renewed(handle, newest, log, chosen.expired)])
    is_renewed = pc.is_in(encoded, value_set=renewed) if len(renewed) else pa.array([False] * len(encoded))
    return keys.filter(pc.invert(is_renewed)), newest.epoch


def _renewed(handle: Handle, newest: ScanPlan, log: LogPlan, expired: pc.Expression) -> Iterator[pa.Array]:
    """Yield the keys of the log that need no delete now: their newest row has not expired, or they have none."""
    names = list(newest.table.primary_key)
    columns = newest.table.schema.names
    for batch in log.batches(handle.files, "net", options=ReadOptions(names)):  # sorted, each key once
        keys = newest.codec.encode(pa.table(batch.select(names)))
        rows = newest.rows_of(handle.files, keys, columns)
        still = newest.codec.encode(rows.data.filter(expired).select(names)) if len(rows) else rows.keys
        yield keys.filter(pa.array(lookup(still, keys) < 0))
