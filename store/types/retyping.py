"""Change of tables and columns to types of other names, nullability or widths inside, for nested types too.

Arrow's own cast, and its writer of Parquet, fail for a null above a required field if the field's slot is null too. The
arrays that leave this module have no null slot in a required field.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa

from .casting import Unfit, arrow_cast, cast_values, map_entries, relabelled, validity
from .column_types import children, has_required_children

Columns = TypeVar("Columns", pa.Table, pa.RecordBatch)

_T = pa.types


def as_schema(data: Columns, schema: pa.Schema) -> Columns:
    """Return data with the types, names inside of types and nullability of `schema`, which has its columns in its
    order. Raises ArrowInvalid for a value that does not fit.
    """
    if not schema.names:
        return data  # a table built from no columns would have no rows
    columns = [as_type(column, field.type) for column, field in zip(data.columns, schema, strict=True)]
    return type(data).from_arrays(columns, schema=schema)


def as_type(column: Any, target: pa.DataType) -> Any:
    """Return a column (an array, or one in chunks) in this type. Raises ArrowInvalid for a value that does not fit.

    Use it in place of Arrow's cast for any column that may be nested.
    """
    if not children(target):
        return column if column.type.equals(target) else arrow_cast(column, target)
    chunked = isinstance(column, pa.ChunkedArray)
    if not column.type.equals(target, check_metadata=True):
        try:
            column = cast_values(column if chunked else pa.chunked_array([column]), target)
        except Unfit as unfit:
            raise pa.ArrowInvalid(str(unfit)) from None
    if has_required_children(target):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        column = pa.chunked_array([_without_hidden_nulls(chunk) for chunk in chunks], target)
    return column if chunked or isinstance(column, pa.Array) else column.combine_chunks()


def from_parquet(column: Any, target: pa.DataType) -> Any:
    """Return a column of a run file in a table's type. Raises ArrowInvalid for a value that does not fit."""
    if _T.is_fixed_size_list(target) and target.list_size == 0 and isinstance(column, pa.ChunkedArray):
        # Version 0.2 and earlier wrote such a column by Arrow, which gives each list an item that it does not have.
        items = pa.array([], target.value_type)
        chunks = [pa.Array.from_buffers(target, len(c), [validity(c)], children=[items]) for c in column.chunks]
        return pa.chunked_array(chunks, target)
    return as_type(column, target)


def _without_hidden_nulls(values: pa.Array, *, required: bool = False) -> pa.Array:
    """Return the values with no null slot in a required field. Those beneath a null get any value.

    required: do so with the slots of the values themselves.
    """
    kind = values.type
    if _T.is_map(kind):
        return relabelled(_without_hidden_nulls(map_entries(values), required=required), kind)
    if not has_required_children(kind) and not (required and values.null_count):
        return values
    inside, buffers = children(kind), values.buffers()
    if _T.is_struct(kind):
        parts = [_without_hidden_nulls(values.field(i), required=not field.nullable) for i, field in enumerate(inside)]
    elif _T.is_fixed_size_list(kind):
        items = values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size)
        parts = [_without_hidden_nulls(items, required=not inside[0].nullable)]
    else:
        parts = [_without_hidden_nulls(values.values, required=not inside[0].nullable)] if inside else None
        own = [None if required else buffers[0], *buffers[1 : kind.num_buffers]]
        return pa.Array.from_buffers(kind, len(values), own, offset=values.offset, children=parts)
    return pa.Array.from_buffers(kind, len(values), [None if required else validity(values)], children=parts)
