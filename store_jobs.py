"""`StoreJobs`: the part of `Store` that makes, finds and drops jobs and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.checkpoint.job.adopt import adopt_table, drop_job_alone
from epochlog.checkpoint.job.job_ddl import JobInfo, Output, create_job, drop_job, list_jobs
from epochlog.checkpoint.job.view_ddl import require_view
from epochlog.store.metadata.lookups import find_job
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.session.handle import Handle
from epochlog.views.present_text import present_text

from .job import Job
from .table import Table
from .view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.views.definition import SchemaPlanner


class StoreJobs:
    """Jobs and views of an open store."""

    _handle: Handle

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def create_job(
        self,
        name: str,
        upstreams: Sequence[str],
        outputs: Mapping[str, Output | tuple[pa.Schema, Sequence[str]]],
        *,
        backfill: str = "snapshot",
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        snapshot_rows: int | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        exist_ok: bool = False,
    ) -> Job:
        """Create a job with its output tables {name: Output(schema, primary key)}, or pairs of both.

        backfill: "snapshot" starts from the upstreams' rows, "log" from the first entry of their logs. interval:
        distance of two commits: a number of store boundaries (None: 1) or a timedelta, which must be a whole number of
        them. max_lag: a job further behind may merge boundaries: a number of its own boundaries (None: 30) or a
        timedelta, rounded down to whole ones. `job.info` shows both as boundaries and as time. snapshot_rows: take in
        the upstreams' rows in chunks of at most this many rows, one chunk a step; None: in one step. columns:
        {upstream: columns} that the job reads beside the key; it reads all columns of the others. It keeps these
        columns, their names and their types at every epoch, and prevents an alter that drops or widens one of them
        (SchemaInUse). exist_ok: return an existing job of that name; JobExists names its differences (interval and
        max_lag only if passed).
        """
        record = create_job(
            self._handle,
            name,
            upstreams,
            outputs,
            backfill=backfill,
            interval=interval,
            max_lag=max_lag,
            snapshot_rows=snapshot_rows,
            columns=columns,
            exist_ok=exist_ok,
        )
        return Job(self._handle, record.id, record.name)

    def job(self, name: str) -> Job:
        """Return the job of that name, or raise JobNotFound. Its first step claims the job, unless another runner is
        alive.
        """
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        return Job(self._handle, record.id, record.name)

    def jobs(self) -> list[JobInfo]:
        """Return all jobs, by name."""
        return list_jobs(self._handle, present_text)

    def drop_job(self, name: str, *, keep_outputs: bool = False) -> None:
        """Delete a job and its output tables; TableInUse while another job reads one of them.

        keep_outputs: keep the tables as root tables (see `adopt`); jobs that read them continue.
        """
        (drop_job_alone if keep_outputs else drop_job)(self._handle, name)

    def adopt(self, name: str) -> Table:
        """Make an output of a finished job a root table, which every process may write, for the end of a migration.

        Jobs that read it continue; a finished one does not take in later writes, and stays as it is (its own output can
        be adopted, too). Policies choose no epoch below the job's last commit for the table or its descendants; it can
        still be read there by itself. A root table is returned unchanged. Raises TableNotFound, and TableInUse while
        the job may still write the table (`job.stop(drain=True)` ends that).
        """
        return Table(self._handle, adopt_table(self._handle, name))

    # ---- views ---------------------------------------------------------------------------------------------------

    def create_view(
        self,
        name: str,
        sql: str,
        primary_key: Sequence[str],
        *,
        refresh: str = "auto",
        spark: SparkSession | None = None,
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        changelog: str | None = None,
        options: TableOptions | None = None,
        snapshot_rows: int | None = None,
        exist_ok: bool = False,
    ) -> View:
        """Create a view: a table that is kept equal to a query over tables of this store, by a derived refresh.

        sql: one SELECT in Spark's dialect, on DuckDB and on Spark. Its columns and their types are those of the table;
        primary_key names those that identify a row. refresh: "incremental" recomputes the groups of rows that the
        changes touch, and is refused for a query without such groups; "full" recomputes all rows; "auto" chooses.
        Either way a commit has only the rows that differ. spark: the session that plans the query; None: DuckDB.
        interval, max_lag: as in `create_job`. changelog, options: of the view's table. snapshot_rows: a backfill or
        rebuild takes in at most this number of rows of its largest table at a time, so that its memory is bounded and a
        kill loses one such chunk at most; None: 2,000,000. `View.explain` names the tables of which it can do so.
        exist_ok: return an existing view of that name with this query, whatever its spaces and comments are; JobExists
        names its differences.

        Raises InvalidInput for a query that cannot be kept, with the clause or function that is the reason,
        TableNotFound, JobExists, OutputOwned, InvalidSchema, DependencyMissing without sqlglot or DuckDB
        (`pip install epochlog[sql]`).
        """
        from epochlog.views.definition import create_view

        record = create_view(
            self._handle,
            name,
            sql,
            primary_key,
            refresh=refresh,
            schema_of=schema_planner(spark),
            interval=interval,
            max_lag=max_lag,
            changelog=changelog,
            options=options,
            snapshot_rows=snapshot_rows,
            exist_ok=exist_ok,
        )
        return View(self._handle, record.id, record.name)

    def view(self, name: str) -> View:
        """Return the view of that name. Raises JobNotFound, and InvalidInput for a job that is no view."""
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        require_view(record)
        return View(self._handle, record.id, record.name)

    def replace_views(self, queries: Mapping[str, str], *, spark: SparkSession | None = None) -> int:
        """Give views new queries {view: query}, all together; return the epoch at which the views change.

        Each view is rebuilt at that epoch by its next step, in whatever process runs it, and commits the rows that
        differ; its old rows stay readable until then. A read at one epoch sees all views by the old queries, or all by
        the new ones. The columns, their types and the primary keys stay.

        Raises JobNotFound, InvalidInput, SchemaMismatch, TableNotFound, TableFinished, JobCycle; then no view changes.
        """
        from epochlog.views.definition import change_views

        return change_views(self._handle, queries, schema_of=schema_planner(spark))

    def drop_view(self, name: str) -> None:
        """Delete a view with its table. Raises JobNotFound, InvalidInput for a job that is no view, TableInUse."""
        self.view(name)
        drop_job(self._handle, name)


def schema_planner(spark: SparkSession | None) -> SchemaPlanner:
    """Return the planner of views' schemas: DuckDB, or Spark with a session."""
    if spark is None:
        from epochlog.views.duckdb_engine import output_schema

        return output_schema
    from epochlog.spark.view_engine import output_schema

    return partial(output_schema, spark)
