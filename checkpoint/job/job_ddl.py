"""The job graph: making and dropping jobs and the derived tables that they own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, JobCycle, JobExists, OutputOwned, TableInUse
from epochlog.store.catalog.keys import HEAD, job_key, job_name_key, name_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.commit.table_ddl import add_table, altered, remove_table
from epochlog.store.epochs.global_membership import outside_by_interval
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef, TableOptions
from epochlog.store.metadata.lookups import all_jobs, find_job, find_table, get_job, get_table, get_version
from epochlog.store.metadata.table_differences import table_differences
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import live_runner
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema, check_name

from .pace import Interval, MaxLag, Pace, make_pace

_log = logging.getLogger("epochlog")


@dataclass(frozen=True, slots=True)
class Output:
    """An output table of a job that is to be made, as `create_job` takes it.

    changelog: "full" stores with every commit the rows that it replaces, "upsert" (the default) does not.
    drop_unchanged: a commit leaves out upserts of rows that are there already and deletes of keys that are not, and
    looks up the keys that it writes for that; the default is True. `table.alter` changes all but schema and key later.
    """

    schema: pa.Schema
    primary_key: Sequence[str]
    changelog: str | None = None
    options: TableOptions | None = None
    drop_unchanged: bool | None = None

    @property
    def settings(self) -> Settings:
        """Return the table's settings: all that is declared besides its schema and key."""
        return Settings(self.options, self.changelog, self.drop_unchanged)


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Live runner of a job. kind: step | query | pipeline | coordinator; since_ms: Unix milliseconds."""

    kind: str
    host: str
    pid: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as of now. lag_ms: age of the oldest upstream change that no commit reflects, 0 when there is none.

    draining: it was told to end its data (`job.stop(drain=True)`) and has not done so yet.
    lost: of a parked job, what was let go of that it needed. snapshot_rows: rows that the pieces of its snapshot have
    taken in so far. rebuilding: its next commit makes its outputs anew. interval: in boundaries of the store,
    interval_ms: the same as time; max_lag: in the job's own boundaries, max_lag_ms: the same as time. outside: why
    reads under `global` leave its tables out now; None: they take part. runner: who
    runs it now; None: nobody who is alive.
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
) -> JobRecord:
    """Make a job and its output tables in one transaction; or with `exist_ok` find the one made by the same arguments.

    Raises JobExists, JobCycle, OutputOwned, TableNotFound, InvalidInput.
    """
    made = _checked_outputs(name, upstreams, outputs)
    if backfill not in ("snapshot", "log"):
        raise InvalidInput(f"job {name!r}: backfill must be 'snapshot' or 'log', not {backfill!r}")
    if snapshot_rows is not None and (type(snapshot_rows) is not int or snapshot_rows < 1):
        raise InvalidInput(f"job {name!r}: snapshot_rows is a number of rows >= 1 or None, not {snapshot_rows!r}")
    pace = make_pace(name, interval, max_lag, handle.interval_ms)

    def body(tx: Txn) -> JobRecord:
        if tx.get(job_name_key(name)) is not None:
            if not exist_ok:
                raise JobExists(
                    f"there is a job {name!r} already; get it with store.job({name!r}) or take another name"
                )
            found = find_job(tx, name)
            now = Pace(found.interval, found.max_lag, found.max_lag_ms)
            asked = make_pace(name, interval, max_lag, handle.interval_ms, now)
            return _same_job(tx, found, _JobRequest(upstreams, made, backfill, snapshot_rows, asked))
        above = _checked_upstreams(tx, handle, name, upstreams, [*outputs], backfill)
        job_id, now_ms = Counters.read(tx).next_job, handle.catalog.now_ms()
        tables = [add_table(tx, schema, settings, job_id, now_ms) for schema, settings in made]
        job = JobRecord(
            id=job_id,
            name=name,
            upstreams=tuple(table.id for table in above),
            outputs=tuple(table.id for table in tables),
            backfill=backfill,
            interval=pace.interval,
            max_lag=pace.max_lag,
            max_lag_ms=pace.max_lag_ms,
            snapshot_rows=snapshot_rows,
            progress_ms=now_ms,
            created_ms=now_ms,
        )
        counters = replace(Counters.read(tx), next_job=job_id + 1)
        tx.put(HEAD, counters.to_record())
        tx.put(job_key(job_id), job.to_record())
        tx.put(job_name_key(name), {"id": job_id})
        return job

    job = handle.catalog.transact(body)
    _warn_of_intervals(handle, job)
    return job


def _checked_upstreams(
    tx: Txn, handle: Handle, name: str, upstreams: Sequence[str], outputs: Sequence[str], backfill: str
) -> list[TableDef]:
    """Return the upstreams of the job; raise an error if the job cannot be made as the catalog stands."""
    above = [find_table(tx, upstream) for upstream in upstreams]
    _refuse_cycle(tx, handle, name, upstreams, outputs)
    for output in outputs:
        _refuse_owned(tx, output)
    if backfill == "log":
        _require_whole_logs(tx, name, above)
    return above


def _warn_of_intervals(handle: Handle, job: JobRecord) -> None:
    """Log which jobs the intervals keep out of `global`: this one, and those that stand outside because of it."""
    epochs = handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, handle.catalog.now_ms()))
    tables = epochs.closure(epochs.tables)
    without = outside_by_interval([table for table in tables if table.job_id != job.id], epochs.global_max_lag_ms)
    for job_id, why in outside_by_interval(tables, epochs.global_max_lag_ms).items():
        if job_id not in without:
            names = ", ".join(table.name for table in tables if table.job_id == job_id)
            _log.warning("reads under 'global' leave out %s: %s", names, why)


@dataclass(frozen=True, slots=True)
class _JobRequest:
    """A job as it was asked for; of its pace what was not named is that of the job that is there."""

    upstreams: Sequence[str]
    outputs: Sequence[tuple[TableSchema, Settings]]
    backfill: str
    snapshot_rows: int | None
    pace: Pace


def _same_job(tx: Txn, job: JobRecord, asked: _JobRequest) -> JobRecord:
    """Return the existing job; raise JobExists with all differences if it is not as asked for."""
    above = [get_table(tx, table, f"upstream of {job.name}").name for table in job.upstreams]
    made = {table.name: table for table in (get_table(tx, table, f"output of {job.name}") for table in job.outputs)}
    wanted = {schema.name: (schema, settings) for schema, settings in asked.outputs}
    out = []
    if set(above) != set(asked.upstreams):
        out.append(f"its upstreams are {sorted(above)}, not {sorted(asked.upstreams)}")
    if set(made) != set(wanted):
        out.append(f"its outputs are {sorted(made)}, not {sorted(wanted)}")
    for name in sorted(set(made) & set(wanted)):
        out += [f"output {name!r}: {what}" for what in table_differences(made[name], *wanted[name])]
    for what, there, given in (
        ("backfill", job.backfill, asked.backfill),
        ("interval", job.interval, asked.pace.interval),
        ("max_lag", job.max_lag, asked.pace.max_lag),
        ("snapshot_rows", job.snapshot_rows, asked.snapshot_rows),
    ):
        if there != given:
            out.append(f"its {what} is {there!r}, not {given!r}")
    if out:
        raise JobExists(
            f"there is a job {job.name!r} already, and it is not as asked for: {'; '.join(out)}. Take another name, "
            f"ask for what it is, change it with store.job({job.name!r}).alter(…), or drop it"
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
) -> None:
    """Change how often a job commits, how late it may be and the options of its outputs, in one transaction.

    What is None stays. A barrier that is recorded is committed as it is; the next ones are boundaries of the new
    interval. options: for all outputs, or by the outputs' names. JobNotFound, InvalidInput.
    """
    if interval is None and max_lag is None and (options is None or options == {}):
        raise InvalidInput(f"job {name!r}: alter takes interval=, max_lag= or options=")
    named = options if isinstance(options, Mapping) else {}
    for table, given in {**named, **({} if isinstance(options, Mapping) else {name: options})}.items():
        Settings(options=given).check(table, derived=True)

    def body(tx: Txn) -> JobRecord:
        job = get_job(tx, job_id, name)
        outputs = {get_table(tx, table, f"output of {name}").name: table for table in job.outputs}
        unknown = [table for table in named if table not in outputs]
        if unknown:
            raise InvalidInput(f"job {name!r} has no output {unknown[0]!r}; it has {', '.join(outputs)}")
        for table, table_id in outputs.items():
            given = options if isinstance(options, TableOptions) else named.get(table)
            altered(tx, table_id, table, Settings(options=given))
        now = Pace(job.interval, job.max_lag, job.max_lag_ms)
        pace = make_pace(name, interval, max_lag, handle.interval_ms, now)
        if pace != now:
            job = replace(job, interval=pace.interval, max_lag=pace.max_lag, max_lag_ms=pace.max_lag_ms)
            tx.put(job_key(job.id), job.to_record())
        return job

    _warn_of_intervals(handle, handle.catalog.transact(body))
    handle.wake_maintenance()


def drop_job(handle: Handle, name: str) -> None:
    """Remove a job and its output tables; TableInUse while another job reads one of them."""

    def body(tx: Txn) -> None:
        job = find_job(tx, name)
        _remove(tx, job, "dropped", handle.catalog.now_ms())

    handle.catalog.transact(body)


def cancel_job(handle: Handle, job_id: int, name: str) -> None:
    """Remove a job that is still creating with all that it has made; whoever runs it gets JobNotFound.

    Raises InvalidInput when it is not creating, TableInUse when another job reads one of its outputs.
    """

    def body(tx: Txn) -> None:
        job = get_job(tx, job_id, name)
        if job.position and (job.state != "creating" or job.rebuilding):
            state = "rebuilding" if job.rebuilding else job.state
            raise InvalidInput(
                f"job {name!r} is {state} since its commit at {show_epoch(job.position)}, and only one that is still "
                "creating "
                f"can be cancelled; store.drop_job({name!r}) removes it with its tables"
            )
        _remove(tx, job, "cancelled", handle.catalog.now_ms())

    handle.catalog.transact(body)


def refuse_in_use(view: View, job: JobRecord, how: str = "dropped") -> None:
    """Raise TableInUse, with its name, if another job reads one of the job's outputs."""
    for other in all_jobs(view):
        shared = [table_id for table_id in job.outputs if table_id in other.upstreams]
        if shared:
            raise TableInUse(
                f"job {job.name!r} cannot be {how}: job {other.name!r} reads its output "
                f"{get_table(view, shared[0], '?').name!r}; drop or cancel that one first"
            )


