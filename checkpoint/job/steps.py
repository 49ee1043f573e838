"""Steps of a job up to a boundary: one barrier, or all barriers through the newest boundary."""

from __future__ import annotations

from collections.abc import Callable

from epochlog.errors import InvalidInput
from epochlog.store.commit.boundaries import newest_boundary_before
from epochlog.store.metadata.definitions import Counters

from .runner import JobRunner


def run_steps(
    runner: JobRunner, step: Callable[[bool], int | None], until: str | None, *, take_over: bool
) -> int | None:
    """Run one step, or with until="newest" steps until the job has taken in all that was there at the call; return the
    last epoch, or None if there was nothing to do.

    step: runs one barrier; its argument is take_over, which is for the first step. Boundaries that pass during the
    call are not waited for, so the call ends beside any writers. Raises InvalidInput, and the errors of the steps;
    earlier steps of the call stay committed.
    """
    runner.handle.require_writable()
    if until is None:
        return step(take_over)
    if until != "newest":
        raise InvalidInput(f"job {runner.name!r}: until must be 'newest', or None for one barrier, not {until!r}")
    handle = runner.handle
    last_epoch = handle.catalog.read(Counters.read).last_epoch
    passed = newest_boundary_before(handle.catalog.now_ms(), handle.interval_ms)
    target, reached = max(last_epoch, passed), None
    while reached is None or reached < target:
        epoch = step(take_over and reached is None)
        if epoch is None:
            break
        reached = epoch
    return reached


def through_chunks(step: Callable[[bool], int | None]) -> Callable[[bool], int | None]:
    """Return a step that runs all backfill chunks of its barrier, and then commits it. step: runs one of them."""

    def run(take_over: bool) -> int | None:
        epoch = step(take_over)
        while epoch == 0:
            epoch = step(False)
        return epoch

    return run
