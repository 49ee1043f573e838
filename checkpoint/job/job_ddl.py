"""DDL of jobs: create, alter, drop and list jobs and their output tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, JobCycle, JobExists, OutputOwned, TableInUse
from epochlog.store.catalog.keys import HEAD, job_key, job_name_key, name_key, step_times_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.table_ddl import add_table, altered, of_earlier_query, remove_table
from epochlog.store.commit.type_trial import require_returnable
from epochlog.store.env.log_events import JOB_ALTERED, JOB_CREATED, JOB_DROPPED, JOB_OUTSIDE
from epochlog.store.epochs.global_membership import outside_by_interval
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef, ViewDefinition
from epochlog.store.metadata.job_columns import Declared, bound_versions, checked_columns, require_versions
from epochlog.store.metadata.lookups import all_jobs, find_job, find_table, get_job, get_store, get_table, get_version
from epochlog.store.metadata.table_differences import table_differences
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import live_runner
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema, check_name

from .backfill_chunks import VIEW_SNAPSHOT_ROWS, check_rows
from .job_intervals import Interval, JobIntervals, MaxLag, make_intervals

NO_VERSIONS: Mapping[str, int] = MappingProxyType({})
TextOf = Callable[[ReadTxn, JobRecord], str | None]
"""Returns the query of a view, or None."""


@dataclass(frozen=True, slots=True)
class Output:
    """Declaration of an output table for `create_job`.

    changelog: "full" stores with every commit the rows that it replaces, "upsert" (the default) does not.
    drop_unchanged: a commit leaves out upserts of equal rows and deletes of missing keys; it looks up the keys that it
    writes for that. The default is True. `table.alter` changes all settings later, but not schema and key.
    """

    schema: pa.Schema
    primary_key: Sequence[str]
    changelog: str | None = None
    options: TableOptions | None = None
    drop_unchanged: bool | None = None

    @property
    def settings(self) -> Settings:
        """Return the declared table settings, without schema and key."""
        return Settings(self.options, self.changelog, self.drop_unchanged)


@dataclass(frozen=True, slots=True)
class WantedView:
    """View that a job is to be. difference: returns in which way an existing job is another view; None if it is not."""

    definition: ViewDefinition
    difference: Callable[[ReadTxn, JobRecord], str | None]


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Live runner of a job. kind: step | query | pipeline | coordinator; since_ms: Unix milliseconds."""

    kind: str
    host: str
    pid: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class JobInfo:
    """Current state of a job. lag_ms: age of the oldest upstream change that no commit reflects; 0 without one.

    draining: `job.stop(drain=True)` was called, and the job has not finished yet. lost: for a parked job, the reason
    with the changes or rows that retention removed. snapshot_rows: rows that the backfill chunks have taken in so far.
    rebuilding: the next commit rebuilds the outputs. interval: in boundaries of the store; interval_ms: in
    milliseconds. max_lag: in boundaries of the job; max_lag_ms: in milliseconds. outside: the reason for which reads
    under `global` leave the job's tables out now, or None. runner: the live runner, or None. sql: the query of a view,
    in the present names of the columns that it reads, or None.
    """

    name: str
    upstreams: tuple[str, ...]
    outputs: tuple[str, ...]
    state: str
    committed_epoch: int
    lag_ms: int
    incarnation: int
    last_error: str | None
    draining: bool = False
    lost: str | None = None
    snapshot_rows: int = 0
    rebuilding: bool = False
    interval: int = 1
    interval_ms: int = 0
    max_lag: int = 0
    max_lag_ms: int = 0
    outside: str | None = None
    runner: RunnerInfo | None = None
    sql: str | None = None


