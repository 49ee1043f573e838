"""Conversion of Arrow-shaped data to a table's schema, without loss. Errors name the table and the column."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput, LimitExceeded, SchemaMismatch

from .arrays import ZERO
from .casting import Unfit, cast_values, map_entries
from .column_types import children, fits, has_required_children, parquet_is_narrower
from .pandas_frames import from_frame, from_series, is_frame
from .python_rows import from_keys, from_rows

MAX_KEY_BYTES = 16_384
"""Largest total bytes of the string, binary and fixed-size binary values of one row's key."""
MAX_ROW_BYTES = 64 << 20
"""Largest total bytes of the string, binary and fixed-size binary values of one row."""
MAX_BATCH_BYTES = 2_147_483_647
"""Largest Arrow bytes of one upsert or delete: the range of 32-bit offsets."""

_T = pa.types


def conform_table(
    table: str, data: object, target: pa.Schema, primary_key: Sequence[str], role: str = "data"
) -> pa.Table:
    """Convert `data` to a pa.Table with exactly the schema `target`; see TableSchema.conform."""
    rows = as_table(table, data, target, role)
    _check_names(table, rows, target, role)
    columns = [_conform_column(table, rows, field, field.name in primary_key) for field in target]
    conformed = pa.Table.from_arrays(columns, schema=target)
    _check_sizes(table, conformed, primary_key)
    return conformed


def as_table(table: str, data: Any, target: pa.Schema, role: str = "data") -> pa.Table:
    """Convert `data` to a pa.Table of its own types: Arrow-shaped data, a list of dicts, or keys as scalars."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if is_frame(data):
        return from_frame(table, data, target)
    rows = from_rows(table, data, target)
    if rows is None and role == "keys":
        rows = _keys_of_arrays(table, data, target)
    if rows is None and role == "keys":
        rows = from_keys(table, data, target)
    if rows is not None:
        return rows
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            return pa.table(data)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(f"table {table}: the data cannot be read as Arrow: {error}") from error
    raise InvalidInput(
        f"table {table}: {type(data).__name__} is not tabular; pass a pyarrow Table, RecordBatch or RecordBatchReader, "
        "a pandas or polars DataFrame, a list of dicts, or an object with __arrow_c_stream__"
        + "; or keys as scalars or tuples"
        * (role == "keys")
    )


def _keys_of_arrays(table: str, data: Any, target: pa.Schema) -> pa.Table | None:
    """Convert a numpy array, or a pandas series or index, to keys of one column; None for other data."""
    pandas = sys.modules.get("pandas")
    kinds = (np.ndarray,) if pandas is None else (np.ndarray, pandas.Series, pandas.Index)
    if len(target) != 1 or not isinstance(data, kinds) or data.ndim != 1:
        return None
    return pa.table({target.names[0]: from_series(table, target.names[0], data, target.field(0))})


def _check_names(table: str, rows: pa.Table, target: pa.Schema, role: str) -> None:
    names = rows.column_names
    if names == target.names:
        return
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicates:
        raise SchemaMismatch(f"table {table}: column {duplicates[0]!r} occurs twice in the {role}")
    target_names = set(target.names)
    unknown = [name for name in names if name not in target_names]
    if unknown:
        raise SchemaMismatch(
            f"table {table}: unknown column {_quote_names(unknown)} in the {role}; "
            f"the columns are {_quote_names(target.names)}"
        )
    present = set(names)
    missing = [name for name in target.names if name not in present]
    if missing:
        raise SchemaMismatch(f"table {table}: column {_quote_names(missing)} is missing from the {role}")


def _quote_names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _conform_column(table: str, rows: pa.Table, field: pa.Field, is_key: bool) -> pa.ChunkedArray:
    column = rows.column(field.name)
    if not column.type.equals(field.type):
        column = cast_column(table, column, field)
    if not field.nullable and column.null_count:
        kind = "primary-key" if is_key else "non-nullable"
        first = pc.index(pc.is_null(column), True).as_py()
        raise SchemaMismatch(
            f"table {table}, {kind} column {field.name!r}: {column.null_count} of its values are null, the first in "
            f"row {first}; leave these rows out, or give them a value"
        )
    if has_required_children(field.type) and any(_has_forbidden_nulls(chunk) for chunk in column.chunks):
        raise SchemaMismatch(f"table {table}, column {field.name!r}: nulls where {field.type} allows none")
    _check_valid(table, column, field)
    if parquet_is_narrower(field.type):
        _check_storable(table, column.chunks, field)
    return canonical_floats(column) if is_key and _T.is_floating(field.type) else column


def _check_valid(table: str, column: pa.ChunkedArray, field: pa.Field) -> None:
    """Raise SchemaMismatch for values that no reader could decode: strings that are not UTF-8, invalid offsets."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(f"table {table}, column {field.name!r}: its values are not valid: {error}") from error


