"""Planner of flights: plans a flight's read, holds its epochs in one transaction, and cuts the read into ordered parts.

The rows of a table and a net log are cut by key range, in key order. A log of epochs is cut between its epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.footprint import Footprint, of_feed, of_replay, of_scan
from epochlog.store.changelog.log_plan import Columns, LogPlan, ended_by_alter, plan_changes
from epochlog.store.changelog.plan_ranges import narrowed
from epochlog.store.changelog.raw_replay import replay
from epochlog.store.changelog.replanned import read_replanned
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions

from .descriptors import ChangesCommand, Read
from .leases import FlightPart, LeasedFlight

PART_ROWS = 1 << 20
"""Approximate number of rows of a part; the last part of a table may have fewer."""
MAX_PARTS = 32
SPLIT_BYTES = 16 << 20
"""Approximate bytes of a table's rows read at a time. They stay in memory until the client has received them."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Table at the epoch that a policy chose, pinned until `release`."""

    plan: ScanPlan
    release: Callable[[], None]


Check = Callable[[], None]
"""Function that is called while a call waits for an epoch; it raises an error to end the wait."""
Choose = Callable[[str, str | None, Mapping[str, Any], Check], Chosen]
"""Function of a table's name, a policy's name (None: the default), the policy's options, and the check of its wait."""


@dataclass(frozen=True, slots=True)
class FlightPlanner:
    """Planner of the flights of one open store."""

    handle: Handle
    choose: Choose

    def plan(self, command: Read | ChangesCommand, check: Check) -> LeasedFlight:
        """Plan a read and hold its epochs. Raises the errors of planning and of `check`, and then holds nothing."""
        return self._plan_rows(command, check) if isinstance(command, Read) else self._plan_changes(command)

    def _plan_rows(self, command: Read, check: Check) -> LeasedFlight:
        if command.epoch is None:
            chosen = self.choose(command.table, command.consistency, command.options, check)
        else:
            chosen = self.choose(command.table, "exact", {"epochs_or_token": {command.table: command.epoch}}, check)
        try:
            plan, columns = chosen.plan, command.columns
            schema = plan.schema(columns)
            ranges = plan.splits(_parts_for(plan.rows_at_most)) if plan.rows_at_most else [ALL_KEYS]
            part_plans = [(narrowed(plan, keys), keys) for keys in ranges]
            parts = tuple(self._scan_part(part_plan, columns, keys) for part_plan, keys in part_plans)
            return LeasedFlight(schema, parts, chosen.release, plan.epoch, plan.rows_known)
        except BaseException:
            chosen.release()
            raise

    def _plan_changes(self, command: ChangesCommand) -> LeasedFlight:
        handle, holder = self.handle, self.handle.new_holder("flight")

        def plan_and_hold(tx: Txn) -> tuple[TableDef, LogPlan, int, list[bytes]]:
            table = find_table(tx, command.table)
            plan = plan_flight_changes(tx, table, command)
            # Raises for bad options before anything is held.
            options = ReadOptions(command.columns)
            plan.batches(handle.files, command.mode, pre_images=command.pre_images, options=options)
            newest = get_version(tx, table.id, table.name).max_committed_epoch
            looks_up = command.pre_images and not plan.stored
            now_ms = handle.catalog.now_ms()
            row_epoch = command.after if looks_up else None
            hold = Hold(holder, table.id, command.after, row_epoch, now_ms, now_ms + LEASE_MS)
            until = max(newest, command.after) if command.until is None else command.until
            until = until if plan.altered is None else max(command.after, plan.altered - 1)
            return table, plan, until, put_holds(tx, [hold])

        table, plan, until, hold_keys = handle.pin(plan_and_hold)
        handle.leases.keep(holder, hold_keys)
        try:
            parts = (*self._cut_log(table, plan, command), *_end_at_alter(plan))
            raw = command.mode == "epochs" and not command.pre_images
            exact = raw and not any(len(group.segments) > 1 for group in plan.groups)
            rows = plan.rows if exact and plan.altered is None else None
            return LeasedFlight(plan.schema(command.columns), parts, lambda: handle.leases.release(holder), until, rows)
        except BaseException:
            handle.leases.release(holder)
            raise

    def _cut_log(self, table: TableDef, plan: LogPlan, command: ChangesCommand) -> Iterator[FlightPart]:
        if command.mode == "net":
            ranges = plan.splits(self.handle.files, _parts_for(plan.rows)) if plan.rows else [ALL_KEYS]
            for keys in ranges:
                yield self._log_part(table, plan, command, keys)
            return
        for part_plan in split_by_epoch(plan, _parts_for(plan.rows)):
            yield self._log_part(table, part_plan, command, ALL_KEYS)

    def _log_part(self, table: TableDef, part_plan: LogPlan, command: ChangesCommand, keys: KeyRange) -> FlightPart:
        """Return the part of a log with these keys. It is planned anew past the rows that it has returned where nothing
        could hold its files (4.18).
        """
        files, images, net = self.handle.files, command.pre_images, command.mode == "net"
        part_plan, options = _narrowed_log(part_plan, keys), ReadOptions(command.columns, None, keys)

        def batches(plan: LogPlan) -> Iterator[pa.RecordBatch]:
            if net or images:
                return plan.batches(files, command.mode, pre_images=images, options=options)
            return replay(plan, files, command.columns)

        def plan_from(epoch: int) -> Iterator[pa.RecordBatch]:
            after = command.after if net else max(epoch, part_plan.groups[0].first) - 1
            until, columns = part_plan.groups[-1].label, Columns(part_plan.table, whole=net, cut=True)

            def plan(view: ReadTxn) -> LogPlan:
                present = get_table(view, table.id, table.name)
                return plan_changes(view, present, after, until, columns=columns, pre_images=images)

            return batches(_narrowed_log(self.handle.catalog.read(plan), keys))

        columns = command.columns
        footprint = of_feed(part_plan, columns, images=images) if net or images else of_replay(part_plan, columns)
        return FlightPart(
            lambda: read_replanned(self.handle, batches(part_plan), plan_from, by_epoch=not net), footprint
        )

    def _scan_part(self, part_plan: ScanPlan | LogPlan, columns: Sequence[str] | None, keys: KeyRange) -> FlightPart:
        assert isinstance(part_plan, ScanPlan)
        options = ReadOptions(columns, None, keys)
        batches = partial(part_plan.batches, self.handle.files, options, split_bytes=SPLIT_BYTES)
        footprint = of_scan(part_plan, columns, SPLIT_BYTES)
        return FlightPart(lambda: translate_stale_reads(self.handle, batches()), footprint)


