"""Makes a lost catalog anew, from an export or from what was shipped to the root.

The new catalog is another generation: whoever still speaks to the old one is refused. It counts from the moment that
the marker names it, which is the last step; a restore that was cut off before is begun again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CatalogInUse, CatalogLost, Corrupt, EpochlogError, InvalidInput, StoreNotFound
from .catalog import Txn
from .clock import SystemClock
from .definitions import Counters, TableDef
from .dump import Header, Shipped, decode_dump, encode_dump, shipped_files
from .files import Files, open_files
from .founding import stored_record
from .handle import Place, as_place
from .lmdb_catalog import LmdbCatalog
from .marker import Marker, read_marker
from .paths import CATALOG_FOLDER, LMDB_DATA, MARKER, is_store_id, ship_path
from .records import HEAD, STORE, Record, head_key, unpack
from .shipping import chain_of, file_at
from .version import LogEntry, TableVersion, runs_from_record

_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was brought back: the store as of `version`, whose newest epoch is `last_epoch`, written down at `at_ms`.

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
    if catalog is None and place.folder is None:
        raise InvalidInput("this root is no local folder; pass catalog='redis://host:port/db'")
    files = open_files(place.root, durability)
    marker = read_marker(files)
    state = _exported(uri) if uri is not None else _shipped(files, marker)
    if marker is not None and marker.store_id != state.header.store_id:
        raise InvalidInput(f"that is the catalog of store {state.header.store_id}; {files.place} is {marker.store_id}")
    if marker is not None and marker.catalog == "redis" and catalog is None and not leave_redis:
        raise InvalidInput(
            f"the catalog of {files.place} is in Redis: pass catalog='redis://host:port/db' to restore it there. To "
            "move it into the root's folder for good, close the store in every process and pass leave_redis=True"
        )
    _refuse_other_root(files, state)
    report = _report(state)
    _refuse_live_folder(place)
    if catalog is None:
        assert place.folder is not None
        _into_folder(place.folder, state, durability)
        made = Marker(state.header.store_id)
    else:
        made = _into_redis(place, files, marker, catalog, state, volatile=volatile)
    if made != marker:
        files.delete(MARKER)
        files.write(MARKER, made.to_bytes())
    for file in shipped_files(files, made.store_id):
        if file.generation != made.generation:
            files.delete(file.path)
    return report


def _refuse_other_root(files: Files, state: _State) -> None:
    """A catalog without its files is of no use: most likely the root was mistyped."""
    wanted = next((path for path in _paths(state)), None)
    if wanted is not None and not files.list(state.header.store_id):
        raise InvalidInput(
            f"{files.place} has no file of store {state.header.store_id}, whose catalog this is; name the root that "
            "its files lie in"
        )


def _paths(state: _State) -> Iterator[str]:
    """The segments of the log, and runs: what the records say must be there."""
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
    """Where no marker says which catalog counts: the one that was written down last."""
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
    """Every record is whole, and the store's own is among them."""
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


def _refuse_live_folder(place: Place) -> None:
    """CatalogInUse where the root has an embedded catalog with a store in it."""
    if place.folder is None or not (place.folder / CATALOG_FOLDER / LMDB_DATA).exists():
        return
    folder = place.folder / CATALOG_FOLDER
    try:
        opened = LmdbCatalog(folder, SystemClock())
    except CatalogLost:
        return  # an empty file
    try:
        if stored_record(opened) is not None:
            raise CatalogInUse(f"{folder} holds a catalog that is alive; take it away before another is made")
    finally:
        opened.close()


def _into_folder(folder: Path, state: _State, durability: str) -> None:
    opened = LmdbCatalog(folder / CATALOG_FOLDER, SystemClock(), durability=durability, create=True)

    def body(tx: Txn) -> None:
        if tx.get(STORE) is not None:
            raise CatalogInUse(f"another process has made the catalog in {folder} meanwhile")
        for key, value in state.records.items():
            tx.put(key, unpack(key, value))

    try:
        opened.transact(body)
    finally:
        opened.close()


def _into_redis(
    place: Place, files: Files, marker: Marker | None, url: str, state: _State, *, volatile: bool
) -> Marker:
    """Fill the server, then ship all of it as the first file of the new generation."""
    from .redis_catalog import claim_root, peek_catalog, refill_catalog
    from .redis_client import RedisServer
    from .redis_founding import root_name

    store_id = state.header.store_id
    server = RedisServer(url)
    try:
        if not volatile:
            server.check_durable()
        present = peek_catalog(server, store_id)
        if present is not None and _is_alive(files, marker, *present):
            raise CatalogInUse(f"{server.name} holds a catalog of store {store_id} that is alive; open it as it is")
        generation, version = uuid.uuid4().hex, max(state.header.version, 1)
        refill_catalog(server, store_id, generation, version, list(state.records.items()))
        name = root_name(place.root, place.folder)
        claim_root(server, name, store_id, claim_root(server, name))
        at_ms = server.time_ms()
    finally:
        server.close()
    header = Header(store_id, generation, 0, version, state.header.last_epoch, at_ms, len(state.records))
    path = ship_path(header.store_id, header.generation, header.since, header.version)
    files.write(path, encode_dump(header, sorted(state.records.items())))
    return Marker(store_id, "redis", generation)


def _is_alive(files: Files, marker: Marker | None, generation: str, version: int) -> bool:
    """Whether a catalog on the server is one that can be opened: the marker's, and not older than what was shipped."""
    if marker is None:
        return True
    if marker.generation != generation:
        return False  # what a cut-off restore has left, or an earlier restore
    shipped = [file.version for file in shipped_files(files, marker.store_id) if file.generation == generation]
    return version >= max(shipped, default=0)
