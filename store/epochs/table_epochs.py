"""Epochs of one table, and the protocol of an EpochView for lag, membership and explanations (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epochlog.store.types.epoch_set import FAR, Ints, first_after, ints

TableRef = int | str
"""A table's id or its name."""


@dataclass(frozen=True, slots=True, eq=False)
class TableEpochs:
    """Epochs of one table. `commits` and `changes` are int64, strictly ascending; any sequence of ints is converted."""

    table_id: int
    name: str
    state: str = "created"
    derived: bool = False
    upstreams: tuple[int, ...] = ()
    """Tables that the newest query of the job reads. Commits to which an entry of `former` applies were computed from
    others.
    """
    safe_epoch: int = 0
    kept: tuple[int, ...] = ()
    """Epochs below `safe_epoch` whose rows a tag keeps."""
    commits: Ints = field(default_factory=lambda: ints(()))
    """Every commit, also empty ones and the end-of-data entry."""
    changes: Ints = field(default_factory=lambda: ints(()))
    """Epochs with rows, including non-checkpoint labels, and the end of data; an entry without rows is no change."""
    known_from: int = 0
    """Changes at or below it may be forgotten."""
    due: int | None = None
    """Epoch from which on the newest commit may be incomplete, whatever the upstreams remember: set while the job
    drains, rebuilds or is parked. Without a commit, the epoch of the job's creation.
    """
    created: int = 0
    """Epoch of the table's creation."""
    adopted: int = 0
    """First epoch as a root table, of one that was an output before; its valid epochs before that are not known. 0: it
    was never an output.
    """
    history_ms: int = 0
    """Time for which older versions are kept; 0: not known."""
    job_id: int | None = None
    """Job that writes the table; None for a root table."""
    interval_ms: int = 0
    """Time between two commits of the job; 0: not known."""
    outside_ms: int | None = None
    """See `JobRecord.outside_ms`."""
    superseded: Ints = field(default_factory=lambda: ints(()))
    """See `JobRecord.superseded`; ascending."""
    former: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """See `JobRecord.former`."""
    traced_from: int = 0
    """See `JobRecord.traced_from`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "commits", ints(self.commits))
        object.__setattr__(self, "changes", ints(self.changes))
        object.__setattr__(self, "superseded", ints(self.superseded))

    def keeps(self, epoch: int) -> bool:
        """Return True if retention has not removed the rows of the epoch."""
        return epoch >= self.safe_epoch or epoch in self.kept

    @property
    def lineage(self) -> tuple[int, ...]:
        """Return the upstreams and the tables that earlier queries read."""
        return (*self.upstreams, *(table for _, tables in self.former for table in tables))

    def query_end(self, epoch: int) -> int:
        """Return the epoch from which on the view has another query than at `epoch`; FAR if it has the newest there."""
        return next((until for until, _ in self.former if until > epoch), int(FAR))

    def upstreams_at(self, epoch: int) -> tuple[int, ...]:
        """Return the tables of which a commit at `epoch` is."""
        return next((tables for until, tables in self.former if until > epoch), self.upstreams)

    @property
    def position(self) -> int:
        """Return the newest commit, or 0."""
        return int(self.commits[-1]) if len(self.commits) else 0

    @property
    def begin(self) -> int:
        """Return the lowest epoch at which the table exists; 0: not known. An output with a log backfill has commits
        before its creation.
        """
        if not self.derived or not self.position:
            return self.created
        return 0 if self.known_from else min(self.created, int(self.commits[0]))

    @property
    def root_begin(self) -> int:
        """Return `created` of a root table, else 0: an output is valid from its first commit on."""
        return 0 if self.derived else self.created

    @property
    def tested(self) -> bool:
        """Return True if the table itself restricts the valid epochs: if it is derived, or adopted as a root table."""
        return self.derived or self.adopted > 0

    @property
    def ended(self) -> bool:
        """Return True if the job has written the end of data: the table's newest commit is its last."""
        return self.derived and self.state == "finished"

    def due_past(self, commit: int) -> int | None:
        """Return `due` if `commit` is the newest commit and `due` is after it, else None."""
        return self.due if commit and commit == self.position and self.due is not None and self.due > commit else None

    def first_change(self, after: int) -> int:
        """Return the first change after `after`; FAR if there is none, `after + 1` if changes since then may be
        forgotten.
        """
        return first_after(self.changes, after) if self.known_from <= after else after + 1


class Epochs(Protocol):
    """Protocol of EpochView for the functions of this folder."""

    @property
    def last_epoch(self) -> int: ...
    @property
    def clock_ms(self) -> int: ...
    @property
    def global_max_lag_ms(self) -> int: ...
    @property
    def tables(self) -> Mapping[int, TableEpochs]: ...
    def table(self, ref: TableRef) -> TableEpochs: ...
    @property
    def present(self) -> Epochs: ...
    @property
    def unreflected(self) -> Mapping[int, int]: ...
    @property
    def root_changes(self) -> dict[tuple[int, int], int]: ...
    def at(self, epoch: int) -> Epochs: ...
    def closure(self, refs: Iterable[TableRef]) -> tuple[TableEpochs, ...]: ...
    def needed(self, refs: Iterable[TableRef]) -> tuple[tuple[TableEpochs, int], ...]: ...
    def complete_through(self, ref: TableRef) -> int: ...
    def largest_valid_at_most(
        self,
        refs: Iterable[TableRef],
        epoch: int | None = None,
        *,
        read: Iterable[TableRef] | None = None,
        lowest: int = 0,
    ) -> int | None: ...
