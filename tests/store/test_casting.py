"""Values that fit a column are cast, whatever number they come as; else the first row that does not is named."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.types.casting import Unfit, cast_values
from epochlog.store.types.column_types import fits
from plain_flight import connected, path, put

pytestmark = pytest.mark.local_only


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


FITTING = [
    (pa.decimal128(20, 2), pa.decimal128(8, 2), [Decimal("999999.99"), None, Decimal("-0.01")], Decimal("1000000.00")),
    (pa.decimal128(9, 4), pa.decimal128(8, 2), [Decimal("1.2500"), None], Decimal("1.2510")),
    (pa.decimal256(60, 2), pa.decimal128(8, 2), [Decimal("1.25")], Decimal("10000000.00")),
    (pa.decimal128(8, 2), pa.int32(), [Decimal("5.00")], Decimal("5.01")),
    (pa.int64(), pa.decimal128(8, 2), [999_999, None], 1_000_000),
    (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1], None),
    (pa.int64(), pa.float64(), [2**60, -(2**63), 2**53, None], 2**53 + 1),
    (pa.int64(), pa.float64(), [0], 2**63 - 1),
    (pa.uint64(), pa.float64(), [2**63], 2**64 - 1),
    (pa.int64(), pa.float32(), [2**24, 2**40], 2**24 + 1),
    (pa.int64(), pa.int32(), [2**31 - 1, -(2**31), None], 2**31),
    (pa.int64(), pa.uint64(), [2**63 - 1], -1),
    (pa.uint64(), pa.int64(), [2**63 - 1], 2**63),
    (pa.float64(), pa.int64(), [2.0**62, -(2.0**63), -0.0, None], 2.0**63),
    (pa.float64(), pa.int8(), [-128.0, 127.0], 0.5),
    (pa.float64(), pa.int64(), [1.0], math.nan),
    (pa.float64(), pa.int64(), [1.0], -math.inf),
    (pa.float64(), pa.float32(), [0.5, math.nan, math.inf, None], 0.1),
    (pa.float64(), pa.float32(), [0.5], 1e300),
    (pa.float64(), pa.decimal128(8, 2), [0.5, -19.99, 999999.99, 5.0, None], 0.1 + 0.2),
    (pa.float64(), pa.decimal128(8, 2), [0.5], 1000000.0),
    (pa.float64(), pa.decimal128(38, 0), [2.0**53 - 1, 1.0 - 2.0**53], 2.0**70),
    (pa.float64(), pa.decimal256(60, 4), [1.25e-2], 1.25e-5),
    (pa.float64(), pa.decimal64(8, 2), [0.25], math.nan),
    (pa.float32(), pa.decimal128(8, 2), [0.25], -math.inf),
    (pa.decimal256(60, 20), pa.uint64(), [Decimal(2**64 - 1), Decimal(2**64 - 2), None], Decimal(2**64)),
    (pa.decimal256(60, 20), pa.decimal128(20, 1), [Decimal(2**60), None, Decimal("-0.1")], Decimal("0.01")),
    (pa.timestamp("ns"), pa.timestamp("us"), [dt.datetime(2020, 1, 1)], pa.scalar(1, pa.timestamp("ns"))),
]


@pytest.mark.parametrize("kind, wanted, good, bad", FITTING, ids=lambda v: str(v)[:30])
def test_values_decide(kind: pa.DataType, wanted: pa.DataType, good: list[Any], bad: Any) -> None:
    column = pa.chunked_array([pa.array(good, kind), pa.array(good, kind)])
    result = cast_values(column, wanted)
    assert result.type == wanted
    if pa.types.is_floating(kind) and pa.types.is_decimal(wanted):
        good = [None if value is None else Decimal(str(value)) for value in good]
    assert all(same(a, b) for a, b in zip(result.to_pylist(), good * 2, strict=True))
    if bad is None:
        return
    worse = pa.array([bad] * 2, kind)
    with pytest.raises(Unfit) as error:
        cast_values(pa.chunked_array([*column.chunks, worse]), wanted)
    assert error.value.row == 2 * len(good)


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53 + n for n in range(-2, 3)]), st.integers(-300, 300)
)


@pytest.mark.medium
@settings(max_examples=60)
@given(
    st.lists(st.one_of(NUMBERS, st.none()), min_size=1, max_size=8),
    st.sampled_from(
        [pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(12, 3)]
    ),
)
def test_integers_fit_where_they_are_equal(values: list[int | None], wanted: pa.DataType) -> None:
    def holds(value: int | None) -> bool:
        if value is None:
            return True
        if pa.types.is_floating(wanted):
            return int(np.dtype(wanted.to_pandas_dtype()).type(value)) == value
        if pa.types.is_decimal(wanted):
            return abs(value) < 10**9
        info = np.iinfo(wanted.to_pandas_dtype())
        return int(info.min) <= value <= int(info.max)

    column = pa.chunked_array([pa.array(values, pa.int64())])
    bad = [row for row, value in enumerate(values) if not holds(value)]
    if bad:
        with pytest.raises(Unfit) as error:
            cast_values(column, wanted)
        assert error.value.row == bad[0]
    else:
        assert cast_values(column, wanted).to_pylist() == values


@pytest.mark.parametrize("values", [[1000000.0, 2.0**53], [0.125, 2.0**53], [0.125, float("nan")]])
def test_the_first_float_that_fits_no_decimal_is_named(values: list[float]) -> None:
    with pytest.raises(Unfit) as error:
        cast_values(pa.chunked_array([values]), pa.decimal128(8, 2))
    assert error.value.row == 0


@settings(max_examples=60)
@given(st.lists(st.one_of(st.floats(), st.decimals(-(10**6), 10**6, places=2).map(float), st.none()), max_size=6))
def test_floats_fit_decimals_as_they_are_written(values: list[float | None]) -> None:
    def written(value: float) -> Decimal | None:
        if not abs(value) < 10**6:
            return None
        exact = Decimal(repr(value))
        return exact.quantize(Decimal("0.01")) if exact == exact.quantize(Decimal("0.01")) else None

    column = pa.chunked_array([pa.array(values, pa.float64())])
    wanted = [None if value is None else written(value) for value in values]
    bad = [row for row, value in enumerate(values) if value is not None and wanted[row] is None]
    if bad:
        with pytest.raises(Unfit) as error:
            cast_values(column, pa.decimal128(8, 2))
        assert error.value.row == bad[0]
    else:
        assert cast_values(column, pa.decimal128(8, 2)).to_pylist() == wanted


WIDE_INSIDE = pa.struct([("a", pa.int64()), ("b", pa.float64())])
NARROW_INSIDE = pa.struct([("a", pa.int32()), ("b", pa.decimal128(8, 2))])
STRICT_INSIDE = pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.decimal128(8, 2))])
FINE, LATE = {"a": 1, "b": 0.25}, {"a": 2**31, "b": 0.25}
CENTS = {"a": 1, "b": 0.125}


@pytest.mark.parametrize("kind, wanted, good, bad, message", [
    (WIDE_INSIDE, NARROW_INSIDE, [FINE, None, {"a": None, "b": -1.5}], LATE, "field 'a': 2147483648 of type int64"),
    (WIDE_INSIDE, STRICT_INSIDE, [FINE, None], CENTS, r"field 'b': 0.125 of type double does not fit decimal128\(8, 2"),
    (pa.list_(pa.int64()), pa.list_(pa.int8()), [[1, None], None, [], [3]], [1, 128], "item: 128 of type int64 does"),
    (pa.list_(pa.int64()), pa.large_list(pa.int8()), [[1, 2], None], [128], "item: 128"),
    (pa.list_(pa.int64(), 2), pa.list_(pa.int8()), [[1, 2], None, [3, 4]], [1, 128], "item: 128"),
    (pa.list_(pa.int64()), pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]], [1, 128], "item: 128"),
    (pa.list_(pa.int64()), pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]], [1, 2, 3], r"\[1, 2, 3\]"),
    (pa.list_(WIDE_INSIDE), pa.list_(NARROW_INSIDE), [[FINE, None], None, []], [FINE, LATE], "item, field 'a': 2147"),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8()), [[("x", 1), ("y", None)], None, []],
     [("x", 1), ("y", 128)], "value: 128"),
    (pa.map_(pa.int64(), WIDE_INSIDE), pa.map_(pa.int8(), NARROW_INSIDE), [[(1, FINE)]], [(128, FINE)], "key: 128"),
    (pa.struct([("s", pa.list_(pa.list_(pa.float64())))]), pa.struct([("s", pa.list_(pa.list_(pa.int16())))]),
     [{"s": [[1.0], [], None]}, {"s": None}], {"s": [[1.0], [2.0, 2.5]]}, "field 's', item, item: 2.5"),
    (pa.struct([("d", pa.dictionary(pa.int8(), pa.int64()))]), pa.struct([("d", pa.int8())]), [{"d": 1}, None],
     {"d": 128}, "field 'd': 128"),
], ids=lambda v: str(v)[:30])  # fmt: skip
def test_values_inside_of_others_decide(
    kind: pa.DataType, wanted: pa.DataType, good: list[Any], bad: Any, message: str
) -> None:
    chunk = pa.array([*good, bad], kind)
    column = pa.chunked_array([chunk[: len(good)], pa.array([bad, *good], kind)[1:], pa.array([], kind)])
    assert fits(kind, wanted)
    result = cast_values(column, wanted)
    result.validate(full=True)
    assert result.type == wanted and result.to_pylist() == column.to_pylist()
    assert cast_values(pa.chunked_array([], kind), wanted).type == wanted
    with pytest.raises(Unfit, match=rf"^row {2 * len(good)}(, |: ){message}"):
        cast_values(pa.chunked_array([*column.chunks, chunk[len(good) :]]), wanted)


def test_values_beneath_a_null_are_not_looked_at(store: el.Store) -> None:
    hidden = pa.StructArray.from_arrays([pa.array([1, 2**40])], names=["a"], mask=pa.array([False, True]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2**40]), mask=pa.array([False, True]))
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    schema = pa.schema([("id", pa.int64()), ("s", inner), ("l", pa.list_(pa.int32()))])
    table = store.create_table("nested", schema, ["id"])
    table.upsert(pa.table({"id": [1, 2], "s": hidden, "l": lists}))
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"a": 1}, "l": [1]}, {"id": 2, "s": None, "l": None}]
    with pytest.raises(el.SchemaMismatch, match="table nested, column 's': nulls where"):
        table.upsert(pa.table({"id": [1], "s": pa.array([{"a": None}], pa.struct([("a", pa.int64())])), "l": [[1]]}))
    with pytest.raises(
        el.SchemaMismatch, match="^table nested, column 'l', row 1, item: 1099511627776 of type int64 does"
    ):
        table.upsert(pa.table({"id": [1, 2], "s": [None, {"a": 1}], "l": [[1], [2, 2**40]]}))


# ---- through the doors ---------------------------------------------------------------------------------------------

PRICES = pa.schema([("id", pa.int64()), ("price", pa.decimal128(8, 2)), ("score", pa.float64())])
WIDE = pa.schema([("id", pa.float64()), ("price", pa.decimal128(20, 2)), ("score", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with el.open(tmp_path / "lake", durability="os") as store:
        store.create_table("prices", PRICES, ["id"])
        yield store


def wide(price: str = "5.00") -> pa.Table:
    return pa.table({"id": [1.0, 2.0], "price": [Decimal("1.25"), Decimal(price)], "score": [1, 2**60]}, schema=WIDE)


def through_writer(store: el.Store, data: Any) -> None:
    writer = store.table("prices").writer()
    writer.upsert(data)
    store.commit({"prices": writer.seal(1)})


def through_transaction(store: el.Store, data: Any) -> None:
    with store.transaction() as tx:
        tx.upsert("prices", data)


def through_a_job(store: el.Store, data: Any) -> None:
    store.create_table("source", PRICES, ["id"])
    store.create_job("j", ["source"], {"out": (PRICES, ["id"])})
    store.checkpoint()
    store.job("j").step_local(lambda ctx: ctx.upsert("out", data))
    store.table("prices").upsert(store.table("out"))


def through_flight(store: el.Store, data: Any) -> None:
    with el.serve(store, "grpc://127.0.0.1:0") as server, connected(server.location) as (client, _):
        put(client, path("prices"), data)


def through_a_spark_task(store: el.Store, data: Any) -> None:
    from epochlog.spark.task_writer import write_batches
    from epochlog.store.commit.change import TableChange
    from epochlog.store.commit.root_commit import RootCommit
    from epochlog.store.commit.transaction import commit_changes

    table = store.table("prices")._table
    segments = write_batches(store._handle.write_target(table), data.to_batches())
    commit_changes(store._handle, [TableChange(table, tuple(segments))], RootCommit(), delete_refused=True)


DOORS = {
    "upsert": lambda store, data: store.table("prices").upsert(data),
    "writer": through_writer,
    "transaction": through_transaction,
    "refresh": through_a_job,
    "spark": through_a_spark_task,
    "flight": through_flight,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_casts_what_fits_and_names_the_row_that_does_not(store: el.Store, door: str) -> None:
    with pytest.raises(Exception, match=r"column 'price', row 1: .*12345678\.90.* does not fit decimal128\(8, 2\)"):
        DOORS[door](store, wide("12345678.90"))
    assert store.table("prices").count() == 0
    if door == "refresh":
        store.drop_job("j")
        store.drop_table("source")
    DOORS[door](store, wide())
    assert store.table("prices").to_arrow().to_pylist() == [
        {"id": 1, "price": Decimal("1.25"), "score": 1.0},
        {"id": 2, "price": Decimal("5.00"), "score": 2.0**60},
    ]


# ---- dicts and scalars ---------------------------------------------------------------------------------------------


def test_rows_are_given_as_dicts(store: el.Store) -> None:
    table = store.table("prices")
    table.upsert([
        {"id": 1, "price": Decimal("1.25"), "score": 1},
        {"score": 0.1, "id": 2, "price": 3},
        {"id": 3, "price": None, "score": None},
    ])  # fmt: skip
    table.upsert([])
    assert table.to_arrow().to_pylist() == [
        {"id": 1, "price": Decimal("1.25"), "score": 1.0},
        {"id": 2, "price": Decimal("3.00"), "score": 0.1},
        {"id": 3, "price": None, "score": None},
    ]
    for rows, message in (
        ([{"id": 1, "price": 1, "score": 1, "colour": "red"}], "unknown column 'colour'"),
        ([{"id": 1, "price": Decimal("1.255"), "score": 1}], r"column 'price', row 0"),
        ([{"id": 1, "price": 1, "score": 1}, {"id": 2, "price": 1, "score": "x"}], r"column 'score', row 1: 'x'"),
        ([{"price": 1, "score": 1}], "column 'id' is missing"),
        ([{"id": 1, "price": 1, "score": 1}, {"price": 1, "score": 1}], "row 1: column 'id' is missing"),
        ([{"id": None, "price": 1, "score": 1}], "primary-key column 'id': 1 of"),
        ([{"id": 1, "price": 1}], "column 'score' is missing"),
        ([{1: 1}], "column names must be strings"),
    ):
        with pytest.raises(el.SchemaMismatch, match=message):
            table.upsert(rows)
    with pytest.raises(el.InvalidInput, match="list of dicts"):
        table.upsert([1, 2])
    assert table.count() == 3


def test_a_column_that_one_dict_leaves_out_is_no_null(store: el.Store) -> None:
    table = store.table("prices")
    whole = {"id": 1, "price": Decimal("1.25"), "score": 1.0}
    table.upsert([whole])
    for rows, message in (
        ([{"id": 2, "price": 2, "score": 2}, {"id": 1, "price": 3}], "row 1: column 'score' is missing"),
        ([{"id": 1}, {"id": 2, "price": 2, "score": 2}], "row 0: column 'price', 'score' is missing"),
        ([{"id": 2, "price": 2, "score": 2}, {}], "row 1: column 'id', 'price', 'score' is missing"),
    ):
        with pytest.raises(el.SchemaMismatch, match=rf"^table prices, {message}.*None for null"):
            table.upsert(rows)
        with pytest.raises(el.SchemaMismatch, match=message), store.transaction() as tx:
            tx.upsert("prices", rows)
    with pytest.raises(el.SchemaMismatch, match="unknown column 'colour'"):
        table.upsert([whole, {**whole, "colour": "red"}])
    assert table.to_arrow().to_pylist() == [whole]


def test_nested_rows_are_given_as_dicts(store: el.Store) -> None:
    kind = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    table = store.create_table("nested", pa.schema([("id", pa.string()), ("s", kind), ("at", pa.date32())]), ["id"])
    rows = [{"id": "x", "s": {"a": 1, "b": ["u", None]}, "at": dt.date(2026, 1, 1)}]
    table.upsert(rows)
    assert table.to_arrow().to_pylist() == rows
    with pytest.raises(el.SchemaMismatch, match="column 's', row 0"):
        table.upsert([{"id": "x", "s": {"a": 1000}, "at": None}])


NESTED = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.date32()))])


@pytest.mark.parametrize("kind, good, bad", [
    (pa.list_(pa.int64()), [1, None, 2.0], [1.5]),
    (pa.list_(pa.int64()), np.array([1, 2]), np.array([1.5])),
    (pa.list_(pa.float32()), [0.1, float("nan"), None], [2**53 + 1]),
    (pa.list_(pa.decimal128(8, 2)), [Decimal("1.2"), 3], [Decimal("1.234")]),
    (pa.list_(pa.timestamp("s")), [dt.datetime(2026, 1, 1)], [dt.datetime(2026, 1, 1, microsecond=1)]),
    (pa.list_(pa.timestamp("us")), [dt.datetime(2026, 1, 1)], [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    (pa.list_(pa.string()), ["x", None], [b"x"]),
    (pa.list_(NESTED), [{"a": 1, "b": [dt.date(2026, 1, 1)]}, None, {}], [{"b": [dt.datetime(2026, 1, 1, 5)]}]),
    (NESTED, {"a": 1, "b": None}, {"a": 1, "c": 2}),
    (NESTED, [("a", 1), ("b", [])], [("a", 1), ("b", [dt.datetime(2026, 1, 1, 5)])]),
    (pa.map_(pa.string(), pa.int64()), {"x": 1, "y": None}, [("x", 1.5)]),
], ids=str)  # fmt: skip
def test_of_nested_values_nothing_is_cut_off(store: el.Store, kind: pa.DataType, good: Any, bad: Any) -> None:
    table = store.create_table("nested", pa.schema([("id", pa.string()), ("s", kind)]), ["id"])
    table.upsert([{"id": "x", "s": good}, {"id": "y", "s": None}])
    assert table.to_arrow()["s"].null_count == 1
    with pytest.raises(el.SchemaMismatch, match="column 's', row 1"):
        table.upsert([{"id": "x", "s": good}, {"id": "y", "s": bad}])


def test_arrays_that_are_no_keys_are_refused_by_name(store: el.Store) -> None:
    table = store.table("prices")
    for bad in (np.array([[1, 2]]), np.array(1), np.array([1, "a"], dtype=object), pd.Series([1, b"a"])):
        with pytest.raises((el.InvalidInput, el.SchemaMismatch), match="table prices"):
            table.get(bad)


@pytest.mark.parametrize("keys", [
    [2, 1], (2, 1), [2.0, 1.0], np.array([2, 1]), pa.array([2, 1]), pa.chunked_array([[2], [1]]), pd.Series([2, 1]),
    [{"id": 2}, {"id": 1}], {"id": [2, 1]}, pa.table({"id": [2, 1]}), pl.DataFrame({"id": [2, 1]}), [(2,), (1,)],
    [np.int64(2), pa.scalar(1)],
], ids=lambda keys: type(keys).__name__)  # fmt: skip
def test_keys_of_one_column(store: el.Store, keys: Any) -> None:
    table = store.table("prices")
    table.upsert([{"id": n, "price": n, "score": n} for n in (1, 2, 3)])
    assert table.get(keys)["id"].to_pylist() == [2, 1]
    with store.snapshot(["prices"], consistency="latest") as moment:
        assert moment["prices"].get(keys)["id"].to_pylist() == [2, 1]
    table.delete(keys)
    assert table.to_arrow()["id"].to_pylist() == [3]


def test_a_single_key(store: el.Store) -> None:
    table = store.table("prices")
    table.upsert([{"id": n, "price": n, "score": n} for n in (1, 2, 3)])
    assert table.get(2).to_pylist() == [{"id": 2, "price": Decimal("2.00"), "score": 2.0}]
    assert table.get({"id": 2}).num_rows == 1 and table.get([]).num_rows == 0 and table.get(9).num_rows == 0
    table.delete(2)
    with store.transaction() as tx:
        tx.delete("prices", 1)
    assert table.to_arrow()["id"].to_pylist() == [3]
    for keys, message in (
        (2.5, r"column 'id', row 0: 2\.5"),
        ("2", "string does not fit int64"),
        ([1, None], "1 of its values are null"),
        ([1, "a"], r"column 'id', row 1: 'a'"),
    ):
        with pytest.raises(el.SchemaMismatch, match=message):
            table.get(keys)
    with pytest.raises(el.InvalidInput, match="scalars"):
        table.get(object())
    assert table.count() == 1


def test_keys_of_several_columns(store: el.Store) -> None:
    schema = pa.schema([("v", pa.int64()), ("day", pa.string()), ("n", pa.int8())])
    table = store.create_table("two", schema, ["day", "n"])
    table.upsert([{"day": day, "n": n, "v": 0} for day in "ab" for n in (1, 2)])
    for keys in (("b", 1), [("b", 1)], [["b", 1]], {"day": "b", "n": 1}, [{"n": 1, "day": "b"}], {("b", 1)}):
        assert table.get(keys).to_pylist() == [{"v": 0, "day": "b", "n": 1}], keys
    for keys in ("b", ["b"], ("b",), [("b", 1, 2)], ("b", 1, 2)):
        with pytest.raises(el.InvalidInput):
            table.get(keys)
    table.delete([("a", 1), ("b", 2), ("z", 9)])
    assert table.count() == 2


def test_a_refresh_deletes_by_scalars(store: el.Store) -> None:
    prices = store.table("prices")
    prices.upsert([{"id": n, "price": n, "score": n} for n in (1, 2, 3)])
    job = store.create_job("j", ["prices"], {"out": (PRICES, ["id"])})

    def refresh(ctx: Any) -> None:
        ctx.upsert("out", ctx.table("prices").to_pylist())
        ctx.delete("out", [1, 2])

    store.checkpoint()
    assert job.step_local(refresh) is not None
    assert store.table("out").to_arrow()["id"].to_pylist() == [3]
