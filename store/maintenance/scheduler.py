"""Background maintenance: one thread of an open store that applies retention, expires rows, compacts, vacuums and
writes backups.

It works in rounds. In a round each table with pending work gets one slice of compaction, so a large table does not
delay the others, and `close` waits for at most one slice. A failure is logged and recorded in the catalog, where
`status` shows it; it stops neither the thread nor another table.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from epochlog.errors import EpochlogError, StoreClosed, TableDropped
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.keys import TROUBLE_PREFIX, table_key, trouble_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.commit.expiry import expire_rows
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.packing_pass import pack_table
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.env.log_events import DEFECT, MAINTENANCE_FAILED, RETRY
from epochlog.store.env.lru_cache import drop_idle
from epochlog.store.env.metrics import MAINTENANCE_FAILURES
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_tables, get_version
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention.retention import apply_retention

from .vacuum import vacuum

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

PERIOD_S = 1.0
"""Time between rounds without work; a commit that leaves work wakes the thread at once."""
LOOK_AGAIN_MS = 10_000
"""Time between visits to an unchanged table: retention and failed work depend on time alone."""
VACUUM_EVERY_MS = 600_000
EXPIRE_EVERY_MS = 600_000
"""Longest time between two searches of a table for expired rows; a hundredth of its ttl if that is shorter."""
PACK_EVERY, PACK_AGAIN_MS = 48, 60_000
"""Further files of a log, and time, after which it is searched again for commits to pack."""
SLICE = 2
"""Key ranges of a compaction in one slice."""
PACKING_S = 0.1
"""Time after which a visit of a table begins no further pack of its log."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MaintenanceFailure:
    """Last failure of a table's maintenance. It is deleted when the maintenance succeeds."""

    at_ms: int
    by: str
    error: str


def all_troubles(view: ReadTxn) -> dict[int, MaintenanceFailure]:
    """Return the current maintenance failures by table id."""
    records = scan_prefix(view, TROUBLE_PREFIX)
    return {int(key[-8:], 16): MaintenanceFailure(**record) for key, record in records}


