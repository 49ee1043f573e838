"""D8: the stage counter of a query in Redis, the catalog of two servers; any of them goes away, and Redis comes back as
it was, empty, or old.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged import messages, transactions
from epochlog.exchange.staged.service import StagedExchange
from epochlog.store.catalog.records import unpack
from epochlog.store.catalog.redis import client as redis_client
from epochlog.store.metadata.exchange_records import query_key
from epochlog.testing.tcp_proxy import TcpProxy
from exchange_server import TOKEN, ServerProcess
from ports import free_port
from redis_server import RedisProcess
from wait_until import WAIT_LIMIT_S

pytestmark = [pytest.mark.local_only, pytest.mark.redis]

STAGES = {-2: ["seed"], -1: ["left", "right"], 0: ["probe"]}
STAGE_OF = {name: stage for stage, names in STAGES.items() for name in names}
ALL = ["seed", "left", "right", "probe"]
BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture(scope="module")
def started() -> Iterator[list[RedisProcess | TcpProxy]]:
    """Servers that outlast their tests, because the stores are verified at the end of each."""
    started: list[RedisProcess | TcpProxy] = []
    yield started
    for process in started:
        process.stop()


@pytest.fixture
def redis(tmp_path: Path, started: list[RedisProcess | TcpProxy]) -> RedisProcess:
    server = RedisProcess(tmp_path / "redis")
    started.append(server)
    return server


def client_of(location: str, token: str | None = None, timeout: float = WAIT_LIMIT_S) -> ExchangeClient:
    return ExchangeClient(location, query="q", token=token, timeout=timeout)


@contextmanager
def served(root: Path, url: str) -> Iterator[tuple[el.Store, ExchangeClient]]:
    """A server with the store open by itself, as another host has it, and a client."""
    with el.open(root, url, durability="os") as store, el.serve(store) as server, client_of(server.location) as ex:
        yield store, ex


def declare(ex: ExchangeClient) -> None:
    ex.declare("join", stages=STAGES)


def produce(ex: ExchangeClient, *channels: str, attempt: int = 0) -> None:
    """A batch and the end, durable on return."""
    for channel in channels:
        ex.push(channel, STAGE_OF[channel], 0, BATCH, attempt)
        ex.end(channel, 0, attempt)


def consumed(ex: ExchangeClient, incarnation: int) -> list[str]:
    with ex.consume("join", incarnation=incarnation) as mail:
        return [channel for channel, _, _ in mail]


def held(redis: RedisProcess, store: el.Store) -> int | None:
    """The counter that Redis holds: that of the query's record."""
    records = f"epochlog:{{{store._handle.store_id}}}:records"
    with redis.client() as client:
        value: Any = client.hget(records, query_key("q"))  # pyright: ignore[reportArgumentType]
    if value is None:
        return None
    return transactions.StagedQuery.from_record("q", unpack(query_key("q"), value)).stage


# ---- two servers -----------------------------------------------------------------------------------------------------


def check_two_servers_have_one_counter(root: Path, redis: RedisProcess) -> None:
    """Channels end through one server or the other; both answer with the counter that Redis holds, which only rises. An
    earlier attempt of a producer moves it through neither.
    """
    with served(root, redis.url()) as (store, first), served(root, redis.url()) as (_, second):
        declare(first)
        seen = [held(redis, store)]
        for number, channel in enumerate(ALL):
            here, there = (first, second) if number % 2 else (second, first)
            assert (first.stage, second.stage) == (seen[-1], seen[-1])
            here.push(channel, STAGE_OF[channel], 0, BATCH, attempt=1)
            with pytest.raises(el.Fenced):
                there.end(channel, 0, attempt=0)
            assert held(redis, store) == seen[-1]
            there.end(channel, 0, attempt=1)
            seen.append(held(redis, store))
            assert (first.stage, second.stage) == (seen[-1], seen[-1])
        assert seen == [-2, -1, -1, 0, 1]
        assert consumed(second, 1) == ALL
        with pytest.raises(el.Fenced):
            first.consume("join", incarnation=0)


@pytest.mark.rule("6.2")
@pytest.mark.rule("6.4")
def test_d8_two_servers_over_one_redis_have_one_counter(tmp_path: Path, redis: RedisProcess) -> None:
    check_two_servers_have_one_counter(tmp_path / "s", redis)


@pytest.mark.rule("6.2")
def test_d8_ends_that_come_through_both_servers_at_once_are_counted_in_order(
    tmp_path: Path, redis: RedisProcess
) -> None:
    """Forty channels of ten stages end in any order through two servers: each state that Redis had has a counter that
    is that of its channels, and no later one has a lower counter.
    """
    names = {stage: [f"c{stage}.{number}" for number in range(4)] for stage in range(10)}
    with served(tmp_path / "s", redis.url()) as (store, first), served(tmp_path / "s", redis.url()) as (_, second):
        first.declare("join", stages=names)
        with ThreadPoolExecutor(9) as pool:
            ends = [
                pool.submit((first, second)[(stage + number) % 2].end, name, -1)
                for stage in reversed(range(10))
                for number, name in enumerate(names[stage])
            ]
            counters: list[int | None] = []
            while not all(end.done() for end in ends):
                counters.append(held(redis, store))
            for end in ends:
                end.result()
        assert counters == sorted(counters, key=lambda counter: -1 if counter is None else counter)
        assert (first.stage, second.stage, held(redis, store)) == (10, 10, 10)


