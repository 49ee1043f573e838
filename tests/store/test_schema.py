"""Schemas that no table can have are refused; data is made to fit without loss, or what does not fit is named."""

from __future__ import annotations

import datetime as dt
import pickle
from copy import copy
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from epochlog.errors import InvalidInput, InvalidName, InvalidSchema, LimitExceeded, SchemaMismatch
from epochlog.store.types.coerce import MAX_KEY_BYTES, MAX_ROW_BYTES
from epochlog.store.types.schema import MAX_COLUMNS, TableSchema, check_name

pytestmark = pytest.mark.local_only


def schema_of(*fields: pa.Field | tuple[str, pa.DataType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema("orders", pa.schema(list(fields)), key)


ORDERS = schema_of(("id", pa.int64()), ("amount", pa.float64()), pa.field("note", pa.string()))


@pytest.mark.parametrize("name", ["a", "orders_2", "a" * 63])
def test_good_names(name: str) -> None:
    assert check_name("table", name) == name


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "a-b", "a" * 64, "a\n", "ä", "a/b", "..", None, 3, b"a"])
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidName, match="job name"):
        check_name("job", name)
    with pytest.raises(InvalidName):
        TableSchema(name, pa.schema([("id", pa.int64())]), ("id",))  # pyright: ignore[reportArgumentType]


def test_key_columns_are_not_nullable_and_metadata_is_dropped() -> None:
    schema = TableSchema("t", pa.schema([("id", pa.int64()), ("v", pa.int8())], metadata={"pandas": "x"}), ("id",))
    assert schema.schema == pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int8())])
    assert schema.schema.metadata is None
    assert TableSchema("t", pa.schema([("id", pa.int64())]), ["id"]).primary_key == ("id",)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("key", [(), ("nope",), ("id", "id"), "id", None, (1,)])
def test_bad_keys(key: object) -> None:
    with pytest.raises(InvalidSchema, match="table orders"):
        TableSchema("orders", pa.schema([("id", pa.int64())]), key)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("column", ["_epoch", "_", ""])
def test_bad_column_names(column: str) -> None:
    with pytest.raises(InvalidSchema, match=rf"table orders, column '{column}'"):
        schema_of(("id", pa.int64()), (column, pa.int64()))


def test_duplicate_columns_and_too_many() -> None:
    with pytest.raises(InvalidSchema, match=r"'id'.*twice"):
        schema_of(("id", pa.int64()), ("id", pa.int64()))
    columns = [("id", pa.int64()), *((f"c{i}", pa.int8()) for i in range(MAX_COLUMNS - 1))]
    assert len(schema_of(*columns).schema) == MAX_COLUMNS
    with pytest.raises(LimitExceeded, match="orders"):
        schema_of(*columns, ("more", pa.int8()))
    with pytest.raises(LimitExceeded, match="column"):
        schema_of(("id", pa.int64()), ("c" * 256, pa.int8()))


def test_not_a_schema() -> None:
    with pytest.raises(InvalidSchema, match=r"pyarrow.Schema"):
        TableSchema("orders", {"id": "int64"}, ("id",))  # pyright: ignore[reportArgumentType]


REFUSED = [
    pa.null(),
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.sparse_union([pa.field("a", pa.int64())]),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.month_day_nano_interval(),
    pa.struct([]),
    pa.uuid(),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_refused_types_at_any_depth(kind: pa.DataType) -> None:
    for column in (kind, pa.list_(kind), pa.struct([("a", kind)]), pa.map_(pa.string(), kind)):
        with pytest.raises(InvalidSchema, match="table orders, column 'x'"):
            schema_of(("id", pa.int64()), ("x", column))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())]
)
def test_nested_types_are_no_keys(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSchema, match=r"table orders, column 'id'.*primary key"):
        schema_of(("id", kind))


