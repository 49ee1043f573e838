"""Views in SQL on Spark: the schema of a view's query, and its refresh.

The queries run in a session of their own, made once of the user's: its time zone is UTC, and its temporary views, which
stand for the tables at the barrier, meet no others.

The driver reads few changes itself, small tables, and rows by few primary keys. Their values are then known, so that
other tables are looked up by them in turn. All other rows are read by Spark's tasks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from epochlog.batch.check import CheckContext
from epochlog.checkpoint.job.row_groups import PRUNED_BY, pruning
from epochlog.errors import DependencyMissing, InvalidInput
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.env.files import Files
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.key_range import ALL_KEYS
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema
from epochlog.views import step
from epochlog.views.aggregate_state import FOLDED
from epochlog.views.compiled_plan import NUMBER, CompiledPlan, CompiledQuery, spark_text
from epochlog.views.derivation import ViewPlan
from epochlog.views.duckdb_engine import key_outside, replace_groups, touched_keys
from epochlog.views.engine import Row
from epochlog.views.reads import OLD_IMAGES, Images, Reads
from epochlog.views.restriction import TOUCHED
from epochlog.views.stored import plan_of
from epochlog.views.table_names import EMPTY, IS_NEW, NOW, OLD, table_of
from epochlog.views.table_reads import TableRead

from .column_names import column_named, column_of, columns_named
from .errors import find_epochlog_error
from .frames import read_frame
from .live_session import is_session_lost, require_live
from .local_steps import step_in_driver
from .partitions import ReadPartition
from .refresh_context import BROADCAST_BYTES, SparkRefreshContext
from .state_sql import SparkStateSQL
from .types import arrow_schema, from_spark, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.variable.substitute": "false",  # else values of the environment, with their quotes, go into the text
}
LOCAL_ROWS = 50_000
"""Largest number of changes that the driver reads without a Spark job, and of rows that it computes of them alone."""
LOCAL_BYTES = 1 << 20
"""Largest size, in memory, of a table that the driver reads whole: a job that reads it takes longer."""
_BEFORE = "__before_"
_sessions: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()
_lock = threading.Lock()
_numbers = itertools.count()


def output_schema(session: SparkSession, plan: ViewPlan, tables: Mapping[str, TableSchema]) -> pa.Schema:
    """Return the schema of a view's rows: Spark plans the query over empty tables.

    Raises InvalidInput with Spark's reason if it refuses the query.
    """
    queries = ViewSession(session)
    with keeping_active_session(session):
        empty = {NOW + name: queries.empty(tables[name]) for name in plan.tables}
        with queries.named(empty) as run:
            frame = run(spark_text(plan.query()))
    return pa.schema([field.with_nullable(True) for field in arrow_schema(frame.schema)])


def answer(session: SparkSession, handle: Handle, plan: ViewPlan, ctx: CheckContext) -> pa.Table:
    """Return the rows of a view's query at the epoch of a check. Spark's tasks read the tables."""
    queries, query = ViewSession(session), CompiledPlan(lambda: plan, "spark").query()
    with keeping_active_session(session):
        frames = {
            name: queries.rows(handle.files, ctx.plan(read.table), sorted(read.columns))
            for name, read in query.reads.items()
        }
        with queries.named(frames) as run:
            return run(query.text).toArrow()


def refresh(ctx: SparkRefreshContext, output: str, plan: CompiledPlan) -> None:
    """Write the rows of the view that the barrier of a refresh alters; few of them without Spark's tasks."""
    if not step_in_driver(ctx):
        step.refresh(ctx, output, plan, _engine(ctx, plan))


@contextmanager
def _engine(ctx: SparkRefreshContext, plan: CompiledPlan) -> Iterator[ViewEngine]:
    with keeping_active_session(ctx.spark):
        queries = ViewSession(ctx.spark)
        ctx.use_session(queries.session)
        yield ViewEngine(ctx, plan, queries)


