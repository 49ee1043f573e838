"""Facts about tables, jobs and loads, from one state of the catalog, as JSON-able values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from epochlog.batch.tags import Tag
from epochlog.checkpoint.job.job_ddl import RunnerInfo, job_info, runner_of
from epochlog.checkpoint.job.wait_reasons import read_waits
from epochlog.checkpoint.manager.job_graph import JobGraph, vertex_of
from epochlog.errors import Corrupt
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.loads import LoadRecord, all_loads, load_parts
from epochlog.store.commit.table_ddl import table_bytes
from epochlog.store.compaction.task_record import Work, read_work
from epochlog.store.compaction.write_stall import pressure
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view, read_epochs_and_records, table_state
from epochlog.store.maintenance.scheduler import MaintenanceFailure, all_troubles
from epochlog.store.metadata.commit_log import get_entries, scan_entries
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import (
    all_jobs,
    find_table,
    get_job,
    get_runs,
    get_store,
    get_version,
)
from epochlog.store.metadata.read_default import shown_default
from epochlog.store.metadata.version import Runs, TableVersion
from epochlog.store.retention.holds import holds_of
from epochlog.store.retention.kept_history import HistorySize, KeptHistory, read_history
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import to_unix_ms
from epochlog.store.verify.doctor import lead_ms
from epochlog.views.present_text import present_text

from .holds import held_back, hold_facts, tag_facts, trouble_facts, work_facts, writers
from .text import epoch_iso, iso
from .wait_texts import JobLook, wait_texts

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableLook:
    """State of one table. `plan` reads its newest rows, None if nobody counts them; `lag_ms` is their lag."""

    table: TableDef
    version: TableVersion
    job: str | None
    state: str
    lag_ms: int
    plan: ScanPlan | None
    work: Work | None = None
    trouble: MaintenanceFailure | None = None


@dataclass(frozen=True, slots=True)
class StoreLook:
    """State of all tables, jobs and loads, ordered by name, from one state of the catalog. Each load has its number of
    finished parts.
    """

    last_epoch: int
    now_ms: int
    interval_ms: int
    tables: list[TableLook]
    jobs: list[JobLook]
    loads: list[tuple[LoadRecord, int]]
    epochs: EpochView


def look(handle: Handle) -> StoreLook:
    """Read all tables, jobs and loads from one state of the catalog, without data files."""
    return handle.catalog.read(lambda view: look_within(view, handle))


def look_within(view: ReadTxn, handle: Handle, *, counts_rows: bool = True) -> StoreLook:
    """Read all tables, jobs and loads within a catalog transaction. counts_rows: read the plans of the tables too."""
    now_ms = handle.catalog.now_ms()
    epochs, records = read_epochs_and_records(view, handle.memory, now_ms, handle.store_id, above=None)
    troubles, jobs = all_troubles(view), list(all_jobs(view))
    names = {job.id: job.name for job in jobs}
    tables = [
        TableLook(
            table,
            version,
            None if table.job_id is None else names.get(table.job_id),
            epochs.tables[table.id].state,
            epochs.lag_ms(table.id),
            plan_scan(view, table, None) if counts_rows else None,
            read_work(view, table.id),
            troubles.get(table.id),
        )
        for table, _, version in records.values()
    ]
    graph = JobGraph(map(vertex_of, jobs))
    waits = read_waits(view, handle, epochs, jobs, graph)
    component_of = {job: number for number, members in enumerate(graph.components(), 1) for job in members}
    return StoreLook(
        Counters.read(view).last_epoch,
        now_ms,
        handle.interval_ms,
        sorted(tables, key=lambda table_look: table_look.table.name),
        [
            JobLook(
                job_info(view, handle, job, epochs, present_text),
                job,
                waits[job.name],
                component_of[job.id],
                _rows_of_upstreams(view, job),
            )
            for job in sorted(jobs, key=lambda job: job.name)
        ],
        [(load, sum(part.finished for _, part in load_parts(view, load.name))) for load in all_loads(view)],
        epochs,
    )


def look_at(view: ReadTxn, table: TableDef, epochs: EpochView) -> TableLook:
    """Read one table within a catalog transaction."""
    version = get_version(view, table.id, table.name)
    job = None if table.job_id is None else get_job(view, table.job_id, "?")
    return TableLook(
        table,
        version,
        job.name if job else None,
        table_state(version, job),
        epochs.lag_ms(table.id),
        plan_scan(view, table, None),
    )


class RowCounter:
    """Counter of rows that keeps the first Corrupt error, so that a damaged file does not hide the other tables."""

    def __init__(self, handle: Handle, enabled: bool) -> None:
        self._handle = handle
        self._enabled = enabled
        self.trouble: Corrupt | None = None

    def of(self, plan: ScanPlan | None) -> int | None:
        """Count the rows; return None when counting is disabled or a file is damaged."""
        if plan is None or not self._enabled:
            return None
        try:
            return plan.count(self._handle.files)
        except Corrupt as error:
            self.trouble = self.trouble or error
            return None


def table_facts(look: TableLook, rows: int | None) -> Facts:
    """Describe a table for a list: the fields of TableInfo, and the lag."""
    version = look.version
    return {
        "name": look.table.name,
        "state": look.state,
        "job": look.job,
        "primary_key": list(look.table.schema.primary_key),
        "max_committed_epoch": version.max_committed_epoch,
        "max_committed_at": epoch_iso(version.max_committed_epoch),
        "safe_epoch": version.safe_epoch,
        "log_start_epoch": version.log_start,
        "lag_ms": look.lag_ms,
        "rows": rows,
        "bytes": table_bytes(version),
        "log_segments": version.log_segments,
        "runs": version.runs,
    }


def maintenance_facts(look: TableLook) -> Facts:
    """Describe the table's maintenance: backpressure on writers, the running compaction, and the last failure."""
    return {
        "pressure": pressure(look.version, look.table.options),
        "compaction": work_facts(look.work),
        "trouble": trouble_facts(look.trouble),
    }


