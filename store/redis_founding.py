"""Opening a store whose catalog is on a Redis server, or making one there.

Object stores cannot make a file only where there is none. So the catalog comes first: under the root's name the server
has the id of the store that it is to be, and whoever finds no marker takes that one.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import ForeignRoot
from .clock import Clock
from .definitions import StoreRecord
from .dump import newest_shipped
from .files import Files, make_private_dir
from .founding import Asked, found_record, is_used, known_record, refuse_stranger, write_marker
from .marker import Marker, read_marker, require_kind
from .paths import MARKER
from .redis_catalog import RedisCatalog, claim_root, found_catalog
from .redis_client import RedisServer


def open_in_redis(
    root: str,
    folder: Path | None,
    files: Files,
    url: str,
    marker: Marker | None,
    asked: Asked,
    clock: Clock | None,
    *,
    volatile: bool,
) -> tuple[RedisCatalog, StoreRecord]:
    """The catalog on a server, and the store's record; made where there is no marker.

    `folder`: the root, if it is a local one. Raises what `open_handle` raises.
    """
    server = RedisServer(url)
    try:
        if not volatile:
            server.check_durable()
        if marker is None:
            return _found(root, folder, files, server, asked, clock)
        return _opened(files, server, marker, clock)
    except BaseException:
        server.close()
        raise


def _opened(files: Files, server: RedisServer, marker: Marker, clock: Clock | None) -> tuple[RedisCatalog, StoreRecord]:
    """The catalog that the marker names, unless it is older than what was shipped from it."""
    require_kind(marker, "redis", files)
    catalog = RedisCatalog(server, marker.store_id, marker.generation or "", clock)
    catalog.expect_version(newest_shipped(files, marker.store_id, catalog.generation))
    return catalog, known_record(catalog, files, marker)


def root_name(root: str, folder: Path | None) -> str:
    """What a root is called when it is decided which store it is. A local folder is that of one machine."""
    if folder is not None:
        make_private_dir(folder)
        return f"{platform.node()}:{folder}:{os.stat(folder).st_ino}"
    parts = urlsplit(root)
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path.rstrip('/')}"


def _found(
    root: str, folder: Path | None, files: Files, server: RedisServer, asked: Asked, clock: Clock | None
) -> tuple[RedisCatalog, StoreRecord]:
    """Make the store of a root that has no marker, or go on where another has stopped."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ForeignRoot(f"{folder} is a file; choose a folder as root")
    before = [info.path for info in files.list()]
    name = root_name(root, folder)
    claimed = claim_root(server, name)
    strangers = [path for path in before if path != MARKER and not (claimed and path.startswith(f"{claimed}/"))]
    if strangers:
        written = read_marker(files)  # perhaps another process has made the store just now
        if written is not None:
            return _opened(files, server, written, clock)
        refuse_stranger(files.place, strangers[0])
    instead_of = ""
    while True:
        store_id = claim_root(server, name, uuid.uuid4().hex, instead_of)
        marker = Marker(store_id, "redis", found_catalog(server, store_id))
        catalog = RedisCatalog(server, store_id, marker.generation or "", clock)
        record = found_record(catalog, asked, store_id)
        written = read_marker(files)
        if written is not None:
            return _opened(files, server, written, clock)
        if not is_used(catalog) or files.list(store_id):
            write_marker(files, catalog, marker)
            return catalog, record
        instead_of = store_id  # that store has been used, and nothing of it is left here: the root was emptied since
