"""Parallel maps over threads: for kernels of Arrow and numpy, which release the GIL, and for requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

A = TypeVar("A")
B = TypeVar("B")

MOST_THREADS = 8
MOST_REQUESTS = 16
"""Requests to a remote file system that wait for their answers at the same time."""
WORTH_ROWS = 1 << 16
"""Smallest number of rows for which a thread is worth its start."""


def parallel_map(work: Callable[[A], B], items: Sequence[A], rows: int) -> list[B]:
    """Return `work` of each item, in order. Use several threads if `rows`, the total, is at least WORTH_ROWS.

    The threads end with the call, so a later fork of the process is safe.
    """
    threads = min(pa.cpu_count(), MOST_THREADS, len(items))
    if rows < WORTH_ROWS or threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def parallel_requests(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Return `work` of each item, a request to a remote file system, in order."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(MOST_REQUESTS, len(items))) as pool:
        return list(pool.map(work, items))
