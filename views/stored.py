"""Plans of stored views, derived from the definitions on their jobs' records."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.view_ddl import require_view
from epochlog.errors import InvalidInput, UnsupportedFormat
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import DERIVATION, JobRecord, TableDef, ViewDefinition
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import get_table
from epochlog.store.metadata.state_tables import ViewState, read_state
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from . import syntax
from .chunks import explain_chunks
from .compiled_plan import CompiledPlan, Dialect
from .derivation import ViewPlan, derive
from .duckdb_functions import duckdb_text, require_local
from .table_names import table_of


def view_plan(handle: Handle, job: JobRecord) -> ViewPlan:
    """Derive the plan of a view from its record. Raises InvalidInput for a job that is no view."""
    definition = require_view(job)
    upstreams, output = _tables(handle, job)
    return _derive(
        job.name, definition, tuple(job_columns(job, table) for table in upstreams), output.schema.primary_key
    )


def explain(handle: Handle, job: JobRecord) -> str:
    """Describe the refresh of a view, and its backfill. Raises InvalidInput for a job that is no view."""
    plan, (_, output) = view_plan(handle, job), _tables(handle, job)
    parts = [plan.explain(), explain_chunks(plan, output.schema)]
    if plan.state is not None:
        state = handle.catalog.read(lambda view: read_state(view, output.id))
        is_known = state is not None and (state.without or state.epoch == job.position)
        parts.append(_describe_state(state if is_known else None))
    return "\n".join(parts)


def _describe_state(state: ViewState | None) -> str:
    """Describe the state of a view's newest commit; None: it has none."""
    if state is None:
        return "state: none at the newest commit; a step makes it of all rows"
    if state.without:
        return f"state: none until the view is rebuilt, because {state.without}"
    tables = ", ".join(f"{table.schema.name} at most {table.rows_at_most:,} rows" for table in state.tables)
    return f"state: {tables}; {sum(table.bytes for table in state.tables):,} bytes"


def plan_to_check(handle: Handle, job: JobRecord) -> ViewPlan:
    """Return the plan of a view whose rows its query has made. Raises InvalidInput before the commit of a new query."""
    if job.replacing:
        raise InvalidInput(
            f"view {job.name!r} has a new query or a requested rebuild that it has not committed yet: step it, then "
            "check it"
        )
    return view_plan(handle, job)


def _tables(handle: Handle, job: JobRecord) -> tuple[list[TableDef], TableDef]:
    """Return the upstreams of a view, and its output."""

    def tables(view: ReadTxn) -> tuple[list[TableDef], TableDef]:
        upstreams = [get_table(view, table, f"upstream of {job.name}") for table in job.upstreams]
        return upstreams, get_table(view, job.outputs[0], f"output of {job.name}")

    return handle.catalog.read(tables)


def plan_of(ctx: RefreshContext[Any, Any, Any], dialect: Dialect) -> tuple[str, CompiledPlan]:
    """Return the output of a refresh, and the plan of the definition that its barrier was recorded with."""
    job = ctx.plan.job
    upstreams = tuple(upstream.table.schema for upstream in ctx.plan.upstreams.values())
    ((output, target),) = ctx.plan.outputs.items()
    return output, compiled(dialect, job.name, require_view(job), upstreams, target.table.schema.primary_key)


def check_query(plan: ViewPlan) -> str:
    """Return the view's query in DuckDB's dialect, over tables of their own names.

    Raises InvalidInput for a query on which DuckDB and Spark can differ: DuckDB is no judge of its rows.
    """
    require_local(plan.form.query, plan.form.occurrences, plan.schemas)
    return duckdb_text(syntax.with_names(plan.query(), table_of), plan.form.occurrences, plan.schemas)


@lru_cache(maxsize=4096)
def compiled(
    dialect: Dialect,
    name: str,
    definition: ViewDefinition,
    upstreams: tuple[TableSchema, ...],
    primary_key: tuple[str, ...],
) -> CompiledPlan:
    return CompiledPlan(partial(_derive, name, definition, upstreams, primary_key), dialect)


@lru_cache(maxsize=256)
def _derive(
    name: str, definition: ViewDefinition, upstreams: tuple[TableSchema, ...], primary_key: tuple[str, ...]
) -> ViewPlan:
    if definition.derivation > DERIVATION:
        raise UnsupportedFormat(
            f"view {name!r} was made by derivation {definition.derivation}, newer than {DERIVATION}: upgrade epochlog"
        )
    return derive(definition.sql, {table.name: table for table in upstreams}, primary_key, definition.refresh)