def test_dictionaries_and_views_are_stored_plain_at_any_depth() -> None:
    coded = pa.dictionary(pa.int8(), pa.string_view())
    schema = schema_of(
        ("id", coded),
        ("v", pa.binary_view()),
        ("l", pa.list_(coded)),
        ("m", pa.map_(pa.string_view(), pa.struct([("a", pa.large_list(coded))]))),
    )
    assert [field.type for field in schema.schema] == [
        pa.string(),
        pa.binary(),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.struct([("a", pa.large_list(pa.string()))])),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.field("item", pa.float32(), nullable=False), 2),
        pa.struct([pa.field("a", pa.list_(pa.field("x", pa.int8(), nullable=False), 3), nullable=False)]),
        pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False), keys_sorted=True),
    ],
    ids=str,
)
def test_pickles_keep_types_that_pickles_of_arrow_change(kind: pa.DataType) -> None:
    schema = schema_of(("id", pa.int64()), ("v", kind))
    for made in (pickle.loads(pickle.dumps(schema)), TableSchema.from_bytes(schema.to_bytes()), copy(schema)):
        assert made.schema.equals(schema.schema, check_metadata=True)
        assert made == schema
        assert made.lineage == ()


def test_bytes_and_pickle_round_trips() -> None:
    for made in (TableSchema.from_bytes(ORDERS.to_bytes()), pickle.loads(pickle.dumps(ORDERS))):
        assert made == ORDERS
        assert made.schema.equals(ORDERS.schema)


# ---- data in ---------------------------------------------------------------------------------------------------


ROWS = {"note": ["x", None], "id": [2, 1], "amount": [0.5, None]}
EXPECTED = pa.table({"id": [2, 1], "amount": [0.5, None], "note": ["x", None]}).cast(ORDERS.schema)


