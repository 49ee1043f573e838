"""One look at the catalog for all who wait for news of tables: a thread that asks again and again while anybody does.

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

from ..errors import EpochlogError
from .backoff import Backoff
from .catalog import Catalog, View
from .clock import monotonic_s
from .definitions import Counters
from .records import HEAD

_log = logging.getLogger("epochlog")

BACKOFF = Backoff(first_s=0.005, limit_s=0.1)
"""Delays between two looks, counted from the last news."""


class Waiter(Protocol):
    """Who waits. Both calls come from the watching thread, and must not wait for anything themselves."""

    @property
    def watched(self) -> bytes:
        """The key of the record whose changes are news."""
        ...

    def news(self) -> None:
        """It has changed, or may have; or the catalog cannot be asked."""
        ...

    def check(self, now_s: float) -> None:
        """Called at every look, whatever there is; monotonic seconds."""
        ...


class AnyNews:
    """A waiter in the thread that made it, for whatever changes what readers may reach."""

    watched = HEAD

    def __init__(self) -> None:
        self._came = threading.Event()

    def news(self) -> None:
        self._came.set()

    def check(self, now_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        """Until there is news since the last call, or that time has passed."""
        self._came.wait(timeout_s)
        self._came.clear()


class Watch:
    """The waiters of one open store. Its thread lives while there are any."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._seen: dict[Waiter, Any] = {}
        self._arrivals = 0
        self._version = -1
        self._came = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, waiter: Waiter) -> None:
        """It gets `news` at least once from now on, whatever it has seen before."""
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._begin()
        with self._lock:
            self._seen[waiter] = _NOTHING
            self._arrivals, self._version = self._arrivals + 1, -1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-watch", daemon=True)
                self._thread.start()
        self._came.set()

    def remove(self, waiter: Waiter) -> None:
        with self._lock:
            self._seen.pop(waiter, None)
        self._came.set()

    @contextmanager
    def any_news(self) -> Iterator[AnyNews]:
        """Waits for news of anything, for the length of a `with` block; the first call returns soon in any case."""
        waiter = AnyNews()
        self.add(waiter)
        try:
            yield waiter
        finally:
            self.remove(waiter)

    def look(self) -> None:
        """Have a look now: this process has just written something."""
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

    def _look(self, waiters: list[Waiter], arrivals: int, version: int) -> list[Waiter]:
        """Whose record is another one than at the look before."""
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
