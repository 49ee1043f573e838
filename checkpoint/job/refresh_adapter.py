"""Adapters between a job's runner and the kinds of refreshes: with pyarrow tables here, others elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from epochlog.store.session.handle import Handle

from .local_context import LocalRefreshContext
from .refresh_context import RefreshContext
from .refresh_plan import RefreshPlan
from .step_work import CommittedStep, remember_step


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
        """Remember the step."""
        remember_step(self.handle.files.place, step)
