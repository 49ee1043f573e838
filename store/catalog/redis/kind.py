"""Shared kind of catalog: a Redis server, which keeps the store's id under the name of the root.

Some object stores cannot create a file atomically if it does not exist. So the catalog is created before the marker,
and a process that finds no marker uses the store id of the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochlog.errors import CatalogInUse, ForeignRoot
from epochlog.store.catalog.export_format import newest_shipped
from epochlog.store.catalog.kind import DetectedCatalog, Refilled, Site, foreign_files_among, root_name

if TYPE_CHECKING:  # the package redis is loaded when a server is called
    from .catalog import RedisCatalog


class RedisKind:
    """Redis server, for processes on any number of hosts."""

    name = "redis"
    schemes: tuple[str, ...] = ("redis", "rediss", "unix")
    url = "redis://[user:password@]host:port/db, rediss://… for TLS, or unix://path"
    location = "in Redis"
    reach = "pass catalog='redis://host:port/db' to open it"
    generations = True

    def connect(self, site: Site) -> RedisSource:
        return RedisSource(site)


class RedisSource:
    """Connection to one server, for one site."""

    def __init__(self, site: Site) -> None:
        from .client import RedisServer

        self._site = site
        self._server = RedisServer(site.url or "")
        try:
            if not (site.volatile or site.read_only):
                self._server.check_durable()
        except BaseException:
            self._server.close()
            raise

    def open(self, store_id: str, generation: str | None) -> RedisCatalog:
        """Open the catalog. Its calls raise CatalogRolledBack if it is older than its own backup in the root."""
        catalog = self._catalog(store_id, generation)
        catalog.expect_version(newest_shipped(self._site.files, store_id, catalog.generation))
        return catalog

    def foreign_files(self) -> list[str]:
        from .catalog import claim_root

        folder = self._site.folder
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ForeignRoot(f"{folder} is a file; choose a folder as root")
        before = self._site.files.list()
        return foreign_files_among(before, claim_root(self._server, root_name(self._site)))

    def create(self, replacing: str) -> DetectedCatalog:
        from .catalog import claim_root, create_catalog

        store_id = claim_root(self._server, root_name(self._site), uuid.uuid4().hex, replacing)
        generation = create_catalog(self._server, store_id)
        return DetectedCatalog(self._catalog(store_id, generation), store_id, generation)

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        from .catalog import claim_root, peek_catalog, refill_catalog

        server = self._server
        present = peek_catalog(server, store_id)
        if present is not None and is_alive(*present):
            raise CatalogInUse(
                f"{server.name} has a live catalog of store {store_id}; open that one, no restore is needed"
            )
        generation, version = uuid.uuid4().hex, max(version, 1)
        refill_catalog(server, store_id, generation, version, records)
        name = root_name(self._site)
        claim_root(server, name, store_id, claim_root(server, name))
        return Refilled(generation, version, server.time_ms())

    def close(self) -> None:
        self._server.close()

    def _catalog(self, store_id: str, generation: str | None) -> RedisCatalog:
        from .catalog import RedisCatalog

        reads_only = self._site.files.place if self._site.read_only else None
        return RedisCatalog(self._server, store_id, generation or "", self._site.clock, reads_only)
