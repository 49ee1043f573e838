"""Checks of the catalog's records against each other: references, counts, epochs and invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import after_prefix, hist_key, key_epoch, txn_app_key, txn_key
from epochlog.store.catalog.protocol import View
from epochlog.store.catalog.records import Record
from epochlog.store.commit.loads import all_loads, broken_load
from epochlog.store.compaction.work import read_work
from epochlog.store.epochs.view_reader import EpochMemory, read_epoch_view
from epochlog.store.metadata.consumer_record import broken_consumers
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs, all_tables, get_runs, get_version
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.metadata.version import Commit, LogEntry, Runs, TableVersion, broken_invariants, broken_runs
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch import show_epoch

from .job_state import standing_findings

Finding = tuple[str, str]
"""Where, and what is wrong there."""

KINDS = (
    *("meta", "name", "jobname", "table", "head", "runs", "log", "hist", "job", "load", "bound", "hold", "used"),
    *("intent", "gone", "compact", "trace", "trouble", "txn", "txnapp", "made", "consumer", "lease"),
    *("xq", "xu", "xc", "xp", "xd", "xk"),
)
OF_TABLES = ("head", "runs", "log", "hist", "hold", "used", "compact", "trace", "trouble", "made")
"""Records that go with their table. (Those in gone/ stay until vacuum has deleted the files, leases until they end.)"""


@dataclass(frozen=True, slots=True)
class Contents:
    """The tables, what is wrong with records that belong to no one of them, and files that are known and unreached."""

    tables: tuple[TableDef, ...]
    problems: tuple[Finding, ...]
    gone: frozenset[str]  # files that were let go of
    under_way: frozenset[str]  # files of compactions that have not ended


def check_records(view: View) -> Contents:
    """Check that every record decodes, is found under its key, and refers to records that exist."""
    tables, jobs, counters = tuple(all_tables(view)), tuple(all_jobs(view)), Counters.read(view)
    problems = [*_each_record(view, {table.id for table in tables}, counters)]
    problems += _names(view, tables, jobs, counters)
    for job in jobs:
        problems += _job(view, job, {table.id: table for table in tables})
    problems += _standing(view, jobs)
    problems += _loads(view, {table.id: table for table in tables})
    problems += broken_consumers(view, {table.id: table for table in tables})
    problems += _outcomes(view, {table.id for table in tables})
    gone = frozenset(record["path"] for _, record in view.scan(b"gone/", after_prefix(b"gone/")))
    works = [work for table in tables if (work := read_work(view, table.id)) is not None]
    under_way = frozenset(part.path for work in works for part in work.parts)
    return Contents(tables, tuple(problems), gone, under_way)


def _each_record(view: View, tables: set[int], counters: Counters) -> Iterator[Finding]:
    orphans: Counter[tuple[str, int]] = Counter()
    for key, record in view.scan(b"", b"\xff"):  # decoding a record checks it; asking for it checks the way there
        where = f"catalog record {key!r}"
        if view.get(key) is None:
            yield where, "is there and cannot be found"
        kind, _, rest = key.decode(errors="replace").partition("/")
        if kind not in KINDS:
            yield where, "is of no kind that this version knows"
        elif kind in OF_TABLES and _table_id(rest) not in tables and not _is_lease(kind, record):
            orphans[kind, _table_id(rest)] += 1
        elif kind == "gone" and not 0 <= _table_id(rest) < counters.next_table:
            yield where, "belongs to a table that there never was"
        elif kind == "bound" and key_epoch(key) > counters.last_epoch:
            yield where, f"is a boundary above last_epoch {show_epoch(counters.last_epoch)}"
        elif kind in ("intent", "hold") and (wrong := _names_itself(kind, rest, record)):
            yield where, wrong
    for (kind, table_id), count in sorted(orphans.items()):
        yield f"catalog records {kind}/{table_id:08x}", f"{count} belong to a table that is not there"


def _is_lease(kind: str, record: Record) -> bool:
    """Return True for a hold that expires: a snapshot's lease outlives the drop of a table that it reads."""
    return kind == "hold" and record["expires_ms"] is not None


def _table_id(rest: str) -> int:
    try:
        return int(rest[:8], 16)
    except ValueError:
        return -1


def _names_itself(kind: str, rest: str, record: Record) -> str:
    named = record["id"] if kind == "intent" else f"{record['table_id']:08x}/{record['holder']}"
    return "" if named == rest else f"is that of {named!r}"


