"""What jobs wait for, in words: one sentence a job, with the cause at the head of the line (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..store.epoch import show_span, to_unix_ms
from .words import epoch_text, one_line

if TYPE_CHECKING:
    from .facts import JobLook


def wait_texts(jobs: Sequence[JobLook], now_ms: int) -> dict[str, str]:
    """By the job's name, what stands behind "waits for"."""
    by_name = {job.info.name: job for job in jobs}
    return {
        name: _behind(job, by_name) if job.wait.kind == "upstream" else _own(job, now_ms)
        for name, job in by_name.items()
    }


def _own(job: JobLook, now_ms: int) -> str:
    """For a job that waits for no other job."""
    wait, record = job.wait, job.record
    at = epoch_text(wait.epoch)
    match wait.kind:
        case "boundary":
            return f"its next boundary, {at}, in {show_span(max(0, to_unix_ms(wait.epoch or 0) + 1 - now_ms))}"
        case "runner":
            late = show_span(max(0, now_ms - (wait.since_ms or now_ms)))
            act = "go on with its snapshot" if record.cursor else "commit its barrier" if record.barrier else None
            return f"a runner to {act or 'begin its barrier'} at {at}, due for {late}"
        case "failed":
            since = "" if record.failed_ms is None else f" for {show_span(max(0, now_ms - record.failed_ms))}"
            return f"a runner to try again, failing{since} with {one_line(record.last_error or '')}"
        case "rebuild":
            return f"job.rebuild(): {one_line(record.lost or 'the logs it needs are gone')}"
        case "over":
            return "nothing more: its data has ended"
        case _:
            return "nothing: it reflects every change"


def _behind(job: JobLook, jobs: Mapping[str, JobLook]) -> str:
    """For a job that waits for an upstream: how far that is, and whose trouble it is in the end."""
    wait = job.wait
    if not wait.through:
        need = f"the first commit of {wait.upstream}"
    else:
        need = f"{wait.upstream}, complete through {epoch_text(wait.through)}"
    line = f"job {wait.cause}" if wait.cause == wait.writer else f"job {wait.writer} waits for job {wait.cause}, which"
    return f"{need}: {line} {CAUSES[jobs[str(wait.cause)].wait.kind]}"


CAUSES = {
    "boundary": "is between two boundaries",
    "runner": "has a barrier to run",
    "failed": "is failing",
    "rebuild": "is parked",
    "over": "has ended",
    "nothing": "has nothing to do",
}
