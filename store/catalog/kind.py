"""Protocol of a kind of catalog: the calls that open, make and refill the catalog of a store (registry.py lists all).

A root becomes a store once, whoever makes it. Either the catalog lies in the root and its own record says which store
it is, or the catalog keeps, under the root's name, the id of the store that the root is to be: `CatalogSource.found`.
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
    """The root of a store and the options of the call that opens it.

    `folder`: the root, if it is a local one. `url` is None for the embedded catalog. `clock`: one that replaces the
    catalog's own. `volatile`: a server that may forget what it has acknowledged is taken too.
    """

    root: str = field(repr=False)  # may hold a password, as `url`; `files.place` does not
    folder: Path | None
    files: Files
    url: str | None = field(repr=False)
    clock: Callable[[], int] | None = None
    durability: str = "disk"
    volatile: bool = False


@dataclass(frozen=True, slots=True)
class FoundCatalog:
    """A catalog that was made, or met half made. `store_id`: the store that it is to be, None if its record decides.

    `generation`: which making of the catalog this is, for the marker; None for a kind that counts none.
    """

    catalog: Catalog
    store_id: str | None = None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class Refilled:
    """The generation of a catalog that was filled with records, its version, and the time there."""

    generation: str
    version: int
    at_ms: int


class CatalogSource(Protocol):
    """A connection to the place where the catalog of one site is, or is to be. Each call raises typed errors."""

    def open(self, store_id: str, generation: str | None) -> Catalog:
        """Open the catalog that a marker names; CatalogLost where it is gone. Closing it closes the source too."""
        ...

    def strangers(self) -> Sequence[str]:
        """List what lies in a root without a marker and is no trace of a creation that was cut off."""
        ...

    def found(self, instead_of: str) -> FoundCatalog:
        """Make the catalog of a root without a marker, or go on with the one that was begun there.

        instead_of: the id of a store that the root is not to be, for its files are gone; "" at first.
        """
        ...

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        """Put packed records in the place of all that the catalog has; CatalogInUse where `is_alive` of its generation
        and version. None for a kind that counts no generations.
        """
        ...

    def close(self) -> None: ...


class CatalogKind(Protocol):
    """One kind of catalog. `name` is the marker's; `schemes` are those of its URLs, none for the embedded one.

    Messages say `where` the catalog is, which `url` to pass, and how to `reach` a store that has one.
    """

    name: str
    schemes: tuple[str, ...]
    url: str
    where: str
    reach: str
    generations: bool

    def connect(self, site: Site) -> CatalogSource:
        """Reach the place of a site's catalog; nothing is made yet."""
        ...


def root_name(site: Site) -> str:
    """Name a root for a catalog elsewhere that decides which store it is. A local folder is that of one machine."""
    if site.folder is not None:
        make_private_dir(site.folder)
        return f"{platform.node()}:{site.folder}:{os.stat(site.folder).st_ino}"
    parts = urlsplit(site.root)
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path.rstrip('/')}"


def strangers_among(files: Sequence[FileInfo], store_id: str) -> list[str]:
    """List the files of a root that belong neither to this store ("": to none) nor to its creation."""
    own = f"{store_id}/" if store_id else None
    return [info.path for info in files if info.path != MARKER and not (own and info.path.startswith(own))]