def _names(
    view: View, tables: tuple[TableDef, ...], jobs: tuple[JobRecord, ...], counters: Counters
) -> Iterator[Finding]:
    """Check that names of tables and jobs lead to their ids, each once, and that no used id is given again."""
    for kind, owners, free in (("name", tables, counters.next_table), ("jobname", jobs, counters.next_job)):
        prefix = f"{kind}/".encode()
        named = {key[len(prefix) :].decode(): record["id"] for key, record in view.scan(prefix, after_prefix(prefix))}
        known = {owner.name: owner.id for owner in owners}
        for name in sorted(named.keys() | known.keys()):
            if named.get(name) != known.get(name):
                yield f"catalog record {kind}/{name}", f"says {named.get(name)}, and the id is {known.get(name)}"
        if len(known) != len(owners):
            yield f"catalog records {kind}", "two bear the same name"
        if known and max(known.values()) >= free:
            yield "catalog record meta/head", f"would give id {free} a second time"


def _job(view: View, job: JobRecord, tables: dict[int, TableDef]) -> Iterator[Finding]:
    """Check that a job's tables exist, that its outputs are its own, and that their committed epochs equal its
    position.
    """
    where = f"job {job.name}"
    missing = [table for table in (*job.upstreams, *job.outputs) if table not in tables]
    if missing:
        yield where, f"refers to tables that are not there: {missing}"
    if job.barrier is not None and not job.barrier[0] == job.position < job.barrier[1]:
        yield where, f"stands at {show_epoch(job.position)}, and its barrier is {job.barrier}"
    for table in (tables[output] for output in job.outputs if output in tables):
        if table.job_id != job.id:
            yield where, f"is not the job that its output {table.name} names"
        committed = get_version(view, table.id, table.name).max_committed_epoch
        if committed != job.position:
            yield where, f"stands at {show_epoch(job.position)}, and its output {table.name} at {show_epoch(committed)}"
    foreign = [table.name for table in tables.values() if table.job_id == job.id and table.id not in job.outputs]
    if foreign:
        yield where, f"does not know that it writes {foreign}"


def _standing(view: View, jobs: tuple[JobRecord, ...]) -> Iterator[Finding]:
    """Yield the inconsistencies of jobs with their upstreams; stop at missing records, which other checks report."""
    try:
        epochs = read_epoch_view(view, EpochMemory(), 0)
        for job in jobs:
            yield from ((f"job {job.name}", what) for what in standing_findings(view, job, epochs))
    except (EpochlogError, KeyError):
        return


def _loads(view: View, tables: dict[int, TableDef]) -> Iterator[Finding]:
    """Check that loads refer to tables that exist, and parts to loads that exist."""
    known = {load.name: load for load in all_loads(view)}
    for load in known.values():
        yield from ((f"load {load.name}", what) for what in broken_load(view, load, tables))
    for key, _ in view.scan(b"load/", after_prefix(b"load/")):
        name = key.decode(errors="replace").split("/")[1]
        if name not in known:
            yield f"catalog record {key!r}", "belongs to a load that is not there"


def _outcomes(view: View, tables: set[int]) -> Iterator[Finding]:
    """Check that each application's count equals its recorded outcomes, and that these match the remembered commits."""
    counted: Counter[str] = Counter()
    for key, record in view.scan(b"txn/", after_prefix(b"txn/")):
        app, txn_id = key[len(b"txn/") : -17].decode(), key_epoch(key)
        counted[app] += 1
        kept = view.get(txn_app_key(app))
        if kept is not None and txn_id <= kept["forgotten"]:
            yield f"transaction {(app, txn_id)}", f"is there, and those through {kept['forgotten']} are forgotten"
        epoch = record["epoch"]
        if epoch is None:
            continue
        for table_id in tables.intersection(record["tables"]):
            commit = view.get(hist_key(table_id, epoch))
            if commit is not None and commit["txn"] != [app, txn_id]:
                yield f"transaction {(app, txn_id)}", f"is not the one that landed at {show_epoch(epoch)}"
    for key, record in view.scan(b"txnapp/", after_prefix(b"txnapp/")):
        app = key[len(b"txnapp/") :].decode()
        if counted.pop(app, 0) != record["count"]:
            yield f"application {app!r}", f"counts {record['count']} outcomes, and others are there"
    for app in counted:
        yield f"application {app!r}", "has outcomes and no count of them"


# ---- one table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Everything that a table reaches: the files of its log (segments, images) and its runs, and what its job has made
    in pieces.
    """

    segments: tuple[Segment, ...]
    runs: Runs
    problems: tuple[Finding, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file, by path."""
        parts = [part for run in self.runs for part in (*run.parts, *run.history)]
        return {file.path: file.bytes for file in (*self.segments, *parts)}


