"""Cost of a query through the catalog: its calls into the JVM, and the columns that it decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark.catalog import scan
from epochlog.spark.partitions import ReadPartition

pytestmark = pytest.mark.spark
WIDTH = 50
SCHEMA = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(1, WIDTH))])
MOST_CALLS = {
    "SELECT c1, COUNT(*) FROM lake.wide GROUP BY c1": 60,
    "SELECT x.c1 FROM lake.wide x JOIN lake.b USING (id)": 108,
}
"""Most calls of a query of one table, and of two: 54 and 97 when this was written, and 80 and 150 when each scan asked
Spark for what is constant.
"""


@pytest.fixture
def wide(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    """A store with a table of 50 columns, compacted, as the catalog `lake`."""
    with el.open(tmp_path / "store") as store:
        column = pa.array(range(1000), pa.int64())
        store.create_table("wide", SCHEMA, ["id"]).upsert(pa.table([column] * WIDTH, schema=SCHEMA))
        store.compact("wide", full=True)
        el.catalog(spark, store, name="lake")
        yield store
        spark.sql("USE spark_catalog.default")


def calls(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the calls into the JVM, except those that free its objects, which the garbage collector times."""
    commands: list[str] = []
    send = ClientServerConnection.send_command

    def counted(self: ClientServerConnection, command: str) -> Any:
        commands.append(command)
        return send(self, command)

    with monkeypatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", counted)
        run()
    return sum(not command.startswith("m\nd\n") for command in commands)


def test_a_query_makes_few_calls_into_the_jvm(
    wide: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide.create_table("b", SCHEMA, ["id"]).upsert(wide.table("wide").to_arrow())
    for text, most in MOST_CALLS.items():
        for _ in range(2):  # the first query of a table makes what the later ones keep
            assert len(spark.sql(text).collect()) == 1000
        count = calls(lambda text=text: spark.sql(text).collect(), monkeypatch)
        assert 10 < count <= most, (text, count)


def test_two_of_fifty_columns_are_decoded_without_the_others(
    wide: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions that the query's tasks got are read again here, where the decoded columns can be counted."""
    planned: list[ReadPartition] = []
    decoded: list[str] = []
    cut, decode = scan.cut_partitions, pq.ParquetFile.read_row_groups

    def remembering(*arguments: Any) -> list[ReadPartition]:
        partitions = cut(*arguments)
        planned.extend(partitions)
        return partitions

    def counting(self: pq.ParquetFile, groups: list[int], columns: Sequence[str], **options: Any) -> pa.Table:
        decoded.extend(columns)
        return decode(self, groups, columns, **options)

    monkeypatch.setattr(scan, "cut_partitions", remembering)
    (row,) = spark.sql("SELECT SUM(c7), SUM(c31) FROM lake.wide").collect()
    assert tuple(row) == (499_500, 499_500)
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counting)
    batches = [batch for partition in planned for batch in partition.read()]
    assert sum(batch.num_rows for batch in batches) == 1000
    assert {name for batch in batches for name in batch.schema.names} == {"c7", "c31"}
    assert {"c7", "c31"} <= set(decoded) <= {"c7", "c31", "_op"}, decoded
