"""Text of a stored view as it can be given now. Views without renamed columns need no parser for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from epochlog.checkpoint.job.view_ddl import require_view
from epochlog.errors import EpochlogError
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import get_table
from epochlog.store.types.schema import TableSchema


def present_text(view: ReadTxn, job: JobRecord) -> str | None:
    """Return a view's query as it was given, or in the present names of columns that were renamed since then; None for
    a job that is no view.

    An installation that cannot parse the query, for want of sqlglot or of a newer version, has it as it was given.
    """
    if job.view is None:
        return None
    then, now = _upstreams(view, job)
    if _versions(then) == _versions(now):
        return job.view.sql
    try:
        return _text_now(job.view.sql, tuple(then), tuple(now))
    except (EpochlogError, ImportError):
        return job.view.sql


def has_query(view: ReadTxn, job: JobRecord, sql: str) -> bool:
    """Return True if a text, given now, is the query of a view: the text of the view, if no column that it reads was
    renamed, or one with the same normal form.

    Raises InvalidInput for a job that is no view, and for a text that cannot be given now.
    """
    definition = require_view(job)
    then, now = _upstreams(view, job)
    if sql == definition.sql and not any(map(_is_renamed, then, now)):
        return True
    from .renamed_columns import is_text_of

    return is_text_of(sql, definition.sql, _by_name(then), _by_name(now))


def _upstreams(view: ReadTxn, job: JobRecord) -> tuple[list[TableSchema], list[TableSchema]]:
    """Return the columns that a view reads of its upstreams, and the present ones of these tables."""
    tables = [get_table(view, table, f"upstream of {job.name}") for table in job.upstreams]
    return [job_columns(job, table) for table in tables], [table.schema for table in tables]


def _versions(tables: Sequence[TableSchema]) -> list[int]:
    return [table.version for table in tables]


def _is_renamed(then: TableSchema, now: TableSchema) -> bool:
    """Return True if a column that a view reads has another name now."""
    present = dict(zip(now.ids, now.schema.names, strict=True))
    return any(present.get(id_) != name for id_, name in zip(then.ids, then.schema.names, strict=True))


def _by_name(tables: Sequence[TableSchema]) -> Mapping[str, TableSchema]:
    return {table.name: table for table in tables}


@lru_cache(maxsize=256)
def _text_now(sql: str, then: tuple[TableSchema, ...], now: tuple[TableSchema, ...]) -> str:
    from .renamed_columns import text_now

    return text_now(sql, _by_name(then), _by_name(now))
