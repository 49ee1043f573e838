"""Codec between a batch and the bytes of its file, an uncompressed Arrow IPC file of one record batch.

Equal values always give equal bytes (ipc_canonical.py), so the checksum of the file identifies the batch on the wire,
on disk and at the consumer. The order of a dictionary counts as content.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, LimitExceeded

from .ipc_canonical import canonical
from .messages import MAX_BATCH


def as_batch(data: Any) -> pa.RecordBatch:
    """Convert a RecordBatch, a Table, or any input of `pa.table` into one record batch. Raises InvalidInput, and
    LimitExceeded for a table that does not fit into one batch.
    """
    if isinstance(data, pa.RecordBatch):
        return data
    try:
        table = data if isinstance(data, pa.Table) else pa.table(data)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"a batch is a pyarrow RecordBatch or Table, or can be read as one: {error}") from None
    if len(batches) > 1:
        raise LimitExceeded("the table does not fit into one record batch; push it in several batches")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
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


def decode_batch(data: pa.Buffer, *, aligned: bool = False) -> pa.RecordBatch:
    """Decode the batch of a file. Compare its checksum first. aligned: copy buffers that lack the alignment of their
    type.
    """
    alignment = pa.ipc.Alignment.DataTypeSpecific if aligned else pa.ipc.Alignment.Any
    with pa.ipc.open_file(data, options=pa.ipc.IpcReadOptions(ensure_alignment=alignment)) as reader:
        return reader.get_batch(0)


def _too_large(size: int) -> LimitExceeded:
    return LimitExceeded(f"a batch has {size:,} bytes; at most {MAX_BATCH:,} are accepted. Push it in several batches")
