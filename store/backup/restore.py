"""Restore of a lost catalog, from an export or from the incremental backup in the root.

The new catalog is another generation: whoever still speaks to the old one is refused. It counts from the moment that
the marker names it, which is the last step; a restore that was cut off before is begun again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from epochlog.errors import CatalogInUse, CatalogLost, Corrupt, EpochlogError, InvalidInput, StoreNotFound
from epochlog.store.catalog.export_format import Header, Shipped, decode_dump, encode_dump, shipped_files
from epochlog.store.catalog.keys import HEAD, STORE, head_key
from epochlog.store.catalog.kind import CatalogKind, Site
from epochlog.store.catalog.records import Record, unpack
from epochlog.store.catalog.registry import EMBEDDED, kind_named, kind_of_url
from epochlog.store.env.files import Files
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.paths import MARKER, is_store_id, ship_path
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.version import LogEntry, TableVersion, runs_from_record
from epochlog.store.session.bootstrap import stored_record
from epochlog.store.session.handle import as_place
from epochlog.store.session.marker import Marker, read_marker

from .incremental import chain_of, file_at

_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore: the store as of `version`, whose newest epoch is `last_epoch`, exported at `at_ms` (Unix
    ms).

    `tables`: the newest committed epoch of each. What was committed later is gone.
    """

    store_id: str
    version: int
    last_epoch: int
    at_ms: int
    tables: dict[str, int]


@dataclass(frozen=True, slots=True)
class _State:
    header: Header
    records: dict[bytes, bytes]


def restore_catalog(
    root: str | Path,
    uri: str | Path | None = None,
    *,
    catalog: str | None = None,
    durability: str = "disk",
    volatile: bool = False,
    leave_redis: bool = False,
) -> RestoreReport:
    """Make the catalog of a store anew, from an export, or (without `uri`) from what was shipped to its root.

    catalog: the Redis server that is to have it; None for a folder of the local root. It may be of another kind than
    before: to give a Redis catalog up for one in the root's folder, say `leave_redis`. No process may have the store
    open: what it commits to a catalog that was left is lost. Raises CatalogInUse where the catalog that is to be
    written is alive, Corrupt for a damaged file, StoreNotFound where nothing was shipped, InvalidInput.
    """
    place = as_place(root)
    kind = kind_of_url(catalog)
    if kind is EMBEDDED and place.folder is None:
        raise InvalidInput("this root is no local folder; pass catalog='redis://host:port/db'")
    files = open_files(place.root, durability)
    marker = read_marker(files)
    state = _exported(uri) if uri is not None else _shipped(files, marker)
    if marker is not None and marker.store_id != state.header.store_id:
        raise InvalidInput(f"that is the catalog of store {state.header.store_id}; {files.place} is {marker.store_id}")
    stored = kind_named(marker.catalog) if marker is not None else None
    if stored not in (None, EMBEDDED) and kind is EMBEDDED and not leave_redis:
        raise InvalidInput(
            f"the catalog of {files.place} is {stored.location}: pass catalog='redis://host:port/db' to restore it "
            "there. To move it into the root's folder for good, close the store in every process and pass "
            "leave_redis=True"
        )
    _refuse_other_root(files, state)
    report = _report(state)
    site = Site(place.root, place.folder, files, catalog, None, durability, volatile)
    _refuse_live_embedded(site, state.header.store_id)
    made = _refill(kind, site, marker, state)
    if made != marker:
        files.delete(MARKER)
        files.write(MARKER, made.to_bytes())
    for file in shipped_files(files, made.store_id):
        if file.generation != made.generation:
            files.delete(file.path)
    return report


def _refuse_other_root(files: Files, state: _State) -> None:
    """Raise InvalidInput if the root has no file of the store: most likely the root was mistyped."""
    wanted = next((path for path in _paths(state)), None)
    if wanted is not None and not files.list(state.header.store_id):
        raise InvalidInput(
            f"{files.place} has no file of store {state.header.store_id}, whose catalog this is; name the root that "
            "its files lie in"
        )


def _paths(state: _State) -> Iterator[str]:
    """Yield the paths of the log's segments and of the runs: the files that the records refer to."""
    for key, value in state.records.items():
        if key.startswith(b"log/"):
            yield from (file.path for file in LogEntry.from_record(unpack(key, value)).files)
        elif key.startswith(b"runs/"):
            yield from (part.path for run in runs_from_record(unpack(key, value)) for part in run.parts)


# ---- what there is -----------------------------------------------------------------------------------------------


def _exported(uri: str | Path) -> _State:
    files, name = file_at(uri)
    path = f"{files.place}/{name}"
    try:
        header, records = decode_dump(path, bytes(files.read(name)))
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}") from error
    if header.since:
        raise InvalidInput(f"{path} has only what changed since version {header.since}; name an export, or no uri")
    return _checked(path, header, _merged({}, records))


