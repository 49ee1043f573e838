"""Sentences and refusals for one table that cannot be read at an epoch; pure, and cheap to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.errors import EpochNotCommitted
from epochlog.store.types.epoch import show_epoch, show_span, to_unix_ms

if TYPE_CHECKING:
    from .table_epochs import TableEpochs


def distance(low: int, high: int) -> str:
    """Return the time between two epochs in words: `2 ms`, `3.2 s`."""
    ms = to_unix_ms(high) - to_unix_ms(low)
    return show_span(ms) if ms else "less than 1 ms"


def explain_expired(table: TableEpochs, epoch: int) -> str:
    """Explain that the rows at the epoch are gone, or the table was not there yet; "" if neither is so."""
    safe = table.safe_epoch
    if epoch < table.root_begin:
        return (
            f"{table.name} was made at {show_epoch(table.created)}; {show_epoch(epoch)} is "
            f"{distance(epoch, table.created)} before that"
        )
    if epoch >= safe:
        return ""
    return (
        f"the history of {table.name} below epoch {show_epoch(safe)} has been let go; {show_epoch(epoch)} is "
        f"{distance(epoch, safe)} below"
    )


def require_begun(table: TableEpochs, epoch: int) -> None:
    """Raise EpochNotCommitted for an epoch before the table was there; 0 is no epoch, and reads as a table without a
    commit.
    """
    if epoch and epoch < table.begin:
        raise EpochNotCommitted(
            f"table {table.name!r} was made at {show_epoch(table.begin)}; {show_epoch(epoch)} is "
            f"{distance(epoch, table.begin)} before that. "
            f"Ask for epoch {show_epoch(table.begin)} or later"
        )
