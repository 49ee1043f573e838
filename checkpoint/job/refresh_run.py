"""Run of a barrier as the listener of the open store sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochlog.store.session.handle import Handle

from .refresh_plan import RefreshPlan


@dataclass(slots=True)
class RunOutcome:
    """Outcome of a run. epoch: of its commit, 0 for a backfill chunk."""

    epoch: int = 0


@contextmanager
def refresh_run(handle: Handle, plan: RefreshPlan) -> Iterator[RunOutcome]:
    """Tell the listener about a run of the block, which sets the outcome's epoch, or raises."""
    outcome = RunOutcome()
    if handle.run_listener is None:
        yield outcome
        return
    run = handle.run_listener.began(plan)
    try:
        yield outcome
    except BaseException as error:
        run.failed(error)
        raise
    run.completed(outcome.epoch)
