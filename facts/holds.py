"""Facts about holds, writers, compactions and vacuum, as JSON-able values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from epochlog.batch.tags import Tag
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.consumer_info import ConsumerInfo
from epochlog.store.compaction.task_record import Work
from epochlog.store.compaction.trace import PackTrace, Trace
from epochlog.store.maintenance.scheduler import MaintenanceFailure
from epochlog.store.maintenance.vacuum import VacuumedFile, VacuumReport
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.table_settings import show_option
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention.holds import Hold
from epochlog.store.retention.kept_history import KeptHistory
from epochlog.store.retention.retention import limits
from epochlog.store.session.write_intents import Intent, all_intents
from epochlog.store.types.epoch import to_unix_ms

from .text import iso

Facts = dict[str, Any]


def hold_facts(hold: Hold, now_ms: int) -> Facts:
    """Describe a hold. `age_ms`: the age of the hold; for a job, the age of the held position."""
    kind, _, name = hold.holder.partition(":")
    held = [epoch for epoch in (hold.log_epoch, hold.read_epoch) if epoch]
    since_ms = to_unix_ms(min(held)) if kind == "job" and held else hold.since_ms
    return {
        "holder": hold.holder,
        "kind": kind,
        "name": name,
        "log_epoch": hold.log_epoch,
        "read_epoch": hold.read_epoch,
        "since": iso(since_ms),
        "age_ms": max(0, now_ms - since_ms),
        "expires": None if hold.expires_ms is None else iso(hold.expires_ms),
    }


def tag_facts(tag: Tag, now_ms: int) -> Facts:
    """Describe a tag. until, left_ms: None for good."""
    return {
        "name": tag.name,
        "since": iso(tag.since_ms),
        "until": None if tag.until_ms is None else iso(tag.until_ms),
        "left_ms": None if tag.until_ms is None else max(0, tag.until_ms - now_ms),
        "epochs": dict(tag.epochs),
        "token": tag.token,
    }


def consumer_facts(info: ConsumerInfo) -> Facts:
    """Describe a consumer: the fields of ConsumerInfo, with its times as text."""
    times = {"until": info.until_ms, "acked": info.acked_ms}
    facts = {name: value for name, value in asdict(info).items() if name not in ("until_ms", "acked_ms")}
    return {**facts, "tables": list(info.tables), **{name: ms and iso(ms) for name, ms in times.items()}}


def writers(view: ReadTxn, now_ms: int) -> list[Facts]:
    """Describe the write intents of the store, oldest first."""
    return [intent_facts(intent, now_ms) for intent in sorted(all_intents(view), key=lambda intent: intent.since_ms)]


def intent_facts(intent: Intent, now_ms: int) -> Facts:
    return {
        "intent": intent.id,
        "kind": intent.kind,
        "by": intent.by,
        "since": iso(intent.since_ms),
        "age_ms": max(0, now_ms - intent.since_ms),
        "expires": iso(intent.expires_ms),
    }


def held_back(
    table: TableDef, version: TableVersion, holds: Sequence[Hold], history: KeptHistory | None, now_ms: int
) -> Facts:
    """Describe the limits of the safe epoch and of the log's beginning: a holder that keeps more than the retention,
    or the retention. history: of a table without a history_retention.
    """
    free = limits(table.options, [], now_ms, history=history)
    held = limits(table.options, holds, now_ms, version.safe_epoch, history)
    options, newest = table.options, version.max_committed_epoch
    states = {hold.holder: hold.read_epoch for hold in holds if hold.read_epoch is not None and not hold.is_tag}
    log = {hold.holder: hold.log_epoch for hold in holds if hold.log_epoch is not None}
    return {
        "safe_epoch": _holder_of_limit(
            states, min(free.states, newest), held.states, f"retention: {show_option(options.history_retention)}"
        ),
        "log_start": _holder_of_limit(
            log, min(free.log, newest), held.log, f"retention: {show_option(options.log_retention)}"
        ),
    }


def _holder_of_limit(held_epochs: dict[str, int], free: int, limit: int, retention: str) -> Facts:
    oldest = sorted(holder for holder, epoch in held_epochs.items() if epoch == limit) if limit < free else []
    return {
        "holder": oldest[0] if oldest else None,
        "epoch": limit if oldest else None,
        "reason": f"{oldest[0]} holds epoch {limit}" if oldest else retention,
    }


def work_facts(work: Work | None) -> Facts | None:
    """Describe a running compaction; None for None."""
    if work is None:
        return None
    return {
        "reason": work.task.reason,
        "by": work.by,
        "since": iso(work.since_ms),
        "pieces": len(work.subcompactions),
        "done": len(work.done),
    }


def trouble_facts(trouble: MaintenanceFailure | None) -> Facts | None:
    """Describe a failure of maintenance; None for None."""
    return None if trouble is None else {"at": iso(trouble.at_ms), "by": trouble.by, "error": trouble.error}


def trace_facts(trace: Trace | PackTrace) -> Facts:
    """Describe a finished compaction, which merged the epochs in (after, until] into one run. Or a pass of
    packing, which has the field `packs`.
    """
    if isinstance(trace, PackTrace):
        packed = trace.packed
        reason = f"packing of {packed.commits:,} commits"
        return {"at": iso(trace.at_ms), "reason": reason, "by": trace.by, **asdict(packed), "took_ms": trace.took_ms}
    return {
        "at": iso(trace.at_ms),
        "reason": trace.reason,
        "by": trace.by,
        "after": trace.after,
        "until": trace.until,
        "runs_in": trace.runs,
        "segments_in": trace.segments,
        "rows_in": trace.rows_in,
        "rows_out": trace.rows_out,
        "bytes_in": trace.bytes_in,
        "bytes_out": trace.bytes_out,
        "bytes_reused": trace.bytes_reused,
        "pieces": trace.pieces,
        "took_ms": trace.took_ms,
    }


def vacuum_facts(root: str, report: VacuumReport) -> Facts:
    return {
        "root": root,
        "dry_run": report.dry_run,
        "deleted": [_file_facts(file) for file in report.deleted],
        "bytes_freed": report.bytes_freed,
        "kept": [_file_facts(file) for file in report.kept],
        "noted": report.noted,
        "foreign": [{"path": file.path, "bytes": file.bytes} for file in report.foreign],
        "revoked": [
            {"intent": intent.id, "kind": intent.kind, "by": intent.by, "expired": iso(intent.expires_ms)}
            for intent in report.revoked
        ],
        "data_files": report.data_files,
    }


def _file_facts(file: VacuumedFile) -> Facts:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "reason": file.reason,
        "since": None if file.since_ms is None else iso(file.since_ms),
        "until": None if file.until_ms is None else iso(file.until_ms),
    }
