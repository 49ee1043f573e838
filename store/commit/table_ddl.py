"""Creating, dropping, altering, finishing and truncating tables: the catalog edits that add no rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from epochlog.errors import InvalidInput, LogHeld, NotWritable, SchemaInUse, TableExists, TableInUse
from epochlog.store.catalog.keys import (
    HEAD,
    compact_key,
    head_key,
    job_key,
    kept_history_key,
    name_key,
    runs_key,
    schema_key,
    state_key,
    table_key,
    trouble_key,
)
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import LOG_TRUNCATED, TABLE_ALTERED, TABLE_CREATED, TABLE_DROPPED
from epochlog.store.metadata.consumer_record import mark_table_dropped
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import all_jobs, find_table, get_job, get_table, get_version
from epochlog.store.metadata.named_columns import lost_column, with_schema
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.schema_change import SchemaChange, changed_ids, next_version
from epochlog.store.metadata.table_differences import table_differences
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import TableVersion, require_open
from epochlog.store.retention.holds import holds_of
from epochlog.store.retention.retention import truncate
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch
from epochlog.store.types.schema import TableSchema, check_new_columns

from .boundaries import force_within
from .change import TableChange
from .date_widening import require_dates_fit
from .idempotency import TxnPair, check_pair, record_outcome, resolve_outcome
from .loads import all_loads
from .prepared import Prepared
from .transaction import append_entry
from .type_trial import require_returnable


def create_table(
    handle: Handle,
    schema: TableSchema,
    changelog: str | None = None,
    options: TableOptions | None = None,
    checks: Mapping[str, str] | None = None,
    *,
    exist_ok: bool = False,
) -> TableDef:
    """Create a root table, with changelog "upsert" by default; TableExists if the name is taken.

    exist_ok: return an existing root table of that name if it does not differ from the arguments.
    """
    settings = Settings(options, changelog, checks=checks)
    settings.check(schema.name, derived=False, schema=schema)
    settings.check_columns(schema)
    check_new_columns(schema.name, schema.schema.names)
    require_returnable(schema.name, schema.schema)

    def body(tx: Txn) -> tuple[TableDef, bool]:
        if exist_ok and tx.get(name_key(schema.name)) is not None:
            return _same_table(tx, schema, settings), False
        issue_epoch(tx, handle)
        return add_table(tx, schema, settings, None, handle.catalog.now_ms()), True

    table, is_new = handle.catalog.transact(body)
    hit("table:created")
    if is_new:
        handle.log(TABLE_CREATED, table=schema.name)
    return table


def _same_table(tx: Txn, schema: TableSchema, settings: Settings) -> TableDef:
    """Return the existing root table, or raise TableExists with all its differences from the requested one."""
    existing = find_table(tx, schema.name)
    differs = table_differences(existing, schema, settings)
    remedy = f", pass the settings that it has, or drop it with store.drop_table({schema.name!r})"
    if existing.job_id is not None:
        differs.insert(0, f"it is an output of job {get_job(tx, existing.job_id, '?').name!r}, not a root table")
        remedy = ""
    elif not table_differences(existing, schema, Settings()):
        remedy = f", pass the settings that it has, or change it with store.table({schema.name!r}).alter(…)"
    if differs:
        raise TableExists(
            f"table {schema.name!r} exists already and differs: {'; '.join(differs)}. Use another name{remedy}"
        )
    return existing


def alter_table(handle: Handle, table: TableDef, chosen: Callable[[TableDef], Settings]) -> TableDef:
    """Change a table's settings to those that `chosen` returns for its current ones, in one transaction. Raises
    TableDropped, InvalidInput.
    """
    after = handle.catalog.transact(
        lambda tx: altered(tx, table.id, table.name, chosen(get_table(tx, table.id, table.name)))
    )
    note_altered(handle, table.name)
    return after


def note_altered(handle: Handle, name: str) -> None:
    """Log that a table was altered, and let maintenance look at it. Call after the transaction."""
    hit("table:altered")
    handle.log(TABLE_ALTERED, table=name)
    handle.wake_maintenance()


def altered(tx: Txn, table_id: int, name: str, settings: Settings) -> TableDef:
    """Change a table's settings and return the table. Call inside a transaction. Raises TableDropped, InvalidInput."""
    table = get_table(tx, table_id, name)
    settings.check(
        table.name, derived=table.derived, schema=table.schema
    )  # an output may have become a root table since
    settings.check_columns(table.schema)
    after = settings.of(table, get_version(tx, table_id, name).max_committed_epoch)
    if after != table:
        tx.put(table_key(table_id), after.to_record())
    return after


