"""Replay of a log from the record batches of its files, decoded without a merge, with change columns added.

A segment holds the changes of a log epoch in key order, each key once. So the rows of an epoch with one segment are
neither compared nor copied. Change columns that are constant over all rows are made once and shared by all batches.
Decoding runs in Arrow, without the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.metadata.version import LabelGroup
from epochlog.store.sst.data_file import OP, marks
from epochlog.store.sst.segment import BATCH_ROWS, SegmentReader
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.read_options import ReadOptions

from .change_rows import UPSERT, change_columns, change_kinds
from .log_plan import LogPlan

WORTH_ROWS = 1 << 14
"""Smallest number of rows of an epoch that is replayed by itself; smaller epochs are gathered into larger batches."""


def replay(plan: LogPlan, files: Files, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the plan without pre-images, in the order of `LogPlan.batches` but in other batch sizes."""
    schema = plan.schema(columns)
    return _replay_groups(plan, files, columns, schema)


def _replay_groups(
    plan: LogPlan, files: Files, columns: Sequence[str] | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for single_file, groups in groupby(plan.groups, is_single_file):
        if single_file:
            for group in groups:
                yield from _replay_file(plan, files, group, schema)
        else:
            yield from replace(plan, groups=tuple(groups)).batches(files, options=ReadOptions(columns))


def is_single_file(group: LabelGroup) -> bool:
    """Return True if the log epoch has one file, of at least WORTH_ROWS rows, whose record batches can be returned
    without a merge.
    """
    return group.packed is None and len(group.segments) == 1 and group.segments[0].rows >= WORTH_ROWS


def _replay_file(plan: LogPlan, files: Files, group: LabelGroup, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    (segment,) = group.segments
    reader = SegmentReader(files, segment, plan.table, KeyCodec(plan.table.schema, plan.table.primary_key))
    constant_columns = change_columns(UPSERT, np.full(min(BATCH_ROWS, segment.rows), group.label))
    names = schema.names[: -len(constant_columns)]

    def changes(batch: pa.RecordBatch) -> pa.RecordBatch:
        kinds, *epoch = (column.slice(0, batch.num_rows) for column in constant_columns)
        deleted = marks(pa.chunked_array([batch.column(OP)])) if OP in batch.schema.names else None
        if deleted is not None:
            kinds = change_kinds(deleted)
        rows = [batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays([*rows, kinds, *epoch], schema=schema)

    return map(changes, reader.batches(names))  # the reader keeps no reference to a returned block
