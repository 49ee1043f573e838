"""A consistency policy for epochlog: all who ask within one minute see the same moment, in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import epochlog as el


@dataclass(frozen=True)
class OnTheMinute:
    """The newest epoch before the minute began (or before `seconds` did) that is valid for the tables of the query.

    Without options it can be named wherever epochlog takes a policy by name. Whoever asks from 12:00:00 until 12:00:59
    sees the tables as of 12:00:00 at the latest, so the pages of a dashboard agree though they load one after another.
    """

    seconds: float = 60.0
    name = "on_the_minute"

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise el.InvalidInput(f"on_the_minute needs seconds above 0, not {self.seconds!r}")

    def choose(self, view: Any, tables: Sequence[str], /) -> Mapping[str, int]:
        """One epoch for all tables. Looks at nothing but the view: the clock in it is the store's."""
        width_ms = round(self.seconds * 1000)
        began_ms = view.clock_ms // width_ms * width_ms
        return el.AsOf(timestamp=began_ms - 1).choose(view, tables)
