"""A table as of one epoch as a pandas DataFrame, in numpy's, pandas' nullable or Arrow-backed types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput
from epochlog.store.types.casting import map_entries
from epochlog.store.types.column_types import children
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.time_zones import in_known_zones

from .arrow_compat import compatible_schema

TypesMapper = Callable[[pa.DataType], Any]

_T = pa.types
_MOST_EXACT = 2**53
"""Size from which on floats leave integers out."""
_DAYS = -719_162, 2_932_896
"""Days since 1970 of the first and the last date of Python."""
_NULLABLE: dict[pa.DataType, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
    pa.large_string(): pd.StringDtype(),
}


def _nullable(kind: pa.DataType) -> Any:
    """Return pandas' nullable type; None for times, whose null numpy has; an Arrow-backed one for the others."""
    if _T.is_timestamp(kind) or _T.is_duration(kind):
        return None
    return _NULLABLE.get(kind) or pd.ArrowDtype(kind)


def _exact(kind: pa.DataType) -> Any:
    """Return a type of pandas that holds all values: its nullable floats hold no NaN since pandas 3."""
    return (None if _T.is_floating(kind) else _NULLABLE.get(kind)) or pd.ArrowDtype(kind)


def _holds(target: Any, values: Any, nullable: bool) -> bool:
    """Return True if a column of pandas' type `target` (None: of numpy's) holds these values."""
    if isinstance(target, pd.Float32Dtype | pd.Float64Dtype):
        return _numpy_holds(values, True)
    return target is not None or _numpy_holds(values, nullable)


_MAPPERS: dict[str | None, TypesMapper] = {None: lambda _: None, "pyarrow": pd.ArrowDtype, "numpy_nullable": _nullable}


def frame_of(
    table: pa.Table, dtype_backend: str | None = None, types_mapper: TypesMapper | None = None
) -> pd.DataFrame:
    """Return the rows of a table as a pandas DataFrame that holds all their values. Raises InvalidInput for options
    that name no types.
    """
    if dtype_backend not in _MAPPERS:
        raise InvalidInput(f"dtype_backend must be 'pyarrow' or 'numpy_nullable', not {dtype_backend!r}")
    if types_mapper is None:
        types_mapper = _MAPPERS[dtype_backend]
    elif dtype_backend is not None or not callable(types_mapper):
        raise InvalidInput(
            "types_mapper must be a function of an Arrow type, such as pandas.ArrowDtype; it goes without dtype_backend"
        )
    table = as_schema(table, compatible_schema(table.schema, in_known_zones))
    exact = [
        field.name
        for field in table.schema
        for target in (types_mapper(field.type),)
        if not all(_holds(target, chunk, field.nullable) for chunk in table.column(field.name).chunks)
    ]
    if not exact:
        return table.to_pandas(types_mapper=types_mapper)
    frame = table.select(exact).to_pandas(types_mapper=_exact)
    if len(exact) < table.num_columns:
        frame = pd.concat([table.drop_columns(exact).to_pandas(types_mapper=types_mapper), frame], axis=1)
    return frame.reindex(columns=table.column_names)


def _numpy_holds(values: Any, nullable: bool, *, inside: bool = False) -> bool:
    """Return True if numpy's types and Python's objects hold these values: nulls apart from NaN, integers beside nulls,
    times in full. inside: of nested values, whose times are objects.
    """
    kind = values.type
    if inside and _has_no_object(kind):
        return False
    if _T.is_floating(kind):
        return not nullable or not pc.any(pc.is_nan(values)).as_py()
    if _T.is_integer(kind):
        return not values.null_count or _within(values, 1 - _MOST_EXACT, _MOST_EXACT - 1)
    if _T.is_timestamp(kind) or _T.is_duration(kind):
        return _within(values.view(pa.int64()), *_limits(kind, inside))
    if _T.is_date(kind):
        return _within(values.cast(pa.date32()).view(pa.int32()), *_DAYS)
    if kind == pa.time64("ns"):
        numbers = values.view(pa.int64())
        return pc.all(pc.equal(pc.multiply(pc.divide(numbers, 1000), 1000), numbers)).as_py() is not False
    return not children(kind) or _objects_hold(values)


def _has_no_object(kind: Any) -> bool:
    """Return True for types that pyarrow makes no objects of inside of nested values, or objects of another type."""
    small = _T.is_decimal32(kind) or _T.is_decimal64(kind) or _T.is_fixed_size_binary(kind)
    return small or _T.is_duration(kind) or (_T.is_timestamp(kind) and kind.unit == "ns")


def _limits(kind: Any, inside: bool) -> tuple[int, int]:
    """Return the least and the greatest number of a time that numpy, or Python inside of nested values, holds."""
    if not inside:
        return 1 - 2**63, 2**63 - 1  # the least number is numpy's null
    second = {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
    return (_DAYS[0] + 1) * 86_400 * second, (_DAYS[1] - 1) * 86_400 * second  # without a day for the zone


def _within(values: pa.Array, low: int, high: int) -> bool:
    ends = pc.min_max(values).as_py()
    return ends["min"] is None or low <= ends["min"] <= ends["max"] <= high


def _objects_hold(values: Any) -> bool:
    """Return True if Python's objects, with numpy's arrays for lists, hold these nested values."""
    inside = children(values.type)
    if _T.is_struct(values.type):
        parts, unique = values.flatten(), len({field.name for field in inside}) == len(inside)
    elif _T.is_map(values.type):
        parts, unique = map_entries(values).flatten().flatten(), True
    else:
        parts, unique = [values.flatten()], True
    return unique and all(
        _numpy_holds(part, field.nullable, inside=True) for part, field in zip(parts, inside, strict=True)
    )
