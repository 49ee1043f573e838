"""`Job`: stepping, starting, checking and ending what keeps derived tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.drain import drain as drain_job
from epochlog.checkpoint.job.job_ddl import JobInfo, alter_job, cancel_job, list_jobs
from epochlog.checkpoint.job.runner import JobRunner, LocalRefresh
from epochlog.checkpoint.job.running_queries import live
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import TableOptions
from epochlog.store.session.handle import Handle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from epochlog.batch.check import CheckContext
    from epochlog.batch.differences import CheckReport
    from epochlog.spark.job import Refresh as SparkRefresh


class Job(OneProcess):
    """A job, and one runner of it: its first step or start claims the job, and fences an earlier runner that is idle.

    A runner that is alive is not fenced: it is inside a step, or in a query or a pipeline, and its process has been
    heard within ten seconds; one of this machine that has died is known to be dead at once.
    """

    _instead = "send store.root and the job's name: epochlog.open(root).job(name)"

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self._handle = handle
        self._runner = JobRunner(handle, job_id, name)

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def info(self) -> JobInfo:
        """Return the job as of now."""
        self._runner.record()
        return next(info for info in list_jobs(self._handle) if info.name == self.name)

    def __repr__(self) -> str:
        return f"<epochlog.Job {self.name} of {self._handle.files.place}>"

    def step_local(self, refresh: LocalRefresh, *, take_over: bool = False) -> int | None:
        """Run one barrier with pyarrow tables; return its epoch, or None when there is nothing to do or the job is
        finished.

        refresh(ctx) reads ctx.changes/table/previous/output and writes ctx.upsert/delete; all of it is committed
        together when it returns, and nothing when it raises. Of a job with snapshot_rows the first steps each take in a
        piece of the upstreams' rows at one epoch: ctx.changes gives rows of one upstream, ctx.table all of them,
        ctx.output what earlier pieces made; such a step returns 0, and the one after the last piece commits.

        While another runner of the job is alive it raises JobRunning, which names it; take_over=True fences that one at
        once. Raises Fenced when another has claimed the job since this one did, JobParked, JobNotFound, and what the
        refresh raises.
        """
        return self._runner.step_local(refresh, take_over=take_over)

    def step(self, spark: SparkSession, refresh: SparkRefresh, *, take_over: bool = False) -> int | None:
        """Run one barrier with Spark DataFrames, in the foreground; return its epoch, or None when there is nothing to
        do or the job is finished.
        """
        from epochlog.spark.job import step

        return step(self._runner, spark, refresh, take_over=take_over)

    def start(
        self,
        spark: SparkSession,
        refresh: SparkRefresh,
        trigger: str | timedelta = "continuous",
        poll: str | timedelta = "100 milliseconds",
        *,
        take_over: bool = False,
    ) -> StreamingQuery:
        """Run the job as a StreamingQuery that commits barrier after barrier; a second live start raises JobRunning.

        trigger: "continuous"; "available_now" to end when everything sealed so far is committed; or a time (timedelta,
        "1 minute 30 seconds"; Spark is told whole milliseconds), for one barrier in each such time at most. poll: how
        often a continuous query looks. Failures are noted as the job's last_error and tried again, as `Pipeline` does,
        five times in a row for "available_now"; Fenced, JobParked, JobNotFound, SparkLost and StoreClosed end the
        query. While another process runs the job, the query waits for its end; take_over=True fences it at once.
        """
        from epochlog.spark.job_query import start

        return start(self._runner, spark, refresh, trigger=trigger, poll=poll, take_over=take_over)

    def alter(
        self,
        *,
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        options: TableOptions | Mapping[str, TableOptions] | None = None,
    ) -> None:
        """Change how often the job commits and how late it may be, as `store.create_job` takes them, and the options of
        its outputs: one for all, or a dict by the outputs' names. What is None stays.

        Whoever runs the job goes on, and is not fenced: a barrier that is recorded is committed as it is, and the next
        ones are boundaries of the new interval. A max_lag that was given as a number stays that number of the job's own
        boundaries, one that was given as a time stays that time. Raises InvalidInput, JobNotFound.
        """
        alter_job(self._handle, self._runner.job_id, self.name, interval=interval, max_lag=max_lag, options=options)

    def check(
        self,
        query: str | Mapping[str, str] | Callable[[CheckContext], Any],
        *,
        tolerance: float = 0.0,
        sample: int = 20,
    ) -> CheckReport:
        """Compare the outputs with a query over the upstreams, all as of the job's newest commit, and tell the
        differences.

        query: a SELECT that DuckDB answers, which sees the upstreams as tables of their names and nothing else; of a
        job with several outputs a dict {output: SELECT}, of some or all; or a function, given a `CheckContext` whose
        `.table(upstream)` is a pyarrow Table, that returns an Arrow-shaped table, or a dict of them by output. Columns
        are matched by name, in any order, and cast where no value changes; rows by primary key. NaN equals NaN, -0.0
        equals 0.0. tolerance: how far floats may lie apart, relative to the larger, or absolutely where both are below
        1: sums of floats depend on their order. sample: rows of each kind of difference that the report keeps.

        Everything is pinned while it is read, and the rows of both sides are held in memory. The job may run on.
        Raises InvalidInput before the first commit and for a query that gives no such table, SchemaMismatch,
        DependencyMissing where DuckDB is not installed, and EpochExpired for a parked job whose upstreams have gone on.
        """
        from epochlog.batch.check import check_job

        return check_job(self._handle, self._runner.job_id, self.name, query, tolerance=tolerance, sample=sample)

    def rebuild(self) -> None:
        """Make the outputs anew: the next step, or steps, refresh from the upstreams' rows, with ctx.output empty.

        For a parked job, or for new logic. It fences nobody; the old rows stay readable until the commit, which is one
        log entry: what differs. Raises TableFinished.
        """
        self._runner.rebuild()

    def cancel(self) -> None:
        """Remove the job and its outputs at once while it is still creating; whoever runs it gets JobNotFound.

        A query that `start` made in this process is stopped. Raises InvalidInput for a job that is not creating
        (`store.drop_job` removes it), TableInUse when another job reads one of its outputs.
        """
        cancel_job(self._handle, self._runner.job_id, self.name)
        live.stop(self._runner)

    def stop(self, drain: bool = False, *, timeout: float | timedelta | None = 60.0) -> None:
        """Stop the query that `start` made in this process, after the barrier at hand. It does not end the data.

        drain: end the data too. What the upstreams have got so far is taken in, the commit that does it is the job's
        last, and its outputs are finished: later changes of the upstreams are not its input. Without a query here the
        rest is run with the refresh that this Job was last given; one that was given none records the end for whoever
        runs the job next. Raises DrainPending after `timeout` (seconds or a timedelta; None: never), JobParked, Fenced,
        and what the refresh raises. A finished job stays as it is.
        """
        if drain:
            drain_job(self._runner, timeout)
        else:
            live.stop(self._runner)
