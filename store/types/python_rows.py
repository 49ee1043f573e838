"""Conversion of plain Python rows and keys (dicts, tuples, scalars) to Arrow tables."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from epochlog.errors import InvalidInput, SchemaMismatch

from .column_types import children

SCALARS = (int, float, str, bytes, Decimal, dt.date, dt.time, dt.timedelta, np.generic, pa.Scalar)


def from_rows(table: str, data: object, wanted: pa.Schema) -> pa.Table | None:
    """Return a list of dicts as a table, or None for other data. SchemaMismatch names a column that only some have."""
    if not isinstance(data, list | tuple) or not all(isinstance(row, Mapping) for row in data):
        return None
    if not data:
        return wanted.empty_table()
    names = list(dict.fromkeys(name for row in data for name in row))
    if not all(isinstance(name, str) for name in names):
        raise SchemaMismatch(f"table {table}: column names must be strings, not {names!r}")
    _require_alike(table, data, [name for name in names if name in wanted.names])
    return _table(table, {name: [row.get(name) for row in data] for name in names}, wanted)


def _require_alike(table: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raise SchemaMismatch for the first row that lacks one of the columns: a null would clear what is stored."""
    for at, row in enumerate(rows):
        missing = [name for name in names if name not in row]
        if missing:
            raise SchemaMismatch(
                f"table {table}, row {at}: column {', '.join(map(repr, missing))} is missing, which other rows have; "
                "give it in each row (None for null)"
            )


def from_keys(table: str, data: Any, wanted: pa.Schema) -> pa.Table | None:
    """Convert keys to a table: a scalar, an array or a list of scalars for a key of one column; a tuple or a list of
    tuples for one of several; a dict. None for other data.
    """
    if isinstance(data, Mapping):
        columns = all(
            isinstance(value, list | tuple | np.ndarray | pa.Array | pa.ChunkedArray) for value in data.values()
        )
        return pa.table(dict(data)) if columns else from_rows(table, [data], wanted)
    if len(wanted) == 1:
        return _from_scalars(table, data, wanted)
    if isinstance(data, tuple) and data and all(isinstance(value, SCALARS) for value in data):
        data = [data]
    if not isinstance(data, list | tuple | set | frozenset) or not data:
        return None
    rows = list(data)
    wrong = [row for row in rows if not isinstance(row, tuple | list) or len(row) != len(wanted)]
    if wrong:
        raise InvalidInput(
            f"table {table}: a key has the columns {', '.join(wanted.names)}: write it as a tuple of {len(wanted)} "
            f"values or as a dict, not as {wrong[0]!r}"
        )
    return _table(table, {name: [row[at] for row in rows] for at, name in enumerate(wanted.names)}, wanted)


def _from_scalars(table: str, data: Any, wanted: pa.Schema) -> pa.Table | None:
    name = wanted.names[0]
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return pa.table({name: data})
    pandas = sys.modules.get("pandas")
    if isinstance(data, np.ndarray) or (pandas is not None and isinstance(data, pandas.Series | pandas.Index)):
        return _from_array(table, data, name)
    if isinstance(data, SCALARS):
        data = [data]
    if not isinstance(data, list | tuple | set | frozenset | range):
        return None
    values = [row[0] if isinstance(row, tuple | list) and len(row) == 1 else row for row in data]
    return _table(table, {name: values}, wanted)


def _from_array(table: str, data: Any, name: str) -> pa.Table | None:
    """Convert a numpy array or pandas series to the key column; None if it has several dimensions."""
    if data.ndim != 1:
        return None
    try:
        return pa.table({name: pa.array(data, from_pandas=True)})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(f"table {table}, column {name!r}: its values have no type in common: {error}") from error


def _table(table: str, columns: Mapping[str, Sequence[Any]], wanted: pa.Schema) -> pa.Table:
    made = {
        name: _column(table, values, wanted.field(name)) if name in wanted.names else pa.nulls(len(values))
        for name, values in columns.items()
    }
    return pa.table(made)


def _column(table: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Convert values to an array in the type that Arrow infers, so that a later cast finds lost values; in the field's
    type for floats, of which Python has one kind, and for nested types, which cannot be inferred.
    """
    plain = [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]
    typed = bool(children(field.type)) or pa.types.is_floating(field.type)
    for kind in [field.type] if typed else [None, field.type]:
        try:
            made = pa.array(plain, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
        if children(field.type):
            _require_whole(table, plain, made, field)
        return made
    for row, value in enumerate(plain):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}, row {row}: {value!r} does not fit {field.type}: {error}"
            ) from error
    raise SchemaMismatch(f"table {table}, column {field.name!r}: its values do not fit {field.type}")


# ---- nested values ---------------------------------------------------------------------------------------------------


def _require_whole(table: str, given: Sequence[Any], made: pa.Array, field: pa.Field) -> None:
    """Raise SchemaMismatch for the first row of which Arrow cut something off: half of 1.5, a field of a dict."""
    for row, (value, kept) in enumerate(zip(given, made.to_pylist(), strict=True)):
        if not _is_whole(value, kept, field.type):
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}, row {row}: {value!r} does not fit {field.type}: {kept!r} would "
                "be left of it"
            )


def _is_whole(given: Any, kept: Any, kind: pa.DataType) -> bool:
    """Return True if Arrow kept all of a nested Python value. Floats may be rounded, and a dict may lack fields."""
    if kept is None or pa.types.is_floating(kind):
        return True
    given = given.as_py() if isinstance(given, pa.Scalar) else given
    inside = [field.type for field in children(kind)]
    if pa.types.is_struct(kind):
        if not isinstance(given, Mapping):  # values in order, or pairs of names and values in order
            values = given if isinstance(given, tuple) else [value for _, value in given]
            given = dict(zip(kept, values, strict=True))
        known = set(given) <= set(kept)
        return known and all(
            _is_whole(given.get(name), kept[name], one) for name, one in zip(kept, inside, strict=True)
        )
    if pa.types.is_map(kind):
        items = [*(given.items() if isinstance(given, Mapping) else given)]
        pairs = zip(items, kept, strict=True)
        return all(
            _is_whole(ours, theirs, one) for pair in pairs for ours, theirs, one in zip(*pair, inside, strict=True)
        )
    if inside:
        return all(_is_whole(ours, theirs, inside[0]) for ours, theirs in zip(given, kept, strict=True))
    return bool(given == kept)
