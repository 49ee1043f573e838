"""Planner of flights: plans and holds a flight's read in one transaction, and cuts it into parts that give its rows in
order.

The rows of a table are cut by key ranges, in key order; so is a net log. A log of epochs is cut between its epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from epochlog.store.catalog.protocol import Txn
from epochlog.store.changelog.footprint import of_feed, of_replay, of_scan
from epochlog.store.changelog.log_plan import LogPlan, plan_changes
from epochlog.store.changelog.plan_ranges import narrowed
from epochlog.store.changelog.raw_replay import replay
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.scan.scan_plan import EVERYTHING, KeyRange, ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS

from .descriptors import ChangesCommand, Read
from .leases import FlightPart, LeasedFlight

PART_ROWS = 1 << 20
"""Rows of a part, about; a table's last part may have fewer."""
MAX_PARTS = 32
PIECE_BYTES = 16 << 20
"""What is read at a time of a table's rows, about: it is in memory for as long as the client takes to take it."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Table at the epoch that a policy chose, pinned until `release`."""

    plan: ScanPlan
    release: Callable[[], None]


Choose = Callable[[str, str, Mapping[str, Any]], Chosen]
"""Given a table, the name of a policy and its options."""


@dataclass(frozen=True, slots=True)
class FlightPlanner:
    """Planner of the flights of one open store."""

    handle: Handle
    choose: Choose

    def hold(self, wanted: Read | ChangesCommand) -> LeasedFlight:
        """Plan a read and hold its epochs. Raises the errors of planning; nothing is held then."""
        return self._rows(wanted) if isinstance(wanted, Read) else self._changes(wanted)

    def _rows(self, wanted: Read) -> LeasedFlight:
        if wanted.epoch is None:
            chosen = self.choose(wanted.table, wanted.consistency, wanted.options)
        else:
            chosen = self.choose(wanted.table, "exact", {"epochs_or_token": {wanted.table: wanted.epoch}})
        try:
            plan, columns = chosen.plan, wanted.columns
            schema = plan.schema(columns)
            ranges = plan.splits(_parts_for(plan.rows_at_most)) if plan.rows_at_most else [EVERYTHING]
            shares = [(narrowed(plan, keys), keys) for keys in ranges]
            parts = tuple(self._scanned(share, columns, keys) for share, keys in shares)
            return LeasedFlight(schema, parts, chosen.release, plan.epoch, plan.rows_known)
        except BaseException:
            chosen.release()
            raise

    def _changes(self, wanted: ChangesCommand) -> LeasedFlight:
        handle, holder = self.handle, self.handle.new_holder("flight")

        def body(tx: Txn) -> tuple[LogPlan, int, list[bytes]]:
            table = find_table(tx, wanted.table)
            plan = plan_changes(tx, table, wanted.after, wanted.until)
            plan.batches(handle.files, wanted.mode, pre_images=wanted.pre_images, columns=wanted.columns)  # or raises
            newest = get_version(tx, table.id, table.name).max_committed_epoch
            looks_up = wanted.pre_images and not plan.stored
            now_ms = handle.catalog.now_ms()
            hold = Hold(holder, table.id, wanted.after, wanted.after if looks_up else None, now_ms, now_ms + LEASE_MS)
            until = max(newest, wanted.after) if wanted.until is None else wanted.until
            return plan, until, put_holds(tx, [hold])

        plan, until, keys = handle.catalog.transact(body)
        handle.leases.keep(holder, keys)
        try:
            parts = tuple(self._parts(plan, wanted))
            exact = (
                wanted.mode == "epochs" and not wanted.pre_images and not any(len(g.segments) > 1 for g in plan.groups)
            )
            rows = plan.rows if exact else None
            return LeasedFlight(plan.schema(wanted.columns), parts, lambda: handle.leases.release(holder), until, rows)
        except BaseException:
            handle.leases.release(holder)
            raise

    def _parts(self, plan: LogPlan, wanted: ChangesCommand) -> Iterator[FlightPart]:
        if wanted.mode == "net":
            ranges = plan.splits(self.handle.files, _parts_for(plan.rows)) if plan.rows else [EVERYTHING]
            for keys in ranges:
                yield self._fed(narrowed(plan, keys), wanted, keys)
            return
        for share in by_epochs(plan, _parts_for(plan.rows)):
            yield self._fed(share, wanted, EVERYTHING) if wanted.pre_images else self._replayed(share, wanted.columns)

    def _scanned(self, share: ScanPlan | LogPlan, columns: Sequence[str] | None, keys: KeyRange) -> FlightPart:
        assert isinstance(share, ScanPlan)

        def batches() -> Iterator[pa.RecordBatch]:
            return share.batches(self.handle.files, columns, None, keys, piece_bytes=PIECE_BYTES)

        return FlightPart(lambda: translate_stale_reads(self.handle, batches()), of_scan(share, columns, PIECE_BYTES))

    def _replayed(self, share: LogPlan, columns: Sequence[str] | None) -> FlightPart:
        batches = partial(replay, share, self.handle.files, columns)
        return FlightPart(lambda: translate_stale_reads(self.handle, batches()), of_replay(share, columns))

    def _fed(self, share: ScanPlan | LogPlan, wanted: ChangesCommand, keys: KeyRange) -> FlightPart:
        assert isinstance(share, LogPlan)

        def batches() -> Iterator[pa.RecordBatch]:
            return share.batches(
                self.handle.files,
                wanted.mode,
                pre_images=wanted.pre_images,
                columns=wanted.columns,
                key_range=keys,
            )

        footprint = of_feed(share, wanted.columns, images=wanted.pre_images)
        return FlightPart(lambda: translate_stale_reads(self.handle, batches()), footprint)


def by_epochs(plan: LogPlan, count: int) -> list[LogPlan]:
    """Cut the plan between its log epochs into at most `count` plans with like numbers of rows; an empty plan is
    returned as one.
    """
    share = -(-plan.rows // count)
    shares: list[LogPlan] = []
    first = rows = 0
    for place, group in enumerate(plan.groups):
        rows += sum(segment.rows for segment in group.segments)
        if rows >= share or place + 1 == len(plan.groups):
            shares.append(_between(plan, first, place + 1))
            first, rows = place + 1, 0
    return shares or [plan]


def _between(plan: LogPlan, first: int, end: int) -> LogPlan:
    """Return the plan for its log epochs [first, end); the state before them includes the earlier ones."""
    earlier = [segment for group in plan.groups[:first] for segment in group.segments]
    before = None if plan.before is None else plan.before.extended(earlier)
    return replace(plan, before=before, groups=plan.groups[first:end])


def _parts_for(rows: int) -> int:
    return min(MAX_PARTS, max(1, rows // PART_ROWS))
