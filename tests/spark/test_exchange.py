"""Frames through a staged exchange: every row once and in stage order, whatever is written twice or fails between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.spark.errors import find_epochlog_error

pytestmark = [pytest.mark.spark, pytest.mark.local_only]

TOKEN = "the-token"
FORMAT = "epochlog.exchange"
PLACE = "_stage BIGINT, _channel STRING, _sequence BIGINT"
CITIES, FLIGHTS = 40, 6_000
Push = Callable[..., None]


class FrameExchange:
    """A query of a served store, and short ways to reach it from Spark."""

    def __init__(self, spark: SparkSession, server: el.StoreServer, query: str) -> None:
        self.spark = spark
        self.options = {"location": server.location, "token": TOKEN, "query": query}
        self.client = ExchangeClient(server.location, token=TOKEN, query=query)

    def write(self, frame: DataFrame, stage: int, **options: Any) -> None:
        writer = frame.write.format(FORMAT).mode("append").options(**self.options, stage=stage)
        writer.options(**{name: str(value) for name, value in options.items()}).save()

    def read(self, schema: str, **options: Any) -> DataFrame:
        reader = self.spark.read.format(FORMAT).schema(schema).options(**self.options)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.StoreServer]:
    folder = tmp_path_factory.mktemp("exchange") / "store"
    with el.open(folder, durability="os") as store, el.serve(store, token=TOKEN) as server:
        yield server


@pytest.fixture
def exchange(spark: SparkSession, server: el.StoreServer, request: pytest.FixtureRequest) -> Iterator[FrameExchange]:
    made = FrameExchange(spark, server, request.node.name[:60])
    with made.client:
        yield made


def cities(spark: SparkSession) -> DataFrame:
    return spark.range(CITIES).selectExpr("cast(id AS int) city", "concat('city ', id) name")


def flights(spark: SparkSession) -> DataFrame:
    return spark.range(0, FLIGHTS, 1, 3).selectExpr("id % 60 city", "id flight")


def join_in_stage_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join within one task: the rows of stage -1 are in hand before the first of stage 0."""
    names: dict[int, str] = {}
    probing = False
    for batch in batches:
        build = [row for row in batch.to_pylist() if row["_stage"] == -1]
        assert not (build and probing), "a row of stage -1 came after one of stage 0"
        names.update((row["city"], row["name"]) for row in build)
        probe = [row for row in batch.to_pylist() if row["_stage"] == 0]
        probing = probing or bool(probe)
        joined = [{"flight": row["flight"], "name": names[row["city"]]} for row in probe if row["city"] in names]
        yield pa.RecordBatch.from_pylist(joined, pa.schema([("flight", pa.int64()), ("name", pa.string())]))


def expected() -> list[tuple[int, str]]:
    query = f"""
        SELECT f.flight, c.name FROM (SELECT range % 60 city, range flight FROM range({FLIGHTS})) f
        JOIN (SELECT range city, 'city ' || range AS name FROM range({CITIES})) c USING (city) ORDER BY ALL"""
    return duckdb.execute(query).fetchall()


def test_a_join_of_two_stages_equals_duckdb(exchange: FrameExchange, spark: SparkSession) -> None:
    """The probe side comes first, and keys of another width meet on one consumer: each task joins on its own."""
    layout = {"stages": "-1,0", "channels": 3, "consumers": 2}
    exchange.write(flights(spark), 0, partitionBy="city", **layout)
    assert exchange.client.stage == -1
    exchange.write(cities(spark), -1, partitionBy="city", **layout)
    assert exchange.client.stage == 1
    rows = exchange.read(f"{PLACE}, city BIGINT, name STRING, flight BIGINT", **layout)
    joined = rows.mapInArrow(join_in_stage_order, "flight BIGINT, name STRING")
    assert sorted(tuple(row) for row in joined.collect()) == expected()
    by_channel = rows.groupBy("_channel").agg({"_sequence": "max"}).collect()  # another action reads again
    progress = {name: channel for name, channel in exchange.client.progress.items() if channel.next}
    assert {row[0]: row[1] for row in by_channel} == {name: channel.last for name, channel in progress.items()}


