"""Tables that Spark reads from their Parquet files itself: rows, nullability, damage, and when our reader does it."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from spark_extremes import EXTREMES, FILTERS, bits, extremes

pytestmark = pytest.mark.spark

snapshot_frame = importlib.import_module("epochlog.spark.snapshot_frame")
catalog_scan = importlib.import_module("epochlog.spark.catalog.scan")
parquet_files = importlib.import_module("epochlog.spark.parquet_files")

SIMPLE = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64()), ("name", pa.string())])
OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "u32": (pa.uint32(), [2**32 - 1]),
    "u64": (pa.uint64(), [2**64 - 1]),
    "f16": (pa.float16(), [1.5]),
    "four": (pa.binary(4), [b"abcd"]),
    "day_ms": (pa.date64(), [dt.date(2024, 2, 29)]),
    "moment_s": (pa.timestamp("s"), [dt.datetime(2024, 2, 29)]),
    "moment_ns": (pa.timestamp("ns"), [dt.datetime(2024, 2, 29)]),
    "ints": (pa.list_(pa.int32()), [[1, None]]),
    "fields": (pa.struct([("a", pa.uint8())]), [{"a": 1}]),
}


def is_parquet(frame: DataFrame) -> bool:
    java: Any = frame._jdf
    return "FileScan parquet" in java.queryExecution().executedPlan().toString()


def of_both_readers(monkeypatch: pytest.MonkeyPatch, make: Any) -> tuple[DataFrame, DataFrame]:
    """The frame that Spark reads from Parquet, and that of our reader."""
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_frame, "parquet_frame", lambda *_: None)
        ours = make()
    return make(), ours


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s") as made:
        yield made


def simple(store: el.Store, rows: int = 1000, **options: Any) -> el.Table:
    table = store.create_table("t", SIMPLE, ["id"], **options)
    table.upsert(simple_rows(range(rows)))
    store.compact("t", full=True)
    return table


def simple_rows(ids: Any, salt: int = 0) -> pa.Table:
    ids = list(ids)
    return pa.table({"id": ids, "value": [i / 7 + salt for i in ids], "name": [f"n{i % 10}" for i in ids]}, SIMPLE)


def test_rows_of_every_plain_type_are_those_of_our_reader(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    data = extremes(EXTREMES, seed)
    store.create_table("t", data.schema, ["id"]).upsert(data)
    store.compact("t", full=True)
    with store.snapshot(["t"]) as snapshot:
        theirs, ours = of_both_readers(monkeypatch, lambda: snapshot.spark("t", spark))
        assert is_parquet(theirs)
        assert not is_parquet(ours)
        assert theirs.schema == ours.schema
        assert bits(theirs) == bits(ours)
        for text in FILTERS:
            assert bits(theirs.where(text)) == bits(ours.where(text)), text
        some = snapshot.spark("t", spark, columns=["dec", "id"])
        assert is_parquet(some)
        assert some.columns == ["dec", "id"]
        assert some.agg({"dec": "sum"}).collect() == ours.agg({"dec": "sum"}).collect()
        assert theirs.count() == 300


@pytest.mark.parametrize("name", OTHERS)
def test_other_types_are_read_by_our_reader(store: el.Store, spark: SparkSession, name: str) -> None:
    data = extremes({name: OTHERS[name]}, 1, rows=3)
    store.create_table("t", data.schema, ["id"]).upsert(data)
    store.compact("t", full=True)
    with store.snapshot(["t"]) as snapshot:
        whole = snapshot.spark("t", spark)
        assert not is_parquet(whole)
        assert whole.count() == 3
        assert is_parquet(snapshot.spark("t", spark, columns=["id"]))


@pytest.mark.parametrize("other", ["ID", "_metadata", "_EPOCH"])
def test_names_that_spark_would_confuse_are_read_by_our_reader(
    store: el.Store, spark: SparkSession, other: str
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), (other, pa.int64())])
    try:
        table = store.create_table("t", schema, ["id"])
    except el.EpochlogError:
        assert other.startswith("_")  # the name is reserved
        return
    table.upsert(pa.table({"id": [1, 2], other: [3, 4]}, schema))
    store.compact("t", full=True)
    with store.snapshot(["t"]) as snapshot:
        assert not is_parquet(snapshot.spark("t", spark))


def test_a_dropped_column_whose_name_differs_by_case_is_no_obstacle(store: el.Store, spark: SparkSession) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.int64()), ("Note", pa.int64())])
    table = store.create_table("t", schema, ["id"])
    table.upsert(pa.table({"id": [1, 2], "note": [3, 4], "Note": [5, 6]}, schema))
    store.compact("t", full=True)
    table.alter(drop=["note"])
    for rewritten in (False, True):
        if rewritten:
            table.upsert(pa.table({"id": [1], "Note": [7]}))
            store.compact("t", full=True)
        with store.snapshot(["t"], consistency="latest") as snapshot:
            frame = snapshot.spark("t", spark)
            assert is_parquet(frame) == rewritten
            assert frame.agg({"Note": "sum"}).collect()[0][0] == (7 if rewritten else 5) + 6


def test_a_commit_above_the_run_is_read_by_our_reader_until_it_is_compacted(
    store: el.Store, spark: SparkSession
) -> None:
    table = simple(store)
    with store.snapshot(["t"]) as before:
        table.upsert(simple_rows(range(500, 1500), 1))
        table.delete([0, 1])
        with store.snapshot(["t"]) as between:
            store.compact("t", full=True)
            table.upsert(simple_rows([7], 2))
            store.compact("t", full=True)
            store.vacuum(grace=0)
            for moment, rows in ((before, 1000), (between, 1498)):
                frame = moment.spark("t", spark)
                assert frame.count() == rows == moment["t"].to_arrow().num_rows
                assert sorted(frame.toPandas()["value"]) == sorted(moment["t"].to_arrow()["value"].to_pylist())
            assert is_parquet(before.spark("t", spark))
            assert not is_parquet(between.spark("t", spark))
    with store.snapshot(["t"]) as after:
        frame = after.spark("t", spark)
        assert is_parquet(frame)
        assert sorted(map(tuple, frame.collect())) == sorted(
            tuple(row.values()) for row in after["t"].to_arrow().to_pylist()
        )


def test_an_altered_table_is_read_by_our_reader_until_it_is_compacted(store: el.Store, spark: SparkSession) -> None:
    table = simple(store)
    table.alter(rename={"value": "name", "name": "value"})
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark)
        assert not is_parquet(frame)
        assert frame.where("id = 3").collect()[0].asDict() == {"id": 3, "name": 3 / 7, "value": "n3"}
    table.upsert(table.to_arrow().slice(0, 1))
    store.compact("t", full=True)
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark)
        assert frame.where("id = 3").collect()[0].asDict() == {"id": 3, "name": 3 / 7, "value": "n3"}


def test_added_columns_are_null_in_files_without_them(store: el.Store, spark: SparkSession) -> None:
    table = simple(store)
    table.alter(add=[pa.field("more", pa.decimal128(10, 2)), pa.field("note", pa.string())])
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark)
        assert is_parquet(frame)
        assert frame.columns == [*SIMPLE.names, "more", "note"]
        assert frame.where("more IS NULL AND note IS NULL").count() == 1000
        assert frame.where("more > 0 OR NOT note = 'x'").count() == 0
    table.alter(drop=["value"])
    table.alter(add=[pa.field("value", pa.float64())])  # another column under the name of one that the file has
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark)
        assert not is_parquet(frame)
        assert frame.where("value IS NULL").count() == 1000


def test_a_load_with_a_filter_is_read_by_our_reader(store: el.Store, spark: SparkSession) -> None:
    simple(store)
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark, filter="id < 10")
        assert not is_parquet(frame)
        assert frame.count() == 10


def test_keys_stay_not_null_and_a_small_table_is_broadcast(store: el.Store, spark: SparkSession) -> None:
    simple(store)
    with store.snapshot(["t"]) as snapshot:
        frame = snapshot.spark("t", spark)
        assert [field.nullable for field in frame.schema] == [False, True, True]
        joined = spark.range(100_000).join(frame, "id")
        java: Any = joined._jdf
        assert "BroadcastHashJoin" in java.queryExecution().executedPlan().toString()
        assert frame.alias("a").join(frame.alias("b"), "id").count() == 1000  # with itself


def test_a_store_below_a_folder_that_looks_like_a_pattern(tmp_path: Path, spark: SparkSession) -> None:
    with el.open(tmp_path / "a b%20c[1]*{x,y}?" / "day=1" / "k:v") as store:
        simple(store)
        with store.snapshot(["t"]) as snapshot:
            frame = snapshot.spark("t", spark)
            assert is_parquet(frame)
            assert frame.columns == SIMPLE.names
            assert frame.count() == 1000


# ---- damage ----------------------------------------------------------------------------------------------------------


def only_file(store: el.Store) -> Path:
    (path,) = Path(store.root).rglob("*.parquet")
    return path


def flip(path: Path, at: int) -> None:
    """Flip a bit within a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def summed(frame: DataFrame) -> list[Any]:
    return frame.selectExpr("sum(id)", "sum(value)", "sum(hash(name))").collect()


