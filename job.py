"""`Job`: step, start, alter, check, rebuild and end one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.drain import drain as drain_job
from epochlog.checkpoint.job.job_ddl import JobInfo, alter_job, cancel_job, job_info
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter
from epochlog.checkpoint.job.runner import JobRunner, LocalRefresh
from epochlog.checkpoint.job.running_queries import live
from epochlog.checkpoint.job.steps import run_steps
from epochlog.errors import InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.process_local import OneProcess
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.session.handle import Handle
from epochlog.views.present_text import present_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from epochlog.batch.check import CheckContext
    from epochlog.batch.differences import CheckReport
    from epochlog.checkpoint.worker.worker import Worker
    from epochlog.spark.job import Refresh as SparkRefresh


class Job(OneProcess):
    """Job, with one runner of it. The first step or start claims the job, and fences an earlier runner that is idle.

    A live runner is not fenced: it is inside a step, a query or a pipeline, and its process has renewed its lease
    within ten seconds. A dead process of this machine is detected at once.
    """

    _instead = "send store.root and the job's name: epochlog.open(root).job(name)"

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self._handle = handle
        self._runner = JobRunner(handle, job_id, name)
        self._is_plain = False  # known to be no view

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def info(self) -> JobInfo:
        """Return the current state of the job."""
        handle, job_id = self._handle, self._runner.job_id

        def read_info(view: ReadTxn) -> JobInfo:
            epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
            return job_info(view, handle, get_job(view, job_id, self.name), epochs, present_text)

        return handle.catalog.read(read_info)

    def __repr__(self) -> str:
        return f"<epochlog.Job {self.name} of {self._handle.files.place}>"

    def step_local(self, refresh: LocalRefresh, *, take_over: bool = False, until: str | None = None) -> int | None:
        """Run one barrier with pyarrow tables; return its epoch, or None if there is nothing to do or the job has
        finished.

        refresh(ctx) reads ctx.changes/table/previous/output and writes ctx.upsert/delete. Its writes are committed
        together when it returns, and dropped when it raises. The first steps of a job with snapshot_rows each take in a
        chunk of the upstreams' rows at one epoch: ctx.changes returns the chunk's rows of one upstream, ctx.table all
        rows, ctx.output the rows of earlier chunks. Such a step returns 0; the step after the last chunk commits.

        until: "newest" runs barriers through the newest boundary that there is at the call, and returns the last one's
        epoch. One barrier can end earlier: at an alter of an upstream, or at an earlier boundary.

        Raises JobRunning, with its name, while another runner of the job is alive (take_over=True fences it at once),
        Fenced if another runner has claimed the job since this one did, JobParked, JobNotFound, and the errors of the
        refresh.
        """
        self._require_plain()
        if until is None:
            return self._runner.step(refresh, LocalRefreshAdapter(self._handle), take_over=take_over)
        return run_steps(
            self._runner, lambda take: self._runner.step_local(refresh, take_over=take), until, take_over=take_over
        )

    def step(
        self, spark: SparkSession, refresh: SparkRefresh, *, take_over: bool = False, until: str | None = None
    ) -> int | None:
        """Run one barrier with Spark DataFrames, in the foreground; return its epoch, or None if there is nothing to do
        or the job has finished. until: "newest" runs barriers through the newest boundary, as for `step_local`.
        """
        from epochlog.spark.job import step

        self._require_plain()
        return run_steps(
            self._runner,
            lambda take: step(self._runner, spark, refresh, take_over=take),
            until,
            take_over=take_over,
        )

    def start(
        self,
        spark: SparkSession,
        refresh: SparkRefresh,
        trigger: str | timedelta = "continuous",
        poll: str | timedelta = "100 milliseconds",
        *,
        take_over: bool = False,
        coordinator: str | Worker | None = None,
    ) -> StreamingQuery:
        """Run the job as a StreamingQuery that commits barrier after barrier; a second live start raises JobRunning.

        trigger: "continuous"; "available_now" to end when everything sealed so far is committed; or a time (timedelta,
        "1 minute 30 seconds", in whole milliseconds) for at most one barrier in each such interval. poll: the time
        between two looks of a continuous query. A failure is recorded as the job's last_error and tried again with the
        backoff of `Pipeline`, for "available_now" up to five times in a row; Fenced, JobParked, JobNotFound, SparkLost
        and StoreClosed end the query. So does the end of the job's data, without an error. While another process runs
        the job, the query waits for its end; take_over=True fences it at once.

        coordinator: the location of a served store ("grpc://host:port"), or a `Worker` of it, for a token, TLS, or one
        stream for many queries. The server then decides, times and commits the barriers, and this driver refreshes
        them, a backfill by chunks too. While the server does not answer and its lease on the job has ended, the driver
        runs the job alone; when it answers again, the driver goes on under it. Another driver of the job waits.
        `Worker.stop(job=…)` ends the query with Cancelled, or drains it. Raises InvalidInput for another trigger than
        "continuous", AccessDenied, InsecureServer.
        """
        from epochlog.spark.job_query import start

        self._require_plain()
        return start(
            self._runner,
            spark,
            refresh,
            trigger=trigger,
            poll=poll,
            take_over=take_over,
            coordinator=coordinator,
        )

    def _require_plain(self) -> None:
        """Raise InvalidInput for a view, whose rows only its own query may make."""
        if not self._is_plain:
            if self._runner.record().view is not None:
                raise InvalidInput(
                    f"job {self.name!r} is a view, refreshed by its query: use store.view({self.name!r}), and its "
                    "step() or start(spark)"
                )
            self._is_plain = True

    def alter(
        self,
        *,
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        options: TableOptions | Mapping[str, TableOptions] | None = None,
        snapshot_rows: int | None = None,
    ) -> None:
        """Change the job's interval, permitted lag and rows of a backfill chunk, as in `store.create_job`, and the
        options of its outputs: one for all, or a dict by output name. None keeps a value.

        The job's runner continues and is not fenced: it commits a recorded barrier, and later barriers are boundaries
        of the new interval. A max_lag that was given as a number stays that number of the job's boundaries; one that
        was given as a time stays that time. Raises InvalidInput, JobNotFound.
        """
        alter_job(
            self._handle,
            self._runner.job_id,
            self.name,
            interval=interval,
            max_lag=max_lag,
            options=options,
            snapshot_rows=snapshot_rows,
        )

    def check(
        self,
        query: str | Mapping[str, str] | Callable[[CheckContext], Any],
        *,
        tolerance: float = 0.0,
        sample: int = 20,
    ) -> CheckReport:
        """Compare the outputs with a query over the upstreams, at the job's newest commit, and report the differences.

        query: a SELECT for DuckDB, which sees only the upstreams, as tables of their names; for a job with several
        outputs a dict {output: SELECT} of some or all outputs; or a function that takes a `CheckContext`, whose
        `.table(upstream)` is a pyarrow Table, and returns an Arrow-shaped table, or a dict of them by output. Columns
        are matched by name, in any order, and cast if no value changes; rows are matched by primary key. NaN equals
        NaN, -0.0 equals 0.0. tolerance: permitted difference of floats, relative to the larger one, or absolute if both
        are below 1: sums of floats depend on their order. sample: rows that the report keeps of each kind of
        difference. The own text of a view is in Spark's dialect: it is checked as `View.check` does.

        The tables are pinned while they are read, and the rows of both sides are held in memory. The job may run
        meanwhile. Raises InvalidInput before the first commit and for a query without such a result, SchemaMismatch,
        DependencyMissing if DuckDB is not installed, and EpochExpired for a parked job whose upstreams' rows at its
        commit are deleted.
        """
        from epochlog.batch.check import check_job

        record = self._runner.record()
        if record.view is not None and isinstance(query, str) and query in (record.view.sql, self._text(record)):
            from epochlog.views.stored import check_query, plan_to_check

            query = check_query(plan_to_check(self._handle, record))
        return check_job(self._handle, self._runner.job_id, self.name, query, tolerance=tolerance, sample=sample)

    def _text(self, record: JobRecord) -> str | None:
        return self._handle.catalog.read(lambda view: present_text(view, record))

    def rebuild(self) -> None:
        """Request a rebuild: the next step, or steps, refresh from the upstreams' rows, with ctx.output empty.

        Use it for a parked job, or for new logic. It fences no runner. The old rows stay readable until the commit,
        whose single log entry is the difference to them. Raises TableFinished.
        """
        self._runner.rebuild()

    def cancel(self) -> None:
        """Drop the job and its outputs while it is still creating; its runner gets JobNotFound.

        Stop the query that `start` made in this process. Raises InvalidInput for a job that is not creating
        (`store.drop_job` drops it), TableInUse if another job reads one of its outputs.
        """
        cancel_job(self._handle, self._runner.job_id, self.name)
        live.stop(self._runner)

    def stop(self, drain: bool = False, *, timeout: float | timedelta | None = 60.0) -> None:
        """Stop the query that `start` made in this process, after its barrier in flight. It does not end the data.

        drain: end the data too. The job takes in all changes so far with its last commit, and its outputs are finished:
        it ignores later changes of its upstreams. Without a query in this process, the remaining steps run with the
        refresh of this Job's newest step; a Job without one records the end for the job's next runner. Raises
        DrainPending after `timeout` (seconds or a timedelta; None: never), JobParked, Fenced, and the errors of the
        refresh. A finished job is left unchanged.
        """
        if drain:
            drain_job(self._runner, timeout)
        else:
            live.stop(self._runner)
