"""The job graph: making and dropping jobs and the derived tables that they own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from ..errors import InvalidInput, JobCycle, JobExists, OutputOwned, TableInUse
from ..store.catalog import Txn, View
from ..store.definitions import (
    Counters,
    JobRecord,
    TableDef,
    TableOptions,
    all_jobs,
    find_job,
    find_table,
    get_job,
    get_table,
    get_version,
)
from ..store.handle import Handle
from ..store.history import read_epoch_view
from ..store.lineage import EpochView
from ..store.records import HEAD, job_key, job_name_key, name_key
from ..store.schema import TableSchema, check_name
from ..store.tables import add_table, remove_table

DEFAULT_MAX_LAG = 30
"""In the job's own boundaries: 30 s at the default interval."""
MOST_MAX_LAG = 1 << 53


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as of now. lag_ms: age of the oldest upstream change that no commit reflects, 0 when there is none.

    draining: it was told to end its data (`job.stop(drain=True)`) and has not done so yet.
    lost: of a parked job, what was let go of that it needed. snapshot_rows: rows that the pieces of its snapshot have
    taken in so far. rebuilding: its next commit makes its outputs anew.
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


def create_job(
    handle: Handle,
    name: str,
    upstreams: Sequence[str],
    outputs: Mapping[str, tuple[pa.Schema, Sequence[str]]],
    *,
    backfill: str = "snapshot",
    interval: int = 1,
    max_lag: float | timedelta | None = None,
    snapshot_rows: int | None = None,
) -> JobRecord:
    """Make a job and its output tables in one transaction.

    Raises JobExists, JobCycle, OutputOwned, TableNotFound, InvalidInput.
    """
    schemas = _checked_outputs(name, upstreams, outputs)
    if backfill not in ("snapshot", "log"):
        raise InvalidInput(f"job {name!r}: backfill must be 'snapshot' or 'log', not {backfill!r}")
    if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
        raise InvalidInput(f"job {name!r}: interval is a whole number of store boundaries >= 1, not {interval!r}")
    if snapshot_rows is not None and (type(snapshot_rows) is not int or snapshot_rows < 1):
        raise InvalidInput(f"job {name!r}: snapshot_rows is a number of rows >= 1 or None, not {snapshot_rows!r}")
    lag = _boundaries(name, max_lag, interval * handle.interval_ms)

    def body(tx: Txn) -> JobRecord:
        if tx.get(job_name_key(name)) is not None:
            raise JobExists(f"there is a job {name!r} already; get it with store.job({name!r}) or take another name")
        above = [find_table(tx, upstream) for upstream in upstreams]
        _refuse_cycle(tx, handle, name, upstreams, [schema.name for schema in schemas])
        for schema in schemas:
            _refuse_owned(tx, schema.name)
        if backfill == "log":
            _require_whole_logs(tx, name, above)
        job_id = Counters.read(tx).next_job
        made = [add_table(tx, schema, "upsert", TableOptions(), job_id) for schema in schemas]
        job = JobRecord(
            id=job_id,
            name=name,
            upstreams=tuple(table.id for table in above),
            outputs=tuple(table.id for table in made),
            backfill=backfill,
            interval=interval,
            max_lag=lag,
            snapshot_rows=snapshot_rows,
            progress_ms=handle.catalog.now_ms(),
        )
        counters = replace(Counters.read(tx), next_job=job_id + 1)
        tx.put(HEAD, counters.to_record())
        tx.put(job_key(job_id), job.to_record())
        tx.put(job_name_key(name), {"id": job_id})
        return job

    return handle.catalog.transact(body)


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
                f"job {name!r} is {state} since its commit at {job.position}, and only one that is still creating "
                f"can be cancelled; store.drop_job({name!r}) removes it with its tables"
            )
        _remove(tx, job, "cancelled", handle.catalog.now_ms())

    handle.catalog.transact(body)


def _remove(tx: Txn, job: JobRecord, how: str, now_ms: int) -> None:
    """Part of a transaction: the job, its outputs, and so all that it held."""
    for other in all_jobs(tx):
        shared = [table_id for table_id in job.outputs if table_id in other.upstreams]
        if shared:
            raise TableInUse(
                f"job {job.name!r} cannot be {how}: job {other.name!r} reads its output "
                f"{get_table(tx, shared[0], '?').name!r}; drop or cancel that one first"
            )
    for table_id in job.outputs:
        remove_table(tx, table_id, now_ms)
    tx.delete(job_key(job.id))
    tx.delete(job_name_key(job.name))


def job_info(job: JobRecord, epochs: EpochView) -> JobInfo:
    """What `store.jobs()` shows; `failed` is a job whose newest attempt failed."""
    failed = job.last_error is not None and job.state in ("creating", "running")
    return JobInfo(
        name=job.name,
        upstreams=tuple(epochs.table(table).name for table in job.upstreams),
        outputs=tuple(epochs.table(table).name for table in job.outputs),
        state="failed" if failed else job.state,
        committed_epoch=job.position,
        lag_ms=max((epochs.lag_ms(table) for table in job.outputs), default=0),
        incarnation=job.incarnation,
        last_error=job.last_error,
        draining=job.drain is not None and job.state != "finished",
        lost=job.lost,
        snapshot_rows=job.cursor.rows if job.cursor else 0,
        rebuilding=job.rebuilding,
    )


def list_jobs(handle: Handle) -> list[JobInfo]:
    """All jobs, by name."""

    def body(view: View) -> list[JobInfo]:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        return sorted((job_info(job, epochs) for job in all_jobs(view)), key=lambda info: info.name)

    return handle.catalog.read(body)


def _checked_outputs(name: str, upstreams: Sequence[str], outputs: Mapping[str, Any]) -> list[TableSchema]:
    check_name("job", name)
    good = isinstance(upstreams, list | tuple) and upstreams and all(isinstance(table, str) for table in upstreams)
    if not good or len(set(upstreams)) != len(upstreams):
        raise InvalidInput(f"job {name!r}: upstreams is a list of one or more different table names, not {upstreams!r}")
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidInput(f"job {name!r}: outputs is a dict {{table: (schema, primary key)}} with at least one table")
    looped = sorted(set(upstreams) & set(outputs))
    if looped:
        raise JobCycle(
            f"job {name!r} would read its own output {looped[0]!r}; use ctx.output({looped[0]!r}) for its state so far"
        )
    schemas = []
    for table, given in outputs.items():
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InvalidInput(f"job {name!r}: output {table!r} takes a pair (schema, primary key), not {given!r}")
        schemas.append(TableSchema(table, given[0], given[1]))
    return schemas


def _boundaries(name: str, max_lag: float | timedelta | None, interval_ms: int) -> int:
    """max_lag in the job's own boundaries; a timedelta is divided by the job's interval."""
    if max_lag is None:
        return DEFAULT_MAX_LAG
    count = max_lag / timedelta(milliseconds=interval_ms) if isinstance(max_lag, timedelta) else max_lag
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MOST_MAX_LAG:
        raise InvalidInput(f"job {name!r}: max_lag is a number of boundaries >= 0 or a timedelta, not {max_lag!r}")
    return int(count)


def _refuse_cycle(tx: Txn, handle: Handle, name: str, upstreams: Sequence[str], outputs: Sequence[str]) -> None:
    """JobCycle when an output is there already and an upstream descends from it."""
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
