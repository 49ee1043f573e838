"""A batch as the bytes of a file, and back: Arrow IPC files of one record batch, not compressed.

The same values always give the same bytes: what lies beneath nulls, and behind the last bit of a bitmap, is set to
zeros first. So the checksum of the file says whether two batches are the same, on the wire, on disk and at the
consumer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidInput, LimitExceeded
from .wire import MAX_BATCH

_FILE = 1 << 12
"""Bytes of an IPC file that are not its batch's, about; the schema comes twice."""


def as_batch(data: Any) -> pa.RecordBatch:
    """One record batch of a RecordBatch, a Table, or anything that Arrow can read as one. Raises InvalidInput."""
    if isinstance(data, pa.RecordBatch):
        return data
    try:
        table = data if isinstance(data, pa.Table) else pa.table(data)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"a batch is a pyarrow RecordBatch or Table, or can be read as one: {error}") from None
    if len(batches) > 1:
        raise LimitExceeded("this table does not fit into one record batch; push it in several")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def encoded(batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of its file. Raises LimitExceeded above MAX_BATCH."""
    if batch.nbytes > MAX_BATCH:
        raise _too_large(batch.nbytes)
    batch = canonical(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    if data.size > MAX_BATCH:
        raise _too_large(data.size)
    return data


def decoded(data: pa.Buffer) -> pa.RecordBatch:
    """The batch of a file whose checksum was compared."""
    with pa.ipc.open_file(data) as reader:
        return reader.get_batch(0)


def _too_large(size: int) -> LimitExceeded:
    return LimitExceeded(f"a batch has {size:,} bytes; {MAX_BATCH:,} are the most. Push it in several")


# ---- one form for the same values ------------------------------------------------------------------------------------


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with zeros wherever bytes mean nothing; itself where there are no such bytes."""
    columns = [_canonical(column) for column in batch.columns]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _canonical(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        values = pc.fill_null(column, False) if column.null_count else column
        bits = _bits(values.cast(pa.uint8()).to_numpy(zero_copy_only=False))
        return pa.Array.from_buffers(kind, len(column), [_validity(column), bits], null_count=column.null_count)
    if not column.null_count or pa.types.is_null(kind):
        return column
    if _is_flat(kind):
        filled = pc.fill_null(column, _zero(kind))
        _, *buffers = filled.buffers()
        return (
            pa.Array.from_buffers(
                kind, len(column), [_validity(column), *buffers], null_count=column.null_count, offset=filled.offset
            )
            if filled.offset == 0
            else column
        )
    return column


def _is_flat(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_decimal(kind)
    ) and not pa.types.is_interval(kind)


def _zero(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    if pa.types.is_temporal(kind):
        return pa.scalar(0, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.scalar(0, pa.int8()).cast(kind)


def _validity(column: pa.Array) -> pa.Buffer | None:
    if not column.null_count:
        return None
    return _bits(column.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False))


def _bits(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little").tobytes())
