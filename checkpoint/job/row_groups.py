"""Groups of rows with equal values in some columns: distinct groups, membership and filters.

A group is a row of a table of exactly these columns. Null is a value like others, NaN equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput
from epochlog.store.types.coerce import conform_table
from epochlog.store.types.column_types import children
from epochlog.store.types.key_codec import KeyCodec, last_of_each, sort_indices
from epochlog.store.types.schema import TableSchema

_T = pa.types
PRUNED_BY = 10_000
"""Most groups for which a pruning filter is built; with more groups the filter costs as much as it saves."""


def group_columns(table: str, schema: pa.Schema, by: str | Sequence[str], *, least: int = 0) -> list[str]:
    """Check the columns to group by, one name or a list of at least `least` different ones; return them as a list."""
    names = [by] if isinstance(by, str) else by
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names) or len(names) < least:
        raise InvalidInput(f"table {table!r} is grouped by column names, a string or a list of strings, not by {by!r}")
    known = set(schema.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"table {table!r} has no column {unknown[0]!r} to group by; it has {schema.names}")
    if len(set(names)) < len(names):
        raise InvalidInput(f"table {table!r}: a column to group by is named twice in {list(names)}")
    nested = [name for name in names if children(schema.field(name).type)]
    if nested:
        raise InvalidInput(
            f"table {table!r} cannot be grouped by {nested[0]!r}: it is of type {schema.field(nested[0]).type}; group "
            "by columns of single values"
        )
    return list(names)


def is_key(schema: TableSchema, columns: Sequence[str]) -> bool:
    """Return True if all columns are of the primary key.

    Then every change has them, deletes too, and no update alters them.
    """
    return set(columns) <= set(schema.primary_key)


def distinct(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the distinct groups of the rows."""
    selected = rows.select(list(columns))
    fields = [pc.field(name) for name in columns]  # Arrow takes a text that begins with a dot for a path.
    return selected.group_by(fields).aggregate([]).select(list(columns)).cast(selected.schema)


def as_groups(schema: TableSchema, groups: object) -> pa.Table:
    """Convert a user's groups (a table of columns of the table, or a list of dicts) to the table's types."""
    if isinstance(groups, list) and groups and isinstance(groups[0], Mapping):
        names: Sequence[str] = list(groups[0])
    else:
        names = getattr(groups, "column_names", None) or list(getattr(groups, "columns", ()))
    if not names:
        raise no_groups(schema.name, groups)
    return groups_of(schema, groups, group_columns(schema.name, schema.schema, names, least=1))


def no_groups(table: str, groups: object) -> InvalidInput:
    """Build the error for groups of a type without columns."""
    return InvalidInput(
        f"groups of table {table!r} are a table of some of its columns, as ctx.touched returns it, not {groups!r}"
    )


def groups_of(schema: TableSchema, groups: object, columns: Sequence[str]) -> pa.Table:
    """Return the groups of these columns, in the table's types. Raises SchemaMismatch, which names the column."""
    wanted = pa.schema([schema.schema.field(name).with_nullable(True) for name in columns])
    return conform_table(schema.name, groups, wanted, (), role="groups")


def require_touched(table: str, rows: pa.Table, groups: pa.Table) -> None:
    """Raise InvalidInput if a row belongs to none of the groups."""
    untouched = np.flatnonzero(~belonging(rows, groups))
    if len(untouched):
        raise not_touched(table, rows.select(groups.column_names).slice(untouched[0], 1).to_pylist()[0])


def not_touched(table: str, group: object) -> InvalidInput:
    """Build the error for new rows of a group that no change has touched."""
    return InvalidInput(
        f"recompute({table!r}) was given rows of the group {group}, which is not among the touched ones. Add it to "
        "`touched`, or compute rows of touched groups only: ctx.table(…, among=touched) reads no others"
    )


