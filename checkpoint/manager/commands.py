"""Inputs and outputs of the checkpoint manager: reports, settings, decisions and status, as plain values.

An *actor* is one subtask of a vertex of a job; each attach of it gets a new *incarnation*, which fences the earlier
one. An *attempt* is one try to commit a barrier; its barrier id is never used again, in no incarnation of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from epochlog.checkpoint.job.barrier import Barrier
from epochlog.errors import InvalidInput

Actor = tuple[str, int]
"""(vertex name, subtask index)."""

Segments = Mapping[str, tuple[Any, ...]]
"""Segments by table name, in the order in which they were sealed; the manager does not look into them."""

JobState = Literal["running", "failed", "finished", "stopped"]
Phase = Literal["idle", "deciding", "collecting", "committing", "resolving"]


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one actor for one barrier.

    segments: everything it sealed that no report which was taken has named yet (see `Outbox`). state: where it goes on
    from after this barrier, opaque bytes kept with the commit. ended: its data has ended with this barrier or before.
    """

    job: str
    barrier_id: int
    actor: Actor
    incarnation: int
    segments: Segments = field(default_factory=dict)
    state: bytes = b""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of a job's checkpoints: their triggers, timeouts and tolerated failures; all times in ms.

    interval_ms: from one trigger to the next, at multiples of it; None: only forced ones, and one whenever an actor's
    data ends. min_pause_ms: from the end of an attempt to the next trigger. timeout_ms: from the inject to the last
    report, and from Decide to its answer. tolerable_failures: how many attempts may fail in a row; one more and the job
    fails; None: any number. allow_finished: whether checkpoints go on when some of the actors have finished. Raises
    InvalidInput.
    """

    interval_ms: int | None = 1_000
    min_pause_ms: int = 0
    timeout_ms: int = 60_000
    tolerable_failures: int | None = None
    allow_finished: bool = True

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
    """Request for the job's next barrier, answered with `decided`; the attempt has its id already.

    drain: the job is to end; seal a boundary first, and answer with `last` when the barrier takes in all below that.
    """

    job: str
    barrier_id: int
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Inject:
    """Barrier for these actors; each one that it reaches, directly or by edges, answers with a `Report`.

    targets: actor -> the incarnation it is meant for; waits: all actors that must report. taken: for each of `waits`
    the newest barrier id of which its report was taken, 0 for none: what such a report named is never sent again
    (`Outbox.report`). drain: each actor ends its data at this barrier and reports `ended`.
    """

    job: str
    barrier_id: int
    barrier: Barrier
    targets: Mapping[Actor, int]
    waits: frozenset[Actor]
    taken: Mapping[Actor, int]
    drain: bool = False


@dataclass(frozen=True, slots=True)
class CommitBarrier:
    """Request to commit in one transaction, fenced by `incarnation`; answered with `committed`, `refused` or `unknown`.

    segments: those of all reports and what aborted attempts left, in the order of their reports. states: by actor.
    finished: all actors that have finished once this is committed, those recorded before too; it goes to the catalog,
    as do finished_vertices, of which every actor is. final: the job ends with this commit, and with it its outputs.
    """

    job: str
    incarnation: int
    barrier_id: int
    barrier: Barrier
    segments: Segments
    states: Mapping[Actor, bytes]
    finished: frozenset[Actor] = frozenset()
    finished_vertices: frozenset[str] = frozenset()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Resolve:
    """Request to decide the fate of a commit of unknown outcome, answered with `resolved`; the job waits for it."""

    job: str
    barrier_id: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Notice to these actors (actor -> incarnation) that the barrier is committed; those in `finished` may go."""

    job: str
    barrier_id: int
    epoch: int
    actors: Mapping[Actor, int]
    finished: frozenset[Actor] = frozenset()


@dataclass(frozen=True, slots=True)
class Abort:
    """Notice to these actors (actor -> incarnation) that this attempt is aborted; they go on as they are."""

    job: str
    barrier_id: int
    reason: str
    actors: Mapping[Actor, int]


@dataclass(frozen=True, slots=True)
class Drop:
    """Segments that will never be committed, because their actor's incarnation has ended. Their files may go."""

    job: str
    segments: Segments
    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Fence of these actors, which roll back to the last commit and attach anew, or another takes their place.

    actors: actor -> the newest incarnation that has ended, 0 for none; who has a newer one has attached since.
    """

    job: str
    actors: Mapping[Actor, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Permission for an actor to begin from its state in the catalog. Until now a commit might have changed it.

    Actors that are connected by edges start together: `peers` are these incarnations, itself among them. finished:
    it had finished when the job was restored; it has nothing to do, its end of data is passed on.
    """

    job: str
    actor: Actor
    incarnation: int
    finished: bool = False
    peers: Mapping[Actor, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """End of the job for good: all actors have finished, and a commit has recorded it."""

    job: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of the job: it takes no more checkpoints until `recover`; its actors are fenced."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobStopped:
    """Stop of the job without a drain: nothing uncommitted is left, and no end of data was written."""

    job: str


Decision = (
    Decide | Inject | CommitBarrier | Resolve | Announce | Abort | Drop | Restart | Start | Finished | Failed
    | JobStopped
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """One job as the manager has it.

    actors: actor -> name of its TaskState. waiting_for: the actors whose reports are missing, or who are not there yet.
    since_ms: when the attempt in flight was triggered, on the manager's clock. carried: segments left by aborted
    attempts. failures: attempts failed in a row. epoch: of the newest commit this manager has seen, 0 for none.
    ignored: messages that changed nothing (stale, repeated, unknown, late).
    """

    job: str
    state: JobState
    phase: Phase
    incarnation: int
    actors: Mapping[Actor, str]
    waiting_for: frozenset[Actor]
    barrier_id: int | None = None
    barrier: Barrier | None = None
    since_ms: int | None = None
    carried: int = 0
    forced: bool = False
    draining: bool = False
    failures: int = 0
    commits: int = 0
    aborts: int = 0
    ignored: int = 0
    epoch: int = 0
    reason: str | None = None
