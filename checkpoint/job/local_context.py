"""Context of a refresh without Spark: it reads pyarrow tables, and writes anything Arrow-shaped."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import SegmentWriter

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


class LocalRefreshContext(RefreshContext[SegmentWriter]):
    """The context that `job.step_local` gives to a refresh: what it reads and writes at one barrier.

    Everything read is a pyarrow Table, fixed at the barrier (.prev, .curr], epochs of the store; everything written may
    be Arrow-shaped (pyarrow, pandas, polars), and is committed together when the refresh returns. A name that is no
    upstream or output of the job is InvalidInput.
    """

    def __init__(self, handle: Handle, run: RefreshPlan) -> None:
        super().__init__(handle.files, run, SegmentWriter)
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

        The rows of a backfill come as inserts. mode: "net" is one change a key, "epochs" each of them. Without
        pre_images a delete has its key alone, and an update has only its new row.
        """
        found = self._run.upstream(upstream)
        plan, keys = found.changes, found.keys
        batches = plan.batches(self._files, mode, pre_images=pre_images, columns=columns, filter=filter, key_range=keys)
        return pa.Table.from_batches(batches, schema=plan.schema(columns))

    def touched(self, upstream: str, columns: str | Sequence[str]) -> pa.Table:
        """Return the distinct values of these columns in the rows that changed in (prev, curr], old and new ones.

        They are the groups that a refresh must compute anew; nulls are among them. In a backfill they are the values of
        all rows at curr, or of those in the piece at hand.
        """
        schema = self._run.upstream(upstream).table.schema
        names = group_columns(upstream, schema.schema, columns, least=1)
        asked = (upstream, *names)
        if asked not in self._touched:
            images = not is_key(schema, names)
            found = distinct(self.changes(upstream, pre_images=images, columns=names), names)
            self._touched[asked] = found.cast(pa.schema([schema.schema.field(name) for name in names]))
        return self._touched[asked]

    def table(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: object | None = None,
    ) -> pa.Table:
        """Return the upstream at curr.

        among: groups, as `touched` gives them: a table of columns of the upstream. Then only rows that have one of
        these combinations of values are read; where the columns begin its primary key, little else is looked at.
        """
        return self._rows(self._run.upstream(upstream).current, columns, filter, among)

    def previous(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: object | None = None,
    ) -> pa.Table:
        """Return the upstream at prev; empty when prev is 0. `among` is that of `table`."""
        return self._rows(self._run.upstream(upstream).previous, columns, filter, among)

    def output(
        self,
        output: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: object | None = None,
    ) -> pa.Table:
        """Return the job's own output at prev; when prev is 0 it is empty, or what earlier pieces of the snapshot made.

        `among` is that of `table`.
        """
        return self._rows(self._run.output(output).previous, columns, filter, among)

    def upsert(self, output: str, data: object) -> None:
        """Write rows of an output; committed with all others when the refresh returns, or not at all."""
        with self._writing(output) as writer:
            writer.upsert(data)

    def delete(self, output: str, keys: object) -> None:
        """Delete rows of an output by primary key; unknown keys are fine."""
        with self._writing(output) as writer:
            writer.delete(keys)

    def recompute(self, output: str, *, by: str | Sequence[str], from_: object, touched: object | None = None) -> None:
        """Make `from_` all the rows that the output has of the touched groups: upsert these, delete the others.

        by: the output's columns that tell its groups apart; [] makes `from_` the whole output. touched: the groups that
        were computed anew, a table with the columns `by`; those without a row in `from_` lose all they have. Without
        it, of a job with one upstream that has the columns `by`, it is `ctx.touched(upstream, by)`. The columns `by`
        need not be of the primary key, and null is a group like others.

        Raises InvalidInput for a row of a group that was not touched, for two rows with one primary key, where
        `touched` must be given, and when this refresh has written rows of the output before: call it once for an
        output, with all its groups.
        """
        schema = self._run.output(output).table.schema
        self._require_unwritten(output)
        names, key = group_columns(output, schema.schema, by), list(schema.primary_key)
        with self._naming_job():
            rows = schema.conform(from_)
        require_each_once(schema, rows)
        if names:
            groups = groups_of(schema, self._touched_by(output, names) if touched is None else touched, names)
            require_touched(output, rows, groups)
            groups, rows = self._share_of(groups, names), self._share_of(rows, names)
        else:
            groups = self._whole(output, touched)
        before = self.output(output, columns=key, among=groups)
        with self._writing(output) as writer:
            writer.delete(before.filter(pa.array(~belonging(before, rows.select(key)))))
            writer.upsert(rows)

    def _touched_by(self, output: str, names: list[str]) -> pa.Table:
        return self.touched(self._only_upstream(output, names), names)

    def _whole(self, output: str, touched: object | None) -> None:
        """Return None: the groups of an output without groups, for all of its rows."""
        if touched is not None:
            raise InvalidInput(f"recompute({output!r}, by=[]) makes the whole output anew; leave out `touched`")

    def _share_of(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """Select the rows that this refresh writes."""
        del by
        return rows

    def _rows(
        self, plan: ScanPlan, columns: Sequence[str] | None, filter: pc.Expression | None, among: object | None
    ) -> pa.Table:
        if among is None:
            return plan.read(self._files, columns, filter)
        names, groups = plan.schema(columns).names, as_groups(plan.table, among)
        if filter is None and set(groups.column_names) == set(plan.table.primary_key):
            return self._by_key(plan, names, groups)
        wanted = [*names, *(name for name in groups.column_names if name not in names)]
        parts = [part for part in (filter, pruning(groups)) if part is not None]
        narrowed = None if not parts else parts[0] if len(parts) == 1 else parts[0] & parts[1]
        rows = plan.read(self._files, wanted, narrowed)
        return rows.filter(pa.array(belonging(rows, groups))).select(names)

    def _by_key(self, plan: ScanPlan, columns: Sequence[str], groups: pa.Table) -> pa.Table:
        """Return the rows of groups that are primary keys, in key order; there is none whose key is null."""
        keys = plan.table.conform_keys(groups.drop_null())
        _, rows = plan.find(self._files, plan.codec.encode(keys), columns or plan.table.primary_key[:1])
        found = rows.data.select(list(columns))
        return found.cast(plan.schema(columns)) if columns else found  # a cast of no columns forgets how many rows
