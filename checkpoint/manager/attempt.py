"""Attempt: one try to commit a barrier, with its phase, the actors that must report, and their reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from epochlog.checkpoint.job.next_barrier import Barrier

from .commands import Actor, Phase, Report, Segments


@dataclass(slots=True)
class Attempt:
    """Try to commit one barrier."""

    barrier_id: int
    since_ms: int
    serves: int
    """Number of forced checkpoints, of all requested, that its commit serves."""
    drain: bool
    deadline_ms: int
    phase: Phase = "deciding"
    barrier: Barrier | None = None
    waits: dict[Actor, int] = field(default_factory=dict)
    finished_before: frozenset[Actor] = frozenset()  # actors that had finished when it was injected
    reports: dict[Actor, Report] = field(default_factory=dict)

    @property
    def at_catalog(self) -> bool:
        """Return True if the commit has been sent to the catalog, so that the manager cannot abort it."""
        return self.phase in ("committing", "resolving")

    @property
    def missing(self) -> frozenset[Actor]:
        return frozenset(self.waits) - frozenset(self.reports)

    @property
    def finished(self) -> frozenset[Actor]:
        """Return the actors that have finished once the attempt is committed."""
        return self.finished_before | {actor for actor, report in self.reports.items() if report.ended}

    def owes(self, barrier_id: int, actor: Actor, incarnation: int) -> bool:
        """Return True if this incarnation of the actor still has to report for this barrier."""
        is_collecting = self.phase == "collecting" and self.barrier_id == barrier_id
        return is_collecting and self.waits.get(actor) == incarnation and actor not in self.reports


def next_multiple(now: int, interval_ms: int) -> int:
    """Return the first multiple of the interval past `now`, so that triggers neither drift nor shift on a restart."""
    return (now // interval_ms + 1) * interval_ms


def merge_segments(reports: Iterable[Report]) -> Segments:
    """Merge the segments of the reports by table, in order; leave out tables without segments."""
    merged: dict[str, tuple[object, ...]] = {}
    for report in reports:
        for table, segments in report.segments.items():
            merged[table] = (*merged.get(table, ()), *segments)
    return {table: segments for table, segments in merged.items() if segments}
