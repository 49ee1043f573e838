"""Progress of packing the records of a table's commits, as one process knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackedThrough:
    """Place up to which the commits of a table are packed, or stay as they are."""

    epoch: int = -1
    unmerged: int | None = None
    """Number of the newest packs that no larger one has taken in; None: not counted yet."""

    def with_pack(self, epoch: int, newer: int | None) -> PackedThrough:
        """Return the progress after a pack that ends with this epoch. newer: the number of packs after those that it
        replaces; None: it replaces single commits.
        """
        return PackedThrough(max(self.epoch, epoch), (self.unmerged or 0) + 1 if newer is None else newer)

    def past(self, epoch: int, newer: int | None) -> PackedThrough:
        """Return the progress past records that cannot be packed. newer: that of `with_pack`."""
        return PackedThrough(max(self.epoch, epoch), self.unmerged if newer is None else newer)
