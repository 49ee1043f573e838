"""The settings of a store that may change, and the marks of jobs that exceed its bound on lag under `global`.

A reader under `global` that finds a job over the bound marks the job before it reads. The job's own commit clears the
mark once it has caught up (checkpoint/job/runner.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.errors import InvalidInput
from epochlog.store.catalog.keys import STORE, job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lag_bound import checked_global_max_lag_ms
from epochlog.store.metadata.lookups import get_store
from epochlog.store.metadata.read_default import check_default, put_default

if TYPE_CHECKING:
    from epochlog.store.epochs.view import EpochView
    from epochlog.store.session.handle import Handle


def alter_store(handle: Handle, global_max_lag: float | timedelta | None, default_consistency: str | None) -> None:
    """Change the bound on lag under `global`, and the policy of reads that name none; None keeps a setting. It applies
    to the next choice of every process. Raises InvalidInput.
    """
    if global_max_lag is None and default_consistency is None:
        raise InvalidInput("store.alter takes global_max_lag= or default_consistency=")
    bound_ms = None if global_max_lag is None else checked_global_max_lag_ms(global_max_lag, handle.interval_ms)
    if default_consistency is not None:
        check_default(default_consistency)

    def body(tx: Txn) -> None:
        if bound_ms is not None:
            tx.put(STORE, replace(get_store(tx), global_max_lag_ms=bound_ms).to_record())
        if default_consistency is not None:
            put_default(tx, default_consistency)

    handle.catalog.transact(body)


def mark_late(handle: Handle, view: EpochView, tx: Txn | None = None) -> None:
    """Mark the jobs that exceed the bound in this view, unless they have committed since. Write nothing if there are
    none, or if the store is open read-only. tx: transaction to write in; None: one of its own.
    """
    late_jobs = () if handle.read_only else view.membership.late
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

    if tx is None:
        handle.catalog.transact(body)
    else:
        body(tx)
