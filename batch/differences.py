"""Differences between the rows of an output and those of its query (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.sst.merge import lookup
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.key_codec import KeyCodec, contiguous, sort_indices
from epochlog.store.types.null_safe_equal import same_values
from epochlog.store.types.schema import TableSchema

EXPECTED = "_expected"
_T = pa.types


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Comparison of one output with its query.

    rows, expected_rows: the number of rows in the output, and in the query's answer. missing, extra, different: the
    number of rows that only the query has, that only the output has, and that both have with other values. The tables
    hold the first of each, by key: `missing_rows` and `extra_rows` whole rows; `different_rows` the key and each column
    that differs in some row, twice: with the output's values, and as `<column>_expected` with the query's.
    """

    output: str
    rows: int
    expected_rows: int
    missing: int
    extra: int
    different: int
    missing_rows: pa.Table
    extra_rows: pa.Table
    different_rows: pa.Table

    @property
    def ok(self) -> bool:
        """Return True if there is no difference."""
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        if self.ok:
            return f"{self.output}: {self.rows:,} rows, as the query gives"
        lines = [f"{self.output}: {self.rows:,} rows, the query gives {self.expected_rows:,}"]
        for finding, count, rows in (
            ("are missing", self.missing, self.missing_rows),
            ("are too many", self.extra, self.extra_rows),
            ("have other values", self.different, self.different_rows),
        ):
            if count:
                first = f", the first {rows.num_rows:,}" if rows.num_rows < count else ""
                lines += [f"{count:,} {finding}{first}:", *aligned(rows)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of comparing a job's outputs with a query over its upstreams, at `epoch`, the job's newest commit."""

    job: str
    epoch: int
    outputs: Mapping[str, OutputCheck]
    """Compared outputs, by name. `print(report)` shows the differences."""

    @property
    def ok(self) -> bool:
        """Return True if no output differs."""
        return all(output.ok for output in self.outputs.values())

    def __str__(self) -> str:
        result = "equal to its query" if self.ok else "NOT equal to its query"
        heading = f"job {self.job} at epoch {show_epoch(self.epoch)}: {result}"
        return "\n".join([heading, *map(str, self.outputs.values())])


def compare(schema: TableSchema, actual: pa.Table, answer: pa.Table, tolerance: float, sample: int) -> OutputCheck:
    """Compare the rows of an output with those of its query. Raises InvalidInput for rows that the table
    cannot hold.
    """
    codec, key = KeyCodec(schema.schema, schema.primary_key), list(schema.primary_key)
    actual, expected = _sort_by_key(codec, actual), _sort_by_key(codec, fitted(schema, answer))
    actual_keys, expected_keys = codec.encode(actual), codec.encode(expected)
    _refuse_repeated(schema, expected, expected_keys)
    positions = lookup(actual_keys, expected_keys)
    missing = expected.filter(pa.array(positions < 0))
    extra = actual.filter(pa.array(lookup(expected_keys, actual_keys) < 0))
    ours, theirs = actual.take(pa.array(positions[positions >= 0])), expected.filter(pa.array(positions >= 0))
    value_columns = [name for name in schema.schema.names if name not in key]
    differ = {name: ~_equal_rows(ours.column(name), theirs.column(name), tolerance) for name in value_columns}
    rows = np.flatnonzero(np.any([*differ.values(), np.zeros(ours.num_rows, np.bool_)], axis=0))
    different_columns = [name for name in value_columns if differ[name].any()]
    first = pa.array(rows[:sample])
    sides = (("", ours), (EXPECTED, theirs))
    pairs = {name + suffix: side.column(name).take(first) for name in different_columns for suffix, side in sides}
    return OutputCheck(
        schema.name,
        actual.num_rows,
        expected.num_rows,
        missing.num_rows,
        extra.num_rows,
        len(rows),
        missing.slice(0, sample),
        extra.slice(0, sample),
        pa.table({**{name: ours.column(name).take(first) for name in key}, **pairs}),
    )


def fitted(schema: TableSchema, answer: pa.Table) -> pa.Table:
    """Return a query's answer in the output's columns and types, cast where no value changes."""
    names: list[str] = answer.column_names
    if sorted(names) != sorted(schema.schema.names):
        raise InvalidInput(
            f"the query of {schema.name!r} has the columns {names}, but the output has {schema.schema.names}; select "
            "and name the output's columns (SELECT sum(x) AS total)"
        )
    columns = {field.name: _cast_column(schema.name, answer.column(field.name), field) for field in schema.schema}
    return schema.conform(pa.table(columns))


def _cast_column(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    kind = field.type
    if column.type.equals(kind):
        return column
    try:
        cast = column.cast(kind, safe=True)
        both_floats = _T.is_floating(kind) and _T.is_floating(column.type)
        exact = both_floats or same_values(contiguous(cast.cast(column.type)), contiguous(column)).all()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatch(
            f"the query of {table!r}: column {field.name!r} of type {column.type} cannot become {kind}: {error}; cast "
            "it in the query"
        ) from error
    if not exact:
        raise SchemaMismatch(
            f"the query of {table!r}: column {field.name!r} has values of type {column.type} that {kind} cannot hold; "
            "cast it in the query"
        )
    return cast


def _sort_by_key(codec: KeyCodec, rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(sort_indices(codec.encode(rows)))).combine_chunks()


def _refuse_repeated(schema: TableSchema, rows: pa.Table, keys: pa.Array) -> None:
    again = np.flatnonzero(pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)) if len(keys) > 1 else []
    if len(again):
        key = rows.select(list(schema.primary_key)).slice(again[0], 1).to_pylist()[0]
        raise InvalidInput(
            f"the query of {schema.name!r} has several rows with the key {key}, but a table has at most one; group by "
            f"{list(schema.primary_key)}"
        )


def _equal_rows(actual: pa.ChunkedArray, expected: pa.ChunkedArray, tolerance: float) -> np.ndarray:
    """Return bool[rows], True for equal values: null equals null, NaN equals NaN, -0.0 equals 0.0; floats may differ by
    `tolerance`.
    """
    if not _T.is_floating(actual.type):
        return same_values(contiguous(actual), contiguous(expected))
    a, b = (contiguous(pc.add(column.cast(pa.float64()), 0.0)) for column in (actual, expected))
    same = same_values(a, b)
    if tolerance:
        x, y = (pc.fill_null(column, np.nan).to_numpy(zero_copy_only=False) for column in (a, b))
        with np.errstate(invalid="ignore"):
            close = np.abs(x - y) <= tolerance * np.maximum(1.0, np.maximum(np.abs(x), np.abs(y)))
        same |= close & np.isfinite(x) & np.isfinite(y)
    return same


def aligned(rows: pa.Table) -> list[str]:
    """Format a few rows as lines of text, under the names of their columns."""
    columns = [[name, *map(_show_value, rows.column(name).to_pylist())] for name in rows.column_names]
    widths = [max(map(len, column)) for column in columns]
    return ["  " + "  ".join(_padded(columns, widths, line)) for line in range(rows.num_rows + 1)]


def _padded(columns: Sequence[Sequence[str]], widths: Sequence[int], line: int) -> list[str]:
    return [column[line].ljust(width) for column, width in zip(columns, widths, strict=True)]


def _show_value(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str | bytes) else str(value)
