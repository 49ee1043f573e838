"""An open store: its marker, catalog, files and clock, and the few facts about it that never change."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import CatalogLost, Corrupt, ForeignRoot, InvalidInput, StoreNotFound, UnsupportedFormat, WriteFailed
from .catalog import Catalog, Txn
from .clock import Clock, SystemClock
from .definitions import FORMAT_VERSION, StoreRecord
from .epoch import MAX_EPOCH, from_unix_ms
from .files import Files, open_files
from .history import EpochMemory
from .intents import Intents, file_name
from .leases import Leases
from .lmdb_catalog import LmdbCatalog
from .records import HEAD, STORE

MARKER = "epochlog.json"
MARKER_START = b'{\n "store_id": "'
CATALOG_FOLDER = "catalog"


class Handle:
    """What the modules of this package work on: `files`, `catalog`, the store's fixed record, and the epochs read so
    far.
    """

    def __init__(self, root: str, files: Files, catalog: Catalog, record: StoreRecord, durability: str) -> None:
        self.root = root
        self.files = files
        self.catalog = catalog
        self.store_id = record.id
        self.interval_ms = record.interval_ms
        self.durability = durability
        self.memory = EpochMemory()
        self.leases = Leases(catalog)
        self.intents = Intents(catalog, self.leases)

    def table_folder(self, table_id: int) -> str:
        """Where a table's files lie, relative to the root."""
        return f"{self.store_id}/t{table_id:08x}"

    def new_path(self, table_id: int, ending: str) -> str:
        """Where this open store writes a new file of a table."""
        return f"{self.table_folder(table_id)}/{file_name(self.intents.own(), ending)}"

    def new_holder(self, kind: str) -> str:
        """A name that no other holder of a lease has."""
        return f"{kind}:{uuid.uuid4().hex}"

    def close(self) -> None:
        self.leases.close()
        self.catalog.close()


def open_handle(
    root: str | Path,
    catalog: str | None = None,
    *,
    create: bool = True,
    checkpoint_interval_ms: int = 1000,
    durability: str = "disk",
    clock: Clock | None = None,
) -> Handle:
    """Open the store at `root`, or make one where there is nothing yet.

    Raises StoreNotFound, ForeignRoot, CatalogLost, UnsupportedFormat or InvalidInput. A creation that was cut off by
    a crash is taken up where it stopped; opening an existing store writes nothing.
    """
    _check_arguments(checkpoint_interval_ms, durability, catalog, clock)
    folder = _local_folder(root)
    files = open_files(str(folder), durability)
    marker = _read_marker(files, folder)
    if marker is None and not create:
        raise StoreNotFound(f"there is no store at {folder}; epochlog.open(root) with create=True makes one")
    if marker is None and _is_foreign(folder):
        marker = _read_marker(files, folder)  # there are files: perhaps another process has made the store just now
        if marker is None:
            _refuse_foreign(folder)
    if marker is not None and marker["format"] > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the store at {folder} has format {marker['format']}, newer than {FORMAT_VERSION}: upgrade epochlog"
        )
    ticks = clock or SystemClock()
    try:
        opened = LmdbCatalog(folder / CATALOG_FOLDER, ticks, durability=durability, create=marker is None)
    except OSError as error:
        raise WriteFailed(f"{folder} cannot be made a store: {error.strerror or error}; choose another root") from error
    try:
        if marker is None:
            record = _found(opened, checkpoint_interval_ms)
            _write_marker(files, folder, opened, record)
        else:
            record = _known(opened, folder, marker)
    except BaseException:
        opened.close()
        raise
    return Handle(str(folder), files, opened, record, durability)


def _check_arguments(interval_ms: int, durability: str, catalog: str | None, clock: Clock | None) -> None:
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool) or not 1 <= interval_ms <= 86_400_000:
        raise InvalidInput(f"checkpoint_interval_ms must be 1 to 86,400,000, not {interval_ms!r}")
    if durability not in ("disk", "os"):
        raise InvalidInput(f"durability must be 'disk' or 'os', not {durability!r}")
    if clock is not None:
        _check_clock(clock)
    if catalog is not None:
        shown = urlsplit(catalog).scheme or repr(catalog) if isinstance(catalog, str) else repr(catalog)
        raise InvalidInput(f"catalog {shown}: only the embedded LMDB catalog is built; leave it out")


