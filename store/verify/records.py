"""Checks of the catalog's records against each other: references, counts, epochs and invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import (
    LOAD_PREFIX,
    TXN_APP_PREFIX,
    TXN_PREFIX,
    UNREACHABLE_PREFIX,
    key_epoch,
    share_key,
    txn_app_key,
    txn_key,
)
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.commit.loads import all_loads, broken_load
from epochlog.store.compaction.task_record import read_work
from epochlog.store.epochs.view_reader import EpochMemory, read_epoch_view
from epochlog.store.metadata.commit_log import commit_at, commits_by_key, scan_entries
from epochlog.store.metadata.consumer_record import broken_consumers
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.kept_deletes import kept_records
from epochlog.store.metadata.known_clocks import read_clocks
from epochlog.store.metadata.lookups import all_jobs, all_tables, get_runs, get_version
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.shared_files import SharedFile, list_shared, owner_of
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.metadata.state_tables import StateTable, read_state
from epochlog.store.metadata.version import (
    Commit,
    LogEntry,
    Runs,
    TableVersion,
    broken_invariants,
    broken_runs,
    describe_group,
)
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema

from .job_state import upstream_findings

Finding = tuple[str, str]
"""Name of the file or record, and the problem there."""

KINDS = (
    *(
        "meta",
        "name",
        "jobname",
        "table",
        "schema",
        "head",
        "runs",
        "log",
        "hist",
        "job",
        "load",
        "bound",
        "hold",
        "used",
    ),
    *("intent", "gone", "compact", "trace", "trouble", "txn", "txnapp", "made", "kept", "consumer", "lease"),
    *("share", "pace", "past", "state"),
    *("xq", "xu", "xc", "xp", "xd", "xk"),
)
OF_TABLES = (
    *("schema", "head", "runs", "log", "hist", "hold", "used", "compact", "trace", "trouble", "made", "kept", "state"),
    "past",
)
"""Kinds of records that are deleted with their table. (Those in gone/ stay until vacuum has deleted the files, leases
until they end.)
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """Tables of the store, problems of records that belong to no single table, and unreachable files that the catalog
    knows.
    """

    tables: tuple[TableDef, ...]
    problems: tuple[Finding, ...]
    unreachable: frozenset[str]  # files noted as unreachable
    under_way: frozenset[str]  # files of running compactions


def check_records(view: ReadTxn) -> Contents:
    """Check that every record decodes, can be looked up by its key, and refers to existing records."""
    tables, jobs, counters = tuple(all_tables(view)), tuple(all_jobs(view)), Counters.read(view)
    problems = [*_check_each_record(view, {table.id for table in tables}, counters)]
    problems += _check_names(view, tables, jobs, counters)
    for job in jobs:
        problems += _check_job(view, job, {table.id: table for table in tables})
    problems += _check_upstreams(view, jobs)
    problems += _check_loads(view, {table.id: table for table in tables})
    problems += broken_consumers(view, {table.id: table for table in tables})
    problems += _check_shared(view, tables)
    problems += _check_outcomes(view, {table.id for table in tables})
    read_clocks(view)
    unreachable = frozenset(record["path"] for _, record in scan_prefix(view, UNREACHABLE_PREFIX))
    works = [work for table in tables if (work := read_work(view, table.id)) is not None]
    under_way = frozenset(part.path for work in works for part in work.parts)
    return Contents(tables, tuple(problems), unreachable, under_way)


def _check_each_record(view: ReadTxn, tables: set[int], counters: Counters) -> Iterator[Finding]:
    orphans: Counter[tuple[str, int]] = Counter()
    for key, record in view.scan(b"", b"\xff"):  # the scan decodes each record; `get` checks the index
        location = f"catalog record {key!r}"
        if view.get(key) is None:
            yield location, "exists, but a lookup does not find it"
        kind, _, suffix = key.decode(errors="replace").partition("/")
        if kind not in KINDS:
            yield location, "is of an unknown kind"
        elif kind in OF_TABLES and _table_id(suffix) not in tables and not _is_lease(kind, record):
            orphans[kind, _table_id(suffix)] += 1
        elif kind in ("gone", "share") and not 0 <= _table_id(suffix) < counters.next_table:
            yield location, "belongs to a table that never existed"
        elif kind == "bound" and key_epoch(key) > counters.last_epoch:
            yield location, f"is a boundary above last_epoch {show_epoch(counters.last_epoch)}"
        elif kind in ("intent", "hold") and (problem := _key_mismatch(kind, suffix, record)):
            yield location, problem
    for (kind, table_id), count in sorted(orphans.items()):
        yield f"catalog records {kind}/{table_id:08x}", f"{count} belong to a missing table"


