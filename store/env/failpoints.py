"""Named places at which tests end this process with SIGKILL, to see what a crash there leaves behind.

EPOCHLOG_KILL_AT="name" or "name:n" in the environment arms one of them: the process dies there the first, or the n-th,
time. Unarmed, a failpoint costs one comparison. To add one: a line in FAILPOINTS, a call of `hit` in the source;
tests/faults then kill there by themselves, and fail while their scenario does not come by.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from epochlog.errors import InvalidInput

FAILPOINTS: dict[str, str] = {
    # store/env
    "folder:made": "folders are made, their names are not durable",
    "write:created": "a file is there, nothing is in it",
    "write:half": "half of a file's bytes are written",
    "write:written": "all of a file's bytes are written, none is synced",
    "write:synced": "a file is durable, its name is not",
    "write:done": "a file is durable, whoever asked for it does not know",
    "delete:done": "a file is removed, whoever asked for that does not know",
    # store/sst/segment_writer.py
    "segment:written": "a segment is durable, only this process knows what it describes",
    # store/session/handle.py
    "create:before-marker": "a new store's catalog has its record, the root has no marker",
    "create:after-marker": "a new store is complete, whoever made it does not know",
    # store/session/write_intents.py
    "intent:registered": "an intent is in the catalog, nothing is written under it",
    # store/commit/root_commit.py
    "commit:segments-written": "all files of a commit are durable, the catalog does not know of them",
    "commit:before-transaction": "the commit's records are put, the catalog's transaction has not ended",
    "commit:after-transaction": "a commit has landed, whoever asked for it does not know",
    # store/changelog/consumers.py
    "consumer:opened": "a consumer's new incarnation is claimed, whoever asked for it does not know",
    "consumer:acked": "an acknowledgement is durable, whoever gave it does not know",
    # store/commit/boundaries.py
    "seal:after": "a boundary is sealed, whoever asked for it does not know",
    # store/commit/table_ddl.py
    "table:created": "a table is made, whoever asked for it does not know",
    "table:altered": "a table's settings are altered, whoever asked for it does not know",
    "table:dropped": "a table is dropped, its files are there",
    "truncate:after": "a log is truncated, its files are there",
    # store/compaction/executor.py
    "compact:range-written": "the parts of a key range are written, the catalog does not know of them",
    "compact:range-recorded": "the progress of a compaction is in the catalog",
    "compact:before-finish": "all parts of a compaction are written and none is in place",
    "compact:after-finish": "a compaction has taken effect, its inputs are still there",
    # store/commit/backfill.py
    "piece:recorded": "a piece of a job's snapshot is recorded, its runner does not know",
    # store/commit/job_commit.py
    "job:before-commit": "the files of a job's commit are durable, the catalog does not know of them",
    "job:after-commit": "a job's commit has landed, its runner does not know",
    # checkpoint/job/runner.py
    "rebuild:before-commit": "what a rebuild changes is written, the catalog does not know of it",
    "rebuild:after-commit": "a rebuild has landed, the files that its difference was taken of are there",
    # store/retention/stalled_jobs.py
    "job:parked": "a job is put as parked, the transaction of retention has not ended",
    # vacuum
    "vacuum:marked": "unreachable files are noted as gone",
    "vacuum:before-delete": "a file's grace is over, the file is there",
    "vacuum:deleted": "a file is deleted, the note that it is gone is still there",
}


@dataclass(slots=True)
class _Armed:
    name: str
    left: int  # how often it is still to be reached, with the time that kills


_armed: _Armed | None = None


def hit(name: str) -> None:
    """Die here if this failpoint is armed and it is its turn."""
    if _armed is not None:
        _count_down(_armed, name)


def is_armed(name: str) -> bool:
    """Return True if the failpoint is armed. Only then a caller splits work in two, for `hit` to kill in between."""
    return _armed is not None and _armed.name == name


def arm(what: str | None) -> None:
    """Arm "name" or "name:n" (None: nothing), instead of what was armed before."""
    global _armed  # noqa: PLW0603  a process has one way to die
    _armed = _parse(what) if what else None


def _parse(what: str) -> _Armed:
    name, colon, turn = what.rpartition(":")
    if not (colon and turn.isdigit()):
        name, turn = what, "1"
    if name not in FAILPOINTS or int(turn) < 1:
        raise InvalidInput(f"EPOCHLOG_KILL_AT={what!r} is no failpoint; there are {', '.join(FAILPOINTS)}")
    return _Armed(name, int(turn))


def _count_down(armed: _Armed, name: str) -> None:
    assert name in FAILPOINTS, f"failpoint {name!r} is not registered"
    if name == armed.name:
        armed.left -= 1
        if armed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("EPOCHLOG_KILL_AT"))
