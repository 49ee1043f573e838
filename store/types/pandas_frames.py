"""Conversion of pandas frames to Arrow. A value that pandas may have changed is refused.

pandas' numpy columns hold no nulls: integers with nulls become floats there, and NaN stands for a null. Its nullable
and its Arrow-backed columns hold all values as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from epochlog.errors import SchemaMismatch

from .column_types import children
from .python_rows import require_lossless

_T = pa.types
_MOST_EXACT = 2.0**53
"""Size from which on floats leave integers out."""


class _Rounded(Exception):
    """Error: pandas can have rounded this integer to a float."""


def is_frame(data: object) -> bool:
    """Return True for a pandas DataFrame, without an import of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def from_frame(table: str, frame: Any, target: pa.Schema) -> pa.Table:
    """Convert a pandas frame to a table of its own types. target: the columns that the values are for, by name. Raises
    SchemaMismatch, which names column and row.
    """
    fields = {field.name: field for field in target}
    levels = [name for name in frame.index.names if name in fields and name not in frame.columns]
    frame = frame.reset_index(level=levels) if levels else frame
    if not all(isinstance(name, str) for name in frame.columns):
        raise SchemaMismatch(f"table {table}: column names must be strings, not {list(frame.columns)!r}")
    if not frame.columns.is_unique:
        raise SchemaMismatch(f"table {table}: a column name occurs twice: {list(frame.columns)!r}")
    if not len(frame.columns):
        return pa.table({})
    arrays = [from_series(table, name, frame[name], fields.get(name)) for name in frame.columns]
    return pa.Table.from_arrays(arrays, names=list(frame.columns))


def from_series(table: str, name: str, series: Any, field: pa.Field | None) -> pa.Array:
    """Convert a pandas series, index or numpy array for a column, in its own type; None: for no column of a table."""
    if field is not None and not len(series):  # an empty series has no inferable type
        return pa.array([], field.type)
    try:
        if field is not None and children(field.type) and series.dtype == object:
            return _nested(table, name, series, field)
        values = pa.array(series, from_pandas=True)
        exact = hasattr(getattr(series, "array", None), "__arrow_array__") or _T.is_dictionary(values.type)
        if not _T.is_floating(values.type) or exact:
            return values
        kind, nullable = (values.type, True) if field is None else (field.type, field.nullable)
        return _floats(table, name, series, values, kind, nullable)
    except SchemaMismatch:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(f"table {table}, column {name!r}: {error}") from error


def _floats(table: str, name: str, series: Any, values: pa.Array, kind: pa.DataType, nullable: bool) -> pa.Array:
    """Return the floats of a numpy column: NaN is a null, or NaN in a column of floats that takes no null."""
    if _T.is_integer(kind):
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        rounded = np.flatnonzero(np.abs(numbers) >= 2.0 ** (np.finfo(numbers.dtype).nmant + 1))
        if len(rounded):
            raise SchemaMismatch(
                f"table {table}, column {name!r}, row {rounded[0]}: {_rounded(numbers[rounded[0]])}. Make it a column "
                f"of integers from the start, with frame[{name!r}] = pandas.array([…], 'Int64')"
            )
    if nullable or not values.null_count or not _T.is_floating(kind):
        return values
    missing = np.array([not isinstance(value, float | np.floating) for value in series])
    return pa.array(np.asarray(series, values.type.to_pandas_dtype()), mask=missing)


def _rounded(value: float) -> str:
    return f"{float(value)!r} can be an integer that pandas has rounded to a float, as it does beside nulls"


# ---- nested values ---------------------------------------------------------------------------------------------------


def _nested(table: str, name: str, series: Any, field: pa.Field) -> pa.Array:
    """Convert a column of objects (arrays, lists, dicts, tuples) to the column's type, which Arrow cannot infer."""
    values: list[Any] = []
    for row, value in enumerate(series):
        try:
            values.append(_plain(value, field.type, field.nullable))
        except _Rounded as rounded:
            raise SchemaMismatch(
                f"table {table}, column {name!r}, row {row}: {rounded}. Make the cells lists of Python's integers"
            ) from None
    array = pa.array(values, field.type)
    require_lossless(table, values, array, field)
    return array


def _plain(value: Any, kind: Any, nullable: bool) -> Any:
    """Return a value from a frame as plain Python objects, with None for a null."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float | np.floating):
        return _plain_float(float(value), kind, nullable)
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        return pa.array(value).cast(kind.value_type).to_pylist()  # numpy's own list of nanoseconds would be of integers
    if _T.is_struct(kind) and isinstance(value, Mapping):
        parts = {field.name: _plain(value.get(field.name), field.type, field.nullable) for field in kind}
        return {**value, **parts}
    if _T.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        item = kind.item_field
        return [(_plain(k, kind.key_type, False), _plain(v, item.type, item.nullable)) for k, v in pairs]
    if children(kind) and isinstance(value, list | tuple | np.ndarray):
        return [_plain(item, kind.value_type, kind.value_field.nullable) for item in value]
    return value


def _plain_float(value: float, kind: pa.DataType, nullable: bool) -> Any:
    if value != value and (nullable or not _T.is_floating(kind)):
        return None
    if _T.is_integer(kind):
        if abs(value) >= _MOST_EXACT:
            raise _Rounded(_rounded(value))
        return int(value) if value.is_integer() else value
    return value
