"""Every session has the data source; what Spark's own catalog would keep is refused; no columns are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import epochlog as el
from epochlog.spark.create_guard import find_created_table

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NOTHING = StructType([])
NO_COLUMNS = pytest.mark.needs("no columns")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with el.open(tmp_path / "lake") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert([{"id": n, "v": "x"} for n in range(5)])
        yield store


def reader(session: SparkSession, store: el.Store) -> Any:
    return session.read.format("epochlog").option("path", store.root).option("table", "t")


# ---- no columns ------------------------------------------------------------------------------------------------------


DOORS: dict[str, Callable[[SparkSession, el.Store], int]] = {
    "a schema of none": lambda spark, store: reader(spark, store).schema(NOTHING).load().count(),
    "select": lambda spark, store: reader(spark, store).load().select().count(),
    "the option": lambda spark, store: reader(spark, store).option("columns", "[]").load().count(),
    "a filter": lambda spark, store: reader(spark, store).schema(NOTHING).option("filter", "id >= 0").load().count(),
    "many tasks": lambda spark, store: reader(spark, store).schema(NOTHING).option("minPartitions", 3).load().count(),
    "a feed": lambda spark, store: (
        reader(spark, store)
        .schema(NOTHING)
        .option("readChangeFeed", "true")
        .option("startingVersion", "earliest")
        .load()
        .count()
    ),
}


@pytest.mark.parametrize(
    "door", ["select", *(pytest.param(door, marks=NO_COLUMNS) for door in DOORS if door != "select")]
)
def test_a_read_of_no_columns_keeps_its_count(spark: SparkSession, store: el.Store, door: str) -> None:
    assert DOORS[door](spark, store) == 5


@NO_COLUMNS
def test_no_columns_of_a_stream_keep_their_count(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    counts: list[int] = []
    stream = spark.readStream.format("epochlog").option("path", store.root).option("table", "t").schema(NOTHING)
    query = (
        stream.option("startingVersion", "earliest")
        .load()
        .writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(counts) == 5


def test_no_columns_in_a_refresh_and_of_a_snapshot_keep_their_count(spark: SparkSession, store: el.Store) -> None:
    counts: list[dict[str, int]] = []

    def look(ctx: el.SparkRefreshContext) -> None:
        frames = {
            "table": ctx.table("t", columns=[]),
            "filter": ctx.table("t", columns=[], filter=pc.field("id") >= 3),
            "among": ctx.table("t", columns=[], among=pa.table({"v": ["x"]})),
            "previous": ctx.previous("t", columns=[]),
            "output": ctx.output("o", columns=[]),
            "changes": ctx.changes("t", columns=[]),
        }
        counts.append({name: frame.count() for name, frame in frames.items()})
        assert [name for name in frames if frames[name].columns] == ["changes"]  # it has the columns of a change
        ctx.upsert("o", ctx.table("t", filter=pc.field("id") > 0))

    job = store.create_job("j", ["t"], {"o": (SCHEMA, ["id"])})
    store.checkpoint()
    job.step(spark, look)
    store.table("t").delete([0])
    store.checkpoint()
    job.step(spark, look)
    first, then = counts
    assert first == {"table": 5, "filter": 2, "among": 5, "previous": 0, "output": 0, "changes": 5}
    assert then == {"table": 4, "filter": 2, "among": 4, "previous": 5, "output": 4, "changes": 1}
    with store.snapshot(["t"]) as moment:
        assert moment.spark("t", spark, columns=[]).count() == 4
        assert moment.spark("t", spark, columns=[], filter="id > 2").count() == 2
        assert moment.spark("t", spark, columns=[]).columns == []


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_new_session_can_be_registered_and_again(spark: SparkSession, store: el.Store) -> None:
    other = spark.newSession()
    for _ in range(2):
        el.register(other)
        assert reader(other, store).load().count() == 5
        assert reader(spark, store).load().count() == 5
    other.range(3).selectExpr("id + 100 AS id", "'y' AS v").write.format("epochlog").option("path", store.root).option(
        "table", "t"
    ).mode("append").save()
    assert store.table("t").count() == 8
    el.register(spark)
    assert spark.range(2).count() == 2


@pytest.mark.parametrize("fresh", [False, True], ids=["the session", "a new session"])
def test_the_session_of_a_micro_batch_has_it(spark: SparkSession, store: el.Store, tmp_path: Path, fresh: bool) -> None:
    session = spark.newSession() if fresh else spark
    el.register(session)
    seen: list[int] = []

    def look(frame: DataFrame, _: int) -> None:
        el.register(frame.sparkSession)
        seen.append(frame.join(reader(frame.sparkSession, store).load(), "id").count())

    query = (
        session.readStream.format("epochlog")
        .option("path", store.root)
        .option("table", "t")
        .option("startingVersion", "earliest")
        .load()
        .writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == [5]


# ---- Spark's own catalog ---------------------------------------------------------------------------------------------

ADVICE = r"(?s)df\.write\.format\('epochlog'\).*CREATE TEMPORARY VIEW"


@pytest.mark.parametrize("save", [
    lambda writer: writer.saveAsTable("s1"),
    lambda writer: writer.mode("append").saveAsTable("s1"),
    lambda writer: writer.saveAsTable("s1", format="epochlog"),
], ids=["new", "append", "by argument"])  # fmt: skip
def test_save_as_table_is_refused_before_anything_is_written(
    spark: SparkSession, store: el.Store, save: Callable[[Any], None]
) -> None:
    frame = spark.range(3).selectExpr("id + 100 AS id", "'y' AS v")
    with pytest.raises(el.InvalidInput, match=rf"saveAsTable\('s1'\).*{ADVICE[4:]}"):
        save(frame.write.format("epochlog").option("path", store.root).option("table", "t"))
    assert store.table("t").count() == 5
    assert not spark.catalog.tableExists("s1")


def test_save_as_table_of_a_catalog_needs_no_format(spark: SparkSession, store: el.Store) -> None:
    writer = spark.range(3).write.format("epochlog")
    with pytest.raises(
        el.InvalidInput, match=r"saveAsTable\('lake.t'\).*that el.catalog has installed, leave the format"
    ):
        writer.saveAsTable("lake.t")


def test_a_stream_to_a_table_of_spark_is_refused(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().writeStream.format("epochlog").option("path", store.root)
    with pytest.raises(el.InvalidInput, match=r"toTable\('s2'\)"):
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("s2")


def test_tables_of_sql_are_refused_with_what_to_write(spark: SparkSession, store: el.Store) -> None:
    options = f"OPTIONS (path '{store.root}', table 't')"
    for statement in (
        f"CREATE TABLE s3 USING epochlog {options}",
        f"CREATE TABLE s4 USING epochlog {options} AS SELECT 1L AS id, 'y' AS v",
        f"CREATE TABLE s5 (id BIGINT, v STRING) USING epochlog {options}",
        f"create table if not exists `default`.`s5` (id BIGINT)\nusing `EpochLog` {options}",
        f"/* 1 */ REPLACE TABLE spark_catalog.default.s5 -- USING parquet\n(id BIGINT) USING epochlog {options}",
        "CREATE TABLE s5 (id BIGINT COMMENT 'USING parquet') USING epochlog.exchange",
    ):
        with pytest.raises(el.InvalidInput, match=ADVICE):
            spark.sql(statement)
    with pytest.raises(el.InvalidInput, match=ADVICE):
        spark.sql(sqlQuery="CREATE TABLE s5 (id BIGINT) USING epochlog")
    with pytest.raises(el.InvalidInput, match=ADVICE):
        spark.newSession().catalog.createTable("s5", source="epochlog", schema=StructType().add("id", "long"))
    assert not [table.name for table in spark.catalog.listTables() if table.name.startswith("s")]
    with pytest.raises(Exception, match=ADVICE):
        spark.range(1).writeTo("s6").using("epochlog").option("path", store.root).create()
    spark.sql(f"CREATE TEMPORARY VIEW v7 USING epochlog {options}")
    assert spark.sql("SELECT count(*) FROM v7").first()[0] == 5  # pyright: ignore[reportOptionalSubscript]
    spark.sql("DROP VIEW v7")


def test_a_table_that_spark_made_without_asking_fails_at_each_use(spark: SparkSession, store: el.Store) -> None:
    """Spark 4.3 asks a source nothing at such a creation. SQL that PySpark does not pass on still gets there."""
    options = f"OPTIONS (path '{store.root}', table 't')"
    inner: Any = spark
    inner._jsparkSession.sql(f"CREATE TABLE s8 (id BIGINT, v STRING) USING epochlog {options}")
    try:
        frame = spark.range(1).selectExpr("id", "'y' AS v")
        uses: list[Callable[[], object]] = [
            lambda: spark.sql("SELECT * FROM s8").collect(),
            lambda: spark.sql("INSERT INTO s8 VALUES (9, 'y')"),
            lambda: spark.sql("INSERT OVERWRITE s8 VALUES (9, 'y')"),
            lambda: frame.writeTo("s8").append(),
            lambda: spark.readStream.table("s8").writeStream.format("noop").start().processAllAvailable(),
        ]
        for use in uses:
            with pytest.raises(Exception, match=rf"(?s)DROP TABLE.*{ADVICE[4:]}.*lake\.t"):
                use()
    finally:
        spark.sql("DROP TABLE s8")
    assert store.table("t").count() == 5


def test_statements_that_create_no_table_of_spark_pass(spark: SparkSession, store: el.Store) -> None:
    options = f"OPTIONS (path '{store.root}', table 't')"
    spark.sql(f"CREATE TEMPORARY VIEW v9 USING epochlog {options}")
    assert spark.sql("SELECT 'CREATE TABLE s (id INT) USING epochlog' AS text").first()
    spark.sql(
        "CREATE TABLE s9 USING parquet AS SELECT 'x USING epochlog' AS text FROM v9 WHERE id = 1 -- USING epochlog"
    )
    spark.sql("DROP TABLE s9")
    spark.sql("DROP VIEW v9")
    el.catalog(spark, store)
    spark.sql("CREATE TABLE lake.mine (id BIGINT) USING epochlog TBLPROPERTIES (primary_key = 'id')")
    spark.sql("USE lake")
    try:
        spark.sql("CREATE TABLE my_own (id BIGINT) USING epochlog TBLPROPERTIES (primary_key = 'id')")
        with pytest.raises(el.InvalidInput, match=ADVICE):
            spark.sql("CREATE TABLE spark_catalog.default.s9 (id BIGINT) USING epochlog")
    finally:
        spark.sql("USE spark_catalog.default")
    assert {table.name for table in store.tables()} == {"t", "mine", "my_own"}


@pytest.mark.parametrize(("statement", "created"), [
    ("CREATE TABLE a.`b ``c` (x INT) USING epochlog", (["a", "b `c"], "epochlog")),
    ("replace table t using `epochlog.exchange`", (["t"], "epochlog.exchange")),
    ("CREATE TABLE t(x INT)USING epochlog", (["t"], "epochlog")),
    ("CREATE TABLE t USING epochlog2", None),
    ("CREATE TABLE t USING epochlog.other", None),
    ("CREATE TABLE t USING `my epochlog`", None),
    ("CREATE TABLE t COMMENT \"it's USING epochlog\" USING parquet", None),
    ("EXPLAIN CREATE TABLE t USING epochlog", None),
    ("CREATE TABLE IDENTIFIER('t') (x INT) USING epochlog", None),
    ("SELECT 1", None),
])  # fmt: skip
def test_the_statements_that_create_tables_are_found(statement: str, created: object) -> None:
    assert find_created_table(statement) == created
