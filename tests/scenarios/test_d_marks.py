"""D8: the Redis that keeps the stage counter goes away, comes back empty or old, or is tampered with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged import stage_counter_redis
from epochlog.exchange.staged.stage_counter_scripts import marks_key
from epochlog.store.env.backoff import Backoff
from epochlog.testing.tcp_proxy import TcpProxy
from ports import free_port
from redis_server import RedisProcess
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.redis]

STAGES = {-2: ["seed"], -1: ["left", "right"], 0: ["probe"]}
STAGE_OF = {name: stage for stage, names in STAGES.items() for name in names}
BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        yield store


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for an answer of Redis, which may be slow, and retry soon after a failure."""
    monkeypatch.setattr(stage_counter_redis, "ANSWER_S", WAIT_LIMIT_S)
    monkeypatch.setattr(stage_counter_redis, "BACKOFF", Backoff(first_s=0.01, limit_s=0.05))


@pytest.fixture
def ex(store: el.Store, server: RedisProcess) -> Iterator[ExchangeClient]:
    with el.serve(store, stage_counter=server.url()) as served, client_of(served) as client:
        declare(client)
        yield client


def client_of(served: el.StoreServer, query: str = "q") -> ExchangeClient:
    return ExchangeClient(served.location, query=query)


def declare(ex: ExchangeClient) -> None:
    ex.declare("join", stages=STAGES)


def produce(ex: ExchangeClient, *channels: str) -> None:
    """A batch and the end, durable on return."""
    for channel in channels:
        ex.push(channel, STAGE_OF[channel], 0, BATCH)
        ex.end(channel, 0)


def consumed(ex: ExchangeClient, incarnation: int) -> list[str]:
    with ex.consume("join", incarnation=incarnation) as mail:
        return [channel for channel, _, _ in mail]


def held(server: RedisProcess, store: el.Store, query: str = "q") -> int | None:
    """The counter that Redis holds, for those who ask it and not the server."""
    with server.client() as client:
        counter = client.hget(key(store), f"s:{query}")
    return None if counter is None else int(counter)  # pyright: ignore[reportArgumentType]


def key(store: el.Store) -> bytes:
    return marks_key(store._handle.store_id)


@pytest.mark.rule("6.2")
def test_d8_the_counter_is_kept_in_redis(ex: ExchangeClient, server: RedisProcess, store: el.Store) -> None:
    assert (ex.stage, held(server, store)) == (-2, -2)
    produce(ex, "seed", "right")
    assert (ex.stage, held(server, store)) == (-1, -1)
    produce(ex, "left")
    wait_until(lambda: held(server, store) == 0)  # unasked
    produce(ex, "probe")
    assert (ex.stage, held(server, store)) == (1, 1)
    assert consumed(ex, 0) == ["seed", "left", "right", "probe"]
    ex.drop()
    wait_until(lambda: held(server, store) is None)


@pytest.mark.rule("6.2")
def test_d8_a_stage_passes_with_the_push_that_completes_it(
    ex: ExchangeClient, server: RedisProcess, store: el.Store
) -> None:
    """Its end mark came before: neither the catalog nor Redis counts it until all up to there was pushed."""
    ex.end("seed", 1)
    ex.push("seed", -2, 1, BATCH)
    assert (ex.stage, held(server, store)) == (-2, -2)
    ex.push("seed", -2, 0, BATCH)
    wait_until(lambda: held(server, store) == -1)  # unasked
    assert ex.stage == -1


def test_d8_redis_is_killed_and_comes_back_empty(ex: ExchangeClient, server: RedisProcess, store: el.Store) -> None:
    """Rebuilt from the end marks, not from stage -2."""
    produce(ex, "seed", "left", "right")
    assert ex.stage == 0
    server.kill()
    server.lose_data()
    server.start()
    wait_until(lambda: ex.stage == 0 and held(server, store) == 0)


def test_d8_redis_comes_back_with_an_old_counter(ex: ExchangeClient, server: RedisProcess, store: el.Store) -> None:
    """An append-only file from before the newest end marks: it is behind, and is noticed."""
    old = server.folder.parent / "old"
    produce(ex, "seed")
    assert ex.stage == -1
    server.kill()
    server.copy_data(old)
    server.start()
    produce(ex, "left", "right")
    wait_until(lambda: ex.stage == 0 and held(server, store) == 0)
    server.kill()
    server.put_data_back(old)
    server.start()
    assert held(server, store) in (-1, 0)  # 0 only if it was mended at once
    wait_until(lambda: ex.stage == 0 and held(server, store) == 0)


def test_d8_an_old_counter_of_a_query_that_was_made_again_is_not_ahead(
    ex: ExchangeClient, server: RedisProcess, store: el.Store
) -> None:
    """All had ended, then the query was dropped and declared anew. The old file says: start everything."""
    produce(ex, "seed", "left", "right", "probe")
    assert ex.stage == 1
    server.kill()
    old = server.folder.parent / "old"
    server.copy_data(old)
    server.start()
    ex.drop()
    declare(ex)
    assert ex.stage == -2
    server.kill()
    server.put_data_back(old)
    server.start()
    assert held(server, store) in (1, -2)  # -2 only if it was mended at once
    for _ in range(3):
        assert ex.stage == -2
    wait_until(lambda: ex.stage == -2 and held(server, store) == -2)


