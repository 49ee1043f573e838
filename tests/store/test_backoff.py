"""Delays of an exponential backoff, compared with the loops that double a delay up to a limit."""

from __future__ import annotations

import pytest

from epochlog.checkpoint.coordinator import decision_executor
from epochlog.checkpoint.job import step_scheduler
from epochlog.checkpoint.log_source import log_source
from epochlog.checkpoint.worker import worker
from epochlog.exchange.staged import push_client
from epochlog.exchange.subscription import client as subscriber
from epochlog.store.catalog.redis import client as redis_client
from epochlog.store.env.backoff import Backoff
from epochlog.store.session import watcher

pytestmark = pytest.mark.local_only

USED = [
    (redis_client._BACKOFF, 0.01, 1.0),
    (watcher.BACKOFF, 0.005, 0.1),
    (subscriber.BACKOFF, 0.05, 1.0),
    (push_client.BACKOFF, 0.02, 1.0),
    (log_source._BACKOFF, 0.005, 0.1),
    (worker.BACKOFF, 0.05, 2.0),
    (decision_executor.BACKOFF, 0.1, 5.0),
    (step_scheduler.BACKOFF, 0.1, 30.0),
]


@pytest.mark.parametrize("backoff, first_s, limit_s", USED)
def test_the_delay_doubles_up_to_its_limit(backoff: Backoff, first_s: float, limit_s: float) -> None:
    delay_s = first_s
    for count in range(1, 30):
        assert backoff.delay_s(count) == delay_s
        delay_s = min(2 * delay_s, limit_s)
    assert delay_s == limit_s


def test_another_factor_is_followed() -> None:
    assert [Backoff(1.0, 50.0, 3.0).delay_s(count) for count in range(1, 6)] == [1.0, 3.0, 9.0, 27.0, 50.0]


def test_a_factor_of_one_repeats_the_first_delay() -> None:
    assert {Backoff(0.25, 1.0, 1.0).delay_s(count) for count in (1, 2, 10_000)} == {0.25}


def test_a_first_delay_above_the_limit_is_the_limit() -> None:
    assert Backoff(3.0, 1.0).delay_s(1) == 1.0


def test_no_count_is_too_high() -> None:
    assert Backoff(0.005, 0.1).delay_s(10**9) == 0.1


@pytest.mark.parametrize("count", [0, -1])
def test_counts_begin_at_one(count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Backoff(0.1, 1.0).delay_s(count)
