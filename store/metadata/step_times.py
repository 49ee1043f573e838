"""Times of a view's newest steps, from which follows how many boundaries its next step takes: a record of their own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median

from epochlog.store.catalog.keys import step_times_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import Record, checked

KEPT = 5
"""Steps whose times are kept."""
MOST_BOUNDARIES = 64
"""Largest stride: a step takes at most so many boundaries at once because of its time."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of the newest steps on one engine, newest last, in ms. Backfills, rebuilds and retries are none of them."""

    engine: str
    took_ms: tuple[int, ...]

    def stride(self, interval_ms: int) -> int:
        """Return the boundaries that a step takes at once: the least power of two that lasts as long as the median
        step, at most MOST_BOUNDARIES; 1 until KEPT times are known. interval_ms: between two boundaries of the job.
        """
        if len(self.took_ms) < KEPT:
            return 1
        boundaries = -(-median(self.took_ms) // interval_ms)
        return min(1 << (max(int(boundaries), 1) - 1).bit_length(), MOST_BOUNDARIES)

    def to_record(self) -> Record:
        return {**asdict(self), "took_ms": list(self.took_ms)}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> StepTimes:
        return cls(str(record["engine"]), tuple(int(took_ms) for took_ms in record["took_ms"]))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of one step up to its commit, in ms, and its engine."""

    engine: str
    took_ms: int

    def after(self, times: StepTimes | None) -> StepTimes:
        """Return the times with this one. Those of another engine are left out."""
        kept = times.took_ms if times is not None and times.engine == self.engine else ()
        return StepTimes(self.engine, (*kept, self.took_ms)[-KEPT:])


def read_step_times(view: ReadTxn, job_id: int) -> StepTimes | None:
    """Return the times of a job's newest steps; None if none are known."""
    record = view.get(step_times_key(job_id))
    return None if record is None else StepTimes.from_record(record)
