"""Signals that end a command which runs until it is stopped."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable on SIGINT or SIGTERM.

    The system may deliver a signal to any thread, gRPC's too, and then it does not wake the main thread, in which
    Python's handler runs, from a lock. The thread that gets it writes to the descriptor of `set_wakeup_fd`.
    """
    reading, writing = socket.socketpair()
    reading.settimeout(None)  # whatever the process's default is
    writing.setblocking(False)
    numbers = (signal.SIGINT, signal.SIGTERM)
    with reading, writing:
        wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield reading
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
