"""Restore of a lost catalog, from an export or from the incremental backups in the root.

The new catalog is another generation, so processes that use the old one are refused. It takes effect when the marker
names it, which is the last step; an interrupted restore is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from epochlog.errors import CatalogInUse, CatalogLost, Corrupt, EpochlogError, InvalidInput, StoreNotFound
from epochlog.store.catalog.export_format import Header, Shipped, decode_dump, encode_dump, shipped_files
from epochlog.store.catalog.keys import HEAD, RUNS_PREFIX, STORE, TABLE_PREFIX, head_key
from epochlog.store.catalog.kind import CatalogKind, Site
from epochlog.store.catalog.records import Record, unpack
from epochlog.store.catalog.registry import EMBEDDED, kind_named, kind_of_url
from epochlog.store.env.files import Files
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.paths import MARKER, is_store_id, ship_path
from epochlog.store.env.redact import redact_url
from epochlog.store.metadata.commit_log import entry_of_record
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.version import TableVersion, runs_from_record
from epochlog.store.session.bootstrap import stored_record
from epochlog.store.session.handle import as_place
from epochlog.store.session.marker import Marker, read_marker

from .incremental import chain_of, file_at

_WAY_OUT = (
    "nothing was restored. Restore from another export, from the incremental backups in the root (leave uri out), or "
    "from a copy of the catalog's folder"
)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore: the store as of `version`, whose newest epoch is `last_epoch`, exported at `at_ms` (Unix
    ms).
    """

    store_id: str
    version: int
    last_epoch: int
    at_ms: int
    tables: dict[str, int]
    """Newest committed epoch of each. Later commits are lost."""


@dataclass(frozen=True, slots=True)
class _CatalogState:
    path: str
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
    """Restore the catalog of a store from an export, or (without `uri`) from the incremental backups in its root.

    catalog: the URL of the Redis server for the new catalog; None for a folder of the local root. It may be of another
    kind than before: to move a Redis catalog into the root's folder, pass `leave_redis`. No process may have the store
    open: its commits to the old catalog are lost. Raises CatalogInUse where the target has a live catalog, Corrupt for
    a damaged file, StoreNotFound without backups, InvalidInput.
    """
    place = as_place(root)
    kind = kind_of_url(catalog)
    if kind is EMBEDDED and place.folder is None:
        raise InvalidInput("this root is not a local folder; pass catalog='redis://host:port/db'")
    files = open_files(place.root, durability)
    marker = read_marker(files)
    with _as_damage(files.place if uri is None else redact_url(os.fspath(uri))):
        state = _read_export(uri) if uri is not None else _read_backups(files, marker)
        paths, report = list(_file_paths(state)), _make_report(state)
    if marker is not None and marker.store_id != state.header.store_id:
        raise InvalidInput(
            f"the export is of store {state.header.store_id}, but {files.place} is store {marker.store_id}; pass the "
            "export or the root that belongs to it"
        )
    stored = kind_named(marker.catalog) if marker is not None else None
    if stored not in (None, EMBEDDED) and kind is EMBEDDED and not leave_redis:
        raise InvalidInput(
            f"the catalog of {files.place} is {stored.location}: pass catalog='redis://host:port/db' to restore it "
            "there. To move it into the root's folder for good, close the store in every process and pass "
            "leave_redis=True"
        )
    _refuse_other_root(files, state, paths)
    site = Site(place.root, place.folder, files, catalog, None, durability, volatile)
    _refuse_live_embedded(site, state.header.store_id)
    new_marker = _refill(kind, site, marker, state)
    if new_marker != marker:
        files.delete(MARKER)
        files.write(MARKER, new_marker.to_bytes())
    for file in shipped_files(files, new_marker.store_id):
        if file.generation != new_marker.generation:
            files.delete(file.path)
    return report


def _refuse_other_root(files: Files, state: _CatalogState, paths: Sequence[str]) -> None:
    """Raise InvalidInput if the root has no file of the store: most likely the root was mistyped."""
    if paths and not files.list(state.header.store_id):
        raise InvalidInput(
            f"{files.place} has no file of store {state.header.store_id}, whose catalog this is; pass the root that "
            "holds its files"
        )


def _file_paths(state: _CatalogState) -> Iterator[str]:
    """Yield the paths of all log segments and run files that the records refer to."""
    for key, value in state.records.items():
        entry = entry_of_record(key, value)
        if entry is not None:
            yield from (file.path for file in entry.files)
        elif key.startswith(RUNS_PREFIX):
            yield from (part.path for run in runs_from_record(unpack(key, value)) for part in run.parts)


# ---- sources -----------------------------------------------------------------------------------------------------


def _read_export(uri: str | Path) -> _CatalogState:
    files, name = file_at(uri)
    path = f"{files.place}/{name}"
    try:
        header, records = decode_dump(path, bytes(files.read(name)))
    except FileNotFoundError as error:
        raise InvalidInput(f"file {path} does not exist") from error
    if header.since:
        raise InvalidInput(f"{path} has only the changes since version {header.since}; pass an export, or no uri")
    return _validate(path, header, _merge({}, records))


