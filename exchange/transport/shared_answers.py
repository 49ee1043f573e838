"""Answers that requests share: one is made for all who ask within a second, chunk by chunk as its readers come to them,
by a bounded number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from epochlog.store.env.clock import monotonic_s

FRESH_S = 1.0
"""Age up to which an answer serves further requests; longer if the answer takes longer to make, so that making takes at
most half of the time.
"""
CHUNK_BYTES = 1 << 16
"""Least size of a chunk but the last."""
_POLL_S = 0.1
"""Time between two checks that the client of a waiting request is still connected."""


def in_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts of an answer into chunks of CHUNK_BYTES or more."""
    waiting, size = list[bytes](), 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


@dataclass(slots=True, eq=False)
class _Answer:
    """Chunks that are made, and the source of the others."""

    make: Callable[[], Iterator[bytes]]
    source: Iterator[bytes] | None = None
    chunks: list[bytes] = field(default_factory=list[bytes])
    born_s: float = 0.0
    """Begin of the first chunk."""
    took_s: float = 0.0
    """Time of making all that are made."""
    is_rendering: bool = True
    is_whole: bool = False
    has_failed: bool = False

    @property
    def is_born(self) -> bool:
        return bool(self.chunks) or self.is_whole

    def is_fresh(self, now_s: float) -> bool:
        """Return True while the answer serves further requests, or while its first chunk is made."""
        return not self.is_born or now_s < self.born_s + self.took_s + max(FRESH_S, self.took_s)


class SharedAnswers:
    """Newest answers by key. At most `makers` threads make chunks at a time, one for each answer. Safe for several
    threads.
    """

    def __init__(self, makers: int, clock: Callable[[], float] = monotonic_s) -> None:
        self._makers = makers
        self._clock = clock
        self._changed = threading.Condition()
        self._making = 0
        self._answers: dict[Hashable, _Answer] = {}

    def get(
        self, key: Hashable, make: Callable[[], Iterator[bytes]], has_hung_up: Callable[[], bool]
    ) -> Iterator[bytes]:
        """Return the chunks of the key's answer, when the first is made: here, if there is none. A request that comes
        to a further chunk before all others makes it. An error of a first chunk is this request's alone.

        has_hung_up: returns True if nobody waits for the answer any more. Raises ConnectionAbortedError then, unless
        this request makes a chunk. The iterator raises it too, and where another request has failed to make a chunk.
        """
        with self._changed:
            while True:
                answer = self._answers.get(key)
                if answer is not None and answer.is_fresh(self._clock()):
                    if answer.is_born:
                        return self._chunks(answer, has_hung_up)
                elif self._making < self._makers:
                    answer = self._answers[key] = _Answer(make)
                    self._making += 1
                    break
                self._wait(has_hung_up)
        self._make_chunk(answer)
        return self._chunks(answer, has_hung_up)

    def _wait(self, has_hung_up: Callable[[], bool]) -> None:
        """Wait for a change, or for a while. The caller has the lock."""
        if has_hung_up():
            raise ConnectionAbortedError("the client has gone")
        self._changed.wait(_POLL_S)

    def _chunks(self, answer: _Answer, has_hung_up: Callable[[], bool]) -> Iterator[bytes]:
        at = 0
        while True:
            with self._changed:
                while at == len(answer.chunks):
                    if answer.is_whole:
                        return
                    if answer.has_failed:
                        raise ConnectionAbortedError("another request has failed to make the rest of the answer")
                    if not answer.is_rendering and self._making < self._makers:
                        answer.is_rendering = True
                        self._making += 1
                        break
                    self._wait(has_hung_up)
                chunk = answer.chunks[at] if at < len(answer.chunks) else None
            if chunk is None:
                self._make_chunk(answer)
            else:
                yield chunk
                at += 1

    def _make_chunk(self, answer: _Answer) -> None:
        """Make the next chunk, which this thread has taken, and forget old answers."""
        chunk, has_failed, began_s = None, True, self._clock()
        try:
            if answer.source is None:
                answer.source = answer.make()
            chunk = next(answer.source, None)
            has_failed = False
        finally:
            rendered_s = self._clock()
            with self._changed:
                self._making -= 1
                if not answer.is_born:
                    answer.born_s = began_s
                answer.took_s += rendered_s - began_s
                answer.is_rendering, answer.has_failed = False, has_failed
                answer.is_whole = chunk is None and not has_failed
                if chunk is not None:
                    answer.chunks.append(chunk)
                self._answers = {
                    key: kept
                    for key, kept in self._answers.items()
                    if not kept.has_failed and kept.is_fresh(rendered_s)
                }
                self._changed.notify_all()
