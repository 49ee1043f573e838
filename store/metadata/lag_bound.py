"""Bound on the lag of jobs under `global`: its default and its least value (pure)."""

from __future__ import annotations

from datetime import timedelta

from epochlog.errors import InvalidInput
from epochlog.store.env.clock import FOR_EVER, seconds
from epochlog.store.types.epoch import show_span

GLOBAL_MAX_LAG_MS = 600_000
"""Default of `global_max_lag`, unless two checkpoint intervals are longer."""


def least_global_max_lag_ms(interval_ms: int) -> int:
    """Return the least `global_max_lag` of a store. With less, no job could take part in `global`."""
    return 2 * interval_ms


def checked_global_max_lag_ms(global_max_lag: float | timedelta, interval_ms: int) -> int:
    """Return the bound in milliseconds. Raise InvalidInput for an invalid one, and for one too short for the store."""
    bound_ms = min(round(seconds(global_max_lag, "global_max_lag") * 1000), FOR_EVER // timedelta(milliseconds=1))
    least_ms = least_global_max_lag_ms(interval_ms)
    if bound_ms < least_ms:
        raise InvalidInput(
            f"global_max_lag must be at least two checkpoint intervals, {show_span(least_ms)}, not "
            f"{show_span(bound_ms)}: with a smaller bound no view could be read under global"
        )
    return bound_ms
