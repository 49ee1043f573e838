"""Creation of a store: safe for concurrent creators, and completed by a later call after an interruption.

The catalog decides the store id of a root; the marker is written last. A root with foreign files is refused and not
changed.
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
    """Return the record of the marker's store; raise CatalogLost if the catalog is of another store."""
    record = stored_record(catalog)
    if record is None or record.id != marker.store_id:
        raise CatalogLost(
            f"the catalog at {files.place} is not the catalog of its store {marker.store_id}; bring that one back, or "
            "restore it with epochlog.restore_catalog"
        )
    return record


@dataclass(frozen=True, slots=True)
class RequestedOptions:
    """Options of a store that the caller of `open` requests; None: not given. They apply at the creation."""

    interval_ms: int | None = None
    global_max_lag_ms: int | None = None


def require_requested_options(record: StoreRecord, requested: RequestedOptions, files: Files) -> None:
    """Raise InvalidInput if a given option differs from the store's."""
    if requested.interval_ms not in (None, record.interval_ms):
        raise InvalidInput(
            f"the store at {files.place} has checkpoint_interval_ms={record.interval_ms}, which cannot change to "
            f"{requested.interval_ms}; open it without checkpoint_interval_ms"
        )
    bound_ms = requested.global_max_lag_ms
    if bound_ms is not None and bound_ms != record.max_lag_ms:
        raise InvalidInput(
            f"the store at {files.place}: its global_max_lag is {show_span(record.max_lag_ms)}, not "
            f"{show_span(bound_ms)}; leave it out, or change it with store.alter(global_max_lag=…)"
        )


def create_record(catalog: Catalog, requested: RequestedOptions, store_id: str | None = None) -> StoreRecord:
    """Return the store's record, and write it if there is none. The first of several concurrent creators decides."""

    def body(tx: Txn) -> StoreRecord:
        present = tx.get(STORE)
        if present is not None:
            return StoreRecord(**present)
        record = StoreRecord(
            store_id or uuid.uuid4().hex,
            requested.interval_ms or DEFAULT_INTERVAL_MS,
            catalog.now_ms(),
            global_max_lag_ms=requested.global_max_lag_ms,
        )
        tx.put(STORE, record.to_record())
        return record

    return catalog.transact(body)


def is_used(catalog: Catalog) -> bool:
    return catalog.read(lambda view: view.get(HEAD)) is not None


def write_marker(files: Files, catalog: Catalog, marker: Marker) -> None:
    """Write the marker, the last step of a creation. Replace an incomplete marker, unless the store has been used since
    then.
    """
    if files.exists(MARKER) and read_marker(files) is None:
        if is_used(catalog):
            raise Corrupt(f"{files.place}/{MARKER}", "it is incomplete")
        files.delete(MARKER)
    hit("create:before-marker")
    try:
        files.write(MARKER, marker.to_bytes())
        hit("create:after-marker")
    except FileExistsError:  # another creator of this store was first, and may still be writing
        stored = read_marker(files)
        if stored is not None and stored.store_id != marker.store_id:
            raise


# ---- opening and creating ----------------------------------------------------------------------------------------


def open_catalog(
    kind: CatalogKind, site: Site, marker: Marker | None, requested: RequestedOptions
) -> tuple[Catalog, StoreRecord]:
    """Open the catalog of a site and return it with the store's record. Create the store if there is no marker.

    Raises the errors of `open_handle`.
    """
    source = kind.connect(site)
    try:
        if marker is None:
            return _create_store(kind, source, site.files, requested)
        return _open_store(kind, source, site.files, marker)
    except BaseException:
        source.close()
        raise


def _open_store(kind: CatalogKind, source: CatalogSource, files: Files, marker: Marker) -> tuple[Catalog, StoreRecord]:
    require_kind(marker, kind, files)
    catalog = source.open(marker.store_id, marker.generation)
    return catalog, known_record(catalog, files, marker)


def _create_store(
    kind: CatalogKind, source: CatalogSource, files: Files, requested: RequestedOptions
) -> tuple[Catalog, StoreRecord]:
    """Create the store of a root without a marker, or complete an interrupted creation."""
    foreign_files = source.foreign_files()
    if foreign_files:
        existing_marker = read_marker(files)  # another process may have created the store just now
        if existing_marker is not None:
            return _open_store(kind, source, files, existing_marker)
        _refuse_foreign_file(files.place, foreign_files[0])
    replaced_store = ""
    while True:
        created = source.create(replaced_store)
        record = create_record(created.catalog, requested, created.store_id)
        marker = Marker(record.id, kind.name, created.generation)
        existing_marker = read_marker(files) if created.store_id is not None else None
        if existing_marker is not None:
            return _open_store(kind, source, files, existing_marker)
        if created.store_id is None or not is_used(created.catalog) or files.list(record.id):
            write_marker(files, created.catalog, marker)
            return created.catalog, record
        replaced_store = record.id  # that store has been used and its files are gone: the root was emptied since


def _refuse_foreign_file(place: str, path: str) -> None:
    marker_may_be_lost = is_store_id(path.partition("/")[0])
    hint = "; if its epochlog.json was lost, restore it from an export with epochlog.restore_catalog"
    raise ForeignRoot(
        f"{place} is no epochlog store and is not empty (it has {path!r}); choose an empty folder as root"
        f"{hint if marker_may_be_lost else ''}"
    )
