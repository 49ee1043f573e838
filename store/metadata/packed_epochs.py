"""Commits of a pack: one file of a table's log that has the changes of several commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

MOST_PACKED = 4_096
"""Largest number of commits of a pack."""
PACKED = ("epochs", "rows", "deletes", "images", "segments", "committed_rows", "committed_deletes", "bytes")
"""Columns of a pack's record, in the order of their values there."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedEpochs:
    """Commits of a pack, or of a part of one, oldest first: int64 arrays of one length. Each commit has one log epoch,
    its own. Some commits have no rows.
    """

    epochs: np.ndarray
    rows: np.ndarray
    """Changes in the pack's file, each key once."""
    deletes: np.ndarray
    """Number of these that are deletes."""
    images: np.ndarray
    """Rows in the file of pre-images."""
    segments: np.ndarray
    """Files as committed, without those of pre-images."""
    committed_rows: np.ndarray
    """Rows of these files; above `rows` if one had keys of another."""
    committed_deletes: np.ndarray
    bytes: np.ndarray
    """Bytes of these files."""

    def __len__(self) -> int:
        return len(self.epochs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedEpochs):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in PACKED)

    def __post_init__(self) -> None:
        for name in PACKED:  # the values of records are shared by all that have decoded them
            getattr(self, name).flags.writeable = False

    def __reduce__(self) -> tuple[Callable[..., PackedEpochs], tuple[bytes, int]]:
        """Pickle the columns compressed: a plan of a read goes to each of Spark's tasks."""
        return PackedEpochs.from_bytes, (self.to_bytes(), len(self))

    def slice(self, first: int, end: int) -> PackedEpochs:
        return PackedEpochs(*(getattr(self, name)[first:end] for name in PACKED))

    def span(self, after: int, until: int) -> tuple[int, int]:
        """Return the places [first, end) of the commits in (after, until]."""
        first, end = (int(self.epochs.searchsorted(epoch, "right")) for epoch in (after, until))
        return first, max(first, end)

    def to_bytes(self) -> bytes:
        """Encode the columns: differences of the epochs, then the other columns as they are, compressed."""
        columns = [np.diff(self.epochs, prepend=0), *(getattr(self, name) for name in PACKED[1:])]
        return zstandard.compress(b"".join(column.astype("<i8").tobytes() for column in columns))

    @classmethod
    def from_bytes(cls, data: bytes, count: int) -> PackedEpochs:
        """Decode `count` commits. Raises ValueError."""
        size = 8 * count * len(PACKED)
        try:
            plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not 0 < count <= MOST_PACKED or len(plain) != size:
            raise ValueError(f"{len(plain)} bytes for {count} commits of a pack")
        differences, *others = np.frombuffer(plain, "<i8").reshape(len(PACKED), count).astype(np.int64)
        columns = [np.cumsum(differences), *others]
        if (differences <= 0).any() or any((column < 0).any() for column in others):
            raise ValueError("epochs of a pack that do not rise, or a negative number")
        return cls(*columns)