def check_table(view: View, table: TableDef, folder: str) -> TableFiles:
    """Check that a table's log, commits and counters agree, and that all its files lie in its folder."""
    version, runs = get_version(view, table.id, table.name), get_runs(view, table.id)
    prefix = b"log/%08x/" % table.id
    entries = [LogEntry.from_record(record) for _, record in view.scan(prefix, after_prefix(prefix))]
    found = [f"breaks the invariant {name}" for name in broken_invariants(version)]
    found += [f"breaks the invariant {name}" for name in broken_runs(version, runs)]
    last_epoch = Counters.read(view).last_epoch
    if version.max_committed_epoch > last_epoch:
        found.append(
            f"is committed at {show_epoch(version.max_committed_epoch)}, above last_epoch {show_epoch(last_epoch)}"
        )
    if entries and entries[-1].epoch > version.max_committed_epoch:
        found.append(f"has a log entry at {show_epoch(entries[-1].epoch)}, above its newest commit")
    found += _counts(version, entries)
    found += _labels(entries)
    found += _old_rows(table, entries)
    found += _commits(view, table, version, entries)
    made = list_staged(view, table.id)
    files = TableFiles((*(file for entry in entries for file in entry.files), *made), runs)
    found += [f"reaches {path}, which is not its own" for path in files.sizes if not path.startswith(folder + "/")]
    found += [f"reaches {s.path} of table {s.table_id}" for s in files.segments if s.table_id != table.id]
    return TableFiles(files.segments, runs, tuple((f"table {table.name}", what) for what in found))


def _counts(version: TableVersion, entries: list[LogEntry]) -> Iterator[str]:
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
            yield f"counts {getattr(version, name)} {name}, and they are {count}"


def _labels(entries: list[LogEntry]) -> Iterator[str]:
    """Check that log epochs rise within each commit and from one to the next, and that segments bear theirs."""
    before = 0
    for entry in entries:
        labels = [group.label for group in entry.groups]
        if labels != sorted(set(labels)) or (labels and not before < labels[0] <= labels[-1] <= entry.epoch):
            yield f"has the log epochs {labels} in the commit at {show_epoch(entry.epoch)}, after {show_epoch(before)}"
        if any(segment.label != group.label for group in entry.groups for segment in group.segments):
            yield f"has segments with labels other than their log epoch in the commit at {show_epoch(entry.epoch)}"
        before = entry.epoch


def _old_rows(table: TableDef, entries: list[LogEntry]) -> Iterator[str]:
    """Check that entries have pre-images only if they say so, and have them where the table's changelog requires it."""
    for entry in entries:
        kept = {group.stores_images for group in entry.groups}
        if False in kept and any(group.images for group in entry.groups):
            yield f"has old rows of the commit at {show_epoch(entry.epoch)}, which says that it stores none"
        if False in kept and table.stores_images_after(entry.epoch - 1):
            yield (
                f"has no old rows of the commit at {show_epoch(entry.epoch)}, and stores them since {table.full_since}"
            )


def _commits(view: View, table: TableDef, version: TableVersion, entries: list[LogEntry]) -> Iterator[str]:
    """Check that every remembered commit within the log's reach has its entry, and that every entry is remembered."""
    prefix, logged = b"hist/%08x/" % table.id, {entry.epoch: entry for entry in entries}
    lost, differing, strangers, known = [], [], [], set[int]()
    for key, record in view.scan(prefix, after_prefix(prefix)):
        epoch, commit = key_epoch(key), Commit.from_record(record)
        known.add(epoch)
        entry = logged.get(epoch)
        if entry is None:
            lost += [epoch] if epoch >= max(version.log_start, 1) else []
        elif commit.epoch != epoch or not _tells(commit, entry):
            differing.append(epoch)
        if commit.txn is not None and not _has_outcome(view, commit.txn):
            strangers.append(epoch)
    forgotten = sorted(epoch for epoch in logged if epoch not in known and epoch > version.known_from)
    for epochs, what in (
        (sorted(lost), "has no log entry for"),
        (forgotten, "remembers nothing of"),
        (differing, "remembers something else of"),
        (strangers, "does not remember the transactions of"),
    ):
        if epochs:
            yield f"{what} {len(epochs)} commits, the first at {epochs[0]}"
    if version.max_committed_epoch and version.max_committed_epoch not in known:
        yield f"remembers nothing of its newest commit {show_epoch(version.max_committed_epoch)}"


def _tells(commit: Commit, entry: LogEntry) -> bool:
    deletes = sum(segment.deletes for segment in entry.segments)
    rows = sum(segment.rows for segment in entry.segments)
    labels = tuple(group.label for group in entry.groups if group.label != entry.epoch)
    said = (commit.rows_upserted, commit.rows_deleted, commit.segments, commit.changed, commit.labels)
    return said == (rows - deletes, deletes, len(entry.segments), entry.changed, labels)


def _has_outcome(view: View, txn: tuple[str, int]) -> bool:
    app = view.get(txn_app_key(txn[0]))
    return view.get(txn_key(*txn)) is not None or (app is not None and txn[1] <= app["forgotten"])
