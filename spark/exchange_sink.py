"""Spark sink of `format("epochlog.exchange")`: the partitions of a frame as channels of one stage of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.exchange.staged.messages import MAX_BATCH
from epochlog.store.types.retyping import as_schema

from .exchange_layout import PushTarget
from .exchange_rows import STAGE_COLUMNS
from .options import Options
from .row_hash import refuse_unhashable, split_by_hash
from .types import arrow_schema
from .worker_gc import freeze_loaded_objects

LARGEST_PUSH = MAX_BATCH // 2
"""Bytes in memory above which a batch is pushed in halves."""


def make_sink(options: Options, schema: StructType, overwrite: bool) -> ExchangeSink:
    """Resolve the options of a write and declare its query. Raises typed errors before any task runs."""
    freeze_loaded_objects()
    target = PushTarget.from_options(options)
    if overwrite:
        raise InvalidInput(
            "a stage cannot be overwritten, because consumers may have read it; write with .mode('append'), and use "
            "another query for other rows"
        )
    arrow = arrow_schema(schema)
    twice = (name for name, count in Counter(arrow.names).items() if count > 1)
    reserved = sorted(set(arrow.names) & set(STAGE_COLUMNS)) or list(twice)
    if reserved:
        raise InvalidInput(f"column {reserved[0]!r} is reserved, or there are two of it; rename it")
    refuse_unhashable(arrow, target.partition_by)
    with target.layout.connect() as client:
        target.layout.declare(client)
    return ExchangeSink(target, arrow)


@dataclass
class TaskPushes(WriterCommitMessage):
    """Result of one task."""

    producer: int
    ends: tuple[tuple[int, int], ...]
    """For each consumer, the last sequence of the task's channel and its number of rows."""


class ExchangeSink(DataSourceArrowWriter):
    """Sink of `df.write`. Tasks push; the commit sets the end marks, so that a failed write never passes its stage.

    Attempts of a task push equal batches under equal sequences, of which each counts once. So attempts need no numbers:
    they may run at the same time, after each other, or in another run of the write.
    """

    def __init__(self, target: PushTarget, schema: pa.Schema) -> None:
        self._target = target
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskPushes:
        from pyspark import TaskContext

        freeze_loaded_objects()
        context = TaskContext.get()
        assert context is not None
        producer, layout, stage = context.partitionId(), self._target.layout, self._target.stage
        if producer >= layout.channels:
            raise InvalidInput(
                f"the frame has more than {layout.channels} partitions, and each needs its channel; set option "
                "channels in all frames of the query, or write frame.coalesce(…)"
            )
        pushed, rows = [0] * layout.consumers, [0] * layout.consumers
        with layout.connect() as client:
            for batch in iterator:
                for consumer, part in enumerate(self._split(as_schema(batch, self._schema))):
                    for pushable in _pushable_batches(part):
                        channel = layout.channel(stage, producer, consumer)
                        client.push(channel, stage, pushed[consumer], pushable, wait=False)
                        pushed[consumer] += 1
                        rows[consumer] += pushable.num_rows
            client.flush()
        return TaskPushes(producer, tuple((count - 1, sent) for count, sent in zip(pushed, rows, strict=True)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        freeze_loaded_objects()
        layout = self._target.layout
        results = {message.producer: message.ends for message in messages if isinstance(message, TaskPushes)}
        empty = ((-1, 0),) * layout.consumers
        with layout.connect() as client:
            for producer in range(layout.channels):
                for consumer, (last, rows) in enumerate(results.get(producer, empty)):
                    client.end(layout.channel(self._target.stage, producer, consumer), last, rows=rows)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the pushed batches: the next run of the write pushes them again, which changes nothing."""

    def _split(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if self._target.partition_by:
            return split_by_hash(batch, self._target.partition_by, self._target.layout.consumers)
        return [batch] * self._target.layout.consumers


def _pushable_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch as batches of sizes that the exchange accepts; nothing of an empty one."""
    if batch.num_rows > 1 and batch.nbytes > LARGEST_PUSH:
        half = batch.num_rows // 2
        yield from _pushable_batches(batch.slice(0, half))
        yield from _pushable_batches(batch.slice(half))
    elif batch.num_rows:
        yield batch
