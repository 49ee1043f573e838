"""Waiting for what other threads and processes do: for a condition, never for time to pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from epochlog.store.env.clock import Deadline

PATIENCE_S = 30.0
"""How long a test waits for what must come; a busy machine is no failure."""


def until(what: Callable[[], Any], *polled: Any) -> None:
    """Wait for a condition, with the given parts polled meanwhile."""
    deadline, pause = Deadline.after(PATIENCE_S), threading.Event()
    while not what():
        assert not deadline.passed, "it has not come true"
        for part in polled:
            part.poll()
        pause.wait(0.005)
