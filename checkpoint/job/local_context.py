"""Context of a refresh without Spark: reads pyarrow tables and writes Arrow-shaped data."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput
from epochlog.store.env.files import Files
from epochlog.store.scan.pruning import conjunction
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.retyping import as_schema

from .refresh_context import RefreshContext
from .refresh_plan import RefreshPlan
from .row_groups import (
    as_groups,
    belonging,
    distinct,
    group_columns,
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
        self._touched: dict[tuple[str, ...], pa.Table] = {}  # by upstream and columns

    def changes(
        self,
        upstream: str,
        mode: str = "net",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.Table:
        """Read the upstream's changes in (prev, curr], with the change columns; in a backfill, its rows at curr.

        The rows of a backfill are inserts. mode: "net" returns one change for each key, "epochs" all changes. Without
        pre_images a delete has its key alone, and an update has only its new row.
        """
        planned_upstream = self.plan.upstream(upstream)
        plan, options = planned_upstream.changes, ReadOptions(columns, filter, planned_upstream.keys)
        batches = plan.batches(self.files, mode, pre_images=pre_images, options=options)
        return pa.Table.from_batches(batches, schema=plan.schema(columns))

    def touched(self, upstream: str, columns: str | Sequence[str]) -> pa.Table:
        """Return the distinct values of these columns in the old and new rows of the changes in (prev, curr].

        They are the groups that a refresh must recompute; nulls are among them. In a backfill they are the values of
        all rows at curr, or of the rows in the current chunk.
        """
        schema = self.plan.upstream(upstream).table.schema
        names = group_columns(upstream, schema.schema, columns, least=1)
        key = (upstream, *names)
        if key not in self._touched:
            images = not is_key(schema, names)
            groups = distinct(self.changes(upstream, pre_images=images, columns=names), names)
            self._touched[key] = as_schema(groups, pa.schema([schema.schema.field(name) for name in names]))
        return self._touched[key]

    def upsert(self, output: str, data: object) -> None:
        """Write rows of an output; they are committed with all other writes when the refresh returns."""
        with self._writing(output) as writer:
            writer.upsert(data)

    def delete(self, output: str, keys: object) -> None:
        """Delete rows of an output by primary key; unknown keys are ignored."""
        with self._writing(output) as writer:
            writer.delete(keys)

    def recompute(self, output: str, *, by: str | Sequence[str], from_: object, touched: object | None = None) -> None:
        """Replace the output's rows of the touched groups with `from_`: upsert its rows, delete the others.

        by: the output's columns that identify a group; [] replaces the whole output. touched: the recomputed groups, a
        table with the columns `by`; a group without a row in `from_` loses all its rows. The default, for a job with
        one upstream that has the columns `by`, is `ctx.touched(upstream, by)`. The columns `by` need not be of the
        primary key, and null is a group like others.

        Raises InvalidInput for a row of a group that was not touched, for two rows with one primary key, if the job
        needs `touched`, and if this refresh has written rows of the output before: call it once for an output, with
        all its groups.
        """
        schema = self.plan.output(output).table.schema
        self._require_unwritten(output)
        names, key = group_columns(output, schema.schema, by), list(schema.primary_key)
        with self._name_job_in_errors():
            rows = schema.conform(from_)
        require_each_once(schema, rows, of_view=self.plan.job.view is not None)
        if names:
            groups = groups_of(schema, self._touched_by(output, names) if touched is None else touched, names)
            require_touched(output, rows, groups)
            groups, rows = self._share_of(groups, names), self._share_of(rows, names)
        else:
            groups = None
            self._check_full_recompute(output, touched)
        read = groups
        if groups is not None and set(names) == set(key):  # a group is one row: look up those that have none any more
            read = groups.filter(pa.array(~belonging(groups, rows.select(groups.column_names))))
        with self._writing(output) as writer:
            if read is None or read.num_rows:
                before = self.output(output, columns=key, among=read)
                writer.delete(before.filter(pa.array(~belonging(before, rows.select(key)))))
            writer.upsert(rows)

    def _touched_by(self, output: str, names: list[str]) -> pa.Table:
        return self.touched(self._only_upstream(output, names), names)

    def _check_full_recompute(self, output: str, touched: object | None) -> None:
        """Raise InvalidInput if a recompute of the whole output names touched groups."""
        if touched is not None:
            raise InvalidInput(f"recompute({output!r}, by=[]) replaces the whole output; leave out `touched`")

    def _share_of(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """Select the rows that this refresh writes."""
        del by
        return rows

    def _rows(self, plan: ScanPlan, options: ReadOptions, among: object | None) -> pa.Table:
        if among is None:
            return plan.read(self.files, options)
        return read_groups(self.files, plan, options, as_groups(plan.table, among))


def read_groups(files: Files, plan: ScanPlan, options: ReadOptions, groups: pa.Table) -> pa.Table:
    """Return the rows that pass the filter and belong to one of the groups, in key order."""
    names = plan.schema(options.columns).names
    if options.filter is None and set(groups.column_names) == set(plan.table.primary_key):
        return read_by_key(files, plan, names, groups)
    wanted = list(dict.fromkeys((*names, *groups.column_names)))
    rows = plan.read(files, ReadOptions(wanted, conjunction(options.filter, pruning(groups))))
    return rows.filter(pa.array(belonging(rows, groups))).select(names)


def read_by_key(files: Files, plan: ScanPlan, columns: Sequence[str], groups: pa.Table) -> pa.Table:
    """Return the rows whose primary keys are the groups, in key order. Drop null groups: no key is null."""
    keys = plan.table.conform_keys(groups.drop_null())
    _, rows = plan.find(files, plan.codec.encode(keys), columns or plan.table.primary_key[:1])
    return as_schema(rows.data.select(list(columns)), plan.schema(columns))
