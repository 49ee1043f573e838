"""Feed of the page: one newest document of the store's state for all listeners, read anew while anybody listens."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import EpochlogError
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import DEFECT
from epochlog.store.session.handle import Handle

from .changes import Document
from .curves import SAMPLE_S, Curves
from .document import PageLook, ServerFacts, error_facts, look_at_store, status_document

LOOK_S = 0.5
"""Time between two looks at the store while anybody listens."""
STILL_S = 1.5
"""Time between two looks at a store that has not changed: ages and lags grow."""
MOST_SHARE = 0.25
"""Largest part of one processor that looks may take: the pause after a look is long enough for that."""
FRESH_S = 0.3
"""Age up to which a document answers a further request; longer if a look takes more than a quarter of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """State that a listener has seen: numbers of the document and of the samples, the trouble, and the document."""

    number: int = 0
    samples: int = 0
    trouble: Document | None = None
    document: Document = field(default_factory=dict[str, Any], compare=False)


class Feed:
    """Newest document, with a number that grows with each one. `close` ends the thread and all waits."""

    def __init__(self, handle: Handle, server: ServerFacts | None) -> None:
        self._handle = handle
        self._server = server
        self._looking = threading.Lock()
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._closed = False
        self._listeners = 0
        self._number = 0
        self._document: Document = {}
        self._read_s = self._took_s = -1e9
        self._sampled_s = -1e9
        self._version = -1
        self.trouble: Document | None = None
        """Typed error of the newest look; None if it went well."""
        self.curves = Curves(handle)
        self._thread = threading.Thread(target=self._run, name="epochlog-page-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and all waits; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake.set()
        self._thread.join()

    @property
    def closed(self) -> bool:
        return self._closed

    def document(self) -> Document:
        """Return the newest document, read anew if it is older than FRESH_S. Raises the errors of the catalog."""
        with self._looking:
            if self.trouble is not None or monotonic_s() - self._read_s > max(FRESH_S, self._pause_after_look_s):
                self._look()
            return self._document

    def listen(self) -> None:
        """Add a listener: the document is kept fresh for it until `leave`."""
        with self._changed:
            self._listeners += 1
        self._wake.set()

    def leave(self) -> None:
        with self._changed:
            self._listeners -= 1

    def wait(self, seen: Seen, timeout_s: float) -> Seen:
        """Wait until there is a document, trouble or sample that the listener has not seen, or the timeout has passed.
        Return the newest of each.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._newest() != seen, timeout_s)
            return self._newest()

    def _newest(self) -> Seen:
        return Seen(self._number, self.curves.version, self.trouble, self._document)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            if not self._closed:
                self._poll()

    def _pause_s(self) -> float:
        return max(LOOK_S if self._listeners else SAMPLE_S, self._pause_after_look_s)

    @property
    def _pause_after_look_s(self) -> float:
        """Return the time after a look in which no further look keeps to MOST_SHARE."""
        return self._took_s * (1 / MOST_SHARE - 1)

    def _poll(self) -> None:
        """Look at the store if a listener needs it or a sample is due. A failure is shown to the listeners."""
        now_s = monotonic_s()
        sample_due = now_s - self._sampled_s >= SAMPLE_S
        try:
            with self._looking:
                changed = self._handle.catalog.read(lambda view: view.version) != self._version
                if changed or sample_due or now_s - self._read_s >= STILL_S or self.trouble is not None:
                    look = self._look()
                    if sample_due:
                        self.curves.sample(look)
                        self._sampled_s = now_s
                        with self._changed:
                            self._changed.notify_all()
        except EpochlogError as error:
            self._set_trouble(error_facts(error))
        except Exception as error:  # noqa: BLE001 (a defect; it is logged once and shown)
            trouble = {"type": type(error).__name__, "text": "the store could not be read; see the log"}
            if trouble != self.trouble:
                DEFECT.log(what="reading the store for the page", error=error)
            self._set_trouble(trouble)

    def _look(self) -> PageLook:
        """Read the store and make the document. The caller has the lock of looks."""
        before_s = monotonic_s()
        self._version = self._handle.catalog.read(lambda view: view.version)
        look = look_at_store(self._handle)
        server = None if self._server is None else self._server()
        document = status_document(self._handle.files.place, look, server)
        self._took_s = monotonic_s() - before_s
        with self._changed:
            self._document, self._read_s, self.trouble = document, monotonic_s(), None
            self._number += 1
            self._changed.notify_all()
        return look

    def _set_trouble(self, trouble: dict[str, Any]) -> None:
        with self._changed:
            if self.trouble != trouble:
                self.trouble = trouble
                self._changed.notify_all()
