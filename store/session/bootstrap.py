"""Making a store where there is none: safe against two makers at once, and taken up again where it was cut off.

The catalog decides which store a root is to be; the marker comes last. What is somebody else's is refused and left
alone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from epochlog.errors import CatalogLost, Corrupt, ForeignRoot, InvalidInput
from epochlog.store.catalog.keys import HEAD, STORE
from epochlog.store.catalog.kind import CatalogKind, CatalogSource, Site
from epochlog.store.catalog.protocol import Catalog, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.env.files import Files
from epochlog.store.env.paths import MARKER, is_store_id
from epochlog.store.metadata.definitions import StoreRecord
from epochlog.store.types.epoch import show_span

from .marker import Marker, read_marker, require_kind

DEFAULT_INTERVAL_MS = 1000


# ---- records and marker ------------------------------------------------------------------------------------------


def stored_record(catalog: Catalog) -> StoreRecord | None:
    record = catalog.read(lambda view: view.get(STORE))
    return StoreRecord(**record) if record else None


def known_record(catalog: Catalog, files: Files, marker: Marker) -> StoreRecord:
    """Return the record of the store that the marker names; CatalogLost when the catalog is not this store's."""
    record = stored_record(catalog)
    if record is None or record.id != marker.store_id:
        raise CatalogLost(
            f"the catalog of the store at {files.place} is not the one of store {marker.store_id}; bring that back, "
            "or make it anew with epochlog.restore_catalog"
        )
    return record


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of a store as the caller of `open` gave them; None: not given. They apply when the store is made."""

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


def create_record(catalog: Catalog, asked: Asked, store_id: str | None = None) -> StoreRecord:
    """Return the store's record, and write it if there is none: of several concurrent makers the first decides."""

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
    """Write the marker, the last step of a creation. A marker that was cut off is written again, unless the store has
    been used since.
    """
    if files.exists(MARKER) and read_marker(files) is None:
        if is_used(catalog):
            raise Corrupt(f"{files.place}/{MARKER}", "it was cut short")
        files.delete(MARKER)
    hit("create:before-marker")
    try:
        files.write(MARKER, marker.to_bytes())
        hit("create:after-marker")
    except FileExistsError:  # another process that creates the same store was first, and may still be writing
        stored = read_marker(files)
        if stored is not None and stored.store_id != marker.store_id:
            raise


# ---- opening and making ------------------------------------------------------------------------------------------


def open_catalog(kind: CatalogKind, site: Site, marker: Marker | None, asked: Asked) -> tuple[Catalog, StoreRecord]:
    """Open the catalog of a site, with the store's record; made where there is no marker.

    Raises what `open_handle` raises.
    """
    source = kind.connect(site)
    try:
        if marker is None:
            return _found(kind, source, site.files, asked)
        return _opened(kind, source, site.files, marker)
    except BaseException:
        source.close()
        raise


def _opened(kind: CatalogKind, source: CatalogSource, files: Files, marker: Marker) -> tuple[Catalog, StoreRecord]:
    require_kind(marker, kind, files)
    catalog = source.open(marker.store_id, marker.generation)
    return catalog, known_record(catalog, files, marker)


def _found(kind: CatalogKind, source: CatalogSource, files: Files, asked: Asked) -> tuple[Catalog, StoreRecord]:
    """Make the store of a root that has no marker, or go on where another has stopped."""
    strangers = source.foreign_files()
    if strangers:
        written = read_marker(files)  # perhaps another process has made the store just now
        if written is not None:
            return _opened(kind, source, files, written)
        _refuse_stranger(files.place, strangers[0])
    replacing = ""
    while True:
        found = source.create(replacing)
        record = create_record(found.catalog, asked, found.store_id)
        marker = Marker(record.id, kind.name, found.generation)
        written = read_marker(files) if found.store_id is not None else None
        if written is not None:
            return _opened(kind, source, files, written)
        if found.store_id is None or not is_used(found.catalog) or files.list(record.id):
            write_marker(files, found.catalog, marker)
            return found.catalog, record
        replacing = record.id  # that store has been used, and nothing of it is left here: the root was emptied since


def _refuse_stranger(place: str, stranger: str) -> None:
    lost = is_store_id(stranger.partition("/")[0])
    hint = "; if its epochlog.json was lost, epochlog.restore_catalog makes it anew from an export" if lost else ""
    raise ForeignRoot(
        f"{place} is no epochlog store and is not empty (it holds {stranger!r}); choose an empty folder as root{hint}"
    )
