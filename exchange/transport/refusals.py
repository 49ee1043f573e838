"""Calls that the ports of a server refuse: each is counted, and one line a minute tells of those of a host."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable

from epochlog.errors import AccessDenied, EpochlogError, LimitExceeded
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import CALL_REFUSED
from epochlog.store.env.metrics import CALLS_REFUSED
from epochlog.store.session.handle import Handle

LINE_EVERY_S = 60.0
MOST_HOSTS = 256
"""Hosts of which the times of the newest lines are kept."""
UNKNOWN_HOST = "unknown"
"""Host of a call whose token is refused before gRPC tells from where it came."""


class Refusals:
    """Record of the refused calls of one server, in the store's log and metrics. Safe for several threads.

    port: flight or page. reason: `token` (none, or an unknown one), `session` (a browser that has not signed in),
    `role` (a call that writes, with the token that may only read) or `limit`.
    """

    def __init__(self, handle: Handle, clock: Callable[[], float] = monotonic_s) -> None:
        self._handle = handle
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[str, str, str], tuple[float, int]] = (
            OrderedDict()
        )  # time, calls since; oldest first

    def note(self, port: str, reason: str, host: str) -> None:
        """Count a refused call, and log it unless a line told of the same within a minute."""
        self._handle.recorder.add(CALLS_REFUSED, port, reason)
        key, now_s = (port, reason, host), self._clock()
        with self._lock:
            line_s, before = self._lines.get(key, (-math.inf, 0))
            calls, silent = before + 1, now_s - line_s < LINE_EVERY_S
            self._lines[key] = (line_s, calls) if silent else (now_s, 0)
            self._lines.move_to_end(key)
            if len(self._lines) > MOST_HOSTS:
                self._lines.popitem(last=False)
        if not silent:
            self._handle.log(CALL_REFUSED, door=port, reason=reason, host=host, calls=calls)

    def note_error(self, error: EpochlogError, host: str) -> None:
        """Note a call of Flight that ended with the error, if the server refused it."""
        for kind, reason in ((AccessDenied, "role"), (LimitExceeded, "limit")):
            if isinstance(error, kind):
                self.note("flight", reason, host)
