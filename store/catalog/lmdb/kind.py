"""Embedded kind of catalog: LMDB in a folder of the local root. Its own record has the store's id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from epochlog.errors import CatalogInUse, ForeignRoot, WriteFailed
from epochlog.store.catalog.keys import STORE
from epochlog.store.catalog.kind import DetectedCatalog, Refilled, Site
from epochlog.store.catalog.protocol import Txn
from epochlog.store.catalog.records import unpack
from epochlog.store.env.clock import SystemClock
from epochlog.store.env.paths import CATALOG_FOLDER, LMDB_DATA, LMDB_LOCK, MARKER

from .catalog import LmdbCatalog
from .reader import LmdbReader


class LmdbKind:
    """LMDB in the folder `catalog` of the root."""

    name = "lmdb"
    schemes: tuple[str, ...] = ()
    url = ""
    location = "in its own folder"
    reach = (
        "leave catalog out. (To move it, use export_catalog, move the catalog folder away, and call "
        "epochlog.restore_catalog with catalog=…)"
    )
    generations = False

    def connect(self, site: Site) -> LmdbSource:
        assert site.folder is not None  # `open` refuses other roots before
        return LmdbSource(site, site.folder)


class LmdbSource:
    """Place of an embedded catalog: a local root."""

    def __init__(self, site: Site, root: Path) -> None:
        self._site, self._root = site, root
        self._opened: LmdbCatalog | LmdbReader | None = None

    def open(self, store_id: str, generation: str | None) -> LmdbCatalog | LmdbReader:
        if not self._site.read_only:
            return self._open(create=False)
        self._opened = LmdbReader(self._root, self._root / CATALOG_FOLDER, self._site.clock or SystemClock())
        return self._opened

    def foreign_files(self) -> list[str]:
        """List the files that prevent the creation of a store. A store is created in a missing or empty folder, or in
        one with an interrupted creation.
        """
        with _as_write_failed(self._root):
            if self._root.exists() and not self._root.is_dir():
                raise ForeignRoot(f"{self._root} is a file; choose a folder as root")
            return _foreign_names(self._root)

    def create(self, replacing: str) -> DetectedCatalog:
        return DetectedCatalog(self._open(create=True))

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        def body(tx: Txn) -> None:
            if tx.get(STORE) is not None:
                raise CatalogInUse(f"another process has just created the catalog in {self._root}; open that one")
            for key, value in records:
                tx.put(key, unpack(key, value))

        self._open(create=True).transact(body)
        return None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _open(self, *, create: bool) -> LmdbCatalog:
        clock, folder = self._site.clock or SystemClock(), self._root / CATALOG_FOLDER
        with _as_write_failed(self._root):
            catalog = self._opened = LmdbCatalog(folder, clock, durability=self._site.durability, create=create)
        return catalog


@contextmanager
def _as_write_failed(root: Path) -> Iterator[None]:
    """Translate an OSError to WriteFailed."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(
            f"no store can be created in {root}: {error.strerror or error}; choose another root"
        ) from error


def _foreign_names(root: Path) -> list[str]:
    """List the entries of a root that no interrupted creation leaves: it makes catalog, then marker."""
    catalog, foreign = root / CATALOG_FOLDER, []
    if root.is_dir():
        foreign += sorted(entry.name for entry in root.iterdir() if entry.name not in (CATALOG_FOLDER, MARKER))
    if catalog.is_dir():
        own_names = (LMDB_DATA, LMDB_LOCK)
        foreign += sorted(
            f"{CATALOG_FOLDER}/{entry.name}" for entry in catalog.iterdir() if entry.name not in own_names
        )
    elif catalog.exists() or (root / MARKER).exists():
        foreign.append(CATALOG_FOLDER)
    return foreign
