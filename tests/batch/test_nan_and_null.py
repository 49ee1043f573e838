"""NaN and null in a nullable column: two values through every door, but one in numpy's columns of a pandas frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.types import python_rows

pytestmark = pytest.mark.local_only

NAN = float("nan")
VALUES = [None, NAN, 1.5]
TYPES = [pa.float64(), pa.float32()]
Door = Callable[[pa.DataType], Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os") as store:
        yield store


def spelled(value: Any) -> Any:
    """Return a value with NaN as a text, so that values can be compared."""
    if isinstance(value, list):
        return [spelled(item) for item in value]
    if isinstance(value, dict):
        return {name: spelled(item) for name, item in value.items()}
    return "NaN" if isinstance(value, float) and value != value else value


def scalars(kind: pa.DataType) -> Callable[[Any], Any]:
    return lambda value: None if value is None else kind.to_pandas_dtype()(value)


def masked(kind: pa.DataType) -> pa.Array:
    return pa.array(np.array([0, NAN, 1.5], kind.to_pandas_dtype()), mask=np.array([True, False, False]))


APART: dict[str, Door] = {
    "dicts": lambda kind: [{"id": at, "v": value} for at, value in enumerate(VALUES)],
    "dicts of numpy's scalars": lambda kind: [{"id": at, "v": scalars(kind)(v)} for at, v in enumerate(VALUES)],
    "Arrow": lambda kind: pa.table({"id": range(3), "v": pa.array(VALUES, kind)}),
    "Arrow of numpy": lambda kind: pa.table({"id": range(3), "v": masked(kind)}),
    "Arrow's batches": lambda kind: pa.table({"id": range(3), "v": pa.array(VALUES, kind)}).to_reader(1),
    "polars": lambda kind: pl.from_arrow(pa.table({"id": range(3), "v": pa.array(VALUES, pa.float64())})),
    "pandas over Arrow": lambda kind: pd.DataFrame(
        {"id": range(3), "v": pd.array(pa.array(VALUES, kind), pd.ArrowDtype(kind))}
    ),
}
ONE: dict[str, Door] = {
    "pandas": lambda kind: pd.DataFrame({"id": range(3), "v": np.array([NAN, NAN, 1.5], kind.to_pandas_dtype())}),
    "pandas with objects": lambda kind: pd.DataFrame({"id": range(3), "v": pd.Series(VALUES, dtype=object)}),
    "pandas with NA": lambda kind: pd.DataFrame({"id": range(3), "v": pd.array([None, None, 1.5], "Float64")}),
}


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_nan_is_the_greatest_number_in_duckdb_too(kind: pa.DataType, store: el.Store) -> None:
    """DuckDB 1 gives `x > 1` to Arrow, which leaves NaN out."""
    store.create_table("t", pa.schema([("id", pa.int64()), ("x", kind)]), ["id"])
    store.table("t").upsert(pa.table({"id": range(4), "x": pa.array([None, NAN, 1.5, 0.5], kind)}))
    with store.snapshot(["t"], consistency="latest") as snapshot, snapshot.duckdb() as connection:
        for text in ("x > 1", "x >= 1", "NOT x < 1", "x BETWEEN 1 AND 'nan'", "x > 1 OR x < 0"):
            rows = connection.execute(f"SELECT id FROM t WHERE {text} ORDER BY id").fetchall()
            assert rows == [(1,), (2,)], text


@pytest.mark.rule("1.30")
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("call", ["upsert", "update"])
def test_nan_stays_apart_from_null_where_the_data_has_both(kind: pa.DataType, call: str, store: el.Store) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind)])
    for number, (name, door) in enumerate({**APART, **ONE}.items()):
        table = store.create_table(f"t{number}", schema, ["id"])
        table.upsert([{"id": at, "v": -1.0} for at in range(3)])
        getattr(table, call)(door(kind))
        assert spelled(table.to_arrow()["v"].to_pylist()) == [
            None,
            None if name in ONE else "NaN",
            1.5,
        ], name


NESTED = {
    "list": (pa.list_(pa.float64()), [None, NAN, 1.5]),
    "array": (pa.list_(pa.float32()), np.array([NAN, 1.5], np.float32)),
    "struct": (pa.struct([("a", pa.float64()), ("b", pa.float64())]), {"a": NAN, "b": None}),
    "map": (pa.map_(pa.string(), pa.float64()), {"a": NAN, "b": None}),
    "list of structs": (pa.list_(pa.struct([("a", pa.float32())])), [{"a": NAN}, {"a": None}, None]),
}


@pytest.mark.rule("1.30")
@pytest.mark.parametrize("name", NESTED)
def test_nan_stays_apart_from_null_within_values(name: str, store: el.Store) -> None:
    kind, value = NESTED[name]
    table = store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind)]), ["id"])
    given = value.tolist() if isinstance(value, np.ndarray) else value
    items = list(given.items()) if pa.types.is_map(kind) else given
    for data in ([{"id": 1, "v": value}], pa.table({"id": [1], "v": pa.array([items], kind)})):
        table.upsert(data)
        (stored,) = table.to_arrow()["v"].to_pylist()
        assert spelled(dict(stored) if pa.types.is_map(kind) else stored) == spelled(given)


@pytest.mark.rule("1.30")
def test_nan_is_no_integer_and_a_key_of_numpy_is_a_number(store: el.Store) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", pa.float64(), nullable=False), ("n", pa.int64())]), ["k"])
    for row in ({"k": 1.0, "n": NAN}, {"k": 1.0, "n": np.float64(NAN)}):
        with pytest.raises(el.SchemaMismatch, match="column 'n', row 0: nan"):
            table.upsert([row])
    table.upsert([{"k": np.float64(NAN), "n": None}])
    for keys in ({"k": np.array([NAN])}, {"k": [NAN]}, np.array([NAN]), [NAN], NAN, pd.Series([NAN])):
        assert table.get(keys).num_rows == 1


@pytest.mark.planted
def test_rows_whose_nan_becomes_null_are_found(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = python_rows._build_table

    def build(table: str, columns: dict[str, list[Any]], target: pa.Schema) -> pa.Table:
        plain = {name: [None if value != value else value for value in values] for name, values in columns.items()}
        return real(table, plain, target)

    monkeypatch.setattr(python_rows, "_build_table", build)
    with pytest.raises(AssertionError, match="dicts"):
        test_nan_stays_apart_from_null_where_the_data_has_both(pa.float64(), "upsert", store)
