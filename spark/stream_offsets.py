"""Offsets of a stream in a table's log, and limits of its batches (pure).

An offset is a small JSON map: the table's id with a log epoch, or with a symbolic start ("snapshot", "latest"). The
first batch resolves the symbol to an epoch, which Spark records in the query's offset log, so a replay of batch 0 reads
the recorded epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from epochlog.errors import InvalidInput, TableDropped
from epochlog.store.changelog.log_position import SNAPSHOT
from epochlog.store.env.whole_number import whole_number

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a stream."""

    table_id: int
    epoch: int = 0
    """Epoch through which the stream has read all changes."""
    start: str | None = None
    """Symbolic start; the stream has read nothing yet."""

    def to_json(self) -> dict[str, Any]:
        position: dict[str, Any] = {"epoch": self.epoch} if self.start is None else {"start": self.start}
        return {"table": self.table_id, **position}

    @classmethod
    def from_json(cls, offset: dict[str, Any], table_id: int, name: str) -> Offset:
        """Decode an offset. Raises TableDropped if it belongs to another table of this name."""
        if offset.get("table") != table_id:
            raise TableDropped(
                f"the query's checkpoint belongs to an earlier table {name!r} that was dropped; start the query with a "
                "new checkpoint"
            )
        return cls(table_id, offset.get("epoch", 0), offset.get("start"))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Upper limits of one batch; None is no limit. An epoch is never split, so a batch has at least one."""

    epochs: int | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def any(self) -> bool:
        return not (self.epochs is None and self.rows is None and self.bytes is None)

    def allow(self, epochs: int, rows: int, bytes: int) -> bool:
        pairs = ((self.epochs, epochs), (self.rows, rows), (self.bytes, bytes))
        return all(limit is None or used <= limit for limit, used in pairs)


@dataclass(frozen=True, slots=True)
class LogEpoch:
    """Log epoch with rows."""

    epoch: int
    rows: int
    bytes: int


def plan_until(log: Iterable[LogEpoch], after: int, limits: BatchLimits, target: int | None = None) -> int:
    """Return the last epoch of the next batch: as many epochs past `after` as the limits allow, at least one, and none
    past `target`. Returns `after` if the log has no such epoch.

    `log` yields epochs oldest first and is read no further than needed.
    """
    until, epochs, rows, size = after, 0, 0, 0
    for entry in log:
        if entry.epoch <= after:
            continue
        if target is not None and entry.epoch > target:
            break
        epochs, rows, size = epochs + 1, rows + entry.rows, size + entry.bytes
        if epochs > 1 and not limits.allow(epochs, rows, size):
            break
        until = entry.epoch
    return until


def parse_start(option: str | None) -> str | int | None:
    """Parse `startingVersion`: the first epoch to read, or one of earliest, latest, snapshot; None if it is not set.
    Raises InvalidInput.
    """
    if option is None or option.lower() in ("earliest", LATEST, SNAPSHOT):
        return None if option is None else option.lower()
    epoch = whole_number(option)
    if epoch is None:
        raise InvalidInput(f"option startingVersion must be an epoch, earliest, latest or snapshot, not {option!r}")
    return epoch
