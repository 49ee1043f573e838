"""Handles that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


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