class SparkReads(Reads["DataFrame"]):
    """Reads of one refresh on Spark, as Arrow tables that the driver has, or as frames that tasks read."""

    _ctx: SparkRefreshContext

    def changed_keys(self, changed: Sequence[str], scope: Sequence[str], types: pa.Schema) -> pa.Table | None:
        queries = self._plan.key_queries(changed, scope)
        if queries is None:
            return None
        changes: dict[str, pa.Table] = {}
        for alias, query in queries.items():
            (rows,) = self.of(query).values()
            if not isinstance(rows, pa.Table):
                return None
            changes[alias] = rows
        return touched_keys(queries, changes, types)

    def changes(self, read: TableRead, images: Images) -> pa.Table | DataFrame:
        plan, columns = self._ctx.plan.upstream(read.table).changes, self.columns(read)
        if not plan.backfill and plan.rows <= LOCAL_ROWS:
            return super().changes(read, images)
        changes = self._ctx.changes(read.table, pre_images=True, columns=columns)
        is_old = changes[CHANGE_TYPE].isin(*OLD_IMAGES)
        if images == "signed":
            return changes.withColumn(IS_NEW, ~is_old).select(*columns_named([*columns, IS_NEW]))
        return (changes.where(is_old) if images == "old" else changes).select(*columns_named(columns))

    def at(self, read: TableRead, values: pa.Table | None, instant: str) -> pa.Table | DataFrame:
        if instant != EMPTY and self.keys(read) != ALL_KEYS:
            return self._ctx.rows_of_chunk(read.table, self.columns(read))
        if instant == EMPTY or self.is_local(read, values):
            return super().at(read, values, instant)
        at = self._ctx.previous if instant == OLD else self._ctx.table
        return at(read.table, columns=self.columns(read), among=values)

    def union(self, read: TableRead, rows: Any, more: Any) -> pa.Table | DataFrame:
        if isinstance(rows, pa.Table) and isinstance(more, pa.Table):
            return super().union(read, rows, more)
        if isinstance(more, pa.Table) and not more.num_rows:
            return rows
        return self.frame(read.name, rows).unionByName(self.frame(read.name, more))

    def is_local(self, read: TableRead, values: pa.Table | None = None) -> bool:
        """Return True if the driver reads the rows: by few keys, of few bytes by other values, or of a small table if
        it has values to look up.
        """
        plan = self.scan(read)
        if self.keys(read) != ALL_KEYS:
            return False
        if values is not None and set(values.column_names) == set(plan.table.primary_key):
            return True
        options = ReadOptions(self.columns(read), None if values is None else pruning(values))
        size = bytes_to_read(plan, options)
        return size < BROADCAST_BYTES if values is not None else len(self._known) > 0 and size < LOCAL_BYTES

    def values(self, read: TableRead, source: pa.Table, columns: Mapping[str, str]) -> pa.Table | None:
        values = super().values(read, source, columns)
        return values if values is not None and values.num_rows <= PRUNED_BY else None

    def frame(self, name: str, rows: Any) -> DataFrame:
        """Return the rows of the table of this name in a query as a frame."""
        if not isinstance(rows, pa.Table):
            return rows
        if name in (TOUCHED, FOLDED):
            frame, is_small = self._ctx.spark.createDataFrame(rows), name == TOUCHED and rows.num_rows <= PRUNED_BY
            return frame.hint("broadcast") if is_small and self._ctx.broadcasts else frame
        key = tuple(column for column in self._plan.schemas[table_of(name)].primary_key if column in rows.column_names)
        schema = spark_schema(name, rows.schema, key)
        frame = self._ctx.spark.createDataFrame(to_spark(name, rows, arrow_schema(schema)), schema)
        return frame.hint("broadcast") if self._ctx.broadcasts else frame


