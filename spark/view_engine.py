"""Views in SQL on Spark: the schema of a view's query, and its refresh.

The queries run in a session of their own, made once of the user's: its time zone is UTC, and its temporary views, which
stand for the tables at the barrier, meet no others.
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
from epochlog.checkpoint.job.row_groups import PRUNED_BY, belonging, several_rows
from epochlog.errors import InvalidInput
from epochlog.store.env.files import Files
from epochlog.store.env.log_events import VIEW_RECOMPUTED
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema
from epochlog.views.derivation import NotCovered, Query, ViewPlan, render
from epochlog.views.folding import FOLDED, MOST_GROUPS, Fold, Folded, folded, groups_of_changes
from epochlog.views.refresh_choice import recomputes_all
from epochlog.views.restriction import TOUCHED
from epochlog.views.table_names import NOW
from epochlog.views.table_reads import table_reads

from .column_names import column_named, column_of, columns_named
from .errors import find_epochlog_error
from .frames import read_frame
from .live_session import is_session_lost
from .partitions import ReadPartition
from .refresh_context import SparkRefreshContext
from .types import arrow_schema, from_spark, spark_schema
from .view_tables import ViewTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.variable.substitute": "false",  # else values of the environment, with their quotes, go into the text
}
_sessions: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()
_lock = threading.Lock()
_numbers = itertools.count()


def output_schema(
    session: SparkSession, plan: ViewPlan, tables: Mapping[str, TableSchema], primary_key: Sequence[str]
) -> pa.Schema:
    """Return the schema of a view's rows: Spark plans the query over empty tables.

    Raises InvalidInput with Spark's reason if it refuses the query.
    """
    del primary_key
    queries = ViewSession(session)
    with keeping_active_session(session):
        empty = {NOW + name: queries.empty(tables[name]) for name in plan.tables}
        with queries.named(empty) as run:
            frame = run(plan.query())
    return pa.schema([field.with_nullable(True) for field in arrow_schema(frame.schema)])


def answer(session: SparkSession, handle: Handle, plan: ViewPlan, ctx: CheckContext) -> pa.Table:
    """Return the rows of a view's query at the epoch of a check. Spark's tasks read the tables."""
    queries, query = ViewSession(session), plan.query()
    with keeping_active_session(session):
        frames = {
            name: queries.rows(handle.files, ctx.plan(read.table), sorted(read.columns))
            for name, read in table_reads(query).items()
        }
        with queries.named(frames) as run:
            return run(query).toArrow()


def refresh(ctx: SparkRefreshContext, output: str, plan: ViewPlan) -> None:
    """Refresh the view's table: recompute the groups that the changes touch, or all rows.

    All rows are recomputed in a backfill or rebuild, and in a step in which a table has changed that touches no groups.
    """
    with keeping_active_session(ctx.spark):
        _refresh(ctx, output, plan)


def _refresh(ctx: SparkRefreshContext, output: str, plan: ViewPlan) -> None:
    queries = ViewSession(ctx.spark)
    ctx.use_session(queries.session)
    initial = ctx.barrier.kind == "initial"
    changed = [] if initial else [name for name in plan.tables if ctx.plan.upstream(name).changes.rows]
    if not initial and not changed:
        return
    tables = ViewTables(ctx, plan)
    if changed and plan.fold is not None and _fold(ctx, tables, queries, output, plan.fold, changed):
        return
    scope = plan.scope_of(changed) if changed else ()
    touched = _touched(ctx, tables, queries, output, changed, scope) if scope else None
    if touched is not None and plan.by_rows and recomputes_all(touched.num_rows, ctx.rows_of_output(output)):
        touched = None
    table = ctx.plan.output(output).table.schema
    target = spark_schema(output, table.schema, table.primary_key)
    if touched is None:
        ctx.operation = "refresh" if initial else "recompute"
        query = plan.query()
        with queries.named(tables.frames(query)) as run:
            ctx.recompute(output, by=[], from_=_cast(run(query), target))
        return
    if not touched.num_rows:
        return
    groups = queries.session.createDataFrame(touched)
    if touched.num_rows <= PRUNED_BY:
        groups = groups.hint("broadcast")
    query = plan.refresh_query(scope)
    with queries.named({**tables.frames(query, {TOUCHED: touched}), TOUCHED: groups}) as run:
        rows = _cast(run(query), target)
        if not set(scope) <= set(table.primary_key):
            _require_own_keys(ctx, table, rows, scope, groups)
        ctx.recompute(output, by=list(scope), from_=rows, touched=touched)


def _fold(
    ctx: SparkRefreshContext, tables: ViewTables, queries: ViewSession, output: str, fold: Fold, changed: Sequence[str]
) -> bool:
    """Add the changes to the view's sums and counts (R9); return False if that does not give the view's rows.

    The groups of which they do not give the rows are computed again. The driver writes the rows, which are few.
    """
    table = ctx.plan.output(output).table.schema
    target = spark_schema(output, table.schema, table.primary_key)
    query = fold.deltas(changed)
    try:
        with queries.named(tables.frames(query)) as run:
            deltas = run(query).limit(MOST_GROUPS + 1).toArrow()
    except Exception as error:
        if is_session_lost(queries.session) or not isinstance(find_epochlog_error(error), InvalidInput | None):
            raise
        return False  # The query itself may not fail: these expressions are evaluated of other values.
    groups = groups_of_changes(fold, table.schema, deltas)
    if groups is None:
        return False
    before = _rows_before(ctx, output, groups)
    result = folded(fold, groups, deltas, before)
    if result is None:
        return False
    frames = {FOLDED: queries.session.createDataFrame(result.rows)}
    parts: list[tuple[Query, Mapping[str, DataFrame]]] = [(fold.rows, frames)] if result.rows.num_rows else []
    if result.unknown.num_rows:
        query = tables.plan.refresh_query(list(fold.groups))
        unknown = queries.session.createDataFrame(result.unknown).hint("broadcast")
        parts.append((query, {**tables.frames(query, {TOUCHED: result.unknown}), TOUCHED: unknown}))
    rows = [table.schema.empty_table()]
    for query, frames in parts:
        with queries.named(frames) as run:
            rows.append(as_schema(from_spark(table, _cast(run(query), target).toArrow()), table.schema))
    _write(ctx, output, pa.concat_tables(rows), before, result)
    return True


def _write(ctx: SparkRefreshContext, output: str, rows: pa.Table, before: pa.Table, result: Folded) -> None:
    """Write the rows of folded groups; delete the rows of those that have none any more."""
    key = list(ctx.plan.output(output).table.schema.primary_key)
    lost = belonging(before, result.groups) & ~belonging(before, rows.select(result.groups.column_names))
    keys = before.filter(pa.array(lost)).select(key)
    if rows.num_rows:
        ctx.upsert(output, rows)
    if keys.num_rows:
        ctx.delete(output, keys)


def _rows_before(ctx: SparkRefreshContext, output: str, groups: pa.Table) -> pa.Table:
    """Return the rows that the output had with these primary keys, read by the driver; all rows for no columns."""
    plan = ctx.plan.output(output).previous
    if not groups.column_names:
        return plan.read(ctx.files)
    keys = plan.table.conform_keys(groups.drop_null())
    _, rows = plan.find(ctx.files, plan.codec.encode(keys), plan.table.schema.names)
    return rows.data.select(plan.table.schema.names)


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


def _require_own_keys(
    ctx: SparkRefreshContext, table: TableSchema, rows: DataFrame, scope: Sequence[str], groups: DataFrame
) -> None:
    """Raise InvalidInput if a row has the key of a row of the view whose group is not recomputed.

    That can be only if the scope has columns outside of the key.
    """
    key = list(table.primary_key)
    before = ctx.output(table.name, columns=[*key, *(name for name in scope if name not in key)])
    keys = rows.select(*columns_named(key)).distinct().toDF(*(f"row_{name}" for name in key))
    touched = groups.select(*columns_named(scope)).toDF(*(f"touched_{name}" for name in scope))
    of_rows = reduce(and_, (column_of(before, name) == column_of(keys, f"row_{name}") for name in key))
    of_groups = reduce(
        and_, (column_of(before, name).eqNullSafe(column_of(touched, f"touched_{name}")) for name in scope)
    )
    kept = before.join(keys, of_rows, "left_semi").join(touched, of_groups, "left_anti").limit(1).collect()
    if kept:
        raise several_rows(table.name, {name: kept[0][name] for name in key}, of_view=True)


def _touched(
    ctx: SparkRefreshContext,
    tables: ViewTables,
    queries: ViewSession,
    output: str,
    changed: Sequence[str],
    scope: Sequence[str],
) -> pa.Table | None:
    """Return the touched values of the scope; None if they cannot be computed in this step.

    That is so if no condition connects them with the changed rows, or if an expression that is evaluated for more rows
    than the view's query evaluates it for fails.
    """
    keys = tables.changed_keys(changed, scope, ctx.plan.output(output).table.schema)
    if keys is not None:
        return keys
    try:
        query = tables.plan.touched_query(changed, scope)
    except NotCovered:
        return None
    try:
        with queries.named(tables.frames(query)) as run:
            return run(query).toArrow()
    except Exception as error:
        typed_error = find_epochlog_error(error)
        if is_session_lost(queries.session) or not isinstance(typed_error, InvalidInput | None):
            raise
        VIEW_RECOMPUTED.log(view=tables.view, error=error)
        return None


def _cast(rows: DataFrame, target: StructType) -> DataFrame:
    """Return the rows with exactly the target's columns and types."""
    return rows.select(*(column_named(field.name).cast(field.dataType).alias(field.name) for field in target.fields))


class ViewSession:
    """Session for the queries of views, made of the user's session."""

    def __init__(self, session: SparkSession) -> None:
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
    def named(self, frames: Mapping[str, DataFrame]) -> Iterator[Callable[[Query], DataFrame]]:
        """Yield a function that plans a query over these frames by name. Raises InvalidInput if Spark refuses it."""
        number = next(_numbers)
        names = {name: f"{name}_{number}" for name in frames}
        for name, frame in frames.items():
            frame.createOrReplaceTempView(names[name])
        try:
            yield lambda query: self._planned(query, names)
        finally:
            for name in names.values():
                self.session.catalog.dropTempView(name)

    def _planned(self, query: Query, names: Mapping[str, str]) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        try:
            return self.session.sql(render(query, "spark", names))
        except (AnalysisException, ParseException) as error:
            raise InvalidInput(f"Spark refuses the query of the view: {error}") from error
