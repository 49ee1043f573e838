"""Context of a refresh on Spark: reads and writes DataFrames, fixed at its barrier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from epochlog.checkpoint.job.local_context import LocalRefreshContext, read_changes
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter
from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.refresh_plan import PlannedOutput, RefreshPlan, Upstream
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

from .column_names import column_of, columns_named
from .frames import FrameWriter, check_frame, read_frame
from .partitions import ReadPartition
from .types import arrow_schema, from_spark, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BROADCAST_BYTES = 8 << 20
LOCAL_TOUCHED_ROWS = 10_000
"""Largest number of changes whose groups the driver reads without a Spark job."""
_GROUP = "__group_"


class SparkRefreshContext(RefreshContext[FrameWriter, "DataFrame", "DataFrame | pa.Table"]):
    """Context that `job.step` and `job.start` pass to a refresh: the DataFrames that it reads and writes at one
    barrier.

    Reads return and writes take DataFrames of the session `.spark`, fixed at the barrier (.prev, .curr], two epochs of
    the store. A write runs its frame at once; all writes are committed together when the refresh returns. A name that
    is no upstream or output of the job raises InvalidInput.
    """

    def __init__(self, session: SparkSession, handle: Handle, plan: RefreshPlan) -> None:
        super().__init__(handle.files, plan, self._frame_writer)
        self._session = session
        self._handle = handle
        self._intent: str | None = None
        self._local_groups: list[tuple[DataFrame, pa.Table]] = []  # groups that the driver has read
        self.makes_state = False
        """True if a step of a view reads all rows for its state, which a step in the driver lacked."""
        self.broadcasts = True
        """True if small frames carry a broadcast hint. Spark warns of one that no join can use."""

    def _frame_writer(self, target: WriteTarget) -> FrameWriter:
        return FrameWriter(self.task_target(target))

    def task_target(self, target: WriteTarget) -> WriteTarget:
        """Return the target under this refresh's own write intent. Failed task attempts leave files, which the open
        store's intent would protect from vacuum until this process ends.
        """
        if self._intent is None:
            self._intent = self._handle.intents.register("spark")
        return replace(target, intent=self._intent)

    def _end(self) -> None:
        """Release the intent after the commit or failure of the refresh. If it cannot be released now, it expires."""
        if self._intent is not None:
            with suppress(EpochlogError):
                self._handle.intents.release(self._intent)

    def _without_spark(self) -> LocalRefreshContext:
        """Return a context of the same plan that needs no Spark."""
        local = LocalRefreshContext(self._handle, self.plan)
        local.keeps_state = self.keeps_state
        return local

    @contextmanager
    def in_driver(self) -> Iterator[LocalRefreshContext]:
        """Yield a context of the same plan whose writes are those of this one at the end of the block."""
        local = self._without_spark()
        try:
            yield local
        except BaseException:
            local._discard()
            raise
        finally:
            local._ended = True
        self._writers.update(cast("dict[str, FrameWriter]", local._writers))
        self._written |= local._written

    def _adopt(self, local: LocalRefreshContext) -> None:
        """Take over what a whole refresh in the driver says of itself."""
        self.operation, self.plan = local.operation, replace(local.plan, engine=LocalRefreshAdapter.engine)
        self.state, self.work = local.state, local.work

    @property
    def spark(self) -> SparkSession:
        """Return the session of the frames."""
        return self._session

    def use_session(self, session: SparkSession) -> None:
        """Make all later frames in another session of the same Spark context."""
        self._session = session

    @contextmanager
    def broadcasting(self, broadcasts: bool) -> Iterator[None]:
        """Give the small frames that are made meanwhile a broadcast hint, or none."""
        before, self.broadcasts = self.broadcasts, broadcasts
        try:
            yield
        finally:
            self.broadcasts = before

    def _changes(self, plan: LogPlan, options: ReadOptions, mode: str, *, pre_images: bool) -> DataFrame:
        return self._frame(plan, options, mode=mode, pre_images=pre_images)

    def _find_touched(self, upstream: Upstream, names: list[str]) -> DataFrame:
        plan, table = upstream.changes, upstream.table.name
        images = not is_key(upstream.table.schema, names)
        if plan.backfill or plan.rows > LOCAL_TOUCHED_ROWS:
            changes = self.changes(table, pre_images=images, columns=names)
            return changes.select(*columns_named(names)).distinct()
        groups = distinct(read_changes(self.files, upstream, names, pre_images=images), names)
        frame = self._make_frame(groups)
        self._local_groups.append((frame, groups))
        return frame

    def _make_frame(self, groups: pa.Table) -> DataFrame:
        schema = spark_schema("groups", groups.schema)
        return self._session.createDataFrame(to_spark("groups", groups, arrow_schema(schema)), schema)

    def _conformed(self, output: PlannedOutput, rows: DataFrame) -> DataFrame:
        check_frame(output.table.schema, rows.schema)
        if CHANGE_TYPE in rows.columns:
            raise SchemaMismatch(
                f"recompute({output.table.name!r}) takes rows without the column {CHANGE_TYPE!r}; drop it"
            )
        return rows

    def _recompute(
        self, output: PlannedOutput, by: list[str], rows: DataFrame, touched: DataFrame | pa.Table | None
    ) -> None:
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

        name, key = output.table.name, list(output.table.schema.primary_key)
        rows = rows.withColumn(CHANGE_TYPE, F.lit("upsert"))
        if by:
            _require_groups(name, touched)
            rows = _require_touched(name, rows, self._as_group_frame(touched, by))
        rows = _require_unique_keys(name, rows, key, of_view=self.plan.job.view is not None)
        if output.previous.files:
            with self.broadcasting(False):  # no full join broadcasts a side
                previous_rows = self.output(name, columns=key, among=touched)
            kind = F.coalesce(F.col(CHANGE_TYPE), F.lit("delete"))
            rows = previous_rows.join(rows, key, "full").withColumn(CHANGE_TYPE, kind)
        with self._writing(name) as writer:
            writer.write(rows)

    def rows_of_chunk(self, upstream: str, columns: Sequence[str]) -> DataFrame:
        """Return the rows of an upstream at curr that the backfill chunk takes in."""
        planned = self.plan.upstream(upstream)
        return self._frame(planned.current, ReadOptions(columns, None, planned.keys))

    def _insert(self, output: PlannedOutput, rows: DataFrame) -> None:
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

        name, key = output.table.name, output.table.schema.primary_key
        rows = rows.withColumn(CHANGE_TYPE, F.lit("upsert"))
        self.upsert(name, _require_unique_keys(name, rows, key, of_view=self.plan.job.view is not None))

    def _as_group_frame(self, groups: DataFrame | pa.Table, names: Sequence[str]) -> DataFrame:
        """Return the groups as a frame of these columns, renamed so that the frame joins with any other."""
        missing = [name for name in names if name not in _names(groups)]
        if missing:
            raise InvalidInput(f"the touched groups have no column {missing[0]!r}; their columns are {_names(groups)}")
        local_groups = self._local_table(groups)
        frame = self._make_frame(groups) if isinstance(groups, pa.Table) else groups
        frame = frame.select(*columns_named(names)).distinct().toDF(*(_GROUP + name for name in names))
        return frame if local_groups is None or local_groups.nbytes >= BROADCAST_BYTES else frame.hint("broadcast")

    def _local_table(self, groups: DataFrame | pa.Table) -> pa.Table | None:
        """Return the groups as a table if the driver has them, else None."""
        if isinstance(groups, pa.Table):
            return groups
        return next((table for frame, table in self._local_groups if frame is groups), None)

    def _rows(self, plan: ScanPlan, options: ReadOptions, among: DataFrame | pa.Table | None) -> DataFrame:
        if among is None:
            return self._frame(plan, options)
        _require_groups(plan.table.name, among)
        names = plan.schema(options.columns).names
        by = group_columns(plan.table.name, plan.table.schema, _names(among), least=1)
        groups_table = self._local_table(among)
        group_filter = None
        if groups_table is not None:
            group_filter = pruning(as_groups(plan.table, from_spark(plan.table, groups_table)))
        columns = [*names, *(name for name in by if name not in names)]
        frame = self._frame(plan, ReadOptions(columns, conjunction(options.filter, group_filter)))
        if group_filter is not None and len(by) == 1:
            return frame.select(*columns_named(names))  # The filter selects exactly the groups.
        groups = self._as_group_frame(among, by)
        return frame.join(groups, _same_group(frame, groups, by), "left_semi").select(*columns_named(names))

    def _frame(
        self, plan: ScanPlan | LogPlan, options: ReadOptions, *, mode: str = "net", pre_images: bool = False
    ) -> DataFrame:
        from .versions import ROWS_WITHOUT_COLUMNS

        plan, table = narrowed(plan, options.key_range), plan.table
        options = replace(options, columns=options.column_names(table))
        arrow: pa.Schema = plan.schema(options.columns)
        if not arrow.names and not ROWS_WITHOUT_COLUMNS:
            key = replace(options, columns=list(table.primary_key))
            return self._frame(plan, key, mode=mode, pre_images=pre_images).select()
        # A delete has nulls in all columns but the key, which is never null.
        schema = spark_schema(table.name, arrow, table.primary_key)
        partition = ReadPartition(self.files, plan, arrow_schema(schema), options, mode, pre_images)
        frame = read_frame(self._session, partition, schema)
        is_small = self.broadcasts and bytes_to_read(plan, options) < BROADCAST_BYTES
        return frame.hint("broadcast") if is_small else frame


def _require_groups(table: str, groups: object) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(groups, pa.Table | DataFrame):
        raise no_groups(table, groups)


def _names(groups: DataFrame | pa.Table) -> list[str]:
    names: Any = groups.column_names if isinstance(groups, pa.Table) else groups.columns
    return list(names)


def _same_group(rows: DataFrame, groups: DataFrame, names: Sequence[str]) -> Column:
    """Build the join condition of a row and its group; null equals null."""
    pairs = ((column_of(rows, name), column_of(groups, _GROUP + name)) for name in names)
    return reduce(and_, (value.eqNullSafe(group) for value, group in pairs))


def _require_touched(output: str, rows: DataFrame, groups: DataFrame) -> DataFrame:
    """Return the rows; a task raises an error for a row outside the groups."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    names = [name.removeprefix(_GROUP) for name in groups.columns]
    marked = rows.join(groups.withColumn(_GROUP, F.lit(True)), _same_group(rows, groups, names), "left")
    kind = F.when(F.col(_GROUP), F.col(CHANGE_TYPE)).otherwise(_raise_column(not_touched(output, _GROUP), names))
    return marked.withColumn(CHANGE_TYPE, kind).select(*columns_named(rows.columns))


def _require_unique_keys(output: str, rows: DataFrame, key: Sequence[str], *, of_view: bool) -> DataFrame:
    """Return the rows, partitioned by key as a join on it requires; a task raises an error for a repeated key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    counted = rows.withColumn(_GROUP, F.count("*").over(Window.partitionBy(*columns_named(key))))
    is_unique = reduce(
        or_, (column.isNull() for column in columns_named(key)), F.col(_GROUP) == 1
    )  # The writer refuses a null key.
    error = several_rows(output, _GROUP, of_view=of_view)
    kind = F.when(is_unique, F.col(CHANGE_TYPE)).otherwise(_raise_column(error, key))
    return counted.withColumn(CHANGE_TYPE, kind).drop(_GROUP)


def _raise_column(error: InvalidInput, columns: Sequence[str]) -> Column:
    """Make a column that raises the error, with the row's values of these columns in place of _GROUP in its message."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    values = F.to_json(F.struct(*columns_named(columns)), {"ignoreNullFields": "false"})
    before, after = str(error).split(_GROUP)
    message = F.concat(F.lit(f"\n{InvalidInput.__module__}.{InvalidInput.__name__}: {before}"), values, F.lit(after))
    return F.raise_error(message).cast("string")
