"""Jobs on Spark: a refresh gets DataFrames and gives DataFrames; what it gave is committed at the barrier when it
returns.

Frames are planned from the barrier's own plans and built on the session that the caller gave (a foreachBatch frame
belongs to a cloned session). Outputs are run and written at `upsert`, as segments that nothing points to until the
commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import EpochlogError, InvalidInput, SparkLost
from ..exchange.spark_errors import typed
from ..store.handle import Handle
from .barrier_run import BarrierRun
from .claims import Tenure
from .job import JobRunner
from .spark_context import SparkRefreshContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Refresh = Callable[[SparkRefreshContext], Any]


@dataclass(frozen=True, slots=True)
class SparkDoor:
    """Refreshes with DataFrames, on the session that the caller gave."""

    handle: Handle
    session: SparkSession

    def context(self, run: BarrierRun) -> SparkRefreshContext:
        return SparkRefreshContext(self.session, self.handle, run)

    def check(self, job: str) -> None:
        """Raises SparkLost when the session has gone: what its tasks wrote is not known."""
        if gone(self.session):
            raise lost(job, self.session)

    def known(self, error: BaseException, job: str) -> BaseException:
        """The typed error that a Spark task met, or SparkLost, where the error is no other than that."""
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
    """One barrier in the foreground: the committed epoch, or None when there is nothing to do or the job is finished.

    Raises JobRunning, Fenced, JobParked, SparkLost, what the refresh raises, and epochlog's own errors with their types
    even if a Spark task met them.
    """
    check_given(runner, session, refresh)
    return runner.step(refresh, SparkDoor(runner.handle, session), tenure=tenure, take_over=take_over)


def check_given(runner: JobRunner, session: object, refresh: object) -> None:
    """Raises InvalidInput for what is no session, or no function."""
    from pyspark.sql import SparkSession

    runner.check_refresh(refresh)
    if not isinstance(session, SparkSession):
        raise InvalidInput(f"job {runner.name!r}: spark is a SparkSession, not of Spark Connect, and not {session!r}")


def own_pool(session: SparkSession, name: str) -> None:
    """Let what this thread runs share the cores with other threads instead of queueing, where the session is fair."""
    try:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    except Exception:  # noqa: BLE001  # a session that has gone: the step will say so
        return


def gone(session: SparkSession) -> bool:
    """Whether the session's JVM died or its context was stopped: a driver that has lost it commits nothing more."""
    try:
        context: Any = session.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True


def lost(job: str, session: SparkSession) -> SparkLost:
    """What is raised for a session that has gone."""
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
    """Whether nothing answers behind the session any more."""
    try:
        jvm: Any = session.sparkContext._jvm
        jvm.java.lang.System.nanoTime()
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True
    return False
