"""Sender of lineage events: a thread with a bounded queue, so that a slow or broken backend holds up no commit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from epochlog.store.env.clock import Deadline
from epochlog.store.env.log_events import LINEAGE_DROPPED, LINEAGE_FAILED, LINEAGE_RECOVERED
from epochlog.store.env.metrics import LINEAGE_EVENTS, Recorder

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

MOST_EVENTS = 1_000
"""Events that wait for the backend; a later one is dropped and counted."""
CLOSE_S = 5.0
"""Longest time for which the close of a store waits for the events that are left."""


class Sender:
    """Sender of the events of one open store, in their order. It makes each event in its own thread too."""

    def __init__(self, client: OpenLineageClient, place: str, recorder: Recorder) -> None:
        self._client = client
        self._place = place
        self._recorder = recorder
        self._events: deque[Callable[[], RunEvent]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._sending = False
        self._failing = False
        self._dropping = False
        self._thread = threading.Thread(target=self._run, name="epochlog-lineage", daemon=True)
        self._thread.start()

    def send(self, make: Callable[[], RunEvent]) -> None:
        """Queue an event; drop it if the queue is full."""
        with self._changed:
            full = len(self._events) >= MOST_EVENTS or self._closing
            if not full:
                self._events.append(make)
                self._changed.notify_all()
            first, self._dropping = full and not self._dropping, full
        if full:
            self._recorder.add(LINEAGE_EVENTS, "dropped")
        if first:
            LINEAGE_DROPPED.log(store=self._place, waiting=MOST_EVENTS)

    def close(self) -> None:
        """Send the queued events for at most CLOSE_S, and drop the rest. The client stays open: it is the user's."""
        deadline = Deadline.after(CLOSE_S)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while (self._events or self._sending) and not deadline.passed:
                self._changed.wait(deadline.remaining_s)
            dropped = len(self._events)
            self._events.clear()
        if dropped:
            self._recorder.add(LINEAGE_EVENTS, "dropped", by=dropped)
            LINEAGE_DROPPED.log(store=self._place, waiting=dropped)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._closing:
                    self._changed.wait()
                if not self._events:
                    return
                make, self._sending = self._events.popleft(), True
            try:
                self._send(make)
            finally:
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()

    def _send(self, make: Callable[[], RunEvent]) -> None:
        """Send one event. Log the first failure in a row, and the end of it."""
        try:
            self._client.emit(make())
        except Exception as error:  # noqa: BLE001 (a client may raise any error; the event is lost, and counted)
            self._recorder.add(LINEAGE_EVENTS, "failed")
            if not self._failing:
                LINEAGE_FAILED.log(store=self._place, error=error)
            self._failing = True
            return
        self._recorder.add(LINEAGE_EVENTS, "sent")
        if self._failing:
            LINEAGE_RECOVERED.log(store=self._place)
        self._failing = False
