"""Feed of the root tables: day files for Spark's file streams, released at the pace of the streams."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from .data import Day

STREAMS: tuple[str, ...] = ("flights", "weather")
AGE_STEP_NS = 10_000_000
LOOK_EVERY = "400 milliseconds"


class DayFeed:
    """Day files in a staging folder, moved one after the other into the inboxes of the streams.

    A move is a rename, so that a stream never reads half a file. The modification times rise day by day, because Spark
    reads files in that order.
    """

    def __init__(self, folder: Path, days: list[Day]) -> None:
        self.staged = folder / "staged"
        self.inboxes = {name: folder / name for name in STREAMS}
        self.days = len(days)
        self.released = 0
        for path in (self.staged, *self.inboxes.values()):
            path.mkdir(parents=True)
        first_ns = folder.stat().st_mtime_ns
        for number, day in enumerate(days):
            for name, table in (("flights", day.flights), ("weather", day.weather)):
                path = self.staged / self._name(name, number)
                pq.write_table(table, path)
                age_ns = first_ns + number * AGE_STEP_NS
                os.utime(path, ns=(age_ns, age_ns))
        self.rows = {
            "flights": list(accumulate(day.flights.num_rows for day in days)),
            "weather": list(accumulate(day.weather.num_rows for day in days)),
        }

    @staticmethod
    def _name(stream: str, number: int) -> str:
        return f"{stream}-{number:03d}.parquet"

    def release(self, days: int) -> None:
        """Move the first `days` days into the inboxes."""
        while self.released < min(days, self.days):
            for stream in STREAMS:
                name = self._name(stream, self.released)
                (self.staged / name).rename(self.inboxes[stream] / name)
            self.released += 1

    def days_in(self, stream: str, rows: int) -> int:
        """Return the number of whole days within the stream's first `rows` input rows."""
        return bisect_right(self.rows[stream], rows)


def arrived(store: Any, stream: str) -> tuple[int, int]:
    """Return the numbers of input rows and commits of the stream so far, from the history of its table."""
    history = store.table(stream).history()
    rows = pc.sum(history["rows_upserted"]).as_py() or 0
    return rows + (pc.sum(history["rows_deleted"]).as_py() or 0), history.num_rows


def start_stream(
    spark: SparkSession, feed: DayFeed, stream: str, root: str, checkpoints: Path, files_per_batch: int
) -> StreamingQuery:
    """Start a file stream from the inbox into the root table `stream`, with `files_per_batch` day files per batch."""
    schema = spark.read.parquet(str(feed.staged / feed._name(stream, feed.days - 1))).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
    return (
        source.parquet(str(feed.inboxes[stream]))
        .writeStream.format("epochlog")
        .queryName(stream)
        .option("path", root)
        .option("table", stream)
        .option("checkpointLocation", str(checkpoints / stream))
        .trigger(processingTime=LOOK_EVERY)
        .start()
    )
