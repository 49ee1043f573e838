"""Defaults of added columns: the value that a column has in rows which were written without it, and its encoding."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from .arrays import from_numpy
from .coerce import conform_table


def encoded_default(table: str, field: pa.Field, value: object) -> bytes:
    """Encode a value for a column as an IPC stream of one row. Raises SchemaMismatch for one that the column cannot
    hold.
    """
    row = conform_table(table, [{field.name: value}], pa.schema([field.with_nullable(True)]), ())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return sink.getvalue().to_pybytes()


@lru_cache(256)
def decoded_default(encoded: bytes) -> pa.Array:
    """Return the value as an array of one."""
    return pa.ipc.open_stream(encoded).read_all().column(0).combine_chunks()


def repeated(value: pa.Array, rows: int) -> pa.Array:
    """Return the value in each of these rows."""
    return value.take(from_numpy(np.zeros(rows, np.int64)))
