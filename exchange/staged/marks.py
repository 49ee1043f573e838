"""Where the stage counter of a query is computed: beside its end marks, in the catalog or by whom a server is given."""

from __future__ import annotations

from typing import Protocol

from .state import Stages


class Marks(Protocol):
    """Keeps the end marks of queries outside the catalog, and counts there. The catalog has each mark before it."""

    def declare(self, query: str, stages: Stages) -> None: ...

    def end(self, query: str) -> None:
        """A channel of the query may have passed."""
        ...

    def stage(self, query: str) -> int:
        """The lowest stage with a channel that has not passed, one past the highest when all have."""
        ...

    def drop(self, query: str) -> None: ...

    def close(self) -> None: ...
