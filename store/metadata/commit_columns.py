"""Columns of catalog records that describe many commits: int64 arrays, compressed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zstandard

MOST_PACKED = 4_096
"""Largest number of commits of a record."""


def pack_columns(rising: np.ndarray, others: Sequence[np.ndarray]) -> bytes:
    """Encode int64 columns of one length: differences of the rising one, then the others as they are, compressed."""
    columns = [np.diff(rising, prepend=0), *others]
    return zstandard.compress(b"".join(column.astype("<i8").tobytes() for column in columns))


def unpack_columns(data: bytes, count: int, others: int) -> list[np.ndarray]:
    """Decode the columns of so many commits: the rising one and so many others, none with a negative value. Raises
    ValueError.
    """
    size = 8 * count * (others + 1)
    try:
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if not 0 < count <= MOST_PACKED or len(plain) != size:
        raise ValueError(f"{len(plain)} bytes for {count} commits")
    differences, *values = np.frombuffer(plain, "<i8").reshape(others + 1, count).astype(np.int64)
    if (differences <= 0).any() or any((column < 0).any() for column in values):
        raise ValueError("epochs that do not rise, or a negative number")
    return [np.cumsum(differences), *values]
