"""Interface of a copy of the end marks outside the catalog, which computes the stage counter."""

from __future__ import annotations

from typing import Protocol

from .state import Stages


class StageCounter(Protocol):
    """Copy of the end marks of queries outside the catalog, with a stage counter. The catalog records marks first."""

    def declare(self, query: str, stages: Stages) -> None: ...

    def end(self, query: str) -> None:
        """Copy the marks of a query after one of its channels may have passed."""
        ...

    def stage(self, query: str) -> int:
        """Return the lowest stage with a channel that has not passed; the highest plus one when all have."""
        ...

    def drop(self, query: str) -> None: ...

    def close(self) -> None: ...
