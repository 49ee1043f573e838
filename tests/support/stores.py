"""Stores that tests open: placed as this run requires, recorded, and verified after the test.

EPOCHLOG_TEST_STORE says where a store goes that a test opens at a plain path: "lmdb" (there), "redis" (its catalog in
Redis) or "s3" (its files on S3, its catalog in Redis). Tests marked `local_only` are not run again there.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochlog.errors import EpochlogError
from epochlog.store.session import handle as handles
from epochlog.store.session.handle import Handle
from epochlog.store.verify.verify import verify_store
from redis_server import RedisProcess
from s3_server import S3Server

STORES = ("lmdb", "redis", "s3")
STORE = os.environ.get("EPOCHLOG_TEST_STORE", "lmdb")
assert STORE in STORES, f"EPOCHLOG_TEST_STORE must be one of {STORES}, not {STORE!r}"

real_open = handles.open_handle


class Servers:
    """The servers of this test process; each is started when it is first asked for, and ended by `stop`."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._redis: RedisProcess | None = None
        self._s3: S3Server | None = None
        self._bucket = ""
        self.addresses: set[str] = set()

    @property
    def redis(self) -> RedisProcess:
        if self._redis is None:
            self._folder = tempfile.TemporaryDirectory(prefix="epochlog-redis-")
            self._redis = RedisProcess(Path(self._folder.name))
        return self._redis

    @property
    def s3(self) -> S3Server:
        if self._s3 is None:
            self._s3 = S3Server()
            self._bucket = self._s3.new_bucket()
        return self._s3

    def uri(self, path: str) -> str:
        """An address on S3, the same for the same path."""
        server = self.s3
        address = server.uri(f"{self._bucket}/{hashlib.sha256(path.encode()).hexdigest()[:32]}")
        self.addresses.add(address)
        return address

    def stop(self) -> None:
        for server in (self._redis, self._s3):
            if server is not None:
                server.stop()
        if self._folder is not None:
            self._folder.cleanup()


servers = Servers()


@dataclass(frozen=True)
class Noted:
    """Arguments of the last `el.open` of a store."""

    root: str
    catalog: str | None
    durability: str
    clock: Callable[[], int] | None


class Watch:
    """Stands between all of the library and `open_handle`, and remembers what was opened since the last `forget`."""

    def __init__(self) -> None:
        self._noted: dict[str, Noted] = {}
        self._opened: list[weakref.ref[Handle]] = []

    def open(self, root: Any, catalog: Any = None, **options: Any) -> Handle:
        root, catalog = moved(root, catalog)
        handle = real_open(root, catalog, **options)
        self._noted[handle.root] = Noted(str(root), catalog, handle.durability, options.get("clock"))
        self._opened.append(weakref.ref(handle))
        return handle

    def forget(self) -> None:
        self._noted.clear()
        self._opened.clear()

    def close(self) -> None:
        """Close what is open yet: nobody renews leases of a store whose test is over."""
        for reference in self._opened:
            handle = reference()
            if handle is not None:
                with suppress(EpochlogError):
                    handle.close()

    def damage(self) -> dict[str, str]:
        """Map each existing store's root to its problems; empty when all are whole."""
        problems = {root: wrong_with(noted) for root, noted in self._noted.items()}
        return {root: wrong for root, wrong in problems.items() if wrong}


def moved(root: Any, catalog: Any) -> tuple[Any, Any]:
    """Return the root and catalog of this run for a store that a test opens at a plain path; others stay unchanged."""
    if STORE == "lmdb" or catalog is not None or not isinstance(root, str | os.PathLike) or not os.fspath(root):
        return root, catalog
    if "://" in os.fspath(root):  # a store's own root, perhaps
        return root, servers.redis.url() if root in servers.addresses else None
    return (servers.uri(os.path.abspath(root)) if STORE == "s3" else root), servers.redis.url()


def wrong_with(noted: Noted) -> str:
    """List verify's problems of a store, a line each; empty when the store is whole or gone."""
    if "://" not in noted.root and not Path(noted.root).exists():
        return ""
    try:
        handle = real_open(
            noted.root, noted.catalog, create=False, durability=noted.durability, clock=_frozen(noted.clock)
        )
    except EpochlogError as error:
        return f"it cannot be opened: {error!r}"
    try:
        return "\n".join(f"{problem.where}: {problem.what}" for problem in verify_store(handle).problems)
    finally:
        handle.close()


def _frozen(clock: Callable[[], int] | None) -> Callable[[], int] | None:
    """The test's clock, as it stands at its end."""
    if clock is None:
        return None
    now = clock()
    return lambda: now


watch = Watch()
# Modules take the function by name when they are imported, and this one is imported before them.
handles.open_handle = watch.open
