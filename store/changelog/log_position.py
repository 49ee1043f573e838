"""Readable part of a table's log after a position, and the number of commits truncated unread."""

from __future__ import annotations

from dataclasses import dataclass

from epochlog.errors import EpochExpired, LogTruncated
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.epoch_errors import KEEP_EPOCHS
from epochlog.store.metadata.commit_log import commit_arrays
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_version
from epochlog.store.types.epoch import show_epoch

SNAPSHOT = "snapshot"
"""Start of a log reader that reads the table's rows first."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Readable part of a log for a reader that has all changes through `wanted`: the log after `after`, at or above
    `wanted`.
    """

    table: TableDef
    wanted: int
    after: int
    lost: int = 0
    """Lower bound of the number of commits with changes that were truncated between the two."""

    def truncated(self, advice: str) -> LogTruncated:
        """Return the error that reports the commits truncated unread, with `advice` as its last sentence."""
        return LogTruncated(
            f"the log of {self.table.name!r} begins after epoch {show_epoch(self.after)}, and {self.lost} commits or "
            f"more after epoch {self.wanted} were truncated unread. {advice}"
        )


def reach(view: ReadTxn, table: TableDef, after: int) -> Reach:
    """Return the readable part of the log after `after`; it begins at the truncation mark if that lies above."""
    version = get_version(view, table.id, table.name)
    mark = version.log_start
    if after >= mark:
        return Reach(table, after, after)
    _, changed = commit_arrays(view, table.id, after, mark)
    unrecorded = after < version.known_from  # their records are deleted too: there was at least one
    return Reach(table, after, mark, int(changed.sum()) + unrecorded)


def require_states(view: ReadTxn, table_id: int, name: str, after: int, instead: str) -> None:
    """Raise EpochExpired if `after` lies below the safe epoch, so that pre-images past it cannot be looked up. instead:
    another start, for the message.
    """
    version = get_version(view, table_id, name)
    if not version.keeps(after):
        safe = version.safe_epoch
        raise EpochExpired(
            f"table {name!r}: retention has removed its rows before epoch {show_epoch(safe)}, so changes past "
            f"{show_epoch(after)} have no pre-images. Read without them, or begin with {instead}; to read them after "
            f'old epochs, {KEEP_EPOCHS}, or let them store the pre-images of later commits (changelog="full")'
        )
