"""Exact casts of columns to a table's types. A value that would be lost is named by its row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .column_types import children, fits_whatever

_T = pa.types
_DIGITS_OF_INTEGERS = 20
"""Of any 64-bit integer, signed or not."""


class Unfit(Exception):
    """Value that its column's type cannot hold: the row, counted from 0, the value, and its place inside the row."""

    def __init__(self, row: int, value: pa.Scalar, wanted: pa.DataType, inside: str = "") -> None:
        super().__init__(f"row {row}{inside}: {_told(value)} of type {value.type} does not fit {wanted}")
        self.row = row
        self._value, self._wanted, self._inside = value, wanted, inside

    def at(self, row: int, inside: str = "") -> Unfit:
        """Return the error for the column of which the value's column is a part."""
        return Unfit(row, self._value, self._wanted, inside + self._inside)


def _told(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a time that Python has none for
        return str(value.cast(pa.int64()))


def cast_values(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast a column exactly to `wanted`, which it fits by type (`column_types.fits`). Raise Unfit for a value that is
    lost.
    """
    if _T.is_dictionary(column.type):
        column = _decoded(column)
    if column.type.equals(wanted):
        return column
    if children(wanted) and not fits_whatever(column.type, wanted):
        return _cast_inside(column, wanted)
    if _is_wide_float(column.type) and _is_wide_float(wanted):
        return _checked(column, wanted, _rounded)
    if _is_wide_float(column.type) and _T.is_integer(wanted):
        return _checked(column, wanted, _not_whole)
    if _T.is_integer(column.type) and _is_wide_float(wanted):
        return _checked(column, wanted, _not_exact)
    if _is_wide_float(column.type) and _T.is_decimal(wanted):
        return _as_decimals(column, wanted)
    return _cast_or_name(column, wanted)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a dictionary column row by row. Arrow cannot gather views, so those become plain first."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = plain.get(column.type.value_type, column.type.value_type)
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _cast_or_name(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    try:
        return _cast(column, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = _first_failing(column, wanted)
        raise Unfit(row, column[row], wanted) from None


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if _T.is_integer(column.type) and _T.is_decimal(wanted):  # by way of digits: Arrow asks for room for all integers
        column = column.cast(pa.decimal128(_DIGITS_OF_INTEGERS, 0))
    return column.cast(wanted, safe=True)


def _first_failing(column: pa.ChunkedArray, wanted: pa.DataType) -> int:
    """Return the first row that cannot be cast, found by bisection."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.slice(low, middle - low), wanted)
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low


# ---- numbers whose values decide -----------------------------------------------------------------------------------


def _checked(
    column: pa.ChunkedArray, wanted: pa.DataType, lost: Any, told: pa.DataType | None = None
) -> pa.ChunkedArray:
    kind, before = np.dtype(wanted.to_pandas_dtype()), 0
    for chunk in column.chunks:
        values = chunk.fill_null(0).to_numpy(zero_copy_only=False)
        bad = lost(values, kind)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise Unfit(before + row, chunk[row], told or wanted)
        before += len(chunk)
    return column.cast(wanted, safe=False)


def _rounded(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the floats that the narrower float type `kind` cannot represent."""
    with np.errstate(over="ignore"):
        return (values.astype(kind).astype(values.dtype) != values) & ~np.isnan(values)


def _not_whole(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the floats that are no integers of type `kind`."""
    low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
    return ~np.isfinite(values) | (np.floor(values) != values) | (values < low) | (values >= high)


def _not_exact(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return a mask of the integers that the float type `kind` cannot represent."""
    as_float = values.astype(kind)
    outside = as_float >= float(np.iinfo(values.dtype).max + 1)
    return outside | (np.where(outside, 0, as_float).astype(values.dtype) != values)


def _is_wide_float(kind: pa.DataType) -> bool:
    return _T.is_floating(kind) and not _T.is_float16(kind)


def _as_decimals(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast floats to the decimals that they are written as: 0.1 is 0.10. Raise Unfit for a float with more digits.

    From 2**53 on (2**24 of single precision) the shortest text of a float is not its value, so none of these fits.
    """
    exact, least = 2.0 ** (np.finfo(column.type.to_pandas_dtype()).nmant + 1), 0.9 * 10.0**-wanted.scale

    def lost(values: np.ndarray, _: np.dtype) -> np.ndarray:
        """Return True where Arrow's cast of texts fails or, of exponents below -300, makes a zero."""
        size = np.abs(values)
        return ~(size < exact) | ((size < least) & (size > 0))

    try:
        texts = _checked(column, column.type, lost, wanted).cast(pa.string())
    except Unfit as unfit:
        _as_decimals(column.slice(0, unfit.row), wanted)  # a row before it may have too many digits
        raise
    try:
        return _cast_or_name(texts, wanted)
    except Unfit as unfit:
        raise Unfit(unfit.row, column[unfit.row], wanted) from None


# ---- numbers inside of nested values ---------------------------------------------------------------------------------


def _cast_inside(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast the parts of nested values, which fit `wanted`, each exactly. Raise Unfit for the row that one lies in."""
    done, before = [], 0
    for chunk in column.chunks:
        try:
            done += (_cast_struct if _T.is_struct(wanted) else _cast_items)(chunk, wanted).chunks
        except Unfit as unfit:
            raise unfit.at(before + unfit.row) from None
        before += len(chunk)
    return pa.chunked_array(done, wanted)


def _cast_struct(values: pa.StructArray, wanted: pa.StructType) -> pa.ChunkedArray:
    there = values.is_valid().to_numpy(zero_copy_only=False)
    found = values.drop_null()  # what lies beneath a null is no value
    try:
        parts = [
            _cast_part(part, field.type, f", field {field.name!r}")
            for part, field in zip(found.flatten(), children(wanted), strict=True)
        ]
    except Unfit as unfit:
        raise unfit.at(int(np.flatnonzero(there)[unfit.row])) from None
    made = pa.Array.from_buffers(wanted, len(found), [None], children=parts)  # `conform` looks for nulls in its fields
    if len(found) < len(values):
        places = np.where(there, np.cumsum(there) - 1, len(found))
        made = pa.concat_arrays([made, pa.array([None], wanted)]).take(pa.array(places))
    return pa.chunked_array([made])


def _cast_items(values: pa.Array, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast the items of lists, and the keys and values of maps."""
    if _T.is_map(wanted):
        values = values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat, nulls = values.flatten(), values.is_null()
    try:
        if _T.is_map(wanted):
            keys = _cast_part(pc.struct_field(flat, [0]), wanted.key_type, ", key")
            items = _cast_part(pc.struct_field(flat, [1]), wanted.item_type, ", value")
            made = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, wanted, mask=nulls)
            return pa.chunked_array([made])
        items = _cast_part(flat, wanted.value_type, ", item")
    except Unfit as unfit:
        raise unfit.at(int(np.searchsorted(offsets, unfit.row, "right")) - 1) from None
    lists = pa.large_list(wanted.value_field)
    made = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, lists, mask=nulls)
    return _cast_or_name(pa.chunked_array([made]), wanted)


def _cast_part(values: pa.Array, wanted: pa.DataType, inside: str) -> pa.Array:
    try:
        cast = cast_values(pa.chunked_array([values]), wanted)
    except Unfit as unfit:
        raise unfit.at(unfit.row, inside) from None
    return pa.concat_arrays(cast.chunks) if cast.num_chunks else pa.array([], wanted)
