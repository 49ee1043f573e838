"""`Pipeline`: runs several jobs of a store in one process, with Spark or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.claims import RunnerLease
from epochlog.checkpoint.job.runner import JobRunner, LocalRefresh
from epochlog.checkpoint.pipeline.pipeline import HasRunner, Pauses, PipelineRunner
from epochlog.store.session.handle import HasHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.spark.job import Refresh as SparkRefresh


class Pipeline(PipelineRunner):
    """Runner of several jobs in parallel, each in its own thread: with a Spark session by `job.step`, without one by
    `job.step_local`. pauses: a clock for tests.

    A job that raises is tried again after a delay that doubles each time, up to 30 seconds; the other jobs are not
    affected. A job that finishes, is parked or dropped, or is taken over by another runner ends, and `status` shows its
    state; the pipeline does not claim it again. Safe to use from several threads.
    """

    def __init__(self, store: HasHandle, spark: SparkSession | None = None, *, pauses: Pauses | None = None) -> None:
        super().__init__(store, pauses=pauses)
        self._spark = spark

    def add(self, job: HasRunner, refresh: LocalRefresh | SparkRefresh, *, take_over: bool = False) -> None:
        """Add a job with its `refresh(ctx)`; start it at once if the pipeline runs. An ended job, such as a parked one
        that is rebuilt now, runs again when it is added again.

        While another process runs the job, the pipeline waits for it to end, and then continues. take_over: fence the
        other process at once.

        Raises InvalidInput for a job of another store or one in the pipeline already, JobNotFound for a dropped one.
        """
        super().add(job, refresh, take_over=take_over)

    def _step_runner(self, runner: JobRunner, refresh: Callable[[Any], Any], lease: RunnerLease) -> int | None:
        if self._spark is None:
            return super()._step_runner(runner, refresh, lease)
        from epochlog.spark.job import step, use_scheduler_pool

        use_scheduler_pool(self._spark, runner.name)
        return step(runner, self._spark, refresh, lease=lease)
