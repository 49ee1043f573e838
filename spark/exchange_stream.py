"""Spark stream source of `format("epochlog.exchange")`: the rows of a query in stage order, as they are pushed."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.exchange.staged.client import ExchangeClient
from epochlog.exchange.staged.state import ChannelProgress

from .exchange_layout import ExchangeLayout
from .exchange_source import ConsumerPartition, ConsumerRead
from .types import arrow_schema
from .versions import ReadLimit, SupportsTriggerAvailableNow
from .worker_gc import freeze_loaded_objects

Cursor = Mapping[str, int]
"""Channel -> the next sequence."""


def deliverable(layout: ExchangeLayout, progress: Mapping[str, ChannelProgress], start: Cursor) -> dict[str, int]:
    """Return the cursor up to which the consumers may read: each through the lowest stage that has not passed for it,
    and nothing above that. Raises InvalidInput for a start beyond the pushed batches.
    """
    end: dict[str, int] = {}
    for consumer in range(layout.consumers):
        for names in layout.channels_of(consumer).values():
            for name in names:
                if start.get(name, 0) > progress[name].next:
                    raise InvalidInput(
                        f"the checkpoint is at sequence {start[name]} of channel {name}, which has "
                        f"{progress[name].next} batches: it belongs to an earlier query {layout.query!r}. Begin with a "
                        "new checkpoint, and give each query a name of its own"
                    )
                if progress[name].next:
                    end[name] = progress[name].next
            if not all(progress[name].passed for name in names):
                break
    return end


class ExchangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader in one long-lived process for each query. An offset is a cursor of all channels. A committed batch
    is acknowledged, and its files are deleted.

    The reader claims the next incarnation of all consumers at its start: the acknowledgement of an earlier stream,
    whose driver was thought dead, is refused. The tasks read without a claim, because Spark may run one twice.
    """

    def __init__(self, layout: ExchangeLayout, schema: StructType) -> None:
        self._layout = layout
        self._schema = arrow_schema(schema)
        self._target: dict[str, int] | None = None
        self._seen: dict[str, int] = {}  # end of the last planned batch, as in LogStreamReader
        self._open_client: ExchangeClient | None = None
        self._incarnations: dict[str, int] | None = None  # of the consumers, once they are claimed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_client": None, "_incarnations": None}

    def initialOffset(self) -> dict[str, int]:
        freeze_loaded_objects()
        self._layout.declare(self._client())
        self._claim()
        return {}

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:
        freeze_loaded_objects()
        self._claim()
        start = start or self._seen
        end = deliverable(self._layout, self._client().progress, start)
        return end if self._target is None else {**start, **self._target}

    def prepareForTriggerAvailableNow(self) -> None:
        self._layout.declare(self._client())
        self._claim()
        self._target = deliverable(self._layout, self._client().progress, {})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        freeze_loaded_objects()
        self._claim()
        self._seen = end
        reads: list[InputPartition] = []
        for consumer in range(self._layout.consumers):
            begin, stop = self._layout.cursor(consumer, start), self._layout.cursor(consumer, end)
            if begin != stop:
                reads.append(ConsumerPartition(ConsumerRead(self._layout, consumer, self._schema, begin, stop)))
        return reads

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ConsumerPartition):  # Spark passes a partition of its own for an empty batch.
            return iter(())
        return partition.consumer_read.read()

    def commit(self, end: dict[str, int]) -> None:
        freeze_loaded_objects()
        incarnations = self._claim()
        for consumer in range(self._layout.consumers):
            name = str(consumer)
            self._client().acknowledge(name, incarnations[name], self._layout.cursor(consumer, end))

    def stop(self) -> None:
        if self._open_client is not None:
            self._open_client.close()

    def _claim(self) -> dict[str, int]:
        """Return the incarnation of each consumer; the first call claims them."""
        if self._incarnations is None:
            self._incarnations = self._client().claim(map(str, range(self._layout.consumers)))
        return self._incarnations

    def _client(self) -> ExchangeClient:
        if self._open_client is None:
            self._open_client = self._layout.connect()
        return self._open_client
