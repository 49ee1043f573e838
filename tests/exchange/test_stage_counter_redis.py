"""End marks on a coordinating Redis server: whatever becomes of them, the stage is never ahead of the catalog's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

import epochlog as el
from epochlog.exchange.staged import stage_counter_redis as module
from epochlog.exchange.staged.stage_counter_redis import EndMark, EndMarks, RedisStageCounter
from epochlog.exchange.staged.stage_counter_scripts import marks_key
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.catalog.redis import client as redis_client
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import SystemClock
from epochlog.testing.tcp_proxy import TcpProxy
from redis_server import PASSWORD, RedisProcess
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.redis]

STORE_ID = "5" * 32
KEY = marks_key(STORE_ID)
PLAN = {-2: ("a",), -1: ("b", "c"), 0: ("d",)}
Books = dict[str, EndMarks]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def client(shared: RedisProcess) -> Iterator[redis.Redis]:
    with shared.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def books() -> Books:
    """State of the catalog: the end marks of each query."""
    return {"q": EndMarks(PLAN)}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[LmdbCatalog]:
    catalog = LmdbCatalog(tmp_path / "catalog", SystemClock(), durability="os", create=True)
    yield catalog
    catalog.close()


@pytest.fixture
def serve(
    catalog: LmdbCatalog, books: Books, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], RedisStageCounter]]:
    """Marks as another server of the store has them each time."""
    monkeypatch.setattr(module, "BACKOFF", Backoff(first_s=0.01, limit_s=0.05))
    monkeypatch.setattr(module, "ANSWER_S", WAIT_LIMIT_S)  # a slow answer is no lost one
    made: list[RedisStageCounter] = []

    def truth(query: str) -> EndMarks:
        if query not in books:
            raise el.QueryNotFound(f"there is no query {query!r}")
        return books[query]

    def make(url: str) -> RedisStageCounter:
        made.append(RedisStageCounter(url, STORE_ID, catalog, truth))
        return made[-1]

    yield make
    for marks in made:
        marks.close()


@pytest.fixture
def marks(serve: Callable[[str], RedisStageCounter], shared: RedisProcess, client: redis.Redis) -> RedisStageCounter:
    return serve(shared.url())


def end(books: Books, marks: RedisStageCounter | None, channel: str, query: str = "q", last: int = 3) -> None:
    """A producer's end, as the exchange does it: first the catalog."""
    known = books[query]
    books[query] = replace(known, passed={**known.passed, channel: EndMark(1, last)})
    if marks is not None:
        marks.end(query)


def held(client: redis.Redis, query: str = "q") -> int | None:
    """The counter that Redis holds, for those who ask it."""
    counter = client.hget(KEY, f"s:{query}")
    return None if counter is None else int(counter)  # pyright: ignore[reportArgumentType]


def walk(books: Books, marks: RedisStageCounter) -> list[int]:
    """The counter after each end mark."""
    stages = [marks.stage("q")]
    for channel in "abcd":
        end(books, marks, channel)
        stages.append(marks.stage("q"))
    return stages


@pytest.mark.rule("6.2")
def test_the_counter_follows_the_end_marks(books: Books, marks: RedisStageCounter, client: redis.Redis) -> None:
    assert walk(books, marks) == [-2, -1, -1, 0, 1]
    wait_until(lambda: held(client) == 1)
    assert marks.losses == 0


def test_redis_hears_of_marks_that_nobody_asks_for(books: Books, marks: RedisStageCounter, client: redis.Redis) -> None:
    marks.declare("q", PLAN)
    wait_until(lambda: held(client) == -2)
    end(books, marks, "a")
    wait_until(lambda: held(client) == -1)
    del books["q"]
    marks.drop("q")
    wait_until(lambda: held(client) is None and not client.hexists(KEY, "m:q"))


def test_a_query_that_is_unknown_or_empty_has_no_stage(books: Books, marks: RedisStageCounter) -> None:
    with pytest.raises(el.QueryNotFound):
        marks.stage("p")
    books["p"] = EndMarks({})
    with pytest.raises(el.InvalidInput, match="no channels are declared"):
        marks.stage("p")


Damage = Callable[[redis.Redis, RedisProcess], object]
DAMAGES: dict[str, Damage] = {
    "everything is flushed": lambda client, _: client.flushall(),
    "the key is gone": lambda client, _: client.delete(KEY),
    "the query's marks are gone": lambda client, _: client.hdel(KEY, "m:q"),
    "the counter is gone": lambda client, _: client.hdel(KEY, "s:q"),
    "the counter is ahead": lambda client, _: client.hset(KEY, "s:q", 1),
    "the counter is no number": lambda client, _: client.hset(KEY, "s:q", b"\xff"),
    "a mark is flipped": lambda client, _: client.hset(KEY, "m:q", _flipped(client.hget(KEY, "m:q"))),
    "the marks are rubbish": lambda client, _: client.hset(KEY, "m:q", b"\xc1"),
    "the generation is another": lambda client, _: client.hset(KEY, "generation", 10**9),
    "the generation is gone": lambda client, _: client.hdel(KEY, "generation"),
    "a newer server is named": lambda client, _: client.hset(KEY, "incarnation", 10**9),
    "the turn is ahead": lambda client, _: client.hset(KEY, "t:q", 10**9),
}


