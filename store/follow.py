"""Where a follower stands in a table's log: what of it can still be read, and what was let go of unread."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import EpochExpired, LogTruncated
from .catalog import View
from .definitions import TableDef, get_version
from .epoch import show_epoch
from .records import hist_key


@dataclass(frozen=True, slots=True)
class Reach:
    """For one that has read all changes through `wanted`: the log can be read after `after`, and lies there or above.

    lost: how many commits with changes between the two were truncated; a lower bound.
    """

    table: TableDef
    wanted: int
    after: int
    lost: int = 0

    def truncated(self, advice: str) -> LogTruncated:
        """What to raise when something was lost."""
        return LogTruncated(
            f"the log of {self.table.name!r} begins after epoch {show_epoch(self.after)}, and {self.lost} commits or "
            "more after "
            f"epoch {self.wanted} were truncated unread. {advice}"
        )


def reach(view: View, table: TableDef, after: int) -> Reach:
    """How the log can be followed from `after` on: from there, or from the truncation mark if that lies above."""
    version = get_version(view, table.id, table.name)
    mark = version.log_start
    if after >= mark:
        return Reach(table, after, after)
    between = view.scan(hist_key(table.id, after + 1), hist_key(table.id, mark + 1))
    forgotten = after < version.known_from  # the commits up to there are forgotten: there was one at least
    return Reach(table, after, mark, sum(bool(record["changed"]) for _, record in between) + forgotten)


def require_states(view: View, table_id: int, name: str, after: int, instead: str) -> None:
    """EpochExpired when old rows cannot be looked up for changes past `after`; `instead`: how else to begin."""
    safe = get_version(view, table_id, name).safe_epoch
    if after < safe:
        raise EpochExpired(
            f"table {name!r}: its states before epoch {show_epoch(safe)} have been let go, so there are no old rows "
            f"for changes past {show_epoch(after)}. Read without them, or begin with {instead}; a table of "
            'changelog="full" stores them'
        )