def status_facts(root: str, look: StoreLook, tables: Sequence[Facts], tags: Iterable[Tag]) -> Facts:
    """Describe the store at one moment. tables: the `table_facts` of the look's tables."""
    return {
        "root": root,
        "at": iso(look.now_ms),
        "last_epoch": look.last_epoch,
        "leads_ms": lead_ms(look.last_epoch, look.now_ms),
        "tables": [{**facts, **maintenance_facts(table)} for facts, table in zip(tables, look.tables, strict=True)],
        "jobs": jobs_facts(look),
        "loads": loads_facts(look),
        "tags": [tag_facts(tag, look.now_ms) for tag in tags],
    }


def settings_facts(handle: Handle) -> Facts:
    """Describe the settings of the store that `store.alter` changes."""
    return handle.catalog.read(
        lambda view: {
            "default_consistency": shown_default(view),
            "global_max_lag_ms": get_store(view).max_lag_ms,
        }
    )


def jobs_facts(look: StoreLook) -> list[Facts]:
    """Describe all jobs for a list."""
    texts = wait_texts(look.jobs, look.now_ms)
    return [job_facts(job, look, texts[job.info.name]) for job in look.jobs]


def loads_facts(look: StoreLook) -> list[Facts]:
    """Describe all loads for a list. checkpoint: the number of the newest commit, 0 for none; incarnation: that of the
    load's coordinator.
    """
    names = {table_look.table.id: table_look.table.name for table_look in look.tables}
    return [
        {
            "name": load.name,
            "state": load.state,
            "tables": [names[table] for table in load.tables if table in names],
            "parts": load.parts,
            "finished_parts": finished,
            "checkpoint": load.checkpoint,
            "incarnation": load.incarnation,
        }
        for load, finished in sorted(look.loads, key=lambda entry: entry[0].name)
    ]


def job_facts(job: JobLook, look: StoreLook, waits_for: str) -> Facts:
    """Describe a job for a list: the fields of JobInfo, the barrier, and the reason why it waits."""
    info, record = job.info, job.record
    return {
        **asdict(info),
        "upstreams": list(info.upstreams),
        "outputs": list(info.outputs),
        "committed_at": epoch_iso(info.committed_epoch),
        "runner": runner_facts(info.runner),
        "failed_since": None if record.failed_ms is None else iso(record.failed_ms),
        "barrier": _barrier_facts(record, look.now_ms),
        "snapshot": None if job.rows_above is None else {"rows": info.snapshot_rows, "of_at_most": job.rows_above},
        "component": job.component,
        "waits_for": {**asdict(job.wait), "jobs": list(job.wait.jobs), "text": waits_for},
    }


def runner_facts(runner: RunnerInfo | None) -> Facts | None:
    """Describe a job's runner and its start time; None for no runner."""
    return None if runner is None else {**asdict(runner), "since": iso(runner.since_ms)}


def _rows_of_upstreams(view: ReadTxn, job: JobRecord) -> int | None:
    """Return an upper bound of the rows that a chunked backfill takes in, with replaced and deleted rows counted. None
    without such a backfill. A view takes in one table by chunks.
    """
    if job.cursor is None or job.barrier is None:
        return None
    place = job.cursor.place
    upstreams = job.upstreams[place : place + 1] if job.cursor.of_view else job.upstreams
    count = 0 if upstreams else job.cursor.rows
    for table_id in upstreams:
        compacted = get_version(view, table_id, f"upstream of {job.name}").compacted_epoch
        count += sum(part.rows for run in get_runs(view, table_id) for part in run.parts)
        fresh = get_entries(view, table_id, compacted, job.barrier[1])
        count += sum(segment.rows for entry in fresh for segment in entry.segments)
    return count


def _barrier_facts(job: JobRecord, now_ms: int) -> Facts | None:
    """Describe the recorded, uncommitted barrier; its age is the time since its boundary. None for no barrier."""
    if job.barrier is None:
        return None
    prev, curr, kind = job.barrier
    return {"prev": prev, "curr": curr, "kind": kind, "age_ms": max(0, now_ms - to_unix_ms(curr))}


