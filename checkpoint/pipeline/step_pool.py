"""Step pool: a bounded number of threads that run the steps of many jobs, and more of them for long steps.

A step that runs for longer than LONG_MS gives its slot back, and goes on beside the pool. A job whose newest step was
that long starts its next one beside the pool. So a job that hangs delays others only once, by LONG_MS at the most.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import takewhile

from epochlog.errors import InvalidInput

MOST_DEFAULT_THREADS = 32
LONG_MS = 5_000
"""Time after which a running step gives its slot back."""
_IDLE_NAME = "epochlog pipeline"


@dataclass(slots=True, eq=False)
class _Step:
    """Step of one job, queued or running."""

    key: Hashable
    run: Callable[[], None]
    inside: bool = True
    """True if the step takes a slot."""
    started_ms: int = 0


class StepPool:
    """Threads that run steps in the order of their submission, at most `size` short ones at a time. Thread-safe.

    size: number of slots. now_ms: a clock that never jumps.
    """

    def __init__(self, size: int, now_ms: Callable[[], int]) -> None:
        self._size = size
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._queue: deque[_Step] = deque()
        self._running: set[_Step] = set()
        self._long: set[Hashable] = set()  # keys of the jobs whose newest step was long
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that run no step, also those that are starting
        self._closed = False

    @property
    def queued(self) -> bool:
        """Return True if a step waits for a slot."""
        with self._changed:
            return bool(self._queue)

    @property
    def busy(self) -> int:
        """Count the steps that are queued or running."""
        with self._changed:
            return len(self._queue) + len(self._running)

    def submit(self, key: Hashable, run: Callable[[], None]) -> None:
        """Queue a step of the job `key`; start it at once if the job's newest step was long. `run` must not raise."""
        with self._changed:
            step = _Step(key, run, inside=key not in self._long)
            if step.inside:
                self._queue.append(step)
            else:
                self._queue.appendleft(step)
            self._staff()

    def release_long(self) -> int | None:
        """Give back the slots of steps that run for longer than LONG_MS. Return the ms until the next call; None if no
        step waits for a slot.
        """
        with self._changed:
            now_ms = self._now_ms()
            for step in self._running:
                if step.inside and now_ms - step.started_ms >= LONG_MS:
                    step.inside = False
                    self._long.add(step.key)
            self._staff()
            starts = [step.started_ms for step in self._running if step.inside]
            return max(0, min(starts, default=now_ms) + LONG_MS - now_ms) if self._queue else None

    def cancel(self, key: Hashable) -> bool:
        """Take the job's step out of the queue; return False if it is not queued."""
        with self._changed:
            step = next((step for step in self._queue if step.key == key), None)
            if step is not None:
                self._queue.remove(step)
            return step is not None

    def close(self) -> list[Hashable]:
        """Take no more steps, and return the keys of those that were queued. The running ones go on."""
        with self._changed:
            self._closed = True
            keys = [step.key for step in self._queue]
            self._queue.clear()
            self._changed.notify_all()
            return keys

    def join(self) -> None:
        """Wait for the end of all threads, after `close`."""
        with self._changed:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _staff(self) -> None:
        """Wake or start a thread for each step that can start now. Call under the lock."""
        outside = sum(1 for _ in takewhile(lambda step: not step.inside, self._queue))
        startable = outside + min(self._free, len(self._queue) - outside)
        self._changed.notify(startable)
        for _ in range(startable - self._idle):
            thread = threading.Thread(target=self._work, name=_IDLE_NAME, daemon=True)
            self._threads.add(thread)
            self._idle += 1
            thread.start()

    @property
    def _free(self) -> int:
        """Count the free slots. Call under the lock."""
        return self._size - sum(step.inside for step in self._running)

    def _work(self) -> None:
        """Run steps until the pool is closed, in a thread of the pool."""
        while (step := self._take()) is not None:
            try:
                step.run()
            finally:
                self._end(step)

    def _take(self) -> _Step | None:
        """Wait for a step that can start, and take it; None if this thread is to end."""
        me = threading.current_thread()
        with self._changed:
            me.name = _IDLE_NAME
            while not self._queue or (self._queue[0].inside and not self._free):
                if self._closed or self._idle > self._size:
                    self._idle -= 1
                    self._threads.discard(me)
                    return None
                self._changed.wait()
            step = self._queue.popleft()
            step.started_ms = self._now_ms()
            self._running.add(step)
            self._idle -= 1
            return step

    def _end(self, step: _Step) -> None:
        with self._changed:
            self._running.discard(step)
            self._idle += 1
            if self._now_ms() - step.started_ms < LONG_MS:
                self._long.discard(step.key)
            else:
                self._long.add(step.key)


def checked_threads(threads: int | None) -> int:
    """Return the number of threads; None gives the default. Raises InvalidInput."""
    if threads is None:
        return min(MOST_DEFAULT_THREADS, (os.cpu_count() or 1) + 4)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise InvalidInput(f"threads is the number of steps that run at a time, a whole number >= 1, not {threads!r}")
    return threads
