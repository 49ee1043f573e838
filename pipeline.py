"""`Pipeline`: runs several jobs of a store in one process, with Spark or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.checkpoint.job.refresh_adapter import RefreshAdapter
from epochlog.checkpoint.job.runner import JobRunner, LocalRefresh
from epochlog.checkpoint.pipeline.member import HasRunner
from epochlog.checkpoint.pipeline.pauses import Pauses
from epochlog.checkpoint.pipeline.pipeline import PipelineRunner
from epochlog.errors import InvalidInput
from epochlog.store.session.handle import HasHandle

from .view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.checkpoint.worker.worker import Worker
    from epochlog.spark.job import Refresh as SparkRefresh


class Pipeline(PipelineRunner):
    """Runner of several jobs in parallel: with a Spark session by `job.step`, without one by `job.step_local`.

    threads: number of steps that run at a time, at least 1; None: the number of processors and four, at most 32. A step
    that takes longer than 5 seconds no longer counts, so jobs that hang do not keep the others from their steps. Raises
    InvalidInput, also for a session of Spark Connect. pauses: a clock for tests.

    A job that raises is tried again after a delay that doubles each time, up to 30 seconds; the other jobs are not
    affected. A job that finishes, is parked or dropped, or is taken over by another runner ends, and `status` shows its
    state; the pipeline does not claim it again. If the Spark session is lost, all jobs end: `run` returns, and the next
    process continues them. Safe to use from several threads.

    After a commit the job's tables whose L0 has reached `compact_segments` are compacted, before its next step. Nothing
    else is maintained: retention and vacuum are those of a store that is open with `maintenance=True`, which
    then compacts too.

    coordinator: the location of a served store ("grpc://host:port"), or a `Worker` of it, as in `job.start`. All jobs
    attach over its one stream: the server decides, times and commits their barriers, and this process refreshes them,
    each job by itself while the server does not answer. Raises InvalidInput, InsecureServer; `run` raises AccessDenied.
    """

    def __init__(
        self,
        store: HasHandle,
        spark: SparkSession | None = None,
        *,
        threads: int | None = None,
        pauses: Pauses | None = None,
        coordinator: str | Worker | None = None,
    ) -> None:
        if spark is not None:
            from epochlog.spark.job import require_session

            require_session("Pipeline", spark)
        super().__init__(store, threads=threads, pauses=pauses, coordinator=coordinator)
        self._spark = spark

    def add(
        self, job: HasRunner, refresh: LocalRefresh | SparkRefresh | None = None, *, take_over: bool = False
    ) -> None:
        """Add a job with its `refresh(ctx)`, or a view, which needs none; start it at once if the pipeline runs. An
        ended job, such as a parked one that is rebuilt now, runs again when it is added again.

        While another process runs the job, the pipeline waits for it to end, and then continues. take_over: fence the
        other process at once.

        Raises InvalidInput for a job of another store or one in the pipeline already, JobNotFound for a dropped one.
        """
        if isinstance(job, View):
            if refresh is not None:
                raise InvalidInput(f"view {job.name!r} is refreshed by its query: add it without a refresh")
            refresh = job.refresh
        elif job._runner.record().view is not None:
            raise InvalidInput(
                f"job {job._runner.name!r} is a view: add store.view({job._runner.name!r}), without a refresh"
            )
        super().add(job, refresh, take_over=take_over)  # pyright: ignore[reportArgumentType]: it refuses None

    def _begin_step(self, runner: JobRunner) -> RefreshAdapter:
        if self._spark is None:
            return super()._begin_step(runner)
        from epochlog.spark.job import SparkRefreshAdapter, begin_step_on_thread

        begin_step_on_thread(self._spark, runner.name)
        return SparkRefreshAdapter(runner.handle, self._spark)
