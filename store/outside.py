"""The bound on lag under `global`, and the marks of the jobs that were over it, in the catalog.

A mark is set by whoever reads under `global` and finds a job over the bound, before it reads; and cleared by the job's
own commit once it has caught up (checkpoint/job.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from .catalog import Txn
from .clock import seconds
from .definitions import FOR_EVER, JobRecord, get_store
from .epoch import show_span
from .membership import least_global_max_lag_ms
from .records import STORE, job_key

if TYPE_CHECKING:
    from .handle import Handle
    from .lineage import EpochView


def checked_global_max_lag_ms(global_max_lag: float | timedelta, interval_ms: int) -> int:
    """Return the bound in milliseconds, or raise InvalidInput for one that is none, or too short for the store."""
    bound_ms = min(round(seconds(global_max_lag, "global_max_lag") * 1000), FOR_EVER // timedelta(milliseconds=1))
    least_ms = least_global_max_lag_ms(interval_ms)
    if bound_ms < least_ms:
        raise InvalidInput(
            f"global_max_lag must be at least two checkpoint intervals, {show_span(least_ms)}, not "
            f"{show_span(bound_ms)}: with less no view could be read under global"
        )
    return bound_ms


def alter_store(handle: Handle, global_max_lag: float | timedelta) -> None:
    """Change the bound on lag under `global`, for everybody from the next choice on. Raises InvalidInput."""
    bound_ms = checked_global_max_lag_ms(global_max_lag, handle.interval_ms)

    def body(tx: Txn) -> None:
        tx.put(STORE, replace(get_store(tx), global_max_lag_ms=bound_ms).to_record())

    handle.catalog.transact(body)


def mark_late(handle: Handle, view: EpochView) -> None:
    """Mark the jobs that this view finds over the bound, unless they have committed since; writes nothing for none."""
    late = view.membership.late
    if not late:
        return

    def body(tx: Txn) -> None:
        now_ms = handle.catalog.now_ms()
        for one in late:
            record = tx.get(job_key(one.job_id))
            job = JobRecord.from_record(record) if record is not None else None
            if job is not None and job.position == one.position and job.state == "running" and job.outside_ms is None:
                tx.put(job_key(job.id), replace(job, outside_ms=now_ms).to_record())

    handle.catalog.transact(body)
