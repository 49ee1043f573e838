"""Exact casts of columns to a table's types. The error names the row of a value that would change."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .column_types import children, same_layout

_T = pa.types
_DIGITS_OF_INTEGERS = 20
"""Decimal digits that hold any 64-bit integer, signed or not."""


class Unfit(Exception):
    """Error: the type of a column cannot hold a value. It has the row, counted from 0, and the place inside the row."""

    def __init__(self, row: int, value: pa.Scalar, target: pa.DataType, inside: str = "") -> None:
        text = f"row {row}{inside}: {_format_value(value)} of type {value.type} does not fit {target}"
        super().__init__(text + _advice(value, target))
        self.row = row
        self._value, self._target, self._inside = value, target, inside

    def at(self, row: int, inside: str = "") -> Unfit:
        """Return this error for the enclosing column: its row, and the path from it to the value."""
        return Unfit(row, self._value, self._target, inside + self._inside)


def _advice(value: pa.Scalar, target: pa.DataType) -> str:
    """Return what to do with a value; "" if nothing general is to be said."""
    if not (_T.is_floating(value.type) and _T.is_decimal(target)):
        return ""
    precision, scale = target.precision, target.scale
    if not math.isfinite(value.as_py()):
        return ": a decimal has neither NaN nor infinities; write null, or leave the row out"
    if abs(value.as_py()) >= (2.0**53 if _T.is_float64(value.type) else 2.0**24):
        return ": the text of so large a float is not its value; keep amounts as decimals or integers from the start"
    if abs(value.as_py()) >= 10.0 ** (precision - scale):
        return (
            f": it needs more than {precision - scale} digits before the point; widen the column first, with "
            "alter(widen=…) or ALTER COLUMN … TYPE"
        )
    return (
        f": a float goes into a decimal by its shortest text, digit by digit (0.1 fits, 0.1 + 0.2 does not). Round it "
        f"first, as pyarrow.compute.round(column, {scale}) or CAST(ROUND(column, {scale}) AS DECIMAL({precision}, "
        f"{scale})) does, or keep amounts as decimals or integers from the start"
    )


def _format_value(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a time outside of Python's range
        return str(value.cast(pa.int32() if _T.is_date32(value.type) else pa.int64()))


def cast_values(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast a column exactly to `target`, which it fits (`column_types.fits`). Raise Unfit if a value would change."""
    if _T.is_dictionary(column.type):
        column = _decode_dictionary(column)
    if column.type.equals(target, check_metadata=True):
        return column
    if _T.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), target)])
    if children(target):
        return _cast_nested(column, target)
    if _is_wide_float(column.type) and _is_wide_float(target):
        return _cast_checked(column, target, _is_rounded)
    if _is_wide_float(column.type) and _T.is_integer(target):
        return _cast_checked(column, target, _is_no_integer)
    if _T.is_integer(column.type) and _is_wide_float(target):
        return _cast_checked(column, target, _is_inexact)
    if _is_wide_float(column.type) and _T.is_decimal(target):
        return _floats_to_decimals(column, target)
    return _cast_or_raise_unfit(column, target)


