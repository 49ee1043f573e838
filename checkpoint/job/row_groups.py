"""Groups of rows, told apart by the values of some columns: the distinct ones, and which rows belong to given ones.

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
"""Groups of which a filter is made, that the store may leave out what it rules out; more would take as long to test."""


def group_columns(table: str, schema: pa.Schema, by: str | Sequence[str], *, least: int = 0) -> list[str]:
    """Return the columns that tell groups apart, checked: one name, or a list of `least` different ones."""
    names = [by] if isinstance(by, str) else by
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names) or len(names) < least:
        raise InvalidInput(f"groups of table {table!r} are told apart by names of columns, not by {by!r}")
    unknown = [name for name in names if name not in schema.names]
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
    """Return True if all columns are of the primary key: each change has them (deletes too), no update alters them."""
    return set(columns) <= set(schema.primary_key)


def distinct(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the groups of the rows, each once."""
    found = rows.select(list(columns))
    return found.group_by(list(columns)).aggregate([]).select(list(columns)).cast(found.schema)


def as_groups(schema: TableSchema, given: object) -> pa.Table:
    """Convert groups that a user gives (a table of columns of the table, or a list of dicts) to the table's types."""
    if isinstance(given, list) and given and isinstance(given[0], Mapping):
        names: Sequence[str] = list(given[0])
    else:
        names = getattr(given, "column_names", None) or list(getattr(given, "columns", ()))
    if not names:
        raise no_groups(schema.name, given)
    return groups_of(schema, given, group_columns(schema.name, schema.schema, names, least=1))


def no_groups(table: str, given: object) -> InvalidInput:
    """Make the error for groups that are given in a form without columns."""
    return InvalidInput(
        f"groups of table {table!r} are given as ctx.touched gives them, a table of columns of it, not as {given!r}"
    )


def groups_of(schema: TableSchema, given: object, columns: Sequence[str]) -> pa.Table:
    """Return the groups of these columns, in the table's types. SchemaMismatch names a column that does not fit."""
    wanted = pa.schema([schema.schema.field(name).with_nullable(True) for name in columns])
    return conform_table(schema.name, given, wanted, (), role="groups")


def require_touched(table: str, rows: pa.Table, groups: pa.Table) -> None:
    """Raise InvalidInput if a row belongs to none of the groups."""
    strange = np.flatnonzero(~belonging(rows, groups))
    if len(strange):
        raise not_touched(table, rows.select(groups.column_names).slice(strange[0], 1).to_pylist()[0])


def not_touched(table: str, group: object) -> InvalidInput:
    """Make the error for new rows of a group that no change has touched."""
    return InvalidInput(
        f"recompute({table!r}) was given rows of the group {group}, which is not among the touched ones. Either "
        "`touched` lacks it, or rows are to be made of touched groups only: ctx.table(…, among=touched) reads no others"
    )


def require_each_once(schema: TableSchema, rows: pa.Table) -> None:
    """Raise InvalidInput when two of the rows, which are the table's in its types, have one primary key."""
    keys = KeyCodec(schema.schema, schema.primary_key).encode(rows)
    order = sort_indices(keys)
    repeated = order[~last_of_each(keys.take(pa.array(order)))]
    if len(repeated):
        raise several_rows(schema.name, rows.select(schema.primary_key).slice(repeated[0], 1).to_pylist()[0])


def several_rows(table: str, key: object) -> InvalidInput:
    """Make the error for new rows of which several have one key."""
    return InvalidInput(
        f"recompute({table!r}) was given several rows with the key {key}; `from_` has each key once: group by the key, "
        "or choose one of its rows"
    )


def belonging(rows: pa.Table, groups: pa.Table) -> np.ndarray:
    """Return bool[rows]: True for rows of one of the groups. Both have the columns of `groups`, of equal types."""
    count = rows.num_rows
    theirs, known = np.zeros(count, np.int64), np.zeros(groups.num_rows, np.int64)
    found = np.full(count, groups.num_rows > 0)
    for name in groups.column_names:
        values = _comparable(groups.column(name))
        each = pc.unique(values)
        theirs = theirs * len(each) + _places(_comparable(rows.column(name)), each, found)
        known = known * len(each) + _places(values, each)
        # numbered anew after each column: a product of two numbers of groups always fits
        numbers = pa.array(np.unique(known))
        theirs, known = _places(pa.array(theirs), numbers, found), _places(pa.array(known), numbers)
    return found


def pruning(groups: pa.Table) -> pc.Expression | None:
    """Return a filter that all rows of the groups pass, or None. With one column no other row passes it."""
    names = [name for name in groups.column_names if not _is_compared_otherwise(groups.schema.field(name).type)]
    if not names or groups.num_rows > PRUNED_BY:
        return None
    return reduce(and_, (_one_of(name, groups.column(name)) for name in names))


def _one_of(name: str, column: pa.ChunkedArray) -> pc.Expression:
    values = pc.unique(column.drop_null())
    among = pc.field(name).isin(values.take(pc.sort_indices(values)))
    return among | pc.field(name).is_null() if column.null_count else among


def _places(values: pa.Array | pa.ChunkedArray, each: pa.Array, found: np.ndarray | None = None) -> np.ndarray:
    """Return int64[values]: the place of each among `each`; 0 where it has none, and then `found` becomes False."""
    places = pc.index_in(values, value_set=each)
    if found is not None:
        found &= places.is_valid().to_numpy(zero_copy_only=False)
    places = pc.fill_null(places, 0).to_numpy(zero_copy_only=False)
    return places.astype(np.int64)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return the column with one value for all that are equal: floats have two zeros, and many NaNs."""
    if _T.is_floating(column.type):
        wide = pc.add(column.cast(pa.float64()), 0.0)
        return pc.if_else(pc.is_nan(wide), pa.scalar(float("nan")), wide)
    if _T.is_decimal32(column.type) or _T.is_decimal64(column.type):  # Arrow cannot look these up
        return column.cast(pa.decimal128(38, column.type.scale))
    return column


def _is_compared_otherwise(kind: pa.DataType) -> bool:
    """Return True if groups compare the type's values in a canonical form, so that a plain filter could lose rows."""
    return _T.is_floating(kind) or _T.is_decimal32(kind) or _T.is_decimal64(kind)
