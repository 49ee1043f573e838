"""Options of a table, chosen at its creation and alterable later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from epochlog.errors import InvalidInput
from epochlog.store.catalog.records import Record, checked
from epochlog.store.env.clock import FOR_EVER

MOST_SEGMENTS = 1_000_000
LEAST_HISTORY = timedelta(hours=1)
LONGEST_HISTORY = timedelta(hours=48)
TOMBSTONE_RETENTION = timedelta(days=7)
COMPACTION_CHECKS = ("sample", "all", "off")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a table for its retention and its compaction."""

    history_retention: timedelta | None = None
    """Age up to which reads at an epoch work; None: one hour, and up to 48 hours while the replaced rows take fewer
    bytes than the others (`store/retention/kept_history.py`).
    """
    log_retention: timedelta = timedelta(days=1)
    """Age up to which `changes` works."""
    compact_segments: int = 8
    """Number of L0 segments at which `compact()` without `full`, and maintenance, compact them into a run."""
    max_segments: int = 64
    """Number of these at which a commit compacts them before it returns."""
    tombstone_retention: timedelta = TOMBSTONE_RETENTION
    """Age up to which a delete wins over older changes that arrive after it, in a table with a sequence."""
    ttl: timedelta | None = None
    """Age, by the time or date in the column `ttl_column`, from which on rows are deleted; None: never. Only of a root
    table.
    """
    ttl_column: str | None = None
    compaction_check: str = "sample"
    """Rows of a new run file that a compaction reads back before its inputs go: "sample" (all of a small file; of
    others the first, the last and two random row groups), "all" or "off".
    """

    def __post_init__(self) -> None:
        if self.compaction_check not in COMPACTION_CHECKS:
            raise InvalidInput(f"compaction_check must be one of {COMPACTION_CHECKS}, not {self.compaction_check!r}")
        if (self.ttl is None) != (self.ttl_column is None):
            raise InvalidInput("ttl and ttl_column go together: the age of a row is that of a column's time")
        if self.ttl is not None and (not isinstance(self.ttl, timedelta) or _whole_ms(self.ttl) < 1):
            raise InvalidInput(f"ttl must be a timedelta of 1 ms or more, not {self.ttl!r}")
        if not isinstance(self.ttl_column, str | None):
            raise InvalidInput(f"ttl_column must be the name of a column, not {self.ttl_column!r}")
        for name in ("history_retention", "log_retention", "tombstone_retention"):
            value = getattr(self, name)
            chosen = name == "history_retention" and value is None
            if not chosen and (not isinstance(value, timedelta) or value < timedelta(0)):
                raise InvalidInput(f"{name} must be a timedelta of 0 or more, not {value!r}")
        for name in ("compact_segments", "max_segments"):
            segments = getattr(self, name)
            if not isinstance(segments, int) or isinstance(segments, bool) or not 1 <= segments <= MOST_SEGMENTS:
                raise InvalidInput(f"{name} must be an int from 1 to {MOST_SEGMENTS:,}, not {segments!r}")
        if self.max_segments < self.compact_segments:
            raise InvalidInput(
                f"max_segments ({self.max_segments}) must not be less than compact_segments ({self.compact_segments})"
            )

    @property
    def least_history(self) -> timedelta:
        """Return the age up to which reads at an epoch work in any case."""
        return LEAST_HISTORY if self.history_retention is None else self.history_retention

    def to_record(self) -> Record:
        """Return the catalog's record; it has no tombstone_ms and no compaction_check for their defaults, and only
        options with a ttl have its two fields. Earlier releases overlook `history` and keep history_ms.
        """
        ttl = {} if self.ttl is None else {"ttl_ms": _whole_ms(self.ttl), "ttl_column": self.ttl_column}
        record = {
            "history_ms": _whole_ms(self.least_history),
            "log_ms": _whole_ms(self.log_retention),
            "compact_segments": self.compact_segments,
            "max_segments": self.max_segments,
            **ttl,
        }
        if self.history_retention is None:
            record["history"] = "auto"
        if self.tombstone_retention != TOMBSTONE_RETENTION:
            record["tombstone_ms"] = _whole_ms(self.tombstone_retention)
        if self.compaction_check != "sample":
            record["compaction_check"] = self.compaction_check
        return record

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableOptions:
        return cls(
            None if record.get("history") == "auto" else timedelta(milliseconds=record["history_ms"]),
            timedelta(milliseconds=record["log_ms"]),
            record["compact_segments"],
            record["max_segments"],
            timedelta(milliseconds=record["tombstone_ms"]) if "tombstone_ms" in record else TOMBSTONE_RETENTION,
            timedelta(milliseconds=record["ttl_ms"]) if "ttl_ms" in record else None,
            record.get("ttl_column"),
            record.get("compaction_check", "sample"),
        )


def _whole_ms(retention: timedelta) -> int:
    return min(retention, FOR_EVER) // timedelta(milliseconds=1)
