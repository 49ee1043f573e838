"""Clone of a table: a new root table with the rows of a table at one epoch, which shares that table's files.

Rules: docs/SEMANTICS.md, 1.20 to 1.22. No row is read or written. The clone takes over the sorted runs that the epoch
sees, the L0 segments above them, and the deletes that are kept at it; a run with later rows, too, is cut at the epoch
(`SortedRun.at`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import EpochNotCommitted, InvalidInput, LimitExceeded, TableExists
from epochlog.store.catalog.keys import HEAD, head_key, name_key, runs_key, schema_key, table_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import TABLE_CLONED
from epochlog.store.epochs.epoch_errors import require_begun
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.commit_log import get_entries, put_commit, put_entry
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.kept_deletes import KeptFiles, kept_deletes, put_kept
from epochlog.store.metadata.lookups import find_table, get_runs, get_version
from epochlog.store.metadata.named_columns import lost_column, with_schema
from epochlog.store.metadata.schema_change import MAX_VERSIONS, next_version
from epochlog.store.metadata.shared_files import share_files
from epochlog.store.metadata.version import (
    Commit,
    LogEntry,
    Runs,
    TableVersion,
    runs_to_record,
    version_of_clone,
)
from epochlog.store.scan.scan_plan import plan_scan, require_complete
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch
from epochlog.store.types.schema import TableSchema

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def clone_table(handle: Handle, source: str, name: str, epoch: int | None = None) -> TableDef:
    """Create a root table with the rows of `source` at an epoch (None: its newest commit) and its settings.

    Raises TableNotFound, TableExists, InvalidName, EpochExpired, EpochNotCommitted, LimitExceeded, InvalidInput (a
    setting that names a column of after the epoch).
    """
    at = None if epoch is None else as_epoch("as_of", epoch)
    clone = handle.catalog.transact(lambda tx: _clone(handle, tx, source, name, at))
    hit("clone:after-transaction")
    handle.log(TABLE_CLONED, table=name, source=source)
    return clone


def _clone(handle: Handle, tx: Txn, source_name: str, name: str, at: int | None) -> TableDef:
    source = find_table(tx, source_name)
    if tx.get(name_key(name)) is not None:
        raise TableExists(f"table {name!r} exists already; clone {source_name!r} under another name")
    now_ms = handle.catalog.now_ms()
    version = get_version(tx, source.id, source.name)
    if at is None:
        at = version.max_committed_epoch
        if source.derived and not at:
            raise EpochNotCommitted(f"table {source.name!r} has no commit yet: its job is creating it; clone it later")
    else:
        epochs = read_epoch_view(tx, handle.memory, now_ms, above=[source.id])
        require_complete(source.name, at, epochs.complete_through(source.id))
        require_begun(epochs.table(source.id), at)
    plan_scan(tx, source, at)  # raises EpochExpired
    runs = cut_runs(get_runs(tx, source.id), at)
    kept = kept_deletes(tx, source.id, at)
    entries = [_bare(entry) for entry in get_entries(tx, source.id, version.compacted_epoch, at)]
    counters = Counters.read(tx)
    begin = max(counters.last_epoch + 1, from_unix_ms(handle.clock_guard.issuing_ms(tx, counters.last_epoch)))
    settings = with_schema(source, schema_of_clone(source, name, at, begin))
    clone = TableDef(
        counters.next_table,
        settings.schema,
        source.changelog,
        settings.options,
        checks=settings.checks,
        full_since=begin if source.changelog == "full" else None,
        first_changelog=source.changelog,
        created=begin,
        shares=True,
    )
    tx.put(HEAD, replace(counters, next_table=clone.id + 1).to_record())
    move_counters(tx, Counters.read(tx), begin)
    tx.put(table_key(clone.id), clone.to_record())
    for columns in clone.schema.lineage:
        tx.put(schema_key(clone.id, columns.version), {"schema": columns.to_bytes()})
    tx.put(name_key(name), {"id": clone.id})
    _put_rows(tx, clone, version_of_clone(begin, runs, entries), runs, entries, now_ms)
    if kept:
        put_kept(tx, clone.id, begin, kept)
    share_files(tx, source.id, clone.id, _paths(runs, entries, kept))
    if not source.shares:
        tx.put(table_key(source.id), replace(find_table(tx, source_name), shares=True).to_record())
    hit("clone:before-transaction")
    return clone


def schema_of_clone(source: TableDef, name: str, at: int, begin: int) -> TableSchema:
    """Return the schema of a clone as of an epoch, with the versions of the source's columns, which the shared files
    have. If the source was altered since, the columns in force at the epoch become a version of the clone at `begin`.

    Raises LimitExceeded, and InvalidInput if a check or the ttl, which the clone takes over, names a column that the
    epoch lacks, or has with another type. Pure.
    """
    lineage = tuple(replace(version, name=name) for version in source.schema.lineage)
    schema = replace(source.schema.at(at), name=name).with_lineage(lineage)
    if schema.version == source.schema.version:
        return schema
    if len(lineage) >= MAX_VERSIONS:
        raise LimitExceeded(
            f"table {source.name!r} was altered {MAX_VERSIONS - 1} times, which is the limit: clone it as of its "
            f"newest alter at epoch {show_epoch(source.schema.version)}, or of a later epoch"
        )
    lost = lost_column(source, schema)
    if lost is not None:
        setting, column = lost
        raise InvalidInput(
            f"{setting} of {source.name!r} names the column {column!r}, which was added or widened after epoch "
            f"{show_epoch(at)}, and a clone has the settings of its source: clone it as of epoch "
            f"{show_epoch(source.schema.version)} or a later one, or remove {setting} first"
        )
    return next_version(schema, lineage, begin)


def cut_runs(runs: Runs, at: int) -> Runs:
    """Return the runs that an epoch sees, without the history that it does not; the last one is cut if it has later
    rows. Pure.
    """
    return tuple(_cut(run, at) for run in runs if run.lo < at)


def _cut(run: SortedRun, at: int) -> SortedRun:
    past = run.past_epoch(at)
    if past is None:
        return replace(run, history=())
    return replace(run, history=tuple(part for part in run.history if part.seen_at(past)), at=past)


def _bare(entry: LogEntry) -> LogEntry:
    """Return a log entry below the clone's log: for reads of rows only, without pre-images."""
    return replace(entry, groups=tuple(replace(group, images=(), stores_images=False) for group in entry.groups))


def _put_rows(
    tx: Txn, clone: TableDef, version: TableVersion, runs: Runs, entries: list[LogEntry], now_ms: int
) -> None:
    """Put the clone's version, its runs and L0, and the empty entry with which its log begins."""
    begin = version.max_committed_epoch
    tx.put(head_key(clone.id), version.to_record())
    if runs:
        tx.put(runs_key(clone.id), runs_to_record(runs))
    for entry in (*entries, LogEntry(begin)):
        put_entry(tx, clone.id, entry)
    commit = Commit(begin, now_ms, "clone", None, None, 0, 0, 0, 0, False, ())
    put_commit(tx, clone.id, commit)


def _paths(runs: Runs, entries: Iterable[LogEntry], kept: KeptFiles) -> list[str]:
    parts = [part.path for run in runs for part in (*run.parts, *run.history)]
    return [*parts, *(file.path for entry in entries for file in entry.files), *(file.segment.path for file in kept)]
