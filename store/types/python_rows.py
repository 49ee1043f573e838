"""Conversion of plain Python rows and keys (dicts, tuples, scalars) to Arrow tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from epochlog.errors import InvalidInput, SchemaMismatch

from .arrays import empty_table, from_bytes, from_numpy
from .column_types import children

_FEW = 16
"""Number of values up to which a loop in Python costs less than the import of pandas, by far."""
SCALARS = (int, float, str, bytes, Decimal, dt.date, dt.time, dt.timedelta, np.generic, pa.Scalar)


def from_rows(table: str, data: object, target: pa.Schema) -> pa.Table | None:
    """Convert a list of dicts to a table; None for other data. SchemaMismatch names a column that some rows lack."""
    if not isinstance(data, list | tuple) or not all(isinstance(row, Mapping) for row in data):
        return None
    if not data:
        return empty_table(target)
    names = list(dict.fromkeys(name for row in data for name in row))
    if not all(isinstance(name, str) for name in names):
        raise SchemaMismatch(f"table {table}: column names must be strings, not {names!r}")
    known = set(target.names)
    _require_uniform_rows(table, data, [name for name in names if name in known])
    return _build_table(table, {name: [row.get(name) for row in data] for name in names}, target)


def _require_uniform_rows(table: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise SchemaMismatch for the first row that lacks one of the columns: a null would clear the stored value."""
    for row_number, row in enumerate(rows):
        missing = [name for name in names if name not in row]
        if missing:
            raise SchemaMismatch(
                f"table {table}, row {row_number}: column {', '.join(map(repr, missing))} is missing, which other rows "
                "have; give it in each row (None for null)"
            )


def from_keys(table: str, data: Any, target: pa.Schema) -> pa.Table | None:
    """Convert keys to a table: a scalar, an array or a list of scalars for a key of one column; a tuple or a list of
    tuples for one of several; a dict. None for other data.
    """
    if isinstance(data, Mapping):
        columns = all(
            isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray) for value in data.values()
        )
        return pa.table(dict(data)) if columns else from_rows(table, [data], target)
    if len(target) == 1:
        return _from_scalars(table, data, target)
    if isinstance(data, tuple) and data and all(isinstance(value, SCALARS) for value in data):
        data = [data]
    if not isinstance(data, list | tuple | set | frozenset) or not data:
        return None
    rows = list(data)
    malformed = [row for row in rows if not isinstance(row, tuple | list) or len(row) != len(target)]
    if malformed:
        raise InvalidInput(
            f"table {table}: a key has the columns {', '.join(target.names)}: write it as a tuple of {len(target)} "
            f"values or as a dict, not as {malformed[0]!r}"
        )
    return _build_table(
        table, {name: [row[position] for row in rows] for position, name in enumerate(target.names)}, target
    )


def _from_scalars(table: str, data: Any, target: pa.Schema) -> pa.Table | None:
    name = target.names[0]
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return pa.table({name: data})
    if isinstance(data, SCALARS):
        data = [data]
    if not isinstance(data, list | tuple | set | frozenset | range):
        return None
    values = [row[0] if isinstance(row, tuple | list) and len(row) == 1 else row for row in data]
    return _build_table(table, {name: values}, target)


def _build_table(table: str, columns: Mapping[str, Sequence[Any]], target: pa.Schema) -> pa.Table:
    fields = {field.name: field for field in target}
    arrays = {
        name: _build_column(table, values, fields[name]) if name in fields else pa.nulls(len(values))
        for name, values in columns.items()
    }
    return pa.table(arrays)


def _build_column(table: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values to an array of the inferred Arrow type, so that a later exact cast finds values that do not fit.

    Floats get the field's type, because Python has one float type; so do nested types, which Arrow cannot infer.
    """
    python_values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
    typed = bool(children(field.type)) or pa.types.is_floating(field.type)
    for kind in [field.type] if typed else [None, field.type]:
        try:
            array = _of_few(python_values) if kind is None else None
            array = pa.array(python_values, kind) if array is None else array
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        if children(field.type):
            require_lossless(table, python_values, array, field)
        return array
    for row, value in enumerate(python_values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}, row {row}: {value!r} does not fit {field.type}: {error}"
            ) from error
    raise SchemaMismatch(f"table {table}, column {field.name!r}: its values do not fit {field.type}")


def _of_few(values: Sequence[Any]) -> pa.Array | None:
    """Return a few ints or strings as the array that pyarrow infers, without its pandas; None for other values."""
    kinds = {type(value) for value in values} if len(values) <= _FEW else set()
    if kinds == {int} and -(2**63) <= min(values) <= max(values) < 2**63:
        return from_numpy(np.array(values, np.int64))
    return from_bytes([value.encode() for value in values], pa.string()) if kinds == {str} else None


# ---- nested values ---------------------------------------------------------------------------------------------------


def require_lossless(table: str, python_values: Sequence[Any], array: pa.Array, field: pa.Field) -> None:
    """Raise SchemaMismatch for the first row that Arrow has truncated: 1.5 to an integer, a dict to fewer fields."""
    for row, (value, stored) in enumerate(zip(python_values, array.to_pylist(), strict=True)):
        if not _is_lossless(value, stored, field.type):
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}, row {row}: {value!r} does not fit {field.type}: it would be "
                f"stored as {stored!r}"
            )


def _is_lossless(value: Any, stored: Any, kind: pa.DataType) -> bool:
    """Return True if Arrow has stored a nested Python value in full. Floats may be rounded, a dict may lack fields."""
    if stored is None or pa.types.is_floating(kind):
        return True
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    parts = [field.type for field in children(kind)]
    if pa.types.is_struct(kind):
        if not isinstance(value, Mapping):  # values in order, or pairs of names and values in order
            values = value if isinstance(value, tuple) else [item for _, item in value]
            value = dict(zip(stored, values, strict=True))
        has_all_fields = set(value) <= set(stored)
        return has_all_fields and all(
            _is_lossless(value.get(name), stored[name], part) for name, part in zip(stored, parts, strict=True)
        )
    if pa.types.is_map(kind):
        items = [*(value.items() if isinstance(value, Mapping) else value)]
        pairs = zip(items, stored, strict=True)
        return all(
            _is_lossless(item, stored_item, part)
            for pair in pairs
            for item, stored_item, part in zip(*pair, parts, strict=True)
        )
    if parts:
        return all(_is_lossless(item, stored_item, parts[0]) for item, stored_item in zip(value, stored, strict=True))
    return bool(value == stored)