def require_each_once(schema: TableSchema, rows: pa.Table, *, of_view: bool = False) -> None:
    """Raise InvalidInput if two of the rows have one primary key. The rows have the table's types."""
    keys = KeyCodec(schema.schema, schema.primary_key).encode(rows)
    order = sort_indices(keys)
    repeated = order[~last_of_each(keys.take(pa.array(order)))]
    if len(repeated):
        raise several_rows(
            schema.name, rows.select(schema.primary_key).slice(repeated[0], 1).to_pylist()[0], of_view=of_view
        )


def several_rows(table: str, key: object, *, of_view: bool = False) -> InvalidInput:
    """Build the error for several new rows with one key, which a refresh or the query of a view gives."""
    if of_view:
        return InvalidInput(
            f"view {table!r}: its query has several rows with the key {key}; mend the rows that it reads, or replace "
            "the query by one with each key once: group by the key, or choose one of its rows"
        )
    return InvalidInput(
        f"recompute({table!r}) was given several rows with the key {key}; `from_` must have each key once: group by "
        "the key, or choose one of its rows"
    )


def belonging(rows: pa.Table, groups: pa.Table) -> np.ndarray:
    """Return bool[rows]: True for rows of one of the groups. Both have the columns of `groups`, of equal types."""
    count = rows.num_rows
    row_numbers, group_numbers = np.zeros(count, np.int64), np.zeros(groups.num_rows, np.int64)
    matches = np.full(count, groups.num_rows > 0)
    for name in groups.column_names:
        values = _comparable(groups.column(name))
        distinct_values = pc.unique(values)
        row_numbers = row_numbers * len(distinct_values) + _places(
            _comparable(rows.column(name)), distinct_values, matches
        )
        group_numbers = group_numbers * len(distinct_values) + _places(values, distinct_values)
        # Renumbered densely after each column, so that the next product fits into int64.
        numbers = pa.array(np.unique(group_numbers))
        row_numbers = _places(pa.array(row_numbers), numbers, matches)
        group_numbers = _places(pa.array(group_numbers), numbers)
    return matches


def pruning(groups: pa.Table) -> pc.Expression | None:
    """Return a filter that all rows of the groups pass, or None. With one column, no other row passes it."""
    names = [name for name in groups.column_names if not _is_compared_otherwise(groups.schema.field(name).type)]
    if not names or groups.num_rows > PRUNED_BY:
        return None
    return reduce(and_, (_in_filter(name, groups.column(name)) for name in names))


def _in_filter(name: str, column: pa.ChunkedArray) -> pc.Expression:
    values = pc.unique(column.drop_null())
    among = pc.field(name).isin(values.take(pc.sort_indices(values)))
    return among | pc.field(name).is_null() if column.null_count else among


def _places(values: pa.Array | pa.ChunkedArray, candidates: pa.Array, matches: np.ndarray | None = None) -> np.ndarray:
    """Return int64[values]: the index of each value in `candidates`.

    A value that is not in `candidates` gets index 0 and sets its element of `matches` to False.
    """
    places = pc.index_in(values, value_set=candidates)
    if matches is not None:
        matches &= places.is_valid().to_numpy(zero_copy_only=False)
    places = pc.fill_null(places, 0).to_numpy(zero_copy_only=False)
    return places.astype(np.int64)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Convert the column to canonical values: one zero and one NaN for floats."""
    if _T.is_floating(column.type):
        wide = pc.add(column.cast(pa.float64()), 0.0)
        return pc.if_else(pc.is_nan(wide), pa.scalar(float("nan")), wide)
    if _T.is_decimal32(column.type) or _T.is_decimal64(column.type):  # Arrow has no index_in for these
        return column.cast(pa.decimal128(38, column.type.scale))
    return column


def _is_compared_otherwise(kind: pa.DataType) -> bool:
    """Return True if groups compare the type's values in a canonical form, so that a plain filter could lose rows."""
    return _T.is_floating(kind) or _T.is_decimal32(kind) or _T.is_decimal64(kind)
