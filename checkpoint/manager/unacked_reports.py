"""Outbox of an actor: sealed segments that are reported until the manager has accepted a report of them.

A report may be lost, or arrive after its attempt has timed out. The manager ignores it then, and the next report must
repeat its segments. The segments of an accepted report must not be repeated, because the manager carries them over.
The field `taken` of the next `Inject` tells the two cases apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .commands import Segments


class Outbox:
    """Queue of the sealed segments that no accepted report has named. Create one for each incarnation of an actor."""

    def __init__(self) -> None:
        self._sealed: list[tuple[int, str, Any]] = []  # the barrier of the first report that named it, table, segment

    def report(self, barrier_id: int, taken: int, sealed: Mapping[str, Sequence[Any]]) -> Segments:
        """Return the segments to report for this barrier: `sealed`, and those that no accepted report has named.

        taken: this actor's value from the Inject. Barrier ids ascend. For a repeated Inject, repeat its report instead.
        """
        self._sealed = [entry for entry in self._sealed if entry[0] > taken]
        self._sealed += [(barrier_id, table, segment) for table, segments in sealed.items() for segment in segments]
        reported: dict[str, list[Any]] = {}
        for _, table, segment in self._sealed:
            reported.setdefault(table, []).append(segment)
        return {table: tuple(segments) for table, segments in reported.items()}
