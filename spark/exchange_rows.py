"""Rows of a staged exchange in the schema that a frame gives: columns of a batch by name, and columns of its place."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import SchemaMismatch

from .types import to_spark

STAGE_COLUMNS = {"_stage": pa.int64(), "_channel": pa.string(), "_sequence": pa.int64()}
"""Columns that a frame may name in its schema: the stage of a row's batch, its channel and its sequence."""


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Place of one batch in its query."""

    stage: int
    channel: str
    seq: int


def to_frame(batch: pa.RecordBatch, place: BatchPlace, schema: pa.Schema) -> pa.Table:
    """Return a batch in the frame's schema (see `types.arrow_schema`), with nulls for columns that the batch lacks.
    Raises SchemaMismatch for a value that does not fit.
    """
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = dict(zip(STAGE_COLUMNS, (place.stage, place.channel, place.seq), strict=True))
    columns = [
        pa.repeat(pa.scalar(values[field.name], STAGE_COLUMNS[field.name]), batch.num_rows)
        if field.name in STAGE_COLUMNS
        else given[field.name]
        if field.name in given
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:
            raise SchemaMismatch(
                f"channel {place.channel}, column {field.name!r}: sequence {place.seq} lacks it or has nulls in it, "
                "and the schema of the read says NOT NULL; declare it nullable"
            )
    return to_spark(f"of channel {place.channel}", pa.table(columns, names=schema.names), schema)
