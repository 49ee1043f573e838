"""One try to commit a barrier: who was asked, who has reported, how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from epochlog.checkpoint.job.barrier import Barrier

from .commands import Actor, Phase, Report, Segments


@dataclass(slots=True)
class Attempt:
    """One try to commit a barrier. serves: how many of the forced checkpoints asked for its commit serves."""

    barrier_id: int
    since_ms: int
    serves: int
    drain: bool
    deadline_ms: int
    phase: Phase = "deciding"
    barrier: Barrier | None = None
    waits: dict[Actor, int] = field(default_factory=dict)
    gone: frozenset[Actor] = frozenset()  # who had finished when it was planned
    reports: dict[Actor, Report] = field(default_factory=dict)

    @property
    def at_catalog(self) -> bool:
        """Return True if the commit is under way, so that the manager can no longer abort it."""
        return self.phase in ("committing", "resolving")

    @property
    def missing(self) -> frozenset[Actor]:
        return frozenset(self.waits) - frozenset(self.reports)

    @property
    def finished(self) -> frozenset[Actor]:
        """Return the actors that have finished once the attempt is committed."""
        return self.gone | {actor for actor, report in self.reports.items() if report.ended}

    def owes(self, barrier_id: int, actor: Actor, incarnation: int) -> bool:
        """Return True if this incarnation of the actor still has to report for this barrier."""
        asked = self.phase == "collecting" and self.barrier_id == barrier_id
        return asked and self.waits.get(actor) == incarnation and actor not in self.reports


def next_multiple(now: int, interval_ms: int) -> int:
    """Return the first multiple of the interval past `now`: triggers do not drift, and a restart keeps them."""
    return (now // interval_ms + 1) * interval_ms


def joined(reports: Iterable[Report]) -> Segments:
    """Return all segments of these reports, in order; tables without any are left out."""
    out: dict[str, tuple[object, ...]] = {}
    for report in reports:
        for table, segments in report.segments.items():
            out[table] = (*out.get(table, ()), *segments)
    return {table: segments for table, segments in out.items() if segments}
