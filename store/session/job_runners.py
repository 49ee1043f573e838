"""Runner leases: a job's record names its runner from claim to leave; the runner lives by a lease of its open store.

All runners of an open store share one lease (`Handle.runners`), which is renewed while any of them runs. The death of a
process of this machine is detected at once. Rules: docs/SEMANTICS.md, 5.3.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from epochlog.errors import JobRunning
from epochlog.store.catalog.keys import lease_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.process_id import has_died, identity, is_this
from epochlog.store.metadata.definitions import JobRecord, Runner
from epochlog.store.types.epoch import show_span, show_time

from .leases import RUNNER_MS

if TYPE_CHECKING:
    from .handle import Handle


def live_runner(view: ReadTxn, handle: Handle, job: JobRecord) -> Runner | None:
    """Return the job's runner if it is alive by its lease and, on this machine, by its process; else None."""
    runner = job.runner
    if runner is None or handle.runners.is_live(runner.holder):
        return runner
    if is_this(runner.process) or has_died(runner.process):
        return None
    lease = view.get(lease_key(runner.lease))
    if lease is None or lease["expires_ms"] <= handle.clock_guard.slowest_ms(view):
        return None
    return None if handle.clock_guard.outlived(runner.lease, lease["expires_ms"], RUNNER_MS) else runner


def new_runner(tx: Txn, handle: Handle, holder: str, kind: str) -> Runner:
    """Create a runner of this process, which lives by the open store's runner lease. Call inside a transaction."""
    lease, now_ms = handle.runners.store_lease(tx), handle.catalog.now_ms()
    return Runner(holder, lease, identity(), os.uname().nodename, os.getpid(), now_ms, kind)


def require_free(view: ReadTxn, handle: Handle, job: JobRecord, holder: str) -> None:
    """Raise JobRunning if another holder runs the job now."""
    runner = live_runner(view, handle, job)
    if runner is not None and runner.holder != holder:
        raise JobRunning(
            f"job {job.name!r} is run by {describe_runner(runner, handle.catalog.now_ms())}, which was not fenced. "
            "Stop it first, or take the job over with take_over=True, which fences it"
        )


def describe_runner(runner: Runner, now_ms: int) -> str:
    """Describe a runner in words: its kind, process, host and start time."""
    since, ago = show_time(runner.since_ms), show_span(max(0, now_ms - runner.since_ms))
    return f"a {runner.kind} of process {runner.pid} on {runner.host} since {since} ({ago})"
