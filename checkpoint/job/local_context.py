"""Context of a refresh without Spark: reads pyarrow tables and writes Arrow-shaped data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pyarrow as pa

from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.files import Files
from epochlog.store.scan.pruning import conjunction
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.retyping import as_schema

from .refresh_context import RefreshContext
from .refresh_plan import PlannedOutput, RefreshPlan, Upstream
from .row_groups import (
    as_groups,
    belonging,
    distinct,
    groups_of,
    is_key,
    pruning,
    require_each_once,
    require_touched,
)


class LocalRefreshContext(RefreshContext[SegmentWriter, pa.Table, object]):
    """Context that `job.step_local` passes to a refresh, to read and write at one barrier.

    Reads return pyarrow Tables, fixed at the barrier (.prev, .curr], epochs of the store. Writes take Arrow-shaped data
    (pyarrow, pandas, polars) and are committed together when the refresh returns. Raises InvalidInput for a name that
    is not an upstream or output of the job.
    """

    def __init__(self, handle: Handle, plan: RefreshPlan) -> None:
        super().__init__(handle.files, plan, SegmentWriter)

    def _changes(self, plan: LogPlan, options: ReadOptions, mode: str, *, pre_images: bool) -> pa.Table:
        return _changes_of(self.files, plan, options, mode, pre_images=pre_images)

    def _find_touched(self, upstream: Upstream, names: list[str]) -> pa.Table:
        schema = upstream.table.schema
        changes = read_changes(self.files, upstream, names, pre_images=not is_key(schema, names))
        return as_schema(distinct(changes, names), pa.schema([schema.schema.field(name) for name in names]))

    def _conformed(self, output: PlannedOutput, rows: object) -> pa.Table:
        return output.table.schema.conform(rows)

    def _recompute(self, output: PlannedOutput, by: list[str], rows: pa.Table, touched: object) -> None:
        schema = output.table.schema
        name, key, groups = schema.name, list(schema.primary_key), None
        require_each_once(schema, rows, of_view=self.plan.job.view is not None)
        if by:
            groups = groups_of(schema, touched, by)
            require_touched(name, rows, groups)
            groups, rows = self._share_of(groups, by), self._share_of(rows, by)
        read = groups
        if groups is not None and set(by) == set(key):  # a group is one row: look up those that have none any more
            read = groups.filter(pa.array(~belonging(groups, rows.select(groups.column_names))))
        with self._writing(name) as writer:
            if read is None or read.num_rows:
                before = self.output(name, columns=key, among=read)
                writer.delete(before.filter(pa.array(~belonging(before, rows.select(key)))))
            writer.upsert(rows)

    def _insert(self, output: PlannedOutput, rows: pa.Table) -> None:
        require_each_once(output.table.schema, rows, of_view=self.plan.job.view is not None)
        self.upsert(output.table.name, rows)

    def _share_of(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """Select the rows that this refresh writes."""
        del by
        return rows

    def _rows(self, plan: ScanPlan, options: ReadOptions, among: object | None) -> pa.Table:
        if among is None:
            return plan.read(self.files, options)
        return read_groups(self.files, plan, options, as_groups(plan.table, among))


def read_changes(files: Files, upstream: Upstream, columns: Sequence[str], *, pre_images: bool = True) -> pa.Table:
    """Return these columns of the net changes of an upstream, with the change columns."""
    options = ReadOptions(columns, None, upstream.keys)
    return _changes_of(files, upstream.changes, options, "net", pre_images=pre_images)


def _changes_of(files: Files, plan: LogPlan, options: ReadOptions, mode: str, *, pre_images: bool) -> pa.Table:
    batches = plan.batches(files, mode, pre_images=pre_images, options=options)
    return pa.Table.from_batches(batches, schema=plan.schema(options.columns))


def read_groups(files: Files, plan: ScanPlan, options: ReadOptions, groups: pa.Table) -> pa.Table:
    """Return the rows that pass the filter and belong to one of the groups, in key order."""
    names = plan.schema(options.columns).names
    if options.filter is None and set(groups.column_names) == set(plan.table.primary_key):
        return read_by_key(files, plan, names, groups)
    wanted = list(dict.fromkeys((*names, *groups.column_names)))
    leading = _leading(plan.table.primary_key, groups.column_names)
    if options.filter is None and len(leading) == len(plan.table.primary_key):
        rows = read_by_key(files, plan, wanted, distinct(groups, leading))
        return rows.filter(pa.array(belonging(rows, groups))).select(names)
    if options.filter is None and leading and groups.num_rows * _ROWS_OF_A_RANGE <= plan.rows_at_most:
        fields = [plan.table.schema.field(name) for name in leading]
        rows = plan.rows_among(files, groups.select(leading).drop_null().cast(pa.schema(fields)), wanted)
        if len(leading) < groups.num_columns:
            rows = rows.filter(pa.array(belonging(rows, groups)))
        return rows.select(names)
    rows = plan.read(files, ReadOptions(wanted, conjunction(options.filter, pruning(groups))))
    return rows.filter(pa.array(belonging(rows, groups))).select(names)


_ROWS_OF_A_RANGE = 8
"""Groups are looked up as ranges of keys if the table has at least so many rows for each."""


def _leading(primary_key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the first columns of the key, as many as are among these columns."""
    return list(takewhile(columns.__contains__, primary_key))


def read_by_key(files: Files, plan: ScanPlan, columns: Sequence[str], groups: pa.Table) -> pa.Table:
    """Return the rows whose primary keys are the groups, in key order. Drop null groups: no key is null."""
    keys = plan.table.conform_keys(groups.drop_null())
    _, rows = plan.find(files, plan.codec.encode(keys), columns or plan.table.primary_key[:1])
    return as_schema(rows.data.select(list(columns)), plan.schema(columns))
