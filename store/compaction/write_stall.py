"""Write stall: a commit that finds L0 at its limit compacts it before it returns.

A writer that is faster than compaction is slowed by just the missing work. The log, `describe` and the trace of
compactions (by "commit") show it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError, StoreClosed, TableDropped
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.env.log_events import COMPACTION_AWAITED, DEFECT, RETRY, WRITE_STALL
from epochlog.store.env.metrics import WRITE_STALL_SECONDS
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.version import TableVersion

from .executor import CompactionOutcome, compact_table
from .subcompactions import SUBCOMPACTION_BYTES

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

LEAST_SUBCOMPACTIONS = 4
REWRITES = 8
"""Write amplification to expect: a commit at the limit merges the subcompactions of L0 times this number."""
WAIT_S = 5.0
_POLL_S = 0.02


def pressure(version: TableVersion, options: TableOptions) -> str | None:
    """Return the reason why writers of a table stall, or will soon; None without one."""
    segments, most = version.l0_segments, options.max_segments
    if segments >= most:
        return f"{segments} segments of the log wait for compaction, {most} are the most: commits compact them first"
    if segments * 4 >= most * 3 and segments > options.compact_segments:
        return f"{segments} segments of the log wait for compaction; at {most} commits will compact them first"
    return None


def apply_backpressure(handle: Handle, written: Sequence[tuple[TableDef, TableVersion]]) -> None:
    """Wake maintenance after a commit for tables that are due, and compact those whose L0 is at its limit.

    The commit has landed, so errors are logged, and the next commit tries again.
    """
    for table, version in written:
        if version.l0_segments >= table.options.compact_segments:
            handle.wake_maintenance()
        if version.l0_segments >= table.options.max_segments:
            began_s = monotonic_s()
            with _logged(f"the compaction of table {table.name}"):
                _compact(handle, table, version)
            took_s, limit = monotonic_s() - began_s, table.options.max_segments
            handle.recorder.observe(WRITE_STALL_SECONDS, table.name, seconds=took_s)
            handle.log(
                WRITE_STALL, table=table.name, segments=version.l0_segments, limit=limit, took_ms=round(took_s * 1000)
            )


def compact_outputs(handle: Handle, outputs: Collection[int]) -> None:
    """Compact those of a job's outputs whose L0 has reached compact_segments.

    It does not wait for a compaction under way; a process with maintenance leaves it to that. It does not raise: errors
    are logged, and the job's next step tries again.
    """
    if handle.maintained:
        return

    def due(view: ReadTxn) -> list[tuple[TableDef, TableVersion]]:
        tables = [get_table(view, table_id, str(table_id)) for table_id in sorted(outputs)]
        looks = [(table, get_version(view, table.id, table.name)) for table in tables]
        return [(table, version) for table, version in looks if version.l0_segments >= table.options.compact_segments]

    tables: list[tuple[TableDef, TableVersion]] = []
    with _logged("the compaction of a job's outputs"):
        tables = handle.catalog.read(due)
    for table, version in tables:
        with _logged(f"the compaction of table {table.name}"):
            compact_table(handle, table, budget=_budget(version), by="pipeline")


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log any error of a compaction, because the commit before it has landed."""
    try:
        yield
    except (StoreClosed, TableDropped):
        return
    except (EpochlogError, OSError) as error:
        RETRY.log(what=what, error=error)
    except Exception as error:  # noqa: BLE001 (the next commit tries again)
        DEFECT.log(what=what, error=error)


def _compact(handle: Handle, table: TableDef, version: TableVersion) -> None:
    budget = _budget(version)
    if compact_table(handle, table, l0_only=True, budget=budget, by="commit") is CompactionOutcome.BUSY:
        handle.log(COMPACTION_AWAITED, table=table.name, limit_s=WAIT_S)
        _wait(handle, table)
    compact_table(handle, table, budget=budget, by="commit")


def _budget(version: TableVersion) -> int:
    """Return the subcompactions to run for a table whose L0 is due, so that compaction keeps up with its commits."""
    return max(LEAST_SUBCOMPACTIONS, REWRITES * version.l0_bytes // SUBCOMPACTION_BYTES)


def _wait(handle: Handle, table: TableDef) -> None:
    """Wait a little for the compaction under way, so that it keeps up with the writers."""
    deadline, pause = Deadline.after(WAIT_S), threading.Event()

    def at_limit(view: ReadTxn) -> bool:
        most = get_table(view, table.id, table.name).options.max_segments
        return get_version(view, table.id, table.name).l0_segments >= most

    while not deadline.passed and handle.catalog.read(at_limit):
        pause.wait(_POLL_S)
