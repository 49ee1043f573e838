"""The epochs of one table, and the part of an EpochView that lag, membership and explanations ask (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epochlog.store.types.epoch_set import Ints, first_after, ints

TableRef = int | str
"""A table's id or its name."""


@dataclass(frozen=True, slots=True, eq=False)
class TableEpochs:
    """The epochs of one table. `commits` and `changes` are int64, strictly ascending; any sequence of ints is taken.

    commits: every commit, empty ones and the end-of-data entry too. changes: the epochs with rows, non-checkpoint
    labels too, and the end of data; an entry without rows is no change. known_from: changes at or below it may have
    been forgotten. due: of a table whose job is to end, to be made anew or parked, the epoch from which on
    its newest commit may not be all, whatever its upstreams tell (which may have forgotten what they changed since);
    without a commit, when its job was made. created: the epoch at which it was made. adopted: of a root table that was
    an output once, the epoch from which on it is one; which epochs were valid for it before is not known any more.
    history_ms: how long its states are kept (0: not told). job_id, interval_ms (0: not told), outside_ms: of the job
    that writes it, see JobRecord.
    """

    table_id: int
    name: str
    state: str = "created"
    derived: bool = False
    upstreams: tuple[int, ...] = ()
    safe_epoch: int = 0
    commits: Ints = field(default_factory=lambda: ints(()))
    changes: Ints = field(default_factory=lambda: ints(()))
    known_from: int = 0
    due: int | None = None
    created: int = 0
    adopted: int = 0
    history_ms: int = 0
    job_id: int | None = None
    interval_ms: int = 0
    outside_ms: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "commits", ints(self.commits))
        object.__setattr__(self, "changes", ints(self.changes))

    @property
    def position(self) -> int:
        """Return the newest commit, or 0."""
        return int(self.commits[-1]) if len(self.commits) else 0

    @property
    def begin(self) -> int:
        """Return the lowest epoch at which the table was there; 0: not known. An output's log backfill begins before it
        was made.
        """
        if not self.derived or not self.position:
            return self.created
        return 0 if self.known_from else min(self.created, int(self.commits[0]))

    @property
    def root_begin(self) -> int:
        """Return `begin` of a root table, else 0: an output is valid from its first commit on, wherever that lies."""
        return 0 if self.derived else self.created

    @property
    def tested(self) -> bool:
        """Return True if the table has a test of its own for valid epochs: if it is derived, or adopted as a root."""
        return self.derived or self.adopted > 0

    @property
    def ended(self) -> bool:
        """Return True if the job has written the end of data: the table's newest commit is its last."""
        return self.derived and self.state == "finished"

    def due_past(self, commit: int) -> int | None:
        """Return `due`, if `commit` is the newest commit and `due` lies past it."""
        return self.due if commit and commit == self.position and self.due is not None and self.due > commit else None

    def first_change(self, after: int) -> int:
        """Return the first change past `after`; FAR if there is none, `after + 1` if the memory does not reach back so
        far.
        """
        return first_after(self.changes, after) if self.known_from <= after else after + 1


class Epochs(Protocol):
    """An EpochView, as far as this folder's functions over it ask."""

    @property
    def last_epoch(self) -> int: ...
    @property
    def clock_ms(self) -> int: ...
    @property
    def global_max_lag_ms(self) -> int: ...
    @property
    def tables(self) -> Mapping[int, TableEpochs]: ...
    def table(self, ref: TableRef) -> TableEpochs: ...
    def closure(self, refs: Iterable[TableRef]) -> tuple[TableEpochs, ...]: ...
    def needed(self, refs: Iterable[TableRef]) -> tuple[tuple[TableEpochs, int], ...]: ...
    def complete_through(self, ref: TableRef) -> int: ...
    def largest_valid_at_most(
        self,
        refs: Iterable[TableRef],
        epoch: int | None = None,
        *,
        read: Iterable[TableRef] | None = None,
        floor: int = 0,
    ) -> int | None: ...
