"""Every column type a table may have goes through Spark's batch sink and source and comes back as it was."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import epochlog as el
from nested_values import LITERAL
from spark_needs import has

pytestmark = pytest.mark.spark

DAY, MOMENT = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 23, 59, 58)
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "i8": (pa.int8(), -128),
    "i16": (pa.int16(), -32768),
    "i32": (pa.int32(), -(2**31)),
    "i64": (pa.int64(), 2**62),
    "u8": (pa.uint8(), 255),
    "u16": (pa.uint16(), 65535),
    "u32": (pa.uint32(), 2**32 - 1),
    "u64": (pa.uint64(), 2**64 - 1),
    "f16": (pa.float16(), 1.5),
    "f32": (pa.float32(), 1.25),
    "f64": (pa.float64(), float("inf")),
    "text": (pa.string(), "ß\0x"),
    "long_text": (pa.large_string(), "long"),
    "word": (pa.dictionary(pa.int32(), pa.string()), "word"),
    "view": (pa.string_view(), "view"),
    "bytes": (pa.binary(), b"\0\xff"),
    "long_bytes": (pa.large_binary(), b""),
    "four": (pa.binary(4), b"abcd"),
    "dec": (pa.decimal128(10, 2), Decimal("-12345678.90")),
    "dec38": (pa.decimal128(38, 18), Decimal("12345678901234567890.123456789012345678")),
    "dec256": (pa.decimal256(30, 3), Decimal("1.125")),
    "day": (pa.date32(), DAY),
    "day_ms": (pa.date64(), DAY),
    "clock_s": (pa.time32("s"), dt.time(1, 2, 3)),
    "clock_ms": (pa.time32("ms"), dt.time(1, 2, 3)),
    "clock_us": (pa.time64("us"), dt.time(1, 2, 3, 4)),
    "clock_ns": (pa.time64("ns"), dt.time(1, 2, 3, 4)),
    "moment_s": (pa.timestamp("s"), MOMENT),
    "moment_ms": (pa.timestamp("ms"), MOMENT),
    "moment_us": (pa.timestamp("us"), MOMENT),
    "moment_ns": (pa.timestamp("ns"), MOMENT),
    "utc_us": (pa.timestamp("us", "UTC"), MOMENT),
    "tokyo_ns": (pa.timestamp("ns", "Asia/Tokyo"), MOMENT),
    "offset_us": (pa.timestamp("us", "+05:30"), MOMENT),
    "span_s": (pa.duration("s"), dt.timedelta(days=1, seconds=1)),
    "span_us": (pa.duration("us"), dt.timedelta(microseconds=1)),
    "span_ns": (pa.duration("ns"), dt.timedelta(microseconds=1)),
    "ints": (pa.list_(pa.int32()), [1, None, 3]),
    "bytes_list": (pa.large_list(pa.uint8()), [255, 0]),
    "pair": (pa.list_(pa.uint16(), 2), [1, 65535]),
    "fields": (pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.timestamp("ns", "UTC")))]), {"a": 1, "b": [MOMENT]}),
    "deep": (pa.list_(pa.struct([("x", pa.list_(pa.struct([("y", pa.string())])))])), [{"x": [{"y": "z"}, None]}]),
    "pairs": (pa.map_(pa.string(), pa.uint8()), [("a", 1), ("b", None)]),
}
if not has("time"):
    TYPES = {name: case for name, case in TYPES.items() if not pa.types.is_time(case[0])}


def test_all_types_come_back(lake) -> None:
    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    schema = pa.schema([("id", pa.int64()), *fields])
    columns = [pa.array([value, None], kind) for kind, value in TYPES.values()]
    given = pa.Table.from_arrays([pa.array([1, 2]), *columns], schema=schema)
    source = lake.store.create_table("source", schema, ["id"])
    target = lake.store.create_table("target", schema, ["id"])
    source.upsert(given)
    lake.write(lake.read("source"), "target")
    for name in schema.names:
        assert target.to_arrow(columns=[name]).equals(source.to_arrow(columns=[name])), name


@pytest.mark.parametrize("kind", [pa.int32(), pa.string(), pa.timestamp("us", "UTC"), pa.binary(), pa.decimal128(9, 1)])
def test_key_types(lake, kind: pa.DataType) -> None:
    value = {pa.int32(): 7, pa.string(): "k", pa.binary(): b"\0", pa.decimal128(9, 1): Decimal("1.5")}.get(kind, MOMENT)
    table = lake.store.create_table("keyed", pa.schema([("k", kind), ("v", pa.int64())]), ["k"])
    table.upsert(pa.table({"k": pa.array([value], kind), "v": [1]}))
    read = lake.read("keyed")
    assert read.schema["k"].nullable is False
    assert read.schema["v"].nullable is True
    lake.write(read.selectExpr("k", "v + 1 AS v"), "keyed")
    assert table.to_arrow().to_pydict()["v"] == [2]


def test_nanoseconds_that_spark_would_cut_are_an_error(lake) -> None:
    table = lake.store.create_table("fine", pa.schema([("id", pa.int64()), ("at", pa.timestamp("ns"))]), ["id"])
    table.upsert(pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(Exception, match=r"SchemaMismatch: table fine, column 'at'"):
        lake.read("fine").collect()
    assert lake.read("fine", columns="id").count() == 1


def test_a_type_that_spark_lacks_names_the_column(lake) -> None:
    lake.store.create_table("wide", pa.schema([("id", pa.int64()), ("big", pa.decimal256(50, 2))]), ["id"])
    with pytest.raises(Exception, match=r"SchemaMismatch: table wide, column 'big'.*leave it out with .* `columns`"):
        lake.read("wide")


def test_values_out_of_a_narrower_range_are_refused(lake) -> None:
    lake.store.create_table("small", pa.schema([("id", pa.int64()), ("n", pa.uint8())]), ["id"])
    frame = lake.spark.sql("SELECT 1L AS id, 256S AS n")
    with pytest.raises(Exception, match=r"SchemaMismatch: table small, column 'n'"):
        lake.write(frame, "small")
    assert lake.store.table("small").count() == 0


def test_values_inside_of_others_and_floats_are_cast_where_they_fit(lake) -> None:
    inner = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int16()))])
    schema = pa.schema([("id", pa.int64()), ("s", inner), ("price", pa.decimal128(8, 2))])
    table = lake.store.create_table("narrow", schema, ["id"])
    frame = "SELECT 1L id, named_struct('a', {}, 'b', array(2L, NULL)) s, {} price"
    lake.write(lake.spark.sql(frame.format("1L", "19.99D")), "narrow")
    assert table.to_arrow().to_pylist() == [{"id": 1, "s": {"a": 1, "b": [2, None]}, "price": Decimal("19.99")}]
    for wrong, message in (
        (
            ("3000000000L", "1D"),
            r"SchemaMismatch: table narrow, column 's', row 0, field 'a': 3000000000 of type int64",
        ),
        (("1L", "0.125D"), r"SchemaMismatch: table narrow, column 'price', row 0: 0\.125 of type double does not fit"),
    ):
        with pytest.raises(Exception, match=message):
            lake.write(lake.spark.sql(frame.format(*wrong)), "narrow")


def test_arrow_casts_are_lossless_without_spark() -> None:
    from epochlog.spark.types import arrow_schema, from_spark, spark_schema, to_spark
    from epochlog.store.types.schema import TableSchema

    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    table = TableSchema("t", schema, ("id",))
    columns = [pa.array([value, None], kind) for kind, value in TYPES.values()]
    stored = table.conform(pa.Table.from_arrays([pa.array([1, 2]), *columns], schema=schema))
    wired = to_spark("t", stored, arrow_schema(spark_schema("t", table.schema, ("id",))))
    assert table.conform(from_spark(table, wired)).equals(stored)
    assert isinstance(el.SchemaMismatch("x"), el.InvalidInput)


def test_nested_types_that_arrow_loses_come_back(lake) -> None:
    """Required fields below nulls, vectors, empty ones: through Spark's sink, compaction and source."""
    fields = [pa.field(f"v{place}", kind) for place, (kind, _) in enumerate(LITERAL.values())]
    schema = pa.schema([("id", pa.int64()), *fields])
    columns = [pa.array([*values, None], kind) for kind, values in LITERAL.values()]
    source = lake.store.create_table("source", schema, ["id"])
    target = lake.store.create_table("target", schema, ["id"])
    source.upsert(pa.Table.from_arrays([pa.array([0, 1, 2, 3]), *columns], schema=schema))
    lake.write(lake.read("source"), "target")
    lake.store.compact(full=True)
    lake.write(lake.read("target").where("id > 1"), "target")
    for name in schema.names:
        assert target.to_arrow(columns=[name]).equals(source.to_arrow(columns=[name])), name