def test_a_broadcast_reaches_each_consumer_and_columns_may_be_left_out(
    exchange: FrameExchange, spark: SparkSession
) -> None:
    layout = {"channels": 4, "consumers": 2}
    exchange.write(cities(spark), 0, broadcast=True, **layout)
    rows = exchange.read("name STRING, _stage BIGINT, city DECIMAL(20,0)", **layout)
    assert sorted(map(tuple, rows.select("city", "name").collect())) == sorted(
        (city, f"city {city}") for city in range(CITIES) for _ in range(2)
    )


def fail_in(partition: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that fails in one partition, after its first batches were pushed."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number > 1 and context.partitionId() == partition:
                raise RuntimeError("the task fails")
            yield batch

    return run


def test_a_failed_write_does_not_pass_its_stage_and_runs_again(exchange: FrameExchange, spark: SparkSession) -> None:
    frame = spark.range(0, 60_000, 1, 2).selectExpr("id", "concat('text ', id) text")
    with pytest.raises(Exception, match="the task fails"):
        exchange.write(frame.mapInArrow(fail_in(1), frame.schema), 0, channels=2)
    progress = exchange.client.progress
    assert exchange.client.stage == 0 and {channel.last for channel in progress.values()} == {None}
    assert sum(channel.next for channel in progress.values()) > 0
    for _ in range(2):  # once more after a success, as a driver that died in between would
        exchange.write(frame.mapInArrow(fail_in(-1), frame.schema), 0, channels=2)
        assert exchange.client.stage == 1
    rows = exchange.read("id BIGINT, text STRING", channels=2)
    assert sorted(map(tuple, rows.collect())) == [(number, f"text {number}") for number in range(60_000)]


def test_other_rows_under_a_pushed_sequence_are_refused(exchange: FrameExchange, spark: SparkSession) -> None:
    exchange.write(cities(spark).coalesce(1), 0)
    with pytest.raises(Exception) as caught:
        exchange.write(cities(spark).coalesce(1).sort("name"), 0)
    assert isinstance(find_epochlog_error(caught.value), el.ContentMismatch)
    assert exchange.read("city INT").count() == CITIES


def test_more_partitions_than_channels_are_refused(exchange: FrameExchange, spark: SparkSession) -> None:
    with pytest.raises(Exception) as caught:
        exchange.write(flights(spark), 0, channels=2)
    error = find_epochlog_error(caught.value)
    assert isinstance(error, el.InvalidInput) and "coalesce" in str(error)
    assert exchange.client.stage == 0


def test_a_stream_gets_each_row_once_in_stage_order_and_resumes(
    exchange: FrameExchange, spark: SparkSession, tmp_path: Path
) -> None:
    layout, checkpoint = {"stages": "-2,-1,0", "channels": 3, "consumers": 2}, tmp_path / "checkpoint"
    batches: list[list[tuple[int, int]]] = []

    def run() -> list[tuple[int, int]]:
        """Read what is there now, as a new query on one checkpoint; return the rows, (stage, id)."""
        rows = spark.readStream.format(FORMAT).schema("_stage BIGINT, id BIGINT").options(**exchange.options, **layout)
        first = len(batches)
        query = (
            rows.load().writeStream.option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda frame, _: batches.append(sorted(map(tuple, frame.collect()))))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return [row for batch in batches[first:] for row in batch]

    def push(stage: int) -> list[tuple[int, int]]:
        exchange.write(spark.range(stage * 30, stage * 30 + 30, 1, 3), stage, partitionBy="id", **layout)
        return [(stage, number) for number in range(stage * 30, stage * 30 + 30)]

    last = push(0)
    assert run() == []
    assert push(-2) == run()
    middle = push(-1)
    assert run() == middle + last
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    for path in (checkpoint / "commits").glob(f"*{newest}*"):  # Spark dies before it has noted the batch
        path.unlink()
    assert run() == middle + last
    assert run() == []
    with pytest.raises(el.SequenceReleased):  # an earlier batch is acknowledged
        exchange.client.read("0", dict.fromkeys(exchange.client.read("0").cursor, 0))
