"""A batch as the bytes of a file, and back: Arrow IPC files of one record batch, not compressed.

The same values always give the same bytes (canonical.py), so the checksum of the file says whether two batches are the
same, on the wire, on disk and at the consumer. A dictionary is a value of its own: in another order it is another one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidInput, LimitExceeded
from .canonical import canonical
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


def decoded(data: pa.Buffer, *, aligned: bool = False) -> pa.RecordBatch:
    """The batch of a file whose checksum was compared. aligned: what lies where its type may not is copied."""
    alignment = pa.ipc.Alignment.DataTypeSpecific if aligned else pa.ipc.Alignment.Any
    with pa.ipc.open_file(data, options=pa.ipc.IpcReadOptions(ensure_alignment=alignment)) as reader:
        return reader.get_batch(0)


def _too_large(size: int) -> LimitExceeded:
    return LimitExceeded(f"a batch has {size:,} bytes; {MAX_BATCH:,} are the most. Push it in several")
