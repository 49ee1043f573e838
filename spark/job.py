"""Jobs on Spark: a refresh reads and writes DataFrames; its outputs are committed at the barrier when it returns.

Frames are made from the plans of the barrier, on the caller's session (a foreachBatch frame belongs to a cloned
session). `upsert` runs an output's frame and writes its segments, which stay invisible until the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from epochlog.checkpoint.job.claims import RunnerLease
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.step_work import CommittedStep, remember_step
from epochlog.errors import EpochlogError, InvalidInput
from epochlog.store.env.log_events import STEP_NOT_SHOWN
from epochlog.store.session.handle import Handle

from .errors import find_epochlog_error
from .live_session import is_session_lost, session_lost_error
from .refresh_context import SparkRefreshContext
from .step_events import show_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Refresh = Callable[[SparkRefreshContext], Any]

_DESCRIPTION = "spark.job.description"
"""Local property of a thread: what Spark's UI calls its jobs."""


@dataclass(frozen=True, slots=True)
class SparkRefreshAdapter:
    """Adapter for refreshes with DataFrames, on the caller's session."""

    engine: ClassVar[str] = "spark"
    handle: Handle
    session: SparkSession
    note: Callable[[CommittedStep], None] | None = None
    """Called after each commit, by the query whose progress has it."""

    def context(self, plan: RefreshPlan) -> SparkRefreshContext:
        return SparkRefreshContext(self.session, self.handle, plan)

    def check(self, job: str) -> None:
        """Raise SparkLost if the session is lost: the state of its tasks' files is unknown."""
        if is_session_lost(self.session):
            raise session_lost_error(f"job {job!r}", "this barrier", self.session)

    def translate_error(self, error: BaseException, job: str) -> BaseException:
        """Return the typed error of a Spark task; SparkLost if the session is lost and the error is not an epochlog
        error; else the error itself.
        """
        if not isinstance(error, Exception):
            return error
        typed_error = find_epochlog_error(error)
        if typed_error is None and not isinstance(error, EpochlogError) and is_session_lost(self.session):
            return session_lost_error(f"job {job!r}", "this barrier", self.session)
        return typed_error or error

    def committed(self, step: CommittedStep) -> None:
        """Remember the step, and show it in Spark's UI and in the progress of its query."""
        remember_step(self.handle.files.place, step)
        try:
            show_step(self.session, step)
        except Exception as error:  # noqa: BLE001  # py4j has errors of many kinds; the step has committed
            self.handle.log(STEP_NOT_SHOWN, job=step.job, epoch=step.epoch, error=error)
        if self.note is not None:
            self.note(step)


def step(
    runner: JobRunner,
    session: SparkSession,
    refresh: Refresh,
    *,
    lease: RunnerLease | None = None,
    take_over: bool = False,
) -> int | None:
    """Run one barrier in the foreground; return the committed epoch, or None if there is nothing to do or the job is
    finished.

    Raises JobRunning, Fenced, JobParked, SparkLost, the errors of the refresh, and typed epochlog errors, including
    those raised in Spark tasks.
    """
    check_arguments(runner, session, refresh)
    with _described(session, runner.name):
        return runner.step(refresh, SparkRefreshAdapter(runner.handle, session), lease=lease, take_over=take_over)


@contextmanager
def _described(session: SparkSession, name: str) -> Iterator[None]:
    """Describe the Spark jobs of this thread by the name of a job, as a query's and a pipeline's are; then put the
    thread's own description back. A lost session has none: the step raises SparkLost.
    """
    context, own = session.sparkContext, None
    with suppress(Exception):
        own = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, name)
    try:
        yield
    finally:
        with suppress(Exception):
            context.setLocalProperty(_DESCRIPTION, own)  # pyright: ignore[reportArgumentType]: None removes it


def check_arguments(runner: JobRunner, session: object, refresh: object) -> None:
    """Raise InvalidInput unless the session is a SparkSession and the refresh is a function."""
    runner.check_refresh(refresh)
    require_session(f"job {runner.name!r}", session)


def require_session(user: str, session: object) -> None:
    """Raise InvalidInput unless the session is a SparkSession. user: who needs it."""
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        raise InvalidInput(f"{user}: spark must be a classic SparkSession, not {session!r}")


def begin_step_on_thread(session: SparkSession, name: str) -> None:
    """Give this thread new local properties in Spark, for a step of a job: none that an earlier job's refresh has set
    (job group, tags, its own), and a scheduler pool and a description of the job's name. The jobs share the cores if
    the session's scheduler is fair.
    """
    try:
        context: Any = session.sparkContext
        properties = context._jvm.java.util.Properties()
        properties.setProperty("spark.scheduler.pool", name)
        properties.setProperty(_DESCRIPTION, name)
        context._jsc.sc().setLocalProperties(properties)
    except Exception:  # noqa: BLE001  # The session is lost; the step raises SparkLost.
        return