def _is_lease(kind: str, record: Record) -> bool:
    """Return True for a hold that expires: a snapshot's lease outlives the drop of a table that it reads."""
    return kind == "hold" and record["expires_ms"] is not None


def _table_id(suffix: str) -> int:
    try:
        return int(suffix[:8], 16)
    except ValueError:
        return -1


def _key_mismatch(kind: str, suffix: str, record: Record) -> str:
    named = record["id"] if kind == "intent" else f"{record['table_id']:08x}/{record['holder']}"
    return "" if named == suffix else f"is a record of {named!r}"


def _check_names(
    view: ReadTxn, tables: tuple[TableDef, ...], jobs: tuple[JobRecord, ...], counters: Counters
) -> Iterator[Finding]:
    """Check that the names of tables and jobs lead to their ids, each once, and that no id is issued twice."""
    for kind, owners, free in (("name", tables, counters.next_table), ("jobname", jobs, counters.next_job)):
        prefix = f"{kind}/".encode()
        named = {key[len(prefix) :].decode(): record["id"] for key, record in scan_prefix(view, prefix)}
        known = {owner.name: owner.id for owner in owners}
        for name in sorted(named.keys() | known.keys()):
            if named.get(name) != known.get(name):
                yield f"catalog record {kind}/{name}", f"says {named.get(name)}, but the id is {known.get(name)}"
        if len(known) != len(owners):
            yield f"catalog records {kind}", "two have one name"
        if known and max(known.values()) >= free:
            yield "catalog record meta/head", f"would issue id {free} a second time"


def _check_job(view: ReadTxn, job: JobRecord, tables: dict[int, TableDef]) -> Iterator[Finding]:
    """Check that a job's tables exist, that it owns its outputs, and that their committed epochs equal its position."""
    subject = f"job {job.name}"
    missing = [table for table in (*job.upstreams, *job.outputs, *job.read_before) if table not in tables]
    if missing:
        yield subject, f"refers to missing tables: {missing}"
    if job.barrier is not None and not job.barrier[0] == job.position < job.barrier[1]:
        yield subject, f"has the position {show_epoch(job.position)}, but its barrier is {job.barrier}"
    for table in (tables[output] for output in job.outputs if output in tables):
        if table.job_id != job.id:
            yield subject, f"is not the job that its output {table.name} names"
        committed = get_version(view, table.id, table.name).max_committed_epoch
        if committed != job.position:
            position = show_epoch(job.position)
            yield subject, f"has the position {position}, but its output {table.name} is at {show_epoch(committed)}"
    foreign = [table.name for table in tables.values() if table.job_id == job.id and table.id not in job.outputs]
    if foreign:
        yield subject, f"omits the outputs {foreign}, although their records name this job"


def _check_upstreams(view: ReadTxn, jobs: tuple[JobRecord, ...]) -> Iterator[Finding]:
    """Yield the inconsistencies of jobs with their upstreams. Stop at missing records, which other checks report."""
    try:
        epochs = read_epoch_view(view, EpochMemory(), 0)
        for job in jobs:
            yield from ((f"job {job.name}", problem) for problem in upstream_findings(view, job, epochs))
    except (EpochlogError, KeyError):
        return


def _check_loads(view: ReadTxn, tables: dict[int, TableDef]) -> Iterator[Finding]:
    """Check that the tables of each load and the load of each part exist."""
    known = {load.name: load for load in all_loads(view)}
    for load in known.values():
        yield from ((f"load {load.name}", problem) for problem in broken_load(view, load, tables))
    for key, _ in scan_prefix(view, LOAD_PREFIX):
        name = key.decode(errors="replace").split("/")[1]
        if name not in known:
            yield f"catalog record {key!r}", "belongs to a missing load"