def _read_backups(files: Files, marker: Marker | None) -> _CatalogState:
    store_id = marker.store_id if marker is not None else _only_store_id(files)
    backups = shipped_files(files, store_id)
    generation = marker.generation if marker is not None and marker.generation else _last_generation(files, backups)
    chain = chain_of([file for file in backups if file.generation == generation])
    if not chain:
        raise StoreNotFound(f"{files.place} has no backup of a catalog; restore it from an export (uri=…)")
    records, header = dict[bytes, bytes](), None
    for file in chain:
        header, changes = _read_backup(files, file)
        records = _merge(records, changes)
    assert header is not None
    return _validate(chain[-1].path, header, records)


def _last_generation(files: Files, backups: list[Shipped]) -> str:
    """Return the generation of the newest backup by its time, for a root whose marker names none; ""
    without backups.
    """
    newest = {file.generation: file for file in backups}
    if len(newest) < 2:
        return next(iter(newest), "")
    return max(newest, key=lambda generation: _read_backup(files, newest[generation])[0].at_ms)


def _read_backup(files: Files, file: Shipped) -> tuple[Header, Iterable[tuple[bytes, bytes | None]]]:
    path = f"{files.place}/{file.path}"
    try:
        header, changes = decode_dump(path, bytes(files.read(file.path)))
    except FileNotFoundError as error:
        raise Corrupt(path, "it is missing") from error
    if (header.generation, header.since, header.version) != (file.generation, file.since, file.version):
        raise Corrupt(path, "its header differs from its name")
    return header, changes


def _only_store_id(files: Files) -> str:
    stores = {info.path.split("/", 1)[0] for info in files.list()}
    store_ids = sorted(name for name in stores if is_store_id(name))
    if len(store_ids) != 1:
        raise StoreNotFound(
            f"{files.place} has no marker, and files of {len(store_ids)} stores; restore its marker first"
        )
    return store_ids[0]


def _merge(records: dict[bytes, bytes], changes: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    for key, value in changes:
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value
    return records


def _validate(path: str, header: Header, records: dict[bytes, bytes]) -> _CatalogState:
    """Return the state. Raise Corrupt unless every record can be decoded and the record of the store is among them."""
    for key, value in records.items():
        _decode(path, key, value)
    if STORE not in records or _decode(path, STORE, records[STORE]).get("id") != header.store_id:
        raise Corrupt(path, "it lacks the record of its store")
    return _CatalogState(path, header, records)


@contextmanager
def _as_damage(path: str) -> Iterator[None]:
    """Raise Corrupt, with a way out, for damage and for records that this library never wrote together."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(error.path, f"{error.what}; {_WAY_OUT}") from error
    except EpochlogError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        reason = f"its records do not belong together ({type(error).__name__}: {error})"
        raise Corrupt(path, f"{reason}; {_WAY_OUT}") from error


def _decode(path: str, key: bytes, value: bytes) -> Record:
    try:
        return unpack(key, value)
    except (EpochlogError, ValueError, RecursionError) as error:
        raise Corrupt(path, f"its record {key!r} cannot be decoded") from error


def _make_report(state: _CatalogState) -> RestoreReport:
    header, records = state.header, state.records
    tables = dict[str, int]()
    for key, value in records.items():
        if key.startswith(TABLE_PREFIX):
            table = TableDef.from_record(unpack(key, value))
            head = head_key(table.id)
            if head not in records:
                raise Corrupt(state.path, f"table {table.name!r} lacks the record of its newest epoch")
            tables[table.name] = TableVersion.from_record(unpack(head, records[head])).max_committed_epoch
    last_epoch = Counters(**unpack(HEAD, records[HEAD])).last_epoch if HEAD in records else 0
    return RestoreReport(header.store_id, header.version, last_epoch, header.at_ms, dict(sorted(tables.items())))


# ---- target ------------------------------------------------------------------------------------------------------


def _refuse_live_embedded(site: Site, store_id: str) -> None:
    """Raise CatalogInUse if the root has an embedded catalog with a store in it."""
    if site.folder is None:
        return
    source = EMBEDDED.connect(replace(site, url=None))
    try:
        catalog = source.open(store_id, None)
        if stored_record(catalog) is not None:
            raise CatalogInUse(
                f"{site.files.place} still has a catalog {EMBEDDED.location}; move that folder away, then restore"
            )
    except CatalogLost:
        return  # its file is missing or empty
    finally:
        source.close()


def _refill(kind: CatalogKind, site: Site, marker: Marker | None, state: _CatalogState) -> Marker:
    """Fill the new catalog and return its marker. If its kind counts generations, write the whole catalog as the first
    backup of the new one.
    """
    store_id, records = state.header.store_id, sorted(state.records.items())
    source = kind.connect(site)
    try:
        refilled = source.refill(
            store_id, state.header.version, records, lambda *present: _is_alive(site.files, marker, *present)
        )
    finally:
        source.close()
    if refilled is None:
        return Marker(store_id, kind.name)
    header = Header(
        store_id, refilled.generation, 0, refilled.version, state.header.last_epoch, refilled.at_ms, len(records)
    )
    path = ship_path(header.store_id, header.generation, header.since, header.version)
    site.files.write(path, encode_dump(header, records))
    return Marker(store_id, kind.name, refilled.generation)


def _is_alive(files: Files, marker: Marker | None, generation: str, version: int) -> bool:
    """Return True if a catalog on the server can be opened: it is the marker's, and not older than the newest
    incremental backup.
    """
    if marker is None:
        return True
    if marker.generation != generation:
        return False  # an interrupted restore, or an earlier one, left it
    shipped = [file.version for file in shipped_files(files, marker.store_id) if file.generation == generation]
    return version >= max(shipped, default=0)
