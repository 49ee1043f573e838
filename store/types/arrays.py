"""Arrow arrays of plain values, and their numpy arrays. pyarrow's own conversions import pandas; these do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_TYPES = {
    np.dtype(code): pa.from_numpy_dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}


def from_numpy(values: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array of numbers or bools. Numbers that are contiguous are not copied. missing: bool[values],
    True for a null.
    """
    count = len(values)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if values.dtype == np.bool_:
        kind, values = pa.bool_(), np.packbits(values, bitorder="little")
    else:
        kind, values = _TYPES[values.dtype], np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)])


def from_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return an array of binary, or of strings in UTF-8, without nulls."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def to_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the values of a column of numbers or bools that has no null. The numbers of an array are not copied, and
    cannot be written.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        raise pa.ArrowInvalid(f"a column of {array.type} with nulls has no numpy array")
    if not pa.types.is_boolean(array.type):
        return np.from_dlpack(array)
    bits, skipped = np.frombuffer(array.buffers()[1], np.uint8), array.offset & 7
    bits = bits[array.offset >> 3 :]
    return np.unpackbits(bits, count=skipped + len(array), bitorder="little")[skipped:].view(np.bool_)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table of these columns without rows."""
    return pa.Table.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


(ZERO,), (FALSE,) = from_numpy(np.zeros(1, np.int64)), from_numpy(np.zeros(1, np.bool_))
