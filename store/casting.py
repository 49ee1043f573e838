"""Casts columns to the types of a table where no value is lost, or names the first row whose value would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_T = pa.types
_DIGITS_OF_INTEGERS = 20
"""Of any 64-bit integer, signed or not."""


class Unfit(Exception):
    """A value that its column's type cannot hold: the row, counted from 0, and the value."""

    def __init__(self, row: int, value: pa.Scalar) -> None:
        super().__init__(f"row {row}: {_told(value)}")
        self.row = row


def _told(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a time that Python has none for
        return str(value.cast(pa.int64()))


def cast_values(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """The column as `wanted`, which fits it (`column_types.fits`), exactly. Raises Unfit."""
    if column.type.equals(wanted):
        return column
    if _is_wide_float(column.type) and _is_wide_float(wanted):
        return _checked(column, wanted, _rounded)
    if _is_wide_float(column.type) and _T.is_integer(wanted):
        return _checked(column, wanted, _not_whole)
    if _T.is_integer(column.type) and _is_wide_float(wanted):
        return _checked(column, wanted, _not_exact)
    try:
        return _cast(column, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = _first_failing(column, wanted)
        raise Unfit(row, column[row]) from None


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if _T.is_integer(column.type) and _T.is_decimal(wanted):  # by way of digits: Arrow asks for room for all integers
        column = column.cast(pa.decimal128(_DIGITS_OF_INTEGERS, 0))
    return column.cast(wanted, safe=True)


def _first_failing(column: pa.ChunkedArray, wanted: pa.DataType) -> int:
    """The first row that cannot be cast, by halving; all before it can."""
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


def _checked(column: pa.ChunkedArray, wanted: pa.DataType, lost: Any) -> pa.ChunkedArray:
    kind, before = np.dtype(wanted.to_pandas_dtype()), 0
    for chunk in column.chunks:
        values = chunk.fill_null(0).to_numpy(zero_copy_only=False)
        bad = lost(values, kind)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise Unfit(before + row, chunk[row])
        before += len(chunk)
    return column.cast(wanted, safe=False)


def _rounded(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Floats that a narrower float is not equal to."""
    with np.errstate(over="ignore"):
        return (values.astype(kind).astype(values.dtype) != values) & ~np.isnan(values)


def _not_whole(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Floats that are no integers of that kind."""
    low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max + 1)
    return ~np.isfinite(values) | (np.floor(values) != values) | (values < low) | (values >= high)


def _not_exact(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Integers that no such float is equal to."""
    as_float = values.astype(kind)
    outside = as_float >= float(np.iinfo(values.dtype).max + 1)
    return outside | (np.where(outside, 0, as_float).astype(values.dtype) != values)


def _is_wide_float(kind: pa.DataType) -> bool:
    return _T.is_floating(kind) and not _T.is_float16(kind)