def cast_column(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Cast the column to the table's type. SchemaMismatch names the type, or the row, that does not fit."""
    column_label = f"table {table}, column {field.name!r}"
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(chunks, column.type.storage_type)
    if not fits(column.type, field.type):
        raise SchemaMismatch(f"{column_label}: type {column.type} does not fit {field.type}; cast it first")
    try:
        return cast_values(column, field.type)
    except Unfit as unfit:
        raise SchemaMismatch(f"{column_label}, {unfit}") from None


def _has_forbidden_nulls(array: pa.Array) -> bool:
    """Return True if a non-nullable field inside a nested type has a null. Nulls below a null parent are allowed."""
    return any(
        (not field.nullable and part.null_count > 0) or _has_forbidden_nulls(part)
        for field, part in _child_values(array)
    )


def _child_values(array: pa.Array) -> list[tuple[pa.Field, pa.Array]]:
    """Return the fields of a nested type, each with its values; values beneath a null are left out."""
    kind = array.type
    if _T.is_struct(kind):
        parts = [pc.struct_field(array.drop_null(), [i]) for i in range(kind.num_fields)]
    elif _T.is_map(kind):
        valid = array.drop_null()
        items = pc.list_flatten(map_entries(valid))
        parts = [pc.struct_field(items, [0]), pc.struct_field(items, [1])]
    elif children(kind):
        parts = [pc.list_flatten(array.drop_null())]
    else:
        return []
    return list(zip(children(kind), parts, strict=True))


def _check_storable(table: str, chunks: Sequence[pa.Array], field: pa.Field) -> None:
    """Raise SchemaMismatch for values outside of Parquet's range: it has no timestamps in seconds, and only whole
    days as dates.
    """
    for chunk in chunks:
        kind = chunk.type
        try:
            if _T.is_timestamp(kind) and kind.unit == "s":
                chunk.cast(pa.timestamp("ms", kind.tz), safe=True)
            elif _T.is_date64(kind):
                chunk.cast(pa.date32(), safe=True)
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(f"table {table}, column {field.name!r}: {error}") from error
        _check_storable(table, [part for _, part in _child_values(chunk)], field)


def canonical_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace -0.0 by 0.0 and every NaN by one bit pattern in null-free floats: equal keys have equal bytes."""

    def canonical(chunk: pa.Array) -> pa.Array:
        values = chunk.to_numpy(zero_copy_only=False)
        return pa.array(
            np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0)), chunk.type
        )

    return pa.chunked_array([canonical(chunk) for chunk in column.chunks], column.type)


def _check_sizes(table: str, conformed: pa.Table, primary_key: Sequence[str]) -> None:
    size = conformed.nbytes
    if size > MAX_BATCH_BYTES:
        raise LimitExceeded(
            f"table {table}: {size} bytes in one batch are more than {MAX_BATCH_BYTES}; write several smaller batches"
        )
    longest = _longest_row_bytes(conformed, primary_key)
    if longest > MAX_KEY_BYTES:
        raise LimitExceeded(
            f"table {table}, primary key {_quote_names(primary_key)}: a key of {longest} bytes is larger than "
            f"{MAX_KEY_BYTES}; shorten it"
        )
    if size > MAX_ROW_BYTES and (longest := _longest_row_bytes(conformed, conformed.column_names)) > MAX_ROW_BYTES:
        raise LimitExceeded(
            f"table {table}: a row of {longest} bytes is larger than {MAX_ROW_BYTES}; store large values in files of "
            "their own, and the names of these files in the table"
        )


def _longest_row_bytes(conformed: pa.Table, names: Sequence[str]) -> int:
    """Return the largest total of bytes of one row in the string and binary values of these columns."""
    total: Any = None
    fixed = 0
    for name in names:
        column = conformed.column(name)
        if _T.is_fixed_size_binary(column.type):
            fixed += column.type.byte_width
        if children(column.type) or not (
            _T.is_binary(column.type) or _T.is_string(column.type) or _is_large(column.type)
        ):
            continue
        lengths = pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), ZERO)
        total = lengths if total is None else pc.add(total, lengths)
    return fixed + (0 if total is None else pc.max(total).as_py() or 0)


def _is_large(kind: pa.DataType) -> bool:
    return _T.is_large_string(kind) or _T.is_large_binary(kind)
