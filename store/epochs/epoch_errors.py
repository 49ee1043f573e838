"""Explanations and errors for one table that cannot be read at an epoch (pure). The module imports little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.errors import EpochExpired, EpochNotCommitted
from epochlog.store.types.epoch import show_epoch, show_span, to_unix_ms

if TYPE_CHECKING:
    from .table_epochs import TableEpochs

KEEP_EPOCHS = (
    "tag the epochs where the store may be written (store.tag, or `epochlog tag`) and read store.snapshot(tag=…), or "
    "let the tables keep their history for longer there (TableOptions(history_retention=…))"
)
"""Advice for a reader of old epochs. It holds in a store that is opened read-only too, which keeps nothing itself."""


def distance(low: int, high: int) -> str:
    """Return the time between two epochs in words: `2 ms`, `3.2 s`."""
    ms = to_unix_ms(high) - to_unix_ms(low)
    return show_span(ms) if ms else "less than 1 ms"


def explain_expired(table: TableEpochs, epoch: int) -> str:
    """Explain that retention has removed the rows at the epoch, or that the table did not exist yet; else return ""."""
    safe = table.safe_epoch
    if epoch < table.root_begin:
        return (
            f"{table.name} was created at {show_epoch(table.created)}; {show_epoch(epoch)} is "
            f"{distance(epoch, table.created)} before that"
        )
    if table.keeps(epoch):
        return ""
    return (
        f"retention has removed the history of {table.name} below epoch {show_epoch(safe)}; {show_epoch(epoch)} is "
        f"{distance(epoch, safe)} below"
    )


def expired(name: str, epoch: int, safe_epoch: int) -> EpochExpired:
    """Return the error for an epoch of a table below its safe epoch."""
    return EpochExpired(
        f"{name} at {show_epoch(epoch)}: its history below {show_epoch(safe_epoch)} has been released, "
        f"{distance(epoch, safe_epoch)} later. Read at {show_epoch(safe_epoch)} or later; to read old epochs, "
        f"{KEEP_EPOCHS}"
    )


def require_begun(table: TableEpochs, epoch: int, *, zero: bool = True) -> None:
    """Raise EpochNotCommitted for an epoch before the creation of the table. zero: let epoch 0 pass, at which a table
    reads as one without a commit.
    """
    if (epoch or not zero) and epoch < table.begin:
        raise EpochNotCommitted(
            f"table {table.name!r} was created at {show_epoch(table.begin)}; {show_epoch(epoch)} is "
            f"{distance(epoch, table.begin)} before that. "
            f"Read at epoch {show_epoch(table.begin)} or later"
        )
