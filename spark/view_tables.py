"""Tables that the queries of a view's plan read, as DataFrames at the barrier of a refresh.

The driver reads few changes itself, small tables, and rows by few primary keys. Their values are then known, so that
other tables are looked up by them in turn. All other rows are read by Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.checkpoint.job.local_context import read_groups
from epochlog.checkpoint.job.row_groups import PRUNED_BY, pruning
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema
from epochlog.views.derivation import Query, ViewPlan
from epochlog.views.local_engine import touched_keys
from epochlog.views.restriction import TOUCHED
from epochlog.views.table_names import CHANGED, EITHER, EMPTY, IS_NEW, NOW, OLD, SIGNED, prefix_of, table_of
from epochlog.views.table_reads import LOOKUP_SHARE, TableRead, choose_lookup, looked_up, table_reads

from .column_names import columns_named
from .refresh_context import BROADCAST_BYTES, SparkRefreshContext
from .types import arrow_schema, spark_schema, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOCAL_ROWS = 50_000
"""Largest number of changes that the driver reads without a Spark job."""
LOCAL_BYTES = 1 << 20
"""Largest size, in memory, of a table that the driver reads whole: a job that reads it takes longer."""
_OLD_IMAGES = ("delete", "update_preimage")


class ViewTables:
    """Tables of a refresh on Spark. A query gets those that it names, with the columns that it reads, and of a table
    that it looks up by known values, the rows with these values alone.
    """

    def __init__(self, ctx: SparkRefreshContext, plan: ViewPlan) -> None:
        self._ctx = ctx
        self.plan = plan
        self.view = ctx.plan.job.name
        self._whole: dict[tuple[str, ...], pa.Table] = {}  # of one query, by prefix, table and columns

    def frames(self, query: Query, known: Mapping[str, pa.Table] | None = None) -> dict[str, DataFrame]:
        """Return the tables of a query by name. known: tables that are no upstreams, with the values of lookups."""
        tables: dict[str, pa.Table] = dict(known or {})
        frames: dict[str, DataFrame] = {}
        pending = table_reads(query, [TOUCHED, *tables])
        self._whole.clear()
        while pending:
            name, values = self._next(pending, tables)
            read = pending.pop(name)
            rows = self._local(read, values, whole=bool(tables))
            if rows is None:
                frames[name] = self._frame(read, values)
            else:
                tables[name] = rows
                frames[name] = self._broadcast(name, rows)
        return frames

    def changed_keys(self, changed: Sequence[str], scope: Sequence[str], output: TableSchema) -> pa.Table | None:
        """Return the touched values that are keys of few changed rows, found without a Spark job; None for others."""
        queries = self.plan.key_queries(changed, scope)
        if queries is None:
            return None
        changes: dict[str, pa.Table] = {}
        for alias, query in queries.items():
            (read,) = table_reads(query).values()
            rows = self._changes(read.table, self._columns(read))
            if rows is None:
                return None
            changes[alias] = rows.drop_columns([CHANGE_TYPE])
        return touched_keys(self.plan, queries, changes, pa.schema([output.schema.field(name) for name in scope]))

    def _next(self, pending: Mapping[str, TableRead], known: Mapping[str, pa.Table]) -> tuple[str, pa.Table | None]:
        """Return the table to load next, with its values: changes, one whose keys are known, a small one, one with
        other known values, any.
        """
        for name in pending:
            if prefix_of(name) in (CHANGED, EMPTY, SIGNED):
                return name, None
        for name, read in pending.items():
            chosen = choose_lookup(read, self._schema(name).primary_key, known)
            if chosen is not None:
                lookup, key = chosen
                values = self._values(known[lookup.source], {column: lookup.columns[column] for column in key}, name)
                if values is not None:
                    return name, values
        for name, read in pending.items():
            if known and self._is_small(self._rows_of(read), read, None):
                return name, None
        for name, read in pending.items():
            for lookup in read.lookups:
                if lookup.source in known:
                    values = self._values(known[lookup.source], lookup.columns, name)
                    if values is not None:
                        return name, values
        return next(iter(pending)), None

    def _values(self, source: pa.Table, columns: Mapping[str, str], name: str) -> pa.Table | None:
        """Return the values of a lookup; None if they are too many for the table's rows, or of another kind."""
        values = source.select(list(columns.values())).rename_columns(list(columns))
        values = looked_up(values, self._schema(name).schema)
        rows = self._ctx.plan.upstream(table_of(name)).current.rows_at_most
        return values if values is not None and values.num_rows <= min(PRUNED_BY, rows // LOOKUP_SHARE) else None

    def _local(self, read: TableRead, values: pa.Table | None, *, whole: bool) -> pa.Table | None:
        """Return the rows that the driver reads; None if they may be too many. whole: it reads small tables."""
        columns = self._columns(read)
        if read.prefix == EMPTY:
            return self._schema(read.name).schema.empty_table().select(columns)
        if read.prefix in (CHANGED, SIGNED):
            changes = self._changes(read.table, columns)
            if changes is None or read.prefix == CHANGED:
                return None if changes is None else changes.drop_columns([CHANGE_TYPE])
            is_new = pc.invert(pc.is_in(changes.column(CHANGE_TYPE), pa.array(_OLD_IMAGES)))
            return changes.drop_columns([CHANGE_TYPE]).append_column(IS_NEW, is_new)
        plan = self._rows_of(read)
        if (values is None and not whole) or not self._is_small(plan, read, values):
            return None
        options = ReadOptions(columns)
        name = (OLD if read.prefix == OLD else NOW, read.table, *columns)
        if values is not None:
            rows = read_groups(self._ctx.files, plan, options, values)
        elif name in self._whole:
            rows = self._whole[name]
        else:
            rows = self._whole[name] = plan.read(self._ctx.files, options)
        if read.prefix != EITHER or not self._ctx.plan.upstream(read.table).changes.rows:
            return rows
        old = self._old_rows(read.table, columns)
        return None if old is None else pa.concat_tables([rows, as_schema(old, rows.schema)])

    def _rows_of(self, read: TableRead) -> ScanPlan:
        upstream = self._ctx.plan.upstream(read.table)
        return upstream.previous if read.prefix == OLD else upstream.current

    def _is_small(self, plan: ScanPlan, read: TableRead, values: pa.Table | None) -> bool:
        """Return True if the driver reads the rows: by few keys, of few bytes by other values, or of a small table."""
        if values is not None and set(values.column_names) == set(plan.table.primary_key):
            return True
        options = ReadOptions(self._columns(read), None if values is None else pruning(values))
        return bytes_to_read(plan, options) < (LOCAL_BYTES if values is None else BROADCAST_BYTES)

    def _changes(self, table: str, columns: Sequence[str]) -> pa.Table | None:
        """Return the changes with their types; None if they are too many for the driver."""
        upstream = self._ctx.plan.upstream(table)
        if upstream.changes.backfill or upstream.changes.rows > LOCAL_ROWS:
            return None
        options = ReadOptions(columns, None, upstream.keys)
        batches = upstream.changes.batches(self._ctx.files, "net", pre_images=True, options=options)
        changes = pa.Table.from_batches(batches, schema=upstream.changes.schema(columns))
        return changes.select([*columns, CHANGE_TYPE])

    def _old_rows(self, table: str, columns: Sequence[str]) -> pa.Table | None:
        changes = self._changes(table, columns)
        if changes is None:
            return None
        return changes.filter(pc.is_in(changes.column(CHANGE_TYPE), pa.array(_OLD_IMAGES))).drop_columns([CHANGE_TYPE])

    def _frame(self, read: TableRead, values: pa.Table | None) -> DataFrame:
        columns, table = self._columns(read), read.table
        if read.prefix == CHANGED:
            return self._ctx.changes(table, pre_images=True, columns=columns).select(*columns_named(columns))
        if read.prefix == SIGNED:
            changes = self._ctx.changes(table, pre_images=True, columns=columns)
            return changes.withColumn(IS_NEW, ~changes[CHANGE_TYPE].isin(*_OLD_IMAGES)).select(
                *columns_named([*columns, IS_NEW])
            )
        at = self._ctx.previous if read.prefix == OLD else self._ctx.table
        rows = at(table, columns=columns, among=values)
        if read.prefix != EITHER or not self._ctx.plan.upstream(table).changes.rows:
            return rows
        old = self._old_rows(table, columns)
        if old is not None:
            return rows.unionByName(self._broadcast(read.name, old))
        changes = self._ctx.changes(table, pre_images=True, columns=columns)
        return rows.unionByName(changes.where(changes[CHANGE_TYPE].isin(*_OLD_IMAGES)).select(*columns_named(columns)))

    def _broadcast(self, name: str, rows: pa.Table) -> DataFrame:
        key = tuple(column for column in self._schema(name).primary_key if column in rows.column_names)
        schema = spark_schema(name, rows.schema, key)
        return self._ctx.spark.createDataFrame(to_spark(name, rows, arrow_schema(schema)), schema).hint("broadcast")

    def _columns(self, read: TableRead) -> list[str]:
        schema = self._schema(read.name)
        return [name for name in schema.schema.names if name in read.columns] or [schema.primary_key[0]]

    def _schema(self, name: str) -> TableSchema:
        return self.plan.schemas[table_of(name)]
