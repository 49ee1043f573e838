"""Codec of a batch as the bytes of a file: Arrow IPC files of one record batch, not compressed.

Equal values always give equal bytes (ipc_canonical.py), so the checksum of the file tells two batches apart, on the
wire, on disk and at the consumer. A dictionary is a value of its own: in another order it is another one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, LimitExceeded

from .ipc_canonical import canonical
from .messages import MAX_BATCH

_FILE = 1 << 12
"""Bytes of an IPC file that are not its batch's, about; the schema comes twice."""


def as_batch(data: Any) -> pa.RecordBatch:
    """Convert a RecordBatch, a Table, or anything that Arrow can read as one, into one record batch. Raises
    InvalidInput, and LimitExceeded for a table that does not fit into one batch.
    """
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
    """Encode a batch as the bytes of its file. Raises LimitExceeded above MAX_BATCH."""
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
    """Decode the batch of a file whose checksum was compared. aligned: copy buffers that are not aligned as their type
    needs.
    """
    alignment = pa.ipc.Alignment.DataTypeSpecific if aligned else pa.ipc.Alignment.Any
    with pa.ipc.open_file(data, options=pa.ipc.IpcReadOptions(ensure_alignment=alignment)) as reader:
        return reader.get_batch(0)


def _too_large(size: int) -> LimitExceeded:
    return LimitExceeded(f"a batch has {size:,} bytes; {MAX_BATCH:,} are the most. Push it in several")
