"""Open store: opening it, and its files, catalog, leases and fixed options."""

from __future__ import annotations

import os
import re
import shlex
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from epochlog.errors import InvalidInput, StoreNotFound
from epochlog.store.catalog.dropped_writes import without_writes
from epochlog.store.catalog.kind import Site
from epochlog.store.catalog.protocol import Catalog, Txn
from epochlog.store.catalog.registry import EMBEDDED, kind_of_url
from epochlog.store.env.clock import BootTime, Clock, HasBootTime, SystemClock
from epochlog.store.env.files import Files
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.histogram import Histograms
from epochlog.store.env.log_line import LogEvent
from epochlog.store.env.metrics import recorder_of
from epochlog.store.env.paths import file_name, table_folder
from epochlog.store.env.process_local import OneProcess
from epochlog.store.env.read_only import refuse_write
from epochlog.store.env.redact import redact_url
from epochlog.store.epochs.view_reader import EpochMemory
from epochlog.store.metadata.definitions import StoreRecord, TableDef
from epochlog.store.metadata.lag_bound import checked_global_max_lag_ms
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.epoch import MAX_EPOCH, from_unix_ms

from .bootstrap import DEFAULT_INTERVAL_MS, RequestedOptions, open_catalog, require_requested_options
from .clock_guard import ClockGuard
from .leases import RUNNER_MS, Leases
from .marker import read_marker, require_kind
from .packed_through import PackedThrough
from .run_listener import RunListener
from .watcher import CatalogWatcher
from .write_intents import Intents

T = TypeVar("T")


class HasHandle(Protocol):
    """Protocol of an object with an open store, such as epochlog.Store."""

    _handle: Handle


class Handle(OneProcess):
    """Open store, for the modules of epochlog: `files`, `catalog`, the fixed fields of the store record, its leases and
    the cache of epochs.
    """

    def __init__(
        self,
        root: str,
        files: Files,
        catalog: Catalog,
        record: StoreRecord,
        durability: str,
        catalog_url: str | None = None,
        volatile: bool = False,
        clock: Clock | None = None,
        read_only: bool = False,
    ) -> None:
        self.root = root  # may contain a password, as may `catalog_url`; `files.place` does not
        self.files = files
        self.catalog = catalog
        self.store_id = record.id
        self.interval_ms = record.interval_ms
        self.durability = durability
        self.catalog_url = catalog_url
        self.volatile = volatile
        self.read_only = read_only
        self.intact_backups: set[str] = set()  # backup files that this process wrote, or read and found complete
        self.memory = EpochMemory()
        self.packed_logs: dict[int, PackedThrough] = {}
        self.packed_history: dict[int, PackedThrough] = {}
        """By table, how far its log is in packs, and its remembered commits are in chapters."""
        self.clock_guard = ClockGuard(
            catalog,
            _boot_clock(clock),
            _clock_name(clock, catalog_url),
            _trust_command(files.place, catalog_url, volatile=volatile),
        )
        self.leases = Leases(catalog, self.clock_guard.latest_ms, read_only=read_only)
        self.runners = Leases(catalog, self.clock_guard.latest_ms, RUNNER_MS, read_only=read_only)
        self.intents = Intents(catalog, self.leases)
        self.watcher = CatalogWatcher(catalog)
        catalog.on_commit = self.watcher.poll_soon
        self.wake_maintenance: Callable[[], None] = lambda: None
        self.maintained = False  # True: a thread of this process maintains the store
        self.run_listener: RunListener | None = None
        self.recorder = recorder_of(record.id)
        self.barrier_phases = Histograms()
        """Durations of the phases of the barriers that this process decided, by job and phase."""

    def pin(self, body: Callable[[Txn], T]) -> T:
        """Run the transaction of a reader, which plans a read and writes its holds. A store that was opened read-only
        drops the holds: retention and vacuum elsewhere may end the read, with a typed error.
        """
        return self.catalog.read(without_writes(body)) if self.read_only else self.catalog.transact(body)

    def require_writable(self) -> None:
        """Raise StoreReadOnly if the store was opened read-only. A call that may end without a transaction begins with
        this check.
        """
        if self.read_only:
            refuse_write(self.files.place)

    def table_folder(self, table_id: int) -> str:
        """Return the folder of a table's files, relative to the root."""
        return table_folder(self.store_id, table_id)

    def new_path(self, table_id: int, ending: str) -> str:
        """Return the path, relative to the root, of a new file of a table, under this open store's write intent."""
        return f"{self.table_folder(table_id)}/{file_name(self.intents.store_intent(), ending)}"

    def write_target(self, table: TableDef, intent: str | None = None) -> WriteTarget:
        """Return the WriteTarget of a table under a write intent (None: the intent of this open store)."""
        return WriteTarget(
            self.files, self.table_folder(table.id), table.id, table.schema, intent or self.intents.store_intent()
        )

    def new_holder(self, kind: str) -> str:
        """Return a unique name for the holder of a lease."""
        return f"{kind}:{uuid.uuid4().hex}"

    def log(self, event: LogEvent, **values: object) -> None:
        """Log an event of this store. values: those of its fields but `store`."""
        if event.enabled:
            event.write({"store": self.files.place, **values}, stacklevel=3)

    def close(self) -> None:
        if self.run_listener is not None:
            self.run_listener.close()
        self.runners.close()
        self.leases.close()
        self.catalog.close()