@pytest.mark.damages_store
def test_a_file_that_was_damaged_before_is_corrupt(store: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    simple(store)
    flip(only_file(store), 300)
    with store.snapshot(["t"]) as snapshot, pytest.raises(el.Corrupt, match=r"\.parquet"):
        snapshot.spark("t", spark)


def wrong_sums(frame: DataFrame, path: Path) -> int:
    """Flip a bit at twelve places of the file's pages, one after the other; return how many sums are wrong then."""
    right, wrong = summed(frame), 0
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    for place in np.linspace(200, path.stat().st_size - footer - 200, 12).astype(int).tolist():
        flip(path, place)
        with contextlib.suppress(Exception):  # Spark's errors of a damaged file are of many classes
            wrong += summed(frame) != right
        flip(path, place)
    assert summed(frame) == right
    return wrong


def test_a_page_that_is_damaged_later_fails_the_query(store: el.Store, spark: SparkSession) -> None:
    simple(store, rows=20_000)
    with store.snapshot(["t"]) as snapshot:
        assert wrong_sums(snapshot.spark("t", spark), only_file(store)) == 0


@pytest.mark.planted
def test_without_checksums_of_pages_damage_is_a_wrong_sum(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = {**parquet_files.OPTIONS, "parquet.page.verify-checksum.enabled": "false"}
    monkeypatch.setattr(parquet_files, "OPTIONS", unchecked)
    simple(store, rows=20_000)
    with store.snapshot(["t"]) as snapshot:
        assert wrong_sums(snapshot.spark("t", spark), only_file(store)) > 0


@pytest.mark.damages_store
def test_a_missing_file_fails_the_query_whatever_the_session_ignores(store: el.Store, spark: SparkSession) -> None:
    simple(store)
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    with store.snapshot(["t"]) as snapshot:
        for name in names:
            spark.conf.set(name, "true")
        try:
            frame = snapshot.spark("t", spark)
            assert frame.count() == 1000
            os.remove(only_file(store))
            with pytest.raises(Exception, match="FILE_NOT_EXIST"):
                summed(frame)
        finally:
            for name in names:
                spark.conf.unset(name)
        with pytest.raises(Exception, match=r"Corrupt|SnapshotExpired"):
            snapshot.spark("t", spark).collect()


# ---- Spark SQL -------------------------------------------------------------------------------------------------------


def columnar(frame: DataFrame) -> int:
    """The scans of a query that Spark reads by its own reader of Parquet."""
    java: Any = frame._jdf
    return java.queryExecution().executedPlan().toString().count("ColumnarToRow")


@pytest.fixture
def lake(store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> el.Store:
    monkeypatch.setattr(catalog_scan, "SMALLEST_BYTES", 100_000)
    simple(store, rows=20_000)
    store.create_table("small", SIMPLE, ["id"]).upsert(simple_rows(range(10)))
    store.compact("small", full=True)
    el.catalog(spark, store, name="pq")
    return store


QUERIES = [
    ("SELECT count(*), sum(id), max(value), count(DISTINCT name) FROM pq.t", 1),
    ("SELECT count(*) FROM pq.t WHERE name = 'n3' AND id BETWEEN 1000 AND 2000", 1),
    ("SELECT count(*), sum(a.value - b.value) FROM pq.t a JOIN pq.t b USING (id)", 2),
    ("SELECT count(*) FROM pq.t a JOIN pq.small b USING (id)", 1),
    ("SELECT id FROM pq.t ORDER BY value DESC, id LIMIT 3", 1),
    ("SELECT sum(value) FROM pq.small", 0),
]


@pytest.mark.parametrize(("query", "of_parquet"), QUERIES)
def test_queries_of_the_catalog(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str, of_parquet: int
) -> None:
    theirs = spark.sql(query)
    assert columnar(theirs) == of_parquet
    rows = theirs.collect()
    monkeypatch.setattr(catalog_scan, "parquet_relation", lambda *_: None)
    ours = spark.sql(query)
    assert columnar(ours) == 0
    assert [str(row) for row in ours.collect()] == [str(row) for row in rows]
    assert theirs.schema == ours.schema


def test_the_catalog_reads_the_past_and_new_commits_by_our_reader(lake: el.Store, spark: SparkSession) -> None:
    query = spark.sql("SELECT count(*), sum(value) FROM pq.t")
    before, epoch = query.collect(), lake.table("t").upsert(simple_rows(range(15_000, 25_000), 1))
    after = spark.sql("SELECT count(*), sum(value) FROM pq.t")
    assert columnar(after) == 0
    assert after.collect()[0][0] == 25_000
    store_epoch = lake.table("t").history(2)["epoch"].to_pylist()[1]
    assert spark.sql(f"SELECT count(*), sum(value) FROM pq.t VERSION AS OF {store_epoch}").collect() == before
    lake.compact("t", full=True)
    again = spark.sql("SELECT count(*), sum(value) FROM pq.t")
    assert columnar(again) == 1
    assert again.collect()[0][0] == 25_000
    assert spark.sql(f"SELECT count(*) FROM pq.t VERSION AS OF {epoch}").collect()[0][0] == 25_000
    assert spark.sql(f"SELECT count(*), sum(value) FROM pq.t VERSION AS OF {store_epoch}").collect() == before


@pytest.mark.damages_store
def test_a_damaged_file_fails_a_query_of_the_catalog(lake: el.Store, spark: SparkSession) -> None:
    for path in Path(lake.root).rglob("*.parquet"):
        flip(path, 300)
    with pytest.raises(Exception, match=r"Corrupt: .*\.parquet"):
        spark.sql("SELECT sum(value) FROM pq.t").collect()