def _check_shared(view: ReadTxn, tables: tuple[TableDef, ...]) -> Iterator[Finding]:
    """Check that the record of each shared file names the tables that reach it, and that a file of two tables has
    one.
    """
    reaching: dict[str, set[int]] = {}
    for table in (table for table in tables if table.shares):
        for path in files_of(view, table.id):
            reaching.setdefault(path, set()).add(table.id)
    recorded = {shared.path: set(shared.tables) for shared in list_shared(view)}
    for path in sorted(reaching.keys() | recorded.keys()):
        actual = reaching.get(path, set())
        if path in recorded and recorded[path] != actual:
            yield path, f"is shared by the tables {sorted(recorded[path])}, but {sorted(actual)} reach it"
        elif path not in recorded and len(actual) > 1:
            yield path, f"is reached by the tables {sorted(actual)}, and has no record of a shared file"


def _check_outcomes(view: ReadTxn, tables: set[int]) -> Iterator[Finding]:
    """Check that each application's count equals its recorded outcomes, and that these match the remembered commits."""
    counted: Counter[str] = Counter()
    for key, record in scan_prefix(view, TXN_PREFIX):
        app, txn_id = key[len(TXN_PREFIX) : -17].decode(), key_epoch(key)
        counted[app] += 1
        marks = view.get(txn_app_key(app))
        if marks is not None and txn_id <= marks["forgotten"]:
            yield f"transaction {(app, txn_id)}", f"is recorded, but those through {marks['forgotten']} are forgotten"
        epoch = record["epoch"]
        if epoch is None:
            continue
        for table_id in tables.intersection(record["tables"]):
            commit = commit_at(view, table_id, epoch)
            if commit is not None and commit.txn != (app, txn_id):
                yield f"transaction {(app, txn_id)}", f"is recorded at {show_epoch(epoch)}, where another one landed"
    for key, record in scan_prefix(view, TXN_APP_PREFIX):
        app = key[len(TXN_APP_PREFIX) :].decode()
        if counted.pop(app, 0) != record["count"]:
            yield f"application {app!r}", f"counts {record['count']} outcomes, but has another number"
    for app in counted:
        yield f"application {app!r}", "has outcomes, but no count of them"


# ---- one table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Files that a table reaches: log segments, pre-images and staged segments; run files; and kept deletes."""

    segments: tuple[Segment, ...]
    runs: Runs
    problems: tuple[Finding, ...] = ()
    kept: tuple[Segment, ...] = ()
    state: tuple[StateTable, ...] = ()
    packs: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Rows of each log epoch of the packs among the segments, by path."""
    contents: Mapping[str, str] = field(default_factory=dict[str, str])
    """What each of these packs has, by path, for people."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file, by path."""
        parts = [part for run in self.runs for part in (*run.parts, *run.history)]
        state = [segment for table in self.state for segment in table.segments]
        return {file.path: file.bytes for file in (*self.segments, *self.kept, *state, *parts)}


def check_table(view: ReadTxn, table: TableDef, folder: str) -> TableFiles:
    """Check that a table's log, commits and counters agree, and that all its files lie in its folder, or are shared."""
    version, runs = get_version(view, table.id, table.name), get_runs(view, table.id)
    entries = list(scan_entries(view, table.id))
    problems = [f"breaks the invariant {name}" for name in broken_invariants(version)]
    problems += [f"breaks the invariant {name}" for name in broken_runs(version, runs)]
    last_epoch = Counters.read(view).last_epoch
    if version.max_committed_epoch > last_epoch:
        problems.append(
            f"is committed at {show_epoch(version.max_committed_epoch)}, above last_epoch {show_epoch(last_epoch)}"
        )
    if entries and entries[-1].epoch > version.max_committed_epoch:
        problems.append(f"has a log entry at {show_epoch(entries[-1].epoch)}, above its newest commit")
    problems += _check_counts(version, entries)
    problems += _check_labels(entries)
    problems += _check_pre_images(table, entries)
    problems += _check_commits(view, table, version, entries)
    staged = list_staged(view, table.id)
    problems += _check_kept(view, table, version)
    kept = {file.segment.path: file.segment for _, files in kept_records(view, table.id) for file in files}
    segments = (*(file for entry in entries for file in entry.files), *staged)
    packs = {
        file.path: rows
        for entry in entries
        for group in entry.groups
        if group.packed is not None
        for files, rows in ((group.segments, group.packed.rows), (group.images, group.packed.images))
        for file in files
    }
    contents = {
        file.path: describe_group(group)
        for entry in entries
        if entry.packed is not None
        for group in entry.groups
        for file in (*group.segments, *group.images)
    }
    state = read_state(view, table.id)
    if state is not None and (table.job_id is None or state.epoch > version.max_committed_epoch):
        problems.append(f"has a state of {show_epoch(state.epoch)}, which is of none of its commits")
    tables = () if state is None else state.tables
    files = TableFiles(segments, runs, kept=tuple(kept.values()), state=tables, packs=packs, contents=contents)
    foreign = {path for path in files.sizes if not path.startswith(folder + "/")}
    problems += [f"reaches {path} of another folder" for path in foreign if not _shares(view, table.id, path)]
    problems += [
        f"reaches {s.path} of table {s.table_id}"
        for s in (*files.segments, *files.kept, *(segment for kept in files.state for segment in kept.segments))
        if s.table_id != (owner_of(s.path, table.id) if s.path in foreign else table.id)
    ]
    problems += _check_columns(table, version, files)
    return replace(files, problems=tuple((f"table {table.name}", problem) for problem in problems))


