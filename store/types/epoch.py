"""Arithmetic of epochs and of the boundaries between checkpoint intervals; pure, ints in and ints out.

An epoch is `milliseconds since 2025-01-01 UTC << 12 | sequence`. Boundary k is the last epoch of interval k, a pure
function of the interval: every process computes every boundary by itself.
"""

from __future__ import annotations

import operator
from datetime import UTC, datetime
from typing import SupportsIndex, cast

from epochlog.errors import InvalidInput

EPOCH_ORIGIN_MS = 1_735_689_600_000
"""Unix ms of epoch 0: 2025-01-01 00:00 UTC."""
SEQUENCE_BITS = 12
MAX_EPOCH = (1 << 53) - 1
"""Epochs stay below 2**53 so that JSON, Lua and doubles carry them exactly."""


def as_epoch(purpose: str, value: object) -> int:
    """Return an epoch given as any integer type (numpy's too) as an int. InvalidInput names its `purpose`."""
    try:
        epoch = operator.index(cast("SupportsIndex", value))
    except TypeError:
        epoch = -1
    if isinstance(value, bool) or not 0 <= epoch <= MAX_EPOCH:
        raise InvalidInput(f"{purpose} must be an epoch, an int from 0 to 2**53 - 1, not {value!r}")
    return epoch


def from_unix_ms(ms: int) -> int:
    """Return the first epoch of a Unix millisecond; negative before 2025."""
    return (ms - EPOCH_ORIGIN_MS) << SEQUENCE_BITS


def last_of_unix_ms(ms: int) -> int:
    """Return the last epoch of a Unix millisecond. All epochs of the millisecond lie at or below it."""
    return from_unix_ms(ms + 1) - 1


def to_unix_ms(epoch: int) -> int:
    """Return the Unix millisecond of an epoch."""
    return (epoch >> SEQUENCE_BITS) + EPOCH_ORIGIN_MS


def boundary(k: int, interval_ms: int) -> int:
    """Return the last epoch of interval k (k >= 1)."""
    return k * width(interval_ms) - 1


def width(interval_ms: int) -> int:
    """Return the number of epochs in one checkpoint interval: the distance between neighbouring boundaries."""
    return interval_ms << SEQUENCE_BITS


def boundary_index(epoch: int, interval_ms: int) -> int | None:
    """Return k if the epoch is boundary k, else None."""
    k, remainder = divmod(epoch + 1, width(interval_ms))
    return k if remainder == 0 and k >= 1 else None


def newest_index(epoch: int, interval_ms: int) -> int:
    """Return the largest k with boundary(k) <= epoch; 0 below the first boundary."""
    return max(0, (epoch + 1) // width(interval_ms))


def first_index_at_or_above(epoch: int, interval_ms: int) -> int:
    """Return the smallest k >= 1 with boundary(k) >= epoch."""
    return max(1, -(-(epoch + 1) // width(interval_ms)))


# ---- formatting ----------------------------------------------------------------------------------------------------


def show_epoch(epoch: int | None) -> str:
    """Format an epoch with its time: `585139200001 (2025-01-02T15:40:56.250Z)`. Epoch 0 and None have no time."""
    if epoch is None or not 0 < epoch <= MAX_EPOCH:
        return str(epoch)
    return f"{epoch} ({show_time(to_unix_ms(epoch))})"


def show_time(unix_ms: int) -> str:
    """Format Unix milliseconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_span(ms: int) -> str:
    """Format milliseconds by their two largest units: `350 ms`, `1.2 s`, `3 min 5 s`, `2 h 5 min`, `4 d 3 h`."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:.1f} s"
    minutes, s = divmod(ms // 1000, 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h" if hours_left else f"{days} d"
    if hours:
        return f"{hours} h {minutes_left} min" if minutes_left else f"{hours} h"
    return f"{minutes} min {s} s" if s else f"{minutes} min"
