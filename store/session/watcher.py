"""Catalog watcher: one thread that polls the catalog for all listeners of an open store, as long as there are any.

The catalog has no way to call back. One record tells whether anything at all has changed, so that asking for fifty
readers costs what asking for one does. What this process itself commits through the same open store is told at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import HEAD
from epochlog.store.catalog.protocol import Catalog, View
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import Counters

_log = logging.getLogger("epochlog")

BACKOFF = Backoff(first_s=0.005, limit_s=0.1)
"""Delays between two looks, counted from the last news."""


class Listener(Protocol):
    """Listener for changes of one catalog record. The watching thread makes all calls; none of them may block."""

    @property
    def watched(self) -> bytes:
        """Return the key of the record to watch."""
        ...

    def news(self) -> None:
        """Handle a change of the record, or a possible one: the catalog may be unreachable."""
        ...

    def check(self, now_s: float) -> None:
        """Handle a look, with news or without, at `now_s` (monotonic seconds)."""
        ...


class AnyNews:
    """Listener for any change of the data that readers may reach; its own thread waits for it."""

    watched = HEAD

    def __init__(self) -> None:
        self._came = threading.Event()

    def news(self) -> None:
        self._came.set()

    def check(self, now_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        """Wait for news since the last call, at most `timeout_s`."""
        self._came.wait(timeout_s)
        self._came.clear()


class CatalogWatcher:
    """Watcher of the catalog for the listeners of one open store. Its thread lives while there are any."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._begin()

    def _begin(self) -> None:
        """Create the state that belongs to one process: lock, listeners and thread."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._seen: dict[Listener, Any] = {}
        self._arrivals = 0
        self._version = -1
        self._came = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, waiter: Listener) -> None:
        """Add a listener; it gets `news` at least once from now on."""
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._begin()
        with self._lock:
            self._seen[waiter] = _NOTHING
            self._arrivals, self._version = self._arrivals + 1, -1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-watch", daemon=True)
                self._thread.start()
        self._came.set()

    def remove(self, waiter: Listener) -> None:
        with self._lock:
            self._seen.pop(waiter, None)
        self._came.set()

    @contextmanager
    def any_news(self) -> Iterator[AnyNews]:
        """Listen for any news within a `with` block; the first wait returns soon in any case."""
        waiter = AnyNews()
        self.add(waiter)
        try:
            yield waiter
        finally:
            self.remove(waiter)

    def look(self) -> None:
        """Look at the catalog now: this process has just written to it."""
        if self._seen:
            self._came.set()

    def _run(self) -> None:
        looks = 1
        while True:
            wait_s = BACKOFF.delay_s(looks)
            with self._lock:
                waiters = list(self._seen)
                if not waiters:
                    self._thread = None
                    return
                arrivals, version = self._arrivals, self._version
            try:
                found = self._look(waiters, arrivals, version)
            except EpochlogError as error:  # each waiter asks by itself, and is told
                _log.warning("the catalog cannot be asked for news: %s", error)
                found, wait_s = waiters, BACKOFF.limit_s
            for waiter in found:
                waiter.news()
            now_s = monotonic_s()
            for waiter in waiters:
                waiter.check(now_s)
            self._came.wait(wait_s)
            self._came.clear()
            looks = 1 if found else looks + 1

    def _look(self, waiters: list[Listener], arrivals: int, version: int) -> list[Listener]:
        """Return the listeners whose records differ from those of the look before."""
        keys = {waiter.watched for waiter in waiters}

        def body(view: View) -> tuple[int, dict[bytes, Any]]:
            now = Counters.read(view).version
            return now, {} if now == version else {key: view.get(key) for key in keys}

        now, records = self._catalog.read(body)
        if not records:
            return []
        with self._lock:
            told = [one for one in waiters if one in self._seen and self._seen[one] != records[one.watched]]
            self._seen.update({one: records[one.watched] for one in told})
            if self._arrivals == arrivals:  # else somebody came meanwhile, who is to be told at the next look
                self._version = now
        return told


_NOTHING = object()
"""What a waiter has seen before its first look."""
