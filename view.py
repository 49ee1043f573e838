"""`View`: explain, step, start, check and end one view, a job whose refresh is derived from its query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochlog.checkpoint.job.job_ddl import JobInfo
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.steps import run_steps, through_chunks
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.session.handle import Handle
from epochlog.views.present_text import present_text

from .job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from epochlog.batch.differences import CheckReport
    from epochlog.checkpoint.job.refresh_context import RefreshContext
    from epochlog.checkpoint.worker.worker import Worker
    from epochlog.views.view_stats import ViewStats


class View(OneProcess):
    """View of a store: a job with one output table of its name, which is kept equal to a query.

    The first step or start claims the view, as with a `Job`. Each step derives the refresh from the view's current
    definition, so a runner that is at work when the view is replaced goes on with the new query.
    """

    _instead = "send store.root and the view's name: epochlog.open(root).view(name)"

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self._handle = handle
        self._job = Job(handle, job_id, name)
        self._runner: JobRunner = self._job._runner

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def job(self) -> Job:
        """Return the view's job, to alter, cancel or rebuild it."""
        return self._job

    @property
    def info(self) -> JobInfo:
        """Return the current state of the view."""
        return self._job.info

    @property
    def sql(self) -> str:
        """Return the current query, as it was given; after a rename of a column that it reads, in the present names,
        so that it can be given again.
        """
        job = self._runner.record()
        text = self._handle.catalog.read(lambda view: present_text(view, job))
        assert text is not None
        return text

    def __repr__(self) -> str:
        return f"<epochlog.View {self.name} of {self._handle.files.place}>"

    @property
    def refresh(self) -> Callable[[RefreshContext[Any, Any, Any]], None]:
        """Return the derived refresh, a function of the refresh context of either engine."""
        return refresh_view

    def explain(self, *, analyze: bool = False) -> str:
        """Describe the derived refresh: the columns by which groups are recomputed, and for each table that the query
        reads what a change of it touches; or that each step recomputes all rows, and the clause that is the reason. For
        each table, say if a backfill can take in its rows by chunks, or why not.

        analyze: also show `stats()`.
        """
        from epochlog.views.stored import explain

        text = explain(self._handle, self._runner.record())
        return f"{text}\n{self.stats()}" if analyze else text

    def stats(self) -> ViewStats:
        """Return statistics of the view: of its last steps in this process, at most 20, the engine, what they were
        computed by, rows, bytes and milliseconds, and the same for each block of its state; and the tables of the state
        of its newest commit, with rows and bytes. `print(view.stats())` shows tables.
        """
        from epochlog.views.view_stats import stats_of

        return stats_of(self._handle, self._runner.record())

    def step(
        self, spark: SparkSession | None = None, *, take_over: bool = False, until: str | None = None
    ) -> int | None:
        """Run one barrier with DuckDB in this process, or with `spark`; return its epoch, or None if there is nothing
        to do or the view has finished. A backfill by chunks is one barrier; each chunk is recorded when it is done.

        until: "newest" runs barriers through the newest boundary that there is at the call, and returns the last one's
        epoch. One barrier can end earlier: at an alter of an upstream, or at an earlier boundary. A step that
        `store.replace_views` or `rebuild` overtakes begins again, with the view's new query.

        Raises what `Job.step_local` and `Job.step` raise, DependencyMissing without DuckDB, and InvalidInput, with the
        values, for two rows of the query with one primary key: then nothing is committed.
        """
        if spark is None:
            return run_steps(
                self._runner,
                through_chunks(lambda take: self._runner.step_local(self.refresh, take_over=take)),
                until,
                take_over=take_over,
            )
        from epochlog.spark.job import step

        return run_steps(
            self._runner,
            through_chunks(lambda take: step(self._runner, spark, self.refresh, take_over=take)),
            until,
            take_over=take_over,
        )

    def start(
        self,
        spark: SparkSession,
        trigger: str | timedelta = "continuous",
        poll: str | timedelta = "100 milliseconds",
        *,
        take_over: bool = False,
        coordinator: str | Worker | None = None,
    ) -> StreamingQuery:
        """Keep the view up to date by a StreamingQuery, with the arguments and errors of `Job.start`."""
        from epochlog.spark.job_query import start

        return start(
            self._runner,
            spark,
            self.refresh,
            trigger=trigger,
            poll=poll,
            take_over=take_over,
            coordinator=coordinator,
        )

    def check(
        self,
        spark: SparkSession | None = None,
        *,
        tolerance: float = 0.0,
        sample: int = 20,
        state: bool = False,
    ) -> CheckReport:
        """Compare the view with its query over its upstreams at its newest commit, run by DuckDB, or by `spark`; see
        `Job.check`.

        state: also compare each state table of the view, which the report has as outputs `state groups` and
        `state values_<n>`, with the rows that the upstreams' rows give it, by DuckDB.

        Raises InvalidInput without `spark` for a query on which DuckDB can differ from Spark, and after
        `store.replace_views` or `rebuild` until the next commit, because the rows may be those of the query before.
        """
        while True:
            record = self._runner.record()
            report = self._check(record, spark, tolerance, sample)
            if state:
                from epochlog.views.state_check import check_state
                from epochlog.views.stored import plan_to_check

                tables = check_state(self._handle, record, plan_to_check(self._handle, record), sample)
                report = replace(report, outputs={**report.outputs, **tables})
            if self._runner.record().view == record.view:  # else the rows may be those of a newer query
                return report

    def _check(self, record: JobRecord, spark: SparkSession | None, tolerance: float, sample: int) -> CheckReport:
        from epochlog.views.stored import check_query, plan_to_check

        plan = plan_to_check(self._handle, record)
        if spark is None:
            return self._job.check(check_query(plan), tolerance=tolerance, sample=sample)
        from epochlog.spark.job import require_session
        from epochlog.spark.view_engine import answer

        require_session(f"job {self._runner.name!r}", spark)
        return self._job.check(lambda ctx: answer(spark, self._handle, plan, ctx), tolerance=tolerance, sample=sample)

    def rebuild(self) -> None:
        """Request a rebuild from all rows of the upstreams; see `Job.rebuild`."""
        self._job.rebuild()

    def stop(self, drain: bool = False, *, timeout: float | timedelta | None = 60.0) -> None:
        """Stop the query that `start` made in this process; drain: end the view's data too. See `Job.stop`."""
        if drain and self._runner.repeat_step is None:
            self._runner.repeat_step = self.step
        self._job.stop(drain, timeout=timeout)


def refresh_view(ctx: RefreshContext[Any, Any, Any]) -> None:
    """Refresh a view by its query, on the engine of the context: DuckDB in this process, or Spark."""
    from epochlog.views.stored import plan_of

    if isinstance(ctx, LocalRefreshContext):
        from epochlog.views import duckdb_engine

        duckdb_engine.refresh(ctx, *plan_of(ctx, "duckdb"))
        return
    from epochlog.spark import view_engine
    from epochlog.spark.refresh_context import SparkRefreshContext

    assert isinstance(ctx, SparkRefreshContext)
    view_engine.refresh(ctx, *plan_of(ctx, "spark"))
