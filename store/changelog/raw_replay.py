"""Replays a log as it lies in its files: their record batches, decoded and no more, the change columns beside them.

What a segment holds of a log epoch is in key order already, each key once. So where an epoch has one segment its rows
are neither compared nor copied; columns that say the same in every row are made once and shared by all batches.
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
"""Epochs of fewer rows are gathered into batches worth sending."""


def replay(plan: LogPlan, files: Files, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the plan without old images, as its `batches` does, but in batches of another size."""
    schema = plan.schema(columns)
    return _replayed(plan, files, columns, schema)


def _replayed(
    plan: LogPlan, files: Files, columns: Sequence[str] | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for as_it_lies, groups in groupby(plan.groups, lies_ready):
        if as_it_lies:
            for group in groups:
                yield from _of(plan, files, group, schema)
        else:
            yield from replace(plan, groups=tuple(groups)).batches(files, options=ReadOptions(columns))


def lies_ready(group: LabelGroup) -> bool:
    """Return True if the log epoch has one file, of at least WORTH_ROWS rows, whose record batches can be given out as
    they are.
    """
    return len(group.segments) == 1 and group.segments[0].rows >= WORTH_ROWS


def _of(plan: LogPlan, files: Files, group: LabelGroup, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    (segment,) = group.segments
    reader = SegmentReader(files, segment, plan.table, KeyCodec(plan.table.schema, plan.table.primary_key))
    same = change_columns(UPSERT, np.full(min(BATCH_ROWS, segment.rows), group.label))
    names = schema.names[: -len(same)]

    def changes(batch: pa.RecordBatch) -> pa.RecordBatch:
        kinds, *epoch = (column.slice(0, batch.num_rows) for column in same)
        deleted = marks(pa.chunked_array([batch.column(OP)])) if OP in batch.schema.names else None
        if deleted is not None:
            kinds = change_kinds(deleted)
        rows = [batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays([*rows, kinds, *epoch], schema=schema)

    return map(changes, reader.batches(names))  # which holds nothing of a block once it was given out