def alter_schema(
    handle: Handle, table: TableDef, change: SchemaChange, settings: Settings, txn: TxnPair | None = None
) -> TableDef:
    """Change a root table's columns and settings in one transaction, at an epoch of its own; return the table.

    A change that the table has already has no effect, nor has one whose `txn` has landed. Raises TableDropped,
    NotWritable, TableFinished, InvalidInput, SchemaInUse, ClockSkew, InvalidSchema for a type whose rows would not come
    back, and the errors of `resolve_outcome`.
    """
    check_pair(txn)
    check_new_columns(table.name, (*(field.name for field in change.add), *(new for _, new in change.rename)))
    require_returnable(table.name, (*change.add, *(pa.field(name, kind) for name, kind in change.widen)))
    fingerprint = change.fingerprint(table.id, settings)

    def body(tx: Txn, tested: int | None) -> TableDef | None:
        if resolve_outcome(tx, txn, (), fingerprint) is not None:
            return get_table(tx, table.id, table.name)
        if tested is not None and get_version(tx, table.id, table.name).max_committed_epoch != tested:
            return None
        after = _alter_columns(tx, handle, table, change, settings, txn)
        if txn is not None:
            now_ms = handle.catalog.now_ms()
            record_outcome(tx, txn, (), Counters.read(tx).last_epoch, now_ms, alter=fingerprint)
        return after

    after = None
    while after is None:
        tested = require_dates_fit(handle, table, change)
        after = handle.catalog.transact(lambda tx, tested=tested: body(tx, tested))
    note_altered(handle, table.name)
    return after


def _alter_columns(
    tx: Txn, handle: Handle, table: TableDef, change: SchemaChange, settings: Settings, txn: TxnPair | None
) -> TableDef:
    if settings.checks:
        raise InvalidInput(
            f"table {table.name!r}: new checks test all rows, so they do not go with a change of columns: alter twice"
        )
    if settings.options is not None and settings.options.ttl_column in change.names_of_renames:
        raise InvalidInput(
            f"table {table.name!r}: a new ttl does not go with a rename of {settings.options.ttl_column!r}, for a "
            "repetition could give it to another column: alter twice"
        )
    current = altered(tx, table.id, table.name, settings)
    if current.derived:
        raise NotWritable(
            f"table {table.name!r} is an output of a job, which decides its columns: create a job with another output, "
            "or adopt the table first"
        )
    require_open(table.name, get_version(tx, table.id, table.name))
    changed = change.applied(current.schema, current.created, again=txn is not None)
    if changed is None:
        return current
    refuse_lost(current, changed)
    refuse_bound(tx, current, changed)
    boundary = force_within(tx, handle)  # a reader of the log can stop there, with all changes before the alter
    counters, now_ms, epoch = Counters.read(tx), handle.catalog.now_ms(), boundary + 1
    lineage = current.schema.lineage or (current.schema,)
    after = with_schema(current, next_version(changed, lineage, epoch))
    if len(lineage) == 1:  # the first alter records the first version too
        tx.put(schema_key(table.id, lineage[0].version), {"schema": lineage[0].to_bytes()})
    tx.put(schema_key(table.id, epoch), {"schema": after.schema.to_bytes()})
    tx.put(table_key(table.id), after.to_record())
    no_rows = Prepared.of(TableChange(after, operation="alter"))  # it wakes no reader and no job
    append_entry(tx, after, no_rows, epoch, {}, now_ms, txn=txn)
    move_counters(tx, counters, epoch)
    return after


