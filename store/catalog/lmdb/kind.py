"""The embedded kind of catalog: LMDB in a folder of the local root, which its own record names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from epochlog.errors import CatalogInUse, ForeignRoot, WriteFailed
from epochlog.store.catalog.keys import STORE
from epochlog.store.catalog.kind import FoundCatalog, Refilled, Site
from epochlog.store.catalog.protocol import Txn
from epochlog.store.catalog.records import unpack
from epochlog.store.env.clock import SystemClock
from epochlog.store.env.paths import CATALOG_FOLDER, LMDB_DATA, LMDB_LOCK, MARKER

from .catalog import LmdbCatalog


class LmdbKind:
    """LMDB in the folder `catalog` of the root."""

    name = "lmdb"
    schemes: tuple[str, ...] = ()
    url = ""
    where = "in its own folder"
    reach = (
        "leave catalog out. (To move it, export_catalog it, take the catalog folder away, and use "
        "epochlog.restore_catalog with catalog=…)"
    )
    generations = False

    def connect(self, site: Site) -> LmdbSource:
        assert site.folder is not None  # other roots are refused before files are opened
        return LmdbSource(site, site.folder)


class LmdbSource:
    """The place of an embedded catalog: a local root."""

    def __init__(self, site: Site, root: Path) -> None:
        self._site, self._root = site, root
        self._opened: LmdbCatalog | None = None

    def open(self, store_id: str, generation: str | None) -> LmdbCatalog:
        return self._open(create=False)

    def strangers(self) -> list[str]:
        """List the files that forbid to make a store: only an absent or empty folder, or one whose creation was cut
        off, becomes one.
        """
        with _refusals(self._root):
            if self._root.exists() and not self._root.is_dir():
                raise ForeignRoot(f"{self._root} is a file; choose a folder as root")
            return _strangers(self._root)

    def found(self, instead_of: str) -> FoundCatalog:
        return FoundCatalog(self._open(create=True))

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        def body(tx: Txn) -> None:
            if tx.get(STORE) is not None:
                raise CatalogInUse(f"another process has made the catalog in {self._root} meanwhile")
            for key, value in records:
                tx.put(key, unpack(key, value))

        self._open(create=True).transact(body)
        return None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _open(self, *, create: bool) -> LmdbCatalog:
        clock, folder = self._site.clock or SystemClock(), self._root / CATALOG_FOLDER
        with _refusals(self._root):
            self._opened = LmdbCatalog(folder, clock, durability=self._site.durability, create=create)
        return self._opened


@contextmanager
def _refusals(root: Path) -> Iterator[None]:
    """Turn what the machine refuses into WriteFailed."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(f"{root} cannot be made a store: {error.strerror or error}; choose another root") from error


def _strangers(root: Path) -> list[str]:
    """List what lies in a folder beside the things that a creation makes, in their order."""
    catalog, found = root / CATALOG_FOLDER, []
    if root.is_dir():
        found += sorted(entry.name for entry in root.iterdir() if entry.name not in (CATALOG_FOLDER, MARKER))
    if catalog.is_dir():
        made = (LMDB_DATA, LMDB_LOCK)
        found += sorted(f"{CATALOG_FOLDER}/{entry.name}" for entry in catalog.iterdir() if entry.name not in made)
    elif catalog.exists() or (root / MARKER).exists():
        found.append(CATALOG_FOLDER)
    return found
