"""The batch sink and source: rows come back, versions are fixed at load(), and bad input leaves nothing behind."""

from __future__ import annotations

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark.versions import STREAM_LIMITS
from spark_store import SCHEMA, rows

pytestmark = pytest.mark.spark


def ids(frame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def test_append_is_upsert(lake) -> None:
    lake.write(lake.spark.createDataFrame(rows(0, 10)))
    lake.write(lake.spark.createDataFrame(rows(5, 10, amount=2.0)))
    assert lake.orders.count() == 15
    assert lake.orders.get(pa.table({"id": [7]}))["amount"].to_pylist() == [14.0]
    assert ids(lake.read()) == list(range(15))
    assert lake.orders.history().num_rows == 2


def test_overwrite_replaces_the_content_in_one_epoch(lake) -> None:
    before = lake.orders.upsert(rows(0, 10))
    lake.write(lake.spark.createDataFrame(rows(8, 4)), mode="overwrite")
    assert ids(lake.read()) == [8, 9, 10, 11]
    assert lake.orders.history()["operation"].to_pylist() == ["overwrite", "upsert"]
    assert ids(lake.read(versionAsOf=before)) == list(range(10))
    lake.write(lake.spark.createDataFrame(rows(0, 1)).where("id < 0"), mode="overwrite")
    assert lake.orders.count() == 0


def test_overwrite_of_a_compacted_table(lake) -> None:
    lake.orders.upsert(rows(0, 1000))
    lake.store.compact("orders")
    lake.orders.delete(pa.table({"id": [3]}))
    lake.write(lake.spark.createDataFrame(rows(990, 20)), mode="overwrite")
    assert lake.orders.to_arrow().equals(rows(990, 20))


def test_change_types_tell_deletes(lake) -> None:
    lake.orders.upsert(rows(0, 4))
    changes = [
        (0, None, None, "delete"),
        (1, "old", 0.0, "update_preimage"),
        (1, "new", 1.0, "update_postimage"),
        (9, "x", 9.0, "insert"),
        (9, None, None, "delete"),
        (9, "y", 9.5, "upsert"),
    ]
    lake.write(
        lake.spark.createDataFrame(changes, "id long, day string, amount double, _change_type string").coalesce(1)
    )
    result = lake.orders.to_arrow().to_pylist()
    assert [(row["id"], row["day"]) for row in result] == [(1, "new"), (2, "d2"), (3, "d0"), (9, "y")]


def test_an_unknown_change_type_is_refused(lake) -> None:
    frame = lake.spark.sql("SELECT 1L id, 'd' day, 1D amount, 'remove' _change_type")
    with pytest.raises(Exception, match=r"InvalidInput: table orders, column '_change_type': 'remove'"):
        lake.write(frame)
    assert lake.orders.count() == 0


def test_a_change_feed_written_elsewhere_makes_an_equal_table(lake) -> None:
    lake.orders.upsert(rows(0, 20))
    lake.orders.upsert(rows(5, 3, amount=3.0))
    lake.orders.delete(pa.table({"id": [1, 6]}))
    copy = lake.store.create_table("copy", SCHEMA, ["id"])
    lake.write(lake.read(readChangeFeed=True, startingVersion="earliest", changeMode="net"), "copy")
    assert copy.to_arrow().equals(lake.orders.to_arrow())


def test_the_same_transaction_lands_once(lake) -> None:
    frame = lake.spark.createDataFrame(rows(0, 3))
    lake.write(frame, txnAppId="loader", txnVersion=7)
    lake.write(lake.spark.createDataFrame(rows(0, 9)), txnAppId="loader", txnVersion=7)
    assert lake.orders.count() == 3
    assert lake.store.resolve(("loader", 7)) == lake.orders.info.max_committed_epoch
    with pytest.raises(Exception, match=r"InvalidInput: txnAppId and txnVersion go together"):
        lake.write(frame, txnAppId="loader")


def test_the_epoch_is_fixed_at_load(lake) -> None:
    lake.orders.upsert(rows(0, 3))
    early = lake.read()
    lake.orders.upsert(rows(3, 3))
    assert early.count() == 3
    assert lake.read().count() == 6
    lake.orders.upsert(rows(6, 3))
    assert early.count() == 3


def test_with_a_users_schema_the_epoch_is_fixed_at_the_first_use(lake) -> None:
    lake.orders.upsert(rows(0, 3))
    frame = lake.spark.read.schema("id long").format("epochlog").options(**lake.options("orders")).load()
    assert frame.count() == 3
    lake.orders.upsert(rows(3, 3))
    assert frame.count() == 3
    assert frame.where("id >= 0").count() == 3


def test_versions_timestamps_tokens_and_policies(lake) -> None:
    first = lake.orders.upsert(rows(0, 3))
    second = lake.orders.upsert(rows(3, 3))
    with lake.store.snapshot(["orders"], consistency="exact", epochs_or_token={"orders": first}) as snapshot:
        assert lake.read(snapshot=snapshot.token).count() == 3
        assert snapshot.spark("orders", lake.spark).count() == 3
    assert lake.read(versionAsOf=second).count() == 6
    assert lake.read(timestampAsOf="2999-01-01T00:00:00+00:00").count() == 6
    assert lake.read(consistency="global").count() == 6
    assert lake.read(consistency="bounded", maxLag="1h", timeout=0).count() == 6
    assert lake.read(consistency="aligned", tables="orders").count() == 6


def test_columns_filter_and_user_schema_prune(lake) -> None:
    lake.orders.upsert(rows(0, 30))
    frame = lake.read(columns="day,id", filter="id BETWEEN 3 AND 5 AND day <> 'd1'")
    assert frame.columns == ["day", "id"]
    assert sorted(frame.collect()) == [("d0", 3), ("d2", 5)]
    assert lake.read(columns='["id"]').columns == ["id"]
    narrow = lake.spark.read.schema("amount double, id long").format("epochlog")
    assert narrow.options(**lake.options("orders")).load().where("id = 4").collect() == [(4.0, 4)]


def test_filters_mean_the_same_wherever_they_are_applied(lake) -> None:
    """Spark keeps what it pushed into a Python source for later uses of the same frame: nothing is taken from it."""
    lake.orders.upsert(rows(0, 100))
    lake.orders.upsert(pa.table({"id": [200], "day": [None], "amount": [float("nan")]}, schema=SCHEMA))
    lake.store.compact("orders")
    wanted = {
        "id > 90": [*range(91, 100), 200],
        "id IN (1, 2, 500) AND day = 'd1'": [1],
        "day IS NULL": [200],
        "day LIKE 'd%' AND id <= 3": [0, 1, 2, 3],
        "NOT (id < 98)": [98, 99, 200],
        "amount > 98": [99, 200],  # NaN is the largest number to Spark
    }
    lake.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = lake.read()
        for condition, expected in wanted.items():
            assert ids(frame.where(condition)) == expected, condition
        assert frame.count() == 101
        assert frame.where("id > 90").union(frame.where("id < 3")).union(frame).count() == 10 + 3 + 101
    finally:
        lake.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_large_table_is_read_in_several_tasks(lake) -> None:
    lake.orders.upsert(rows(0, 400_000))
    lake.store.compact("orders")
    lake.orders.upsert(rows(399_990, 20))
    frame = lake.read()
    assert frame.rdd.getNumPartitions() > 1
    assert frame.selectExpr("count(DISTINCT id)", "count(*)", "sum(id)").collect() == [
        (400_010, 400_010, 400_010 * 400_009 // 2)
    ]


def test_a_batch_of_changes(lake) -> None:
    first = lake.orders.upsert(rows(0, 2))
    second = lake.orders.upsert(rows(1, 2, amount=5.0))
    third = lake.orders.delete(pa.table({"id": [0]}))
    feed = lake.read(readChangeFeed=True, startingVersion=second, endingVersion=third, preImages=True)
    changes = sorted((row.id, row._change_type, row._commit_version, row.amount) for row in feed.collect())
    assert changes == [
        (0, "delete", third, 0.0),
        (1, "update_postimage", second, 5.0),
        (1, "update_preimage", second, 1.0),
        (2, "insert", second, 10.0),
    ]
    assert lake.read(readChangeFeed=True, startingVersion=first + 1).count() == 3
    assert lake.read(readChangeFeed=True, startingVersion="earliest").count() == 5


def test_an_empty_table_reads_as_empty(lake) -> None:
    assert lake.read().collect() == []
    assert lake.read(readChangeFeed=True, startingVersion=0).collect() == []


# ---- refusals ----------------------------------------------------------------------------------------------------


def test_bad_read_options_are_refused_at_load(lake) -> None:
    """tests/spark/test_load_options.py has all of them, without Spark."""
    with pytest.raises(Exception, match="InvalidInput: epochlog has no option 'versionasoff'"):
        lake.read(versionAsOff=1)
    with pytest.raises(
        Exception, match="(?i)InvalidInput: a load of .* takes no option snapshotToken; it takes path, "
    ):
        lake.read(snapshotToken="x")
    of_streams = (
        "option maxRowsPerTrigger is for streams" if STREAM_LIMITS else "a limit of a micro-batch, .* needs Spark 4.2"
    )
    with pytest.raises(Exception, match=f"InvalidInput: {of_streams}"):
        lake.read(maxRowsPerTrigger=1, startingVersion="earliest").collect()
    with pytest.raises(Exception, match="TableNotFound: there is no table 'missing'"):
        lake.read(table="missing")


def test_a_missing_store_is_named(lake) -> None:
    with pytest.raises(Exception, match=r"StoreNotFound: there is no store at .*nowhere"):
        lake.read(path=lake.scratch / "nowhere")
    assert not (lake.scratch / "nowhere").exists()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1L id, 1D amount", "SchemaMismatch: table orders: column 'day' is missing"),
        ("SELECT 1L id, 'd' day, 1D amount, 1 extra", "SchemaMismatch: table orders: unknown column 'extra'"),
        ("SELECT '1' id, 'd' day, 1D amount", "SchemaMismatch: table orders, column 'id': type string"),
        ("SELECT CAST(NULL AS BIGINT) id, 'd' day, 1D amount", "SchemaMismatch: table orders, primary-key column 'id'"),
    ],
)
def test_bad_rows_are_refused_and_leave_nothing(lake, query: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        lake.write(lake.spark.sql(query))
    assert lake.orders.history().num_rows == 0
    assert lake.store.verify().ok


def test_insert_into_a_view_with_read_options_is_refused(lake) -> None:
    epoch = lake.orders.upsert(rows(0, 2))
    place = f"path '{lake.root}', table 'orders'"
    lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW old USING epochlog OPTIONS ({place}, versionAsOf '{epoch}')")
    lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW now USING epochlog OPTIONS ({place})")
    with pytest.raises(Exception, match=r"InvalidInput: option versionAsOf is for reading"):
        lake.spark.sql("INSERT INTO old SELECT 5L, 'd', 1D")
    lake.spark.sql("INSERT INTO now SELECT 5L, 'd', 1D")
    assert lake.orders.count() == 3


def test_create_table_using_is_refused(lake) -> None:
    with pytest.raises(Exception, match=r"CREATE TABLE t USING epochlog does not work"):
        lake.spark.sql(f"CREATE TABLE t USING epochlog OPTIONS (path '{lake.root}', table 'orders')")


def test_derived_and_finished_tables_take_no_writes(lake) -> None:
    lake.store.create_job("j", ["orders"], {"view": (SCHEMA, ["id"])})
    with pytest.raises(Exception, match=r"NotWritable: table 'view'"):
        lake.write(lake.spark.createDataFrame(rows(0, 1)), "view")
    lake.orders.finish()
    with pytest.raises(Exception, match=r"TableFinished: table 'orders'"):
        lake.write(lake.spark.createDataFrame(rows(0, 1)))


def test_spark_and_register_are_public() -> None:
    from epochlog.spark import local_session, session

    assert el.spark is local_session.spark
    assert el.register is session.register


# ---- writing, the other ways ----------------------------------------------------------------------------------------


def test_the_ways_of_sql_to_write_a_view(lake) -> None:
    """INSERT OVERWRITE replaces all; columns may come by name; writeTo goes by name, insertInto by place."""
    lake.orders.upsert(rows(0, 5))
    lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW ways USING epochlog OPTIONS (path '{lake.root}', table 'orders')")
    lake.spark.sql("INSERT INTO ways (amount, id, day) VALUES (4.5D, 9L, 'x')")
    assert (9, "x", 4.5) in lake.read().collect() and lake.orders.count() == 6
    lake.spark.sql("INSERT OVERWRITE ways SELECT id, 'new', amount FROM ways WHERE id >= 4")
    assert lake.read().collect() == [(4, "new", 4.0)]  # a view is read as of when it was made: it has no 9
    lake.spark.sql("SELECT 1D amount, 'to' day, 1L id").writeTo("ways").append()
    lake.spark.sql("SELECT 2L, 'into', 2D").write.insertInto("ways")
    assert sorted(lake.read().collect())[:2] == [(1, "to", 1.0), (2, "into", 2.0)]
    with pytest.raises(Exception, match="does not support overwrite by filter"):
        lake.spark.sql("INSERT INTO ways REPLACE WHERE id = 1 SELECT 1L, 'x', 1D")
    assert lake.orders.count() == 3 and lake.orders.history().num_rows == 5


def test_an_overwrite_reaches_views_as_what_it_changes(lake) -> None:
    """An overwrite's deletes also reach a Spark job that reads changes, and one that reads the whole table."""
    lake.orders.upsert(rows(0, 40))
    day_count = pa.schema([pa.field("day", pa.string(), nullable=False), ("n", pa.int64())])
    copy = lake.store.create_job("copy", ["orders"], {"copied": (SCHEMA, ["id"])})
    days = lake.store.create_job("days", ["orders"], {"days": (day_count, ["day"])})

    def copied(ctx) -> None:
        ctx.upsert("copied", ctx.changes("orders").where("_change_type <> 'delete'").select("id", "day", "amount"))
        ctx.delete("copied", ctx.changes("orders").where("_change_type = 'delete'").select("id"))

    def counted(ctx) -> None:
        now = ctx.table("orders").groupBy("day").count().withColumnRenamed("count", "n")
        ctx.delete("days", ctx.output("days").select("day").join(now, "day", "left_anti"))
        ctx.upsert("days", now)

    contents = [rows(0, 40), rows(38, 5, amount=3.0), rows(0, 0), rows(7, 1)]
    for number, content in enumerate(contents):
        if number:
            lake.write(
                lake.spark.createDataFrame(content.to_pylist(), "id long, day string, amount double"), mode="overwrite"
            )
        lake.store.checkpoint()
        assert copy.step(lake.spark, copied) and days.step(lake.spark, counted)
        with lake.store.snapshot(["orders", "copied", "days"], consistency="aligned") as snapshot:
            orders = snapshot["orders"].to_arrow()
            assert orders.equals(content) and snapshot["copied"].to_arrow().equals(orders)
            counts = snapshot["days"].to_arrow().to_pydict()
            wanted = orders["day"].to_pylist()
            assert dict(zip(counts["day"], counts["n"], strict=True)) == {day: wanted.count(day) for day in wanted}


@pytest.mark.rule("1.8")
def test_of_a_key_that_is_there_often_the_last_partition_and_row_win(lake) -> None:
    frame = lake.spark.range(0, 400, 1, 4).selectExpr(
        "id % 10 id", "cast(id as string) day", "cast(id as double) amount"
    )
    for mode in ("append", "overwrite"):
        lake.write(frame, mode=mode)
        assert sorted(row.amount for row in lake.read().collect()) == [float(number) for number in range(390, 400)]


def test_replace_where_is_refused(lake) -> None:
    lake.orders.upsert(rows(0, 5))
    with pytest.raises(Exception, match="InvalidInput: overwrite replaces all rows of the table"):
        lake.write(lake.spark.createDataFrame(rows(0, 1)), mode="overwrite", replaceWhere="id = 0")
    assert lake.orders.count() == 5