class ViewEngine:
    """Engine of a refresh on Spark. It is a `StepEngine` of DataFrames."""

    def __init__(self, ctx: SparkRefreshContext, plan: CompiledPlan, queries: ViewSession) -> None:
        self.reads = SparkReads(ctx, plan)
        self._ctx = ctx
        self._queries = queries

    @property
    def state_sql(self) -> SparkStateSQL | None:
        try:
            _, here = plan_of(self._ctx, "duckdb")
            sql = SparkStateSQL(self, here)
            here.layouts(sql.schema_of)
        except (InvalidInput, DependencyMissing):  # DuckDB may differ from Spark, or is not there
            return None
        return sql

    @property
    def makes_state(self) -> bool:
        ctx = self._ctx
        return ctx.makes_state or ctx.barrier.kind == "initial" or ctx.operation == "recompute"

    def task_target(self, target: WriteTarget) -> WriteTarget:
        return self._ctx.task_target(target)

    @property
    def most_rows(self) -> int | None:
        return LOCAL_ROWS

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> DataFrame:
        with self._ctx.broadcasting(query.joins):
            frames = {name: self.reads.frame(name, rows) for name, rows in self.reads.of(query, known).items()}
        with self._queries.named(frames) as run:
            return run(query.text)

    @property
    def late_overflows(self) -> tuple[type[Exception], ...]:
        from pyspark.errors import ArithmeticException

        return (ArithmeticException,)

    def collect(self, rows: DataFrame, *, most: int | None = None, output: TableSchema | None = None) -> pa.Table:
        try:
            table = (rows if most is None else rows.limit(most)).toArrow()
        except Exception as error:
            typed_error = find_epochlog_error(error)
            if is_session_lost(self._queries.session) or not isinstance(typed_error, InvalidInput | None):
                raise
            raise typed_error or InvalidInput(f"Spark cannot compute a query of the view: {error}") from error
        return table if output is None else from_spark(output, table)

    def conform(self, output: TableSchema, rows: DataFrame) -> DataFrame:
        return _cast(rows, spark_schema(output.name, output.schema, output.primary_key))

    def key_outside(
        self, output: TableSchema, rows: DataFrame | pa.Table, scope: Sequence[str], touched: pa.Table
    ) -> Row | None:
        if isinstance(rows, pa.Table):
            with self._ctx.in_driver() as local:
                return key_outside(local, output, rows, scope, touched)
        key = list(output.primary_key)
        before = self._ctx.output(output.name, columns=[*key, *(name for name in scope if name not in key)])
        keys = rows.select(*columns_named(key)).distinct().toDF(*(f"row_{name}" for name in key))
        groups = self.reads.frame(TOUCHED, touched).select(*columns_named(scope))
        groups = groups.toDF(*(f"touched_{name}" for name in scope))
        of_rows = reduce(and_, (column_of(before, name) == column_of(keys, f"row_{name}") for name in key))
        of_groups = reduce(
            and_, (column_of(before, name).eqNullSafe(column_of(groups, f"touched_{name}")) for name in scope)
        )
        kept = before.join(keys, of_rows, "left_semi").join(groups, of_groups, "left_anti").limit(1).collect()
        return {name: kept[0][name] for name in key} if kept else None

    def merged(self, output: str, rows: DataFrame, merges: Mapping[str, str]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

        plan = self._ctx.plan.output(output)
        if not plan.previous.files:
            return rows
        key = plan.table.schema.primary_key
        before = self._ctx.output(output, columns=[*key, *merges])
        before = before.toDF(*(f"{_BEFORE}{name}" for name in before.columns))
        same = reduce(and_, (column_of(rows, name) == column_of(before, _BEFORE + name) for name in key))
        joined = rows.join(before, same, "left")

        def merged(name: str) -> Column:
            new, old = column_named(name), column_named(_BEFORE + name)
            if merges[name] == "sum":
                return F.coalesce(new + old, new, old)
            return (F.least if merges[name] == "min" else F.greatest)(new, old)  # they skip NULL

        values = (merged(name).alias(name) if name in merges else column_named(name) for name in rows.columns)
        return self.conform(plan.table.schema, joined.select(*values))

    def replace(self, output: str, rows: pa.Table, groups: pa.Table) -> None:
        with self._ctx.in_driver() as local:
            replace_groups(local, output, rows, groups)


@contextmanager
def keeping_active_session(session: SparkSession) -> Iterator[None]:
    """Put the thread's active session back at the end: Spark's createDataFrame makes its own session the active one,
    and the user's streams look their data source up in the active session.
    """
    sessions: Any = type(session)
    of_jvm = sessions._get_j_spark_session_class(session._jvm)
    in_python, in_jvm = sessions._activeSession, of_jvm.getActiveSession()
    try:
        yield
    finally:
        sessions._activeSession = in_python
        if in_jvm.isDefined():
            of_jvm.setActiveSession(in_jvm.get())
        else:
            of_jvm.clearActiveSession()


def _cast(rows: DataFrame, target: StructType) -> DataFrame:
    """Return the rows with exactly the target's columns and types."""
    return rows.select(*(column_named(field.name).cast(field.dataType).alias(field.name) for field in target.fields))


class ViewSession:
    """Session for the queries of views, made of the user's session."""

    def __init__(self, session: SparkSession) -> None:
        require_live(session, "a view")
        with _lock:
            own = _sessions.get(session)
            if own is None:
                own = _sessions[session] = session.newSession()
                for name, value in _CONF.items():
                    own.conf.set(name, value)
        self.session = own

    def empty(self, table: TableSchema) -> DataFrame:
        """Return a frame of a table's columns without rows."""
        return self.session.createDataFrame([], spark_schema(table.name, table.schema, table.primary_key))

    def rows(self, files: Files, plan: ScanPlan, columns: Sequence[str]) -> DataFrame:
        """Return a frame of a plan's rows with these columns; with the key's if there are none."""
        options = ReadOptions(list(columns) or list(plan.table.primary_key))
        schema = spark_schema(plan.table.name, plan.schema(options.columns), plan.table.primary_key)
        return read_frame(self.session, ReadPartition(files, plan, arrow_schema(schema), options, "net"), schema)

    @contextmanager
    def named(self, frames: Mapping[str, DataFrame]) -> Iterator[Callable[[str], DataFrame]]:
        """Yield a function that plans a text over these frames, in which NUMBER ends each of their names.

        It raises InvalidInput if Spark refuses the text.
        """
        number = f"_{next(_numbers)}"
        names = {name: name + number for name in frames}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(names[name])
        try:
            yield lambda text: self._planned(text.replace(NUMBER, number))
        finally:
            for name in names.values():
                self.session.catalog.dropTempView(name)

    def _planned(self, text: str) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        try:
            return self.session.sql(text)
        except (AnalysisException, ParseException) as error:
            raise InvalidInput(f"Spark refuses the query of the view: {error}") from error
