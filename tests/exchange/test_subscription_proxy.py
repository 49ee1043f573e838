"""A bad network between subscribers and their server: late, cut, silent, and cut after delivery."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import epochlog as el
from epochlog.exchange.subscription import client as subscriber
from epochlog.exchange.subscription.server import SubscriptionLimits
from epochlog.store.changelog import log_reader
from epochlog.store.changelog.consumer_info import list_consumers
from epochlog.store.env.backoff import Backoff
from epochlog.testing.tcp_proxy import TcpProxy
from subscription_fixture import Replica, Serving, rows, served
from wait_until import WAIT_LIMIT_S, wait_until

QUICK = SubscriptionLimits(beat_s=0.05)
TROUBLES = ["late", "cut", "black hole", "cut after delivery"]


@pytest.fixture(autouse=True)
def quick_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "BACKOFF", Backoff(first_s=0.005, limit_s=1.0))


@contextmanager
def proxied(serving: Serving) -> Iterator[TcpProxy]:
    proxy = TcpProxy(serving.port)
    try:
        yield proxy
    finally:
        proxy.stop()


def arm(proxy: TcpProxy, trouble: str, word: bytes) -> None:
    """The next request with the word meets it."""
    if trouble == "late":
        proxy.slow(0.02)
    else:
        wanted: dict[str, Callable[[bytes], None]] = {
            "cut": proxy.hold,
            "black hole": proxy.swallow,
            "cut after delivery": proxy.cut_answer,
        }
        wanted[trouble](word)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_subscription_begins_over_a_bad_connection_or_says_so(tmp_path: Path, trouble: str) -> None:
    with served(tmp_path, QUICK) as (_, table, serving), proxied(serving) as proxy:
        epoch = table.upsert(rows(1))
        arm(proxy, trouble, b"subscribe")
        if trouble == "late":
            with serving.subscribe(port=proxy.port) as sub:
                assert Replica().follow(sub, epoch).same_as(table)
            return
        with el.connect(f"grpc://127.0.0.1:{proxy.port}", token="the-token", timeout=0.5) as client:
            with pytest.raises(el.ServerUnavailable):
                client.subscribe("t")
            assert proxy.fired.wait(WAIT_LIMIT_S)
        with serving.subscribe(port=proxy.port) as sub:
            assert Replica().follow(sub, epoch).same_as(table)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_acknowledgement_over_a_bad_connection_counts_once(tmp_path: Path, trouble: str) -> None:
    with served(tmp_path, QUICK) as (store, table, serving), proxied(serving) as proxy:
        first = table.upsert(rows(1))
        with serving.subscribe(consumer="dash", port=proxy.port) as sub:
            replica = Replica().follow(sub, first)
            arm(proxy, trouble, b'"ack"')
            sub.ack(first)
            assert trouble == "late" or proxy.fired.wait(WAIT_LIMIT_S)
            proxy.slow(0)
            (info,) = list_consumers(store._handle)
            assert (info.position, info.incarnation) == (first, 1)
            second = table.upsert(rows(2))
            assert replica.follow(sub, second).same_as(table)
            sub.ack(second)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_is_taken_over_a_bad_connection_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    with (
        served(tmp_path, SubscriptionLimits(window=1000, beat_s=0.05)) as (_, table, serving),
        proxied(serving) as proxy,
    ):
        epoch = table.upsert(rows(*range(100)))
        with serving.subscribe(port=proxy.port) as sub:
            arm(proxy, trouble, b'"took"')
            replica = Replica().follow(sub, epoch)
            assert trouble == "late" or proxy.fired.wait(WAIT_LIMIT_S)  # all rows may be here before the answer is
            proxy.slow(0)
            last = table.upsert(rows(*range(50, 150), v=1))
            assert replica.follow(sub, last).same_as(table)


def test_a_silent_network_is_noticed_though_nothing_is_new(tmp_path: Path) -> None:
    with served(tmp_path, QUICK) as (_, table, serving), proxied(serving) as proxy:
        epoch = table.upsert(rows(1))
        with serving.subscribe(port=proxy.port) as sub:
            replica = Replica().follow(sub, epoch)
            arm(proxy, "black hole", b'"here"')
            wait_until(lambda: sub.poll(0.05) is None and proxy.fired.is_set())
            last = table.upsert(rows(2))  # the server writes it into the hole
            assert replica.follow(sub, last).same_as(table)


def test_a_connection_that_opens_more_slowly_than_the_beats_come_is_waited_for(tmp_path: Path) -> None:
    """Each attempt was aborted after five beats of the connection before it, here after a quarter of a second."""
    with served(tmp_path, QUICK) as (_, table, serving), proxied(serving) as proxy:
        epoch = table.upsert(rows(1))
        with serving.subscribe(port=proxy.port) as sub:
            replica = Replica().follow(sub, epoch)
            proxy.slow(0.6)
            proxy.refuse(True)
            proxy.refuse(False)
            last = table.upsert(rows(2))
            assert replica.follow(sub, last).same_as(table)
            proxy.slow(0)


def test_one_that_is_let_in_no_more_gives_up_after_its_bound(tmp_path: Path) -> None:
    with served(tmp_path, QUICK) as (_, table, serving), proxied(serving) as proxy:
        table.upsert(rows(1))
        with serving.subscribe(port=proxy.port, reconnect=0.2) as sub:
            next(sub)
            proxy.refuse(True)
            with pytest.raises(el.ServerUnavailable, match="has been unavailable"):
                next(sub)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_troubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Commits go on while the connection meets one trouble after the other."""
    print("seed", seed)
    chance = random.Random(seed)
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 16)
    bounds = SubscriptionLimits(window=chance.choice([500, 5_000, 1 << 20]), beat_s=0.05)
    with served(tmp_path, bounds) as (store, table, serving), proxied(serving) as proxy:
        table.upsert(rows(*range(chance.randrange(200))))
        replica, acked = Replica(), -1
        with serving.subscribe(consumer="dash", port=proxy.port) as sub:
            for step in range(15):
                keys = chance.sample(range(300), chance.randrange(1, 60))
                epoch = table.delete(rows(*keys).select(["id"])) if step % 5 == 4 else table.upsert(rows(*keys, v=step))
                trouble = chance.choice([*TROUBLES, "all"])
                if trouble == "all":
                    proxy.refuse(True)
                    proxy.refuse(False)
                else:
                    arm(proxy, trouble, chance.choice([b'"took"', b'"ack"', b'"here"', b"subscribe"]))
                replica.follow(sub, epoch)
                proxy.slow(0)
                if chance.random() < 0.5:
                    sub.ack(epoch)
                    acked = epoch
            assert replica.same_as(table)
            (info,) = list_consumers(store._handle)
            assert (info.position or -1) == acked and info.incarnation == 1
