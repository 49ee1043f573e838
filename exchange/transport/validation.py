"""Validation of record batches and IPC files of untrusted clients, before their values are used.

A fault raises a typed error, BadMessage for bytes that no Arrow writer makes and LimitExceeded for too many rows or
bytes, before memory is allocated for it. Every batch is validated in full: a million rows with strings, dictionaries
and lists take six milliseconds, a tenth of the time of their decompression.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import BadMessage, InvalidInput, LimitExceeded
from epochlog.store.types.schema import MAX_COLUMN_NAME_BYTES, MAX_COLUMNS

from .ipc_footer import MAX_VALUES, Claims, WrongClaim, file_claims

MAX_DEPTH = 32
"""Nested levels of lists, structs and maps."""
MAX_FIELDS = 10_000
"""Columns and their nested fields."""
MAX_SCHEMA_BYTES = 4 << 20

_T = pa.types


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bounds of one record batch, or of one file: rows, and bytes in memory. A value counts as often as it occurs, also
    in a dictionary or a view, which stores it once.
    """

    rows: int = 1 << 24
    bytes: int = 1 << 28


BOUNDS = BatchBounds()


def check_schema(schema: pa.Schema) -> None:
    """Check the schema of an untrusted client. Raises LimitExceeded, BadMessage, and InvalidInput for unsupported
    types.
    """
    if len(schema) > MAX_COLUMNS:
        raise LimitExceeded(f"{len(schema)} columns are more than {MAX_COLUMNS}")
    with decoding("the schema"):
        pending = [(field, 1) for field in schema]
        fields = 0
        while pending:
            field, depth = pending.pop()
            fields += 1
            if len(field.name.encode()) > MAX_COLUMN_NAME_BYTES:
                raise LimitExceeded(
                    f"the column name {field.name[:40]!r}… is longer than {MAX_COLUMN_NAME_BYTES} bytes"
                )
            if depth > MAX_DEPTH or fields > MAX_FIELDS:
                raise LimitExceeded(f"the schema has more than {MAX_DEPTH} levels of nesting, or {MAX_FIELDS} fields")
            reason = _refusal_reason(field.type)
            if reason:
                raise InvalidInput(f"column {field.name[:80]!r} has type {str(field.type)[:80]}: {reason}")
            pending += [(field.type.field(index), depth + 1) for index in range(field.type.num_fields)]
        size = schema.serialize().size
    if size > MAX_SCHEMA_BYTES:
        raise LimitExceeded(f"the schema with its metadata has {size} bytes, more than {MAX_SCHEMA_BYTES}")


def check_batch(batch: pa.RecordBatch, bounds: BatchBounds = BOUNDS) -> None:
    """Check that a batch is valid at every level and within bounds. Check its schema first.

    Raises LimitExceeded and BadMessage. Do not use the values before this has passed: Arrow's results for invalid
    offsets are undefined.
    """
    if batch.num_rows > bounds.rows:
        raise LimitExceeded(f"{batch.num_rows} rows in one batch are more than {bounds.rows}; send smaller batches")
    with decoding("a record batch"):
        size = batch.get_total_buffer_size()
        if size <= bounds.bytes:
            batch.validate(full=True)
            size = sum(_expanded_bytes(column) for column in batch.columns)
    if size > bounds.bytes:
        raise LimitExceeded(f"{size} bytes in one batch are more than {bounds.bytes}; send smaller batches")


def check_file(data: bytes | pa.Buffer, bounds: BatchBounds = BOUNDS) -> Claims:
    """Check that an IPC file's claims fit its bytes and the bounds, and return the claims. Decodes the schema only.

    Raises LimitExceeded, BadMessage, InvalidInput.
    """
    try:
        claims = file_claims(memoryview(data))
    except WrongClaim as error:
        raise BadMessage(f"this is not an Arrow IPC file: {error}") from None
    if claims.rows > bounds.rows or claims.decoded > bounds.bytes:
        raise LimitExceeded(
            f"{claims.rows} rows and {claims.decoded} bytes in one file are more than {bounds.rows} or {bounds.bytes}; "
            "send smaller batches"
        )
    with decoding("an IPC file"):
        check_schema(pa.ipc.open_file(data).schema)
    return claims


