"""Look-ups of the records of tables, jobs and the store by name or id, in a view of the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from epochlog.errors import Corrupt, EpochlogError, JobNotFound, TableDropped, TableNotFound
from epochlog.store.catalog.keys import (
    JOB_PREFIX,
    SCHEMA_PREFIX,
    STORE,
    TABLE_PREFIX,
    after_prefix,
    head_key,
    job_key,
    job_name_key,
    name_key,
    runs_key,
    table_key,
    table_prefix,
)
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix
from epochlog.store.catalog.records import Record, decode
from epochlog.store.types.schema import is_name

from .definitions import JobRecord, StoreRecord, TableDef, decoded_schema
from .version import Runs, TableVersion, runs_from_record


def get_store(view: ReadTxn) -> StoreRecord:
    """Return the store's record in this state of the catalog."""
    record = view.get(STORE)
    if record is None:
        raise Corrupt("catalog record of the store", "it is missing")
    return StoreRecord(**record)


def find_table_id(view: ReadTxn, name: str) -> int:
    """Return the id of the table of that name; raise TableNotFound if there is none."""
    entry = view.get(name_key(name)) if is_name(name) else None
    if entry is not None:
        return entry["id"]
    names = sorted(table.name for table in all_tables(view))
    if name in names:  # the record of its name is missing: its key was damaged
        raise Corrupt(f"catalog record of table {name!r}", "it is missing")
    raise TableNotFound(f"there is no table {name!r}; the store's tables: {', '.join(names) or 'none'}")


def find_table(view: ReadTxn, name: str) -> TableDef:
    """Return the table of that name; raise TableNotFound if there is none."""
    return get_table(view, find_table_id(view, name), name)


def get_table(view: ReadTxn, table_id: int, name: str) -> TableDef:
    """Return the table of that id. Raise TableDropped if it was dropped, also if a new table has its name."""
    key = table_key(table_id)
    value = view.get_packed(key)
    if value is None:
        raise _missing_table_error(view, table_id, name)
    return _with_lineage(view, decode(TableDef, key, value))


def _with_lineage(view: ReadTxn, table: TableDef) -> TableDef:
    """Return the table with all versions of its schema; those of a table that was never altered have no records."""
    if not table.schema.version:
        return table
    records = scan_prefix(view, table_prefix(SCHEMA_PREFIX, table.id))
    lineage = tuple(decoded_schema(record["schema"]) for _, record in records)
    if not lineage or lineage[-1] != table.schema:
        raise Corrupt(f"catalog records schema/{table.id:08x}", f"the newest is not the schema of table {table.name!r}")
    return replace(table, schema=table.schema.with_lineage(lineage))


def get_head(view: ReadTxn, table_id: int, name: str) -> Record:
    """Return the head record of a table, from which its version is decoded. Raises TableDropped."""
    record = view.get(head_key(table_id))
    if record is None:
        raise _missing_table_error(view, table_id, name)
    return record


def get_version(view: ReadTxn, table_id: int, name: str) -> TableVersion:
    return TableVersion.from_record(get_head(view, table_id, name))


def get_runs(view: ReadTxn, table_id: int) -> Runs:
    """Return the table's sorted runs, oldest first."""
    return runs_from_record(view.get(runs_key(table_id)))


def require_runs(name: str, version: TableVersion, runs: Runs) -> None:
    """Raise Corrupt if a table has not as many runs as its head says: without their record it has too few rows."""
    if len(runs) != version.runs:
        raise Corrupt(f"catalog record of the runs of table {name!r}", f"it has {len(runs)}, not {version.runs}")


def _missing_table_error(view: ReadTxn, table_id: int, name: str) -> EpochlogError:
    """Return TableDropped if the table has no record at all, else Corrupt: a key was damaged."""
    entry = view.get(name_key(name)) if is_name(name) else None
    if (entry is not None and entry["id"] == table_id) or view.get(table_key(table_id)) is not None:
        return Corrupt(f"catalog record of table {name!r}", "it is missing")
    return TableDropped(
        f"table {name!r} was dropped; store.table({name!r}) returns a newer table of that name, if there is one"
    )


def all_tables(view: ReadTxn) -> Iterator[TableDef]:
    for key, value in view.scan_packed(TABLE_PREFIX, after_prefix(TABLE_PREFIX)):
        yield _with_lineage(view, decode(TableDef, key, value))


def find_job(view: ReadTxn, name: str) -> JobRecord:
    """Return the job of that name; raise JobNotFound if there is none."""
    entry = view.get(job_name_key(name)) if is_name(name) else None
    record = view.get(job_key(entry["id"])) if entry else None
    if record is None:
        names = ", ".join(sorted(job.name for job in all_jobs(view))) or "none"
        raise JobNotFound(f"there is no job {name!r}; the store's jobs: {names}")
    return JobRecord.from_record(record)


def get_job(view: ReadTxn, job_id: int, name: str) -> JobRecord:
    key = job_key(job_id)
    value = view.get_packed(key)
    if value is None:
        raise JobNotFound(
            f"job {name!r} was dropped or cancelled, or its tables were adopted; store.jobs() lists the present jobs"
        )
    return decode(JobRecord, key, value)


def jobs_of(view: ReadTxn, table_id: int) -> tuple[JobRecord, ...]:
    """List the jobs that read or write the table, or are views that read it before. It reads all jobs, so call it once
    per transaction.
    """
    return tuple(
        job for job in all_jobs(view) if table_id in (*job.upstreams, *job.outputs) or table_id in job.read_before
    )


def all_jobs(view: ReadTxn) -> Iterator[JobRecord]:
    for key, value in view.scan_packed(JOB_PREFIX, after_prefix(JOB_PREFIX)):
        yield decode(JobRecord, key, value)
