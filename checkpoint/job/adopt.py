"""Adoption of outputs that outlive their job: they become root tables, open for writes.

An adopted table is valid by itself from the epoch of its adoption on. Below that epoch its lineage is unknown, so
policies choose no epoch there.
"""

from __future__ import annotations

from dataclasses import replace

from epochlog.errors import TableInUse
from epochlog.store.catalog.keys import head_key, job_key, job_name_key, step_times_key, table_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.commit.table_ddl import issue_epoch
from epochlog.store.env.log_events import JOB_DROPPED, TABLE_ADOPTED
from epochlog.store.metadata.commit_log import commit_epochs
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs, find_job, find_table, get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.metadata.state_tables import replace_state
from epochlog.store.session.handle import Handle


def adopt_table(handle: Handle, name: str) -> TableDef:
    """Make an output of a finished job a root table; leave a root table unchanged.

    Raises TableNotFound, and TableInUse while its job may still write it.
    """

    adopted: list[str] = []

    def body(tx: Txn) -> TableDef:
        adopted.clear()
        table = find_table(tx, name)
        if table.job_id is None:
            return table
        adopted.append(name)
        job = get_job(tx, table.job_id, "?")
        if job.state != "finished":
            raise TableInUse(
                f"table {name!r} is written by job {job.name!r}, which is {job.state}: end the job with "
                f"store.job({job.name!r}).stop(drain=True), or drop it with store.drop_job({job.name!r}, "
                "keep_outputs=True), which leaves its tables as root tables"
            )
        remaining = tuple(output for output in job.outputs if output != table.id)
        if remaining:
            tx.put(job_key(job.id), replace(job, outputs=remaining).to_record())
        else:
            _delete_job(tx, job)
        return _make_root_table(tx, table, job.position)

    table = handle.catalog.transact(body)
    if adopted:
        handle.log(TABLE_ADOPTED, table=name)
    return table


def drop_job_alone(handle: Handle, name: str) -> None:
    """Drop a job and make its outputs root tables with their current rows."""

    def body(tx: Txn) -> None:
        job = find_job(tx, name)
        issue_epoch(tx, handle)  # so that changes the job does not reflect lie below the adoption
        epoch = job.position if job.state == "finished" else Counters.read(tx).last_epoch
        _delete_job(tx, job)
        for table_id in job.outputs:
            _make_root_table(tx, get_table(tx, table_id, f"output of {name}"), epoch)
            replace_state(tx, table_id, None, handle.catalog.now_ms())
        discard_staged(tx, job.outputs, handle.catalog.now_ms())

    handle.catalog.transact(body)
    handle.log(JOB_DROPPED, job=name, action="kept")


def _delete_job(tx: Txn, job: JobRecord) -> None:
    tx.delete(job_key(job.id))
    tx.delete(step_times_key(job.id))
    tx.delete(job_name_key(job.name))


def _make_root_table(tx: Txn, table: TableDef, epoch: int) -> TableDef:
    """Make the output a root table from epoch `at` on, open for writes. Part of a transaction."""
    version = get_version(tx, table.id, table.name)
    first = next(commit_epochs(tx, table.id), epoch)
    created = min(table.created, first)  # a log backfill commits at epochs before the job's creation
    adopted = replace(table, job_id=None, adopted=epoch, created=created, drop_unchanged=True)
    tx.put(table_key(table.id), adopted.to_record())
    tx.put(head_key(table.id), replace(version, end_epoch=None).to_record())
    # Finished jobs over this table ended with its data: a drain epoch keeps later writes out of their input.
    for job in all_jobs(tx):
        if table.id in job.upstreams and job.state == "finished" and job.drain is None:
            tx.put(job_key(job.id), replace(job, drain=job.position).to_record())
    move_counters(tx, Counters.read(tx))
    return adopted
