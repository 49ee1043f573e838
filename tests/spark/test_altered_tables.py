"""Altered tables in Spark: reads and feeds by their epochs, streams that begin again, sinks that run on, and SQL."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

import epochlog as el
from epochlog.spark import delete_where
from epochlog.spark.errors import find_epochlog_error
from epochlog.spark.sink import resolve_save
from spark_needs import has
from spark_store import rows

pytestmark = pytest.mark.spark
SWAP = {"day": "name", "amount": "day"}


def swapped(lake: Any) -> tuple[int, int]:
    """Two rows, then `day` and `amount` move to other names, then a third row; return the epochs of the commits."""
    first = lake.orders.upsert(rows(0, 2))
    lake.orders.alter(rename=SWAP, add=[pa.field("c", pa.int32())])
    return first, lake.orders.upsert([{"id": 2, "name": "new", "day": 9.0, "c": 3}])


def plain(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def failure(action: Any) -> el.EpochlogError:
    with pytest.raises(PySparkException) as caught:
        action()
    error = find_epochlog_error(caught.value)
    assert error is not None, caught.value
    return error


# ---- the source ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.2")
def test_a_load_has_the_columns_of_its_epoch(lake) -> None:
    first, second = swapped(lake)
    lake.store.compact("orders", full=True)
    old = [{"id": 0, "day": "d0", "amount": 0.0}, {"id": 1, "day": "d1", "amount": 1.0}]
    new = [{"id": 0, "name": "d0", "day": 0.0, "c": None}, {"id": 1, "name": "d1", "day": 1.0, "c": None},
           {"id": 2, "name": "new", "day": 9.0, "c": 3}]  # fmt: skip
    assert plain(lake.read(versionAsOf=first)) == old
    assert plain(lake.read(versionAsOf=first, filter="amount > 0.5")) == old[1:]
    assert plain(lake.read(versionAsOf=second)) == plain(lake.read()) == new
    assert plain(lake.read(filter="day > 0.5")) == new[1:]
    frame = lake.read()  # its epoch is fixed
    lake.orders.alter(drop=["day"])
    assert plain(frame) == new


@pytest.mark.rule("7.8")
def test_a_batch_of_changes_spans_no_alter(lake) -> None:
    first, second = swapped(lake)
    error = failure(lambda: lake.read(readChangeFeed="true", startingVersion="earliest").collect())
    assert isinstance(error, el.SchemaChanged)
    assert first < error.epoch < second
    before = lake.read(readChangeFeed="true", startingVersion="earliest", endingVersion=error.epoch - 1)
    assert [row.day for row in before.collect()] == ["d0", "d1"]
    after = lake.read(readChangeFeed="true", startingVersion=error.epoch)
    assert [(row.name, row.day, row.c) for row in after.collect()] == [("new", 9.0, 3)]
    net = lake.read(readChangeFeed="true", startingVersion="earliest", changeMode="net")
    assert [(row.id, row.name, row.day) for row in net.orderBy("id").collect()] == [
        (0, "d0", 0.0), (1, "d1", 1.0), (2, "new", 9.0)
    ]  # fmt: skip


@pytest.mark.rule("7.8")
def test_a_stream_ends_at_an_alter_and_goes_on_when_it_starts_again(lake) -> None:
    taken: list[Row] = []

    def drain() -> None:
        stream = lake.stream(startingVersion="earliest")
        writer = stream.writeStream.foreachBatch(lambda frame, _: taken.extend(frame.orderBy("id").collect()))
        lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))

    lake.orders.upsert(rows(0, 2))
    drain()
    lake.orders.alter(add=[pa.field("c", pa.int32())])
    lake.orders.upsert([{"id": 2, "day": "d2", "amount": 2.0, "c": 2}])
    drain()
    assert [(row.id, row.day, row.amount) for row in taken] == [(0, "d0", 0.0), (1, "d1", 1.0), (2, "d2", 2.0)]
    assert taken[-1].c == 2
    lake.orders.upsert(rows(3, 1).append_column("c", pa.array([None], pa.int32())))
    lake.orders.alter(rename=SWAP)
    lake.orders.upsert([{"id": 4, "name": "new", "day": 9.0, "c": 4}])
    drain()  # it starts with the present columns, by which it reads what is left
    assert [(row.id, row.name, row.day) for row in taken[3:]] == [(3, "d0", 3.0), (4, "new", 9.0)]


@pytest.mark.rule("7.8")
def test_a_running_stream_stops_before_an_alter(lake) -> None:
    taken: list[Row] = []
    lake.orders.upsert(rows(0, 1))
    stream = lake.stream(startingVersion="earliest")
    writer = stream.writeStream.foreachBatch(lambda frame, _: taken.extend(frame.collect()))
    writer = writer.option("checkpointLocation", str(lake.scratch / "ck")).trigger(processingTime="50 milliseconds")
    query = writer.start()
    try:
        lake.orders.alter(add=[pa.field("c", pa.int32())])
        lake.orders.upsert([{"id": 1, "day": "d1", "amount": 1.0, "c": 1}])
        lake.orders.alter(rename=SWAP)
        lake.orders.upsert([{"id": 2, "name": "new", "day": 9.0, "c": 2}])
        error = failure(query.awaitTermination)
        assert isinstance(error, el.SchemaChanged)
    finally:
        query.stop()
    assert [(row.id, row.day, row.amount) for row in taken] == [(0, "d0", 0.0), (1, "d1", 1.0)]
    assert "c" not in taken[1].asDict()  # what was added is left out until it starts again


# ---- the sinks -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.6")
def test_a_sink_that_runs_on_writes_nulls_into_added_columns(lake) -> None:
    source = lake.store.create_table("source", lake.orders.schema, ["id"])
    source.upsert(rows(0, 2))
    writer = lake.stream("source", startingVersion="earliest").writeStream.format("epochlog")
    writer = writer.options(**lake.options("orders")).option("checkpointLocation", str(lake.scratch / "ck"))
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        query.processAllAvailable()
        lake.orders.alter(add=[pa.field("c", pa.int32())], rename=SWAP)
        source.upsert(rows(2, 1))
        query.processAllAvailable()
    finally:
        query.stop()
    assert lake.orders.to_arrow().to_pylist() == [
        {"id": key, "name": f"d{key}", "day": float(key), "c": None} for key in range(3)
    ]


def test_a_stream_that_does_not_say_its_columns_is_refused(lake) -> None:
    """Spark resolves its sink again for each micro-batch, and by then a name may belong to another column."""
    frame = lake.read()
    options = lake.options("orders")
    assert resolve_save(options, frame.schema, False, streaming=True).table.schema.version == 0
    lake.orders.alter(rename={"day": "x"})
    with pytest.raises(el.SchemaChanged, match="register"):
        resolve_save(options, frame.schema, False, streaming=True)
    at_start = resolve_save({**options, "schemaVersion": "0"}, frame.schema, False, streaming=True)
    assert at_start.table.schema.schema.names == ["id", "day", "amount"]


def test_merge_schema_adds_the_columns_that_a_frame_has(lake) -> None:
    lake.orders.upsert(rows(0, 1))
    frame = lake.spark.createDataFrame(
        [(1, "d1", 1.0, 5, [1, 2])], "id long, day string, amount double, n int, l array<int>"
    )
    assert isinstance(failure(lambda: lake.write(frame)), el.SchemaMismatch)
    lake.write(frame, mergeSchema="true")
    assert [(f.name, f.type) for f in lake.orders.to_arrow().schema][3:] == [
        ("n", pa.int32()),
        ("l", pa.list_(pa.int32())),
    ]
    lake.write(frame.drop("amount").withColumn("id", frame.id + 1), mergeSchema="true")
    assert lake.orders.to_arrow().select(["id", "amount", "n"]).to_pylist() == [
        {"id": 0, "amount": 0.0, "n": None}, {"id": 1, "amount": 1.0, "n": 5}, {"id": 2, "amount": None, "n": 5}
    ]  # fmt: skip
    assert lake.orders.history()["operation"].to_pylist().count("alter") == 1
    error = failure(lambda: lake.write(frame.drop("id"), mergeSchema="true"))
    assert isinstance(error, el.SchemaMismatch)
    lake.store.table("orders").finish()


def test_merge_schema_adds_nothing_for_a_frame_that_cannot_be_written(lake) -> None:
    lake.orders.upsert(rows(0, 2))
    before = lake.orders.to_arrow()
    frame = lake.spark.createDataFrame(rows(0, 1))
    for wrong, words in (
        (frame.withColumnRenamed("amount", "Amount"), "has a column 'amount', and the frame 'Amount'"),
        (frame.withColumnRenamed("id", "ID").withColumn("more", frame.amount), "has a column 'id', and the frame 'ID'"),
        (frame.drop("id").withColumn("more", frame.amount), "column 'id'"),
    ):
        error = failure(lambda wrong=wrong: lake.write(wrong, mergeSchema="true"))
        assert words in str(error)
        assert lake.orders.to_arrow() == before


def test_merge_schema_of_a_stream_adds_a_column_at_its_start(lake) -> None:
    source = lake.store.create_table("source", pa.schema([*lake.orders.schema, pa.field("c", pa.int32())]), ["id"])
    source.upsert([{"id": 1, "day": "d", "amount": 0.5, "c": 7}])
    stream = lake.stream("source", startingVersion="earliest")
    lake.into(stream, "orders", "ck", mergeSchema="true")
    assert lake.orders.to_arrow().to_pylist() == [{"id": 1, "day": "d", "amount": 0.5, "c": 7}]


# ---- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.7")
def test_a_view_that_spark_refreshes_keeps_its_columns(lake) -> None:
    lake.orders.upsert(rows(0, 4))
    query = "SELECT day, SUM(amount) AS amount, COUNT(*) AS n FROM orders WHERE amount >= 0 GROUP BY day"
    view = lake.store.create_view("days", query, ["day"], spark=lake.spark)
    lake.store.checkpoint()
    view.step(spark=lake.spark)
    lake.orders.alter(rename=SWAP, add=[pa.field("c", pa.int32())])
    lake.orders.upsert([{"id": 0, "name": "d1", "day": 10.0, "c": 1}, {"id": 9, "name": "d9", "day": 9.0, "c": None}])
    lake.store.checkpoint()
    view.step(spark=lake.spark)
    assert lake.store.table("days").to_arrow().to_pylist() == [
        {"day": "d0", "amount": 3.0, "n": 1},
        {"day": "d1", "amount": 11.0, "n": 2},
        {"day": "d2", "amount": 2.0, "n": 1},
        {"day": "d9", "amount": 9.0, "n": 1},
    ]
    lake.store.replace_views({"days": query.replace("day, SUM(amount)", "name AS day, SUM(day)").replace(
        "amount >= 0 GROUP BY day", "day > 1 GROUP BY name")}, spark=lake.spark)  # fmt: skip
    while view.step(spark=lake.spark) is not None:
        lake.store.checkpoint()
    assert lake.store.table("days").to_arrow()["n"].to_pylist() == [1, 1, 1, 1]
    assert lake.store.table("days").to_arrow()["amount"].to_pylist() == [3.0, 10.0, 2.0, 9.0]


@pytest.mark.rule("7.7")
@pytest.mark.parametrize("refresh", ["auto", "full"])
def test_a_view_that_spark_refreshes_binds_the_columns_that_its_query_reads(lake, refresh: str) -> None:
    lake.orders.upsert(rows(0, 4))
    query = (
        "WITH q AS (SELECT * EXCEPT (amount) FROM orders) SELECT day, COUNT(*) AS n FROM q WHERE id < 9 GROUP BY day"
    )
    view = lake.store.create_view("days", query, ["day"], refresh=refresh, spark=lake.spark)

    def counts() -> dict[str, int]:
        lake.store.checkpoint()
        while view.step(spark=lake.spark) is not None:
            lake.store.checkpoint()
        return {row["day"]: row["n"] for row in lake.store.table("days").to_arrow().to_pylist()}

    expected = counts()
    lake.orders.alter(drop=["amount"])
    lake.orders.upsert([{"id": 0, "day": "d1"}, {"id": 8, "day": "d8"}])
    lake.orders.alter(add=[pa.field("amount", pa.string())])
    expected = {**expected, "d1": expected["d1"] + 1, "d8": 1}
    expected["d0"] -= 1
    expected = {day: n for day, n in expected.items() if n}
    assert counts() == expected
    lake.store.compact("orders", full=True)
    view.rebuild()
    assert counts() == expected
    with pytest.raises(el.SchemaInUse, match="the query of view 'days' reads it"):
        lake.orders.alter(drop=["day"])
    lake.store.replace_views({"days": query.replace("(amount)", "(day)").replace("SELECT day", "SELECT amount AS day")
        .replace("BY day", "BY amount").replace("id < 9", "amount IS NOT NULL")}, spark=lake.spark)  # fmt: skip
    lake.orders.alter(drop=["day"])
    lake.orders.upsert([{"id": 1, "amount": "many"}])
    assert counts() == {"many": 1}


def test_a_view_that_spark_refreshes_reads_no_added_column_whose_name_differs_by_case(lake) -> None:
    lake.orders.upsert(rows(0, 4))
    query = "SELECT day, COUNT(*) AS n FROM orders GROUP BY day"
    view = lake.store.create_view("days", query, ["day"], refresh="full", spark=lake.spark)
    lake.orders.alter(add=[pa.field("DAY", pa.string())])
    lake.orders.upsert([{**row, "DAY": "none"} for row in rows(0, 3).to_pylist()])
    lake.orders.delete([3])
    lake.store.compact("orders", full=True)
    lake.store.checkpoint()
    view.step(spark=lake.spark)
    assert lake.store.table("days").to_arrow()["day"].to_pylist() == ["d0", "d1", "d2"]


@pytest.mark.rule("5.40")
def test_a_step_until_the_newest_boundary_passes_alters(lake) -> None:
    lake.orders.upsert(rows(0, 2))
    view = lake.store.create_view(
        "days", "SELECT day, COUNT(*) AS n FROM orders GROUP BY day", ["day"], spark=lake.spark
    )
    job = lake.store.create_job("j", ["orders"], {"o": (pa.schema([("id", pa.int64())]), ["id"])})

    def refresh(ctx: Any) -> None:
        ctx.upsert("o", ctx.changes("orders").select("id"))

    for _ in range(2):
        boundary = lake.store.checkpoint()
        assert view.step(lake.spark, until="newest") and job.step(lake.spark, refresh, until="newest")
        with lake.store.snapshot(["orders", "days", "o"]) as moment:  # nothing changes after a boundary of the clock
            assert min(moment.epochs.values()) >= boundary
        assert {row["day"]: row["n"] for row in lake.store.table("days").to_arrow().to_pylist()} == {"d0": 1, "d1": 1}
        lake.orders.alter(add=[pa.field(f"x{boundary}", pa.int32())])
        for name in ("y", "z"):
            lake.orders.upsert([dict.fromkeys(lake.orders.schema.names) | {"id": 0, "day": "d0", "amount": 5.0}])
            lake.orders.alter(add=[pa.field(f"{name}{boundary}", pa.int32())])
        lake.orders.upsert([dict.fromkeys(lake.store.table("orders").schema.names) | {"id": 1, "day": "d1"}])


# ---- the catalog ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sql(lake):
    el.catalog(lake.spark, lake.store)
    yield lake.spark.sql
    lake.spark.sql("USE spark_catalog.default")


def names(lake: Any) -> list[str]:
    return lake.store.table("orders").schema.names


def test_alter_table_in_sql(lake, sql) -> None:
    first = lake.orders.upsert(rows(0, 2))
    sql("ALTER TABLE lake.orders ADD COLUMNS (c INT, d DECIMAL(5, 2))")
    assert names(lake) == ["id", "day", "amount", "c", "d"]
    sql("ALTER TABLE lake.orders RENAME COLUMN day TO label")
    sql("ALTER TABLE lake.orders ALTER COLUMN c TYPE BIGINT")
    sql("ALTER TABLE lake.orders DROP COLUMNS (d)")
    sql("ALTER TABLE lake.orders DROP COLUMN IF EXISTS d")
    assert [(f.name, f.type) for f in lake.store.table("orders").schema] == [
        ("id", pa.int64()), ("label", pa.string()), ("amount", pa.float64()), ("c", pa.int64())
    ]  # fmt: skip
    sql("INSERT INTO lake.orders VALUES (2, 'new', 2.0, 5000000000)")
    assert plain(sql("SELECT * FROM lake.orders WHERE id > 0")) == [
        {"id": 1, "label": "d1", "amount": 1.0, "c": None}, {"id": 2, "label": "new", "amount": 2.0, "c": 5_000_000_000}
    ]  # fmt: skip
    old = [{"id": 0, "day": "d0", "amount": 0.0}, {"id": 1, "day": "d1", "amount": 1.0}]
    assert plain(sql(f"SELECT * FROM lake.orders VERSION AS OF {first}")) == old
    sql("DELETE FROM lake.orders WHERE label = 'd0'")
    assert lake.orders.to_arrow()["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ADD COLUMN c INT FIRST", "last one"),
        ("ADD COLUMN c INT DEFAULT 5", r"store.table\('orders'\).alter\(add=.*defaults=\{'c'"),
        ("ADD COLUMN c INT NOT NULL", "nullable|NOT NULL|not null"),
        ("DROP COLUMN id", "primary key"),
        ("DROP COLUMN nope", "nope"),
        ("RENAME COLUMN day TO amount", "amount"),
        ("ALTER COLUMN amount TYPE STRING", "cannot be widened|type|cast"),
        ("SET TBLPROPERTIES (x = 'y')", r"store.table\('orders'\).alter"),
        ("ALTER COLUMN day COMMENT 'a'", "not supported"),
    ],
)
def test_what_alter_table_in_sql_refuses(lake, sql, statement: str, words: str) -> None:
    before = lake.orders.history().num_rows
    with pytest.raises(Exception, match=words):
        sql(f"ALTER TABLE lake.orders {statement}")
    assert names(lake) == ["id", "day", "amount"]
    assert lake.orders.history().num_rows == before


def widened(lake: Any, sql: Any) -> int:
    """A row of `t`, then all widenings in SQL; return the epoch of the row."""
    sql("""CREATE TABLE lake.t (id BIGINT, n INT, m BIGINT, d DECIMAL(5, 2), day DATE,
           s STRUCT<a: INT, l: ARRAY<STRUCT<x: INT>>>) TBLPROPERTIES (primary_key = 'id')""")
    first = "SELECT 1, 7, 8L, 1.25BD, DATE '2024-02-29', named_struct('a', 1, 'l', array(named_struct('x', 5), NULL))"
    sql(f"INSERT INTO lake.t {first}")
    epoch = lake.store.last_epoch
    lake.store.compact("t", full=True)
    for change in (
        "ALTER COLUMN n TYPE DOUBLE",
        "ALTER COLUMN m TYPE DECIMAL(24, 3)",
        "ALTER COLUMN d TYPE DECIMAL(9, 5)",
        "ALTER COLUMN day TYPE TIMESTAMP_NTZ",
        "ADD COLUMNS (s.b STRING, s.l.element.y INT)",
        "ALTER COLUMN s.a TYPE BIGINT",
    ):
        sql(f"ALTER TABLE lake.t {change}")
    return epoch


OF_T = {"n": 7.0, "m": Decimal("8.000"), "d": Decimal("1.25000"), "day": datetime(2024, 2, 29)}


@pytest.mark.rule("7.13")
def test_widenings_in_sql(lake, sql) -> None:
    first = widened(lake, sql)
    sql("""INSERT INTO lake.t SELECT 2, 0.5D, 9BD, 1.00001BD, TIMESTAMP_NTZ '2024-02-29 01:00:00',
           named_struct('a', 5000000000L, 'l', array(named_struct('x', 1, 'y', 2)), 'b', 'x')""")
    old = Row(a=1, l=[Row(x=5, y=None), None], b=None)
    new = Row(a=5_000_000_000, l=[Row(x=1, y=2)], b="x")
    for _ in ("in files of both", "in one file"):
        both = sql("SELECT * FROM lake.t ORDER BY id").collect()
        assert both[0].asDict() == {"id": 1, **OF_T, "s": old} and both[1].s == new
        assert lake.read(table="t").orderBy("id").collect() == both
        assert [
            row.id for row in sql("SELECT id FROM lake.t WHERE n > 6 AND day < '2024-02-29 00:30:00'").collect()
        ] == [1]
        past = sql(f"SELECT * FROM lake.t VERSION AS OF {first}").collect()
        assert past[0].n == 7 and past[0].day == date(2024, 2, 29) and past[0].s == Row(a=1, l=[Row(x=5), None])
        lake.store.compact("t", full=True)
    feed = lake.read(table="t", readChangeFeed="true", startingVersion="earliest", changeMode="net")
    assert [row.d for row in feed.orderBy("id").collect()] == [Decimal("1.25000"), Decimal("1.00001")]


@pytest.mark.parametrize(("statement", "words"), [
    ("ALTER COLUMN m TYPE DOUBLE", "cannot be widened|type|cast"),
    ("ALTER COLUMN day TYPE TIMESTAMP", "cannot be widened"),
    ("DROP COLUMN s.a", "can only get more fields"), ("RENAME COLUMN s.a TO z", "can only get more fields"),
    ("ADD COLUMNS (s.z INT FIRST)", "last one"), ("ADD COLUMNS (s.z INT COMMENT 'x')", "COMMENT"),
    ("ADD COLUMNS (s.z INT NOT NULL)", "cannot be widened|nullable|NOT NULL"),
])  # fmt: skip
def test_what_is_no_widening_in_sql(lake, sql, statement: str, words: str) -> None:
    sql("""CREATE TABLE lake.t (id BIGINT, m BIGINT, day DATE, s STRUCT<a: INT>) TBLPROPERTIES (primary_key = 'id')""")
    before = lake.store.table("t").schema
    with pytest.raises(Exception, match=words):
        sql(f"ALTER TABLE lake.t {statement}")
    assert lake.store.table("t").schema == before


@pytest.mark.rule("7.15")
def test_spark_reads_defaults_and_fills_them_in(lake, sql) -> None:
    lake.orders.upsert(rows(0, 2))
    lake.store.compact("orders", full=True)
    lake.orders.alter(add=[pa.field("c", pa.string()), pa.field("e", pa.int32())], defaults={"c": "new"})
    for _ in ("of plain Parquet without the column", "with it"):
        for frame in (lake.read(), sql("SELECT * FROM lake.orders")):
            assert [(row.c, row.e) for row in frame.collect()] == [("new", None)] * 2
        assert sql("SELECT id FROM lake.orders WHERE c = 'new'").count() == 2
        assert sql("SELECT id FROM lake.orders WHERE c IS NULL").count() == 0
        lake.store.compact("orders", full=True)
    frame = lake.spark.createDataFrame([(7, "d7", 1.0)], "id BIGINT, day STRING, amount DOUBLE")
    lake.write(frame, mergeSchema="true")
    assert lake.orders.get(7)["c"].to_pylist() == ["new"]
    query = "SELECT c, COUNT(*) AS n FROM orders GROUP BY c"
    view = lake.store.create_view("by_c", query, ["c"], spark=lake.spark)
    lake.store.checkpoint()
    view.step(spark=lake.spark)
    assert lake.store.table("by_c").to_arrow().to_pylist() == [{"c": "new", "n": 3}]


@pytest.mark.rule("7.13")
def test_merge_schema_adds_fields_of_structs(lake) -> None:
    kind = pa.struct([("a", pa.int32()), ("l", pa.list_(pa.struct([("x", pa.int64())])))])
    table = lake.store.create_table("s", pa.schema([("id", pa.int64()), ("s", kind)]), ["id"])
    table.upsert([{"id": 1, "s": {"a": 1, "l": [{"x": 1}]}}])
    more = "id BIGINT, s STRUCT<a: INT, l: ARRAY<STRUCT<x: BIGINT, y: STRING>>, b: DOUBLE>, extra INT"
    frame = lake.spark.createDataFrame([(2, (2, [(2, "y")], 0.5), 9)], more)
    with pytest.raises(Exception, match="does not fit|extra|type"):
        lake.write(frame, table="s")
    for _ in range(2):
        lake.write(frame, table="s", mergeSchema="true")
    assert lake.store.table("s").to_arrow().to_pylist() == [
        {"id": 1, "s": {"a": 1, "l": [{"x": 1, "y": None}], "b": None}, "extra": None},
        {"id": 2, "s": {"a": 2, "l": [{"x": 2, "y": "y"}], "b": 0.5}, "extra": 9},
    ]


@pytest.mark.needs("changes")
def test_changes_in_sql_have_the_columns_of_their_end(lake, sql) -> None:
    first, second = swapped(lake)
    changes = sql(f"SELECT id, day FROM lake.orders CHANGES FROM VERSION 1 TO VERSION {first}")
    assert sorted(changes.collect()) == [(0, "d0"), (1, "d1")]
    error = failure(lambda: sql(f"SELECT * FROM lake.orders CHANGES FROM VERSION 1 TO VERSION {second}").collect())
    assert isinstance(error, el.SchemaChanged)


@pytest.mark.rule("7.8")
@pytest.mark.needs("changes")
@pytest.mark.parametrize("alter", [{"drop": ["day"]}, {"rename": SWAP}, {"rename": {"day": "amount", "amount": "day"}}])
def test_changes_that_were_named_before_an_alter_do_not_pass_it(lake, sql, alter: Any) -> None:
    """Their end is chosen when the query runs, and the columns of the frame are of the time when it was made."""
    lake.orders.upsert(rows(0, 1))
    frame = sql("SELECT * FROM lake.orders CHANGES FROM VERSION 1")
    lake.orders.alter(add=[pa.field("c", pa.int32())])
    lake.orders.upsert([{"id": 1, "day": "d1", "amount": 1.0, "c": 1}])
    assert [(row.id, row.day, row.amount) for row in frame.orderBy("id").collect()] == [(0, "d0", 0.0), (1, "d1", 1.0)]
    later = sql(f"SELECT * FROM lake.orders CHANGES FROM VERSION {lake.store.last_epoch + 1}")
    lake.orders.alter(**alter)
    names = lake.store.table("orders").schema.names
    lake.orders.upsert([dict(zip(names, (2, *(None for _ in names[1:])), strict=True))])
    assert isinstance(failure(frame.collect), el.SchemaChanged)
    assert isinstance(failure(later.collect), el.SchemaChanged)  # it would read no change from before the alter


@pytest.mark.rule("7.2")
def test_a_frame_that_was_made_before_an_alter_reads_no_other_column(lake, sql) -> None:
    lake.orders.upsert(rows(0, 1))
    frame = lake.spark.table("lake.orders")
    lake.orders.alter(add=[pa.field("c", pa.int32())])
    lake.orders.upsert([{"id": 1, "day": "d1", "amount": 1.0, "c": 1}])
    if has("refresh"):
        assert plain(frame) == [{"id": 0, "day": "d0", "amount": 0.0}, {"id": 1, "day": "d1", "amount": 1.0}]
    else:
        assert isinstance(failure(frame.collect), el.SchemaChanged)
    lake.orders.alter(rename={"day": "x"})
    lake.orders.alter(rename={"amount": "y"})
    lake.orders.alter(add=[pa.field("day", pa.string()), pa.field("amount", pa.float64())])
    for query in (frame.select("day"), frame.where("amount > 0"), frame.where("id >= 0")):
        try:
            taken = [{name: row[name] for name in ("day", "amount") if name in row} for row in query.collect()]
        except PySparkException:
            continue
        assert all(value is None for row in taken for value in row.values())


@pytest.mark.rule("7.2")
@pytest.mark.parametrize(
    "alter", [{"drop": ["day"]}, {"rename": {"day": "weekday"}}, {"add": [pa.field("c", pa.int32())]}]
)
def test_a_cached_frame_serves_no_query_of_other_columns(lake, sql, alter: Any) -> None:
    def present() -> Any:
        return lake.spark.table("lake.orders").where("id >= 0")

    first = lake.orders.upsert(rows(0, 2))
    old, past = plain(present()), f"SELECT * FROM lake.orders VERSION AS OF {first}"
    assert plain(present().cache()) == plain(sql(past).cache()) == old
    try:
        lake.orders.alter(**alter)
        assert plain(present()) == lake.store.table("orders").to_arrow().to_pylist() != old
        assert plain(sql(past)) == old
        assert plain(present().cache()) == lake.store.table("orders").to_arrow().to_pylist()
        sql("ALTER TABLE lake.orders ADD COLUMN other INT")
        assert "other" in plain(present())[0]
    finally:
        lake.spark.catalog.clearCache()


@pytest.mark.rule("7.6")
def test_a_delete_is_refused_when_its_column_moves_meanwhile(lake, sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition is on another column than the one that has the name by then."""
    lake.orders.upsert(rows(0, 3))
    real = delete_where._Delete._select

    def select(self: Any, before: Any) -> Any:
        selection = real(self, before)
        if before is None:
            lake.orders.alter(rename={"day": "x"})
            lake.orders.alter(rename={"amount": "day"})
        return selection

    monkeypatch.setattr(delete_where._Delete, "_select", select)
    error = failure(lambda: sql("DELETE FROM lake.orders WHERE day = 'd1'"))
    assert isinstance(error, el.SchemaChanged)
    assert lake.orders.count() == 3


def test_an_overwrite_adapts_to_an_alter_that_comes_in_between(lake, sql) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.orders.alter(rename={"id": "key", "day": "id"})
    sql("INSERT OVERWRITE lake.orders VALUES (7, 'x', 1.5)")
    assert lake.orders.to_arrow().to_pylist() == [{"key": 7, "id": "x", "amount": 1.5}]
