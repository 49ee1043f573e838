"""An actor's side of the carry-over: sealed segments are reported until a report that names them has been taken.

A report may be lost, or come after its attempt has timed out; then it changes nothing at the manager, and what it named
must be in the next one. A report that was taken must not be repeated: the manager carries it over itself. Which of the
two it was is told by the next `Inject` in its `taken`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .commands import Segments


class Outbox:
    """The sealed segments of one incarnation of an actor that the manager may not have. Make a new one per attach."""

    def __init__(self) -> None:
        self._sealed: list[tuple[int, str, Any]] = []  # the barrier of the first report that named it, table, segment

    def report(self, barrier_id: int, taken: int, sealed: Mapping[str, Sequence[Any]]) -> Segments:
        """Collect the segments to report for this barrier: `sealed` for it, and those that no taken report has named.

        taken: of this actor, from the Inject. Barrier ids rise; for a repeated Inject repeat the report made for it.
        """
        self._sealed = [entry for entry in self._sealed if entry[0] > taken]
        self._sealed += [(barrier_id, table, segment) for table, found in sealed.items() for segment in found]
        out: dict[str, list[Any]] = {}
        for _, table, segment in self._sealed:
            out.setdefault(table, []).append(segment)
        return {table: tuple(found) for table, found in out.items()}
