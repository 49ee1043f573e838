"""Check of a view's state against the rows of its upstreams, at the view's newest commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from epochlog.batch.check import pin_newest_commit
from epochlog.batch.differences import OutputCheck, compare
from epochlog.errors import Corrupt
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.state_tables import read_state
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle

from .aggregate_state import FOLDED
from .compiled_plan import CompiledPlan, CompiledQuery
from .derivation import ViewPlan
from .duckdb_engine import rows_of
from .state_changes import handed_on, no_rows, state_change
from .state_step import has_shape, stamp_of
from .state_tables import Layout

_OF_STATE = "it is of the view's state: a step that cannot read it, or view.rebuild(), makes the state anew"
TRIES = 10
"""Attempts to read a state and the upstreams' rows of one commit, while the view goes on."""


def check_state(handle: Handle, job: JobRecord, plan: ViewPlan, sample: int) -> dict[str, OutputCheck]:
    """Compare each state table with the rows that the upstreams' rows give it; nothing for a view without a state.

    Raises InvalidInput for a view on which DuckDB can differ from Spark.
    """
    if plan.state is None:
        return {}
    for _ in range(TRIES):
        epoch, upstreams, outputs = pin_newest_commit(handle, job.id, job.name)
        with upstreams, outputs:
            state = handle.catalog.read(lambda view: read_state(view, job.outputs[0]))
            if state is None or state.without:
                return {}
            if state.epoch == epoch:
                compiled = CompiledPlan(lambda: plan, "duckdb")
                query = compiled.state_rows()
                rows = {name: upstreams[read.table].to_arrow() for name, read in query.reads.items()}
                layouts = compiled.layouts(partial(_schema_of, rows))
                if not layouts or state.stamp != stamp_of(job, compiled, layouts) or not has_shape(state, layouts):
                    return {}
                schemas = [schema for layout in layouts for schema in layout.schemas]
                tables = _tables_of(compiled, layouts, rows_of(query, rows))
                try:
                    kept_rows = [
                        ScanPlan(schema, 0, (), kept.segments).read(handle.files)
                        for schema, kept in zip(schemas, state.tables, strict=True)
                    ]
                except Corrupt as error:
                    raise Corrupt(error.path, f"{error.what}; {_OF_STATE}") from error
                return {
                    f"state {schema.name}": compare(schema, rows_kept, expected, 0.0, sample)
                    for schema, rows_kept, expected in zip(schemas, kept_rows, tables, strict=True)
                }
            if state.epoch < epoch:
                return {}  # a step that left it behind
    return {}


def _schema_of(tables: Mapping[str, pa.Table], query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Schema:
    """Return the columns of a query, which is run over these tables without their rows, and over the known ones."""
    return rows_of(query, {**{name: rows.slice(0, 0) for name, rows in tables.items()}, **known}).schema


def _tables_of(plan: CompiledPlan, layouts: Sequence[Layout], inputs: pa.Table) -> list[pa.Table]:
    """Return the rows of all state tables. inputs: of the first block."""
    tables: list[pa.Table] = []
    for place, layout in enumerate(layouts):
        change = state_change(layout, inputs, [no_rows(schema) for schema in layout.schemas])
        tables += [rows for rows, _ in change.rows(layout)]
        if place + 1 < len(layouts):
            inputs = rows_of(plan.state_from_below(place + 1), {FOLDED: handed_on(layout, change)})
    return tables
