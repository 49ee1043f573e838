"""Catalog watcher: one thread that polls the catalog for all listeners of an open store, while there are any.

A catalog cannot call back. One record has the version of all data, so a poll for fifty listeners costs as much as for
one. A commit through this open store wakes the thread at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import HEAD
from epochlog.store.catalog.protocol import Catalog, ReadTxn
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import RETRY
from epochlog.store.metadata.definitions import Counters

BACKOFF = Backoff(first_s=0.005, limit_s=0.1)
"""Delays between two polls, counted from the last change."""


class Listener(Protocol):
    """Listener for changes of one catalog record. The watcher's thread makes all calls; none of them may block."""

    @property
    def watched_key(self) -> bytes:
        """Return the key of the record to watch."""
        ...

    def on_change(self) -> None:
        """Handle a change of the record, or a possible change: the catalog may be unreachable."""
        ...

    def on_poll(self, now_s: float) -> None:
        """Handle a poll, with or without a change, at `now_s` (monotonic seconds)."""
        ...


class ChangeEvent:
    """Event of any change of the data visible to readers. Its owner's thread waits for it."""

    watched_key = HEAD

    def __init__(self) -> None:
        self._notified = threading.Event()

    def on_change(self) -> None:
        self._notified.set()

    def on_poll(self, now_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change since the last call, at most `timeout_s`. Return True if there was one."""
        changed = self._notified.wait(timeout_s)
        self._notified.clear()
        return changed


class CatalogWatcher:
    """Watcher of the catalog for the listeners of one open store. Its thread runs while there are any."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._reset_process_state()

    def _reset_process_state(self) -> None:
        """Create the state that belongs to one process: lock, listeners and thread."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known_records: dict[Listener, Any] = {}
        self._additions = 0
        self._version = -1
        self._notified = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, listener: Listener) -> None:
        """Add a listener. Its `on_change` is called at least once after that."""
        if self._pid != os.getpid():  # a forked child does not have its parent's threads
            self._reset_process_state()
        with self._lock:
            self._known_records[listener] = _NOTHING
            self._additions, self._version = self._additions + 1, -1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-watch", daemon=True)
                self._thread.start()
        self._notified.set()

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._known_records.pop(listener, None)
        self._notified.set()

    @contextmanager
    def listen(self) -> Iterator[ChangeEvent]:
        """Listen for any change within a `with` block. The first wait always returns soon."""
        listener = ChangeEvent()
        self.add(listener)
        try:
            yield listener
        finally:
            self.remove(listener)

    def poll_soon(self) -> None:
        """Wake the thread for a poll, after a write of this process to the catalog."""
        if self._known_records:
            self._notified.set()

    def _run(self) -> None:
        polls = 1
        while True:
            wait_s = BACKOFF.delay_s(polls)
            with self._lock:
                listeners = list(self._known_records)
                if not listeners:
                    self._thread = None
                    return
                additions, version = self._additions, self._version
            try:
                changed = self._poll(listeners, additions, version)
            except EpochlogError as error:  # each listener reads the catalog itself, and gets the error
                RETRY.log(what="the catalog watcher", error=error)
                changed, wait_s = listeners, BACKOFF.limit_s
            for listener in changed:
                listener.on_change()
            now_s = monotonic_s()
            for listener in listeners:
                listener.on_poll(now_s)
            self._notified.wait(wait_s)
            self._notified.clear()
            polls = 1 if changed else polls + 1

    def _poll(self, listeners: list[Listener], additions: int, version: int) -> list[Listener]:
        """Poll the catalog once. Return the listeners whose records differ from those of the poll before."""
        keys = {listener.watched_key for listener in listeners}

        def body(view: ReadTxn) -> tuple[int, dict[bytes, Any]]:
            newest = Counters.read(view).version
            return newest, {} if newest == version else {key: view.get(key) for key in keys}

        newest, records = self._catalog.read(body)
        if not records:
            return []
        with self._lock:
            changed = [
                listener
                for listener in listeners
                if listener in self._known_records and self._known_records[listener] != records[listener.watched_key]
            ]
            self._known_records.update({listener: records[listener.watched_key] for listener in changed})
            if self._additions == additions:  # else the next poll must report to a listener that was added meanwhile
                self._version = newest
        return changed


_NOTHING = object()
"""Known record of a listener before its first poll: it differs from every record."""