def read_file(data: bytes | pa.Buffer, bounds: BatchBounds = BOUNDS) -> pa.Table:
    """Decode and check an IPC file's content. Raises LimitExceeded, BadMessage, InvalidInput."""
    check_file(data, bounds)
    with decoding("an IPC file"):
        reader = pa.ipc.open_file(data, options=pa.ipc.IpcReadOptions(use_threads=False))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    for batch in batches:
        check_batch(batch, bounds)
    return pa.Table.from_batches(batches, reader.schema)


@contextmanager
def decoding(subject: str) -> Iterator[None]:
    """Convert Arrow's errors about a client's bytes into BadMessage, failed allocations included. subject: names the
    bytes in the message.
    """
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, OverflowError) as error:
        first_line = str(error).partition("\n")[0][:300]
        raise BadMessage(f"{subject} cannot be decoded: {first_line or type(error).__name__}") from None


def _refusal_reason(kind: pa.DataType) -> str | None:
    """Return the reason for refusing columns of this type; None for an accepted type. In a refused type a few bytes
    can stand for any number of values, or for code.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return f"it is an extension type; send its storage type {str(kind.storage_type)[:80]}"
    if _T.is_run_end_encoded(kind):
        return f"send its value type {str(kind.value_type)[:80]}"
    if _T.is_list_view(kind) or _T.is_large_list_view(kind):
        return "list views are not accepted; send lists"
    if _T.is_union(kind):
        return "unions are not accepted; send a struct"
    if _T.is_dictionary(kind) and (kind.value_type.num_fields or _T.is_dictionary(kind.value_type)):
        return "dictionaries of nested values are not accepted; send the nested values themselves"
    return None


def _expanded_bytes(array: pa.Array) -> int:
    """Return the bytes of a valid array after expansion: each value counts at each of its occurrences."""
    kind = array.type
    if len(array) > MAX_VALUES:
        raise LimitExceeded(f"an array has {len(array)} values, more than {MAX_VALUES}")
    if _T.is_dictionary(kind):
        return _expanded_dictionary_bytes(array)
    if _is_view(kind):
        return 16 * len(array) + int(_view_lengths(array).sum())
    if _T.is_null(kind):
        return 8 * len(array)  # after a cast to the type of a table's column; before it, none
    count = 1 if _T.is_struct(kind) else 2 if kind.num_fields else None  # the buffers of nested arrays follow
    size = sum(buffer.size for buffer in array.buffers()[:count] if buffer is not None)
    return size + sum(_expanded_bytes(child) for child in _children(array))


def _expanded_dictionary_bytes(array: pa.DictionaryArray) -> int:
    kind = array.type.value_type
    if _is_view(kind):
        lengths = pa.array(_view_lengths(array.dictionary))
    elif _T.is_string(kind) or _T.is_binary(kind) or _T.is_large_string(kind) or _T.is_large_binary(kind):
        lengths = pc.cast(pc.binary_length(array.dictionary), pa.int64())
    else:
        return len(array) * (8 if _T.is_null(kind) else -(-kind.bit_width // 8))
    return 4 * len(array) + (pc.sum(lengths.take(array.indices)).as_py() or 0)


def _is_view(kind: pa.DataType) -> bool:
    return _T.is_string_view(kind) or _T.is_binary_view(kind)


def _view_lengths(array: pa.Array) -> np.ndarray:
    """Return the lengths of views, 0 for nulls; a view begins with its length in four bytes."""
    _, views, *_ = array.buffers()
    if views is None or not len(array):
        return np.zeros(0, np.int64)
    lengths = np.frombuffer(views, np.int32)[4 * array.offset :: 4][: len(array)].astype(np.int64)
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _children(array: pa.Array) -> list[pa.Array]:
    """Return the child arrays of a nested array; none for a flat one."""
    kind = array.type
    if _T.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if _T.is_map(kind):
        return [array.keys, array.items]
    return [array.values] if kind.num_fields else []
