"""Consistency policy for epochlog: all queries of one minute, in any process, read one epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import epochlog as el


@dataclass(frozen=True)
class OnTheMinute:
    """Policy of the newest epoch, valid for the tables of the query, before the current minute (or `seconds`) began.

    Without options it works wherever epochlog takes a policy by name. Queries from 12:00:00 until 12:00:59 read the
    tables as of 12:00:00 at the latest, so that the pages of a dashboard agree, although they load one after another.
    """

    seconds: float = 60.0
    name = "on_the_minute"

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise el.InvalidInput(f"on_the_minute needs seconds above 0, not {self.seconds!r}")

    def choose(self, view: Any, tables: Sequence[str], /) -> Mapping[str, int]:
        """Choose one epoch for all tables from the view alone, which has the store's clock."""
        width_ms = round(self.seconds * 1000)
        began_ms = view.clock_ms // width_ms * width_ms
        return el.AsOf(timestamp=began_ms - 1).choose(view, tables)