def refuse_lost(table: TableDef, changed: TableSchema) -> None:
    """Raise InvalidInput if a check or the ttl of the table names a column that `changed` lacks or has widened."""
    lost = lost_column(table, changed)
    if lost is None:
        return
    setting, column = lost
    remedy = "options=…) without ttl=" if setting == "the ttl" else "checks={…})"
    raise InvalidInput(
        f"table {table.name!r}: column {column!r} can only be renamed, because {setting} of the table names it; remove "
        f"{setting} first with store.table({table.name!r}).alter({remedy}"
    )


def refuse_bound(view: ReadTxn, table: TableDef, after: TableSchema) -> None:
    """Raise SchemaInUse if a job reads a column that `after` drops or widens."""
    changed = changed_ids(table.schema, after)
    names = dict(zip(table.schema.ids, table.schema.schema.names, strict=True))  # a job may have former ones
    for job in all_jobs(view) if changed else ():
        if table.id not in job.upstreams or job.state == "finished":
            continue
        for id_ in job_columns(job, table).ids:
            if id_ in changed:
                raise SchemaInUse(
                    f"table {table.name!r}: column {names[id_]!r} cannot be {changed[id_]}: "
                    + (
                        f"the query of view {job.name!r} reads it; give the view another query first with "
                        f"store.replace_views({{{job.name!r}: …}}), or drop it"
                        if job.view is not None
                        else f"job {job.name!r} reads it; drop that job first with store.drop_job({job.name!r}), or "
                        "declare the columns that it reads with create_job(…, columns={…})"
                    )
                )


def issue_epoch(tx: Txn, handle: Handle) -> None:
    """Issue an epoch for the creation of a table, above all earlier ones; none in a store without epochs."""
    counters = Counters.read(tx)
    if counters.last_epoch:
        now_ms = handle.clock_guard.issuing_ms(tx, counters.last_epoch)
        move_counters(tx, counters, max(counters.last_epoch + 1, from_unix_ms(now_ms)))


def add_table(tx: Txn, schema: TableSchema, settings: Settings, job_id: int | None, now_ms: int) -> TableDef:
    """Add a table under a new id. Call inside a transaction.

    A root table exists from the newest epoch on, which was issued for it; an output cannot be read there yet. In a
    store without epochs, both exist from the first epoch at or after now.
    """
    if tx.get(name_key(schema.name)) is not None:
        raise TableExists(f"table {schema.name!r} exists already; get it with store.table({schema.name!r})")
    counters = Counters.read(tx)
    created = counters.last_epoch + (job_id is not None) if counters.last_epoch else from_unix_ms(now_ms)
    changelog, options = settings.changelog or "upsert", settings.options or TableOptions()
    table = TableDef(
        counters.next_table,
        schema,
        changelog,
        options,
        job_id,
        drop_unchanged=settings.drop_unchanged is not False,
        created=created,
        checks=tuple((settings.checks or {}).items()),
    )
    tx.put(HEAD, replace(counters, next_table=table.id + 1).to_record())
    tx.put(table_key(table.id), table.to_record())
    tx.put(head_key(table.id), TableVersion().to_record())
    tx.put(name_key(schema.name), {"id": table.id})
    return table


def drop_table(handle: Handle, name: str) -> None:
    """Delete a table with its log and history; TableInUse while a job reads or owns it."""

    def body(tx: Txn) -> None:
        table = find_table(tx, name)
        refuse_in_use(tx, table)
        remove_table(tx, table.id, handle.catalog.now_ms())

    handle.catalog.transact(body)
    hit("table:dropped")
    handle.log(TABLE_DROPPED, table=name)


def refuse_in_use(view: ReadTxn, table: TableDef) -> None:
    """Raise TableInUse with the name of the job or load that reads, owns or writes the table, if there is one."""
    name = table.name
    if table.job_id is not None:
        job = get_job(view, table.job_id, "?")
        if job.view is not None:
            raise TableInUse(f"table {name!r} has the rows of a view; drop it with store.drop_view({job.name!r})")
        raise TableInUse(
            f"table {name!r} is an output of job {job.name!r}; drop the job with store.drop_job({job.name!r})"
        )
    for job in all_jobs(view):
        if table.id in job.upstreams:
            kind = "job" if job.view is None else "view"
            raise TableInUse(f"table {name!r} is read by {kind} {job.name!r}; drop that {kind} first")
        if table.id in job.rows_from:
            raise TableInUse(f"table {name!r} cannot be dropped: {of_earlier_query(job)}")
    for load in all_loads(view):
        if table.id in load.tables and load.state != "finished":
            raise TableInUse(
                f"table {name!r} is written by load {load.name!r}; drop that load first with "
                f"store.drop_load({load.name!r})"
            )