def expire_every_ms(ttl: timedelta) -> int:
    """Return the time after which a table with this ttl is searched for expired rows again."""
    return min(EXPIRE_EVERY_MS, ttl // timedelta(milliseconds=100))


class Maintenance:
    """Maintenance of one open store. `errors`: the failures of the last try, by table, "vacuum" or "shipping"."""

    def __init__(self, handle: Handle) -> None:
        self.errors: dict[str, str] = {}
        self._handle = handle
        self._pid = os.getpid()
        self._notified = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[int, tuple[TableVersion, TableOptions, int]] = {}
        self._vacuumed_ms: int | None = None
        self._expired_ms: dict[int, int] = {}
        self._left_packed: dict[int, tuple[int, int]] = {}
        """By table that had nothing to pack: the files of its log at that time, and the time."""

    def start(self) -> None:
        """Start the thread; it runs until `close`."""
        self._thread = threading.Thread(target=self._run, name="epochlog-maintenance", daemon=True)
        self._handle.wake_maintenance = self.wake
        self._handle.maintained = True
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread, because there is work."""
        if self._pid == os.getpid():  # a forked child has no thread
            self._notified.set()

    def close(self) -> None:
        """Stop the thread after the current slice."""
        if self._pid != os.getpid():
            return
        self._closing.set()
        self._notified.set()
        if self._thread is not None:
            self._thread.join()

    def run_once(self) -> bool:
        """Run one round over all tables; return True if work remains."""
        more = False
        for table, version in self._attempt("looking", lambda: self._handle.catalog.read(self._due_tables)) or ():
            if self._closing.is_set():
                return False
            self._seen[table.id] = (version, table.options, self._handle.catalog.now_ms())
            if self._maintain_table(table):
                self._seen.pop(table.id)
                more = True
        drop_idle()
        if not self._closing.is_set():
            if self._vacuum_is_due():
                self._attempt("vacuum", lambda: vacuum(self._handle, stop=self._closing.is_set))
            self._attempt("shipping", lambda: ship(self._handle))
        return more

    # ---- the parts of a round ------------------------------------------------------------------------------------

    def _due_tables(self, view: ReadTxn) -> list[tuple[TableDef, TableVersion]]:
        """Return the tables with new commits or options since their last visit, and those last visited LOOK_AGAIN_MS
        ago or earlier.
        """
        now_ms, due = self._handle.catalog.now_ms(), []
        for table in all_tables(view):
            version = get_version(view, table.id, table.name)
            seen = self._seen.get(table.id)
            if seen is None or seen[:2] != (version, table.options) or not 0 <= now_ms - seen[2] < LOOK_AGAIN_MS:
                due.append((table, version))
        return due

    def _maintain_table(self, table: TableDef) -> bool:
        """Maintain a table for a short time; return True if work may remain."""

        def work() -> bool:
            apply_retention(self._handle, table)
            outcome = compact_table(self._handle, table, budget=SLICE, by="maintenance")
            self._expire(table)
            return self._pack(table) or outcome in (CompactionOutcome.PROGRESS, CompactionOutcome.DONE)

        try:
            more = self._attempt(table.name, work)
            error = self.errors.get(table.name)
            self._record_trouble(table, error)
        except EpochlogError as error:
            RETRY.log(what=f"recording the failed maintenance of table {table.name}", error=error)
            return False
        return bool(more)

    def _pack(self, table: TableDef) -> bool:
        """Pack a table's log and commits, unless there was nothing to pack a short time and few files ago: the search
        costs as much as a commit. Return True if more may be to pack.
        """
        files = self._handle.catalog.read(lambda view: get_version(view, table.id, table.name)).log_segments
        now_ms, left = self._handle.catalog.now_ms(), self._left_packed.get(table.id)
        if left is not None and 0 <= files - left[0] < PACK_EVERY and 0 <= now_ms - left[1] < PACK_AGAIN_MS:
            return False
        if pack_table(self._handle, table, by="maintenance", limit_s=PACKING_S):
            self._left_packed.pop(table.id, None)
            return True
        self._left_packed[table.id] = files, now_ms
        return False

    def _expire(self, table: TableDef) -> None:
        """Delete the rows whose ttl has passed, if the table was not looked through a short time ago."""
        ttl, now_ms = table.options.ttl, self._handle.catalog.now_ms()
        last_ms = self._expired_ms.get(table.id)
        if ttl is None or (last_ms is not None and 0 <= now_ms - last_ms < expire_every_ms(ttl)):
            return
        expire_rows(self._handle, table)
        self._expired_ms[table.id] = now_ms

    def _record_trouble(self, table: TableDef, error: str | None) -> None:
        """Record the failure of a table, or its end, in the catalog. Write only on a change."""
        handle, key = self._handle, trouble_key(table.id)
        recorded = handle.catalog.read(lambda view: view.get(key))
        if (recorded["error"] if recorded else None) == error:
            return

        def body(tx: Txn) -> None:
            if error is None:
                tx.delete(key)
            elif tx.get(table_key(table.id)) is not None:
                tx.put(key, asdict(MaintenanceFailure(handle.catalog.now_ms(), "maintenance", error)))

        handle.catalog.transact(body)

    def _vacuum_is_due(self) -> bool:
        """Return True if the last try of a vacuum is long enough ago, and note a new one."""
        now_ms, last_ms = self._handle.catalog.now_ms(), self._vacuumed_ms
        if last_ms is not None and 0 <= now_ms - last_ms < VACUUM_EVERY_MS:
            return False
        self._vacuumed_ms = now_ms
        return True

    def _attempt(self, subject: str, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; None if it fails. Log a failure once, and keep it in `errors` until `work`
        succeeds.
        """
        try:
            result = work()
        except (StoreClosed, TableDropped):
            self.errors.pop(subject, None)
            return None
        except Exception as error:  # noqa: BLE001 (the next round tries again)
            text = f"{type(error).__name__}: {error}"
            if self.errors.get(subject) != text:
                if isinstance(error, EpochlogError | OSError):
                    self._handle.log(MAINTENANCE_FAILED, subject=subject, error=text)
                else:
                    DEFECT.log(what=f"the maintenance of {subject}", error=error)
            self.errors[subject] = text
            self._handle.recorder.add(MAINTENANCE_FAILURES, subject)
            return None
        self.errors.pop(subject, None)
        return result

    def _run(self) -> None:
        while not self._closing.is_set():
            self._notified.clear()
            if not self.run_once() and not self._closing.is_set():
                self._notified.wait(PERIOD_S)
