"""Each way from Spark into a store and back, as a short case with its answer: `make spark-versions` runs them on each
version of Spark that epochlog supports and writes the table of docs/SPARK.md.

A feature that a version lacks is refused there with the first version that has it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import epochlog as el
from epochlog.spark import versions
from epochlog.spark.versions import java_member
from spark_store import Lake, forget_catalog, refusal, rows

pytestmark = pytest.mark.spark

KEYED = "TBLPROPERTIES (primary_key = 'id')"


@pytest.fixture
def feature(record_property: Callable[[str, object], None]) -> Callable[..., Any]:
    """Names the feature of the test for the table of versions: feature(name); or feature(name, there, since, call) of
    one that this Spark may lack, which then refuses the call and names the version `since`. Returns True if it has it.
    """

    def named(name: str, there: bool = True, since: str = "", call: Callable[[], object] | None = None) -> bool:
        record_property("feature", name)
        record_property("works", "yes" if there else f"from {since} on")
        if not there:
            assert call is not None
            assert f"needs Spark {since}" in refusal(call)
        return there

    return named


@pytest.fixture
def pond(lake: Lake) -> Lake:
    """Return the store of `lake` with rows, as the catalog `pond`."""
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    el.catalog(lake.spark, lake.store, "pond")
    return lake


def java_catalog(pond: Lake) -> Any:
    session: Any = pond.spark
    return session._jvm.org.apache.spark.sql.connector.catalog


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


# ---- format("epochlog") ----------------------------------------------------------------------------------------------


def test_a_batch_read_and_its_epochs(pond: Lake, feature) -> None:
    feature("`format` read, `versionAsOf`, `columns`, `filter`")
    epoch = pond.store.snapshot(["orders"]).epochs["orders"]
    pond.orders.upsert(rows(6, 3))
    pond.store.checkpoint()
    assert ids(pond.read()) == list(range(9))
    assert pond.read().count() == 9
    assert ids(pond.read(versionAsOf=epoch)) == list(range(6))
    assert ids(pond.read(columns="id", filter="day = 'd1'")) == [1, 4, 7]


def test_a_change_feed(pond: Lake, feature) -> None:
    feature("`readChangeFeed`")
    pond.orders.delete({"id": [2]})
    pond.store.checkpoint()
    changes = pond.read(readChangeFeed="true", startingVersion="earliest").collect()
    assert sorted((row["id"], row["_change_type"]) for row in changes)[2:4] == [(2, "delete"), (2, "upsert")]


def test_batch_writes(pond: Lake, feature) -> None:
    feature("`format` append and overwrite, `partial`")
    new = pond.spark.createDataFrame([(7, "d9", 1.5)], "id long, day string, amount double")
    pond.write(new)
    pond.write(pond.spark.createDataFrame([(7, "d8")], "id long, day string"), partial="true")
    assert pond.orders.get({"id": [7]}).to_pylist() == [{"id": 7, "day": "d8", "amount": 1.5}]
    pond.write(new, mode="overwrite")
    assert pond.orders.count() == 1


def test_reads_of_no_columns_count_rows(pond: Lake, feature) -> None:
    frame = pond.read(columns="id").select()
    assert frame.count() == 6
    with pond.store.snapshot(["orders"]) as snapshot:
        for chosen in (None, "id > 3"):
            counted = snapshot.spark("orders", pond.spark, columns=[], filter=chosen)
            assert (counted.columns, counted.count()) == ([], 6 if chosen is None else 2)

    def call() -> object:
        return pond.read(columns="[]").count()

    if feature("`columns` or `.schema(…)` of no columns", versions.ROWS_WITHOUT_COLUMNS, "4.1", call):
        assert call() == 6


def test_a_stream_from_table_to_table_goes_on_where_it_was(pond: Lake, feature) -> None:
    feature("stream read and stream write, resumed")
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    for turn in range(3):
        pond.orders.upsert(rows(10 * turn, 4, amount=turn))
        pond.store.checkpoint()
        pond.into(pond.stream(), "copy", "ck")
        assert copy.to_arrow().equals(pond.orders.to_arrow())
    assert copy.history().num_rows == 3


def test_a_batch_that_an_earlier_run_has_left_runs_once(pond: Lake, feature) -> None:
    feature("stream: a batch that an earlier run has left runs once")
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    pond.into(pond.stream(), "copy", "ck")
    pond.forget_last_commit("ck")
    pond.orders.upsert(rows(6, 3))
    pond.store.checkpoint()
    pond.into(pond.stream(), "copy", "ck")
    if not versions.STREAM_LIMITS:  # the run ended with the batch that was left
        assert copy.count() == 6
        pond.into(pond.stream(), "copy", "ck")
    assert copy.to_arrow().equals(pond.orders.to_arrow())
    assert copy.history().num_rows == 2


def test_a_stream_that_starts_again_knows_its_position(pond: Lake, feature) -> None:
    """Before 4.2 Spark does not tell the reader where the query is."""
    feature("stream that starts again: `consumerId`, a truncated log, an altered table")
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    first = pond.orders.upsert(rows(0, 6))

    def run(**options: object) -> None:
        pond.into(pond.stream(startingVersion=first, **options), "copy", "ck")

    run(consumerId="held")
    last = pond.orders.upsert(rows(6, 3))
    assert "consumer:held" in refusal(lambda: pond.orders.truncate_log(last))
    run(consumerId="held")
    pond.orders.upsert(rows(6, 3, amount=2.0))
    run(consumerId="held")
    pond.orders.truncate_log(last)  # it has passed it
    run()
    assert copy.to_arrow().equals(pond.orders.to_arrow())

    pond.store.drop_consumer("held")
    pond.orders.upsert(rows(9, 3))
    pond.orders.truncate_log(pond.orders.upsert(rows(12, 3)))
    assert "LogTruncated: the log of 'orders' begins after epoch" in refusal(run)
    pond.orders.upsert(rows(20, 1))
    run(failOnDataLoss="false")
    assert copy.to_arrow()["id"].to_pylist() == [*range(9), 20]

    pond.orders.upsert(rows(30, 1))
    pond.orders.alter(rename={"day": "label"})
    pond.orders.upsert([{"id": 31, "label": "new", "amount": 1.0}])
    copy.alter(rename={"day": "label"})
    run()
    assert copy.get({"id": [30, 31]}).to_pylist() == pond.orders.get({"id": [30, 31]}).to_pylist()


def test_limits_of_a_micro_batch(pond: Lake, feature) -> None:
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    for turn in range(3):
        pond.orders.upsert(rows(10 * turn, 4))
        pond.store.checkpoint()
    options = {"startingVersion": "earliest", "maxEpochsPerTrigger": 1}

    def load() -> DataFrame:
        return pond.stream(**options)

    if feature("`maxRowsPerTrigger`, `maxEpochsPerTrigger`, `maxBytesPerTrigger`", versions.STREAM_LIMITS, "4.2", load):
        pond.into(load(), "copy", "ck")
        assert copy.history().num_rows == 4
    else:
        stream = pond.spark.readStream.options(**options).table("pond.orders").writeStream
        run = stream.format("noop").option("checkpointLocation", str(pond.scratch / "noop")).start
        with pytest.raises(PySparkException, match="needs Spark 4.2") as refused:
            run().processAllAvailable()
        assert "UnboundLocalError" not in str(refused.value)


def test_a_stream_of_rates_into_a_table(pond: Lake, feature) -> None:
    feature("a stream of another source into a table")
    pond.store.create_table("ticks", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]), ["id"])
    ticks = pond.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    frame = ticks.selectExpr("value AS id", "timestamp AS at")
    writer = frame.writeStream.format("epochlog").options(**pond.options("ticks"))
    query = writer.option("checkpointLocation", str(pond.scratch / "rates")).trigger(once=True).start()
    query.awaitTermination()
    assert pond.store.table("ticks").count() == 5


def test_zoned_and_local_times_and_decimals_keep_their_values(pond: Lake, feature) -> None:
    feature("timestamps with and without a zone, dates, decimals, lists, structs, maps")
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False),
        ("zoned", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32()),
        ("price", pa.decimal128(12, 3)), ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int32()), ("y", pa.float32())])), ("words", pa.map_(pa.string(), pa.int64())),
    ])  # fmt: skip
    moment = dt.datetime(2024, 7, 1, 12, 30, 0, 5)
    zoned = moment.replace(tzinfo=dt.UTC)
    values = [1, zoned, moment, moment.date(), Decimal("12.345"), ["a", None], {"x": 3, "y": 0.5}, [("k", 9)]]
    made = pond.store.create_table("kinds", schema, ["id"])
    made.upsert(pa.table([[value] for value in values], schema=schema))
    pond.store.create_table("again", schema, ["id"])
    frame = pond.read("kinds")
    assert [kind for _, kind in frame.dtypes][1:4] == ["timestamp", "timestamp_ntz", "date"]
    pond.write(frame, "again")
    pond.spark.sql("INSERT INTO pond.again SELECT id + 1, zoned, local, day, price, tags, point, words FROM pond.kinds")
    for key in (1, 2):
        (row,) = pond.store.table("again").get({"id": [key]}).to_pylist()
        assert list(row.values())[1:] == values[1:], row


def test_columns_of_time(pond: Lake, feature) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.time64("us"))])
    table = pond.store.create_table("clock", schema, ["id"])
    table.upsert([{"id": 1, "at": dt.time(12, 30, 5, 7)}])
    pond.store.checkpoint()

    def call() -> list[Any]:
        return pond.read("clock").collect()

    if feature("columns of TIME", versions.HAS_TIME, "4.1", call):
        assert tuple(call()[0]) == (1, dt.time(12, 30, 5, 7))
        assert pond.spark.sql("SELECT at FROM pond.clock").collect() == [(dt.time(12, 30, 5, 7),)]
        return
    for statement in ("SELECT id FROM pond.clock", "DESCRIBE pond.clock"):
        text = refusal(lambda statement=statement: pond.spark.sql(statement).collect())
        assert "column 'at': a column of TIME needs Spark 4.1, and" in text
        assert text.endswith("; leave it out with format('epochlog') and `columns`")
    assert ids(pond.read("clock", columns="id")) == [1]


def test_a_table_is_created_with_a_column_of_time(pond: Lake) -> None:
    """Spark has the type turned off in SQL from the version on that has it."""

    def create() -> None:
        pond.spark.sql(f"CREATE TABLE pond.clocks (id BIGINT, at TIME) {KEYED}")

    if not versions.HAS_TIME:
        assert "InvalidInput: a column of TIME needs Spark 4.1" in refusal(create)
        return
    assert "set spark.sql.timeType.enabled to true" in refusal(create)
    pond.spark.conf.set("spark.sql.timeType.enabled", True)
    try:
        create()
        pond.spark.sql("INSERT INTO pond.clocks VALUES (1, TIME'12:30:05.000007')")
        assert pond.spark.sql("SELECT * FROM pond.clocks").collect() == [(1, dt.time(12, 30, 5, 7))]
    finally:
        pond.spark.conf.unset("spark.sql.timeType.enabled")


# ---- functions of the library ----------------------------------------------------------------------------------------


def test_the_sink_in_foreach_batch(pond: Lake, feature) -> None:
    feature("`el.sink` in `foreachBatch`")
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    day = pond.store.create_table("days", pa.schema([("day", pa.string())]), ["day"])
    columns = ["id", "day", "amount"]
    sink = el.sink(
        {"copy": lambda frame: frame.select(columns), "days": lambda frame: frame.select("day").distinct()},
        app_id="both", path=pond.root,
    )  # fmt: skip
    for turn in range(2):
        pond.orders.upsert(rows(6 * turn, 6))
        pond.store.checkpoint()
        writer = pond.stream().writeStream.foreachBatch(sink)
        pond.drain(writer.option("checkpointLocation", str(pond.scratch / "ck")))
    assert (copy.count(), day.count()) == (12, 3)


def test_a_bounded_stream_finishes_its_table(pond: Lake, feature) -> None:
    feature("`el.sink(…).load` of a bounded stream")
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    pond.spark.createDataFrame(pond.orders.to_arrow()).write.parquet(str(pond.scratch / "files"))
    frame = pond.spark.readStream.schema("id long, day string, amount double").parquet(str(pond.scratch / "files"))
    sink = el.sink({"copy": None}, app_id="load", path=pond.root)
    epoch = sink.load(frame.writeStream.option("checkpointLocation", str(pond.scratch / "ck")))
    assert (copy.info.state, copy.info.max_committed_epoch) == ("finished", epoch)
    assert copy.to_arrow().equals(pond.orders.to_arrow())


def test_the_changes_of_a_table_finish_another(pond: Lake, feature) -> None:
    copy = pond.store.create_table("copy", pond.orders.schema, ["id"])
    frame = pond.stream().select("id", "day", "amount")
    sink = el.sink({"copy": None}, app_id="load", path=pond.root)
    writer = frame.writeStream.option("checkpointLocation", str(pond.scratch / "ck"))

    def call() -> object:
        return sink.load(writer)

    if feature("`el.sink(…).load` of the changes of a table", versions.STREAM_LIMITS, "4.2", call):
        call()
        assert copy.info.state == "finished" and copy.to_arrow().equals(pond.orders.to_arrow())
    else:
        assert copy.info.state != "finished" and copy.count() == 0


def test_views_and_jobs_on_spark(pond: Lake, feature) -> None:
    feature("`view.step`, `view.start`, `job.step`, `Pipeline`")
    sums = pond.store.create_view("sums", "SELECT day, SUM(amount) AS total FROM orders GROUP BY day", ["day"])
    sums.step(pond.spark)
    assert pond.store.table("sums").to_arrow().num_rows == 3
    query = sums.start(pond.spark)
    pond.orders.upsert(rows(6, 3))
    pond.store.checkpoint()
    query.processAllAvailable()
    query.stop()
    (expected,) = pond.spark.sql("SELECT SUM(amount) FROM pond.orders").collect()
    assert sum(pond.store.table("sums").to_arrow()["total"].to_pylist()) == expected[0]


def test_the_progress_of_a_query_has_its_steps(pond: Lake, feature) -> None:
    feature("metrics of a job's steps in `lastProgress` and for listeners")
    view = pond.store.create_view("few", "SELECT id FROM orders WHERE id < 3", ["id"])
    query: Any = view.start(pond.spark, trigger="available_now")
    query.awaitTermination()
    metrics = query.lastProgress["sources"][0]["metrics"]
    assert (metrics["job"], metrics["rows"], metrics["engine"]) == ("few", "3", "spark")


def test_snapshots_and_compaction_on_spark(pond: Lake, feature) -> None:
    feature("`snapshot.spark`, `compact(spark=…)`")
    with pond.store.snapshot(["orders"]) as snapshot:
        pond.orders.upsert(rows(6, 3))
        pond.store.checkpoint()
        assert ids(snapshot.spark("orders", pond.spark)) == list(range(6))
    pond.store.compact("orders", full=True, spark=pond.spark)
    assert ids(pond.read()) == list(range(9))


def test_a_staged_exchange_between_applications(pond: Lake, feature) -> None:
    feature('`format("epochlog.exchange")`, batch and stream')
    schema = "_stage BIGINT, id BIGINT, text STRING"
    with el.serve(pond.store, token="the-token") as server:
        options = {"location": server.location, "token": "the-token", "query": "both", "stages": "0,1"}
        for stage in range(2):
            frame = pond.spark.range(stage * 30, stage * 30 + 30, 1, 2).selectExpr("id", "concat('row ', id) AS text")
            frame.write.format("epochlog.exchange").mode("append").options(**options, stage=stage, channels=2).save()
            stream = pond.spark.readStream.format("epochlog.exchange").schema(schema).options(**options, channels=2)
            writer = stream.load().writeStream.format("parquet").option("path", str(pond.scratch / "read"))
            pond.drain(writer.option("checkpointLocation", str(pond.scratch / "ck")))
            assert pond.spark.read.parquet(str(pond.scratch / "read")).count() == 30 * (stage + 1)


# ---- the catalog -----------------------------------------------------------------------------------------------------


def test_the_catalog_counts_rows_without_a_column(pond: Lake, feature) -> None:
    feature("catalog: `SELECT`, `count(*)`, filters, joins")

    def sql(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in pond.spark.sql(text).collect()]

    assert sql("SELECT count(*) FROM pond.orders") == [(6,)]
    assert sql("SELECT 1 FROM pond.orders WHERE id > 3") == [(1,), (1,)]
    assert sql("SELECT count(*) FROM pond.orders a JOIN pond.orders b USING (day)") == [(12,)]
    assert sql("SELECT count(*) FROM pond.orders a CROSS JOIN pond.orders b") == [(36,)]
    assert pond.spark.table("pond.orders").count() == 6
    assert sql("SELECT day, count(*) FROM pond.orders GROUP BY day ORDER BY day") == [(f"d{i}", 2) for i in range(3)]


def test_frames_of_the_catalog_are_read_at_one_epoch(pond: Lake, feature) -> None:
    feature("catalog: frames of several tables, made at several times, at one epoch")
    other = pond.store.create_table("other", pond.orders.schema, ["id"])
    other.upsert(rows(0, 6))
    pond.store.checkpoint()
    first = pond.spark.table("pond.orders").selectExpr("id", "amount AS a")
    for turn in (2, 3):
        with pond.store.transaction() as both:
            both.upsert("orders", rows(0, 6, amount=turn))
            both.upsert("other", rows(0, 6, amount=turn))
        pond.store.checkpoint()
        joined = first.join(pond.spark.table("pond.other").selectExpr("id", "amount AS b"), "id")
        assert [row for row in joined.collect() if row["a"] != row["b"]] == []
        assert joined.groupBy().sum("a").collect()[0][0] == 15 * turn


def test_the_catalog_creates_and_writes(pond: Lake, feature) -> None:
    feature("catalog: `CREATE`, `CREATE … AS SELECT`, `INSERT`, `INSERT OVERWRITE`, `DELETE`, `writeTo`, `DROP`")
    sql = pond.spark.sql
    sql(f"CREATE TABLE pond.made (id BIGINT COMMENT 'the key', note STRING) {KEYED}")
    sql("INSERT INTO pond.made VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    sql("DELETE FROM pond.made WHERE id = 2")
    sql(f"CREATE TABLE pond.other {KEYED} AS SELECT * FROM pond.made")
    sql("INSERT OVERWRITE pond.made VALUES (9, 'nine')")
    pond.spark.table("pond.other").writeTo("pond.made").append()
    assert pond.store.table("made").to_arrow().to_pydict() == {"id": [1, 3, 9], "note": ["one", "three", "nine"]}
    sql("DROP TABLE pond.other")
    assert [row["tableName"] for row in sql("SHOW TABLES IN pond").collect()] == ["made", "orders"]


def test_an_insert_of_some_columns(pond: Lake, feature) -> None:
    there = java_member(java_catalog(pond), "TableInfo") is not None
    text = "INSERT INTO pond.orders (id, day) VALUES (9, 'd9')"
    if feature("catalog: `INSERT` of some columns", there, "4.1", lambda: pond.spark.sql(text)):
        pond.spark.sql(text)
    else:
        pond.spark.sql("INSERT INTO pond.orders (id, day, amount) VALUES (9, 'd9', NULL)")
    assert pond.orders.get(9).to_pylist() == [{"id": 9, "day": "d9", "amount": None}]


def test_the_catalog_declares_a_key(pond: Lake, feature) -> None:
    there = java_member(java_catalog(pond), "constraints.Constraint") is not None
    text = "CREATE TABLE pond.keyed (id BIGINT PRIMARY KEY, n INT)"
    if feature("catalog: `PRIMARY KEY` in `CREATE TABLE`", there, "4.1", lambda: pond.spark.sql(text)):
        pond.spark.sql(text)
        assert pond.store.table("keyed").primary_key == ["id"]


def test_the_catalog_alters_and_describes(pond: Lake, feature) -> None:
    feature("catalog: `ALTER TABLE`, `DESCRIBE`, `SHOW CREATE TABLE`, comments of columns")
    sql = pond.spark.sql
    sql(f"CREATE TABLE pond.made (id BIGINT COMMENT 'the key', n INT) {KEYED}")
    sql("ALTER TABLE pond.made ADD COLUMNS (note STRING COMMENT 'free text')")
    sql("ALTER TABLE pond.made ALTER COLUMN n TYPE BIGINT")
    shown = {row["col_name"]: (row["data_type"], row["comment"]) for row in sql("DESCRIBE pond.made").collect()}
    assert shown["id"] == ("bigint", "the key")
    assert shown["n"][0] == "bigint"
    assert shown["note"] == ("string", "free text")
    (text,) = sql("SHOW CREATE TABLE pond.made").collect()[0]
    assert "epoch" not in text, "CREATE TABLE takes no epoch"
    properties = {row["key"]: row["value"] for row in sql("SHOW TBLPROPERTIES pond.made").collect()}
    assert properties.keys() >= {"primary_key", "epoch"}
    sql("DROP TABLE pond.made")
    sql(text)
    assert pond.store.table("made").schema.names == ["id", "n", "note"]


def test_the_catalog_reads_the_past(pond: Lake, feature) -> None:
    feature("catalog: `VERSION AS OF`, `TIMESTAMP AS OF`, tags as namespaces")
    tag = pond.store.tag("before")
    pond.orders.upsert(rows(6, 3))
    pond.store.checkpoint()

    def sql(text: str) -> object:
        return pond.spark.sql(text).collect()[0][0]

    assert sql(f"SELECT count(*) FROM pond.orders VERSION AS OF {tag.epochs['orders']}") == 6
    assert sql("SELECT count(*) FROM pond.orders VERSION AS OF 'before'") == 6
    assert sql("SELECT count(*) FROM pond.before.orders") == 6
    assert sql("SELECT count(*) FROM pond.orders TIMESTAMP AS OF current_timestamp()") == 9


def test_the_catalog_of_all_sessions(pond: Lake, feature) -> None:
    feature("catalog: `all_sessions=True`")
    el.catalog(pond.spark, pond.store, "everywhere", all_sessions=True)
    try:
        session = pond.spark.newSession()
        session.sql(
            "INSERT INTO everywhere.orders SELECT id + 10 AS id, day, amount FROM everywhere.orders WHERE id < 2"
        )
        assert ids(session.table("everywhere.orders")) == [*range(6), 10, 11]
    finally:
        forget_catalog(pond.spark, "everywhere")


def test_the_catalog_streams(pond: Lake, feature) -> None:
    feature("catalog: `readStream.table`, `toTable`")
    pond.store.create_table("copy", pond.orders.schema, ["id"])
    for turn in range(2):
        pond.orders.upsert(rows(6 * turn, 6))
        pond.store.checkpoint()
        writer = pond.spark.readStream.table("pond.orders").writeStream.trigger(availableNow=True)
        writer.option("checkpointLocation", str(pond.scratch / "ck")).toTable("pond.copy").awaitTermination()
    assert pond.store.table("copy").to_arrow().equals(pond.orders.to_arrow())


def test_the_catalog_streams_change_columns(pond: Lake, feature) -> None:
    """Spark before 4.2 does not tell a scan the columns of its stream; values of other columns were read there."""
    feature("catalog: change columns of `readStream.table`")
    seen: list[tuple[Any, ...]] = []

    def run(frame: DataFrame) -> None:
        seen.clear()
        pond.drain(frame.writeStream.foreachBatch(lambda batch, _: seen.extend(map(tuple, batch.collect()))))

    whole = pond.spark.readStream.option("startingVersion", "earliest").table("pond.orders")
    changes = whole.select("_commit_version", "id", "_change_type")
    run(changes)
    (epoch,) = pond.orders.history()["epoch"].to_pylist()
    assert sorted(seen) == [(epoch, key, "upsert") for key in range(6)]
    run(whole.select("id"))
    assert sorted(seen) == [(key,) for key in range(6)]
    both = changes.union(whole.selectExpr("0L", "id", "'plain'"))
    if versions.STREAM_LIMITS:
        run(both)
        assert len(seen) == 12
    else:
        with pytest.raises(PySparkException, match="InvalidInput: a query of two streams .* needs Spark 4.2"):
            run(both)


def test_the_catalog_refuses_by_the_call(pond: Lake, feature) -> None:
    """It knows a replacement, a write without a key and a stream only by the calls of Spark on the thread."""
    feature("catalog: advice on `CREATE OR REPLACE`, and on new tables of `saveAsTable` and `toTable`")
    sql, spark = pond.spark.sql, pond.spark
    epoch, before = pond.store.last_epoch, pond.orders.to_arrow()
    for replaced in (f"(id BIGINT) {KEYED}", f"{KEYED} AS SELECT 1L AS id"):
        text = refusal(lambda replaced=replaced: sql(f"CREATE OR REPLACE TABLE pond.orders {replaced}"))
        assert text.startswith("NotWritable") and "INSERT OVERWRITE pond.orders" in text
    frame = spark.table("pond.orders")
    stream = spark.readStream.table("pond.orders").writeStream.option("checkpointLocation", str(pond.scratch / "ck"))
    for write in (lambda: frame.write.saveAsTable("pond.new"), lambda: stream.toTable("pond.new")):
        text = refusal(write)
        assert text.startswith("TableNotFound") and "names no primary key" in text
    for name, value in (("versionAsOf", epoch), ("timestampAsOf", "2099-01-01")):
        reader = spark.readStream.option(name, value)
        with pytest.raises(Exception, match="a stream reads changes, not one moment|time travel is not allowed"):
            pond.drain(reader.table("pond.orders").writeStream.format("noop"))  # before 4.2 Spark refuses it itself
        assert spark.read.option(name, value).table("pond.orders").count() == 6
    assert pond.orders.to_arrow().equals(before) and [info.name for info in pond.store.tables()] == ["orders"]
    frame.writeTo("pond.new").tableProperty("primary_key", "id").create()
    frame.write.mode("append").saveAsTable("pond.new")
    assert pond.store.table("new").to_arrow().equals(before)


def test_the_catalog_reads_columns_that_differ_by_case(pond: Lake, feature) -> None:
    feature("catalog: columns whose names differ by case alone")
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("K", pa.int64())])
    twins = pond.store.create_table("twins", schema, ["id"])
    twins.upsert([{"id": 1, "k": 2, "K": 3}])
    frame = pond.spark.table("pond.twins")
    twins.upsert([{"id": 1, "k": 4, "K": 5}])
    for query in (frame, pond.spark.sql("SELECT * FROM pond.twins")):
        assert [tuple(row) for row in query.collect()] == [(1, 4, 5)]
    assert ids(frame.select("id")) == [1]
    assert "'k' and 'K'" in refusal(lambda: pond.spark.sql("SELECT k FROM pond.twins"))


def test_the_catalog_reads_changes(pond: Lake, feature) -> None:
    there = java_member(java_catalog(pond), "Changelog") is not None
    text = "SELECT id, _change_type FROM pond.orders CHANGES FROM VERSION 1"
    if feature("catalog: `CHANGES FROM VERSION`", there, "4.2", lambda: pond.spark.sql(text)):
        assert {tuple(row) for row in pond.spark.sql(text).collect()} == {(key, "insert") for key in range(6)}
