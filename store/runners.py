"""Who runs a job now: on the job's record from the claim until the runner leaves, and alive while its lease is.

All runners of an open store live by one lease of it (`Handle.runners`), which is renewed while any of them is at work.
A process of this machine that has died is known to be dead at once. Rules: docs/SEMANTICS.md, 5.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import JobRunning
from .catalog import Txn, View
from .definitions import JobRecord, Runner
from .epoch import show_span, show_time
from .process import has_died, identity, is_this
from .records import lease_key

if TYPE_CHECKING:
    from .handle import Handle


def live_runner(view: View, handle: Handle, job: JobRecord) -> Runner | None:
    """Who runs the job, as far as the catalog and this machine can tell; None when nobody does."""
    runner = job.runner
    if runner is None or runner.holder in handle.runners.live:
        return runner
    if is_this(runner.process) or has_died(runner.process):
        return None
    lease = view.get(lease_key(runner.lease))
    return runner if lease is not None and lease["expires_ms"] > handle.catalog.now_ms() else None


def new_runner(tx: Txn, handle: Handle, holder: str, kind: str) -> Runner:
    """Part of a transaction: a runner of this process, alive by the open store's lease from now on."""
    lease, now_ms = handle.runners.own(tx), handle.catalog.now_ms()
    return Runner(holder, lease, identity(), os.uname().nodename, os.getpid(), now_ms, kind)


def require_free(view: View, handle: Handle, job: JobRecord, holder: str) -> None:
    """JobRunning when another holder runs the job now."""
    found = live_runner(view, handle, job)
    if found is not None and found.holder != holder:
        raise JobRunning(
            f"job {job.name!r} is run by {told(found, handle.catalog.now_ms())}, and nobody was fenced. Stop that one "
            "first, or take the job over with take_over=True, which fences it"
        )


def told(runner: Runner, now_ms: int) -> str:
    """A runner in words: what it is, where, and since when."""
    since, ago = show_time(runner.since_ms), show_span(max(0, now_ms - runner.since_ms))
    return f"a {runner.kind} of process {runner.pid} on {runner.host} since {since} ({ago})"
