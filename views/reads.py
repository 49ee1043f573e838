"""Tables of the queries of a view's plan, bound to their rows at the barrier of a refresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.checkpoint.job.local_context import read_changes, read_groups
from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema

from .compiled_plan import CompiledPlan, CompiledQuery
from .table_names import CHANGED, EITHER, EMPTY, IS_NEW, NOW, OLD, SIGNED
from .table_reads import LOOKUP_SHARE, TableRead, choose_lookup, looked_up

Images = Literal["all", "old", "signed"]
"""Images of a table's changed rows: old and new ones, old ones, or old and new ones with the column IS_NEW."""
OLD_IMAGES = ("delete", "update_preimage")
R = TypeVar("R")
"""Rows that are not in this process."""


def rows_for(read: TableRead, changes: Callable[[Images], R], at: Callable[[str], R], union: Callable[[R, R], R]) -> R:
    """Return the rows that a table of a query has, by the prefix of its name.

    changes: returns images of the barrier's changes. at: returns the rows at NOW or OLD, or none for EMPTY.
    """
    if read.prefix in (CHANGED, SIGNED):
        return changes("all" if read.prefix == CHANGED else "signed")
    return union(at(NOW), changes("old")) if read.prefix == EITHER else at(read.prefix)


class Reads(Generic[R]):
    """Tables at the barrier of a refresh. A query gets those that it names, with the columns that it reads, and of a
    table that it looks up by values that this process has, the rows with these values alone.

    This process reads all rows. A subclass leaves some to the tasks of its engine.
    """

    def __init__(self, ctx: RefreshContext[Any, Any, Any], plan: CompiledPlan) -> None:
        self._ctx = ctx
        self._plan = plan
        self._known: dict[str, pa.Table] = {}  # of one query, the tables that this process has
        self._whole: dict[tuple[str, ...], pa.Table] = {}  # of one query, by instant, table and columns

    def of(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> dict[str, pa.Table | R]:
        """Return the tables of a query by name. known: those that are no upstreams."""
        self._known, self._whole = dict(known or {}), {}
        tables: dict[str, pa.Table | R] = dict(self._known)
        pending = dict(query.reads)
        while pending:
            name, values = self._next(pending)
            read = pending.pop(name)
            rows = rows_for(
                read, partial(self.changes, read), partial(self.at, read, values), partial(self.union, read)
            )
            tables[name] = rows
            if isinstance(rows, pa.Table):
                self._known[name] = rows
        return tables

    def changed_keys(self, changed: Sequence[str], scope: Sequence[str], types: pa.Schema) -> pa.Table | None:
        """Return the touched values that are keys of few changed rows, if that is shorter than a query; else None."""
        del changed, scope, types

    def fits(self, query: CompiledQuery) -> bool:
        """Return True if this step may read all rows of the query's tables."""
        del query
        return True

    def changes(self, read: TableRead, images: Images) -> pa.Table | R:
        columns = self.columns(read)
        rows = read_changes(self._ctx.files, self._ctx.plan.upstream(read.table), columns)
        is_old = pc.is_in(rows.column(CHANGE_TYPE), pa.array(OLD_IMAGES))
        rows = rows.select(columns)
        if images == "old":
            return rows.filter(is_old)
        return rows.append_column(IS_NEW, pc.invert(is_old)) if images == "signed" else rows

    def at(self, read: TableRead, values: pa.Table | None, instant: str) -> pa.Table | R:
        """Return the rows at an instant: NOW, OLD or EMPTY. values: of a lookup. In a backfill chunk, they are those of
        the chunk.
        """
        columns, name = self.columns(read), (instant, read.table)
        if instant == EMPTY:
            return self.schema(read).schema.empty_table().select(columns)
        if self.keys(read) != ALL_KEYS:
            return self.scan(read).read(self._ctx.files, ReadOptions(columns, None, self.keys(read)))
        if values is not None:
            return read_groups(self._ctx.files, self.scan(read), ReadOptions(columns), values)
        rows = self._whole.get((*name, *columns))
        if rows is None:
            rows = self._whole[*name, *columns] = self.scan(read).read(self._ctx.files, ReadOptions(columns))
        return rows

    def union(self, read: TableRead, rows: Any, more: Any) -> pa.Table | R:
        """Return the rows, and more of them."""
        del read
        return pa.concat_tables([rows, as_schema(more, rows.schema)])

    def is_local(self, read: TableRead, values: pa.Table | None = None) -> bool:
        """Return True if this process reads the rows, all or those with these values."""
        del read, values
        return True

    def values(self, read: TableRead, source: pa.Table, columns: Mapping[str, str]) -> pa.Table | None:
        """Return the values of a lookup; None if they are too many for the table's rows, or of another kind."""
        values = source.select(list(columns.values())).rename_columns(list(columns))
        values = looked_up(values, self.schema(read).schema)
        most = self._ctx.plan.upstream(read.table).current.rows_at_most // LOOKUP_SHARE
        return values if values is not None and values.num_rows <= most else None

    def _next(self, pending: Mapping[str, TableRead]) -> tuple[str, pa.Table | None]:
        """Return the table to bind next, with the values to look up: changes, one whose keys are known, one that this
        process reads whole, one with other known values, any.
        """
        for name, read in pending.items():
            if read.prefix in (CHANGED, EMPTY, SIGNED):
                return name, None
        for name, read in pending.items():
            chosen = choose_lookup(read, self.schema(read).primary_key, self._known)
            if chosen is not None:
                lookup, key = chosen
                columns = {column: lookup.columns[column] for column in key}
                values = self.values(read, self._known[lookup.source], columns)
                if values is not None or self.is_local(read):
                    return name, values
        for name, read in pending.items():
            if self.is_local(read):
                return name, None
        for name, read in pending.items():
            for lookup in read.lookups:
                if lookup.source in self._known:
                    values = self.values(read, self._known[lookup.source], lookup.columns)
                    if values is not None:
                        return name, values
        return next(iter(pending)), None

    def scan(self, read: TableRead) -> ScanPlan:
        upstream = self._ctx.plan.upstream(read.table)
        return upstream.previous if read.prefix == OLD else upstream.current

    def keys(self, read: TableRead) -> KeyRange:
        """Return the keys of the rows that this refresh takes in."""
        return self._ctx.plan.upstream(read.table).keys

    def columns(self, read: TableRead) -> list[str]:
        schema = self.schema(read)
        return [name for name in schema.schema.names if name in read.columns] or [schema.primary_key[0]]

    def schema(self, read: TableRead) -> TableSchema:
        return self._plan.schemas[read.table]
