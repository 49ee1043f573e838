"""Spark batch source of `format("epochlog.exchange")`: the rows of a query in stage order, a task for each consumer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from epochlog.errors import SchemaMismatch

from .exchange_layout import ExchangeLayout, refuse_push_options
from .exchange_rows import STAGE_COLUMNS, BatchPlace, to_frame
from .options import Options
from .partitions import BATCH_ROWS
from .types import arrow_schema
from .worker_gc import freeze_loaded_objects


@dataclass(frozen=True, slots=True)
class ConsumerRead:
    """Read of one consumer from a cursor on, {channel: next sequence}; without a `stop` through all end marks."""

    layout: ExchangeLayout
    consumer: int
    schema: pa.Schema
    start: Mapping[str, int]
    stop: Mapping[str, int] | None = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in stage order. Wait for those that were not pushed yet."""
        freeze_loaded_objects()
        stages = {name: stage for stage, names in self.layout.channels_of(self.consumer).items() for name in names}
        missing = {name for name, seq in (self.stop or {}).items() if seq > self.start.get(name, 0)}
        seen_columns: set[str] = set(STAGE_COLUMNS)
        seen_stages: set[int] = set()
        with self.layout.connect() as client, client.read(str(self.consumer), dict(self.start)) as reader:
            for channel, seq, batch in reader:
                if self.stop is not None and seq >= self.stop.get(channel, 0):
                    continue  # pushed after the end of this micro-batch
                seen_columns.update(batch.schema.names)
                seen_stages.add(stages[channel])
                place = BatchPlace(stages[channel], channel, seq)
                yield from to_frame(batch, place, self.schema).to_batches(max_chunksize=BATCH_ROWS)
                if self.stop is not None and seq + 1 == self.stop[channel]:
                    missing.discard(channel)
                    if not missing:
                        return
        unknown = [name for name in self.schema.names if name not in seen_columns]
        if unknown and seen_stages == set(self.layout.stages):
            raise SchemaMismatch(
                f"query {self.layout.query!r}: no stage has the column {unknown[0]!r} of the schema; the columns are "
                f"{', '.join(sorted(seen_columns))}"
            )


class ConsumerPartition(InputPartition):
    """Spark's partition object around a ConsumerRead."""

    def __init__(self, consumer_read: ConsumerRead) -> None:
        super().__init__(None)
        self.consumer_read = consumer_read


def resolve_layout(options: Options) -> ExchangeLayout:
    """Resolve the options of a read and declare its query. Raises typed errors."""
    freeze_loaded_objects()
    refuse_push_options(options)
    return ExchangeLayout.from_options(options)


class ExchangeReader(DataSourceReader):
    """Batch reader: all batches from the first one on, again at each action, until the query is dropped."""

    def __init__(self, layout: ExchangeLayout, schema: StructType) -> None:
        self._layout = layout
        self._schema = arrow_schema(schema)
        with layout.connect() as client:
            layout.declare(client)

    def partitions(self) -> Sequence[InputPartition]:
        freeze_loaded_objects()
        return [
            ConsumerPartition(ConsumerRead(self._layout, consumer, self._schema, self._layout.cursor(consumer, {})))
            for consumer in range(self._layout.consumers)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ConsumerPartition)
        return partition.consumer_read.read()