def _remove(tx: Txn, job: JobRecord, how: str, now_ms: int) -> None:
    """Remove the job, its outputs, and so all that it held. Part of a transaction."""
    refuse_in_use(tx, job, how)
    for table_id in job.outputs:
        remove_table(tx, table_id, now_ms)
    tx.delete(job_key(job.id))
    tx.delete(job_name_key(job.name))


def job_info(view: View, handle: Handle, job: JobRecord, epochs: EpochView) -> JobInfo:
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
        outside=next((why for table in outputs if (why := epochs.membership.left_out.get(table)) is not None), None),
        runner=runner_of(view, handle, job),
    )


def runner_of(view: View, handle: Handle, job: JobRecord) -> RunnerInfo | None:
    """Return the live runner of the job, or None."""
    found = live_runner(view, handle, job)
    return None if found is None else RunnerInfo(found.kind, found.host, found.pid, found.since_ms)


def list_jobs(handle: Handle) -> list[JobInfo]:
    """List all jobs, by name."""

    def body(view: View) -> list[JobInfo]:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        return sorted((job_info(view, handle, job, epochs) for job in all_jobs(view)), key=lambda info: info.name)

    return handle.catalog.read(body)


def _checked_outputs(
    name: str, upstreams: Sequence[str], outputs: Mapping[str, Any]
) -> list[tuple[TableSchema, Settings]]:
    check_name("job", name)
    good = isinstance(upstreams, list | tuple) and upstreams and all(isinstance(table, str) for table in upstreams)
    if not good or len(set(upstreams)) != len(upstreams):
        raise InvalidInput(f"job {name!r}: upstreams is a list of one or more different table names, not {upstreams!r}")
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidInput(
            f"job {name!r}: outputs is a dict {{table: epochlog.Output(schema, primary key)}} with at least one table"
        )
    looped = sorted(set(upstreams) & set(outputs))
    if looped:
        raise JobCycle(
            f"job {name!r} would read its own output {looped[0]!r}; use ctx.output({looped[0]!r}) for its state so far"
        )
    made = []
    for table, given in outputs.items():
        if not isinstance(given, Output) and not (isinstance(given, tuple | list) and len(given) == 2):
            raise InvalidInput(
                f"job {name!r}: output {table!r} takes epochlog.Output(schema, primary key) or such a pair, "
                f"not {given!r}"
            )
        output = given if isinstance(given, Output) else Output(*given)
        output.settings.check(table, derived=True)
        schema = TableSchema(table, output.schema, output.primary_key)  # pyright: ignore[reportArgumentType]: it checks, and makes a tuple
        made.append((schema, output.settings))
    return made


