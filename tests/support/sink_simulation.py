"""Spark's part in a write, without Spark: the planner, each attempt of a task and the committer know only what
Spark gives them, pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage

import epochlog as el
from epochlog.spark.session import EpochlogSource
from epochlog.spark.types import spark_schema
from epochlog.store.env.clock import BootTime, SystemClock
from epochlog.store.session.write_intents import all_intents

CHANGES = "_change_type"
GRACE_MS = 901_000
DAY_MS = 86_400_000


class SinkWrite:
    """One write of rows of `schema`: planned when this is made. `stream`: the number of a micro-batch."""

    def __init__(
        self,
        store: el.Store,
        table: str,
        schema: pa.Schema,
        mode: str = "append",
        stream: int | None = None,
        **options: Any,
    ) -> None:
        place = {"path": store.root, "table": table, "catalog": store._handle.catalog_url or ""}
        self._options = {**place, **{name: str(value) for name, value in options.items()}}
        self._schema = spark_schema(table, schema)
        self._overwrite, self._stream = mode == "overwrite", stream
        self._sent = pickle.dumps(self._made())

    def _made(self) -> Any:
        source = EpochlogSource(CaseInsensitiveDict(self._options))
        if self._stream is None:
            return source.writer(self._schema, self._overwrite)
        return source.streamWriter(self._schema, self._overwrite)

    def attempt(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of a task; what it tells the driver if the driver listens."""
        return pickle.loads(pickle.dumps(pickle.loads(self._sent).write(iter(batches))))

    def run(self, *partitions: pa.Table) -> list[WriterCommitMessage | None]:
        """Every task once, each with one partition."""
        return [self.attempt(part.to_batches(max_chunksize=4)) for part in partitions]

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end("commit", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end("abort", messages)

    def _end(self, how: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._stream is None:
            getattr(pickle.loads(self._sent), how)(list(messages))
        else:  # a stream's batch is committed by a sink that is made anew
            getattr(self._made(), how)(list(messages), self._stream)


class Later:
    """The machine's clock, and what was added to it."""

    def __init__(self) -> None:
        self.added_ms = 0

    def __call__(self) -> int:
        return SystemClock()() + self.added_ms

    def boot_time(self) -> BootTime | None:
        boot = SystemClock().boot_time()
        return None if boot is None else BootTime(boot.boot, boot.ms + self.added_ms)


def spark_intents(store: el.Store) -> int:
    """Count the catalog's write intents of Spark, whose commits may still come."""
    intents = store._handle.catalog.read(all_intents)
    return sum(intent.kind == "spark" for intent in intents)


def files_of(store: el.Store) -> int:
    """Data files in the root, whatever reaches them."""
    handle = store._handle
    return sum(info.path.endswith((".arrow", ".parquet")) for info in handle.files.list(handle.store_id))


def unreached(store: el.Store) -> int:
    return len(store.verify().unreachable)
