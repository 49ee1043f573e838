"""A pandas frame that is read and written back changes no value, and what pandas may have rounded is refused."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.batch import pandas_frames as reading
from random_types import LEAVES, random_type_field, random_value

pytestmark = pytest.mark.local_only

BIG = 2**53 + 1
NAN = float("nan")
Values = list[Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os") as store:
        yield store


def written(store: el.Store, name: str, *fields: pa.Field, columns: dict[str, Any]) -> el.Table:
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    table = store.create_table(name, schema, ["id"])
    rows = len(next(iter(columns.values())))
    table.upsert(pa.table({"id": range(rows), **columns}, schema=table.schema))
    return table


def same_rows(a: pa.Table, b: pa.Table) -> bool:
    """Return True for tables of equal types and values, NaN included."""
    columns = zip(a.combine_chunks().columns, b.combine_chunks().columns, strict=True)
    return a.schema == b.schema and all(x.equals(y) or shown(x) == shown(y) for x, y in columns)


def shown(column: pa.Array) -> str:
    try:
        return repr(column.to_pylist())
    except (ValueError, OverflowError):  # a time outside of Python's range
        return column.to_string(window=1_000, container_window=1_000)


OPTIONS = [{}, {"dtype_backend": "pyarrow"}, {"dtype_backend": "numpy_nullable"}, {"types_mapper": pd.ArrowDtype}]
FLOATS = {pa.float32(): pd.Float32Dtype(), pa.float64(): pd.Float64Dtype()}


@pytest.mark.rule("1.30")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_frame_written_back_keeps_integers_and_nan(store: el.Store, options: dict[str, Any]) -> None:
    table = written(
        store, "t", pa.field("n", pa.int64()), pa.field("x", pa.float64()), pa.field("p", pa.list_(pa.decimal64(9, 2))),
        columns={"n": [BIG, None, 1], "x": [NAN, None, 0.5], "p": [[Decimal("1.10"), None], None, []]},
    )  # fmt: skip
    before, frame = table.to_arrow(), table.to_pandas(**options)
    assert frame["n"][0] == BIG and frame["n"][1] is pd.NA
    assert math.isnan(frame["x"][0]) and frame["x"][1] is pd.NA
    table.upsert(frame)
    assert same_rows(table.to_arrow(), before)


def test_the_options_of_to_pandas(store: el.Store) -> None:
    table = written(store, "t", pa.field("n", pa.int64()), columns={"n": [1, None]})
    epoch = table.upsert([{"id": 0, "n": 2}])
    frame = table.to_pandas(epoch=epoch, columns=["n"], types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    assert frame["n"].dtype == pd.Int64Dtype() and list(frame.columns) == ["n"]
    with store.snapshot() as moment:
        assert moment["t"].to_pandas(dtype_backend="pyarrow")["n"].dtype == pd.ArrowDtype(pa.int64())
    for options in (
        {"dtype_backend": "numpy"},
        {"types_mapper": {}},
        {"dtype_backend": "pyarrow", "types_mapper": print},
    ):
        with pytest.raises(el.InvalidInput, match="dtype_backend|types_mapper"):
            table.to_pandas(**options)


def test_the_default_types_are_those_of_numpy_where_it_holds_the_values(store: el.Store) -> None:
    fields = [pa.field("n", pa.int64()), pa.field("x", pa.float64()), pa.field("at", pa.timestamp("us", "UTC"))]
    table = written(store, "t", *fields, columns={"n": [1, None], "x": [0.5, None], "at": [1, None]})
    assert [str(kind) for kind in table.to_pandas().dtypes] == ["int64", "float64", "float64", "datetime64[us, UTC]"]
    before = table.to_arrow()
    table.upsert(table.to_pandas())
    assert table.to_arrow() == before


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    "options",
    [{"dtype_backend": "numpy_nullable"}, {"types_mapper": FLOATS.get}],
    ids=["numpy_nullable", "types_mapper"],
)
def test_a_nan_has_no_nullable_float_of_pandas(store: el.Store, options: dict[str, Any], nullable: bool) -> None:
    """pandas 3 would make a null of it."""
    fields = [pa.field("x", pa.float32(), nullable), pa.field("y", pa.float64(), nullable)]
    table = written(store, "t", *fields, columns={"x": [NAN, 1.5], "y": [0.5, 1.5]})
    before, frame = table.to_arrow(), table.to_pandas(**options)
    assert frame["x"].dtype == pd.ArrowDtype(pa.float32()) and frame["y"].dtype == pd.Float64Dtype()
    table.upsert(frame)
    assert same_rows(table.to_arrow(), before)


# ---- what is refused -------------------------------------------------------------------------------------------------


def through_upsert(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    table.upsert(frame)


def through_update(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    table.update(frame)


def through_ignored_nulls(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    table.update(frame, ignore_nulls=True)


def through_writer(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    table.writer().upsert(frame)


def through_transaction(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    with store.transaction() as tx:
        tx.upsert(table.name, frame)


def through_a_job(store: el.Store, table: el.Table, frame: pd.DataFrame) -> None:
    store.create_job("j", [table.name], {"o": (table.schema, ["id"])})
    store.checkpoint()
    store.job("j").step_local(lambda ctx: ctx.upsert("o", frame))


DOORS: dict[str, Callable[[el.Store, el.Table, pd.DataFrame], None]] = {
    "upsert": through_upsert,
    "update": through_update,
    "update without nulls": through_ignored_nulls,
    "writer": through_writer,
    "transaction": through_transaction,
    "job": through_a_job,
}


ROUNDED = "can be an integer that pandas has rounded to a float"


@pytest.mark.rule("1.30")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind, cells, row", [
    (pa.int64(), [1, BIG, None], 1),
    (pa.list_(pa.int64()), [[1], [], [BIG, None]], 2),
    (pa.struct([("a", pa.uint64())]), [{"a": BIG}, None, {"a": None}], 0),
    (pa.map_(pa.string(), pa.int64()), [[("a", BIG), ("b", None)], [], []], 0),
], ids=str)  # fmt: skip
def test_integers_that_pandas_has_rounded_are_refused(
    store: el.Store, door: str, kind: pa.DataType, cells: Values, row: int
) -> None:
    table = written(store, "t", pa.field("v", kind), columns={"v": cells})
    before = table.to_arrow()
    with pytest.raises(el.SchemaMismatch, match=rf"table [to], column 'v', row {row}: 9007199254740992.0 {ROUNDED}"):
        DOORS[door](store, table, before.to_pandas())  # pyarrow's own, which rounds
    assert table.to_arrow() == before


def test_the_advice_of_the_refusal(store: el.Store) -> None:
    table = written(store, "t", pa.field("n", pa.int64()), columns={"n": [1, 2]})
    frame = pd.DataFrame({"id": [0, 1], "n": [BIG, None]})
    with pytest.raises(el.SchemaMismatch, match="^table t, column 'n', row 0: 9007.*pandas.array.*'Int64'"):
        table.upsert(frame)
    frame["n"] = pd.array([BIG, None], "Int64")
    table.upsert(frame)
    assert table.to_arrow()["n"].to_pylist() == [BIG, None]


@pytest.mark.rule("1.30")
def test_what_nan_is_in_a_column_of_numpy(store: el.Store) -> None:
    """A null, but a number in columns and keys of floats that have no null."""
    schema = pa.schema([
        ("k", pa.float64()), pa.field("x", pa.float64(), nullable=False), ("y", pa.float64()), ("n", pa.int32()),
        ("s", pa.string()), ("d", pa.decimal128(9, 2)), ("l", pa.list_(pa.float32())),
        ("r", pa.list_(pa.field("item", pa.float32(), nullable=False))),
    ])  # fmt: skip
    table = store.create_table("t", schema, ["k"])
    frame = pd.DataFrame({
        "k": [1.0, NAN], "x": [NAN, 2.0], "y": [NAN, 0.5], "n": [NAN, 1.0], "s": [NAN, "a"], "d": [NAN, 1.5],
        "l": [np.array([1, NAN]), None], "r": [np.array([1, NAN]), NAN],
    })  # fmt: skip
    for data in (frame, frame.astype({"x": object, "y": object})):
        table.upsert(data)
        rows = table.to_arrow().to_pylist()
        assert [[row[name] for name in "ynsd"] for row in rows] == [[None] * 4, [0.5, 1, "a", Decimal("1.50")]]
        assert math.isnan(rows[0]["x"]) and math.isnan(rows[1]["k"]) and rows[0]["l"] == [1.0, None]
        assert math.isnan(rows[0]["r"][1]) and rows[1]["r"] is None
    assert table.get(np.array([NAN])).num_rows == table.get(pd.Series([NAN])).num_rows == 1
    table.update(pd.DataFrame({"k": [1.0], "x": [NAN], "n": [5]}), ignore_nulls=True)
    table.delete(pd.DataFrame({"k": [NAN]}))
    assert table.to_arrow()["n"].to_pylist() == [5]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind, value", [
    (pa.timestamp("us"), -(2**63)), (pa.duration("s"), -(2**63)), (pa.date32(), 3_000_000), (pa.time64("ns"), 1),
    (pa.list_(pa.timestamp("ns", "UTC")), [-(2**63)]), (pa.struct([("a", pa.time64("ns"))]), {"a": 1}),
    (pa.list_(pa.decimal64(9, 2)), [Decimal("1.10"), None]), (pa.list_(pa.int64()), [BIG, None]),
    (pa.struct([("a", pa.int8()), ("a", pa.int8())]), [("a", 1), ("a", 2)]), (pa.list_(pa.float32()), [NAN, None]),
], ids=str)  # fmt: skip
def test_values_that_numpy_cannot_hold(store: el.Store, kind: pa.DataType, value: Any, options: dict[str, Any]) -> None:
    plain = kind if pa.types.is_nested(kind) else pa.int32() if pa.types.is_date32(kind) else pa.int64()
    table = written(store, "t", pa.field("v", kind), columns={"v": pa.array([value, None], plain).view(kind)})
    before = table.to_arrow()
    table.upsert(table.to_pandas(**options))
    assert same_rows(table.to_arrow(), before)


# ---- all types -------------------------------------------------------------------------------------------------------


def extremes(kind: pa.DataType) -> Values:
    """Values of a leaf at the edges of its type, as Python objects or scalars."""
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return [low, low + 2**kind.bit_width - 1, min(BIG, low + 2**kind.bit_width - 1)]
    if pa.types.is_floating(kind):
        return [NAN, math.inf, -math.inf, -0.0, float(np.finfo(kind.to_pandas_dtype()).max)]
    if pa.types.is_decimal(kind):
        return [Decimal((0, (9,) * kind.precision, -kind.scale)), Decimal((1, (1,), -kind.scale))]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        numbers = (-1, 2**53 + 1) if kind.unit == "s" else (-1, 2**53 + 1, 1 - 2**63, 2**63 - 1)
        return [pa.scalar(number, pa.int64()).cast(kind) for number in numbers]
    return {pa.date32(): [dt.date.max, dt.date.min], pa.string(): ["\0", "\U0010ffff"]}.get(kind, [])


def leaves(kind: pa.DataType) -> Values:
    """Return values of a leaf type, extreme ones too."""
    return [*LEAVES[kind], *extremes(kind)]


NUMBERS = [kind for kind in LEAVES if pa.types.is_floating(kind)] + [pa.uint64()]
"""Types of which numpy, without nulls, changes values."""


def random_case(rng: random.Random) -> pa.Table:
    """A few columns of any types, with values of any kind."""
    fields, columns = [], []
    for place in range(rng.choice([1, 1, 2])):
        field = random_type_field(rng, f"c{place}", rng.choice([0, 1, 1, 2]))
        if rng.random() < 0.5:
            number = pa.field("x", rng.choice(NUMBERS), rng.random() < 0.8)
            field = field.with_type(rng.choice([number.type, pa.list_(number), pa.struct([number])]))
        drawn = [random_value(rng, field.type, field.nullable, leaves) for _ in range(5)]
        fields.append(field)
        columns.append(drawn)
    rows = max(map(len, columns))
    arrays = [pa.array([values[row % len(values)] for row in range(rows)], field.type)
              for values, field in zip(columns, fields, strict=True)]  # fmt: skip
    return pa.Table.from_arrays([pa.array(range(rows)), *arrays], schema=pa.schema([("id", pa.int64()), *fields]))


def trips(store: el.Store, seeds: range) -> None:
    """Write frames of random rows back, of all kinds of types: no value changes."""
    for seed in seeds:
        rows = random_case(random.Random(seed))
        try:
            table = store.create_table(f"t{seed}", rows.schema, ["id"])
        except el.InvalidSchema:
            continue
        table.upsert(rows)
        before = table.to_arrow()
        for options in OPTIONS:
            table.upsert(table.to_pandas(**options))
            assert same_rows(table.to_arrow(), before), (seed, options, rows.schema)


@pytest.mark.medium
@pytest.mark.rule("1.30")
def test_frames_of_all_types_written_back_change_no_value(store: el.Store) -> None:
    trips(store, range(60))


@pytest.mark.long
def test_frames_of_all_types_at_length(store: el.Store) -> None:
    trips(store, range(1_000, 2_500))


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize("planted", ["numbers of numpy", "objects"])
def test_a_frame_of_other_values_is_found(store: el.Store, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    hold = reading._numpy_holds
    nested = planted == "objects"
    monkeypatch.setattr(
        reading,
        "_numpy_holds",
        lambda values, nullable, **how: pa.types.is_nested(values.type) == nested or hold(values, nullable, **how),
    )
    with pytest.raises((AssertionError, el.SchemaMismatch, pa.ArrowException)):
        trips(store, range(60))
