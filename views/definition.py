"""Creation and replacement of views: derive the plan, ask an engine for the schema, and write the catalog's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from epochlog.checkpoint.job.job_ddl import Output, WantedView, create_job
from epochlog.checkpoint.job.job_intervals import Interval, MaxLag
from epochlog.checkpoint.job.view_ddl import Replacement, replace_views, require_view
from epochlog.errors import InvalidInput, InvalidSchema, SchemaMismatch, TableNotFound
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.log_events import VIEW_KEY, VIEW_KEY_NULLABLE
from epochlog.store.metadata.definitions import DERIVATION, JobRecord, ViewDefinition
from epochlog.store.metadata.lookups import find_job, find_table, get_table
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from . import duckdb_engine
from .derivation import ViewPlan, derive, tables_in
from .expanded_size import require_expandable
from .parsing import parse
from .present_text import has_query, present_text

SchemaPlanner = Callable[[ViewPlan, Mapping[str, TableSchema]], pa.Schema]
"""Plans a view's query on an engine, and returns the schema of its rows."""
NO_TABLES: Mapping[str, TableSchema] = MappingProxyType({})
NO_REFRESHES: Mapping[str, str] = MappingProxyType({})
REFRESHES = ("auto", "incremental", "full")


def create_view(
    handle: Handle,
    name: str,
    sql: str,
    primary_key: Sequence[str],
    *,
    refresh: str = "auto",
    schema_of: SchemaPlanner = duckdb_engine.output_schema,
    interval: Interval | None = None,
    max_lag: MaxLag | None = None,
    options: TableOptions | None = None,
    changelog: str | None = None,
    snapshot_rows: int | None = None,
    exist_ok: bool = False,
    warns: bool = True,
) -> JobRecord:
    """Create a view and its output table in one transaction. See `Store.create_view`.

    warns: log why steps may fail for its key; False for a caller that says so itself.
    """
    plan, schema, planned = plan_view(handle, name, sql, primary_key, refresh, schema_of)
    record = create_job(
        handle,
        name,
        plan.tables,
        {name: Output(schema, list(primary_key), changelog, options)},
        interval=interval,
        max_lag=max_lag,
        snapshot_rows=snapshot_rows,
        exist_ok=exist_ok,
        view=WantedView(ViewDefinition(sql, refresh, DERIVATION), partial(_view_difference, sql=sql, refresh=refresh)),
        columns=plan.columns,
        planned=planned,
    )
    if warns:
        _warn_of_key(handle, name, plan)
    return record


def _warn_of_key(handle: Handle, name: str, plan: ViewPlan) -> None:
    """Log why steps of a view may fail for its key."""
    advice = plan.key_advice()
    for event, reason in ((VIEW_KEY_NULLABLE, advice.nullable), (VIEW_KEY, advice.repeated)):
        if reason:
            handle.log(event, view=name, reason=reason)


def _view_difference(view: ReadTxn, job: JobRecord, sql: str, refresh: str) -> str | None:
    if job.view is None:
        return "it is no view"
    if not has_query(view, job, sql):
        return f"its query is {present_text(view, job)!r}, not {sql!r}"
    return None if job.view.refresh == refresh else f"its refresh is {job.view.refresh!r}, not {refresh!r}"


def change_views(
    handle: Handle,
    queries: Mapping[str, str],
    *,
    refreshes: Mapping[str, str] = NO_REFRESHES,
    schema_of: SchemaPlanner = duckdb_engine.output_schema,
    warns: bool = True,
) -> int:
    """Replace the queries of several views in one transaction. See `Store.replace_views`.

    refreshes: new ones by view; the others keep theirs. warns: as of `create_view`.
    """
    if not isinstance(queries, Mapping) or not queries:
        raise InvalidInput("replace_views takes a dict {view: query} with at least one view")

    def read_views(view: ReadTxn) -> dict[str, tuple[ViewDefinition, TableSchema]]:
        jobs = {name: find_job(view, name) for name in queries}
        return {
            name: (require_view(job), get_table(view, job.outputs[0], f"output of {name}").schema)
            for name, job in jobs.items()
        }

    replacements: dict[str, Replacement] = {}
    plans: dict[str, ViewPlan] = {}
    for name, (definition, table) in handle.catalog.read(read_views).items():
        refresh = refreshes.get(name, definition.refresh)
        with naming(name):
            plan, schema, planned = plan_view(handle, name, queries[name], table.primary_key, refresh, schema_of)
        require_same_columns(name, table, TableSchema(name, schema, table.primary_key))
        definition = ViewDefinition(queries[name], refresh, DERIVATION)
        replacements[name] = Replacement(definition, plan.columns, planned)
        plans[name] = plan
    epoch = replace_views(handle, replacements)
    for name, plan in plans.items() if warns else ():
        _warn_of_key(handle, name, plan)
    return epoch


