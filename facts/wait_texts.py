"""Texts of the reasons why jobs wait: one per job, with the job at the head of the chain as the cause (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochlog.checkpoint.job.job_ddl import JobInfo
from epochlog.checkpoint.job.wait_reasons import Wait
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.types.epoch import show_span, to_unix_ms

from .text import epoch_text, listed, one_line


@dataclass(frozen=True, slots=True)
class JobLook:
    """State of one job, with the reason why it waits."""

    info: JobInfo
    record: JobRecord
    wait: Wait
    component: int
    """Number of its component in the graph of jobs, from 1: no job waits for one of another component."""
    rows_above: int | None = None
    """Upper bound of the rows of a chunked backfill; None without one."""


def wait_texts(jobs: Sequence[JobLook], now_ms: int) -> dict[str, str]:
    """Return the text after "waits for" of each job, by name."""
    by_name = {job.info.name: job for job in jobs}
    return {
        name: _upstream_reason(job, by_name) if job.wait.kind == "upstream" else _own_reason(job, now_ms)
        for name, job in by_name.items()
    }


def _own_reason(job: JobLook, now_ms: int) -> str:
    """Describe the reason of a job that waits for no other job."""
    wait, record = job.wait, job.record
    at = epoch_text(wait.epoch)
    match wait.kind:
        case "boundary":
            return f"its next boundary, {at}, in {show_span(max(0, to_unix_ms(wait.epoch or 0) + 1 - now_ms))}"
        case "runner":
            due = f"due {show_span(max(0, now_ms - (wait.since_ms or now_ms)))} ago"
            action = "continue its backfill" if record.cursor else "commit its barrier" if record.barrier else None
            return f"a runner to {action or 'begin its barrier'} at {at}, {due}"
        case "failed":
            since = "" if record.failed_ms is None else f" for {show_span(max(0, now_ms - record.failed_ms))}"
            return f"a runner to try again, failing{since} with {one_line(record.last_error or '')}"
        case "rebuild":
            return f"job.rebuild(): {one_line(record.lost or 'retention has removed logs that it needs')}"
        case "over":
            return "nothing more: its data has ended"
        case _:
            return "nothing: it reflects every change"


def _upstream_reason(job: JobLook, jobs: Mapping[str, JobLook]) -> str:
    """Describe the reason of a job that waits for an upstream: the epoch that it needs, and the job at the head of the
    chain.
    """
    wait = job.wait
    if not wait.through:
        need = f"the first commit of {wait.upstream}"
    else:
        need = f"{wait.upstream}, complete through {epoch_text(wait.through)}"
    line = f"job {wait.cause}" if wait.cause == wait.writer else f"job {wait.writer} waits for job {wait.cause}, which"
    others = [f"job {name}" for name in wait.jobs if name != wait.writer]
    too = f"; and for {listed(others)}" if others else ""
    return f"{need}: {line} {CAUSES[jobs[str(wait.cause)].wait.kind]}{too}"


CAUSES = {
    "boundary": "is between two boundaries",
    "runner": "has a barrier to run",
    "failed": "is failing",
    "rebuild": "is parked",
    "over": "has ended",
    "nothing": "has nothing to do",
}
