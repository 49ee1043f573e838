"""Handles that a `with` block closes, and those of them that are polled."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Closeable:
    """Base class of handles with a `close` that a `with` block calls at its end, after an error too."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PollIterator(Closeable, Generic[T]):
    """Base class of handles whose items come one by one: iterating waits for the next one, and ends after the last."""

    def poll(self, timeout: float | timedelta | None = 0) -> T | None:
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        item = self.poll(None)
        if item is None:
            raise StopIteration
        return item
