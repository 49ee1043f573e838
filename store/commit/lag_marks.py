"""The store's bound on lag under `global`, and the marks of jobs that exceed it.

A reader under `global` that finds a job over the bound marks the job before it reads. The job's own commit clears the
mark once it has caught up (checkpoint/job/runner.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import STORE, job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lag_bound import checked_global_max_lag_ms
from epochlog.store.metadata.lookups import get_store

if TYPE_CHECKING:
    from epochlog.store.epochs.view import EpochView
    from epochlog.store.session.handle import Handle


def alter_store(handle: Handle, global_max_lag: float | timedelta) -> None:
    """Change the bound on lag under `global`; it applies to the next choice of every process. Raises InvalidInput."""
    bound_ms = checked_global_max_lag_ms(global_max_lag, handle.interval_ms)

    def body(tx: Txn) -> None:
        tx.put(STORE, replace(get_store(tx), global_max_lag_ms=bound_ms).to_record())

    handle.catalog.transact(body)


def mark_late(handle: Handle, view: EpochView) -> None:
    """Mark the jobs that exceed the bound in this view, unless they have committed since. Write nothing if there are
    none.
    """
    late_jobs = view.membership.late
    if not late_jobs:
        return

    def body(tx: Txn) -> None:
        now_ms = handle.catalog.now_ms()
        for late_job in late_jobs:
            record = tx.get(job_key(late_job.job_id))
            job = JobRecord.from_record(record) if record is not None else None
            if (
                job is not None
                and job.position == late_job.position
                and job.state == "running"
                and job.outside_ms is None
            ):
                tx.put(job_key(job.id), replace(job, outside_ms=now_ms).to_record())

    handle.catalog.transact(body)