def test_d8_what_is_flushed_deleted_or_flipped_is_noticed(
    ex: ExchangeClient, server: RedisProcess, store: el.Store
) -> None:
    produce(ex, "seed")
    with server.client() as client:
        for damage in (
            client.flushall,
            lambda: client.hset(key(store), "s:q", 1),
            lambda: client.hdel(key(store), "s:q"),
            lambda: client.hdel(key(store), "m:q"),
            lambda: client.delete(key(store)),
            lambda: client.hset(key(store), "generation", 99),
        ):
            assert (ex.stage, held(server, store)) == (-1, -1)
            damage()
            assert (ex.stage, held(server, store)) == (-1, -1)
    produce(ex, "left", "right")
    assert (ex.stage, held(server, store)) == (0, 0)


def test_d8_pushes_and_consumption_go_on_while_redis_is_away(
    ex: ExchangeClient, server: RedisProcess, store: el.Store
) -> None:
    """Even the stage is told: the catalog has every end mark, and Redis hears of them when it is back."""
    server.kill()
    seen = [ex.stage]
    for name in STAGE_OF:
        produce(ex, name)
        seen.append(ex.stage)
    assert seen == [-2, -1, -1, 0, 1]
    assert consumed(ex, 0) == ["seed", "left", "right", "probe"]
    server.start()
    wait_until(lambda: held(server, store) == 1)


def test_d8_a_restarted_server_takes_the_marks_over(store: el.Store, server: RedisProcess) -> None:
    with el.serve(store, stage_counter=server.url()) as first, client_of(first) as earlier:
        declare(earlier)
        produce(earlier, "seed")
        assert earlier.stage == -1
        with server.client() as client:
            client.hset(key(store), "s:q", 1)
        with el.serve(store, stage_counter=server.url()) as second, client_of(second) as later:
            assert (later.stage, held(server, store)) == (-1, -1)
            produce(later, "left", "right")
            assert (later.stage, held(server, store)) == (0, 0)
            assert earlier.stage == 0  # by the catalog
            produce(earlier, "probe")  # an end through the server that was fenced
            assert (earlier.stage, later.stage, held(server, store)) == (1, 1, 1)


def test_d8_without_a_coordinator_the_catalog_counts(store: el.Store) -> None:
    with el.serve(store) as served, client_of(served) as ex:
        declare(ex)
        seen = [ex.stage]
        for name in STAGE_OF:
            produce(ex, name)
            seen.append(ex.stage)
    with el.serve(store) as served, client_of(served) as ex:
        assert [*seen, ex.stage] == [-2, -1, -1, 0, 1, 1]


@pytest.mark.medium
def test_d8_a_bad_connection_between_server_and_redis(
    store: el.Store, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after delivery, cut before, a black hole, a delay: every answer is that of the end marks."""
    monkeypatch.setattr(stage_counter_redis, "ANSWER_S", 1.0)
    proxy = TcpProxy(server.port)
    try:
        with el.serve(store, stage_counter=f"redis://127.0.0.1:{proxy.port}/0") as served, client_of(served) as ex:
            declare(ex)
            wait_until(lambda: held(server, store) == -2)
            proxy.cut_answer(b"EVALSHA")
            produce(ex, "seed")
            assert ex.stage == -1
            assert proxy.fired.wait(WAIT_LIMIT_S)
            wait_until(lambda: held(server, store) == -1)
            proxy.refuse(True)
            produce(ex, "left")
            assert (ex.stage, held(server, store)) == (-1, -1)
            proxy.refuse(False)
            proxy.swallow(b"EVALSHA")
            produce(ex, "right")
            assert ex.stage == 0
            assert proxy.fired.wait(WAIT_LIMIT_S)
            proxy.slow(0.03)
            wait_until(lambda: held(server, store) == 0)
            produce(ex, "probe")
            assert ex.stage == 1
            assert consumed(ex, 0) == ["seed", "left", "right", "probe"]
            wait_until(lambda: held(server, store) == 1)
    finally:
        proxy.stop()


def test_d8_a_url_that_is_none_is_refused(store: el.Store) -> None:
    with pytest.raises(el.InvalidInput, match="stage counter"):
        el.serve(store, stage_counter="localhost:6379")


@pytest.mark.slow
def test_d8_epochlog_serve_and_its_redis_are_killed_together(store: el.Store, server: RedisProcess) -> None:
    command = [sys.executable, "-m", "epochlog", "serve", store.root, "--no-token", "--json"]
    command += ["--stage-counter", server.url(), "--bind"]

    def started(bind: str) -> tuple[subprocess.Popen[str], str]:
        child = subprocess.Popen([*command, bind], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        return child, json.loads(child.stdout.readline())["location"]

    child, location = started(f"127.0.0.1:{free_port()}")
    try:
        with ExchangeClient(location, query="q") as ex:
            declare(ex)
            produce(ex, "seed")
            assert (ex.stage, held(server, store)) == (-1, -1)
            child.kill()
            server.kill()
            child.communicate()
            server.lose_data()
            child, _ = started(location.removeprefix("grpc://"))
            assert ex.stage == -1  # Redis is away yet
            server.start()
            produce(ex, "left", "right")
            wait_until(lambda: ex.stage == 0 and held(server, store) == 0)
    finally:
        child.kill()
        child.communicate()