def _narrowed_log(plan: LogPlan, keys: KeyRange) -> LogPlan:
    narrow = narrowed(plan, keys)
    assert isinstance(narrow, LogPlan)
    return narrow


def plan_flight_changes(view: ReadTxn, table: TableDef, command: ChangesCommand) -> LogPlan:
    """Plan the changes of a flight: those of a net log in the columns of its end, others up to an alter that drops,
    renames or widens a column.
    """
    columns = Columns(whole=command.mode == "net", cut=True)
    return plan_changes(view, table, command.after, command.until, columns=columns)


def _end_at_alter(plan: LogPlan) -> Iterator[FlightPart]:
    """Yield a last part that raises SchemaChanged, if the flight ends at an alter."""
    if plan.altered is not None:
        nothing: list[pa.RecordBatch] = []
        yield FlightPart(lambda: ended_by_alter(plan, iter(nothing)), Footprint(0, 0))


def split_by_epoch(plan: LogPlan, count: int) -> list[LogPlan]:
    """Cut the plan between its log epochs into at most `count` plans of similar numbers of rows; an empty plan gives
    one.
    """
    part_plan = -(-plan.rows // count)
    part_plans: list[LogPlan] = []
    first = rows = 0
    for index, group in enumerate(plan.groups):
        rows += sum(segment.rows for segment in group.segments)
        if rows >= part_plan or index + 1 == len(plan.groups):
            part_plans.append(_slice_log(plan, first, index + 1))
            first, rows = index + 1, 0
    return part_plans or [plan]


def _slice_log(plan: LogPlan, first: int, end: int) -> LogPlan:
    """Return the plan of the log epochs with indexes [first, end); its `before` includes all earlier segments."""
    earlier = [segment for group in plan.groups[:first] for segment in group.segments]
    before = None if plan.before is None else plan.before.extended(earlier)
    return replace(plan, before=before, groups=plan.groups[first:end])


def _parts_for(rows: int) -> int:
    return min(MAX_PARTS, max(1, rows // PART_ROWS))
