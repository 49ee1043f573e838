"""Inputs and outputs of the checkpoint manager: reports, settings, decisions and status, as plain values.

An *actor* is one subtask of a vertex of a job; each attach of it gets a new *incarnation*, which fences the earlier
one. An *attempt* is one try to commit a barrier; its barrier id is never used again, in no incarnation of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.errors import InvalidInput

Actor = tuple[str, int]
"""(vertex name, subtask index)."""

Segments = Mapping[str, tuple[Any, ...]]
"""Segments by table name, in the order in which they were sealed; opaque to the manager."""

JobState = Literal["running", "failed", "finished", "stopped"]
Phase = Literal["idle", "deciding", "collecting", "committing", "resolving"]


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one actor for one barrier."""

    job: str
    barrier_id: int
    actor: Actor
    incarnation: int
    segments: Segments = field(default_factory=dict)
    """Sealed segments of the actor that no accepted report has named yet (see `Outbox`)."""
    state: Any = b""
    """State of the actor after this barrier, committed with it; opaque to the manager."""
    ended: bool = False
    """True if the actor's data has ended at or before this barrier."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of a job's checkpoints: their triggers, timeouts and tolerated failures; all times in ms."""

    interval_ms: int | None = 1_000
    """Time between triggers, which are multiples of it; None: only forced checkpoints, and one whenever an actor's data
    ends.
    """
    min_pause_ms: int = 0
    """Least time from the end of an attempt to the next trigger."""
    timeout_ms: int = 60_000
    """Longest time from the inject to the last report, and from Decide to its answer."""
    tolerable_failures: int | None = None
    """Number of failed attempts in a row that do not fail the job; None: any number."""
    allow_finished: bool = True
    """True to continue checkpoints after some actors have finished."""

    def __post_init__(self) -> None:
        _require("interval_ms", self.interval_ms, 1, optional=True)
        _require("min_pause_ms", self.min_pause_ms, 0)
        _require("timeout_ms", self.timeout_ms, 1)
        _require("tolerable_failures", self.tolerable_failures, 0, optional=True)


def _require(name: str, value: object, least: int, *, optional: bool = False) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not good and not (optional and value is None):
        raise InvalidInput(f"{name} is a whole number >= {least}{' or None' * optional}, not {value!r}")


# ---- decisions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decide:
    """Request for the job's next barrier, answered with `decided`."""

    job: str
    barrier_id: int
    """Id of the new attempt."""
    drain: bool = False
    """True if the job is draining: seal a boundary first, and answer with `last` if the barrier reaches it."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Barrier for all actors that have not finished. Each answers with a `Report`."""

    job: str
    barrier_id: int
    barrier: Barrier
    targets: Mapping[Actor, int]
    """Incarnation for each actor that must report."""
    taken: Mapping[Actor, int]
    """For each actor of `targets`, the newest barrier id whose report was accepted, 0 for none; the actor does not send
    the segments of an accepted report again (`Outbox.report`).
    """
    drain: bool = False
    """True if each actor ends its data at this barrier and reports `ended`."""


@dataclass(frozen=True, slots=True)
class CommitBarrier:
    """Request to commit in one transaction, answered with `committed`, `refused` or `unknown`."""

    job: str
    incarnation: int
    """Incarnation of the job: the catalog refuses the commit of an earlier one."""
    barrier_id: int
    barrier: Barrier
    segments: Segments
    """Segments of all reports and those carried over from aborted attempts, in the order of the reports."""
    states: Mapping[Actor, Any]
    """Newest states of the actors' reports, by actor."""
    finished: frozenset[Actor] = frozenset()
    """All actors that have finished after this commit, including those recorded before. The catalog records them."""
    final: bool = False
    """True if the job and its outputs end with this commit."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Request to resolve the unknown outcome of a commit, answered with `resolved`; the job waits for the answer."""

    job: str
    barrier_id: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Notice to these actors (actor -> incarnation) that the barrier is committed; those in `finished` may exit."""

    job: str
    barrier_id: int
    epoch: int
    actors: Mapping[Actor, int]
    finished: frozenset[Actor] = frozenset()


@dataclass(frozen=True, slots=True)
class Abort:
    """Notice to these actors (actor -> incarnation) that this attempt is aborted; they keep running."""

    job: str
    barrier_id: int
    reason: str
    actors: Mapping[Actor, int]


@dataclass(frozen=True, slots=True)
class Drop:
    """Order to delete segments that will never be committed, because their actor's incarnation has ended."""

    job: str
    segments: Segments
    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Fence of these actors: each rolls back to the last commit and attaches again, or another process attaches."""

    job: str
    actors: Mapping[Actor, int]
    """Actor -> its incarnation that has ended."""
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Permission for an actor to begin from its state in the catalog. No commit in flight can change that state."""

    job: str
    actor: Actor
    incarnation: int
    finished: bool = False
    """True if a commit has recorded the actor as finished: it has nothing left to do."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Notice that the job has finished: a commit has recorded all its actors as finished."""

    job: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Notice that the job has failed: its actors are fenced. It continues when it is unregistered and registered again
    under an incarnation that was claimed since.
    """

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobStopped:
    """Notice that the job has stopped without a drain: its uncommitted work is dropped, and its data has not ended."""

    job: str


Decision = (
    Decide | Inject | CommitBarrier | Resolve | Announce | Abort | Drop | Restart | Start | Finished | Failed
    | JobStopped
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """Status of one job at the manager."""

    job: str
    state: JobState
    phase: Phase
    incarnation: int
    actors: Mapping[Actor, str]
    """Actor -> name of its TaskState."""
    waiting_for: frozenset[Actor]
    """Actors whose reports are missing, or that do not run yet."""
    barrier_id: int | None = None
    barrier: Barrier | None = None
    since_ms: int | None = None
    """Trigger time of the attempt in flight, on the manager's clock."""
    carried: int = 0
    """Segments carried over from aborted attempts."""
    forced: bool = False
    draining: bool = False
    failures: int = 0
    """Failed attempts in a row."""
    commits: int = 0
    aborts: int = 0
    ignored: int = 0
    """Messages without effect (stale, repeated, unknown, late)."""
    epoch: int = 0
    """Epoch of the newest commit that this manager has seen; 0: none."""
    reason: str | None = None
