"""Answers that requests share: one is made for all who ask within a second, by a bounded number of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from epochlog.store.env.clock import monotonic_s

FRESH_S = 1.0
"""Age up to which an answer serves further requests; longer if the answer takes longer to make, so that making takes at
most half of the time.
"""
_POLL_S = 0.1
"""Time between two checks that the client of a waiting request is still connected."""


@dataclass(frozen=True, slots=True)
class _Answer:
    content: bytes
    stale_s: float  # when it serves no further request


class SharedAnswers:
    """Newest answers by key. At most `makers` are made at a time, one for each key. Safe for several threads."""

    def __init__(self, makers: int, clock: Callable[[], float] = monotonic_s) -> None:
        self._makers = makers
        self._clock = clock
        self._changed = threading.Condition()
        self._making: set[Hashable] = set()
        self._answers: dict[Hashable, _Answer] = {}

    def get(self, key: Hashable, make: Callable[[], bytes], is_gone: Callable[[], bool]) -> bytes:
        """Return the answer of the key, made here if there is none. An error of `make` is this request's alone.

        is_gone: returns True if nobody waits for the answer any more. Raises ConnectionAbortedError then, unless `make`
        has begun.
        """
        with self._changed:
            while True:
                answer = self._answers.get(key)
                if answer is not None and self._clock() < answer.stale_s:
                    return answer.content
                if key not in self._making and len(self._making) < self._makers:
                    break
                if is_gone():
                    raise ConnectionAbortedError("the client has gone")
                self._changed.wait(_POLL_S)
            self._making.add(key)
        try:
            began_s = self._clock()
            content = make()
            made_s = self._clock()
            with self._changed:
                self._answers = {name: old for name, old in self._answers.items() if made_s < old.stale_s}
                self._answers[key] = _Answer(content, made_s + max(FRESH_S, made_s - began_s))
            return content
        finally:
            with self._changed:
                self._making.discard(key)
                self._changed.notify_all()
