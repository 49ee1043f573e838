"""Catalogs of both kinds for tests: made, opened again as another process would, and named for a child process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.catalog.protocol import Catalog
from epochlog.store.catalog.redis.catalog import RedisCatalog, create_catalog
from epochlog.store.catalog.redis.client import RedisServer as Client
from epochlog.store.env.clock import Clock, SystemClock
from redis_server import RedisProcess
from stores import watch

KINDS = ("lmdb", pytest.param("redis", marks=pytest.mark.redis))


class Maker(Protocol):
    """One catalog that can be opened any number of times; all are closed with the stack."""

    def open(self, clock: Clock | None = None) -> Catalog: ...


class LmdbMaker:
    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder

    def open(self, clock: Clock | None = None) -> LmdbCatalog:
        catalog = LmdbCatalog(self._folder, clock or SystemClock(), durability="os", create=True)
        self._stack.callback(catalog.close)
        return catalog


class RedisMaker:
    def __init__(self, stack: ExitStack, server: RedisProcess) -> None:
        self._stack, self.server, self.store_id = stack, server, uuid4().hex

    def open(self, clock: Clock | None = None, url: str | None = None) -> RedisCatalog:
        client = Client(url or self.server.url())
        self._stack.callback(client.close)
        return RedisCatalog(client, self.store_id, create_catalog(client, self.store_id), clock)

    def key(self, name: str) -> str:
        return f"epochlog:{{{self.store_id}}}:{name}"


def server_of(folder: Path, *extra: str) -> Iterator[RedisProcess]:
    """A server for the length of a test. The stores that the test opened are verified while the server still lives."""
    server = RedisProcess(folder, extra)
    try:
        yield server
        check_stores()
    finally:
        server.stop()


def empty(server: RedisProcess) -> None:
    """Kill it and start it again without its data."""
    server.kill()
    server.lose_data()
    server.start()


def check_stores() -> None:
    damage = watch.damage()
    watch.forget()
    assert not damage, damage