def create_job(
    handle: Handle,
    name: str,
    upstreams: Sequence[str],
    outputs: Mapping[str, Output | tuple[pa.Schema, Sequence[str]]],
    *,
    backfill: str = "snapshot",
    interval: Interval | None = None,
    max_lag: MaxLag | None = None,
    snapshot_rows: int | None = None,
    exist_ok: bool = False,
    view: WantedView | None = None,
    columns: Declared | None = None,
    planned: Mapping[str, int] = NO_VERSIONS,
) -> JobRecord:
    """Create a job and its output tables in one transaction. exist_ok: return an existing job with equal arguments.
    view: the job is this view. columns: the columns to read of some upstreams. planned: the versions of the upstreams'
    columns for which the view was planned.

    Raises JobExists, JobCycle, OutputOwned, TableNotFound, InvalidInput, SchemaChanged.
    """
    declared = _checked_outputs(name, upstreams, outputs)
    _check_backfill(name, backfill, snapshot_rows)
    intervals = make_intervals(name, interval, max_lag, handle.interval_ms)

    def body(tx: Txn) -> tuple[JobRecord, bool]:
        if tx.get(job_name_key(name)) is not None:
            if not exist_ok:
                raise JobExists(f"job {name!r} exists already; get it with store.job({name!r}) or take another name")
            existing = find_job(tx, name)
            now = JobIntervals(existing.interval, existing.max_lag, existing.max_lag_ms)
            wanted_intervals = make_intervals(name, interval, max_lag, handle.interval_ms, now)
            request = _JobRequest(upstreams, declared, backfill, snapshot_rows, wanted_intervals, view, columns)
            return _require_same_job(tx, existing, request), False
        upstream_tables = _checked_upstreams(tx, handle, name, upstreams, [*outputs], backfill)
        require_versions(upstream_tables, planned)
        job_id, now_ms = Counters.read(tx).next_job, handle.catalog.now_ms()
        tables = [add_table(tx, schema, settings, job_id, now_ms) for schema, settings in declared]
        job = JobRecord(
            id=job_id,
            name=name,
            upstreams=tuple(table.id for table in upstream_tables),
            outputs=tuple(table.id for table in tables),
            backfill=backfill,
            interval=intervals.interval,
            max_lag=intervals.max_lag,
            max_lag_ms=intervals.max_lag_ms,
            snapshot_rows=VIEW_SNAPSHOT_ROWS if snapshot_rows is None and view is not None else snapshot_rows,
            progress_ms=now_ms,
            created_ms=now_ms,
            view=None if view is None else view.definition,
            bound=bound_versions(upstream_tables),
            columns=checked_columns(name, upstream_tables, columns),
        )
        _put_new_job(tx, job)
        return job, True

    job, is_new = handle.catalog.transact(body)
    _note_created(handle, job, upstreams if is_new else None, outputs)
    return job


def _note_created(handle: Handle, job: JobRecord, upstreams: Sequence[str] | None, outputs: Mapping[str, Any]) -> None:
    """Log a job that was created, and its effect on `global`. upstreams: None for a job that existed already."""
    if upstreams is not None:
        handle.log(JOB_CREATED, job=job.name, upstreams=upstreams, outputs=list(outputs))
    _warn_of_intervals(handle, job)


def _put_new_job(tx: Txn, job: JobRecord) -> None:
    tx.put(HEAD, replace(Counters.read(tx), next_job=job.id + 1).to_record())
    tx.put(job_key(job.id), job.to_record())
    tx.put(job_name_key(job.name), {"id": job.id})


def _check_backfill(name: str, backfill: str, snapshot_rows: int | None) -> None:
    if backfill not in ("snapshot", "log"):
        raise InvalidInput(f"job {name!r}: backfill must be 'snapshot' or 'log', not {backfill!r}")
    check_rows(name, snapshot_rows)


def _checked_upstreams(
    tx: Txn, handle: Handle, name: str, upstreams: Sequence[str], outputs: Sequence[str], backfill: str
) -> list[TableDef]:
    """Return the upstream tables; raise TableNotFound, JobCycle, OutputOwned or InvalidInput."""
    upstream_tables = [find_table(tx, upstream) for upstream in upstreams]
    _refuse_cycle(tx, handle, name, upstreams, outputs)
    for output in outputs:
        _refuse_owned(tx, output)
    if backfill == "log":
        _require_whole_logs(tx, name, upstream_tables)
    return upstream_tables