def _check_kept(view: ReadTxn, table: TableDef, version: TableVersion) -> Iterator[str]:
    """Check that only a table with a sequence keeps deletes, and none of a later commit."""
    for key, files in kept_records(view, table.id):
        epoch = key_epoch(key)
        if table.schema.sequence_by is None:
            yield f"keeps deletes at {show_epoch(epoch)}, but has no sequence"
        if epoch > version.max_committed_epoch or any(file.epoch > epoch for file in files):
            yield f"keeps deletes at {show_epoch(epoch)} that are newer than their commit"


def _shares(view: ReadTxn, table_id: int, path: str) -> bool:
    """Return True if the record of a shared file names the table."""
    record = view.get(share_key(owner_of(path, table_id), path))
    return record is not None and table_id in SharedFile.from_record(record).tables


def _check_columns(table: TableDef, version: TableVersion, files: TableFiles) -> Iterator[str]:
    """Check the versions of an altered table's columns, and that files have the columns that readable epochs need."""
    lineage = table.schema.lineage or (table.schema,)
    epochs, known = [schema.version for schema in lineage], {schema.version for schema in lineage}
    if epochs != sorted(known) or epochs[0] != 0 or epochs[-1] > version.max_committed_epoch:
        yield f"has versions of its columns at {epochs}, and its newest commit at {version.max_committed_epoch}"
    oldest = min((version.safe_epoch, *version.kept))
    parts = [part for run in files.runs for part in (*run.parts, *run.history)]
    for file in (*files.segments, *files.kept, *parts):
        if file.schema_version not in known:
            yield f"reaches {file.path}, whose columns are of an unknown version {file.schema_version}"
    for part in parts:
        if part.schema_version in known:
            written = table.schema.at(part.schema_version)
            needed = {id_ for schema in _readable(lineage, oldest, part) for id_ in schema.ids}
            needed |= _ids_of_clone(table, lineage, part)
            missing = needed.difference(written.ids, part.dropped)
            if missing:
                yield f"reaches {part.path}, which lacks the columns {sorted(missing)} of epochs that can be read"


def _readable(lineage: Sequence[TableSchema], oldest: int, part: RunFile) -> Iterator[TableSchema]:
    """Yield the versions up to a part's own that are in force at or after the oldest readable epoch."""
    ends = [*(schema.version for schema in lineage[1:]), part.schema_version + 1]
    for schema, end in zip(lineage, ends, strict=True):
        if schema.version <= part.schema_version and end > oldest:
            yield schema


def _ids_of_clone(table: TableDef, lineage: Sequence[TableSchema], part: RunFile) -> set[int]:
    """Return the columns that a clone as of an epoch before an alter had at first, as far as a file of its source can
    have them.
    """
    first = [schema.ids for schema in lineage if schema.version == table.created > part.schema_version]
    known = {id_ for schema in lineage if schema.version <= part.schema_version for id_ in schema.ids}
    return known.intersection(*first) if first else set()


def _check_counts(version: TableVersion, entries: list[LogEntry]) -> Iterator[str]:
    """Check the sums that every commit maintains against the log entries."""
    log = [entry for entry in entries if entry.epoch >= version.log_start]
    l0 = [entry for entry in entries if entry.epoch > version.compacted_epoch]
    counted = {
        "log_segments": sum(len(entry.segments) for entry in log),
        "log_bytes": sum(file.bytes for entry in log for file in entry.files),
        "l0_segments": sum(len(entry.segments) for entry in l0),
        "l0_bytes": sum(segment.bytes for entry in l0 for segment in entry.segments),
    }
    for name, count in counted.items():
        if count != getattr(version, name):
            yield f"counts {getattr(version, name)} {name}, but there are {count}"


