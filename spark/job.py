"""Jobs on Spark: a refresh takes and writes DataFrames; its outputs are committed at the barrier when it returns.

Frames are planned from the barrier's own plans and built on the session that the caller gave (a foreachBatch frame
belongs to a cloned session). Outputs are run and written at `upsert`, as segments that nothing points to until the
commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.claims import Tenure
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.errors import EpochlogError, InvalidInput, SparkLost
from epochlog.store.session.handle import Handle

from .errors import typed
from .refresh_context import SparkRefreshContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Refresh = Callable[[SparkRefreshContext], Any]


@dataclass(frozen=True, slots=True)
class SparkDoor:
    """Executor of refreshes with DataFrames, on the session that the caller gave."""

    handle: Handle
    session: SparkSession

    def context(self, plan: RefreshPlan) -> SparkRefreshContext:
        return SparkRefreshContext(self.session, self.handle, plan)

    def check(self, job: str) -> None:
        """Raise SparkLost if the session has gone: it is unknown what its tasks wrote."""
        if gone(self.session):
            raise lost(job, self.session)

    def known(self, error: BaseException, job: str) -> BaseException:
        """Return the typed error that a Spark task met, or SparkLost if the session has gone and the error has no type
        of its own.
        """
        if not isinstance(error, Exception):
            return error
        found = typed(error)
        if found is None and not isinstance(error, EpochlogError) and gone(self.session):
            return lost(job, self.session)
        return found or error


def step(
    runner: JobRunner,
    session: SparkSession,
    refresh: Refresh,
    *,
    tenure: Tenure | None = None,
    take_over: bool = False,
) -> int | None:
    """Run one barrier in the foreground; return the committed epoch, or None when there is nothing to do or the job is
    finished.

    Raises JobRunning, Fenced, JobParked, SparkLost, the errors of the refresh, and epochlog's own errors with their
    types even if a Spark task met them.
    """
    check_given(runner, session, refresh)
    return runner.step(refresh, SparkDoor(runner.handle, session), tenure=tenure, take_over=take_over)


def check_given(runner: JobRunner, session: object, refresh: object) -> None:
    """Raise InvalidInput unless the session is a SparkSession and the refresh is a function."""
    from pyspark.sql import SparkSession

    runner.check_refresh(refresh)
    if not isinstance(session, SparkSession):
        raise InvalidInput(f"job {runner.name!r}: spark is a SparkSession, not of Spark Connect, and not {session!r}")


def own_pool(session: SparkSession, name: str) -> None:
    """Put this thread's Spark jobs into a scheduler pool of their own, so that they share the cores with other threads
    where the session's scheduler is fair.
    """
    try:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    except Exception:  # noqa: BLE001  # a session that has gone: the step will say so
        return


def gone(session: SparkSession) -> bool:
    """Return True if the session's JVM died or its context was stopped: such a driver commits nothing more."""
    try:
        context: Any = session.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True


def lost(job: str, session: SparkSession) -> SparkLost:
    """Build the SparkLost error for a session that has gone."""
    if _jvm_died(session):
        why = "its JVM has died"
        todo = "PySpark starts no other one in this Python process: start the program again, and the job there"
    else:
        why = "it was stopped"
        todo = "Make a new one, in this process too (epochlog.spark()), and step or start the job with that"
    return SparkLost(
        f"the Spark session of job {job!r} has gone: {why}, and nothing of this barrier was committed. {todo}: it goes "
        "on from the catalog"
    )


def _jvm_died(session: SparkSession) -> bool:
    """Return True if the session's JVM does not answer any more."""
    try:
        jvm: Any = session.sparkContext._jvm
        jvm.java.lang.System.nanoTime()
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True
    return False
