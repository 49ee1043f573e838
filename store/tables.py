"""Making, dropping, describing, finishing and truncating tables: the edits of the catalog that bring no rows."""

from __future__ import annotations

from dataclasses import replace

from ..errors import InvalidInput, LogHeld, TableExists, TableInUse
from .catalog import Txn
from .cursors import table_goes
from .definitions import (
    Counters,
    TableDef,
    TableOptions,
    all_jobs,
    find_table,
    get_job,
    get_version,
    move_counters,
)
from .epoch import as_epoch
from .failpoints import reached
from .garbage import let_go
from .handle import Handle
from .holds import holds_of
from .loads import all_loads
from .reach import files_of
from .records import HEAD, after_prefix, compact_key, head_key, name_key, runs_key, table_key, trouble_key
from .retention import truncate
from .schema import TableSchema
from .version import TableVersion

CHANGELOGS = ("upsert", "full")


def create_table(handle: Handle, schema: TableSchema, changelog: str, options: TableOptions) -> TableDef:
    """Make a root table; TableExists if the name is taken."""
    if changelog not in CHANGELOGS:
        raise InvalidInput(f"table {schema.name!r}: changelog must be one of {CHANGELOGS}, not {changelog!r}")
    if not isinstance(options, TableOptions):
        raise InvalidInput(f"table {schema.name!r}: options must be epochlog.TableOptions, not {options!r}")
    table = handle.catalog.transact(lambda tx: add_table(tx, schema, changelog, options, None))
    reached("table:created")
    return table


def add_table(tx: Txn, schema: TableSchema, changelog: str, options: TableOptions, job_id: int | None) -> TableDef:
    """Part of a transaction: a new table under a new id."""
    if tx.get(name_key(schema.name)) is not None:
        raise TableExists(f"there is a table {schema.name!r} already; get it with store.table({schema.name!r})")
    counters = Counters.read(tx)
    table = TableDef(counters.next_table, schema, changelog, options, job_id)
    tx.put(HEAD, replace(counters, next_table=table.id + 1).to_record())
    tx.put(table_key(table.id), table.to_record())
    tx.put(head_key(table.id), TableVersion().to_record())
    tx.put(name_key(schema.name), {"id": table.id})
    return table


def drop_table(handle: Handle, name: str) -> None:
    """Remove a table with its log and history; TableInUse while a job reads or owns it."""

    def body(tx: Txn) -> None:
        table = find_table(tx, name)
        if table.job_id is not None:
            owner = get_job(tx, table.job_id, "?").name
            raise TableInUse(
                f"table {name!r} is an output of job {owner!r}; drop the job with store.drop_job({owner!r})"
            )
        for job in all_jobs(tx):
            if table.id in job.upstreams:
                raise TableInUse(f"table {name!r} is read by job {job.name!r}; drop that job first")
        for load in all_loads(tx):
            if table.id in load.tables and load.state != "finished":
                raise TableInUse(
                    f"table {name!r} is written by load {load.name!r}; drop that one first with "
                    f"store.drop_load({load.name!r})"
                )
        remove_table(tx, table.id, handle.catalog.now_ms())

    handle.catalog.transact(body)
    reached("table:dropped")


def remove_table(tx: Txn, table_id: int, now_ms: int) -> None:
    """Part of a transaction: all records of a table, but the leases of those who still read it; its files go in
    vacuum, when nobody does. Consumers of it hold nothing any more.
    """
    record = tx.get(table_key(table_id))
    if record is None:
        return
    table_goes(tx, table_id, now_ms)
    let_go(tx, table_id, files_of(tx, table_id).items(), now_ms)
    move_counters(tx, Counters.read(tx))
    for kind in (b"log", b"hist", b"hold", b"used", b"compact", b"trace", b"made"):
        prefix = kind + b"/%08x/" % table_id
        for key, found in list(tx.scan(prefix, after_prefix(prefix))):
            if kind != b"hold" or found["expires_ms"] is None:
                tx.delete(key)
    tx.delete(head_key(table_id))
    tx.delete(runs_key(table_id))
    tx.delete(compact_key(table_id))
    tx.delete(trouble_key(table_id))
    tx.delete(table_key(table_id))
    tx.delete(name_key(TableDef.from_record(record).name))


def truncate_log(handle: Handle, table: TableDef, before: int) -> None:
    """Raise the truncation mark to `before`; LogHeld names who still needs what lies below it."""
    before = as_epoch("before", before)

    def body(tx: Txn) -> bool:
        version = get_version(tx, table.id, table.name)
        if before <= version.log_start:
            return True
        if before > version.max_committed_epoch:
            raise InvalidInput(
                f"the log of {table.name!r} ends at epoch {version.max_committed_epoch}; it cannot be truncated "
                f"before {before}"
            )
        for hold in holds_of(tx, table.id, handle.catalog.now_ms(), handle.leases.live):
            if hold.log_epoch is not None and hold.log_epoch < before:
                raise LogHeld(
                    f"{hold.holder} still needs the log of {table.name!r} after epoch {hold.log_epoch}; "
                    f"truncate before {hold.log_epoch} at most, or end that holder"
                )
        return truncate(handle, tx, table.id, version, before)

    while not handle.catalog.transact(body):
        continue  # a long log goes in several transactions
    reached("truncate:after")


def table_bytes(version: TableVersion) -> int:
    """Bytes of all files a table reaches: log and runs with their history."""
    return version.log_bytes + version.run_bytes
