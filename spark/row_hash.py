"""Hash partitioning of rows: equal values give equal consumers, in every process and for every width of an integer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput

_T = pa.types
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def split_by_hash(batch: pa.RecordBatch, columns: Sequence[str], count: int) -> list[pa.RecordBatch]:
    """Split a batch into `count` batches by the hash of columns, each in the order of the batch. Rows with equal values
    share a batch; nulls count as equal. Raises InvalidInput for a type without a hash.
    """
    if count == 1:
        return [batch]
    numbers = hash_rows(batch, columns) % np.uint64(count)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers.astype(np.int64), minlength=count))
    sorted_batch = batch.take(pa.array(order))
    return [sorted_batch.slice(end - size, size) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> np.ndarray:
    """Return a 64-bit hash of these columns for each row."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        hashes = _mix(hashes * _MULTIPLIER + _hash_column(name, batch.column(name)))
    return hashes


def refuse_unhashable(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise InvalidInput for a column that the schema lacks, or whose type has no hash."""
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(f"option partitionBy names {name!r}; the columns are {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (_is_integral(kind) or _is_text(kind)):
            raise InvalidInput(
                f"option partitionBy names {name!r}, of type {kind}, whose equal values may have different forms; cast "
                "it to an integer, string, binary, boolean, date or timestamp"
            )


def _is_integral(kind: pa.DataType) -> bool:
    return _T.is_integer(kind) or _T.is_boolean(kind) or _T.is_date32(kind) or _T.is_timestamp(kind)


def _is_text(kind: pa.DataType) -> bool:
    return _T.is_string(kind) or _T.is_large_string(kind) or _T.is_binary(kind) or _T.is_large_binary(kind)


def _hash_column(name: str, column: pa.Array) -> np.ndarray:
    if _is_text(column.type):
        return _hash_bytes(column)
    if _T.is_date32(column.type):
        column = column.cast(pa.int32())
    integers = pc.fill_null(column.cast(pa.int64()), 0)
    return _mix(integers.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) + np.uint64(1))


def _hash_bytes(column: pa.Array) -> np.ndarray:
    """Hash texts in words of eight bytes: one step for each word of the longest text, over the rows that reach it."""
    values = pc.fill_null(column.cast(pa.large_binary()), b"")
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data_bytes = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    padded = np.concatenate([data_bytes[offsets[0] : offsets[-1]], np.zeros(8, np.uint8)])
    starts, lengths = (offsets - offsets[0])[:-1], np.diff(offsets)
    hashes = _mix(lengths.astype(np.uint64))
    rows, done = np.flatnonzero(lengths > 0), 0
    while len(rows):
        left = np.minimum(lengths[rows] - done, 8)
        octets = padded[(starts[rows] + done)[:, None] + np.arange(8)]
        octets[np.arange(8) >= left[:, None]] = 0
        words = np.ascontiguousarray(octets).view("<u8").ravel().astype(np.uint64)
        hashes[rows] = _mix(hashes[rows] * _MULTIPLIER + words)
        done += 8
        rows = rows[lengths[rows] > done]
    return hashes


def _mix(values: np.ndarray) -> np.ndarray:
    """Return the finalizer of SplitMix64, so that each bit of a value changes half of the hash's bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
