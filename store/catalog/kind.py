"""Protocol of a kind of catalog: the calls that open, create and refill the catalog of a store (registry.py lists all).

A root becomes a store once, also with concurrent creators. Either the catalog lies in the root and its own record has
the store's id, or the catalog has the store's id under the name of the root: `CatalogSource.create`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from epochlog.store.env.files import FileInfo, Files
from epochlog.store.env.local_folder import make_private_dir
from epochlog.store.env.paths import MARKER

from .protocol import Catalog


@dataclass(frozen=True, slots=True)
class Site:
    """Root of a store with the options of the call that opens it."""

    root: str = field(repr=False)  # may contain a password, as may `url`; `files.place` does not
    folder: Path | None
    """Root, if it is local."""
    files: Files
    url: str | None = field(repr=False)
    """URL of the catalog; None for the embedded one."""
    clock: Callable[[], int] | None = None
    """Replaces the catalog's own clock."""
    durability: str = "disk"
    volatile: bool = False
    """Accept a server that may lose acknowledged commits."""
    read_only: bool = False
    """Write nothing."""


@dataclass(frozen=True, slots=True)
class DetectedCatalog:
    """Catalog that was created, or whose creation was completed."""

    catalog: Catalog
    store_id: str | None = None
    """Id of the root's store; None if the catalog's own record decides."""
    generation: str | None = None
    """Id of this creation of the catalog, for the marker; None for a kind without generations."""


@dataclass(frozen=True, slots=True)
class Refilled:
    """Generation, version and clock (Unix ms) of a catalog after a refill."""

    generation: str
    version: int
    at_ms: int


class CatalogSource(Protocol):
    """Connection to the place of one site's catalog, which may not exist yet. Each call raises typed errors."""

    def open(self, store_id: str, generation: str | None) -> Catalog:
        """Open the catalog that a marker names; CatalogLost if it is missing. Closing it closes the source too."""
        ...

    def foreign_files(self) -> Sequence[str]:
        """List the files of a root without a marker that are not from an interrupted creation of a store."""
        ...

    def create(self, replacing: str) -> DetectedCatalog:
        """Create the catalog of a root without a marker, or complete an interrupted creation.

        replacing: the id of an earlier store of the root whose files are gone: the root gets a new id. "" at first.
        """
        ...

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        """Replace all records of the catalog by packed ones. Return None for a kind without generations.

        Raises CatalogInUse if `is_alive` returns True for the catalog's generation and version.
        """
        ...

    def close(self) -> None: ...


class CatalogKind(Protocol):
    """Kind of catalog. `name` stands in markers; `schemes` are those of its URLs, none for the embedded kind.

    For messages: `location` of the catalog, shape of its `url`, and how to `reach` a store with this kind.
    """

    name: str
    schemes: tuple[str, ...]
    url: str
    location: str
    reach: str
    generations: bool

    def connect(self, site: Site) -> CatalogSource:
        """Connect to the place of a site's catalog, without creating one."""
        ...


def root_name(site: Site) -> str:
    """Return the name of a root for a catalog outside of it. The name of a local folder includes the machine."""
    if site.folder is not None:
        make_private_dir(site.folder)
        return f"{platform.node()}:{site.folder}:{os.stat(site.folder).st_ino}"
    parts = urlsplit(site.root)
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path.rstrip('/')}"


def foreign_files_among(files: Sequence[FileInfo], store_id: str) -> list[str]:
    """List the files of a root outside of this store ("": no store yet) and outside of its creation."""
    folder = f"{store_id}/" if store_id else None
    return [info.path for info in files if info.path != MARKER and not (folder and info.path.startswith(folder))]
