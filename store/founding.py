"""Making a store where there is none: safe against two makers at once, and taken up again where it was cut off.

The catalog decides which store a root is to be; the marker comes last. What is somebody else's is refused and left
alone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from ..errors import CatalogLost, Corrupt, ForeignRoot, InvalidInput
from .catalog import Catalog, Txn
from .definitions import StoreRecord
from .epoch import show_span
from .failpoints import reached
from .files import Files
from .marker import Marker, read_marker
from .paths import CATALOG_FOLDER, LMDB_DATA, LMDB_LOCK, MARKER, is_store_id
from .records import HEAD, STORE

DEFAULT_INTERVAL_MS = 1000


# ---- records and marker ------------------------------------------------------------------------------------------


def stored_record(catalog: Catalog) -> StoreRecord | None:
    record = catalog.read(lambda view: view.get(STORE))
    return StoreRecord(**record) if record else None


def known_record(catalog: Catalog, files: Files, marker: Marker) -> StoreRecord:
    """The record of the store that the marker names; CatalogLost when the catalog is not this store's."""
    record = stored_record(catalog)
    if record is None or record.id != marker.store_id:
        raise CatalogLost(
            f"the catalog of the store at {files.place} is not the one of store {marker.store_id}; bring that back, "
            "or make it anew with epochlog.restore_catalog"
        )
    return record


@dataclass(frozen=True, slots=True)
class Asked:
    """What whoever opens a store says of its options, used when it is made; None: the default, or what is there."""

    interval_ms: int | None = None
    global_max_lag_ms: int | None = None


def require_as_asked(record: StoreRecord, asked: Asked, files: Files) -> None:
    """Raise InvalidInput when an option that was given is another one than the store's."""
    if asked.interval_ms not in (None, record.interval_ms):
        raise InvalidInput(
            f"the store at {files.place} has boundaries every {record.interval_ms} ms for good, not every "
            f"{asked.interval_ms} ms; open it without checkpoint_interval_ms, or with that one"
        )
    bound_ms = asked.global_max_lag_ms
    if bound_ms is not None and bound_ms != record.max_lag_ms:
        raise InvalidInput(
            f"the store at {files.place}: its global_max_lag is {show_span(record.max_lag_ms)}, not "
            f"{show_span(bound_ms)}; leave it out, or change it with store.alter(global_max_lag=…)"
        )


def found_record(catalog: Catalog, asked: Asked, store_id: str | None = None) -> StoreRecord:
    """The store's record; of several processes that create at once, the first decides."""

    def body(tx: Txn) -> StoreRecord:
        present = tx.get(STORE)
        if present is not None:
            return StoreRecord(**present)
        record = StoreRecord(
            store_id or uuid.uuid4().hex,
            asked.interval_ms or DEFAULT_INTERVAL_MS,
            catalog.now_ms(),
            global_max_lag_ms=asked.global_max_lag_ms,
        )
        tx.put(STORE, record.to_record())
        return record

    return catalog.transact(body)


def is_used(catalog: Catalog) -> bool:
    return catalog.read(lambda view: view.get(HEAD)) is not None


def write_marker(files: Files, catalog: Catalog, marker: Marker) -> None:
    """The last step of a creation. A marker that was cut off is written again, unless the store has been used since."""
    if files.exists(MARKER) and read_marker(files) is None:
        if is_used(catalog):
            raise Corrupt(f"{files.place}/{MARKER}", "it was cut short")
        files.delete(MARKER)
    reached("create:before-marker")
    try:
        files.write(MARKER, marker.to_bytes())
        reached("create:after-marker")
    except FileExistsError:  # another process that creates the same store was first, and may still be writing
        stored = read_marker(files)
        if stored is not None and stored.store_id != marker.store_id:
            raise


# ---- a local folder with its catalog in it -----------------------------------------------------------------------


def _strangers(folder: Path) -> list[str]:
    """What lies in a folder beside the things that a creation makes, in their order."""
    catalog, found = folder / CATALOG_FOLDER, []
    if folder.is_dir():
        found += sorted(entry.name for entry in folder.iterdir() if entry.name not in (CATALOG_FOLDER, MARKER))
    if catalog.is_dir():
        made = (LMDB_DATA, LMDB_LOCK)
        found += sorted(f"{CATALOG_FOLDER}/{entry.name}" for entry in catalog.iterdir() if entry.name not in made)
    elif catalog.exists() or (folder / MARKER).exists():
        found.append(CATALOG_FOLDER)
    return found


def is_foreign(folder: Path) -> bool:
    return (folder.exists() and not folder.is_dir()) or bool(_strangers(folder))


def refuse_foreign(folder: Path) -> None:
    """Only an absent or empty folder becomes a store; or one whose creation was cut off, at whatever step."""
    if folder.exists() and not folder.is_dir():
        raise ForeignRoot(f"{folder} is a file; choose a folder as root")
    refuse_stranger(str(folder), _strangers(folder)[0])


def refuse_stranger(place: str, stranger: str) -> None:
    lost = is_store_id(stranger.partition("/")[0])
    hint = "; if its epochlog.json was lost, epochlog.restore_catalog makes it anew from an export" if lost else ""
    raise ForeignRoot(
        f"{place} is no epochlog store and is not empty (it holds {stranger!r}); choose an empty folder as root{hint}"
    )