def open_handle(
    root: str | Path,
    catalog: str | None = None,
    *,
    create: bool = True,
    checkpoint_interval_ms: int | None = None,
    global_max_lag: float | timedelta | None = None,
    durability: str = "disk",
    volatile: bool = False,
    clock: Clock | None = None,
    read_only: bool = False,
) -> Handle:
    """Open the store at `root`, or create one in an empty or missing root.

    Raises StoreNotFound, ForeignRoot, CatalogLost, CatalogRolledBack, CatalogUnavailable, UnsupportedFormat or
    InvalidInput; and StoreReadOnly, unless `read_only`, if the place of an embedded catalog permits only reads. It
    completes a creation that was interrupted by a crash. Opening an existing store writes nothing; `read_only` creates
    none.
    """
    interval_ms = DEFAULT_INTERVAL_MS if checkpoint_interval_ms is None else checkpoint_interval_ms
    _check_arguments(interval_ms, durability)
    bound_ms = None if global_max_lag is None else checked_global_max_lag_ms(global_max_lag, interval_ms)
    requested = RequestedOptions(checkpoint_interval_ms, bound_ms)
    if clock is not None:
        clock = CheckedClock(clock)
        clock()  # raises InvalidInput before the creation of files
    place = as_place(root)
    kind = kind_of_url(catalog)
    if kind is EMBEDDED and place.folder is None:
        raise InvalidInput(
            f"root {redact_url(place.root)!r}: the embedded catalog needs a local folder; pass catalog='redis://host:port/db'"
        )
    files = open_files(place.root, durability, read_only=read_only)
    marker = read_marker(files)
    require_kind(marker, kind, files)
    if marker is None and (read_only or not create):
        raise StoreNotFound(
            f"there is no store at {files.place}; check the path, or create one with epochlog.open(root, create=True)"
        )
    site = Site(place.root, place.folder, files, catalog, clock, durability, volatile, read_only)
    opened_catalog, record = open_catalog(kind, site, marker, requested)
    try:
        require_requested_options(record, requested, files)
    except InvalidInput:
        opened_catalog.close()
        raise
    return Handle(place.root, files, opened_catalog, record, durability, catalog, volatile, clock, read_only)


def _check_arguments(interval_ms: int, durability: str) -> None:
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool) or not 1 <= interval_ms <= 86_400_000:
        raise InvalidInput(f"checkpoint_interval_ms must be an int from 1 to 86,400,000, not {interval_ms!r}")
    if durability not in ("disk", "os"):
        raise InvalidInput(f"durability must be 'disk' or 'os', not {durability!r}")


@dataclass(frozen=True, slots=True)
class CheckedClock:
    """Clock of a user, validated at each call: InvalidInput for a value outside of the range of epochs."""

    clock: Clock

    def __call__(self) -> int:
        try:
            now_ms = self.clock()
        except Exception as error:
            raise InvalidInput(
                f"clock must be a function without arguments that returns Unix milliseconds: {error!r}"
            ) from error
        if not isinstance(now_ms, int) or isinstance(now_ms, bool) or not 0 <= from_unix_ms(now_ms) <= MAX_EPOCH:
            raise InvalidInput(f"clock must return Unix milliseconds as an int, from 2025 on, not {now_ms!r}")
        return now_ms

    def boot_time(self) -> BootTime | None:
        return self.clock.boot_time() if isinstance(self.clock, HasBootTime) else None


def _boot_clock(clock: Clock | None) -> HasBootTime | None:
    """Return the boot clock with which a store's clock is compared: the machine's, if none was given to open."""
    if clock is None:
        return SystemClock()
    return clock if isinstance(clock, HasBootTime) else None


def _clock_name(clock: Clock | None, catalog_url: str | None) -> str:
    """Return the name of the clock that gives a store its time."""
    if clock is not None:
        return "the clock given to open"
    kind = kind_of_url(catalog_url)
    owner = os.uname().nodename if kind is EMBEDDED else f"the catalog's {kind.name} server"
    return f"the clock of {owner}"


def _trust_command(place: str, catalog_url: str | None, *, volatile: bool) -> str:
    """Return the command that notes a store's clock as right."""
    catalog = [] if catalog_url is None else ["--catalog", redact_url(catalog_url)]
    options = [*catalog, *(["--volatile"] if volatile else []), "--trust-clock"]
    return shlex.join(["epochlog", "doctor", place, *options])


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Location of a store: the root, which may contain a password, and its folder if it is local."""

    root: str = field(repr=False)
    folder: Path | None


def as_place(root: object) -> StorePlace:
    """Return the StorePlace of a root; InvalidInput unless it is a path or a URI."""
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise InvalidInput(f"root must be a path or a URI, not {root!r}")
    text = os.fspath(root)
    if not isinstance(text, str):
        raise InvalidInput(f"root must be a path or a URI, not {root!r}")
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if "://" in text:
        return StorePlace(text, None)
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)", text):
        raise InvalidInput(
            f"root {redact_url(text)!r} has one slash behind {scheme[0]}, and a URI has two: {scheme[0]}//…. For a "
            "folder of this name write ./ before it"
        )
    folder = Path(text).expanduser().absolute()
    return StorePlace(str(folder), folder)