def plan_view(
    handle: Handle,
    name: str,
    sql: Any,
    primary_key: Any,
    refresh: Any,
    schema_of: SchemaPlanner = duckdb_engine.output_schema,
    new_tables: Mapping[str, TableSchema] = NO_TABLES,
) -> tuple[ViewPlan, pa.Schema, dict[str, int]]:
    """Derive the plan of a query over the store's tables. Return it with its schema, which the engine plans, and the
    versions of the tables' columns.

    schema_of: plans the query on an engine. new_tables: schemas of tables by name that are not in the store yet, or are
    replaced.
    """
    if not isinstance(sql, str):
        raise InvalidInput(f"view {name!r}: its query is the text of a SELECT, not {sql!r}")
    _refuse_variables(name, sql)
    if refresh not in REFRESHES:
        raise InvalidInput(f"view {name!r}: refresh is one of {', '.join(REFRESHES)}, not {refresh!r}")
    if isinstance(primary_key, str) or not all(isinstance(column, str) for column in primary_key):
        raise InvalidInput(f"view {name!r}: primary_key is a list of column names, not {primary_key!r}")
    try:
        return _planned(handle, sql, primary_key, refresh, schema_of, new_tables)
    except RecursionError as error:
        raise InvalidInput(
            "the query is nested too deeply; each OR, AND and + of a long row of them counts: write IN, or join a "
            "table of the values"
        ) from error


def _refuse_variables(name: str, sql: str) -> None:
    """Raise InvalidInput for a text into which Spark, by its default settings, would put values of its environment."""
    if "${" in sql:
        raise InvalidInput(
            f"view {name!r}: its query has ${{, where Spark would put the value of a variable, also within a text: "
            "write the value itself, and a text with it in two parts, '$' || '{…'"
        )


def _planned(
    handle: Handle,
    sql: str,
    primary_key: Sequence[str],
    refresh: str,
    schema_of: SchemaPlanner,
    new_tables: Mapping[str, TableSchema],
) -> tuple[ViewPlan, pa.Schema, dict[str, int]]:
    query = parse(sql)
    names = tables_in(query)

    def schemas(view: ReadTxn) -> dict[str, TableSchema]:
        return {table: new_tables.get(table) or find_table(view, table).schema for table in names}

    tables = handle.catalog.read(schemas)
    require_expandable(query, tables)
    plan = derive(sql, tables, primary_key, refresh, query=query)
    return plan, schema_of(plan, tables), {name: table.version for name, table in tables.items()}


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the view in an error of its query that does not name it."""
    try:
        yield
    except (InvalidInput, InvalidSchema, SchemaMismatch, TableNotFound) as error:
        if str(error).startswith(f"view {name!r}"):
            raise
        raise type(error)(f"view {name!r}: {error}") from error


def require_same_columns(name: str, current: TableSchema, wanted: TableSchema) -> None:
    """Raise SchemaMismatch if a new query has other columns than the view's table."""
    if current.schema.equals(wanted.schema):
        return
    raise SchemaMismatch(
        f"view {name!r} has the columns {_columns(current)}, and its new query {_differences(current, wanted)}: a "
        "replaced view keeps its columns, their order and their types. List, cast or rename them in the query (a * "
        "stands for all columns of its table), create a view of another name, or drop the view, after those that read "
        "it, and create it again"
    )


def _differences(current: TableSchema, wanted: TableSchema) -> str:
    """Describe the columns of a query that a view does not have so."""
    old, new = ({field.name: field.type for field in table.schema} for table in (current, wanted))
    parts = [f"adds {name} {kind}" for name, kind in new.items() if name not in old]
    parts += [f"lacks {name}" for name in old if name not in new]
    parts += [f"has {name} {new[name]}" for name, kind in old.items() if name in new and new[name] != kind]
    return ", ".join(parts) or f"has them in another order: {', '.join(new)}"


def _columns(table: TableSchema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)
