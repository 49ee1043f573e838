"""Refusals of queries and writes through a catalog: each names the problem and what there is instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_store import ONE_EPOCH

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    """A store with the tables `a` and `b`, as the catalog `lake`; the tag `nightly` has both, `part` only `a`."""
    with el.open(tmp_path / "store") as made:
        for name in ("a", "b"):
            made.create_table(name, SCHEMA, ["id"]).upsert([{"id": 1, "n": 1}])
        made.tag("nightly")
        with made.snapshot(["a"], consistency="latest") as snapshot:
            snapshot.tag("part")
        el.catalog(spark, made)
        yield made
        spark.sql("USE spark_catalog.default")


def refusal(call: Callable[[], object]) -> str:
    """Return the typed error of a call as text, with its class."""
    with pytest.raises(PySparkException) as caught:
        call()
    error = find_epochlog_error(caught.value)
    assert error is not None, caught.value
    return f"{type(error).__name__}: {error}"


def test_a_version_that_is_nothing_names_the_tags(spark: SparkSession, store: el.Store) -> None:
    text = refusal(lambda: spark.sql("SELECT * FROM lake.a VERSION AS OF 'nigtly'"))
    assert text.startswith(
        "InvalidInput: VERSION AS OF 'nigtly' is no epoch, and no tag of the store, which has nightly, part"
    )
    token = store.snapshot(["a"]).token
    assert "'…" not in text and "…'" in refusal(lambda: spark.sql(f"SELECT * FROM lake.a VERSION AS OF '{token[:-2]}'"))
    for tag in ("nightly", "part"):
        store.drop_tag(tag)
    assert "which has none" in refusal(lambda: spark.sql("SELECT * FROM lake.a VERSION AS OF 'nigtly'"))


def test_a_table_that_a_tag_lacks_is_named(spark: SparkSession, store: el.Store) -> None:
    token = store.snapshot(["a"]).token
    for source, name in {
        "lake.part.b": "the tag 'part'",
        "lake.b VERSION AS OF 'part'": "VERSION AS OF 'part'",
        f"lake.b VERSION AS OF '{token}'": "VERSION AS OF '",
    }.items():
        text = refusal(lambda source=source: spark.sql(f"SELECT * FROM {source}"))
        assert text.startswith(f"TableNotReadable: {name}")
        assert "keeps a, and no epoch of 'b'" in text
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.part.c")


def test_an_option_that_nobody_knows_is_refused(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(7, 7)], "id long, n long")
    stream = spark.readStream.table("lake.a").writeStream.option("checkpointLocation", str(tmp_path / "refused"))
    before = store.last_epoch
    calls: list[Callable[[], object]] = [
        lambda: spark.read.option("foo", 1).table("lake.a").collect(),
        lambda: spark.sql("SELECT * FROM lake.a WITH (foo = 1)").collect(),
        lambda: spark.sql("INSERT INTO lake.a WITH (foo = 1) VALUES (7, 7)"),
        lambda: spark.sql("INSERT OVERWRITE lake.a WITH (foo = 1) VALUES (7, 7)"),
        lambda: frame.writeTo("lake.a").option("foo", 1).append(),
        lambda: frame.write.option("foo", 1).insertInto("lake.a"),
    ]
    for call in calls:
        assert "takes no option foo; it takes " in refusal(call)
    followed = spark.readStream.option("foo", 1).table("lake.a").writeStream.format("noop")
    starts: list[Callable[[], StreamingQuery]] = [followed.start, lambda: stream.option("foo", 1).toTable("lake.b")]
    for start in starts:
        with pytest.raises(PySparkException, match="InvalidInput.* takes no option foo; it takes "):
            start().processAllAvailable()
    assert store.last_epoch == before
    reader = spark.read.option("startingVersoin", 1)
    assert "Did you mean startingVersion?" in refusal(lambda: reader.table("lake.a").collect())
    writer = frame.writeTo("lake.a").option("mergeSchema", "true")
    assert "takes no option mergeSchema; " in refusal(writer.append)


def test_the_options_that_spark_adds_are_none_of_the_users(
    spark: SparkSession, store: el.Store, tmp_path: Path
) -> None:
    stream = spark.readStream.options(**ONE_EPOCH).table("lake.a")
    query = (
        stream.writeStream.queryName("copy_a")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("txnAppId", "copy")
        .trigger(availableNow=True)
        .toTable("lake.b")
    )
    query.awaitTermination()
    assert store.table("b").to_arrow().num_rows == 1
    frame = spark.createDataFrame([(7, 7)], "id long, n long")
    frame.writeTo("lake.a").option("txnAppId", "app").option("txnVersion", 1).append()
    frame.write.mode("append").saveAsTable("lake.a")
    assert store.table("a").to_arrow().num_rows == 2


def test_nulls_are_refused_as_the_page_says(spark: SparkSession, store: el.Store) -> None:
    text = refusal(lambda: spark.sql("INSERT INTO lake.a VALUES (5, NULL)"))
    assert text.startswith("SchemaMismatch: table a, non-nullable column 'n': 1 of its values are null")
    with pytest.raises(PySparkException, match="NOT_NULL_ASSERT_VIOLATION"):
        spark.sql("INSERT INTO lake.a VALUES (NULL, 5)")
    assert store.table("a").to_arrow().num_rows == 1


@pytest.mark.needs("changes")
def test_inverted_changes_are_refused_as_the_page_says(spark: SparkSession, store: el.Store) -> None:
    first, last = store.last_epoch, store.table("a").upsert([{"id": 2, "n": 2}])
    text = refusal(lambda: spark.sql(f"SELECT * FROM lake.a CHANGES FROM VERSION {last} TO VERSION {first}").collect())
    assert text.startswith("InvalidInput: ")
    assert "is inverted" in text


def test_merge_and_update_are_refused_as_the_page_says(spark: SparkSession, store: el.Store) -> None:
    merge = "MERGE INTO lake.a x USING lake.b y ON x.id = y.id WHEN"
    for statement in ("UPDATE lake.a SET n = 1", f"{merge} MATCHED THEN UPDATE SET n = 1"):
        assert refusal(lambda statement=statement: spark.sql(statement)).startswith(
            "NotWritable: 'a' takes neither UPDATE"
        )
    for clause in ("MATCHED THEN DELETE", "NOT MATCHED THEN INSERT *"):
        with pytest.raises(PySparkException, match="(?s)NotWritable.*MERGE INTO TABLE") as caught:
            spark.sql(f"{merge} {clause}")
        assert re.search("UNSUPPORTED_FEATURE.TABLE_OPERATION|is not supported temporarily", str(caught.value))


def test_the_tables_are_listed_as_the_page_says(spark: SparkSession, store: el.Store) -> None:
    assert [row[1] for row in spark.sql("SHOW TABLES IN lake").collect()] == ["a", "b"]
    assert [table.name for table in spark.catalog.listTables("lake.nightly")] == ["a", "b"]
    with pytest.raises(PySparkException, match="PARSE_EMPTY_STATEMENT"):  # Spark parses the name of the empty namespace
        spark.catalog.listTables("lake")


# ---- frames and tables that are not there ------------------------------------------------------------------------


def test_a_frame_into_a_missing_table_is_refused_with_how_to_create_it(
    spark: SparkSession, store: el.Store, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(7, 7)], "id long, n long")
    stream = spark.readStream.table("lake.a").writeStream.option("checkpointLocation", str(tmp_path / "refused"))
    calls: list[Callable[[], object]] = [
        lambda: frame.write.saveAsTable("lake.missing"),
        lambda: frame.write.mode("append").saveAsTable("lake.missing"),
        lambda: frame.write.mode("overwrite").saveAsTable("lake.missing"),
        lambda: stream.toTable("lake.missing"),
    ]
    for call in calls:
        text = refusal(call)
        assert text.startswith("TableNotFound: there is no table 'missing' in the catalog 'lake'")
        assert "create it first, CREATE TABLE lake.missing (…) TBLPROPERTIES (primary_key = 'id')" in text
        assert "parquet" not in text
    for statement in (
        "CREATE TABLE lake.missing AS SELECT 1L AS id",
        "CREATE TABLE lake.missing (id BIGINT) USING csv",
    ):
        assert "TBLPROPERTIES (primary_key = 'id')" in refusal(lambda statement=statement: spark.sql(statement))
    assert [table.name for table in store.tables()] == ["a", "b"]
    frame.writeTo("lake.missing").tableProperty("primary_key", "id").create()
    assert store.table("missing").to_arrow().num_rows == 1


def test_external_tables_are_refused(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    keyed = "TBLPROPERTIES (primary_key = 'id')"
    calls: list[Callable[[], object]] = [
        lambda: spark.sql(f"CREATE EXTERNAL TABLE lake.c (id BIGINT) {keyed}"),
        lambda: spark.sql(f"CREATE EXTERNAL TABLE lake.c (id BIGINT) LOCATION '/somewhere' {keyed}"),
        lambda: spark.sql(f"CREATE TABLE lake.c (id BIGINT) LOCATION '/somewhere' {keyed}"),
        lambda: spark.catalog.createTable("lake.c", str(tmp_path), schema=spark.table("lake.a").schema),
    ]
    for call in calls:
        assert refusal(call) == (
            "InvalidInput: CREATE TABLE c: leave out EXTERNAL and LOCATION: tables are always managed by their store, "
            "which keeps their files"
        )


# ---- a store that was closed, tables that it lacks ---------------------------------------------------------------


def test_a_closed_store_is_named_with_the_call_that_installs_it_again(spark: SparkSession, tmp_path: Path) -> None:
    gone = el.open(tmp_path / "gone")
    gone.create_table("a", SCHEMA, ["id"]).upsert([{"id": 1, "n": 1}])
    el.catalog(spark, gone, name="gone")
    frame = spark.table("gone.a")
    gone.close()
    keyed = "TBLPROPERTIES (primary_key = 'id')"
    statements = (
        *("SELECT * FROM gone.a", "SHOW TABLES IN gone", "INSERT INTO gone.a VALUES (1, 1)", "DROP TABLE gone.a"),
        *("DELETE FROM gone.a WHERE id = 1", "ALTER TABLE gone.a ADD COLUMNS (x INT)", "SELECT * FROM gone.tag.a"),
        *(f"CREATE TABLE gone.c (id INT) {keyed}", "SELECT * FROM gone.a VERSION AS OF 5"),
    )
    calls = [lambda statement=statement: spark.sql(statement).collect() for statement in statements]
    for call in (*calls, frame.collect):
        text = refusal(call)
        assert text.startswith("StoreClosed: the store of the catalog 'gone' was closed: ")
        assert "el.catalog(spark, store, name='gone')" in text
    with pytest.raises(el.StoreClosed, match="this store was closed"):
        el.catalog(spark, gone, name="gone_again")
    with el.open(tmp_path / "gone") as opened:
        el.catalog(spark, opened, name="gone")
        assert spark.table("gone.a").count() == 1


def test_a_table_that_the_store_lacks_is_named_when_the_catalog_is_installed(
    spark: SparkSession, store: el.Store
) -> None:
    cases: list[dict[str, Any]] = [{"consistency": "aligned", "tables": ["nope"]}, {"tables": ["a", "nope"]}]
    for arguments in cases:
        with pytest.raises(el.TableNotFound, match=r"there is no table 'nope'; the store has: a, b"):
            el.catalog(spark, store, name="partial", **arguments)
    with pytest.raises(PySparkException, match="CATALOG_NOT_FOUND|TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM partial.a")


# ---- the past ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("2.7")
def test_an_epoch_before_the_creation_of_a_table_is_refused_zero_too(spark: SparkSession, store: el.Store) -> None:
    for version in ("0", "'0'", "1", "'1'"):
        query = f"SELECT * FROM lake.a VERSION AS OF {version}"
        assert refusal(lambda query=query: spark.sql(query)).startswith("EpochNotCommitted: table 'a' was created at ")
    for version in (0, 1):
        reader = spark.read.option("versionAsOf", version)
        assert refusal(lambda reader=reader: reader.table("lake.a")).startswith("EpochNotCommitted: table 'a'")
        reader = reader.format("epochlog").option("path", store.root).option("table", "a")
        assert refusal(lambda reader=reader: reader.load()).startswith("EpochNotCommitted: table 'a' was created at ")


@pytest.mark.needs("stream moments")
def test_a_stream_takes_no_version_and_names_the_option_that_starts_it(spark: SparkSession, store: el.Store) -> None:
    epoch = store.last_epoch
    for option, value in {"versionAsOf": epoch, "VERSIONASOF": "nightly", "timestampAsOf": "2999-01-01"}.items():
        reader = spark.readStream.option(option, value)
        text = refusal(lambda reader=reader: reader.table("lake.a"))
        assert text.startswith("InvalidInput: lake.a: a stream reads changes, not one moment")
        assert "set startingVersion to the first epoch to read" in text
    text = refusal(lambda: spark.sql(f"SELECT * FROM STREAM lake.a WITH (versionAsOf = {epoch})"))
    assert "set startingVersion to the first epoch to read" in text


WRITES = {
    "INSERT": lambda spark, table: spark.sql(f"INSERT INTO {table} VALUES (9, 9)"),
    "OVERWRITE": lambda spark, table: spark.sql(f"INSERT OVERWRITE {table} VALUES (9, 9)"),
    "DELETE": lambda spark, table: spark.sql(f"DELETE FROM {table} WHERE id = 1"),
    "DELETE all": lambda spark, table: spark.sql(f"DELETE FROM {table}"),
    "TRUNCATE": lambda spark, table: spark.sql(f"TRUNCATE TABLE {table}"),
    "UPDATE": lambda spark, table: spark.sql(f"UPDATE {table} SET n = 1"),
    "append": lambda spark, table: spark.table("lake.b").writeTo(table).append(),
    "saveAsTable": lambda spark, table: spark.table("lake.b").write.mode("append").saveAsTable(table),
}
CHANGES = {
    "DROP": lambda spark, table: spark.sql(f"DROP TABLE {table}"),
    "ALTER": lambda spark, table: spark.sql(f"ALTER TABLE {table} ADD COLUMNS (x INT)"),
    "CREATE": lambda spark, table: spark.sql(f"CREATE TABLE {table}2 (id INT) TBLPROPERTIES (primary_key = 'id')"),
}


def test_a_catalog_at_a_fixed_moment_takes_no_writes(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    fixed = store.last_epoch
    token = store.snapshot(["a", "b"]).token
    el.catalog(spark, store, "fixed", consistency="as_of", epoch=fixed)
    el.catalog(spark, store, "exact", consistency=el.Exact(token))
    before = store.table("a").upsert([{"id": 2, "n": 2}])
    for name in ("fixed", "exact"):
        assert spark.table(f"{name}.a").count() == 1
        for call in (*WRITES.values(), *CHANGES.values()):
            text = refusal(lambda call=call, name=name: call(spark, f"{name}.a"))
            assert text.startswith(f"NotWritable: the catalog '{name}' shows 'a")
            assert "write and stream through a catalog without it, el.catalog(spark, store, name=…)" in text
    shown: Any = spark.sql("SHOW CREATE TABLE fixed.a").first()
    assert shown[0].startswith("CREATE TABLE fixed.a (")
    written = spark.readStream.table("lake.b").writeStream.option("checkpointLocation", str(tmp_path / "written"))
    assert "write and stream through a catalog without it" in failure(lambda: written.toTable("fixed.a"))
    streamed = spark.readStream.table("fixed.a").writeStream.format("noop")
    streamed = streamed.option("checkpointLocation", str(tmp_path / "read"))
    assert "stream through a catalog without it" in failure(streamed.start)
    assert store.last_epoch == before
    spark.sql("INSERT INTO lake.a VALUES (3, 3)")
    assert (spark.table("lake.a").count(), spark.table("fixed.a").count()) == (3, 1)


def test_a_table_of_a_tag_is_shown_and_names_the_table_to_write_to(
    spark: SparkSession, store: el.Store, tmp_path: Path
) -> None:
    before = store.last_epoch
    for call in WRITES.values():
        text = refusal(lambda call=call: call(spark, "lake.nightly.a"))
        assert text == ("NotWritable: 'a' is named at an epoch of the past, which does not change: write to lake.a")
    stream = spark.readStream.table("lake.b").writeStream.option("checkpointLocation", str(tmp_path / "refused"))
    assert "which does not change: write to lake.a" in failure(lambda: stream.toTable("lake.nightly.a"))
    assert store.last_epoch == before
    shown: Any = spark.sql("SHOW CREATE TABLE lake.nightly.a").first()
    assert shown[0].startswith("CREATE TABLE lake.nightly.a (")
    text = refusal(lambda: spark.sql(shown[0].replace("nightly.a", "nightly.c")))
    assert text == "NotWritable: nightly is a tag: create the table in the catalog itself, lake"
    spark.sql("DROP TABLE lake.a")
    spark.sql(shown[0].replace("nightly.", ""))
    assert (store.table("a").schema.names, store.table("a").primary_key) == (["id", "n"], ["id"])


def failure(start: Callable[[], StreamingQuery]) -> str:
    """Return the text of the error of a stream, at its start or after."""
    with pytest.raises(PySparkException) as caught:
        start().processAllAvailable()
    return str(caught.value)
