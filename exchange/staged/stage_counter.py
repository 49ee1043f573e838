"""Interface of a stage counter that is kept outside the catalog, beside a copy of the end marks."""

from __future__ import annotations

from typing import Protocol

from .state import Stages


class Marks(Protocol):
    """Copy of queries' end marks outside the catalog, with a stage counter computed there. The catalog has each mark
    first.
    """

    def declare(self, query: str, stages: Stages) -> None: ...

    def end(self, query: str) -> None:
        """Copy the marks of a query of which a channel may have passed."""
        ...

    def stage(self, query: str) -> int:
        """Return the lowest stage with a channel that has not passed, one past the highest when all have."""
        ...

    def drop(self, query: str) -> None: ...

    def close(self) -> None: ...
