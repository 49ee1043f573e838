"""`Pipeline`: the jobs of a store that one process runs side by side, with Spark or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.claims import Tenure
from epochlog.checkpoint.job.runner import JobRunner, LocalRefresh
from epochlog.checkpoint.pipeline.pipeline import HasRunner, Pauses, PipelineRunner
from epochlog.store.session.handle import HasHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.spark.job import Refresh as SparkRefresh


class Pipeline(PipelineRunner):
    """Jobs that are stepped side by side, each in a thread of its own: with a Spark session by `job.step`, without one
    by `job.step_local`. `pauses` is for tests that bring their own time.

    A job that raises is tried again after a pause that doubles each time, up to half a minute; nothing else is
    restarted, delayed or stopped by it. Jobs that finish, are parked, dropped, or taken over by another runner end, and
    `status` shows it; a job that was taken over is not claimed again. Safe to use from several threads.
    """

    def __init__(self, store: HasHandle, spark: SparkSession | None = None, *, pauses: Pauses | None = None) -> None:
        super().__init__(store, pauses=pauses)
        self._spark = spark

    def add(self, job: HasRunner, refresh: LocalRefresh | SparkRefresh, *, take_over: bool = False) -> None:
        """Let the pipeline run this job with `refresh(ctx)`; at once, where it is running already. A job that has ended
        there, as one that was parked and is rebuilt now, is run again when it is added again.

        While another process runs the job, the pipeline waits for it to end, and then goes on. take_over: fence that
        one at once.

        Raises InvalidInput for a job that is in it already or of another store, JobNotFound for one that was dropped.
        """
        super().add(job, refresh, take_over=take_over)

    def _step_runner(self, runner: JobRunner, refresh: Callable[[Any], Any], tenure: Tenure) -> int | None:
        if self._spark is None:
            return super()._step_runner(runner, refresh, tenure)
        from epochlog.spark.job import own_pool, step

        own_pool(self._spark, runner.name)
        return step(runner, self._spark, refresh, tenure=tenure)