def _warn_of_intervals(handle: Handle, job: JobRecord) -> None:
    """Log a warning for each job that is outside of `global` because of this job's interval.

    The store's own interval divides that of every job, so it leaves none out, and no other job is read.
    """

    def body(view: ReadTxn) -> EpochView | None:
        store = get_store(view)
        if job.interval == 1 and store.interval_ms <= store.max_lag_ms // 2:
            return None
        return read_epoch_view(view, handle.memory, handle.catalog.now_ms())

    epochs = handle.catalog.read(body)
    if epochs is None:
        return
    tables = epochs.closure(epochs.tables)
    outside_before = outside_by_interval(
        [table for table in tables if table.job_id != job.id], epochs.global_max_lag_ms
    )
    for job_id, reason in outside_by_interval(tables, epochs.global_max_lag_ms).items():
        if job_id not in outside_before:
            names = [table.name for table in tables if table.job_id == job_id]
            handle.log(JOB_OUTSIDE, tables=names, reason=reason)


@dataclass(frozen=True, slots=True)
class _JobRequest:
    """Requested properties of a job; intervals that are not given are those of the existing job."""

    upstreams: Sequence[str]
    outputs: Sequence[tuple[TableSchema, Settings]]
    backfill: str
    snapshot_rows: int | None
    intervals: JobIntervals
    view: WantedView | None
    columns: Declared | None


def _require_same_job(tx: Txn, job: JobRecord, request: _JobRequest) -> JobRecord:
    """Return the existing job; raise JobExists with all differences if it does not match the request."""
    upstreams = [get_table(tx, table, f"upstream of {job.name}").name for table in job.upstreams]
    existing = {table.name: table for table in (get_table(tx, table, f"output of {job.name}") for table in job.outputs)}
    requested = {schema.name: (schema, settings) for schema, settings in request.outputs}
    differences = []
    if request.view is None and set(upstreams) != set(request.upstreams):  # a view's are those of its query
        differences.append(f"its upstreams are {sorted(upstreams)}, not {sorted(request.upstreams)}")
    if set(existing) != set(requested):
        differences.append(f"its outputs are {sorted(existing)}, not {sorted(requested)}")
    for name in sorted(set(existing) & set(requested)):
        differences += [f"output {name!r}: {field}" for field in table_differences(existing[name], *requested[name])]
    for field, current, wanted in (
        ("backfill", job.backfill, request.backfill),
        ("interval", job.interval, request.intervals.interval),
        ("max_lag", job.max_lag, request.intervals.max_lag),
        ("snapshot_rows", job.snapshot_rows, request.snapshot_rows),
    ):
        unasked = field == "snapshot_rows" and wanted is None and request.view is not None
        if current != wanted and not unasked:
            differences.append(f"its {field} is {current!r}, not {wanted!r}")
    wanted_columns = {name: list(names) for name, names in (request.columns or {}).items()}
    by_id = dict(zip(job.upstreams, upstreams, strict=True))
    present_columns = {by_id[table]: list(names) for table, names in job.columns}
    if request.view is None and wanted_columns != present_columns:  # a view's are those of its query
        differences.append(f"it reads the columns {present_columns or 'of all upstreams'}, not {wanted_columns}")
    if request.view is not None:
        difference = request.view.difference(tx, job)
        differences += [difference] if difference else []
    elif job.view is not None:
        differences.append("it is a view")
    if differences:
        raise JobExists(
            f"job {job.name!r} exists already and differs: {'; '.join(differences)}. Take another name, give matching "
            f"arguments, change the job with store.job({job.name!r}).alter(…), or drop it"
        )
    return job


def alter_job(
    handle: Handle,
    job_id: int,
    name: str,
    *,
    interval: Interval | None = None,
    max_lag: MaxLag | None = None,
    options: TableOptions | Mapping[str, TableOptions] | None = None,
    snapshot_rows: int | None = None,
) -> None:
    """Change a job's interval, permitted lag, rows of a chunk and the options of its outputs, in one transaction.

    None keeps a value. A recorded barrier is still committed; later ones are boundaries of the new interval. options:
    for all outputs, or by output name. Raises JobNotFound, InvalidInput.
    """
    if interval is None and max_lag is None and snapshot_rows is None and (options is None or options == {}):
        raise InvalidInput(f"job {name!r}: alter takes interval=, max_lag=, options= or snapshot_rows=")
    check_rows(name, snapshot_rows)
    named = options if isinstance(options, Mapping) else {}
    for table, table_options in {**named, **({} if isinstance(options, Mapping) else {name: options})}.items():
        Settings(options=table_options).check(table, derived=True)

    def body(tx: Txn) -> JobRecord:
        job = get_job(tx, job_id, name)
        outputs = {get_table(tx, table, f"output of {name}").name: table for table in job.outputs}
        unknown = [table for table in named if table not in outputs]
        if unknown:
            raise InvalidInput(f"job {name!r} has no output {unknown[0]!r}; it has {', '.join(outputs)}")
        for table, table_id in outputs.items():
            table_options = options if isinstance(options, TableOptions) else named.get(table)
            altered(tx, table_id, table, Settings(options=table_options))
        current = JobIntervals(job.interval, job.max_lag, job.max_lag_ms)
        intervals = make_intervals(name, interval, max_lag, handle.interval_ms, current)
        rows = job.snapshot_rows if snapshot_rows is None else snapshot_rows
        if intervals != current or rows != job.snapshot_rows:
            job = replace(job, **asdict(intervals), snapshot_rows=rows)
            tx.put(job_key(job.id), job.to_record())
        return job

    job = handle.catalog.transact(body)
    handle.log(JOB_ALTERED, job=name)
    _warn_of_intervals(handle, job)
    handle.wake_maintenance()


