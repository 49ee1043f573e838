"""Wait for a condition that another thread or process makes true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from epochlog.store.env.clock import Deadline
from stacks import dump_stacks

WAIT_LIMIT_S = 600.0
"""Longest wait of a test for a condition. A machine that is busy with other work must not reach it."""


def wait_until(condition: Callable[[], Any], *polled: Any) -> None:
    """Wait until the condition is true; poll the given objects meanwhile. A wait without an end prints all stacks."""
    deadline, pause = Deadline.after(WAIT_LIMIT_S), threading.Event()
    while not condition():
        if deadline.passed:
            dump_stacks()
            raise AssertionError(f"the condition is not true after {WAIT_LIMIT_S} s")
        for target in polled:
            target.poll()
        pause.wait(0.005)
