"""Refusals of queries and writes through a catalog: each names the problem and what there is instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import epochlog as el
from epochlog.spark.errors import find_epochlog_error

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
    stream = spark.readStream.option("maxEpochsPerTrigger", 1).table("lake.a")
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
        with pytest.raises(PySparkException, match="(?s)UNSUPPORTED_FEATURE.TABLE_OPERATION.*MERGE INTO TABLE"):
            spark.sql(f"{merge} {clause}")


def test_the_tables_are_listed_as_the_page_says(spark: SparkSession, store: el.Store) -> None:
    assert [row[1] for row in spark.sql("SHOW TABLES IN lake").collect()] == ["a", "b"]
    assert [table.name for table in spark.catalog.listTables("lake.nightly")] == ["a", "b"]
    with pytest.raises(PySparkException, match="PARSE_EMPTY_STATEMENT"):  # Spark parses the name of the empty namespace
        spark.catalog.listTables("lake")
