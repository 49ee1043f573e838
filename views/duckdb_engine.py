"""Views in SQL on DuckDB, in this process: the schema of a view's query, and its refresh."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from epochlog.batch.arrow_compat import compatible_schema, in_duckdb
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.checkpoint.job.row_groups import belonging, distinct, groups_of
from epochlog.errors import DependencyMissing, InvalidInput, LimitExceeded
from epochlog.store.env.local_folder import private_temporary_folder
from epochlog.store.env.log_events import ENGINE_RESET
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.retyping import as_schema, as_type
from epochlog.store.types.schema import TableSchema

from . import step, syntax
from .compiled_plan import CompiledPlan, CompiledQuery
from .derivation import ViewPlan, render
from .engine import Row
from .reads import Reads
from .state_step import NewBlock
from .state_tables import Layout
from .table_names import NOW

if TYPE_CHECKING:
    import duckdb

_CHUNK = "epochlog_chunk"
_BEFORE = "epochlog_before"
MEMORY = "EPOCHLOG_VIEWS_MEMORY"
"""Variable of the environment with the memory of DuckDB for all views of the process, such as 8GB."""


def output_schema(plan: ViewPlan, tables: Mapping[str, TableSchema]) -> pa.Schema:
    """Return the schema of a view's rows: DuckDB plans the query over empty tables.

    Raises InvalidInput for a query on which DuckDB and Spark can differ, or which DuckDB refuses; DependencyMissing.
    """
    query = CompiledPlan(lambda: plan, "duckdb").query()
    with _connected() as connection:
        for name in plan.tables:
            connection.register(NOW + name, _plain(tables[name].schema.empty_table()))
        schema = _answer(connection, query.text).schema
    return pa.schema([field.with_nullable(True) for field in schema])


def refresh(
    ctx: LocalRefreshContext, output: str, plan: CompiledPlan, reads: type[Reads[pa.Table]] = Reads[pa.Table]
) -> None:
    """Write the rows of the view that the barrier of a refresh alters. reads: reads its tables."""
    step.refresh(ctx, output, plan, _engine(ctx, plan, reads))


@contextmanager
def _engine(ctx: LocalRefreshContext, plan: CompiledPlan, reads: type[Reads[pa.Table]]) -> Iterator[LocalEngine]:
    with _connected() as connection:
        yield LocalEngine(ctx, plan, connection, reads(ctx, plan))


def touched_keys(
    queries: Mapping[str, CompiledQuery], changes: Mapping[str, pa.Table], types: pa.Schema
) -> pa.Table | None:
    """Return the touched values of a plan's key queries, for an engine that needs longer; None if DuckDB refuses them.

    changes: old and new images, by occurrence. types: of the touched values.
    """
    values = [types.empty_table()]
    try:
        for alias, query in queries.items():
            with _connected() as connection:
                for name in query.reads:
                    connection.register(name, _plain(changes[alias]))
                values.append(as_schema(_answer(connection, query.text), types))
    except (InvalidInput, DependencyMissing, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return distinct(pa.concat_tables(values), types.names)


def rows_of(query: CompiledQuery, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of a query of a plan over these tables. Raises InvalidInput, DependencyMissing."""
    with _connected() as connection:
        for name, rows in tables.items():
            connection.register(name, _plain(rows))
        return _answer(connection, query.text)


