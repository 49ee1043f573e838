"""What keeps L0 from growing without bound: a commit that finds it at its limit folds it before it returns.

So whoever writes faster than compaction works is slowed by just the work that is missing, and is told so: in the log,
in `describe` and in the trace of compactions (by "commit").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import EpochlogError
from .catalog import View
from .clock import Deadline
from .compaction import Outcome, compact_table
from .definitions import TableDef, TableOptions, get_table, get_version
from .picking import PIECE_BYTES
from .version import TableVersion

if TYPE_CHECKING:
    from .handle import Handle

LEAST_PIECES = 4
REWRITES = 8
"""A commit at the limit works off as many pieces as L0 fills, times this: about as often as a row is written again."""
WAIT_S = 5.0
_POLL_S = 0.02
_log = logging.getLogger("epochlog")


def pressure(version: TableVersion, options: TableOptions) -> str | None:
    """Why writers of a table are slowed, or soon will be; None when they are not."""
    segments, most = version.l0_segments, options.max_segments
    if segments >= most:
        return f"{segments} segments of the log wait for compaction, {most} are the most: commits fold them first"
    if segments * 4 >= most * 3 and segments > options.compact_segments:
        return f"{segments} segments of the log wait for compaction; at {most} commits will fold them first"
    return None


def relieve(handle: Handle, written: Sequence[tuple[TableDef, TableVersion]]) -> None:
    """After a commit: wake maintenance for tables that are due, and fold those that are at their limit.

    The commit has landed: what goes wrong here is logged, and tried again by the next one.
    """
    for table, version in written:
        if version.l0_segments >= table.options.compact_segments:
            handle.wake_maintenance()
        if version.l0_segments >= table.options.max_segments:
            if table.id not in handle.told_backlog:
                handle.told_backlog.add(table.id)
                _log.warning(
                    "table %r: %s. Open the store with maintenance=True in one process, or call store.compact() now "
                    "and then, and no commit has to; this is said once",
                    table.name,
                    pressure(version, table.options),
                )
            try:
                _fold(handle, table, version)
            except EpochlogError as error:
                _log.warning("table %r could not be compacted: %s", table.name, error)


def _fold(handle: Handle, table: TableDef, version: TableVersion) -> None:
    budget = max(LEAST_PIECES, REWRITES * version.l0_bytes // PIECE_BYTES)
    if compact_table(handle, table, l0_only=True, budget=budget, by="commit") is Outcome.BUSY:
        _log.warning("table %r is being compacted elsewhere; this commit waits for that up to %g s", table.name, WAIT_S)
        _wait(handle, table)
    compact_table(handle, table, budget=budget, by="commit")


def _wait(handle: Handle, table: TableDef) -> None:
    """Give the compaction that is under way a little time, so that it keeps up with the writers."""
    deadline, pause = Deadline.after(WAIT_S), threading.Event()

    def at_limit(view: View) -> bool:
        most = get_table(view, table.id, table.name).options.max_segments
        return get_version(view, table.id, table.name).l0_segments >= most

    while not deadline.passed and handle.catalog.read(at_limit):
        pause.wait(_POLL_S)