def _check_clock(clock: Clock) -> None:
    """Ask it once, before anything is made."""
    try:
        now_ms = clock()
    except Exception as error:
        raise InvalidInput(
            f"clock must be a function without arguments that gives Unix milliseconds: {error!r}"
        ) from error
    if not isinstance(now_ms, int) or isinstance(now_ms, bool) or not 0 <= from_unix_ms(now_ms) <= MAX_EPOCH:
        raise InvalidInput(f"clock must give Unix milliseconds as an int, from 2025 on, not {now_ms!r}")


def _local_folder(root: str | Path) -> Path:
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise InvalidInput(f"root must be a path or a URI, not {root!r}")
    text = os.fspath(root)
    if text.startswith("file://"):
        text = urlsplit(text).path
    if "://" in text:
        raise InvalidInput(f"root {text!r}: the embedded catalog needs a local folder")
    return Path(text).expanduser().absolute()


def _read_marker(files: Files, folder: Path) -> dict[str, Any] | None:
    """The marker; None when there is none, or only the beginning of one, as a creation leaves it that was cut off."""
    if not files.exists(MARKER):
        return None
    path, text = str(folder / MARKER), bytes(files.read(MARKER))
    if MARKER_START.startswith(text[: len(MARKER_START)]) and not text.endswith(b"}"):
        return None
    try:
        marker = json.loads(text)
    except ValueError as error:
        raise Corrupt(path, "it is no JSON") from error
    if not isinstance(marker, dict) or not isinstance(marker.get("format"), int) or "store_id" not in marker:
        raise ForeignRoot(f"{path} is not an epochlog marker; choose another folder as root")
    return marker


def _strangers(folder: Path) -> list[str]:
    """What lies in a folder beside the things that a creation makes, in their order."""
    catalog, found = folder / CATALOG_FOLDER, []
    if folder.is_dir():
        found += sorted(entry.name for entry in folder.iterdir() if entry.name not in (CATALOG_FOLDER, MARKER))
    if catalog.is_dir():
        made = ("data.mdb", "lock.mdb")
        found += sorted(f"{CATALOG_FOLDER}/{entry.name}" for entry in catalog.iterdir() if entry.name not in made)
    elif catalog.exists() or (folder / MARKER).exists():
        found.append(CATALOG_FOLDER)
    return found


def _is_foreign(folder: Path) -> bool:
    return (folder.exists() and not folder.is_dir()) or bool(_strangers(folder))


def _refuse_foreign(folder: Path) -> None:
    """Only an absent or empty folder becomes a store; or one whose creation was cut off, at whatever step."""
    if folder.exists() and not folder.is_dir():
        raise ForeignRoot(f"{folder} is a file; choose a folder as root")
    raise ForeignRoot(
        f"{folder} is no epochlog store and is not empty (it holds {_strangers(folder)[0]!r}); "
        "choose an empty folder as root"
    )


def _stored_record(catalog: Catalog) -> StoreRecord | None:
    record = catalog.read(lambda view: view.get(STORE))
    return StoreRecord(**record) if record else None


def _found(catalog: Catalog, interval_ms: int) -> StoreRecord:
    """The store's record; of several processes that create at once, the first decides."""

    def body(tx: Txn) -> StoreRecord:
        present = tx.get(STORE)
        if present is not None:
            return StoreRecord(**present)
        record = StoreRecord(uuid.uuid4().hex, interval_ms, catalog.now_ms())
        tx.put(STORE, asdict(record))
        return record

    return catalog.transact(body)


def _known(catalog: Catalog, folder: Path, marker: dict[str, Any]) -> StoreRecord:
    record = _stored_record(catalog)
    if record is None or record.id != marker["store_id"]:
        raise CatalogLost(f"the catalog in {folder / CATALOG_FOLDER} is not the one of store {marker['store_id']}")
    return record


def _write_marker(files: Files, folder: Path, catalog: Catalog, record: StoreRecord) -> None:
    """The last step of a creation. A marker that was cut off is written again, unless the store has been used since."""
    marker = {"store_id": record.id, "format": record.format, "catalog": "lmdb"}
    body = json.dumps(marker, indent=1).encode()
    assert body.startswith(MARKER_START)
    if files.exists(MARKER) and _read_marker(files, folder) is None:
        if catalog.read(lambda view: view.get(HEAD)) is not None:
            raise Corrupt(str(folder / MARKER), "it was cut short")
        files.delete(MARKER)
    try:
        files.write(MARKER, body)
    except FileExistsError:  # another process that creates the same store was first, and may still be writing
        stored = _read_marker(files, folder)
        if stored is not None and stored["store_id"] != record.id:
            raise