def describe_table(handle: Handle, name: str, counter: RowCounter) -> Facts:
    """Describe one table in full. Raises TableNotFound."""

    def body(view: ReadTxn) -> tuple[TableLook, Facts]:
        now_ms = handle.catalog.now_ms()
        table = find_table(view, name)
        epochs = read_epoch_view(view, handle.memory, now_ms, handle.store_id)
        look = look_at(view, table, epochs)
        job = None if table.job_id is None else get_job(view, table.job_id, "?")
        holds = holds_of(view, table.id, now_ms, handle.leases.live)
        runs, history = get_runs(view, table.id), read_history(view, table, look.version, now_ms)
        readers = sorted(job.name for job in all_jobs(view) if table.id in job.upstreams)
        upstreams = [view_table.name for view_table in (epochs.tables[up] for up in epochs.tables[table.id].upstreams)]
        extra_facts = {
            "changelog": table.changelog,
            "full_since": table.full_since,
            "drop_unchanged": table.drop_unchanged if table.derived else None,
            "upstreams": upstreams,
            "sql": None if job is None else present_text(view, job),
            "runner": None if job is None else runner_facts(runner_of(view, handle, job)),
            "read_by": readers,
            "retention": retention_facts(table, runs, history, now_ms),
            "sequence_by": table.schema.sequence_by,
            "checks": dict(table.checks),
            "ttl_s": None if table.options.ttl is None else table.options.ttl.total_seconds(),
            "ttl_column": table.options.ttl_column,
            "compact_segments": table.options.compact_segments,
            "max_segments": table.options.max_segments,
            "compaction_check": table.options.compaction_check,
            "schema": list(columns(table)),
            "run_list": [run_facts(run) for run in runs],
            "log": log_facts(view, table, look.version),
            "holds": [hold_facts(hold, now_ms) for hold in sorted(holds, key=lambda hold: hold.holder)],
            "held_back": held_back(table, look.version, holds, history, now_ms),
            "writers": writers(view, now_ms),
        }
        return look, extra_facts

    look, extra_facts = handle.catalog.read(body)
    return {**table_facts(look, counter.of(look.plan)), **extra_facts}


def columns(table: TableDef) -> Iterator[Facts]:
    """Yield the columns in order. `key` is the position in the primary key, from 1; None for other columns."""
    key = table.schema.primary_key
    for field in table.schema.schema:
        place = key.index(field.name) + 1 if field.name in key else None
        yield {"name": field.name, "type": str(field.type), "nullable": field.nullable, "key": place}


def retention_facts(table: TableDef, runs: Runs, history: KeptHistory | None, now_ms: int) -> Facts:
    """Describe the retention of a table in seconds. history_auto: of a history that chooses its own length, its
    direction and the bytes that decide it; else None.
    """
    options, size = table.options, HistorySize.of(runs)
    auto = None if history is None else {"grows": history.grows, "bytes": size.history, "live_bytes": size.live}
    least_ms = options.least_history // timedelta(milliseconds=1)
    kept_ms = least_ms if history is None else now_ms - history.edge_at(now_ms)
    ordered = table.schema.sequence_by is not None
    return {
        "history_s": kept_ms / 1000,
        "history_auto": auto,
        "log_s": options.log_retention.total_seconds(),
        "tombstone_s": options.tombstone_retention.total_seconds() if ordered else None,
    }


def run_facts(run: Any) -> Facts:
    """Describe a sorted run of the epochs in (after, until]."""
    return {
        "after": run.lo,
        "until": run.hi,
        "rows": sum(part.rows for part in run.parts),
        "parts": len(run.parts),
        "history_rows": sum(part.rows for part in run.history),
        "history_parts": len(run.history),
        "bytes": sum(part.bytes for part in (*run.parts, *run.history)),
    }


def log_facts(view: ReadTxn, table: TableDef, version: TableVersion) -> Facts:
    """Describe a table's log: the part that `changes` can read, its packs, and the L0 segments that reads merge
    (`unfolded_segments`). files: with those of pre-images.
    """
    first = last = entries = segments = rows = deletes = in_l0 = files = 0
    packs = packed_commits = packed_files = packed_bytes = 0
    for entry in scan_entries(view, table.id):
        entries, last = entries + entry.commits, entry.epoch
        first = first or entry.first
        segments += len(entry.segments)
        files += len(entry.files)
        if entry.packed is not None:
            packs, packed_commits = packs + 1, packed_commits + entry.commits
            packed_files += len(entry.files)
            packed_bytes += sum(file.bytes for file in entry.files)
        rows += sum(segment.rows for segment in entry.segments)
        deletes += sum(segment.deletes for segment in entry.segments)
        in_l0 += len(entry.segments) if entry.epoch > version.compacted_epoch else 0
    return {
        "start_epoch": version.log_start,
        "first_epoch": first,
        "last_epoch": last,
        "entries": entries,
        "segments": segments,
        "rows": rows,
        "deletes": deletes,
        "files": files,
        "bytes": version.log_bytes,
        "packs": packs,
        "packed_commits": packed_commits,
        "packed_files": packed_files,
        "packed_bytes": packed_bytes,
        "unfolded_segments": in_l0,
    }
