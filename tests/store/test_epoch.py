"""Epochs are milliseconds and a sequence; boundaries are the last epochs of their intervals."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.errors import InvalidInput
from epochlog.store.env.clock import Deadline, SystemClock, seconds
from epochlog.store.types.epoch import (
    EPOCH_ORIGIN_MS,
    MAX_EPOCH,
    boundary,
    boundary_index,
    first_index_at_or_above,
    from_unix_ms,
    last_of_unix_ms,
    newest_index,
    show_span,
    to_unix_ms,
)

pytestmark = pytest.mark.local_only

EPOCHS = st.integers(0, MAX_EPOCH)
INTERVALS = st.integers(1, 86_400_000)


def test_the_origin_is_the_beginning_of_2025() -> None:
    assert from_unix_ms(EPOCH_ORIGIN_MS) == 0
    assert from_unix_ms(EPOCH_ORIGIN_MS + 1) == 4096
    assert last_of_unix_ms(EPOCH_ORIGIN_MS) == 4095
    assert to_unix_ms(4095) == EPOCH_ORIGIN_MS


def test_epochs_fit_a_double_until_2094() -> None:
    beginning_of_2094_ms = 3_913_056_000_000
    assert from_unix_ms(beginning_of_2094_ms) < MAX_EPOCH == 2**53 - 1


@given(EPOCHS)
def test_an_epoch_lies_within_its_millisecond(epoch: int) -> None:
    ms = to_unix_ms(epoch)
    assert from_unix_ms(ms) <= epoch <= last_of_unix_ms(ms)


def test_the_first_boundary_is_the_last_epoch_of_the_first_second() -> None:
    assert boundary(1, 1000) == (1000 << 12) - 1
    assert to_unix_ms(boundary(1, 1000)) == EPOCH_ORIGIN_MS + 999
    assert [boundary_index(epoch, 1000) for epoch in (-1, 0, 4_095_998, 4_095_999, 4_096_000)] == [None] * 3 + [1, None]


@pytest.mark.rule("1.3")
@given(st.integers(1, 10**6), INTERVALS)
def test_a_boundary_has_its_index(k: int, interval_ms: int) -> None:
    epoch = boundary(k, interval_ms)
    assert boundary_index(epoch, interval_ms) == newest_index(epoch, interval_ms) == k
    assert first_index_at_or_above(epoch, interval_ms) == k
    assert first_index_at_or_above(epoch + 1, interval_ms) == k + 1
    assert newest_index(epoch - 1, interval_ms) == k - 1


@pytest.mark.rule("1.3")
@given(EPOCHS, INTERVALS)
def test_an_epoch_lies_between_its_neighbouring_boundaries(epoch: int, interval_ms: int) -> None:
    above = first_index_at_or_above(epoch, interval_ms)
    assert boundary(above - 1, interval_ms) < epoch <= boundary(above, interval_ms) or above == 1
    below = newest_index(epoch, interval_ms)
    assert below == 0 or boundary(below, interval_ms) <= epoch
    assert epoch < boundary(below + 1, interval_ms)


@pytest.mark.rule("1.3")
@given(st.integers(1, 10**5), st.integers(1, 1000), st.integers(1, 50))
def test_every_boundary_of_a_multiple_is_one_of_the_store(k: int, interval_ms: int, multiple: int) -> None:
    assert boundary_index(boundary(k, interval_ms * multiple), interval_ms) == k * multiple


def test_the_clock_gives_unix_milliseconds() -> None:
    clock = SystemClock()
    assert from_unix_ms(clock()) > 0
    assert isinstance(clock(), int)


def test_a_deadline_passes() -> None:
    assert Deadline.after(0).passed
    assert not Deadline.after(timedelta(days=1)).passed
    assert 86_000 < Deadline.after(86_400).remaining_s <= 86_400


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, True, "5", None])
def test_a_length_of_time_is_seconds_or_a_timedelta(value: object) -> None:
    with pytest.raises(InvalidInput, match="max_lag"):
        seconds(value, "max_lag")  # pyright: ignore[reportArgumentType]
    assert seconds(timedelta(milliseconds=1500), "max_lag") == 1.5


@pytest.mark.parametrize(
    "ms, text",
    [(0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (1299, "1.2 s"), (59_999, "59.9 s"), (60_000, "1 min"),
     (3_599_999, "59 min 59 s"), (7_200_000, "2 h"), (7_500_000, "2 h 5 min"),
     (86_400_000, "1 d"), (356_400_000, "4 d 3 h")],
)  # fmt: skip
def test_spans_are_told_by_their_two_largest_units(ms: int, text: str) -> None:
    assert show_span(ms) == text
