"""Incremental backups of a Redis catalog in the root, each with the changes since the one before it, and exports of a
whole catalog.

If the server loses the catalog, the backups restore the store up to the last one. An embedded catalog lies in the root
and has no backups.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epochlog.errors import CatalogLost, Corrupt, InvalidInput
from epochlog.store.catalog.export_format import Header, Shipped, decode_dump, encode_dump, shipped_files
from epochlog.store.catalog.keys import HEAD
from epochlog.store.catalog.protocol import ChangeTracking, ReadTxn, RecordChanges
from epochlog.store.catalog.records import pack, unpack
from epochlog.store.env.files import Files
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.log_events import BACKUP_DAMAGED
from epochlog.store.env.paths import ship_path
from epochlog.store.env.redact import redact_url
from epochlog.store.metadata.definitions import Counters
from epochlog.store.session.marker import read_marker

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

MOST_DELTAS = 500
SMALL_BYTES = 1 << 20
"""Deltas together may be as large as the base, or this large; then a new base replaces them."""


def ship(handle: Handle) -> Shipped | None:
    """Append the catalog's changes since the last backup to the root, as one file; None if there are none.

    Processes may do this concurrently: their files overlap and agree.
    """
    catalog = handle.catalog
    if not isinstance(catalog, ChangeTracking):
        return None
    marker = read_marker(handle.files)
    if marker is None or (marker.store_id, marker.generation) != (handle.store_id, catalog.generation):
        raise CatalogLost(f"the store at {handle.files.place} has a new catalog since it was opened; open it again")
    present = shipped_files(handle.files, handle.store_id)
    chain = _intact_chain(handle, chain_of([file for file in present if file.generation == catalog.generation]))
    since = 0 if not chain or _needs_new_base(chain) else chain[-1].version
    if chain and chain[-1].version == catalog.version():
        return None
    before = catalog.read(lambda view: Counters.read(view).last_epoch)
    changes = catalog.changes_since(since, without_deletions=since == 0)
    if changes is None:  # the catalog has forgotten some of the deletes since that version
        since, changes = 0, catalog.changes_since(0, without_deletions=True)
    assert changes is not None
    backup = _write(handle, catalog, since, changes, before)
    if since == 0:
        for file in present:
            if file.path != backup.path and (file.version <= backup.version or file.generation != backup.generation):
                handle.files.delete(file.path)
                handle.intact_backups.discard(file.path)
    catalog.forget_deleted(backup.version)
    return backup


def chain_of(files: list[Shipped]) -> list[Shipped]:
    """Return the newest base and the deltas that follow it, for files of one generation."""
    bases = [file for file in files if file.since == 0]
    if not bases:
        return []
    chain = [max(bases, key=lambda file: file.version)]
    while True:
        version = chain[-1].version
        deltas = [file for file in files if 0 < file.since <= version < file.version]
        if not deltas:
            return chain
        chain.append(max(deltas, key=lambda file: file.version))


def _intact_chain(handle: Handle, chain: list[Shipped]) -> list[Shipped]:
    """Return the chain if all its files are complete, else []. A crash during a write leaves half a file. Each file is
    read once.
    """
    for file in chain:
        if file.path not in handle.intact_backups:
            try:
                _, records = decode_dump(file.path, bytes(handle.files.read(file.path)))
                for _ in records:
                    pass
            except (Corrupt, FileNotFoundError) as error:
                handle.log(BACKUP_DAMAGED, error=error)
                return []
            handle.intact_backups.add(file.path)
    return chain


def _needs_new_base(chain: list[Shipped]) -> bool:
    deltas = chain[1:]
    return len(deltas) >= MOST_DELTAS or sum(file.bytes for file in deltas) > max(chain[0].bytes, SMALL_BYTES)


def _write(handle: Handle, catalog: ChangeTracking, since: int, changes: RecordChanges, last_epoch: int) -> Shipped:
    head = changes.records.get(HEAD)
    header = Header(
        store_id=handle.store_id,
        generation=catalog.generation,
        since=since,
        version=changes.version,
        last_epoch=Counters(**unpack(HEAD, head)).last_epoch if head else last_epoch,
        at_ms=catalog.now_ms(),
        count=len(changes.records),
    )
    path = ship_path(header.store_id, header.generation, header.since, header.version)
    data = encode_dump(header, sorted(changes.records.items()))
    with suppress(FileExistsError):  # another process has written it; the next call checks that it is complete
        handle.files.write(path, data)
        handle.intact_backups.add(path)
    return Shipped(path, len(data), header.generation, since, header.version)


# ---- exports -----------------------------------------------------------------------------------------------------


def export_catalog(handle: Handle, uri: str | Path) -> Header:
    """Write all of the catalog, as of one version, to a new file; return the header of the file."""
    catalog = handle.catalog
    if not isinstance(catalog, ChangeTracking):
        version, records = catalog.read(_read_all_records)
        generation = ""
    else:
        changes = catalog.changes_since(0, without_deletions=True)
        assert changes is not None
        version, records, generation = changes.version, changes.records, catalog.generation
    head = records.get(HEAD)
    last_epoch = Counters(**unpack(HEAD, head)).last_epoch if head else 0
    header = Header(handle.store_id, generation, 0, version, last_epoch, handle.catalog.now_ms(), len(records))
    files, name = file_at(uri, handle.durability)
    try:
        files.write(name, encode_dump(header, sorted(records.items())))
    except FileExistsError as error:
        raise InvalidInput(
            f"{redact_url(os.fspath(uri))} exists already; choose another name for the export"
        ) from error
    return header


def _read_all_records(view: ReadTxn) -> tuple[int, dict[bytes, bytes | None]]:
    records: dict[bytes, bytes | None] = {key: pack(key, record) for key, record in view.scan(b"", b"\xff")}
    return Counters.read(view).version, records


def file_at(uri: str | Path, durability: str = "disk") -> tuple[Files, str]:
    """Resolve a file by its path or URI: return its folder and its name there."""
    if not isinstance(uri, str | os.PathLike) or not os.fspath(uri):
        raise InvalidInput(f"uri must be the path or URI of a file, not {uri!r}")
    text = os.fspath(uri)
    if "://" not in text:
        path = Path(text).expanduser().absolute()
        return open_files(path.parent, durability), path.name
    path_part, question, query = text.partition("?")
    folder, _, name = path_part.rpartition("/")
    if not name or folder.endswith("/"):
        raise InvalidInput(f"{redact_url(text)} has no file name; pass the path or URI of a file")
    return open_files(f"{folder}{question}{query}", durability), name
