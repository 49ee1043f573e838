"""Null-safe equality of columns and tables of every type: null equals null (IS NOT DISTINCT FROM).

Floats are equal if all their bits are equal or both are NaN. So 0.0 and -0.0 differ.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import FALSE, ZERO, from_numpy, to_numpy
from .casting import map_entries
from .key_codec import contiguous


def same_rows(left: pa.Table, right: pa.Table) -> np.ndarray:
    """Return bool[rows]: True where the two tables, of one schema and length, are equal in every column."""
    equal = np.ones(left.num_rows, np.bool_)
    for name in left.column_names:
        equal &= same_values(contiguous(left.column(name)), contiguous(right.column(name)))
    return equal


def same_values(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return bool[len]: null equals null, NaN equals NaN; structs by field, lists by length and elements."""
    if _is_plain(left) and _is_plain(right):
        a, b = to_numpy(left), to_numpy(right)
        if not pa.types.is_floating(left.type):
            return a == b
        bits = np.dtype(f"i{a.itemsize}")
        return (a.view(bits) == b.view(bits)) | ((a != a) & (b != b))
    both_null = _mask(pc.and_(left.is_null(), right.is_null()))
    both_valid = _mask(pc.and_(left.is_valid(), right.is_valid()))
    return both_null | (both_valid & _equal(left, right))


def _is_plain(column: pa.Array) -> bool:
    """Return True for integers or floats without a null: numpy compares these fastest."""
    return not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def _equal(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return bool[len], meaningful where both values are valid."""
    kind = left.type
    if pa.types.is_struct(kind):
        equal = np.ones(len(left), np.bool_)
        for a, b in zip(left.flatten(), right.flatten(), strict=True):
            equal &= same_values(a, b)
        return equal
    if pa.types.is_map(kind):
        return _equal_lists(map_entries(left), map_entries(right))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _equal_lists(left, right)
    if pa.types.is_floating(kind):
        return same_values(pc.fill_null(left, 0), pc.fill_null(right, 0))
    return _mask(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return bool[len]: True where the lists have equal lengths and elements."""
    left_sizes, right_sizes = _sizes(left), _sizes(right)
    equal = left_sizes == right_sizes
    sizes = np.where(equal, left_sizes, 0)
    total = int(sizes.sum())
    if not total:
        return equal
    rows = np.repeat(np.arange(len(sizes)), sizes)
    inner = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left_at = np.repeat(np.cumsum(left_sizes) - left_sizes, sizes) + inner
    right_at = np.repeat(np.cumsum(right_sizes) - right_sizes, sizes) + inner
    items_equal = same_values(left.flatten().take(from_numpy(left_at)), right.flatten().take(from_numpy(right_at)))
    equal[rows[~items_equal]] = False
    return equal


def _sizes(column: pa.Array) -> np.ndarray:
    return to_numpy(pc.fill_null(pc.list_value_length(column).cast(pa.int64()), ZERO))


def _mask(values: pa.Array) -> np.ndarray:
    return to_numpy(pc.fill_null(values, FALSE))
