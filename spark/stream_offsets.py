"""Offsets of a stream in a table's log, and limits of its batches (pure).

An offset is a small JSON map: the table's id with a log epoch, or with a symbolic start ("snapshot", "latest") that the
first batch turns into an epoch. So the choice is written to the query's own offset log, and a replay of batch 0 repeats
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from epochlog.errors import InvalidInput, TableDropped
from epochlog.store.changelog.log_position import SNAPSHOT

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Offset:
    """Position of a stream: all changes through `epoch` are behind it; or, with `start`, nothing is."""

    table_id: int
    epoch: int = 0
    start: str | None = None

    def to_json(self) -> dict[str, Any]:
        place: dict[str, Any] = {"epoch": self.epoch} if self.start is None else {"start": self.start}
        return {"table": self.table_id, **place}

    @classmethod
    def from_json(cls, offset: dict[str, Any], table_id: int, name: str) -> Offset:
        """Decode an offset. Raises TableDropped when it was made for another table of this name."""
        if offset.get("table") != table_id:
            raise TableDropped(
                f"this query's checkpoint belongs to an earlier table {name!r}, dropped since; start it with a "
                "new checkpoint"
            )
        return cls(table_id, offset.get("epoch", 0), offset.get("start"))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Upper limits of one batch; None is no limit. An epoch is never split, so a batch holds at least one."""

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
    """Return the last epoch of the next batch: as many epochs past `after` as the limits allow, none past `target`, at
    least one.

    `log` is read no further than needed, oldest first. Returns `after` itself when there is no epoch to take.
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


def parse_start(given: str | None) -> str | int | None:
    """Parse `startingVersion`: the first epoch to read, or one of earliest, latest, snapshot; None when it is not
    given. Raises InvalidInput.
    """
    if given is None or given.lower() in ("earliest", LATEST, SNAPSHOT):
        return None if given is None else given.lower()
    if not given.isdecimal():
        raise InvalidInput(f"option startingVersion must be an epoch, earliest, latest or snapshot, not {given!r}")
    return int(given)
