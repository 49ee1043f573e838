"""Check of a view's state against the rows of its upstreams, at the view's newest commit."""

from __future__ import annotations

from epochlog.batch.check import pin_newest_commit
from epochlog.batch.differences import OutputCheck, compare
from epochlog.errors import Corrupt
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.state_tables import read_state
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle

from .compiled_plan import CompiledPlan
from .derivation import ViewPlan
from .duckdb_engine import rows_of
from .state_changes import no_rows, state_change
from .state_step import stamp_of

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
                inputs = rows_of(query, rows)
                layout = compiled.layout(lambda schema=inputs.schema: schema)
                if layout is None or state.stamp != stamp_of(job, compiled, layout):
                    return {}
                tables = state_change(layout, inputs, [no_rows(schema) for schema in layout.schemas]).rows(layout)
                try:
                    kept_rows = [
                        ScanPlan(schema, 0, (), kept.segments).read(handle.files)
                        for schema, kept in zip(layout.schemas, state.tables, strict=True)
                    ]
                except Corrupt as error:
                    raise Corrupt(error.path, f"{error.what}; {_OF_STATE}") from error
                return {
                    f"state {schema.name}": compare(schema, rows_kept, expected, 0.0, sample)
                    for schema, rows_kept, (expected, _) in zip(layout.schemas, kept_rows, tables, strict=True)
                }
            if state.epoch < epoch:
                return {}  # a step that left it behind
    return {}