@pytest.mark.rule("6.2")
@pytest.mark.rule("6.14")
@pytest.mark.medium
def test_d8_a_second_server_decides_after_the_first_was_killed(tmp_path: Path, redis: RedisProcess) -> None:
    root = tmp_path / "s"
    with ExitStack() as stack:
        first, second = (stack.enter_context(ServerProcess(root, redis.url())) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        earlier, later = (stack.enter_context(client_of(server.location, TOKEN)) for server in (first, second))
        declare(earlier)
        produce(earlier, "seed", "left", attempt=1)
        waiting = pool.submit(later.wait_stage, 0, timeout=WAIT_LIMIT_S)
        first.kill()
        assert later.stage == -1
        with pytest.raises(el.Fenced):  # of an attempt that the killed server had fenced
            later.end("left", 0, attempt=0)
        assert not waiting.done()
        produce(later, "right")
        assert waiting.result() == 0 and later.stage == 0
        produce(later, "probe")
        assert later.stage == 1 and consumed(later, 0) == ALL


def a_server_that_counts_by_itself(patch: pytest.MonkeyPatch) -> None:
    """It counts the ends that came through it."""
    ends: dict[Any, set[str]] = {}
    end = StagedExchange._end

    def counted(service: Any, body: bytes) -> bytes:
        answer = end(service, body)
        ends.setdefault(service, set()).add(messages.unpack(body, messages.END)["channel"])
        return answer

    def stage(service: Any, name: str) -> int:
        return min((STAGE_OF[channel] for channel in ALL if channel not in ends.get(service, set())), default=1)

    patch.setattr(StagedExchange, "_end", counted)
    patch.setattr(StagedExchange, "_read_stage", stage)


def attempts_that_fence_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "check_producer", lambda channel, stage, attempt: None)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [a_server_that_counts_by_itself, attempts_that_fence_nobody])
def test_d8_a_counter_that_is_not_one_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, redis: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_two_servers_have_one_counter(tmp_path / "s", redis)


# ---- the counter in Redis --------------------------------------------------------------------------------------------


@pytest.mark.rule("6.2")
def test_d8_the_counter_is_kept_in_redis(tmp_path: Path, redis: RedisProcess) -> None:
    with served(tmp_path / "s", redis.url()) as (store, ex):
        assert held(redis, store) is None
        declare(ex)
        assert (ex.stage, held(redis, store)) == (-2, -2)
        produce(ex, "seed", "right")
        assert (ex.stage, held(redis, store)) == (-1, -1)
        produce(ex, "left", "probe")
        assert (ex.stage, held(redis, store)) == (1, 1)
        assert consumed(ex, 0) == ALL
        ex.drop()
        assert held(redis, store) is None
        declare(ex)  # another query under the old name, which had ended
        assert (ex.stage, held(redis, store)) == (-2, -2)


@pytest.mark.rule("6.2")
def test_d8_a_stage_passes_with_the_push_that_completes_it(tmp_path: Path, redis: RedisProcess) -> None:
    """Its end mark came before, and is not counted until all up to there was pushed."""
    with served(tmp_path / "s", redis.url()) as (store, ex):
        declare(ex)
        ex.end("seed", 1)
        ex.push("seed", -2, 1, BATCH)
        assert (ex.stage, held(redis, store)) == (-2, -2)
        ex.push("seed", -2, 0, BATCH)
        assert (ex.stage, held(redis, store)) == (-1, -1)


