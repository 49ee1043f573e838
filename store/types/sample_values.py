"""Samples of column types: their shapes, and values with nulls at every level and empty lists (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .column_types import children, map_inner_types

_T = pa.types
_DAY_MS = 86_400_000


def shape_of(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for all types of one structure: names, further fields of one type and nullability
    in a struct, and fixed sizes above 2 do not count.
    """
    if _T.is_struct(kind):
        distinct = dict.fromkeys((shape_of(field.type), field.nullable) for field in kind)
        return pa.struct([pa.field(f"f{place}", *each) for place, each in enumerate(distinct)])
    if _T.is_map(kind):
        return pa.map_(shape_of(kind.key_type), _item(kind.item_field))
    if _T.is_fixed_size_list(kind):
        return pa.list_(_item(kind.value_field), min(kind.list_size, 2))
    if _T.is_large_list(kind):
        return pa.large_list(_item(kind.value_field))
    return pa.list_(_item(kind.value_field)) if children(kind) else kind


def _item(field: pa.Field) -> pa.Field:
    return pa.field("item", shape_of(field.type), field.nullable)


def paths_of(shape: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a shape for each way from the root of a shape to one of its leaves: with one field in each struct. Fields
    beside one another share no values, no nulls and no levels of Parquet, so rows of a shape come back if those of its
    ways do.
    """
    if _T.is_struct(shape):
        for field in shape:
            yield from (pa.struct([pa.field("f0", path, field.nullable)]) for path in paths_of(field.type))
        if not shape.num_fields:
            yield shape
    elif _T.is_map(shape):
        item = shape.item_field
        yield from (pa.map_(shape.key_type, item.with_type(path)) for path in paths_of(item.type))
    elif children(shape):
        for path in paths_of(shape.value_field.type):
            yield map_inner_types(shape, lambda _, path=path: path)
    else:
        yield shape


def sample_column(kind: pa.DataType) -> pa.Array:
    """Return values of a stored type, the last of them null: at each level below, every field that may be null is null
    in one of them, and every list of any size is empty in one.
    """
    return pa.array([*_samples(kind), None], kind)


def _samples(kind: pa.DataType) -> list[Any]:
    """Return values, not null, as Python objects; at least one."""
    if _T.is_struct(kind):
        values = [_with_nulls(field) for field in kind]
        rows = max((len(each) for each in values), default=1)
        # Pairs, since two fields may have one name. The last row has the last value of each field: their nulls.
        return [
            [(field.name, each[min(row, len(each) - 1)]) for field, each in zip(kind, values, strict=True)]
            for row in range(rows)
        ]
    if _T.is_map(kind):
        keys, items = _samples(kind.key_type), _with_nulls(kind.item_field)
        return [[(keys[0], item)] for item in items] + [[]]
    if _T.is_fixed_size_list(kind):
        return [[item] * kind.list_size for item in _with_nulls(kind.value_field)]
    if children(kind):
        items = _with_nulls(kind.value_field)
        return [items, [], items[-1:]]
    return [_leaf(kind)]


def _with_nulls(field: pa.Field) -> list[Any]:
    return [*_samples(field.type), *([None] if field.nullable else [])]


def _leaf(kind: Any) -> Any:
    if _T.is_boolean(kind):
        return True
    if _T.is_decimal(kind):
        return Decimal(1).scaleb(-kind.scale)
    if _T.is_fixed_size_binary(kind):
        return b"x" * kind.byte_width
    if _T.is_binary(kind) or _T.is_large_binary(kind):
        return b"x"
    if _T.is_string(kind) or _T.is_large_string(kind):
        return "x"
    return _DAY_MS if _T.is_date64(kind) else 1
