"""Statements that a table of a catalog does not take: each is refused with what to write instead, and that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own name

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_needs import has
from spark_store import ONE_EPOCH, refusal

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
KEYED = "TBLPROPERTIES (primary_key = 'id')"
ROWS = [{"id": key, "n": key, "text": text} for key, text in enumerate(("ink", "pen", "pad"))]


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as made:
        made.create_table("a", SCHEMA, ["id"]).upsert(ROWS)
        others = [{"id": 1, "n": 10, "text": "new"}, {"id": 7, "n": 70, "text": None}]
        made.create_table("b", SCHEMA, ["id"]).upsert(others)
        el.catalog(spark, made)
        yield made
        spark.sql("USE spark_catalog.default")


def content(store: el.Store, table: str = "a") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.table(table).to_arrow().to_pylist()]


# ---- DELETE ----------------------------------------------------------------------------------------------------------

DELETED = "store.table('a').delete(spark.sql('SELECT id FROM lake.a WHERE …').toArrow())"
CONDITIONS = {
    "id IN (SELECT id FROM lake.b)": "a subquery",
    "EXISTS (SELECT 1 FROM lake.b WHERE b.id = a.id)": "a subquery",
    "n = (SELECT max(n) FROM lake.a)": "a subquery",
    "text RLIKE '^p.n$'": "RLIKE(text, ^p.n$)",
    "text LIKE 'p_n'": "text LIKE p_n",
    "text ILIKE 'PE%'": "LOWER(text) LIKE",
    "upper(text) = 'PEN'": "UPPER(text) = 'PEN'",
    "n IN (1) AND length(text) = 3": "CHAR_LENGTH(text) = 3",
}


def test_a_condition_that_delete_does_not_take_works_as_the_keys_of_a_query(
    spark: SparkSession, store: el.Store
) -> None:
    for number, (condition, named) in enumerate(CONDITIONS.items()):
        kept = [row.id for row in spark.sql(f"SELECT id FROM lake.a WHERE NOT ({condition})").collect()]
        statement = f"DELETE FROM lake.a {'AS a' if number % 2 else ''} WHERE {condition}"
        text = refusal(lambda statement=statement: spark.sql(statement))
        assert text.startswith(f"InvalidInput: DELETE FROM lake.a cannot evaluate {named}")
        assert DELETED in text
        before = store.last_epoch
        store.table("a").delete(spark.sql(f"SELECT id FROM lake.a WHERE {condition}").toArrow())
        assert 0 < len(kept) < len(ROWS)
        assert [row[0] for row in content(store)] == sorted(kept), condition
        assert store.table("a").history().num_rows > 1 and store.last_epoch > before
        store.table("a").upsert(ROWS)


def test_the_advice_on_a_delete_names_the_columns_and_the_table(spark: SparkSession, store: el.Store) -> None:
    odd = pa.schema([("k.1", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
    store.create_table("odd", odd, ["k.1"], sequence_by="at").upsert([{"k.1": 1, "at": 5, "text": "x"}])
    spark.sql("USE lake")
    for statement in (
        "DELETE FROM odd WHERE text RLIKE 'x'",
        "/* DELETE FROM a */ DELETE  FROM `odd` WHERE text RLIKE 'x'",
    ):
        text = refusal(lambda statement=statement: spark.sql(statement))
        assert "store.table('odd').delete(spark.sql('SELECT `k.1`, at FROM lake.odd WHERE …').toArrow())" in text
    spark.sql("USE spark_catalog.default")
    store.table("odd").delete(spark.sql("SELECT `k.1`, at FROM lake.odd WHERE text RLIKE 'x'").toArrow())
    assert content(store, "odd") == []


def test_spark_keeps_its_error_of_what_is_no_table_of_a_store(spark: SparkSession, store: el.Store) -> None:
    updates = ("UPDATE lake.nowhere SET n = 1", "UPDATE lake.no.where SET n = 1")
    likes = ("CREATE TABLE lake.c LIKE lake.nowhere", "CREATE TABLE c LIKE nowhere")
    others = ("DELETE FROM nowhere WHERE x RLIKE 'x'", "SELECT * FROM lake.nowhere", "DELETE FROM")
    for statement in (*updates, *likes, *others):
        with pytest.raises(PySparkException) as caught:
            spark.sql(statement)
        assert find_epochlog_error(caught.value) is None


# ---- UPDATE, MERGE, REPLACE ------------------------------------------------------------------------------------------

MERGE_VIEW = "MERGE INTO lake.v x USING lake.b y ON x.id = y.id"
MERGE = "MERGE INTO lake.a x USING lake.b y ON x.id = y.id"
BY_KEY = (
    *("UPDATE lake.a SET n = 1", "UPDATE lake.a SET n = 1 WHERE id IN (SELECT id FROM lake.b)"),
    *(f"{MERGE} WHEN MATCHED THEN UPDATE SET n = y.n", f"{MERGE} WHEN MATCHED THEN DELETE"),
    *(f"{MERGE} WHEN NOT MATCHED THEN INSERT *", f"{MERGE} WHEN NOT MATCHED BY SOURCE THEN DELETE"),
    f"{MERGE.replace('MERGE', 'MERGE WITH SCHEMA EVOLUTION')} WHEN NOT MATCHED THEN INSERT *",
)
REPLACED = (
    "INSERT INTO lake.a REPLACE WHERE n = 1 SELECT * FROM lake.b WHERE n = 1",
    "INSERT INTO lake.a REPLACE ON a.id = b.id (SELECT * FROM lake.b)",
    "INSERT INTO lake.a REPLACE USING (id) (SELECT * FROM lake.b)",
)
ONE_COMMIT = "frame.write.format('epochlog').options(path='…', table='a').mode('append').save()"


def test_an_output_of_a_job_is_refused_as_such(spark: SparkSession, store: el.Store) -> None:
    store.create_view("v", "SELECT id, n FROM a", ["id"])
    store.checkpoint()
    store.view("v").step()
    for statement in (
        *("UPDATE lake.v SET n = 1", "DELETE FROM lake.v WHERE id = 1", "INSERT INTO lake.v VALUES (1, 1)"),
        *(f"{MERGE_VIEW} WHEN MATCHED THEN UPDATE SET n = y.n", f"{MERGE_VIEW} WHEN MATCHED THEN DELETE"),
        *("DELETE FROM lake.v WHERE id IN (SELECT id FROM lake.b)", "DELETE FROM lake.v WHERE n RLIKE '1'"),
    ):
        text = refusal(lambda statement=statement: spark.sql(statement))
        assert text == "NotWritable: table 'v' is the output of a job; only that job writes it", statement


def test_update_merge_and_replace_say_what_to_write(spark: SparkSession, store: el.Store) -> None:
    for statement in BY_KEY:
        text = refusal(lambda statement=statement: spark.sql(statement))
        assert text.startswith("NotWritable: 'a' takes neither UPDATE nor MERGE: ")
        assert "INSERT INTO lake.a SELECT …" in text
        assert ONE_COMMIT in text
    frame = spark.table("lake.b")
    replaced = [text for text in REPLACED if has("changes") or "WHERE" in text]  # before 4.2 Spark parses no other
    calls: list[Callable[[], object]] = [
        *(lambda statement=statement: spark.sql(statement) for statement in replaced),
        lambda: frame.writeTo("lake.a").overwrite(F.col("n") == 1),
    ]
    for call in calls:
        text = refusal(call)
        assert text.startswith("NotWritable: lake.a replaces rows by their key, or all rows: ")
        assert ONE_COMMIT in text
    source = frame.withColumnRenamed("text", "words").alias("y")
    merge = source.mergeInto("lake.a", F.expr("lake.a.id = y.id")).whenMatched().delete()
    if has("refresh"):
        assert refusal(merge.merge).startswith("NotWritable: 'a' takes neither UPDATE nor MERGE: ")
    else:  # Spark 4.0 names no table
        with pytest.raises(PySparkException, match="MERGE INTO TABLE is not supported"):
            merge.merge()
    assert content(store) == [tuple(row.values()) for row in ROWS]
    frame = spark.sql(
        "SELECT *, 'upsert' AS _change_type FROM lake.b UNION ALL SELECT *, 'delete' FROM lake.a WHERE text RLIKE 'ink'"
    )
    frame.write.format("epochlog").options(path=store.root, table="a").mode("append").save()
    assert content(store) == [(1, 10, "new"), (2, 2, "pad"), (7, 70, None)]
    assert store.table("a").history(1).to_pylist()[0]["rows_deleted"] == 1


def test_a_table_has_no_partitions_to_overwrite(spark: SparkSession, store: el.Store) -> None:
    frame = spark.table("lake.b")
    mode = "spark.sql.sources.partitionOverwriteMode"
    text = refusal(frame.writeTo("lake.a").overwritePartitions)
    try:
        spark.conf.set(mode, "dynamic")
        assert text == refusal(lambda: spark.sql("INSERT OVERWRITE lake.a SELECT * FROM lake.b"))
    finally:
        spark.conf.unset(mode)
    assert text.startswith("NotWritable: lake.a has no partitions, ")
    assert "frame.writeTo('lake.a').append()" in text and "frame.writeTo('lake.a').overwrite(F.lit(True))" in text
    frame.writeTo("lake.a").append()
    assert [row[0] for row in content(store)] == [0, 1, 2, 7]
    frame.writeTo("lake.a").overwrite(F.lit(True))
    assert [row[0] for row in content(store)] == [1, 7]
    spark.sql("INSERT OVERWRITE lake.a SELECT * FROM lake.b WHERE id = 1")
    assert [row[0] for row in content(store)] == [1]


# ---- CREATE TABLE, ALTER TABLE ---------------------------------------------------------------------------------------

KEYS = {
    "id BIGINT PRIMARY KEY, n INT": ["id"],
    "id BIGINT, n INT, PRIMARY KEY (n, id)": ["n", "id"],
    "id BIGINT, n INT, CONSTRAINT pk PRIMARY KEY (id) NOT ENFORCED": ["id"],
    "`k.1` BIGINT, `a,b` INT, PRIMARY KEY (`a,b`, `k.1`)": ["a,b", "k.1"],
    "K BIGINT, n INT, PRIMARY KEY (k)": ["K"],
    "Id BIGINT, `Der Tag` DATE, n INT, PRIMARY KEY (`der tag`, ID)": ["Der Tag", "Id"],
}
CLAUSES = {
    "id BIGINT, n INT PRIMARY KEY": "PRIMARY KEY and primary_key name different columns",
    "id BIGINT, n INT UNIQUE": "leave out UNIQUE: only the primary key is unique",
    "id BIGINT, n INT CHECK (n > 0)": "store.table('c').alter(checks={'positive': 'n > 0'})",
    "id BIGINT, n INT, CONSTRAINT pos CHECK (n > 0)": "store.table('c').alter(checks={'positive': 'n > 0'})",
    "id BIGINT, n INT REFERENCES lake.a (id)": "leave out REFERENCES",
    "id BIGINT, n INT DEFAULT 5": "leave out DEFAULT of 'n': a column that an INSERT does not name is NULL",
    "id BIGINT, n BIGINT GENERATED ALWAYS AS (id + 1)": "leave out GENERATED of 'n'",
    "id BIGINT GENERATED ALWAYS AS IDENTITY, n INT": "leave out GENERATED of 'id'",
}
ALTERED = {
    "ALTER COLUMN n SET DEFAULT 5": "a column that an INSERT does not name is NULL",
    "ALTER COLUMN n DROP DEFAULT": "a column that an INSERT does not name is NULL",
    "ADD CONSTRAINT pos CHECK (n >= 0)": "store.table('a').alter(checks={'positive': 'n > 0'})",
    "ADD CONSTRAINT pk PRIMARY KEY (id)": "the primary key of a table is that of its creation",
    "DROP CONSTRAINT pos": "store.table('a').alter(checks={'positive': 'n > 0'})",
}


@pytest.mark.needs("constraints")
def test_a_primary_key_is_a_clause(spark: SparkSession, store: el.Store) -> None:
    for columns, key in KEYS.items():
        spark.sql(f"CREATE TABLE lake.c ({columns})")
        assert store.table("c").primary_key == key
        store.drop_table("c")
    for properties in ("'primary_key' = 'ID, n'", """'primary_key' = '["iD", "N"]', 'sequence_by' = 'v'"""):
        spark.sql(f"CREATE TABLE lake.c (Id BIGINT, n INT, V BIGINT) TBLPROPERTIES ({properties})")
        assert store.table("c").primary_key == ["Id", "n"]
        store.drop_table("c")
    spark.sql(f"CREATE TABLE lake.c (Id BIGINT PRIMARY KEY) {KEYED.replace('id', 'ID')}")
    store.drop_table("c")
    spark.sql(f"CREATE TABLE lake.c (id BIGINT PRIMARY KEY) {KEYED}")
    spark.sql("INSERT INTO lake.c VALUES (1), (1)")
    assert content(store, "c") == [(1,)]
    shown: Any = spark.sql("SHOW CREATE TABLE lake.c").first()
    assert "primary_key" in shown[0]


CONSTRAINT = re.compile("UNIQUE|CHECK|REFERENCES|PRIMARY KEY|CONSTRAINT")
"""Clauses that Spark cannot parse without the feature `constraints`."""


def parsed(cases: dict[str, str]) -> dict[str, str]:
    """Return the cases that this Spark can parse."""
    return {text: words for text, words in cases.items() if has("constraints") or not CONSTRAINT.search(text)}


def test_constraints_and_defaults_say_what_to_write(spark: SparkSession, store: el.Store) -> None:
    for columns, words in parsed(CLAUSES).items():
        text = refusal(lambda columns=columns: spark.sql(f"CREATE TABLE lake.c ({columns}) {KEYED}"))
        assert text.startswith("InvalidInput: CREATE TABLE c: ")
        assert words in text
    for change, words in parsed(ALTERED).items():
        text = refusal(lambda change=change: spark.sql(f"ALTER TABLE lake.a {change}"))
        assert text.startswith("NotWritable: ALTER TABLE a: ")
        assert words in text
    assert [table.name for table in store.tables()] == ["a", "b"]
    store.table("a").alter(checks={"positive": "n >= 0"})
    with pytest.raises(PySparkException, match="positive"):
        spark.sql("INSERT INTO lake.a VALUES (9, -1, 'x')")


# ---- columns that an INSERT does not name ----------------------------------------------------------------------------


@pytest.mark.needs("few columns")
def test_an_insert_of_few_columns_makes_the_others_null_and_partial_keeps_them(
    spark: SparkSession, store: el.Store
) -> None:
    spark.sql("INSERT INTO lake.a (id, n) VALUES (1, 11)")
    assert content(store)[1] == (1, 11, None)
    frame = spark.sql("SELECT 2L AS id, 22L AS n")
    frame.write.format("epochlog").options(path=store.root, table="a", partial=True).mode("append").save()
    assert content(store)[2] == (2, 22, "pad")


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_update_mode_by_format_says_what_to_write(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    counts = spark.readStream.table("lake.b").groupBy("id").agg(F.count("*").alias("n"), F.max("text").alias("text"))
    writer = counts.writeStream.format("epochlog").options(path=store.root, table="a")
    writer = writer.option("checkpointLocation", str(tmp_path / "refused"))
    calls: list[Callable[[], object]] = [
        writer.outputMode("update").start,
        lambda: writer.start(outputMode="Update"),
        lambda: counts.writeStream.outputMode("update").start(format="epochlog", path=store.root, table="a"),
    ]
    for call in calls:
        text = refusal(call)
        assert "toTable('lake.a')" in text and "foreachBatch(el.sink(" in text
    query = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "one"))
    query.trigger(availableNow=True).toTable("lake.a").awaitTermination()
    assert content(store)[1] == (1, 1, "new")
    query = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "two"))
    query = query.foreachBatch(el.sink({"a": None}, app_id="counts", path=store.root))
    query.trigger(availableNow=True).start().awaitTermination()
    assert content(store)[1] == (1, 1, "new")


def test_a_micro_batch_has_the_catalogs_of_its_query(spark: SparkSession, store: el.Store, tmp_path: Path) -> None:
    seen: list[object] = []

    def look(frame: DataFrame, batch: int) -> None:
        session = frame.sparkSession
        seen.append(session.sql("SELECT count(*) FROM lake.a").first())
        frame.writeTo("lake.a").append()
        seen.append(session.table("lake.a").count())
        seen.append(refusal(lambda: session.sql("DELETE FROM lake.a WHERE text RLIKE 'x'")))

    stream = spark.readStream.options(**ONE_EPOCH).table("lake.b").writeStream
    writer = stream.foreachBatch(look).trigger(availableNow=True)
    for number in range(2):  # a second query of one writer has a session of its own
        writer.option("checkpointLocation", str(tmp_path / str(number))).start().awaitTermination()
    assert [count for count in seen if not isinstance(count, str)] == [(3,), 4, (4,), 4]
    assert all(DELETED in text for text in seen if isinstance(text, str))
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.newSession().sql("SELECT * FROM lake.a")