def of_earlier_query(job: JobRecord) -> str:
    """Explain that a replaced view has no commit of its new query, and how it gets one."""
    return (
        f"the newest rows of view {job.name!r} are of its query before the replacement, which reads it; step the view "
        f"until it is past epoch {show_epoch(job.rebuild or job.position)}, with store.view({job.name!r}).step() or "
        "`epochlog run`, then drop again"
    )


def remove_table(tx: Txn, table_id: int, now_ms: int) -> None:
    """Delete all records of a table, except the leases of its readers. Call inside a transaction.

    Vacuum deletes the files when no reader can have them open. Consumers of the table lose their holds.
    """
    record = tx.get(table_key(table_id))
    if record is None:
        return
    mark_table_dropped(tx, table_id, now_ms)
    _forget_former_reads(tx, table_id)
    mark_unreachable(tx, table_id, files_of(tx, table_id).items(), now_ms)
    move_counters(tx, Counters.read(tx))
    for kind in (b"log", b"hist", b"hold", b"used", b"compact", b"trace", b"made", b"kept", b"schema", b"state"):
        prefix = kind + b"/%08x/" % table_id
        for key, child in list(scan_prefix(tx, prefix)):
            if kind != b"hold" or child["expires_ms"] is None:
                tx.delete(key)
    tx.delete(head_key(table_id))
    tx.delete(runs_key(table_id))
    tx.delete(compact_key(table_id))
    tx.delete(trouble_key(table_id))
    tx.delete(kept_history_key(table_id))
    tx.delete(state_key(table_id))
    tx.delete(table_key(table_id))
    tx.delete(name_key(TableDef.from_record(record).name))


def _forget_former_reads(tx: Txn, table_id: int) -> None:
    """Take a dropped table out of earlier queries of views, whose epochs are not valid any more."""
    for job in list(all_jobs(tx)):
        if table_id in job.read_before:
            until = max(until for until, tables in job.former if table_id in tables)
            former = tuple(entry for entry in job.former if entry[0] > until)
            traced_from = max(job.traced_from, until)
            tx.put(job_key(job.id), replace(job, former=former, traced_from=traced_from).to_record())


def truncate_log(handle: Handle, table: TableDef, before: int) -> None:
    """Raise the truncation mark to `before`; LogHeld names the holder that needs an older part of the log."""
    before = as_epoch("before", before)

    def body(tx: Txn) -> bool:
        version = get_version(tx, table.id, table.name)
        if before <= version.log_start:
            return True
        if before > version.max_committed_epoch:
            raise InvalidInput(
                f"the log of {table.name!r} ends at epoch {show_epoch(version.max_committed_epoch)}; truncate it "
                f"before that epoch at most, not before {show_epoch(before)}"
            )
        for hold in holds_of(tx, table.id, handle.catalog.now_ms(), handle.leases.live):
            if hold.log_epoch is not None and hold.log_epoch < before:
                raise LogHeld(
                    f"{hold.holder} still needs the log of {table.name!r} after epoch {show_epoch(hold.log_epoch)}; "
                    f"truncate before {show_epoch(hold.log_epoch)} at most, or end that holder"
                )
        return truncate(handle, tx, table.id, version, before)

    while not handle.catalog.transact(body):
        continue  # a long log takes several transactions
    hit("truncate:after")
    handle.log(LOG_TRUNCATED, table=table.name, before=before)


def table_bytes(version: TableVersion) -> int:
    """Return the bytes of all files that a table reaches: log, runs and history."""
    return version.log_bytes + version.run_bytes
