"""Tables that SQL creates in a store: columns keep what they say, or the statement is refused with what to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_needs import cases

pytestmark = pytest.mark.spark
KEYED = "TBLPROPERTIES (primary_key = 'id')"


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as made:
        el.catalog(spark, made)
        yield made
        spark.sql("USE spark_catalog.default")


def refusal(spark: SparkSession, statement: str) -> str:
    """Return the typed error of a statement as text, with its class."""
    with pytest.raises(PySparkException) as caught:
        spark.sql(statement).collect()
    error = find_epochlog_error(caught.value)
    assert error is not None, f"{statement}: {caught.value}"
    return f"{type(error).__name__}: {error}"


# ---- types -----------------------------------------------------------------------------------------------------------

KEPT = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, n INT, big BIGINT, f FLOAT, d DOUBLE, price DECIMAL(38,10), "
    "text STRING, raw BINARY, day DATE, moment TIMESTAMP, clock TIMESTAMP_NTZ, span INTERVAL DAY TO SECOND, "
    "deep ARRAY<STRUCT<a: MAP<STRING, INT>, b: STRING>>"
)
NOT_KEPT = {
    "x CHAR(3)": ("column 'x': type char(3)", "write STRING"),
    "x VARCHAR(2)": ("column 'x': type varchar(2)", "write STRING"),
    "x STRING COLLATE UTF8_LCASE": ("column 'x': type string collate UTF8_LCASE", "write STRING"),
    "x VARIANT": ("column 'x': type variant", "write STRING: to_json"),
    "x INTERVAL YEAR TO MONTH": ("column 'x': type interval year to month", "write INT"),
    "x INTERVAL DAY": ("column 'x': type interval day", "write INTERVAL DAY TO SECOND"),
    "x GEOMETRY(4326)": ("column 'x': type geometry(4326)", "write BINARY"),
    "x ARRAY<VARCHAR(3)>": ("column 'x.element': type varchar(3)", "write STRING"),
    "x MAP<STRING, VARIANT>": ("column 'x.value': type variant", "write STRING"),
    "x STRUCT<y: ARRAY<STRUCT<z: CHAR(1)>>>": ("column 'x.y.element.z': type char(1)", "write STRING"),
    "x STRUCT<y: STRING COLLATE UNICODE_CI>": ("column 'x.y': type string collate UNICODE_CI", "write STRING"),
    "x STRUCT<y: INT COMMENT 'inner'>": ("column 'x.y': only columns have a comment", "leave out"),
    "x VOID": ("column 'x': type null", "cannot be stored"),
}


def test_the_types_that_a_table_keeps_come_back(spark: SparkSession, store: el.Store) -> None:
    spark.sql(f"CREATE TABLE lake.t (id BIGINT, {KEPT}) {KEYED}")
    described = {row[0]: row[1].upper() for row in spark.sql("DESCRIBE lake.t").collect()}
    assert described.pop("id") == "BIGINT"
    assert described.pop("deep") == "ARRAY<STRUCT<A:MAP<STRING,INT>,B:STRING>>"
    flat = [column.partition(" ") for column in KEPT.partition(", deep ")[0].split(", ")]
    assert described == {name: kind for name, _, kind in flat}


@pytest.mark.parametrize("column", cases(NOT_KEPT, "geometry", of=lambda named: "geometry" in named[0]))
def test_a_type_that_a_table_would_change_is_refused(spark: SparkSession, store: el.Store, column: str) -> None:
    text = refusal(spark, f"CREATE TABLE lake.t (id BIGINT, {column}) {KEYED}")
    named, advice = NOT_KEPT[column]
    assert text.startswith(f"InvalidSchema: table t, {named}")
    assert advice in text
    assert store.tables() == []


def test_a_query_and_a_frame_make_no_column_that_changes(spark: SparkSession, store: el.Store) -> None:
    for value in ("INTERVAL '1' YEAR", "parse_json('1')", "'a' COLLATE UNICODE"):
        assert "column 'x'" in refusal(spark, f"CREATE TABLE lake.t {KEYED} AS SELECT 1L AS id, {value} AS x")
    spark.sql("CREATE TABLE short (id BIGINT, x VARCHAR(3)) USING parquet")
    try:
        assert "type varchar(3)" in refusal(spark, f"CREATE TABLE lake.t {KEYED} AS SELECT * FROM short")
    finally:
        spark.sql("DROP TABLE short")
    assert store.tables() == []


# ---- comments --------------------------------------------------------------------------------------------------------


def test_columns_keep_their_comments(spark: SparkSession, store: el.Store) -> None:
    spark.sql(f"CREATE TABLE lake.t (id BIGINT COMMENT 'the \"key\"', n INT COMMENT 'größe', plain STRING) {KEYED}")
    fields = store.table("t").schema
    assert [field.metadata for field in fields] == [
        {b"comment": b'the "key"'}, {b"comment": "größe".encode()}, None
    ]  # fmt: skip
    expected = [("id", 'the "key"'), ("n", "größe"), ("plain", None)]
    assert [(row[0], row[2]) for row in spark.sql("DESCRIBE lake.t").collect()] == expected
    store.table("t").upsert([{"id": 1, "n": 2, "plain": "x"}])
    spark.sql("INSERT INTO lake.t VALUES (2, 3, 'y')")
    assert [tuple(row) for row in spark.sql("SELECT * FROM lake.t ORDER BY id").collect()] == [(1, 2, "x"), (2, 3, "y")]
    loaded = spark.read.format("epochlog").option("path", store.root).option("table", "t").load()
    assert loaded.schema["n"].metadata == {"comment": "größe"}
    assert loaded.orderBy("id").collect() == spark.sql("SELECT * FROM lake.t ORDER BY id").collect()
    store.compact("t", full=True)
    assert spark.sql("SELECT max(n) FROM lake.t").collect()[0][0] == 3
    spark.sql(f"CREATE TABLE lake.copied {KEYED} AS SELECT * FROM lake.t")
    assert store.table("copied").to_arrow().num_rows == 2


def test_a_comment_of_arrow_is_one_of_sql(spark: SparkSession, store: el.Store) -> None:
    commented = pa.field("n", pa.uint8(), metadata={"comment": "of Arrow", "other": "x"})
    store.create_table("t", pa.schema([("id", pa.int64()), commented]), ["id"]).upsert([{"id": 1, "n": 255}])
    assert [row[2] for row in spark.sql("DESCRIBE lake.t").collect()] == [None, "of Arrow"]
    assert spark.sql("SELECT n FROM lake.t").collect()[0][0] == 255


# ---- clauses ---------------------------------------------------------------------------------------------------------

CLAUSES = {
    f"CLUSTER BY (id) {KEYED}": "leave out CLUSTER BY",
    f"CLUSTERED BY (id) INTO 4 BUCKETS {KEYED}": "leave out CLUSTERED BY",
    f"PARTITIONED BY (n) {KEYED}": "leave out PARTITIONED BY",
    f"COMMENT 'about' {KEYED}": "leave out COMMENT",
    f"LOCATION '/somewhere' {KEYED}": "leave out EXTERNAL and LOCATION",
    f"DEFAULT COLLATION UTF8_LCASE {KEYED}": "leave out DEFAULT COLLATION",
    f"OPTIONS (depth = 1) {KEYED}": "no property 'depth'",
}


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_clause_that_a_table_would_drop_is_refused(spark: SparkSession, store: el.Store, clause: str) -> None:
    assert CLAUSES[clause] in refusal(spark, f"CREATE TABLE lake.t (id BIGINT, n INT) {clause}")
    assert store.tables() == []


def test_show_create_table_prints_what_create_table_takes(spark: SparkSession, store: el.Store) -> None:
    spark.sql(f'CREATE TABLE lake.t (id BIGINT, {KEPT}, last STRING COMMENT "it\'s last") {KEYED}')
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("n", pa.int32())])
    store.create_table("full", schema, ["b", "a"], changelog="full")
    store.create_table("ordered", schema, ["b"], sequence_by="n")
    for name in ("t", "full", "ordered"):
        before = store.table(name).info
        described, statement = spark.sql(f"DESCRIBE lake.{name}").collect(), shown(spark, name)
        assert "epoch" not in statement
        spark.sql(f"DROP TABLE lake.{name}")
        spark.sql(statement)
        after = store.table(name).info
        assert after.schema.equals(before.schema, check_metadata=True)
        assert (after.primary_key, after.changelog) == (before.primary_key, before.changelog)
        assert after.sequence_by == before.sequence_by
        assert spark.sql(f"DESCRIBE lake.{name}").collect() == described
        assert shown(spark, name) == statement
    properties = {row[0] for row in spark.sql("SHOW TBLPROPERTIES lake.full").collect()}
    assert properties == {"primary_key", "changelog", "epoch"}


def shown(spark: SparkSession, name: str) -> Any:
    return spark.sql(f"SHOW CREATE TABLE lake.{name}").collect()[0][0]


ALTERED = {
    "ADD COLUMN z INT FIRST": ("InvalidInput", "leave out FIRST"),
    "ADD COLUMN z INT NOT NULL": ("InvalidSchema", "leave nullable=False out"),
    "ADD COLUMN z VARCHAR(3)": ("InvalidSchema", "type varchar(3) cannot be kept; write STRING"),
    "ADD COLUMN z VARIANT": ("InvalidSchema", "write STRING: to_json"),
    "RENAME COLUMN s.a TO b": ("InvalidInput", "s.a is inside of a column, which can only get more fields"),
    "DROP COLUMN id": ("InvalidInput", "can only be renamed"),
    "RENAME COLUMN n TO _n": ("InvalidSchema", "reserved"),
    "ALTER COLUMN n COMMENT 'x'": ("NotWritable", "UpdateColumnComment is not supported"),
    "ALTER COLUMN n FIRST": ("NotWritable", "UpdateColumnPosition is not supported"),
    "SET TBLPROPERTIES (x = 'y')": ("NotWritable", "store.table('t').alter(…)"),
    "UNSET TBLPROPERTIES (primary_key)": ("NotWritable", "store.table('t').alter(…)"),
}


@pytest.mark.parametrize("change", ALTERED)
def test_an_alter_that_a_table_does_not_take_is_refused(spark: SparkSession, store: el.Store, change: str) -> None:
    columns = [("id", pa.int64()), ("n", pa.int32()), ("s", pa.struct([("a", pa.int32())]))]
    schema = store.create_table("t", pa.schema(columns), ["id"]).schema
    kind, words = ALTERED[change]
    text = refusal(spark, f"ALTER TABLE lake.t {change}")
    assert text.startswith(f"{kind}: ")
    assert words in text
    assert store.table("t").schema == schema


def test_an_added_column_keeps_its_comment(spark: SparkSession, store: el.Store) -> None:
    store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    spark.sql("ALTER TABLE lake.t ADD COLUMNS (n INT COMMENT 'pieces', m DOUBLE)")
    spark.sql("ALTER TABLE lake.t RENAME COLUMN n TO pieces")
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE lake.t").collect()}
    assert described["pieces"] == "pieces"
    assert not described["m"]


def test_an_added_column_has_required_fields_below_its_nulls(spark: SparkSession, store: el.Store) -> None:
    table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    table.upsert([{"id": 1}])
    spark.sql("ALTER TABLE lake.t ADD COLUMNS (s STRUCT<carrier: STRING NOT NULL, sizes: ARRAY<INT>>)")
    spark.sql("INSERT INTO lake.t VALUES (2, named_struct('carrier', 'dhl', 'sizes', array(1, NULL))), (3, NULL)")
    wanted = [None, {"carrier": "dhl", "sizes": [1, None]}, None]
    for _ in range(2):
        assert store.table("t").to_arrow().column("s").to_pylist() == wanted
        read = spark.sql("SELECT s FROM lake.t ORDER BY id").collect()
        assert [row.s and row.s.asDict() for row in read] == wanted
        store.compact("t", full=True)


def test_an_alter_of_a_table_that_is_read_is_refused_by_its_own_error(spark: SparkSession, store: el.Store) -> None:
    store.create_table("t", pa.schema([("id", pa.int64()), ("n", pa.int32())]), ["id"]).upsert([{"id": 1, "n": 1}])
    view = store.create_view("v", "SELECT id, n FROM t", ["id"])
    store.checkpoint()
    assert view.step() is not None
    assert refusal(spark, "ALTER TABLE lake.t DROP COLUMN n").startswith("SchemaInUse: ")
    assert refusal(spark, "ALTER TABLE lake.v ADD COLUMN z INT").startswith("NotWritable: ")
