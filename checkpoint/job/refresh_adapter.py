"""Adapters between a job's runner and the kinds of refreshes: with pyarrow tables here, others elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from epochlog.store.env.clock import monotonic_s
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment

from .local_context import LocalRefreshContext
from .refresh_context import RefreshContext
from .refresh_plan import RefreshPlan


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """Step of a job that has committed."""

    job: str
    epoch: int
    """Epoch of the commit; 0 for a chunk of a backfill."""
    rows: int
    """Rows that the step has written, deletes included."""
    engine: str
    operation: str
    """Name of the commit in the history of the job's outputs."""
    took_ms: int

    @classmethod
    def of(cls, plan: RefreshPlan, epoch: int, outputs: Mapping[str, Sequence[Segment]], operation: str) -> Self:
        """Return the step of a plan. outputs: what it has written."""
        rows = sum(segment.rows for segments in outputs.values() for segment in segments)
        took_ms = round((monotonic_s() - plan.began_s) * 1000)
        return cls(plan.job.name, epoch, rows, plan.engine, operation, took_ms)


class RefreshAdapter(Protocol):
    """Adapter for one kind of refresh: makes contexts, checks writes and translates errors.

    engine: its name, under which the times of its steps are kept.
    """

    engine: ClassVar[str]

    def context(self, plan: RefreshPlan) -> RefreshContext[Any, Any, Any]:
        """Build the context for the refresh of a barrier."""
        ...

    def check(self, job: str) -> None:
        """Raise an EpochlogError if the writes of the refresh must not be committed. Called after the refresh."""
        ...

    def translate_error(self, error: BaseException, job: str) -> BaseException:
        """Return the typed error behind an error of a refresh; return `error` itself if there is none."""
        ...

    def committed(self, step: CommittedStep) -> None:
        """Take note of a step that has committed. It raises nothing."""


@dataclass(frozen=True, slots=True)
class LocalRefreshAdapter:
    """Adapter for refreshes with pyarrow tables, in this process."""

    engine: ClassVar[str] = "local"
    handle: Handle

    def context(self, plan: RefreshPlan) -> LocalRefreshContext:
        return LocalRefreshContext(self.handle, plan)

    def check(self, job: str) -> None:
        """Accept the writes, because this process made them."""

    def translate_error(self, error: BaseException, job: str) -> BaseException:
        return error

    def committed(self, step: CommittedStep) -> None:
        """Do nothing: the catalog and the log have all of it."""
