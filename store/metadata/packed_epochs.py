"""Commits of a pack: one file of a table's log that has the changes of several commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .commit_columns import pack_columns, unpack_columns

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
        return pack_columns(self.epochs, [getattr(self, name) for name in PACKED[1:]])

    @classmethod
    def from_bytes(cls, data: bytes, count: int) -> PackedEpochs:
        """Decode `count` commits. Raises ValueError."""
        return cls(*unpack_columns(data, count, len(PACKED) - 1))
