"""Jobs on Spark: a refresh reads and writes DataFrames; its outputs are committed at the barrier when it returns.

Frames are made from the plans of the barrier, on the caller's session (a foreachBatch frame belongs to a cloned
session). `upsert` runs an output's frame and writes its segments, which stay invisible until the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.claims import RunnerLease
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.errors import EpochlogError, InvalidInput, SparkLost
from epochlog.store.session.handle import Handle

from .errors import find_epochlog_error
from .refresh_context import SparkRefreshContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Refresh = Callable[[SparkRefreshContext], Any]


@dataclass(frozen=True, slots=True)
class SparkRefreshAdapter:
    """Adapter for refreshes with DataFrames, on the caller's session."""

    handle: Handle
    session: SparkSession

    def context(self, plan: RefreshPlan) -> SparkRefreshContext:
        return SparkRefreshContext(self.session, self.handle, plan)

    def check(self, job: str) -> None:
        """Raise SparkLost if the session is lost: the state of its tasks' files is unknown."""
        if is_session_lost(self.session):
            raise session_lost_error(job, self.session)

    def translate_error(self, error: BaseException, job: str) -> BaseException:
        """Return the typed error of a Spark task; SparkLost if the session is lost and the error is not an epochlog
        error; else the error itself.
        """
        if not isinstance(error, Exception):
            return error
        typed_error = find_epochlog_error(error)
        if typed_error is None and not isinstance(error, EpochlogError) and is_session_lost(self.session):
            return session_lost_error(job, self.session)
        return typed_error or error


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
    return runner.step(refresh, SparkRefreshAdapter(runner.handle, session), lease=lease, take_over=take_over)


def check_arguments(runner: JobRunner, session: object, refresh: object) -> None:
    """Raise InvalidInput unless the session is a SparkSession and the refresh is a function."""
    from pyspark.sql import SparkSession

    runner.check_refresh(refresh)
    if not isinstance(session, SparkSession):
        raise InvalidInput(f"job {runner.name!r}: spark must be a classic SparkSession, not {session!r}")


def use_scheduler_pool(session: SparkSession, name: str) -> None:
    """Put this thread's Spark jobs into their own scheduler pool, so that they share the cores with other threads if
    the session's scheduler is fair.
    """
    try:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    except Exception:  # noqa: BLE001  # The session is lost; the step raises SparkLost.
        return


def is_session_lost(session: SparkSession) -> bool:
    """Return True if the session's JVM died or its context was stopped, so that the driver can commit nothing more."""
    try:
        context: Any = session.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True


def session_lost_error(job: str, session: SparkSession) -> SparkLost:
    """Build the SparkLost error of a lost session."""
    if _jvm_died(session):
        cause = "its JVM has died"
        advice = "PySpark cannot start another JVM in this Python process: start the program again, and the job in it"
    else:
        cause = "it was stopped"
        advice = "Make a new one, also in this process (epochlog.spark()), and step or start the job with it"
    return SparkLost(
        f"the Spark session of job {job!r} is lost: {cause}, and this barrier was not committed. {advice}: it resumes "
        "from the catalog"
    )


def _jvm_died(session: SparkSession) -> bool:
    """Return True if the session's JVM does not answer."""
    try:
        jvm: Any = session.sparkContext._jvm
        jvm.java.lang.System.nanoTime()
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True
    return False
