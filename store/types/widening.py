"""Widenings: changes of a column's type by which every value of the narrower type is one of the wider type (pure)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .column_types import fits_always

_T = pa.types
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Digits of the greatest signed integer of these bits."""
_MOST_DAYS = {"us": 106_751_991, "ns": 106_751}
"""Days from 1970 on that timestamps of these units hold."""
WIDENINGS = (
    "integers take a wider integer, a float that holds all of them (double up to 32 bits), or a decimal with enough "
    "digits; floats a wider float; decimals more digits, before the point and behind it; dates a timestamp without a "
    "zone (inside of a column one of seconds or milliseconds); structs more nullable fields"
)


def widened_type(kind: Any, wider: Any) -> pa.DataType | None:
    """Return the type of a column of type `kind` after its widening to `wider`; None if that is no widening.

    Nested types keep the names of items, and the nullability of the fields that they have.
    """
    if kind.equals(wider):
        return kind
    if _T.is_struct(kind):
        return _widened_struct(kind, wider) if _T.is_struct(wider) else None
    if _T.is_map(kind):
        item = _widened_field(kind.item_field, wider.item_field) if _T.is_map(wider) else None
        if item is None or not kind.key_type.equals(wider.key_type):
            return None
        return pa.map_(kind.key_field, item, keys_sorted=kind.keys_sorted)
    for is_kind, list_of in ((_T.is_list, pa.list_), (_T.is_large_list, pa.large_list)):
        if is_kind(kind):
            item = _widened_field(kind.value_field, wider.value_field) if is_kind(wider) else None
            return None if item is None else list_of(item)
    return wider if _is_wider(kind, wider) else None


def _widened_struct(kind: pa.StructType, wider: pa.StructType) -> pa.DataType | None:
    names, wanted = [field.name for field in kind], [field.name for field in wider]
    if len(set(names)) < len(names) or len(set(wanted)) < len(wanted):
        return None  # fields are found by their names
    if [name for name in wanted if name in set(names)] != names:
        return None
    fields: list[pa.Field | None] = [
        _widened_field(kind.field(field.name), field) if field.name in names else field if field.nullable else None
        for field in wider
    ]
    known = [field for field in fields if field is not None]
    return pa.struct(known) if len(known) == len(fields) else None


def _widened_field(field: pa.Field, wider: pa.Field) -> pa.Field | None:
    inside = widened_type(field.type, wider.type)
    return None if inside is None or loses_dates(field.type, inside) else field.with_type(inside)


def _is_wider(kind: Any, wider: Any) -> bool:
    if _T.is_date(kind):
        return _T.is_timestamp(wider) and wider.tz is None
    if _T.is_integer(kind) and _is_decimal(wider):
        digits = _DIGITS[kind.bit_width] + (kind == pa.uint64())
        return wider.precision - wider.scale >= digits
    if _T.is_integer(kind) or _is_wide_float(kind):
        to = _T.is_integer(wider) or _is_wide_float(wider)
        return to and fits_always(kind, wider)
    return _is_decimal(kind) and _is_decimal(wider) and fits_always(kind, wider)


def with_fields_of(kind: Any, other: Any) -> pa.DataType:
    """Return the type with the struct fields that another type of its shape has beyond it, at any depth, as nullable
    ones behind its own.
    """
    if _T.is_struct(kind) and _T.is_struct(other):
        given = {field.name: field for field in other}
        known = [
            field.with_type(with_fields_of(field.type, given[field.name].type)) if field.name in given else field
            for field in kind
        ]
        names = {field.name for field in kind}
        return pa.struct([*known, *(field.with_nullable(True) for field in other if field.name not in names)])
    if _T.is_map(kind) and _T.is_map(other):
        item = kind.item_field.with_type(with_fields_of(kind.item_type, other.item_type))
        return pa.map_(kind.key_field, item, keys_sorted=kind.keys_sorted)
    for is_kind, list_of in ((_T.is_list, pa.list_), (_T.is_large_list, pa.large_list)):
        if is_kind(kind) and (_T.is_list(other) or _T.is_large_list(other)):
            return list_of(kind.value_field.with_type(with_fields_of(kind.value_type, other.value_type)))
    return kind


def is_old_widening(kind: Any, wider: Any) -> bool:
    """Return True for a widening that version 0.2 knows: of an integer, a float, or a decimal that keeps its scale."""
    same = (_T.is_integer, _is_wide_float, _is_decimal)
    return any(is_kind(kind) and is_kind(wider) for is_kind in same) and (
        not _is_decimal(kind) or kind.scale == wider.scale
    )


def loses_dates(kind: pa.DataType, wider: Any) -> bool:
    """Return True for a widening of dates to timestamps that hold fewer years: of microseconds and nanoseconds."""
    return _T.is_date(kind) and _T.is_timestamp(wider) and wider.unit in _MOST_DAYS


def without_lost_dates(column: Any, wider: Any) -> Any:
    """Return a column of dates with null for those that the timestamps cannot hold."""
    if not loses_dates(column.type, wider):
        return column
    most = _MOST_DAYS[wider.unit] * (86_400_000 if _T.is_date64(column.type) else 1)
    numbers = column.cast(pa.int64() if _T.is_date64(column.type) else pa.int32())
    held = pc.and_(pc.greater_equal(numbers, -most), pc.less_equal(numbers, most))
    return pc.if_else(held, column, pa.scalar(None, column.type))


def _is_wide_float(kind: pa.DataType) -> bool:
    return _T.is_floating(kind) and not _T.is_float16(kind)


def _is_decimal(kind: pa.DataType) -> bool:
    return _T.is_decimal128(kind) or _T.is_decimal256(kind)