def _flipped(marks: object) -> bytes:
    """The second channel is said to have ended."""
    assert isinstance(marks, bytes)
    at = marks.index(b"\x00", 4)
    return marks[:at] + b"\x01" + marks[at + 1 :]


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.logs("stage_counter_reset")
def test_a_loss_is_noticed_and_mended(
    books: Books, marks: RedisStageCounter, client: redis.Redis, shared: RedisProcess, what: str
) -> None:
    books["other"] = EndMarks({0: ("x",), 1: ("y",)}, {"x": EndMark(0, -1)})
    end(books, None, "a")
    assert (marks.stage("q"), marks.stage("other"), marks.losses) == (-1, 1, 0)
    DAMAGES[what](client, shared)
    assert (marks.stage("q"), held(client), marks.losses) == (-1, -1, 1)
    wait_until(lambda: held(client, "other") == 1)  # what else was lost is made again unasked
    end(books, None, "b")
    end(books, None, "c")
    assert (marks.stage("q"), held(client), marks.losses) == (0, 0, 1)


@pytest.mark.logs("stage_counter_lost")
def test_a_key_of_another_type_keeps_nobody_from_the_catalog(
    books: Books, marks: RedisStageCounter, client: redis.Redis
) -> None:
    assert marks.stage("q") == -2
    client.delete(KEY)
    client.set(KEY, b"x")
    assert walk(books, marks) == [-2, -1, -1, 0, 1]


def test_a_later_server_fences_the_earlier_one(
    books: Books, serve: Callable[[str], RedisStageCounter], shared: RedisProcess, client: redis.Redis
) -> None:
    earlier = serve(shared.url())
    assert earlier.stage("q") == -2
    later = serve(shared.url())
    end(books, None, "a")
    assert later.stage("q") == -1
    before = client.hgetall(KEY)
    end(books, earlier, "b")
    end(books, earlier, "c")
    assert earlier.stage("q") == 0  # by the catalog
    assert client.hgetall(KEY) == before and earlier.losses == 0
    assert later.stage("q") == held(client) == 0


def test_a_server_that_takes_over_believes_nothing_of_what_it_finds(
    books: Books, serve: Callable[[str], RedisStageCounter], shared: RedisProcess, client: redis.Redis
) -> None:
    serve(shared.url()).stage("q")
    client.hset(KEY, "s:q", 1)
    client.hset(KEY, "s:gone", 1)
    assert serve(shared.url()).stage("q") == held(client) == -2
    assert not client.hexists(KEY, "s:gone")


def test_a_query_made_again_under_its_name_begins_anew(
    books: Books, marks: RedisStageCounter, client: redis.Redis
) -> None:
    for channel in "abcd":
        end(books, None, channel)
    assert marks.stage("q") == 1
    books["q"] = EndMarks({-5: ("a",), 0: ("z",)})
    assert marks.stage("q") == held(client) == -5 and marks.losses == 0