def _refuse_cycle(tx: Txn, handle: Handle, name: str, upstreams: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise JobCycle if an output exists already and an upstream descends from it."""
    there = [output for output in outputs if tx.get(name_key(output)) is not None]
    if not there:
        return
    above = {table.name for table in read_epoch_view(tx, handle.memory, handle.catalog.now_ms()).closure(upstreams)}
    for output in there:
        if output in above:
            raise JobCycle(
                f"job {name!r} would write {output!r}, from which what it reads is made; take another output name"
            )


def _refuse_owned(tx: Txn, table: str) -> None:
    entry = tx.get(name_key(table))
    if entry is None:
        return
    found = find_table(tx, table)
    if found.job_id is None:
        raise OutputOwned(f"table {table!r} is a root table already; a job makes its own outputs, so take another name")
    raise OutputOwned(f"table {table!r} is an output of job {get_job(tx, found.job_id, '?').name!r}; take another name")


def _require_whole_logs(tx: Txn, name: str, upstreams: Sequence[TableDef]) -> None:
    for table in upstreams:
        if get_version(tx, table.id, table.name).log_start > 0:
            raise InvalidInput(
                f"job {name!r}: backfill='log' needs the log of {table.name!r} from its beginning, and it was "
                "truncated; "
                "use backfill='snapshot'"
            )