def drop_job(handle: Handle, name: str) -> None:
    """Drop a job and its output tables. Raises TableInUse while another job reads one of them."""

    def body(tx: Txn) -> None:
        job = find_job(tx, name)
        _remove(tx, job, "dropped", handle.catalog.now_ms())

    handle.catalog.transact(body)
    handle.log(JOB_DROPPED, job=name, action="dropped")


def cancel_job(handle: Handle, job_id: int, name: str) -> None:
    """Drop a job that is still creating, with its outputs; its runner gets JobNotFound.

    Raises InvalidInput if it is not creating, TableInUse if another job reads one of its outputs.
    """

    def body(tx: Txn) -> None:
        job = get_job(tx, job_id, name)
        if job.position and (job.state != "creating" or job.rebuilding):
            state = "rebuilding" if job.rebuilding else job.state
            raise InvalidInput(
                f"job {name!r} is {state} since its commit at {show_epoch(job.position)}, and only a job that is still "
                f"creating can be cancelled; store.drop_job({name!r}) removes it with its tables"
            )
        _remove(tx, job, "cancelled", handle.catalog.now_ms())

    handle.catalog.transact(body)
    handle.log(JOB_DROPPED, job=name, action="cancelled")


def refuse_in_use(view: ReadTxn, job: JobRecord, action: str = "dropped") -> None:
    """Raise TableInUse, with the reader's name, if another job reads one of the job's outputs."""
    for other in all_jobs(view):
        shared = [table_id for table_id in job.outputs if table_id in other.upstreams]
        if shared:
            raise TableInUse(
                f"job {job.name!r} cannot be {action}: job {other.name!r} reads its output "
                f"{get_table(view, shared[0], '?').name!r}; drop or cancel job {other.name!r} first"
            )
        if other.id != job.id and not set(job.outputs).isdisjoint(other.rows_from):
            raise TableInUse(f"job {job.name!r} cannot be {action}: {of_earlier_query(other)}")


def _remove(tx: Txn, job: JobRecord, action: str, now_ms: int) -> None:
    """Delete the job, its outputs, and with them its holds. Call inside a transaction."""
    refuse_in_use(tx, job, action)
    for table_id in job.outputs:
        remove_table(tx, table_id, now_ms)
    tx.delete(job_key(job.id))
    tx.delete(step_times_key(job.id))
    tx.delete(job_name_key(job.name))


def no_text(view: ReadTxn, job: JobRecord) -> None:
    """Return None, for a list of jobs without the queries of views."""


def job_info(view: ReadTxn, handle: Handle, job: JobRecord, epochs: EpochView, text_of: TextOf = no_text) -> JobInfo:
    """Describe a job for `store.jobs()`; its state is `failed` if its newest attempt failed."""
    store_ms = handle.interval_ms
    failed = job.last_error is not None and job.state in ("creating", "running")
    outputs = tuple(epochs.table(table).name for table in job.outputs)
    return JobInfo(
        name=job.name,
        upstreams=tuple(epochs.table(table).name for table in job.upstreams),
        outputs=outputs,
        state="failed" if failed else job.state,
        committed_epoch=job.position,
        lag_ms=max((epochs.lag_ms(table) for table in job.outputs), default=0),
        incarnation=job.incarnation,
        last_error=job.last_error,
        draining=job.drain is not None and job.state != "finished",
        lost=job.lost,
        snapshot_rows=job.cursor.rows if job.cursor else 0,
        rebuilding=job.rebuilding,
        interval=job.interval,
        interval_ms=job.interval * store_ms,
        max_lag=job.max_lag,
        max_lag_ms=job.max_lag * job.interval * store_ms,
        outside=next(
            (reason for table in outputs if (reason := epochs.membership.left_out.get(table)) is not None), None
        ),
        runner=runner_of(view, handle, job),
        sql=text_of(view, job),
    )


