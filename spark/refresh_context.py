"""Context of a refresh on Spark: DataFrames in, DataFrames out, fixed at its barrier."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.refresh_plan import RefreshPlan, Upstream
from epochlog.checkpoint.job.row_groups import (
    as_groups,
    distinct,
    group_columns,
    is_key,
    no_groups,
    not_touched,
    pruning,
    several_rows,
)
from epochlog.errors import EpochlogError, InvalidInput, SchemaMismatch
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.changelog.plan_ranges import bytes_to_read, narrowed
from epochlog.store.scan.pruning import conjunction
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.read_options import ReadOptions

from .frames import FrameWriter, check_frame, read_frame
from .partitions import ReadPartition
from .types import arrow_schema, from_spark, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BROADCAST_BYTES = 8 << 20
TOUCHED_HERE = 10_000
"""Rows of a log whose groups are read without a Spark job."""
_GROUP = "__group_"


class SparkRefreshContext(RefreshContext[FrameWriter]):
    """Context that `job.step` and `job.start` give to a refresh: the DataFrames that it reads and writes at one
    barrier.

    Everything read and written is a DataFrame of `.spark`, fixed at the barrier (.prev, .curr], epochs of the store; a
    frame is run and written when it is given, and committed with all others when the refresh returns. A name that is no
    upstream or output of the job is InvalidInput.
    """

    def __init__(self, session: SparkSession, handle: Handle, plan: RefreshPlan) -> None:
        super().__init__(handle.files, plan, self._frame_writer)
        self._session = session
        self._handle = handle
        self._intent: str | None = None
        self._touched: dict[tuple[str, ...], DataFrame] = {}  # by upstream and columns
        self._small: list[tuple[DataFrame, pa.Table]] = []  # groups that this process has read

    def _frame_writer(self, target: WriteTarget) -> FrameWriter:
        """Make a writer under an intent of this refresh: task attempts that lost have left files, which the open
        store's own intent would keep for as long as this process lives.
        """
        if self._intent is None:
            self._intent = self._handle.intents.register("spark")
        return FrameWriter(replace(target, intent=self._intent))

    def _end(self) -> None:
        """Release the intent once the refresh is committed or has failed. An intent that cannot be released now runs
        out.
        """
        if self._intent is not None:
            with suppress(EpochlogError):
                self._handle.intents.release(self._intent)

    @property
    def spark(self) -> SparkSession:
        """Return the session that the frames belong to."""
        return self._session

    def changes(
        self,
        upstream: str,
        mode: str = "net",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> DataFrame:
        """Return the upstream's changes in (prev, curr], with the change columns; in a backfill its rows at curr, as
        inserts.

        mode: "net" is one change a key, "epochs" each of them. Without pre_images a delete has its key alone, and of an
        update only the new row is there. `filter` (a pyarrow expression) may name key columns only.
        """
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        planned_upstream = self._plan.upstream(upstream)
        options = ReadOptions(columns, filter, planned_upstream.keys)
        return self._frame(planned_upstream.changes, options, mode=mode, pre_images=pre_images)

    def touched(self, upstream: str, columns: str | Sequence[str]) -> DataFrame:
        """Return the distinct values of these columns in the rows that changed in (prev, curr], before and after the
        change.

        They are the groups that a refresh must compute anew; nulls are among them. In a backfill they are the values of
        all rows at curr, or of those in the piece at hand. Few changes are read at once, by this process and without a
        Spark job; a frame of more is read whenever it is used: `.toArrow()` makes a table of it that `among` and
        `recompute` take in its place.
        """
        found = self._plan.upstream(upstream)
        names = group_columns(upstream, found.table.schema.schema, columns, least=1)
        asked = (upstream, *names)
        if asked not in self._touched:
            self._touched[asked] = self._find_touched(found, names)
        return self._touched[asked]

    def _find_touched(self, upstream: Upstream, names: list[str]) -> DataFrame:
        plan, table = upstream.changes, upstream.table.name
        images = not is_key(upstream.table.schema, names)
        if plan.backfill or plan.rows > TOUCHED_HERE:
            return self.changes(table, pre_images=images, columns=names).select(*names).distinct()
        options = ReadOptions(names, None, upstream.keys)
        batches = plan.batches(self._files, "net", pre_images=images, options=options)
        groups = distinct(pa.Table.from_batches(batches, schema=plan.schema(names)), names)
        frame = self._frame_of(groups)
        self._small.append((frame, groups))
        return frame

    def _frame_of(self, groups: pa.Table) -> DataFrame:
        schema = spark_schema("groups", groups.schema)
        return self._session.createDataFrame(to_spark("groups", groups, arrow_schema(schema)), schema)

    def table(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: DataFrame | pa.Table | None = None,
    ) -> DataFrame:
        """Return the upstream at curr.

        among: groups, as `touched` gives them: a frame, or an Arrow table, of columns of the upstream. Then only rows
        that have one of these combinations of values are given; of a table, or of what `touched` has read at once,
        little else is looked at where the columns begin the primary key.
        """
        return self._rows(self._plan.upstream(upstream).current, ReadOptions(columns, filter), among)

    def previous(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: DataFrame | pa.Table | None = None,
    ) -> DataFrame:
        """Return the upstream at prev; empty when prev is 0. `among` is that of `table`."""
        return self._rows(self._plan.upstream(upstream).previous, ReadOptions(columns, filter), among)

    def output(
        self,
        output: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: DataFrame | pa.Table | None = None,
    ) -> DataFrame:
        """Return the job's own output at prev; when prev is 0 it is empty, or holds the rows from earlier pieces of the
        snapshot.

        `among` is that of `table`.
        """
        return self._rows(self._plan.output(output).previous, ReadOptions(columns, filter), among)

    def upsert(self, output: str, frame: DataFrame) -> None:
        """Write rows of an output; committed with all others when the refresh returns, or not at all.

        A column `_change_type` may tell of each row whether it is an "upsert" or a "delete".
        """
        with self._writing(output) as writer:
            writer.write(frame)

    def delete(self, output: str, keys: DataFrame) -> None:
        """Delete rows of an output by primary key (exactly its columns); unknown keys are fine."""
        with self._writing(output) as writer:
            writer.write(keys, deletes=True)

    def recompute(
        self,
        output: str,
        *,
        by: str | Sequence[str],
        from_: DataFrame,
        touched: DataFrame | pa.Table | None = None,
    ) -> None:
        """Make `from_` all the rows that the output has of the touched groups: upsert these, delete the others.

        by: the output's columns that tell its groups apart; [] makes `from_` the whole output. touched: the groups that
        were computed anew, with the columns `by`, as a frame or an Arrow table; those without a row in `from_` lose all
        they have. Without it, of a job with one upstream that has the columns `by`, it is `ctx.touched(upstream, by)`.
        The columns `by` need not be of the primary key, and null is a group like others. It is one write.

        Raises InvalidInput for a row of a group that was not touched, for two rows with one primary key, where
        `touched` must be given, and when this refresh has written rows of the output before: call it once for an
        output, with all its groups.
        """
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

        found = self._plan.output(output)
        self._require_unwritten(output)
        names = group_columns(output, found.table.schema.schema, by)
        with self._name_job_in_errors():
            check_frame(found.table.schema, from_.schema)
        if CHANGE_TYPE in from_.columns:
            raise SchemaMismatch(f"recompute({output!r}) takes rows as they are now, without {CHANGE_TYPE!r}; drop it")
        key, rows = list(found.table.schema.primary_key), from_.withColumn(CHANGE_TYPE, F.lit("upsert"))
        if names:
            groups = self._touched_by(output, names) if touched is None else touched
            _require_groups(output, groups)
            rows = _only_touched(output, rows, self._groups(groups, names))
        elif touched is not None:
            raise InvalidInput(f"recompute({output!r}, by=[]) replaces the whole output; leave out `touched`")
        else:
            groups = None
        rows = _each_once(output, rows, key)
        if found.previous.files:
            before = self.output(output, columns=key, among=groups)
            rows = before.join(rows, key, "full").fillna("delete", [CHANGE_TYPE])
        with self._writing(output) as writer:
            writer.write(rows)

    def _touched_by(self, output: str, names: list[str]) -> DataFrame:
        return self.touched(self._only_upstream(output, names), names)

    def _groups(self, given: DataFrame | pa.Table, names: Sequence[str]) -> DataFrame:
        """Return the groups as a frame of these columns, which are under other names, so that it joins with any."""
        missing = [name for name in names if name not in _names(given)]
        if missing:
            raise InvalidInput(f"the touched groups have no column {missing[0]!r}: they have {_names(given)}")
        small = self._known(given)
        frame = self._frame_of(given) if isinstance(given, pa.Table) else given
        frame = frame.select(*names).distinct().toDF(*(_GROUP + name for name in names))
        return frame if small is None or small.nbytes >= BROADCAST_BYTES else frame.hint("broadcast")

    def _known(self, groups: DataFrame | pa.Table) -> pa.Table | None:
        """Return the groups as a table if this process has them, else None."""
        if isinstance(groups, pa.Table):
            return groups
        return next((table for frame, table in self._small if frame is groups), None)

    def _rows(self, plan: ScanPlan, options: ReadOptions, among: DataFrame | pa.Table | None) -> DataFrame:
        if among is None:
            return self._frame(plan, options)
        _require_groups(plan.table.name, among)
        names = plan.schema(options.columns).names
        by = group_columns(plan.table.name, plan.table.schema, _names(among), least=1)
        known = self._known(among)
        narrower = None if known is None else pruning(as_groups(plan.table, from_spark(plan.table, known)))
        columns = [*names, *(name for name in by if name not in names)]
        frame = self._frame(plan, ReadOptions(columns, conjunction(options.filter, narrower)))
        if narrower is not None and len(by) == 1:
            return frame.select(*names)  # the filter says it all
        groups = self._groups(among, by)
        return frame.join(groups, _same_group(frame, groups, by), "left_semi").select(*names)

    def _frame(
        self, plan: ScanPlan | LogPlan, options: ReadOptions, *, mode: str = "net", pre_images: bool = False
    ) -> DataFrame:
        plan, table = narrowed(plan, options.key_range), plan.table
        options = replace(options, columns=tuple(table.schema.names if options.columns is None else options.columns))
        rows: pa.Schema = plan.schema(options.columns)
        # a delete leaves all but the key empty; the key itself is never null
        schema = spark_schema(table.name, rows, table.primary_key)
        partition = ReadPartition(self._files, plan, arrow_schema(schema), options, mode, pre_images)
        frame = read_frame(self._session, partition, schema)
        return frame.hint("broadcast") if bytes_to_read(plan, options) < BROADCAST_BYTES else frame


def _require_groups(table: str, groups: object) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(groups, pa.Table | DataFrame):
        raise no_groups(table, groups)


def _names(groups: DataFrame | pa.Table) -> list[str]:
    names: Any = groups.column_names if isinstance(groups, pa.Table) else groups.columns
    return list(names)


def _same_group(rows: DataFrame, groups: DataFrame, names: Sequence[str]) -> Column:
    """Build the join condition that a row belongs to a group; null is a value."""
    return reduce(and_, (rows[name].eqNullSafe(groups[_GROUP + name]) for name in names))


def _only_touched(output: str, rows: DataFrame, groups: DataFrame) -> DataFrame:
    """Return the rows; a task that meets a row outside of the groups raises."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    names = [name.removeprefix(_GROUP) for name in groups.columns]
    marked = rows.join(groups.withColumn(_GROUP, F.lit(True)), _same_group(rows, groups, names), "left")
    kind = F.when(F.col(_GROUP), F.col(CHANGE_TYPE)).otherwise(_raised(not_touched(output, _GROUP), names))
    return marked.withColumn(CHANGE_TYPE, kind).select(*rows.columns)


def _each_once(output: str, rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows; a task that meets two with one key raises. They are spread by the key, as a join by it needs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    counted = rows.withColumn(_GROUP, F.count("*").over(Window.partitionBy(*key)))
    once = reduce(or_, (F.col(name).isNull() for name in key), F.col(_GROUP) == 1)  # a null is told by the writer
    kind = F.when(once, F.col(CHANGE_TYPE)).otherwise(_raised(several_rows(output, _GROUP), key))
    return counted.withColumn(CHANGE_TYPE, kind).drop(_GROUP)


def _raised(error: InvalidInput, columns: Sequence[str]) -> Column:
    """Make a column that raises the error, with the row's values of these columns in place of _GROUP in its text."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    values = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    before, after = str(error).split(_GROUP)
    told = F.concat(F.lit(f"\n{InvalidInput.__module__}.{InvalidInput.__name__}: {before}"), values, F.lit(after))
    return F.raise_error(told).cast("string")