class LocalEngine:
    """Engine of a refresh in this process. It is a `StepEngine` of Arrow tables."""

    def __init__(
        self,
        ctx: LocalRefreshContext,
        plan: CompiledPlan,
        connection: duckdb.DuckDBPyConnection,
        reads: Reads[pa.Table],
    ) -> None:
        self.reads = reads
        self.here = plan
        self._ctx = ctx
        self._connection = connection

    @property
    def state_sql(self) -> LocalEngine:
        return self

    @property
    def most_rows(self) -> int | None:
        return None

    @property
    def most_changes(self) -> int | None:
        return None

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> pa.Table:
        self._register(query, known)
        return _answer(self._connection, query.text)

    def run_here(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Table:
        return self.run(query, known)

    def inputs(
        self, query: CompiledQuery, layout: Layout, known: Mapping[str, pa.Table] | None = None, *, most: int
    ) -> pa.Table:
        del layout
        self._register(query, known)
        return require_few(_answer(self._connection, f"SELECT * FROM ({query.text}) LIMIT {most + 1}"), most)

    def _register(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None) -> None:
        for name, rows in self.reads.of(query, known).items():
            self._connection.register(name, _plain(rows))

    def may_read_all(self, query: CompiledQuery) -> bool:
        return self.reads.fits(query)

    def make_block(self, query: CompiledQuery, layout: Layout, target: WriteTarget) -> NewBlock | None:
        del query, layout, target

    def schema_of(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Schema:
        return schema_of(self.here, query, known)

    @property
    def late_overflows(self) -> tuple[type[Exception], ...]:
        return ()  # `run` raises them

    def collect(self, rows: pa.Table, *, most: int | None = None, output: TableSchema | None = None) -> pa.Table:
        del output
        return rows.slice(0, most)

    def conform(self, output: TableSchema, rows: pa.Table) -> pa.Table:
        return conformed(output, rows)

    def key_outside(self, output: TableSchema, rows: pa.Table, scope: Sequence[str], touched: pa.Table) -> Row | None:
        return key_outside(self._ctx, output, rows, scope, touched)

    def merged(self, output: str, rows: pa.Table, merges: Mapping[str, str]) -> pa.Table:
        target = self._ctx.plan.output(output).table.schema
        key = list(target.primary_key)
        before = self._ctx.output(output, among=rows.select(key))
        if not before.num_rows:
            return rows
        tables = {_CHUNK: rows, _BEFORE: before}
        for name, table in tables.items():
            self._connection.register(name, _plain(table))
        outputs = [syntax.named(_merge(name, merges.get(name)), name) for name in target.schema.names]
        query = syntax.select(outputs)
        syntax.put_from(query, syntax.table(_CHUNK, _CHUNK))
        on = [exp.EQ(this=syntax.column(_BEFORE, name), expression=syntax.column(_CHUNK, name)) for name in key]
        query.set("joins", [exp.Join(this=syntax.table(_BEFORE, _BEFORE), side="LEFT", on=exp.and_(*on, copy=False))])
        return self.conform(target, _answer(self._connection, render(query, "duckdb")))

    def replace(self, output: str, rows: pa.Table, groups: pa.Table) -> None:
        replace_groups(self._ctx, output, rows, groups)


def schema_of(plan: CompiledPlan, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Schema:
    """Return the columns of a query of the plan, without reading a row. known: tables that are no upstreams."""
    empty = {name: plan.schemas[read.table].schema.empty_table() for name, read in query.reads.items()}
    return rows_of(query, {**empty, **known}).schema


def require_few(rows: pa.Table, most: int) -> pa.Table:
    """Return the rows. Raises LimitExceeded if they are more than `most`."""
    if rows.num_rows > most:
        raise LimitExceeded(f"a join of the view has more than {most:,} rows")
    return rows


def conformed(output: TableSchema, rows: pa.Table) -> pa.Table:
    """Return the rows with exactly the columns and types of an output. Raises InvalidInput."""
    try:
        columns = [as_type(rows.column(field.name), field.type) for field in output.schema]
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a row of the view {output.name!r} does not fit its columns: {error}") from error
    return pa.Table.from_arrays(columns, names=output.schema.names)


def key_outside(
    ctx: LocalRefreshContext, output: TableSchema, rows: pa.Table, scope: Sequence[str], touched: pa.Table
) -> Row | None:
    """Return the key of a new row that a row of the output has whose group is not touched; None without one."""
    key = list(output.primary_key)
    columns = [*key, *(name for name in scope if name not in key)]
    before = ctx.output(output.name, columns=columns, among=rows.select(key))
    kept = before.filter(pa.array(~belonging(before, groups_of(output, touched, scope))))
    return kept.select(key).slice(0, 1).to_pylist()[0] if kept.num_rows else None


def replace_groups(ctx: LocalRefreshContext, output: str, rows: pa.Table, groups: pa.Table) -> None:
    """Replace the output's rows of groups, all rows for groups of no columns."""
    ctx.recompute(output, by=groups.column_names, from_=rows, touched=groups if groups.column_names else None)


def _merge(name: str, merge: str | None) -> exp.Expr:
    """Return the value of a column of both tables; NULL counts only where both have it."""
    new, old = syntax.column(_CHUNK, name), syntax.column(_BEFORE, name)
    if merge is None:
        return new
    if merge == "sum":
        return exp.Coalesce(this=exp.Add(this=new, expression=old), expressions=[new.copy(), old.copy()])
    return exp.Anonymous(this="least" if merge == "min" else "greatest", expressions=[new, old])  # they skip NULL


def _plain(rows: pa.Table) -> pa.Table:
    """Return the rows in types that DuckDB has."""
    schema = compatible_schema(rows.schema, in_duckdb)
    return rows if schema.equals(rows.schema) else as_schema(rows, schema)


def _answer(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    import duckdb

    try:
        return connection.sql(text).to_arrow_table()
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