def test_required_fields_of_added_columns_are_below_nulls(lake) -> None:
    """Those of before, and of rows without a value."""
    lake.orders.upsert([{"id": 1, "day": "d", "amount": 1.0}])
    inner = StructType([StructField("carrier", StringType(), nullable=False)])
    merged = StructType([StructField("id", LongType()), StructField("m", inner)])
    lake.write(lake.spark.createDataFrame([(2, ("dhl",)), (3, None)], merged), mergeSchema="true")
    wanted = {1: None, 2: {"carrier": "dhl"}, 3: None}
    for _ in range(2):
        rows = lake.orders.to_arrow(columns=["id", "m"])
        assert {row["id"]: row["m"] for row in rows.to_pylist()} == wanted
        read = lake.read().select("id", "m").collect()
        assert {row.id: row.m and row.m.asDict() for row in read} == wanted
        lake.store.compact(full=True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_merge_schema_refuses_a_variant(lake, wrapped: bool) -> None:
    variant = "parse_json('{\"a\": 1}')"
    frame = lake.spark.sql(f"SELECT 1L AS id, {f'array({variant})' if wrapped else variant} AS v")
    column = "v.element" if wrapped else "v"
    with pytest.raises(Exception, match=rf"InvalidSchema: table orders, column '{column}': type variant.*to_json"):
        lake.write(frame, mergeSchema="true")
    assert lake.orders.schema.names == ["id", "day", "amount"]
