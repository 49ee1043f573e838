"""The feed: day files that a Spark file stream picks up, released as the streams' own progress allows."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from .data import Day

STREAMS: tuple[str, ...] = ("flights", "weather")
AGE_STEP_NS = 10_000_000
LOOK_EVERY = "200 milliseconds"


class Feed:
    """Days as files in a staging folder, moved one after the other into the streams' inboxes.

    A move is a rename, so that a stream never sees half a file; the files' ages rise day by day, because that is the
    order in which Spark takes them.
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
        """Let the streams see the first `days` days."""
        while self.released < min(days, self.days):
            for stream in STREAMS:
                name = self._name(stream, self.released)
                (self.staged / name).rename(self.inboxes[stream] / name)
            self.released += 1

    def days_in(self, stream: str, rows: int) -> int:
        """How many whole days are within the stream's first `rows` input rows."""
        return bisect_right(self.rows[stream], rows)


class Progress(StreamingQueryListener):
    """Counts what the named streams have committed, by Spark's own progress events. Safe to read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = dict.fromkeys(STREAMS, 0)
        self._batches = dict.fromkeys(STREAMS, 0)
        self._busy_ms = dict.fromkeys(STREAMS, 0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if progress.name in self._rows and progress.numInputRows:
            with self._lock:
                self._rows[progress.name] += progress.numInputRows
                self._batches[progress.name] += 1
                self._busy_ms[progress.name] += progress.batchDuration

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def rows(self, stream: str) -> int:
        with self._lock:
            return self._rows[stream]

    def batches(self, stream: str) -> tuple[int, int]:
        """Number of batches so far and their mean duration in ms."""
        with self._lock:
            return self._batches[stream], self._busy_ms[stream] // max(1, self._batches[stream])


def start_stream(
    spark: SparkSession, feed: Feed, stream: str, root: str, checkpoints: Path, files_per_batch: int
) -> StreamingQuery:
    """A file stream over the inbox into the root table of the same name, `files_per_batch` day files at a time."""
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
