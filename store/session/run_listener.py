"""Listener for the runs of jobs in this process: the refresh and commit of one barrier is one run."""

from __future__ import annotations

from typing import Any, Protocol


class Run(Protocol):
    """Run in flight. Exactly one of its methods is called, once. None of them raises or waits for another process."""

    def completed(self, epoch: int) -> None:
        """Note the commit of the barrier; epoch 0: a backfill chunk was taken in."""
        ...

    def failed(self, error: BaseException | str) -> None:
        """Note the error of the run. An error that says that the job goes on elsewhere, or not at all, aborts it."""
        ...


class RunListener(Protocol):
    """Listener of an open store. No method raises or waits for another process."""

    def began(self, plan: Any) -> Run:
        """Note the begin of a run, with its RefreshPlan."""
        ...

    def killed(self, job: Any, holder: str) -> None:
        """Note that the holder of the job's runner lease has died with the barrier on the JobRecord in flight."""
        ...

    def close(self) -> None:
        """Hand over the noted events within a bounded time."""
        ...
