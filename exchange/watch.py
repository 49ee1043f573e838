"""One look at the catalog for all who wait for news of tables: a thread that asks again and again while anybody does.

The catalog has no way to call back. One record tells whether anything at all has changed, so that asking for fifty
readers costs what asking for one does.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

from ..errors import EpochlogError
from ..store.catalog import View
from ..store.clock import monotonic_s
from ..store.definitions import Counters
from ..store.handle import Handle

_log = logging.getLogger("epochlog")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.005, 0.1
"""Between two looks: the shorter after news, then twice as long each time."""


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


class Watch:
    """The waiters of one open store. Its thread lives while there are any."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._seen: dict[bytes, Any] = {}
        self._version = -1
        self._came = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, waiter: Waiter) -> None:
        """It gets `news` at least once from now on, whatever it has seen before."""
        with self._lock:
            self._waiters.add(waiter)
            self._seen.pop(waiter.watched, None)
            self._version = -1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-watch", daemon=True)
                self._thread.start()
        self._came.set()

    def remove(self, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.discard(waiter)
        self._came.set()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            with self._lock:
                waiters = list(self._waiters)
                if not waiters:
                    self._thread = None
                    self._seen.clear()
                    return
                version = self._version
            try:
                found = self._look(waiters, version)
            except EpochlogError as error:  # each waiter asks by itself, and is told
                _log.warning("the catalog cannot be asked for news: %s", error)
                found, wait_s = waiters, LONGEST_WAIT_S
            for waiter in found:
                waiter.news()
            now_s = monotonic_s()
            for waiter in waiters:
                waiter.check(now_s)
            self._came.wait(wait_s)
            self._came.clear()
            wait_s = FIRST_WAIT_S if found else min(2 * wait_s, LONGEST_WAIT_S)

    def _look(self, waiters: list[Waiter], version: int) -> list[Waiter]:
        """Whose record is another one than at the look before."""
        keys = {waiter.watched for waiter in waiters}

        def body(view: View) -> tuple[int, dict[bytes, Any]]:
            now = Counters.read(view).version
            return now, {} if now == version else {key: view.get(key) for key in keys}

        now, records = self._handle.catalog.read(body)
        if not records:
            return []
        with self._lock:
            nothing = object()
            changed = {key for key, record in records.items() if self._seen.get(key, nothing) != record}
            if self._version == version:  # else somebody came meanwhile, who is to be told at the next look
                self._version = now
                self._seen.update(records)
        return [waiter for waiter in waiters if waiter.watched in changed]
