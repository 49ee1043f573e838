"""The shared kind of catalog: a Redis server, which has the id of the store that a root is to be under the root's name.

Object stores cannot make a file only where there is none. So the catalog comes first, and a process that finds no
marker takes the id that the server has.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochlog.errors import CatalogInUse, ForeignRoot
from epochlog.store.catalog.export_format import newest_shipped
from epochlog.store.catalog.kind import FoundCatalog, Refilled, Site, root_name, strangers_among

if TYPE_CHECKING:  # the package redis is loaded when a server is called
    from .catalog import RedisCatalog


class RedisKind:
    """Redis, on any number of hosts."""

    name = "redis"
    schemes: tuple[str, ...] = ("redis", "rediss", "unix")
    url = "redis://[user:password@]host:port/db, rediss://… for TLS, or unix://path"
    where = "in Redis"
    reach = "pass catalog='redis://host:port/db' to open it"
    generations = True

    def connect(self, site: Site) -> RedisSource:
        return RedisSource(site)


class RedisSource:
    """One server, for one site."""

    def __init__(self, site: Site) -> None:
        from .client import RedisServer

        self._site = site
        self._server = RedisServer(site.url or "")
        try:
            if not site.volatile:
                self._server.check_durable()
        except BaseException:
            self._server.close()
            raise

    def open(self, store_id: str, generation: str | None) -> RedisCatalog:
        """Open the catalog, unless it is older than what was shipped from it."""
        catalog = self._catalog(store_id, generation)
        catalog.expect_version(newest_shipped(self._site.files, store_id, catalog.generation))
        return catalog

    def strangers(self) -> list[str]:
        from .catalog import claim_root

        folder = self._site.folder
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ForeignRoot(f"{folder} is a file; choose a folder as root")
        before = self._site.files.list()
        return strangers_among(before, claim_root(self._server, root_name(self._site)))

    def found(self, instead_of: str) -> FoundCatalog:
        from .catalog import claim_root, found_catalog

        store_id = claim_root(self._server, root_name(self._site), uuid.uuid4().hex, instead_of)
        generation = found_catalog(self._server, store_id)
        return FoundCatalog(self._catalog(store_id, generation), store_id, generation)

    def refill(
        self, store_id: str, version: int, records: Sequence[tuple[bytes, bytes]], is_alive: Callable[[str, int], bool]
    ) -> Refilled | None:
        from .catalog import claim_root, peek_catalog, refill_catalog

        server = self._server
        present = peek_catalog(server, store_id)
        if present is not None and is_alive(*present):
            raise CatalogInUse(f"{server.name} holds a catalog of store {store_id} that is alive; open it as it is")
        generation, version = uuid.uuid4().hex, max(version, 1)
        refill_catalog(server, store_id, generation, version, records)
        name = root_name(self._site)
        claim_root(server, name, store_id, claim_root(server, name))
        return Refilled(generation, version, server.time_ms())

    def close(self) -> None:
        self._server.close()

    def _catalog(self, store_id: str, generation: str | None) -> RedisCatalog:
        from .catalog import RedisCatalog

        return RedisCatalog(self._server, store_id, generation or "", self._site.clock)
