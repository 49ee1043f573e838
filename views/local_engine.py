"""Views in SQL on DuckDB, in this process: the schema of a view's query, and its refresh."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.batch.arrow_compat import compatible_schema, in_duckdb
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.checkpoint.job.row_groups import belonging, distinct, groups_of, several_rows
from epochlog.errors import DependencyMissing, InvalidInput, LimitExceeded
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.env.local_folder import private_temporary_folder
from epochlog.store.env.log_events import ENGINE_RESET, VIEW_RECOMPUTED
from epochlog.store.types.retyping import as_schema, as_type
from epochlog.store.types.schema import TableSchema

from .derivation import NotCovered, Query, ViewPlan, render
from .folding import FOLDED, Fold, folded, groups_of_changes
from .local_functions import as_spark_computes, require_local
from .refresh_choice import recomputes_all
from .restriction import TOUCHED
from .table_names import CHANGED, EITHER, EMPTY, IS_NEW, NOW, OLD, SIGNED, prefix_of, table_of
from .table_reads import LOOKUP_SHARE, TableRead, choose_lookup, looked_up, table_reads
from .value_kinds import ValueKinds

if TYPE_CHECKING:
    import duckdb
    from sqlglot import exp

MEMORY = "EPOCHLOG_VIEWS_MEMORY"
"""Variable of the environment with the memory of DuckDB for all views of the process, such as 8GB."""
_OLD_IMAGES = pa.array(["delete", "update_preimage"])


def output_schema(plan: ViewPlan, tables: Mapping[str, TableSchema], primary_key: Sequence[str]) -> pa.Schema:
    """Return the schema of a view's rows: DuckDB plans the query over empty tables.

    Raises InvalidInput for a query on which DuckDB and Spark can differ, or which DuckDB refuses; DependencyMissing.
    """
    del primary_key
    require_local(plan.form.query, plan.form.occurrences, tables)
    with _connected() as connection:
        for name in plan.tables:
            connection.register(NOW + name, _plain(tables[name].schema.empty_table()))
        schema = _run(connection, plan, plan.query()).schema
    return pa.schema([field.with_nullable(True) for field in schema])


def refresh(ctx: LocalRefreshContext, output: str, plan: ViewPlan) -> None:
    """Refresh the view's table: recompute the groups that the changes touch, or all rows.

    All rows are recomputed in a backfill or rebuild, and in a step in which a table has changed that touches no groups.
    """
    initial = ctx.barrier.kind == "initial"
    changed = [] if initial else [name for name in plan.tables if ctx.plan.upstream(name).changes.rows]
    if not initial and not changed:
        return
    scope = plan.scope_of(changed) if changed else ()
    require_local(plan.form.query, plan.form.occurrences, plan.schemas)
    with _connected() as connection:
        tables = _Tables(ctx, connection, plan)
        if changed and plan.fold is not None and _fold(tables, output, plan.fold, changed):
            return
        touched = _touched(tables, plan, changed, scope) if scope else None
        if touched is not None and plan.by_rows and recomputes_all(touched.num_rows, ctx.rows_of_output(output)):
            touched = None
        if touched is None:
            ctx.operation = "refresh" if initial else "recompute"
            ctx.recompute(output, by=[], from_=_conformed(ctx, output, tables.run(plan.query())))
        elif touched.num_rows:
            rows = _conformed(ctx, output, tables.run(plan.refresh_query(scope), {TOUCHED: touched}))
            _require_own_keys(ctx, output, rows, scope, touched)
            ctx.recompute(output, by=list(scope), from_=rows, touched=touched)


def touched_keys(
    plan: ViewPlan, queries: Mapping[str, exp.Select], changes: Mapping[str, pa.Table], types: pa.Schema
) -> pa.Table | None:
    """Return the touched values of a plan's key queries, for an engine that needs longer; None if DuckDB can differ.

    changes: old and new images, by occurrence. types: of the touched values.
    """
    values = [types.empty_table()]
    try:
        for alias, query in queries.items():
            table = plan.form.occurrences[alias]
            require_local(query, {alias: table}, plan.schemas)
            with _connected() as connection:
                connection.register(CHANGED + table, _plain(changes[alias]))
                values.append(as_schema(_run(connection, plan, query), types))
    except (InvalidInput, DependencyMissing, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return distinct(pa.concat_tables(values), types.names)


def _fold(tables: _Tables, output: str, fold: Fold, changed: Sequence[str]) -> bool:
    """Add the changes to the view's sums and counts (R9); return False if that does not give the view's rows.

    The groups of which they do not give the rows are computed again.
    """
    ctx, by = tables.ctx, list(fold.groups)
    schema = ctx.plan.output(output).table.schema.schema
    try:
        deltas = tables.run(fold.deltas(changed))
        groups = groups_of_changes(fold, schema, deltas)
        if groups is None:
            return False
        before = ctx.output(output, among=groups) if by else ctx.output(output)
        result = folded(fold, groups, deltas, before)
        if result is None:
            return False
        rows = _conformed(ctx, output, tables.run(fold.rows, {FOLDED: result.rows}))
        if result.unknown.num_rows:
            query = tables.plan.refresh_query(by)
            again = tables.run(query, {TOUCHED: result.unknown})
            rows = pa.concat_tables([rows, _conformed(ctx, output, again)])
    except (InvalidInput, pa.ArrowInvalid):
        return False  # The query itself may not fail: these expressions are evaluated of other values.
    if rows.num_rows or result.gone.num_rows or result.unknown.num_rows:
        ctx.recompute(output, by=by, from_=rows, **({"touched": result.groups} if by else {}))
    return True


def _require_own_keys(
    ctx: LocalRefreshContext, output: str, rows: pa.Table, scope: Sequence[str], touched: pa.Table
) -> None:
    """Raise InvalidInput if a row has the key of a row of the view whose group is not recomputed.

    That can be only if the scope has columns outside of the key.
    """
    schema = ctx.plan.output(output).table.schema
    key = list(schema.primary_key)
    if set(scope) <= set(key):
        return
    columns = [*key, *(name for name in scope if name not in key)]
    before = ctx.output(output, columns=columns, among=rows.select(key))
    kept = before.filter(pa.array(~belonging(before, groups_of(schema, touched, scope))))
    if kept.num_rows:
        raise several_rows(output, kept.select(key).slice(0, 1).to_pylist()[0], of_view=True)


def _touched(tables: _Tables, plan: ViewPlan, changed: Sequence[str], scope: Sequence[str]) -> pa.Table | None:
    """Return the touched values of the scope; None if they cannot be computed in this step.

    That is so if no condition connects them with the changed rows, or if an expression that is evaluated for more rows
    than the view's query evaluates it for fails.
    """
    try:
        return tables.run(plan.touched_query(changed, scope))
    except NotCovered:
        return None
    except InvalidInput as error:
        VIEW_RECOMPUTED.log(view=tables.view, error=error)
        return None


class _Tables:
    """Tables of a refresh at its barrier. A query gets those that it names, with the columns that it reads, and of a
    table that it looks up by a prefix of the primary key, the rows of these keys alone.
    """

    def __init__(self, ctx: LocalRefreshContext, connection: duckdb.DuckDBPyConnection, plan: ViewPlan) -> None:
        self.ctx = ctx
        self.plan = plan
        self._connection = connection
        self.view = ctx.plan.job.name
        self._whole: dict[tuple[str, ...], pa.Table] = {}  # of one query, by prefix, table and columns

    def run(self, query: Query, known: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Run a query of the plan. known: tables that are no upstreams. Raises InvalidInput if DuckDB refuses it."""
        tables = dict(known or {})
        pending = table_reads(query, tables)
        self._whole.clear()
        while pending:
            name, keys = self._next(pending, tables)
            tables[name] = self._load(pending.pop(name), keys)
        for name, rows in tables.items():
            self._connection.register(name, rows)
        return _run(self._connection, self.plan, query)

    def _next(self, pending: Mapping[str, TableRead], known: Mapping[str, pa.Table]) -> tuple[str, pa.Table | None]:
        """Return the table to load next: a small one, then one whose keys are known, then any; and its keys."""
        for name in pending:
            if prefix_of(name) in (CHANGED, EMPTY, SIGNED):
                return name, None
        for name, read in pending.items():
            chosen = choose_lookup(read, self._schema(name).primary_key, known)
            if chosen is not None:
                lookup, key = chosen
                values = known[lookup.source].select([lookup.columns[column] for column in key]).rename_columns(key)
                values = looked_up(values, self._schema(name).schema)
                if values is not None:
                    return name, values
        return next(iter(pending)), None

    def _load(self, read: TableRead, keys: pa.Table | None) -> pa.Table:
        table, schema = read.table, self._schema(read.name)
        columns = [name for name in schema.schema.names if name in read.columns] or [schema.primary_key[0]]
        if read.prefix == EMPTY:
            return _plain(schema.schema.empty_table().select(columns))
        if read.prefix == CHANGED:
            return self._changes(table, columns).drop_columns([CHANGE_TYPE])
        if read.prefix == SIGNED:
            changes = self._changes(table, columns)
            is_new = pc.invert(pc.is_in(changes.column(CHANGE_TYPE), _OLD_IMAGES))
            return changes.drop_columns([CHANGE_TYPE]).append_column(IS_NEW, is_new)
        upstream = self.ctx.plan.upstream(table)
        few = keys is not None and keys.num_rows <= upstream.current.rows_at_most // LOOKUP_SHARE
        at = self.ctx.previous if read.prefix == OLD else self.ctx.table
        name = (OLD if read.prefix == OLD else NOW, table, *columns)
        rows = None if few else self._whole.get(name)
        if rows is None:
            rows = _plain(at(table, columns=columns, among=keys if few else None))
        if not few:
            self._whole[name] = rows
        if read.prefix != EITHER or not upstream.changes.rows:
            return rows
        changes = self._changes(table, columns)
        old = changes.filter(pc.is_in(changes.column(CHANGE_TYPE), _OLD_IMAGES)).drop_columns([CHANGE_TYPE])
        return pa.concat_tables([rows, as_schema(old, rows.schema)])

    def _changes(self, table: str, columns: Sequence[str]) -> pa.Table:
        changes = self.ctx.changes(table, pre_images=True, columns=columns)
        return _plain(changes.select([*columns, CHANGE_TYPE]))

    def _schema(self, name: str) -> TableSchema:
        return self.plan.schemas[table_of(name)]