class Capsule:
    """Something of which only __arrow_c_stream__ is known."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        pa.table(ROWS),
        pa.table(ROWS).to_batches()[0],
        pa.table(ROWS).to_reader(),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).set_index("id"),
        pd.DataFrame(ROWS, index=pd.Index([5, 6], name="id")),
        pd.DataFrame(ROWS).set_index(["id", "note"]),
        pd.DataFrame({**ROWS, "more": 1}).set_index(["more", "note"]),
        pd.DataFrame(ROWS, index=pd.Index([7, 9])),
        pd.DataFrame(ROWS).convert_dtypes(),
        pl.DataFrame(ROWS),
        Capsule(pa.table(ROWS)),
        pa.concat_tables([pa.table(ROWS)[:1], pa.table(ROWS)[1:]]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_arrow_shape_is_taken(data: object) -> None:
    assert ORDERS.conform(data).equals(EXPECTED)


@pytest.mark.parametrize("data", [None, 3, "id", {"id": [1]}])
def test_what_is_not_tabular_is_refused(data: object) -> None:
    with pytest.raises(InvalidInput, match=r"table orders: .* is not tabular"):
        ORDERS.conform(data)


def test_wrong_columns_are_named() -> None:
    for data, message in [
        (pa.table({**ROWS, "colour": ["r", "g"]}), "table orders: unknown column 'colour'"),
        (pa.table({"id": [1], "amount": [1.0]}), "table orders: column 'note' is missing"),
        (pa.table({"amount": [1.0], "note": ["x"]}), "table orders: column 'id' is missing"),
        (pa.Table.from_arrays([[1], [2], [1.0], ["x"]], names=["id", "id", "amount", "note"]), "'id' occurs twice"),
        (pd.DataFrame([[1, 2]], columns=pd.Index(["id", "id"])), "twice"),
        (pd.DataFrame([[1, 2]]), "must be strings"),
        (pd.DataFrame(), "missing"),
    ]:
        with pytest.raises(SchemaMismatch, match=message):
            ORDERS.conform(data)


@pytest.mark.parametrize(
    "data, message",
    [
        ({"id": ["1"], "amount": [1.0], "note": ["x"]}, "column 'id': type string does not fit int64"),
        ({"id": [1.0, 1.5], "amount": [1.0] * 2, "note": ["x"] * 2}, "column 'id', row 1: 1.5 of type double"),
        ({"id": [True], "amount": [1.0], "note": ["x"]}, "column 'id': type bool"),
        ({"id": pa.array([2**63], pa.uint64()), "amount": [1.0], "note": ["x"]}, f"column 'id', row 0: {2**63} of"),
        ({"id": [1], "amount": [2**53 + 1], "note": ["x"]}, f"column 'amount', row 0: {2**53 + 1} of type int64"),
        ({"id": [1], "amount": [1.0], "note": [b"x"]}, "column 'note': type binary"),
        ({"id": [1], "amount": [1.0], "note": [5]}, "column 'note': type int64"),
        (
            {"id": [None, 1, None], "amount": [1.0] * 3, "note": ["x"] * 3},
            "primary-key column 'id': 2 of its values are null, the first in row 0; leave these rows out, or give",
        ),
        ({"id": [1, None], "amount": [1.0] * 2, "note": ["x"] * 2}, "column 'id': 1 of its values are null, .* row 1"),
    ],
)
def test_wrong_types_and_null_keys_are_named(data: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"table orders, .*" + message):
        ORDERS.conform(pa.table(data))


def test_pandas_objects_that_do_not_mix_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="table orders, column 'id'"):
        ORDERS.conform(pd.DataFrame({"id": [1, "a"], "amount": [1.0, 2.0], "note": ["x", "y"]}))
    with pytest.raises(SchemaMismatch, match="primary-key column 'id': 1 of its values are null"):
        ORDERS.conform(pd.DataFrame({"id": [1, None], "amount": [1.0, 2.0], "note": ["x", "y"]}))


def test_nullability_is_about_values_not_declarations() -> None:
    strict = schema_of(("id", pa.int64()), pa.field("v", pa.int64(), nullable=False))
    assert strict.conform(pa.table({"id": [1], "v": [2]})).schema == strict.schema
    with pytest.raises(SchemaMismatch, match="table orders, non-nullable column 'v': 1 of its values are null"):
        strict.conform(pa.table({"id": [1, 2], "v": [2, None]}))


UTC = dt.UTC
DAY = dt.datetime.fromisoformat("2020-01-01")
LOSSLESS = [
    (pa.large_string(), pa.string(), ["a", None]),
    (pa.string_view(), pa.string(), ["a", None]),
    (pa.string(), pa.large_string(), ["a", None]),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", None, "a"]),
    (pa.dictionary(pa.int8(), pa.int64()), pa.int64(), [1, None, 1]),
    (pa.large_binary(), pa.binary(), [b"a", None]),
    (pa.binary(2), pa.binary(), [b"ab", None]),
    (pa.binary(), pa.binary(2), [b"ab", None]),
    (pa.int8(), pa.int64(), [1, None]),
    (pa.uint32(), pa.int64(), [2**32 - 1, None]),
    (pa.uint8(), pa.uint64(), [255]),
    (pa.int32(), pa.float64(), [2**31 - 1, None]),
    (pa.float32(), pa.float64(), [0.5, None]),
    (pa.float16(), pa.float32(), [0.5, None]),
    (pa.null(), pa.int64(), [None]),
    (pa.null(), pa.list_(pa.int64()), [None]),
    (pa.timestamp("s"), pa.timestamp("us"), [DAY, None]),
    (pa.timestamp("ns"), pa.timestamp("us"), [DAY.replace(microsecond=5), None]),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Paris"), [dt.datetime(2020, 1, 1, tzinfo=UTC)]),
    (pa.date32(), pa.date64(), [dt.date(2020, 1, 1), None]),
    (pa.time64("ns"), pa.time64("us"), [dt.time(1, 2, 3), None]),
    (pa.decimal128(5, 2), pa.decimal128(9, 4), [Decimal("1.25"), None]),
    (pa.decimal128(5, 2), pa.decimal256(60, 2), [Decimal("1.25"), None]),
    (pa.large_list(pa.string_view()), pa.list_(pa.string()), [["a", None], None, []]),
    (pa.list_(pa.int8()), pa.list_(pa.int64(), 2), [[1, 2]]),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
    (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int64()), [[("k", 1)], None]),
]


@pytest.mark.parametrize("given, wanted, values", LOSSLESS, ids=lambda v: str(v)[:40])
def test_lossless_casts(given: pa.DataType, wanted: pa.DataType, values: list[object]) -> None:
    schema = schema_of(("id", pa.int64()), ("v", wanted))
    column = pa.array(values, pa.string()).dictionary_encode().cast(given) if given == "x" else _array(values, given)
    conformed = schema.conform(pa.table({"id": range(len(values)), "v": column}))
    conformed.validate(full=True)
    assert conformed.schema == schema.schema
    assert conformed["v"].to_pylist() == pa.array(values, wanted).to_pylist()


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


LOSSY = [
    (pa.int64(), pa.int32(), [2**31]),
    (pa.uint64(), pa.int64(), [2**63]),
    (pa.int8(), pa.uint8(), [-1]),
    (pa.float64(), pa.float32(), [0.1]),
    (pa.float32(), pa.float16(), [0.5]),
    (pa.int64(), pa.float64(), [2**53 + 1]),
    (pa.int64(), pa.timestamp("us"), [1]),
    (pa.string(), pa.timestamp("us"), ["2020-01-01"]),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), [1]),
    (pa.timestamp("us"), pa.date32(), [0]),
    (pa.timestamp("ns"), pa.timestamp("us"), [1]),
    (pa.timestamp("s"), pa.timestamp("ns"), [2**60]),
    (pa.decimal128(5, 2), pa.decimal128(5, 1), [Decimal("1.25")]),
    (pa.float64(), pa.decimal128(5, 2), [0.125]),
    (pa.float16(), pa.decimal128(5, 2), [0.5]),
    (pa.decimal128(5, 2), pa.float64(), [Decimal("1.25")]),
    (pa.binary(), pa.binary(2), [b"abc"]),
    (pa.string(), pa.binary(), ["a"]),
    (pa.binary(3), pa.binary(2), [b"abc"]),
    (pa.bool_(), pa.int64(), [True]),
    (pa.list_(pa.int64()), pa.list_(pa.int64(), 2), [[1]]),
    (pa.list_(pa.int64()), pa.list_(pa.int32()), [[2**31]]),
    (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]), [{"a": 1}]),
    (
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])),
        [[("a", 1)]],
    ),
    (pa.list_view(pa.int64()), pa.list_(pa.int64()), [[1]]),
]


@pytest.mark.parametrize("given, wanted, values", LOSSY, ids=lambda v: str(v)[:40])
def test_nothing_is_lost_silently(given: pa.DataType, wanted: pa.DataType, values: list[object]) -> None:
    schema = schema_of(("id", pa.int64()), ("v", wanted))
    with pytest.raises(SchemaMismatch, match="table orders, column 'v'"):
        schema.conform(pa.table({"id": range(len(values)), "v": pa.array(values, given)}))


def test_polars_categories_and_nested_lists() -> None:
    schema = schema_of(("id", pa.string()), ("l", pa.list_(pa.string())), ("c", pa.string()))
    frame = pl.DataFrame({"id": ["a", "b"], "l": [["x", None], None], "c": ["u", None]})
    conformed = schema.conform(frame.with_columns(pl.col("c").cast(pl.Categorical)))
    assert conformed.to_pydict() == frame.to_dict(as_series=False)


def test_pandas_objects_fit_nested_columns() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    schema = schema_of(("id", pa.int64()), ("s", kind), ("d", pa.decimal128(9, 2)), ("on", pa.date32()))
    frame = pd.DataFrame(
        {"id": [1, 2], "s": [{"a": 1}, None], "d": [Decimal("1.5"), None], "on": [dt.date(2020, 1, 1), None]}
    )
    assert schema.conform(frame)["s"].to_pylist() == [{"a": 1, "b": None}, None]


def test_extension_data_is_taken_as_its_storage() -> None:
    schema = schema_of(("id", pa.binary(16)))
    ids = pa.array([b"0123456789abcdef"], pa.uuid())
    assert schema.conform(pa.table({"id": ids}))["id"].to_pylist() == [b"0123456789abcdef"]


REQUIRED = pa.field("a", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    "wanted, given, good, bad",
    [
        (pa.struct([REQUIRED]), pa.struct([("a", pa.int64())]), [{"a": 1}, None], [{"a": None}]),
        (pa.list_(REQUIRED), pa.list_(pa.int64()), [[1], [], None], [[1], [None]]),
        (pa.map_(pa.string(), REQUIRED), pa.map_(pa.string(), pa.int64()), [[("k", 1)], None], [[("k", None)]]),
        (pa.list_(pa.struct([REQUIRED])), pa.list_(pa.struct([("a", pa.int8())])), [[{"a": 1}, None]], [[{"a": None}]]),
    ],
    ids=str,
)
def test_nulls_inside(wanted: pa.DataType, given: pa.DataType, good: list[object], bad: list[object]) -> None:
    schema = schema_of(("id", pa.int64()), ("v", wanted))
    for kind in (given, wanted):
        filler = pa.nulls(1, kind)
        column = pa.concat_arrays([filler, pa.array(good, kind)]).slice(1)
        assert schema.conform(pa.table({"id": range(len(good)), "v": column}))["v"].to_pylist() == good
        with pytest.raises(SchemaMismatch, match="table orders, column 'v'"):
            schema.conform(pa.table({"id": range(len(bad)), "v": pa.array(bad, given)}))


def test_what_parquet_cannot_hold_is_refused_at_the_door() -> None:
    late = schema_of(("id", pa.int64()), ("v", pa.timestamp("s")))
    with pytest.raises(SchemaMismatch, match="column 'v'"):
        late.conform(pa.table({"id": [1], "v": pa.array([2**60], pa.timestamp("s"))}))
    many = schema_of(("id", pa.int64()), ("v", pa.list_(pa.struct([("t", pa.timestamp("s"))]))))
    inner = pa.array([[{"t": 5}, None], None, [{"t": 2**60}]], many.schema.field("v").type)
    assert many.conform(pa.table({"id": [1, 2], "v": inner[:2]})).num_rows == 2
    with pytest.raises(SchemaMismatch, match="column 'v'"):
        many.conform(pa.table({"id": [1, 2, 3], "v": inner}))
    days = schema_of(("id", pa.int64()), ("v", pa.date64()))
    with pytest.raises(SchemaMismatch, match="column 'v'"):
        days.conform(pa.table({"id": [1], "v": pa.array([86_400_001], pa.int64()).view(pa.date64())}))


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_float_keys_are_canonical(kind: pa.DataType) -> None:
    width = kind.bit_width // 8
    odd_nan = np.array([-1], f"i{width}").view(f"f{width}")
    values = np.concatenate([np.array([-0.0, 0.0, np.nan], f"f{width}"), odd_nan])
    key = schema_of(("id", kind)).conform(pa.table({"id": pa.array(values, kind)}))["id"].to_numpy()
    bits = key.view(f"u{width}")
    assert bits[0] == bits[1] == 0
    assert bits[2] == bits[3] == np.array([np.nan], f"f{width}").view(f"u{width}")[0]


def test_keys_are_exactly_the_primary_key() -> None:
    schema = schema_of(("v", pa.int8()), ("a", pa.int64()), ("b", pa.string()), key=("b", "a"))
    keys = schema.conform_keys(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}))
    assert keys.schema == schema.key_schema
    assert keys.to_pydict() == {"b": ["x"], "a": [1]}
    with pytest.raises(SchemaMismatch, match="table orders: unknown column 'v' in the keys"):
        schema.conform_keys(pa.table({"a": [1], "b": ["x"], "v": [1]}))
    with pytest.raises(SchemaMismatch, match="table orders: column 'b' is missing from the keys"):
        schema.conform_keys(pa.table({"a": [1]}))


def test_key_size_limit() -> None:
    schema = schema_of(("id", pa.string()), ("v", pa.binary()), key=("id", "v"))
    fits = pa.table({"id": ["a" * (MAX_KEY_BYTES - 1)], "v": [b"b"]})
    assert schema.conform(fits).num_rows == 1
    with pytest.raises(LimitExceeded, match="table orders, primary key 'id', 'v'"):
        schema.conform(pa.table({"id": ["a" * MAX_KEY_BYTES], "v": [b"b"]}))
    fixed = schema_of(("id", pa.binary(MAX_KEY_BYTES)), ("s", pa.string()), key=("id", "s"))
    with pytest.raises(LimitExceeded):
        fixed.conform(pa.table({"id": pa.array([b"a" * MAX_KEY_BYTES], pa.binary(MAX_KEY_BYTES)), "s": ["b"]}))


@pytest.mark.medium
def test_row_size_limit() -> None:
    schema = schema_of(("id", pa.int64()), ("v", pa.binary()), ("s", pa.string()), key=("id",))
    half = MAX_ROW_BYTES // 2
    ids, texts = [1, 2, 3], ["b" * half, None, "b" * half]
    fits = pa.table({"id": ids, "v": [b"a" * half, b"a" * 2 * half, None], "s": texts})
    assert schema.conform(fits).num_rows == 3
    with pytest.raises(LimitExceeded, match=f"table orders: a row of {2 * half + 1} bytes"):
        schema.conform(pa.table({"id": ids, "v": [b"a" * half + b"a", None, None], "s": texts}))


def test_no_rows() -> None:
    assert ORDERS.conform(pd.DataFrame({"id": [], "amount": [], "note": []})).equals(EXPECTED[:0])
    assert ORDERS.conform(EXPECTED[:0]).equals(EXPECTED[:0])
    empty = pa.Table.from_batches([], pa.schema([("id", pa.int8()), ("amount", pa.null()), ("note", pa.string_view())]))
    assert ORDERS.conform(empty).schema == ORDERS.schema