def test_a_wrong_url_is_refused_and_a_wrong_password_is_not_shown(
    serve: Callable[[str], RedisStageCounter],
    shared: RedisProcess,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(el.InvalidInput, match="stage counter must be a URL"):
        serve("http://127.0.0.1/0")
    client.execute_command("ACL", "SETUSER", "planner", "on", f">{PASSWORD}", "~epochlog:*", "+@all")
    assert serve(shared.url("planner", "geheim")).stage("q") == -2
    assert "refuses the login" in caplog.text and "geheim" not in caplog.text


def test_the_rights_that_a_catalog_needs_are_enough(
    serve: Callable[[str], RedisStageCounter], books: Books, shared: RedisProcess, client: redis.Redis
) -> None:
    text = " ".join((redis_client.__doc__ or "").split())
    rights = text.partition("commands `")[2].partition("`")[0].split()
    client.execute_command("ACL", "SETUSER", "counter", "on", f">{PASSWORD}", "~epochlog:*", "-@all", *rights)
    marks = serve(shared.url("counter"))
    assert (marks.stage("q"), held(client)) == (-2, -2)
    client.hset(KEY, "s:q", 1)
    assert (marks.stage("q"), held(client), marks.losses) == (-2, -2, 1)


# ---- a server that goes away, and a bad connection ---------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def proxy(shared: RedisProcess, client: redis.Redis) -> Iterator[TcpProxy]:
    proxy = TcpProxy(shared.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def short_answers(serve: Callable[[str], RedisStageCounter], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call of Redis fail soon, for tests whose proxy keeps an answer back."""
    monkeypatch.setattr(module, "ANSWER_S", 1.0)


def test_killed_and_started_again_with_its_data(
    books: Books, serve: Callable[[str], RedisStageCounter], own: RedisProcess
) -> None:
    marks = serve(own.url())
    end(books, None, "a")
    assert marks.stage("q") == -1
    own.kill()
    end(books, marks, "b")
    assert marks.stage("q") == -1
    end(books, marks, "c")
    assert marks.stage("q") == 0  # the catalog answers
    own.start()
    with own.client() as client:
        wait_until(lambda: held(client) == 0)  # unasked
    assert marks.stage("q") == 0 and marks.losses == 0


@pytest.mark.medium
def test_killed_and_started_empty(books: Books, serve: Callable[[str], RedisStageCounter], own: RedisProcess) -> None:
    marks = serve(own.url())
    end(books, None, "a")
    assert marks.stage("q") == -1
    own.kill()
    own.lose_data()
    own.start()
    with own.client() as client:
        wait_until(lambda: marks.stage("q") == -1 and held(client) == -1)
    assert marks.losses == 1


@pytest.mark.medium
@pytest.mark.usefixtures("short_answers")
def test_a_connection_that_is_cut_delayed_or_swallowed(
    books: Books, serve: Callable[[str], RedisStageCounter], proxy: TcpProxy, client: redis.Redis
) -> None:
    marks = serve(f"redis://127.0.0.1:{proxy.port}/0")
    wait_until(lambda: marks.stage("q") == -2 and held(client) == -2)
    end(books, None, "a")
    proxy.cut_answer(b"EVALSHA")  # the writing lands, its answer does not
    wait_until(lambda: marks.stage("q") == -1 and proxy.fired.is_set())
    assert held(client) == -1
    end(books, None, "b")
    end(books, None, "c")
    wait_until(lambda: marks.stage("q") == 0 and held(client) == 0)
    proxy.swallow(b"EVALSHA")
    end(books, None, "d")
    wait_until(lambda: marks.stage("q") == 1 and proxy.fired.is_set())
    wait_until(lambda: marks.stage("q") == 1 and held(client) == 1)
    proxy.refuse(True)
    books["q"] = EndMarks(PLAN)
    assert marks.stage("q") == -2 and held(client) == 1
    proxy.refuse(False)
    proxy.slow(0.02)
    wait_until(lambda: marks.stage("q") == -2 and held(client) == -2)
    assert marks.losses == 0  # nothing was: each of these was its own doing


def test_a_writing_that_arrives_late_changes_nothing(
    books: Books, serve: Callable[[str], RedisStageCounter], proxy: TcpProxy, client: redis.Redis
) -> None:
    """It was held on its way while the query was made again, with other channels: it would put the counter ahead."""
    marks = serve(f"redis://127.0.0.1:{proxy.port}/0")
    wait_until(lambda: marks.stage("q") == -2 and held(client) == -2)
    turn = client.hget(KEY, "t:q")
    for channel in "abcd":
        end(books, None, channel)
    proxy.hold(b"EVALSHA")
    wait_until(lambda: marks.stage("q") == 1 and proxy.fired.is_set())
    assert held(client) == -2
    books["q"] = EndMarks(PLAN)
    wait_until(lambda: marks.stage("q") == -2 and client.hget(KEY, "t:q") != turn)
    proxy.deliver()
    assert held(client) == -2
    assert marks.stage("q") == -2 and marks.losses == 0


def test_an_earlier_servers_claim_that_arrives_late_is_refused(
    books: Books, serve: Callable[[str], RedisStageCounter], proxy: TcpProxy, shared: RedisProcess, client: redis.Redis
) -> None:
    earlier = serve(f"redis://127.0.0.1:{proxy.port}/0")
    proxy.hold(b"EVALSHA")
    assert earlier.stage("q") == -2 and proxy.fired.is_set() and held(client) is None
    end(books, None, "a")
    later = serve(shared.url())
    assert later.stage("q") == -1
    before = client.hgetall(KEY)
    proxy.deliver()
    assert client.hgetall(KEY) == before
    assert later.stage("q") == -1 and later.losses == 0


@pytest.mark.logs("stage_mismatch")
def test_a_counter_that_differs_from_the_marks_is_logged(
    books: Books, marks: RedisStageCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_write_checked", lambda query, books: 7)
    assert marks.stage("q") == books["q"].stage != 7