def runner_of(view: ReadTxn, handle: Handle, job: JobRecord) -> RunnerInfo | None:
    """Return the live runner of the job, or None."""
    runner = live_runner(view, handle, job)
    return None if runner is None else RunnerInfo(runner.kind, runner.host, runner.pid, runner.since_ms)


def list_jobs(handle: Handle, text_of: TextOf = no_text) -> list[JobInfo]:
    """List all jobs, by name."""

    def read_infos(view: ReadTxn) -> list[JobInfo]:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        infos = (job_info(view, handle, job, epochs, text_of) for job in all_jobs(view))
        return sorted(infos, key=lambda info: info.name)

    return handle.catalog.read(read_infos)


def _checked_outputs(
    name: str, upstreams: Sequence[str], outputs: Mapping[str, Any]
) -> list[tuple[TableSchema, Settings]]:
    check_name("job", name)
    valid = isinstance(upstreams, list | tuple) and upstreams and all(isinstance(table, str) for table in upstreams)
    if not valid or len(set(upstreams)) != len(upstreams):
        raise InvalidInput(f"job {name!r}: upstreams is a list of one or more different table names, not {upstreams!r}")
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidInput(
            f"job {name!r}: outputs is a dict {{table: epochlog.Output(schema, primary key)}} with at least one table"
        )
    cycles = sorted(set(upstreams) & set(outputs))
    if cycles:
        raise JobCycle(
            f"job {name!r} would read its own output {cycles[0]!r}; use ctx.output({cycles[0]!r}) for its state so far"
        )
    declared = []
    for table, declaration in outputs.items():
        if not isinstance(declaration, Output) and not (
            isinstance(declaration, tuple | list) and len(declaration) == 2
        ):
            raise InvalidInput(
                f"job {name!r}: output {table!r} is an epochlog.Output(schema, primary key) or a pair "
                f"(schema, primary key), not {declaration!r}"
            )
        output = declaration if isinstance(declaration, Output) else Output(*declaration)
        output.settings.check(table, derived=True)
        schema = TableSchema(table, output.schema, output.primary_key)  # pyright: ignore[reportArgumentType]: it checks, and makes a tuple
        require_returnable(table, schema.schema)
        declared.append((schema, output.settings))
    return declared


def _refuse_cycle(tx: Txn, handle: Handle, name: str, upstreams: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise JobCycle if an output exists already and an upstream descends from it."""
    existing = [output for output in outputs if tx.get(name_key(output)) is not None]
    if not existing:
        return
    ancestors = {table.name for table in read_epoch_view(tx, handle.memory, handle.catalog.now_ms()).closure(upstreams)}
    for output in existing:
        if output in ancestors:
            raise JobCycle(
                f"job {name!r} would write {output!r}, from which one of its upstreams is derived; take another name"
            )


def _refuse_owned(tx: Txn, table: str) -> None:
    entry = tx.get(name_key(table))
    if entry is None:
        return
    owner_table = find_table(tx, table)
    if owner_table.job_id is None:
        raise OutputOwned(
            f"table {table!r} is a root table already; a job creates its own outputs, so take another name"
        )
    raise OutputOwned(
        f"table {table!r} is an output of job {get_job(tx, owner_table.job_id, '?').name!r}; take another name"
    )


def _require_whole_logs(tx: Txn, name: str, upstreams: Sequence[TableDef]) -> None:
    for table in upstreams:
        if get_version(tx, table.id, table.name).log_start > 0:
            raise InvalidInput(
                f"job {name!r}: backfill='log' needs the log of {table.name!r} from its beginning, and that log was "
                "truncated; use backfill='snapshot'"
            )