def test_d8_without_redis_the_catalog_counts(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store:
        with el.serve(store) as server, client_of(server.location) as ex:
            declare(ex)
            seen = [ex.stage]
            for name in STAGE_OF:
                produce(ex, name)
                seen.append(ex.stage)
        with el.serve(store) as server, client_of(server.location) as ex:
            assert [*seen, ex.stage] == [-2, -1, -1, 0, 1, 1]


def test_d8_pushes_wait_while_redis_is_away_and_go_on(tmp_path: Path, redis: RedisProcess) -> None:
    with served(tmp_path / "s", redis.url()) as (store, ex), ThreadPoolExecutor(1) as pool:
        declare(ex)
        produce(ex, "seed")
        redis.kill()
        rest = pool.submit(produce, ex, "left", "right")
        assert not rest.done()
        redis.start()
        rest.result()
        assert (ex.stage, held(redis, store)) == (0, 0)
        produce(ex, "probe")
        assert (ex.stage, held(redis, store)) == (1, 1) and consumed(ex, 0) == ALL


@pytest.mark.medium
def test_d8_a_redis_that_comes_back_empty_or_old_counts_nothing(tmp_path: Path, redis: RedisProcess) -> None:
    """An old catalog would put the query back to what it was, and an empty one has none: both are refused by name."""
    old = redis.folder.parent / "old"
    with served(tmp_path / "s", redis.url()) as (store, ex):
        declare(ex)
        produce(ex, "seed")
        redis.kill()
        redis.copy_data(old)
        redis.start()
        produce(ex, "left", "right")
        assert (ex.stage, held(redis, store)) == (0, 0)
        new = redis.folder.parent / "new"
        redis.kill()
        redis.copy_data(new)
        for damage, refusal in (
            (lambda: redis.put_data_back(old), el.CatalogRolledBack),
            (redis.lose_data, el.CatalogLost),
        ):
            damage()
            redis.start()
            for refused in (lambda: ex.stage, lambda: ex.wait_stage(1), lambda: ex.end("probe", -1)):
                with pytest.raises(refusal):
                    refused()
            redis.kill()
        redis.put_data_back(new)
        redis.start()
        assert (ex.stage, held(redis, store)) == (0, 0)


@pytest.mark.medium
def test_d8_a_bad_connection_between_server_and_redis(
    tmp_path: Path, redis: RedisProcess, started: list[RedisProcess | TcpProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after delivery, refused, swallowed, slow: every answer is that of the end marks, each counted once."""
    monkeypatch.setitem(redis_client._TIMEOUTS, "socket_timeout", 1.0)
    proxy = TcpProxy(redis.port)
    started.append(proxy)
    with served(tmp_path / "s", redis.url(port=proxy.port)) as (store, ex):
        declare(ex)
        proxy.cut_answer(b"EVALSHA")
        produce(ex, "seed")
        assert proxy.fired.wait(WAIT_LIMIT_S)
        assert (ex.stage, held(redis, store)) == (-1, -1)
        proxy.swallow(b"EVALSHA")
        produce(ex, "left")
        assert proxy.fired.wait(WAIT_LIMIT_S)
        assert (ex.stage, held(redis, store)) == (-1, -1)
        with ThreadPoolExecutor(1) as pool:
            proxy.refuse(True)
            right = pool.submit(produce, ex, "right")
            assert held(redis, store) == -1
            proxy.refuse(False)
            right.result()
        proxy.slow(0.03)
        assert (ex.stage, held(redis, store)) == (0, 0)
        produce(ex, "probe")
        assert (ex.stage, held(redis, store)) == (1, 1)
        assert consumed(ex, 0) == ALL


@pytest.mark.slow
def test_d8_epochlog_serve_and_its_redis_are_killed_together(tmp_path: Path, redis: RedisProcess) -> None:
    """The option of an earlier version names a server that is not there: the command says that it has no effect."""
    root, errors = tmp_path / "s", tmp_path / "errors"
    with el.open(root, redis.url(), durability="os") as store, errors.open("wb") as stderr:
        command = [sys.executable, "-m", "epochlog", "serve", store.root, "--catalog", redis.url(), "--no-token"]
        command += ["--stage-counter", "redis://127.0.0.1:1/0", "--json", "--bind"]

        def started(bind: str) -> tuple[subprocess.Popen[str], str]:
            child = subprocess.Popen([*command, bind], stdout=subprocess.PIPE, stderr=stderr, text=True)
            assert child.stdout is not None
            return child, json.loads(child.stdout.readline())["location"]

        child, location = started(f"127.0.0.1:{free_port()}")
        try:
            with client_of(location) as ex:
                declare(ex)
                produce(ex, "seed")
                assert (ex.stage, held(redis, store)) == (-1, -1)
                child.kill()
                redis.kill()
                child.communicate()
                redis.start()
                child, _ = started(location.removeprefix("grpc://"))
                assert ex.stage == -1
                produce(ex, "left", "right")
                assert (ex.stage, held(redis, store)) == (0, 0)
        finally:
            child.kill()
            child.communicate()
    assert errors.read_text().count("leave --stage-counter out") == 2


# ---- the arguments of earlier versions -------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["stage_counter", "coordinator"])
def test_d8_the_server_of_a_copy_is_taken_and_not_used(tmp_path: Path, redis: RedisProcess, argument: str) -> None:
    options: dict[str, Any] = {argument: redis.url()}
    with el.open(tmp_path / "s", durability="os") as store:
        with pytest.warns(DeprecationWarning, match=f"the store's catalog counts.*leave {argument}= out"):
            server = el.serve(store, **options)
        with server, client_of(server.location) as ex:
            declare(ex)
            produce(ex, "seed")
            assert ex.stage == -1
        for value in ("", 5, True):
            with pytest.raises(el.InvalidInput, match=f"{argument}= takes the URL"):
                el.serve(store, **{argument: value})
    with redis.client() as client:
        assert client.dbsize() == 0
