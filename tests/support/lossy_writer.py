"""A writer of run files that loses one nested value, in this process or in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa

from epochlog.spark import compaction
from epochlog.store.sst import sorted_run

INNER = pa.struct([pa.field("l", pa.list_(pa.int32()))])
NESTED = pa.schema([("id", pa.int64()), ("v", INNER)])
_rewrite_task = compaction._rewrite_task


def nested_rows(count: int) -> pa.Table:
    values = [{"l": [i, None]} for i in range(count)]
    return pa.table([pa.array(range(count)), pa.array(values, INNER)], schema=NESTED)


def losing(*rows: int) -> Any:
    """A context in which the writer loses the item of the list in these rows of `v`."""
    write = sorted_run._in_parquet_types

    def write_less(table: pa.Table) -> pa.Table:
        values = table.column("v").to_pylist()
        for row in rows:
            values[row]["l"][0] = None
        return write(table.set_column(1, table.schema.field("v"), pa.array(values, INNER)))

    return mock.patch.object(sorted_run, "_in_parquet_types", write_less)


def rewrite_task(rewriter: Any, target: Any, numbers: Sequence[int], places: Iterator[pa.RecordBatch]) -> Any:
    """The task of a compaction, in which the writer loses a value of each file."""
    task: Callable[..., Iterator[pa.RecordBatch]] = _rewrite_task
    with losing(7):
        yield from task(rewriter, target, numbers, places)