def _check_labels(entries: list[LogEntry]) -> Iterator[str]:
    """Check that log epochs rise within each commit and between commits, and that segments carry their log epoch as
    label.
    """
    before = 0
    for entry in entries:
        labels = [group.label for group in entry.groups]
        first = entry.groups[0].first if entry.groups else 0
        if labels != sorted(set(labels)) or (labels and not before < first <= labels[-1] <= entry.epoch):
            yield f"has the log epochs {labels} in the commit at {show_epoch(entry.epoch)}, after {show_epoch(before)}"
        own = (group for group in entry.groups if group.packed is None)  # a pack's file has no label of its own
        if any(segment.label != group.label for group in own for segment in group.segments):
            yield f"has segments with labels other than their log epoch in the commit at {show_epoch(entry.epoch)}"
        before = entry.epoch


def _check_pre_images(table: TableDef, entries: list[LogEntry]) -> Iterator[str]:
    """Check that only entries marked with pre-images have them, and that all entries that need them are marked."""
    for entry in entries:
        flags = {group.stores_images for group in entry.groups}
        if False in flags and any(group.images for group in entry.groups):
            yield f"has pre-images of the commit at {show_epoch(entry.epoch)}, which is marked as having none"
        if False in flags and entry.segments and table.stores_images_after(entry.last_change - 1):
            since = table.full_since
            yield f"lacks pre-images of the commit at {show_epoch(entry.epoch)}, but stores them since {since}"


def _check_commits(view: ReadTxn, table: TableDef, version: TableVersion, entries: list[LogEntry]) -> Iterator[str]:
    """Check that every remembered commit within the log has its entry, and that every entry has its
    remembered commit.
    """
    logged = dict(counts for entry in entries for counts in _logged_counts(entry))
    lost, differing, unknown_txns, twice, known, before = [], [], [], [], set[int](), -1
    for epoch, commit in commits_by_key(view, table.id):
        known.add(epoch)
        twice += [epoch] if epoch <= before else []
        before = max(before, epoch)
        counts = logged.get(epoch)
        if counts is None:
            lost += [epoch] if epoch >= max(version.log_start, 1) else []
        elif commit.epoch != epoch or _counts(commit) != counts:
            differing.append(epoch)
        if commit.txn is not None and not _has_outcome(view, commit.txn):
            unknown_txns.append(epoch)
    forgotten = sorted(epoch for epoch in logged if epoch not in known and epoch > version.known_from)
    for epochs, problem in (
        (sorted(lost), "has no log entry for"),
        (forgotten, "lacks the records of"),
        (differing, "has wrong records of"),
        (unknown_txns, "lacks the transactions of"),
        (twice, "has two records, or records out of order, of"),
    ):
        if epochs:
            yield f"{problem} {len(epochs)} commits, the first at {epochs[0]}"
    if version.max_committed_epoch and version.max_committed_epoch not in known:
        yield f"lacks the record of its newest commit {show_epoch(version.max_committed_epoch)}"


Counts = tuple[int, int, int, bool, tuple[int, ...]]
"""Rows upserted and deleted by a commit, its segments, `changed`, and its log epochs other than its own."""


def _counts(commit: Commit) -> Counts:
    return commit.rows_upserted, commit.rows_deleted, commit.segments, commit.changed, commit.labels


def _logged_counts(entry: LogEntry) -> Iterator[tuple[int, Counts]]:
    """Yield the epoch of each commit of a log entry, with the counts that its remembered commit must have."""
    packed = entry.packed
    if packed is None:
        deletes = sum(segment.deletes for segment in entry.segments)
        rows = sum(segment.rows for segment in entry.segments)
        labels = tuple(group.label for group in entry.groups if group.label != entry.epoch)
        yield entry.epoch, (rows - deletes, deletes, len(entry.segments), entry.changed, labels)
        return
    columns = (packed.epochs, packed.committed_rows, packed.committed_deletes, packed.segments)
    for epoch, rows, deletes, segments in zip(*(column.tolist() for column in columns), strict=True):
        yield epoch, (rows - deletes, deletes, segments, rows > 0, ())


def _has_outcome(view: ReadTxn, txn: tuple[str, int]) -> bool:
    app = view.get(txn_app_key(txn[0]))
    return view.get(txn_key(*txn)) is not None or (app is not None and txn[1] <= app["forgotten"])
