"""Sizes of rows in memory, in bytes: of fixed widths from the types, of varying widths from the values (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

Sizes = dict[str, tuple[int, ...]]
"""Bytes of a file's blocks in each column of varying width. Columns past the first MOST_NAMED are one entry, OTHERS."""
MOST_NAMED = 16
OTHERS = ""

_T = pa.types


def fixed_bytes(kind: pa.DataType) -> int | None:
    """Return the bytes of one value of a fixed-width type; None for other types."""
    if _T.is_nested(kind):
        return None
    try:
        return -(-kind.bit_width // 8)
    except ValueError:
        return 0 if _T.is_null(kind) else None


def split_widths(fields: Iterable[pa.Field]) -> tuple[int, list[str]]:
    """Return the total bytes of a row's fixed-width columns, and the names of the other columns."""
    widths = {field.name: fixed_bytes(field.type) for field in fields}
    return sum(width or 0 for width in widths.values()), [name for name, width in widths.items() if width is None]


def block_sizes(table: pa.Table, starts: Sequence[int]) -> Sizes:
    """Return the bytes of each block in the columns of varying width. starts: the first row of each block."""
    names = split_widths(table.schema)[1]
    groups = {name: [name] for name in names[:MOST_NAMED]}
    if len(names) > MOST_NAMED:
        groups[OTHERS] = names[MOST_NAMED:]
    spans = list(pairwise([*starts, len(table)]))
    return {
        name: tuple(table.select(group).slice(low, high - low).nbytes for low, high in spans)
        for name, group in groups.items()
    }


def varying_bytes(sizes: Sizes, names: Iterable[str], blocks: int) -> list[int]:
    """Return the bytes of each block in the varying-width columns among `names`."""
    counted = {name if name in sizes else OTHERS for name in names} & sizes.keys()
    return [sum(sizes[name][block] for name in counted) for block in range(blocks)]


def bounded_slices(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most `rows` rows and `size` bytes; a single row may be larger."""
    if batch.num_rows <= 1 or (batch.num_rows <= rows and batch.nbytes <= size):
        yield batch
        return
    count = min(rows, -(-batch.num_rows // max(1, -(-batch.nbytes // size))))
    for start in range(0, batch.num_rows, count):
        yield from bounded_slices(batch.slice(start, count), rows, size)


def row_bytes(table: pa.Table) -> np.ndarray:
    """Return the bytes of each row, as float64."""
    total = np.zeros(len(table))
    for column in table.columns:
        chunks = [_value_bytes(chunk) for chunk in column.chunks]
        total += np.concatenate(chunks) if chunks else 0.0
    return total


def _value_bytes(values: pa.Array) -> np.ndarray:
    width = fixed_bytes(values.type)
    if width is not None:
        return np.full(len(values), float(width))
    kind = values.type
    if _T.is_struct(kind):
        return sum((_value_bytes(child) for child in values.flatten()), np.zeros(len(values)))
    if _T.is_fixed_size_list(kind) or not len(values):
        return np.full(len(values), values.nbytes / max(1, len(values)))
    wide = _T.is_large_list(kind) or _T.is_large_string(kind) or _T.is_large_binary(kind)
    raw = values.buffers()[1]  # offsets; the items of lists are estimated at their mean size
    offsets = np.frombuffer(raw, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(offsets).astype(float)
    if _T.is_list(kind) or _T.is_large_list(kind) or _T.is_map(kind):
        items = lengths.sum()
        lengths *= (values.nbytes - offsets.itemsize * len(values)) / items if items else 0.0
    return lengths + offsets.itemsize
