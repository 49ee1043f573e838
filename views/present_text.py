"""Text of a stored view as it can be given now. Views without renamed columns need no parser for it."""

from __future__ import annotations

from epochlog.checkpoint.job.view_ddl import require_view
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import get_table


def present_text(view: ReadTxn, job: JobRecord) -> str:
    """Return a view's query as it was given, or in the present names of columns that were renamed since then.

    Raises InvalidInput for a job that is no view.
    """
    definition = require_view(job)
    upstreams = [get_table(view, table, f"upstream of {job.name}") for table in job.upstreams]
    then = {table.name: job_columns(job, table) for table in upstreams}
    if all(then[table.name].version == table.schema.version for table in upstreams):
        return definition.sql
    from .renamed_columns import text_now

    return text_now(definition.sql, then, {table.name: table.schema for table in upstreams})