def _conformed(ctx: LocalRefreshContext, output: str, rows: pa.Table) -> pa.Table:
    """Return the rows with exactly the columns and types of the output. Raises InvalidInput for a value that does not
    fit.
    """
    schema = ctx.plan.output(output).table.schema.schema
    try:
        columns = [as_type(rows.column(field.name), field.type) for field in schema]
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a row of the view {output!r} does not fit its columns: {error}") from error
    return pa.Table.from_arrays(columns, names=schema.names)


def _plain(rows: pa.Table) -> pa.Table:
    """Return the rows in types that DuckDB has."""
    schema = compatible_schema(rows.schema, in_duckdb)
    return rows if schema.equals(rows.schema) else as_schema(rows, schema)


def _run(connection: duckdb.DuckDBPyConnection, plan: ViewPlan, query: Query) -> pa.Table:
    import duckdb

    kinds = ValueKinds(query, plan.form.occurrences, plan.schemas)
    try:
        relation = connection.sql(render(as_spark_computes(query, kinds), "duckdb"))
        return relation.to_arrow_table()
    except duckdb.OutOfMemoryException as error:
        raise LimitExceeded(
            "the query of the view needs more memory than DuckDB may take for the views of this process: "
            f"{_memory_limit()}; set {MEMORY} to more, such as 8GB, split the query into several views, or run "
            "it on Spark"
        ) from error
    except duckdb.CatalogException:
        raise  # a query names a table that it was not given
    except duckdb.Error as error:
        if "INT128" in str(error):
            raise InvalidInput(f"a sum of the view does not fit BIGINT: {error}") from error
        reason = str(error).partition("\n")[0]  # without advice that no view can follow, and the query as it was sent
        raise InvalidInput(f"DuckDB refuses the query of the view: {reason}") from error


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection that sees no file, no network and no tables of other connections, in UTC."""
    with _cursor() as connection:
        yield connection


def _cursor() -> duckdb.DuckDBPyConnection:
    """Return a connection to this process' database; to a new one if an internal error of DuckDB has ended that."""
    process = os.getpid()
    database = _database(process)
    import duckdb

    try:
        return _in_utc(database)
    except duckdb.FatalException as error:
        ENGINE_RESET.log(error=error)
        _database.cache_clear()
        return _in_utc(_database(process))


def _in_utc(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    connection = database.cursor()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """Return this process' database, which has no tables: making one takes longer than a small refresh.

    process: a child of a fork has none of the threads of its parent's database.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise DependencyMissing(
            "views without a Spark session need DuckDB, which is not installed: pip install 'epochlog[sql]'"
        ) from error
    folder = private_temporary_folder("epochlog-views-")
    config = {"enable_external_access": False, "memory_limit": _memory_limit(), "temp_directory": folder}
    try:
        database = duckdb.connect(config=config)
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"{MEMORY} is a size such as 8GB, not {os.environ.get(MEMORY)!r}: {reason}") from None
    # It would decide i + 1 = 8 as i = 7, so that a sum that does not fit INT is no error, as it is in Spark.
    database.execute("SET disabled_optimizers = 'expression_rewriter'")
    return database


def _memory_limit() -> str:
    """Return the size that EPOCHLOG_VIEWS_MEMORY gives, else a quarter of the memory that this process may take."""
    if size := os.environ.get(MEMORY):
        return size
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return f"{whole // 4} bytes"