def _decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a dictionary column row by row. Arrow cannot gather views, so they become plain first."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = plain.get(column.type.value_type, column.type.value_type)
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _cast_or_raise_unfit(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    try:
        return arrow_cast(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = _first_failing(column, target)
        raise Unfit(row, column[row], target) from None


def arrow_cast(column: Any, target: pa.DataType) -> Any:
    """Cast a column that is not nested by Arrow. Raises ArrowInvalid for a value that would change."""
    if _T.is_integer(column.type) and _T.is_decimal(target):  # Arrow's direct cast demands digits for every integer
        column = column.cast(pa.decimal128(_DIGITS_OF_INTEGERS, 0))
    try:
        return column.cast(target, safe=True)
    except pa.ArrowInvalid:
        if not _T.is_decimal256(column.type) or not (_T.is_decimal(target) or _T.is_integer(target)):
            raise
        return _with_fewer_digits(column, target)


def _with_fewer_digits(column: Any, target: Any) -> Any:
    """Cast 256-bit decimals to decimals of a smaller scale, or integers: Arrow's division takes some for inexact that
    are not, such as 18446744073709551615 of scale 20. Raises ArrowInvalid.
    """
    scale = target.scale if _T.is_decimal(target) else 0

    def exact(value: Decimal | None) -> Decimal | int | None:
        if value is None:
            return None
        sign, digits, exponent = value.as_tuple()
        extra = -int(exponent) - scale
        if any(digits[-extra:] if extra > 0 else ()):
            raise pa.ArrowInvalid(f"{value} has more than {scale} digits behind the point")
        kept = Decimal((sign, digits[:-extra] or (0,), -scale)) if extra > 0 else value
        return kept if _T.is_decimal(target) else int(kept)

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    try:
        arrays = [pa.array([exact(value) for value in chunk.to_pylist()], target) for chunk in chunks]
    except OverflowError as error:
        raise pa.ArrowInvalid(str(error)) from error
    return pa.chunked_array(arrays, target) if isinstance(column, pa.ChunkedArray) else arrays[0]


def _first_failing(column: pa.ChunkedArray, target: pa.DataType) -> int:
    """Find the first row that cannot be cast, by bisection."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            arrow_cast(column.slice(low, middle - low), target)
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low


# ---- numbers whose values decide -----------------------------------------------------------------------------------


def _cast_checked(
    column: pa.ChunkedArray, target: pa.DataType, find_misfits: Any, reported: pa.DataType | None = None
) -> pa.ChunkedArray:
    dtype, offset = np.dtype(target.to_pandas_dtype()), 0
    for chunk in column.chunks:
        values = chunk.fill_null(0).to_numpy(zero_copy_only=False)
        misfits = find_misfits(values, dtype)
        if misfits.any():
            row = int(np.flatnonzero(misfits)[0])
            raise Unfit(offset + row, chunk[row], reported or target)
        offset += len(chunk)
    return column.cast(target, safe=False)


def _is_rounded(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the floats that the narrower float type `kind` cannot represent."""
    with np.errstate(over="ignore"):
        return (values.astype(kind).astype(values.dtype) != values) & ~np.isnan(values)


def _is_no_integer(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the floats that are no integers of type `kind`."""
    low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
    return ~np.isfinite(values) | (np.floor(values) != values) | (values < low) | (values >= high)


def _is_inexact(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the integers that the float type `kind` cannot represent."""
    as_float = values.astype(kind)
    outside = as_float >= float(np.iinfo(values.dtype).max + 1)
    return outside | (np.where(outside, 0, as_float).astype(values.dtype) != values)


def _is_wide_float(kind: pa.DataType) -> bool:
    return _T.is_floating(kind) and not _T.is_float16(kind)


def _floats_to_decimals(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast floats to the decimals of their shortest text: 0.1 is 0.10. Raise Unfit for a float with more digits.

    From 2**53 on (2**24 of single precision) the shortest text of a float is not its value, so these floats never fit.
    """
    exact, least = 2.0 ** (np.finfo(column.type.to_pandas_dtype()).nmant + 1), 0.9 * 10.0**-target.scale

    def find_misfits(values: np.ndarray, _: np.dtype) -> np.ndarray:
        """Return a mask of the floats whose text Arrow casts wrongly: it fails, or makes a zero of a tiny number."""
        size = np.abs(values)
        return ~(size < exact) | ((size < least) & (size > 0))

    try:
        texts = _cast_checked(column, column.type, find_misfits, target).cast(pa.string())
    except Unfit as unfit:
        _floats_to_decimals(column.slice(0, unfit.row), target)  # an earlier row may have too many digits
        raise
    try:
        return _cast_or_raise_unfit(texts, target)
    except Unfit as unfit:
        raise Unfit(unfit.row, column[unfit.row], target) from None


# ---- nested values -------------------------------------------------------------------------------------------------
#
# Arrow's own cast of nested values fails for a null above a required field, because the field's slot is null too.


def relabelled(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the values under another type with the same buffers, without a copy: other names or nullability inside."""
    _, array = values.__arrow_c_array__()
    return pa.Array._import_from_c_capsule(target.__arrow_c_schema__(), array)


def map_entries(values: pa.Array) -> pa.Array:
    """Return maps as lists of their entries, structs of key and value."""
    return relabelled(values, pa.list_(pa.struct([values.type.key_field, values.type.item_field])))


def _cast_nested(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast each part of nested values exactly; their type fits `target`. Unfit has the row of the outer value."""
    chunks, offset = [], 0
    for chunk in column.chunks:
        try:
            if same_layout(chunk.type, target):
                chunks.append(relabelled(chunk, target))
            else:
                chunks.append((_cast_struct if _T.is_struct(target) else _cast_items)(chunk, target))
        except Unfit as unfit:
            raise unfit.at(offset + unfit.row) from None
        offset += len(chunk)
    return pa.chunked_array(chunks, target)


def _cast_struct(values: pa.StructArray, target: pa.StructType) -> pa.Array:
    """Cast the fields of structs. If the names differ, one of the types has more fields: they are found by name."""
    inside, parts = [field.name for field in values.type], values.flatten()  # bytes beneath a null are no value
    if inside != (names := [field.name for field in target]):
        given = dict(zip(inside, parts, strict=True))
        absent = pa.nulls(len(values))
        parts = [given.get(name, absent) for name in names]
    parts = [
        _cast_part(part, field.type, f", field {field.name!r}")
        for part, field in zip(parts, children(target), strict=True)
    ]
    return pa.Array.from_buffers(target, len(values), [validity(values)], children=parts)


def _cast_items(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast the items of lists, and the keys and values of maps."""
    values = map_entries(values) if _T.is_map(values.type) else values
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = values.flatten()
    try:
        if _T.is_map(target):
            entries = pa.struct([target.key_field, target.item_field])
            keys = _cast_part(pc.struct_field(flat, [0]), target.key_type, ", key")
            items = _cast_part(pc.struct_field(flat, [1]), target.item_type, ", value")
            flat = pa.Array.from_buffers(entries, len(flat), [None], children=[keys, items])
        else:
            flat = _cast_part(flat, target.value_type, ", item")
    except Unfit as unfit:
        raise unfit.at(int(np.searchsorted(offsets, unfit.row, "right")) - 1) from None
    if _T.is_fixed_size_list(target):
        return _fixed_size(values, lengths, flat, target)
    width = np.int64 if _T.is_large_list(target) else np.int32
    if offsets[-1] > np.iinfo(width).max:
        row = int(np.searchsorted(offsets, np.iinfo(width).max, "right")) - 1
        raise Unfit(row, values[row], target)
    buffers = [validity(values), pa.py_buffer(offsets.astype(width))]
    return pa.Array.from_buffers(target, len(values), buffers, children=[flat])


def _fixed_size(values: pa.Array, lengths: np.ndarray, items: pa.Array, target: Any) -> pa.Array:
    """Return lists as lists of a fixed size. A null has items too, which are null."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(valid & (lengths != target.list_size))
    if len(wrong):
        raise Unfit(int(wrong[0]), values[int(wrong[0])], target)
    if not valid.all():
        present = np.repeat(valid, target.list_size)
        items = items.take(pa.array(np.where(present, np.cumsum(present) - 1, 0), mask=~present))
    return pa.Array.from_buffers(target, len(values), [validity(values)], children=[items])


def validity(values: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap of an array, from bit 0 on; None without a null."""
    if not values.null_count:
        return None
    return pa.py_buffer(np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _cast_part(values: pa.Array, target: pa.DataType, inside: str) -> pa.Array:
    try:
        cast = cast_values(pa.chunked_array([values]), target)
    except Unfit as unfit:
        raise unfit.at(unfit.row, inside) from None
    return pa.concat_arrays(cast.chunks) if cast.num_chunks else pa.array([], target)
