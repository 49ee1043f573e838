"""Failpoints: named places at which tests end this process with SIGKILL, to check the state that a crash leaves.

EPOCHLOG_KILL_AT="name" or "name:n" in the environment arms one failpoint: the process dies when it is hit for the
first, or for the n-th, time. An unarmed failpoint costs one comparison. A new failpoint needs a line in FAILPOINTS and
a call of `hit` in the source. tests/faults then kill there too, and fail while their scenario does not hit it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from epochlog.errors import InvalidInput

FAILPOINTS: dict[str, str] = {
    # store/env
    "folder:made": "folders exist, their names are not durable",
    "write:created": "a file exists and is empty",
    "write:half": "half of a file's bytes are written",
    "write:written": "all of a file's bytes are written, none is synced",
    "write:synced": "a file is durable, its name is not",
    "write:done": "a file is durable, the write has not returned",
    "delete:done": "a file is deleted, the delete has not returned",
    # store/sst/segment_writer.py
    "segment:written": "a segment is durable, its descriptor is in this process only",
    # store/session/handle.py
    "create:before-marker": "a new store's catalog has its record, the root has no marker",
    "create:after-marker": "a new store is complete, the call that creates it has not returned",
    # store/session/write_intents.py
    "intent:registered": "an intent is in the catalog, no file is written under it",
    # store/commit/root_commit.py
    "commit:segments-written": "all files of a commit are durable, no catalog record names them",
    "commit:before-transaction": "the commit's records are put, the catalog's transaction has not ended",
    "commit:after-transaction": "a commit has landed, its call has not returned",
    # store/commit/kept_merge.py
    "kept:merged": "kept deletes are merged into a file, no catalog record names it",
    # store/commit/table_restore.py
    "restore:before-commit": "the difference of a restore is written, no catalog record names its files",
    # store/commit/expiry.py
    "expire:before-commit": "the deletes of expired rows are written, no catalog record names their files",
    "expire:after-commit": "expired rows are deleted, the call has not returned",
    # store/commit/clone.py
    "clone:before-transaction": "the records of a clone are put, the catalog's transaction has not ended",
    "clone:after-transaction": "a clone is in the catalog, the call has not returned",
    # batch/tags.py
    "tag:before-transaction": "the records of a tag are put, the catalog's transaction has not ended",
    "tag:put": "a tag is in the catalog, the call has not returned",
    "tag:dropped": "a tag is dropped, the rows that only it kept still exist",
    # store/changelog/consumers.py, store/changelog/consumer.py
    "consumer:opened": "a consumer's new incarnation is claimed, the claim has not returned",
    "consumer:acked": "an acknowledgement is durable, its call has not returned",
    # store/commit/boundaries.py
    "seal:after": "a boundary is sealed, the call has not returned",
    # store/commit/table_ddl.py
    "table:created": "a table is created, the call has not returned",
    "table:altered": "a table's settings are altered, the call has not returned",
    "table:dropped": "a table is dropped, its files still exist",
    "truncate:after": "a log is truncated, its files still exist",
    # store/compaction/executor.py
    "compact:range-written": "the run files of a key range are written, no catalog record names them",
    "compact:range-recorded": "the progress of a compaction is in the catalog",
    "compact:before-finish": "all run files of a compaction are written, no read uses them yet",
    "compact:after-finish": "a compaction has taken effect, its inputs still exist",
    # store/compaction/packing.py
    "pack:written": "the files of a pack are written, no catalog record names them",
    "pack:landed": "a pack has replaced commits in the log, their files still exist",
    # store/commit/backfill.py
    "piece:recorded": "a backfill chunk of a job is recorded, the call of its runner has not returned",
    # store/commit/job_commit.py
    "job:before-commit": "the files of a job's commit are durable, no catalog record names them",
    "job:after-commit": "a job's commit has landed, the call of its runner has not returned",
    # checkpoint/job/runner.py
    "rebuild:before-commit": "the changes of a rebuild are written, no catalog record names their files",
    "rebuild:after-commit": "a rebuild has landed, the files from which it computed its difference still exist",
    # store/retention/stalled_jobs.py
    "job:parked": "a job is put as parked, the transaction of retention has not ended",
    # store/maintenance/vacuum.py
    "vacuum:marked": "unreachable files have their records",
    "vacuum:before-delete": "a file's grace period is over, the file still exists",
    "vacuum:deleted": "a file is deleted, its record as an unreachable file still exists",
}


@dataclass(slots=True)
class _Armed:
    name: str
    hits_left: int  # the last of these hits kills the process


_armed: _Armed | None = None


def hit(name: str) -> None:
    """Kill this process if the failpoint is armed and this is the hit that it waits for."""
    if _armed is not None:
        _count_down(_armed, name)


def is_armed(name: str) -> bool:
    """Return True if the failpoint is armed: its caller then splits its work in two, for `hit` to kill in between."""
    return _armed is not None and _armed.name == name


def arm(spec: str | None) -> None:
    """Arm the failpoint "name" or "name:n" and disarm the one before it; None only disarms."""
    global _armed  # noqa: PLW0603  a process has one armed failpoint
    _armed = _parse(spec) if spec else None


def _parse(spec: str) -> _Armed:
    name, separator, count = spec.rpartition(":")
    if not (separator and count.isdigit()):
        name, count = spec, "1"
    if name not in FAILPOINTS or int(count) < 1:
        raise InvalidInput(f"EPOCHLOG_KILL_AT={spec!r} names no failpoint; choose one of {', '.join(FAILPOINTS)}")
    return _Armed(name, int(count))


def _count_down(armed: _Armed, name: str) -> None:
    assert name in FAILPOINTS, f"failpoint {name!r} is not registered"
    if name == armed.name:
        armed.hits_left -= 1
        if armed.hits_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("EPOCHLOG_KILL_AT"))
