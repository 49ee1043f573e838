"""Block in which this process can open no more files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_open_files() -> Iterator[None]:
    """Inside, this process gets no further file descriptor: EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last, filled = max(int(name) for name in os.listdir("/proc/self/fd")), [os.dup(0)]
    while filled[-1] <= last:
        filled.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in filled:
            os.close(number)