def _shipped(files: Files, marker: Marker | None) -> _State:
    store_id = marker.store_id if marker is not None else _only_store(files)
    found = shipped_files(files, store_id)
    generation = marker.generation if marker is not None and marker.generation else _last_generation(files, found)
    chain = chain_of([file for file in found if file.generation == generation])
    if not chain:
        raise StoreNotFound(f"nothing of a catalog was shipped to {files.place}; restore it from an export (uri=…)")
    records, header = dict[bytes, bytes](), None
    for file in chain:
        header, changes = _opened(files, file)
        records = _merged(records, changes)
    assert header is not None
    return _checked(chain[-1].path, header, records)


def _last_generation(files: Files, found: list[Shipped]) -> str:
    """Return the generation of the newest backup by its time, for a root whose marker does not name one; "" without
    any.
    """
    ends = {file.generation: file for file in found}
    if len(ends) < 2:
        return next(iter(ends), "")
    return max(ends, key=lambda generation: _opened(files, ends[generation])[0].at_ms)


def _opened(files: Files, file: Shipped) -> tuple[Header, Iterable[tuple[bytes, bytes | None]]]:
    path = f"{files.place}/{file.path}"
    try:
        header, changes = decode_dump(path, bytes(files.read(file.path)))
    except FileNotFoundError as error:
        raise Corrupt(path, "it is gone") from error
    if (header.generation, header.since, header.version) != (file.generation, file.since, file.version):
        raise Corrupt(path, "it is not what its name says")
    return header, changes


def _only_store(files: Files) -> str:
    stores = {info.path.split("/", 1)[0] for info in files.list()}
    found = sorted(name for name in stores if is_store_id(name))
    if len(found) != 1:
        raise StoreNotFound(f"{files.place} has no marker and {len(found)} stores' files; restore its marker first")
    return found[0]


def _merged(records: dict[bytes, bytes], changes: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    for key, value in changes:
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value
    return records


def _checked(path: str, header: Header, records: dict[bytes, bytes]) -> _State:
    """Return the state, or raise Corrupt unless every record can be decoded and the store's own is among them."""
    for key, value in records.items():
        _decoded(path, key, value)
    if STORE not in records or _decoded(path, STORE, records[STORE]).get("id") != header.store_id:
        raise Corrupt(path, "it does not hold the record of its store")
    return _State(header, records)


def _decoded(path: str, key: bytes, value: bytes) -> Record:
    try:
        return unpack(key, value)
    except (EpochlogError, ValueError, RecursionError) as error:
        raise Corrupt(path, f"its record {key!r} is not whole") from error


def _report(state: _State) -> RestoreReport:
    header, records = state.header, state.records
    tables = dict[str, int]()
    for key, value in records.items():
        if key.startswith(b"table/"):
            table = TableDef.from_record(unpack(key, value))
            head = head_key(table.id)
            tables[table.name] = TableVersion.from_record(unpack(head, records[head])).max_committed_epoch
    last_epoch = Counters(**unpack(HEAD, records[HEAD])).last_epoch if HEAD in records else 0
    return RestoreReport(header.store_id, header.version, last_epoch, header.at_ms, dict(sorted(tables.items())))


# ---- where it goes -----------------------------------------------------------------------------------------------


def _refuse_live_embedded(site: Site, store_id: str) -> None:
    """Raise CatalogInUse if the root has an embedded catalog with a store in it."""
    if site.folder is None:
        return
    source = EMBEDDED.connect(replace(site, url=None))
    try:
        catalog = source.open(store_id, None)
        if stored_record(catalog) is not None:
            raise CatalogInUse(
                f"{site.files.place} still has a catalog {EMBEDDED.where}; move that folder away, then restore"
            )
    except CatalogLost:
        return  # its file is missing or empty
    finally:
        source.close()


def _refill(kind: CatalogKind, site: Site, marker: Marker | None, state: _State) -> Marker:
    """Fill the catalog. If it counts generations, ship all of it as the first file of the new one."""
    store_id, records = state.header.store_id, sorted(state.records.items())
    source = kind.connect(site)
    try:
        made = source.refill(
            store_id, state.header.version, records, lambda *present: _is_alive(site.files, marker, *present)
        )
    finally:
        source.close()
    if made is None:
        return Marker(store_id, kind.name)
    header = Header(store_id, made.generation, 0, made.version, state.header.last_epoch, made.at_ms, len(records))
    path = ship_path(header.store_id, header.generation, header.since, header.version)
    site.files.write(path, encode_dump(header, records))
    return Marker(store_id, kind.name, made.generation)


def _is_alive(files: Files, marker: Marker | None, generation: str, version: int) -> bool:
    """Return True if a catalog on the server can be opened: the marker's, and not older than the newest incremental
    backup.
    """
    if marker is None:
        return True
    if marker.generation != generation:
        return False  # what a cut-off restore has left, or an earlier restore
    shipped = [file.version for file in shipped_files(files, marker.store_id) if file.generation == generation]
    return version >= max(shipped, default=0)
