"""An open store: its marker, catalog, files and clock, and the few facts about it that never change."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ..errors import InvalidInput, StoreNotFound, WriteFailed
from .catalog import Catalog
from .clock import Clock, SystemClock
from .definitions import StoreRecord
from .epoch import MAX_EPOCH, from_unix_ms
from .files import Files, open_files
from .founding import (
    DEFAULT_INTERVAL_MS,
    Asked,
    found_record,
    is_foreign,
    known_record,
    refuse_foreign,
    require_as_asked,
    write_marker,
)
from .history import EpochMemory
from .intents import Intents
from .leases import RUNNER_MS, Leases
from .lmdb_catalog import LmdbCatalog
from .marker import Marker, read_marker, require_kind
from .one_process import OneProcess
from .outside import checked_global_max_lag_ms
from .paths import CATALOG_FOLDER, file_name, table_folder
from .urls import masked
from .watch import Watch


class HasHandle(Protocol):
    """An open store as users have it, as far as the packages above ask it."""

    _handle: Handle


class Handle(OneProcess):
    """What the modules of this package work on: `files`, `catalog`, the store's fixed record, and the epochs read so
    far.
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
    ) -> None:
        self.root = root  # may hold a password, as `catalog_url`; `files.place` does not
        self.files = files
        self.catalog = catalog
        self.store_id = record.id
        self.interval_ms = record.interval_ms
        self.durability = durability
        self.catalog_url = catalog_url
        self.volatile = volatile
        self.whole_dumps: set[str] = set()  # shipped files that were read, or written, and found whole
        self.memory = EpochMemory()
        self.leases = Leases(catalog)
        self.runners = Leases(catalog, RUNNER_MS)
        self.intents = Intents(catalog, self.leases)
        self.watch = Watch(catalog)
        catalog.landed = self.watch.look
        self.told_backlog: set[int] = set()
        """Tables of whose backlog the log has told."""
        self.wake_maintenance: Callable[[], None] = lambda: None

    def table_folder(self, table_id: int) -> str:
        """Where a table's files lie, relative to the root."""
        return table_folder(self.store_id, table_id)

    def new_path(self, table_id: int, ending: str) -> str:
        """Where this open store writes a new file of a table."""
        return f"{self.table_folder(table_id)}/{file_name(self.intents.own(), ending)}"

    def new_holder(self, kind: str) -> str:
        """A name that no other holder of a lease has."""
        return f"{kind}:{uuid.uuid4().hex}"

    def close(self) -> None:
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
) -> Handle:
    """Open the store at `root`, or make one where there is nothing yet.

    Raises StoreNotFound, ForeignRoot, CatalogLost, CatalogRolledBack, CatalogUnavailable, UnsupportedFormat or
    InvalidInput. A creation that was cut off by a crash is taken up where it stopped; opening an existing store writes
    nothing.
    """
    interval_ms = DEFAULT_INTERVAL_MS if checkpoint_interval_ms is None else checkpoint_interval_ms
    _check_arguments(interval_ms, durability)
    bound_ms = None if global_max_lag is None else checked_global_max_lag_ms(global_max_lag, interval_ms)
    asked = Asked(checkpoint_interval_ms, bound_ms)
    if clock is not None:
        clock = CheckedClock(clock)
        clock()  # once, before anything is made
    place = as_place(root)
    if catalog is None and place.folder is None:
        raise InvalidInput(
            f"root {masked(place.root)!r}: the embedded catalog needs a local folder; pass catalog='redis://host:port/db'"
        )
    files = open_files(place.root, durability)
    marker = read_marker(files)
    require_kind(marker, "lmdb" if catalog is None else "redis", files)
    if marker is None and not create:
        raise StoreNotFound(f"there is no store at {files.place}; epochlog.open(root) with create=True makes one")
    if catalog is None:
        assert place.folder is not None
        opened, record = _open_local(place.folder, files, marker, asked, durability, clock)
    else:
        from .redis_founding import open_in_redis

        opened, record = open_in_redis(
            place.root, place.folder, files, catalog, marker, asked, clock, volatile=volatile
        )
    try:
        require_as_asked(record, asked, files)
    except InvalidInput:
        opened.close()
        raise
    return Handle(place.root, files, opened, record, durability, catalog, volatile)


def _open_local(
    folder: Path, files: Files, marker: Marker | None, asked: Asked, durability: str, clock: Clock | None
) -> tuple[Catalog, StoreRecord]:
    """The catalog in the store's own folder."""
    ticks = clock or SystemClock()
    try:
        if marker is None and is_foreign(folder):
            marker = read_marker(files)  # there are files: perhaps another process has made the store just now
            require_kind(marker, "lmdb", files)
            if marker is None:
                refuse_foreign(folder)
        opened = LmdbCatalog(folder / CATALOG_FOLDER, ticks, durability=durability, create=marker is None)
    except OSError as error:
        raise WriteFailed(f"{folder} cannot be made a store: {error.strerror or error}; choose another root") from error
    try:
        if marker is not None:
            return opened, known_record(opened, files, marker)
        record = found_record(opened, asked)
        write_marker(files, opened, Marker(record.id))
        return opened, record
    except BaseException:
        opened.close()
        raise


def _check_arguments(interval_ms: int, durability: str) -> None:
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool) or not 1 <= interval_ms <= 86_400_000:
        raise InvalidInput(f"checkpoint_interval_ms must be 1 to 86,400,000, not {interval_ms!r}")
    if durability not in ("disk", "os"):
        raise InvalidInput(f"durability must be 'disk' or 'os', not {durability!r}")


@dataclass(frozen=True, slots=True)
class CheckedClock:
    """A clock that a user gave: whatever it says, at any time, is a moment that an epoch can name, or InvalidInput."""

    clock: Clock

    def __call__(self) -> int:
        try:
            now_ms = self.clock()
        except Exception as error:
            raise InvalidInput(
                f"clock must be a function without arguments that gives Unix milliseconds: {error!r}"
            ) from error
        if not isinstance(now_ms, int) or isinstance(now_ms, bool) or not 0 <= from_unix_ms(now_ms) <= MAX_EPOCH:
            raise InvalidInput(f"clock must give Unix milliseconds as an int, from 2025 on, not {now_ms!r}")
        return now_ms


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store lies: the root as it is opened, which may hold a password, and the folder if it is a local one."""

    root: str = field(repr=False)
    folder: Path | None


def as_place(root: object) -> Place:
    """InvalidInput unless it is a path or a URI."""
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise InvalidInput(f"root must be a path or a URI, not {root!r}")
    text = os.fspath(root)
    if not isinstance(text, str):
        raise InvalidInput(f"root must be a path or a URI, not {root!r}")
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if "://" in text:
        return Place(text, None)
    folder = Path(text).expanduser().absolute()
    return Place(str(folder), folder)
