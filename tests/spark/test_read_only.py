"""Spark over a store that is opened read-only: it reads without a lock file, and writes are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import Row

import epochlog as el

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.mark.spark
@pytest.mark.local_only
@pytest.mark.rule("1.70")
def test_spark_reads_a_store_that_is_opened_read_only(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "s"
    with el.open(root) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1, 2], "v": [10, 20]}, schema=SCHEMA))
    lock = root / "catalog" / "lock.mdb"
    lock.unlink()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    options = {"path": str(root), "table": "t", "readOnly": "true"}
    frame = spark.read.format("epochlog").options(**options).load()
    assert sorted(row.v for row in frame.collect()) == [10, 20]
    feed = spark.read.format("epochlog").options(**options, readChangeFeed="true", startingVersion="earliest").load()
    assert feed.count() == 2
    with el.open(root, read_only=True) as store, store.snapshot(["t"]) as snapshot:
        assert snapshot.spark("t", spark).count() == 2
    with pytest.raises(Exception, match="opened read-only"):
        frame.write.format("epochlog").options(**options).mode("append").save()
    require_a_catalog_that_only_reads(spark, str(root))
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


WRITES = (
    "INSERT INTO sealed.t VALUES (3, 30)",
    "INSERT OVERWRITE sealed.t SELECT 4L, 40L",
    "DELETE FROM sealed.t WHERE id = 1",
    "TRUNCATE TABLE sealed.t",
    "ALTER TABLE sealed.t ADD COLUMNS (w INT)",
    "CREATE TABLE sealed.u (id BIGINT) TBLPROPERTIES (primary_key = 'id')",
    "CREATE TABLE sealed.u TBLPROPERTIES (primary_key = 'id') AS SELECT * FROM sealed.t",
    "DROP TABLE sealed.t",
)


def require_a_catalog_that_only_reads(spark: SparkSession, root: str) -> None:
    el.catalog(spark, root, "sealed", read_only=True)
    assert spark.sql("SELECT sum(v) AS v FROM sealed.t").collect() == [Row(v=30)]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN sealed").collect()] == ["t"]
    for statement in WRITES:
        with pytest.raises(Exception, match="StoreReadOnly") as refused:
            spark.sql(statement).collect()
        assert "Traceback" not in str(refused.value), statement  # before a task is planned
    assert spark.table("sealed.t").count() == 2
    with el.open(root, read_only=True) as store:
        el.catalog(spark, store, "sealed", read_only=True, tables=["t"])
        assert spark.table("sealed.t").count() == 2


@pytest.mark.spark
@pytest.mark.local_only
def test_a_store_open_for_writing_makes_no_catalog_that_only_reads(spark: SparkSession, tmp_path: Path) -> None:
    with (
        el.open(tmp_path / "s") as store,
        pytest.raises(el.InvalidInput, match="pass the root, or a store of"),
    ):
        el.catalog(spark, store, "sealed", read_only=True)
