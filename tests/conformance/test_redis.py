"""The Redis catalog against a real server that is killed, emptied, filled, rolled back, paused and cut off."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
import redis

import epochlog as el
from catalog_makers import RedisMaker, check_stores, empty, server_of
from certificates import make_certificate
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.catalog.redis import client as redis_client
from epochlog.store.catalog.redis import scripts, transaction
from epochlog.store.catalog.redis.catalog import RedisCatalog
from epochlog.store.catalog.redis.client import RedisServer as Client
from epochlog.testing.tcp_proxy import TcpProxy
from redis_server import PASSWORD, RedisProcess

pytestmark = [pytest.mark.slow, pytest.mark.redis]

SCHEMA = pa.schema([pa.field("id", pa.int64())])
COMMIT = scripts.COMMIT.sha


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """For tests that leave the server as it was."""
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    """For tests that mistreat it."""
    yield from server_of(tmp_path / "redis")


@pytest.fixture
def maker(shared: RedisProcess) -> Iterator[RedisMaker]:
    with ExitStack() as stack:
        yield RedisMaker(stack, shared)


@pytest.fixture
def proxy(shared: RedisProcess) -> Iterator[TcpProxy]:
    tcp_proxy = TcpProxy(shared.port)
    yield tcp_proxy
    check_stores()
    tcp_proxy.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "RECONNECT_S", 0.3)


def put(key: bytes, n: int = 0) -> Callable[[Txn], None]:
    return lambda tx: tx.put(key, {"n": n})


def increment(tx: Txn) -> int:
    n = (tx.get(b"n") or {"n": 0})["n"] + 1
    tx.put(b"n", {"n": n})
    return n


def keys_of(view: ReadTxn) -> list[bytes]:
    return [key for key, _ in view.scan(b"", b"\xff")]


# ---- optimistic bodies -------------------------------------------------------------------------------------------


def test_a_body_whose_state_changed_runs_again_and_others_do_not(maker: RedisMaker) -> None:
    first, second = maker.open(), maker.open()
    runs: list[int] = []

    def body(tx: Txn, disturb: bytes) -> None:
        runs.append(1)
        tx.get(b"mine")
        list(tx.scan(b"r/", b"r0"))
        if len(runs) == 1:
            second.transact(put(disturb))
        tx.put(b"out", {})

    for disturb, wanted in ((b"mine", 2), (b"r/new", 2), (b"other", 1), (b"r0", 1), (b"r.", 1)):
        runs.clear()
        first.transact(lambda tx, key=disturb: body(tx, key))
        assert len(runs) == wanted, disturb
    second.transact(put(b"r/new"))
    runs.clear()

    def deleting(tx: Txn) -> None:
        runs.append(1)
        list(tx.scan(b"r/", b"r0"))
        if len(runs) == 1:
            second.transact(lambda other: other.delete(b"r/new"))
        tx.put(b"out", {})

    first.transact(deleting)
    assert len(runs) == 2


def test_a_reader_that_asks_step_by_step_gets_through_constant_writes(maker: RedisMaker) -> None:
    """Before each of its 30 questions another process writes what it has read already."""
    first, second = maker.open(), maker.open()
    second.transact(lambda tx: [tx.put(b"k/%02d" % n, {"n": n}) for n in range(30)] and None)
    runs = [0]

    def body(view: ReadTxn) -> int:
        runs[0] += 1
        count = 0
        for n in range(30):
            second.transact(put(b"k/%02d" % max(n - 1, 0), runs[0]))
            count += view.get(b"k/%02d" % n) is not None
        return count

    assert first.read(body) == 30
    assert runs[0] <= 31


def test_a_long_scan_gets_through_constant_writes(maker: RedisMaker) -> None:
    first, second = maker.open(), maker.open()
    second.transact(lambda tx: [tx.put(b"k/%05d" % n, {"n": n}) for n in range(9_000)] and None)
    runs = [0]

    def body(view: ReadTxn) -> int:
        runs[0] += 1
        count = 0
        for _ in view.scan(b"k/", b"k0"):
            if count % 1_000 == 0:
                second.transact(put(b"k/%05d" % (count // 2), runs[0]))
            count += 1
        return count

    assert first.read(body) == 9_000
    assert runs[0] <= 5


def test_a_state_that_is_very_old_is_no_reason_to_compare_forever(maker: RedisMaker) -> None:
    first, second = maker.open(), maker.open()
    second.transact(put(b"a"))
    runs = [0]

    def body(tx: Txn) -> None:
        runs[0] += 1
        tx.get(b"a")
        if runs[0] == 1:
            second.transact(lambda tx: [tx.put(b"x%d" % n, {}) for n in range(scripts.MAX_CHANGED + 1)] and None)
        tx.put(b"b", {})

    first.transact(body)
    assert runs[0] == 2


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that are sent."""
    names, once = list[str](), Client.run_once

    def counted(self: Client, script: scripts.Script, *args: object) -> list:
        names.append(script.name)
        return once(self, script, *args)

    monkeypatch.setattr(Client, "run_once", counted)
    return names


def test_what_a_body_read_before_is_fetched_at_once(maker: RedisMaker, sent: list[str]) -> None:
    catalog = maker.open()
    sent.clear()

    def body(tx: Txn) -> None:
        for n in range(10):
            tx.get(b"k%d" % n)
        list(tx.scan(b"r/", b"r0"))
        tx.put(b"k1", {})

    catalog.transact(body)
    assert len(sent) == 12
    sent.clear()
    catalog.transact(body)
    assert sent == ["fetch", "commit"]
    sent.clear()
    catalog.transact(lambda tx: tx.get(b"k1") and None)
    assert sent == ["fetch"]


def test_a_body_that_asked_for_the_version_alone_fetches_the_rest_at_once_when_it_is_another(
    maker: RedisMaker, sent: list[str]
) -> None:
    catalog, other, known = maker.open(), maker.open(), dict[int, list]()

    def body(view: ReadTxn) -> None:
        if view.version not in known:
            known[view.version] = [view.get(b"k"), *view.scan(b"r/", b"r0")]

    for n in range(4):
        other.transact(lambda tx, n=n: tx.put(b"r/%d" % n, {}))
        sent.clear()
        for _ in range(3):
            catalog.read(body)
        if n:
            assert sent == ["fetch"] * 3
    assert [len(rows) for rows in known.values()] == [2, 3, 4, 5]


def test_deletions_that_nobody_needs_are_let_go(maker: RedisMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = maker.open(), maker.open()
    catalog.transact(lambda tx: [tx.put(b"k%d" % n, {}) for n in range(5)] and None)
    at = catalog.version()
    catalog.transact(lambda tx: tx.delete(b"k0"))
    changes = catalog.changes_since(at)
    assert changes is not None and changes.records == {b"k0": None}
    runs = [0]

    def body(tx: Txn) -> None:
        runs[0] += 1
        tx.get(b"k0")
        if runs[0] == 1:
            other.transact(lambda tx: tx.delete(b"k1"))
            other.forget_deleted(other.version())
        tx.put(b"out", {})

    catalog.transact(body)  # it cannot be told what was deleted meanwhile, so it runs again
    assert runs[0] == 2
    assert catalog.changes_since(at) is None
    all_changes = catalog.changes_since(0, without_deletions=True)
    assert all_changes is not None and sorted(all_changes.records) == [b"k2", b"k3", b"k4", b"out"]
    text = scripts.COMMIT.text.replace(b"local MAX_DELETIONS = 100000", b"local MAX_DELETIONS = 100")
    monkeypatch.setattr("epochlog.store.catalog.redis.catalog.COMMIT", scripts.Script("commit", text))
    catalog.transact(lambda tx: [tx.put(b"x%03d" % n, {}) for n in range(300)] and None)
    at = catalog.version()
    for n in range(300):
        catalog.transact(lambda tx, n=n: tx.delete(b"x%03d" % n))
    assert maker.server.client().zcard(maker.key("gone")) <= 101
    assert catalog.changes_since(at) is None
    catalog.verify_storage()


@pytest.mark.parametrize("count", [1, 1_999, 2_000, 2_001, 9_000])
def test_changes_are_whole_however_many_there_are(maker: RedisMaker, count: int) -> None:
    catalog = maker.open()
    catalog.transact(put(b"before"))
    at = catalog.version()
    for first in range(0, count, 1_500):
        keys = [b"k%05d" % n for n in range(first, min(first + 1_500, count))]
        catalog.transact(lambda tx, keys=keys: [tx.put(key, {}) for key in keys] and None)
    for first in range(0, count, 3):
        catalog.transact(lambda tx, n=first: [tx.delete(b"k%05d" % k) for k in range(n, n + 1)] and None)
        if first > 300:
            break
    changes = catalog.changes_since(at)
    assert changes is not None and changes.version == catalog.version()
    gone = {key for key, value in changes.records.items() if value is None}
    live = {key for key, value in changes.records.items() if value is not None}
    assert sorted(live) == [key for key in catalog.read(keys_of) if key != b"before"]
    assert len(live) + len(gone) == count


# ---- lost, emptied and older servers ------------------------------------------------------------------------------


def test_an_emptied_server_is_noticed_and_not_written_to(server: RedisProcess, tmp_path: Path) -> None:
    with el.open(tmp_path / "s", server.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": [1]}))
        empty(server)
        for use in (table.count, lambda: table.upsert(pa.table({"id": [2]})), lambda: store.last_epoch):
            with pytest.raises(el.CatalogLost, match="restore_catalog"):
                use()
        with pytest.raises(el.CatalogLost):
            el.open(tmp_path / "s", server.url())
    assert server.client().dbsize() == 0
    shutil.rmtree(tmp_path / "s")


def test_another_catalog_in_its_place_is_noticed(server: RedisProcess) -> None:
    with ExitStack() as stack:
        maker = RedisMaker(stack, server)
        catalog = maker.open()
        catalog.transact(increment)
        empty(server)
        again = maker.open()  # a new one, under the same store
        assert again.transact(increment) == 1
        with pytest.raises(el.CatalogLost):
            catalog.transact(increment)
        assert again.read(lambda view: view.get(b"n")) == {"n": 1}


@pytest.mark.parametrize("name", scripts.KEY_NAMES)
def test_a_key_that_is_gone_or_of_another_type_is_lost_or_damaged_never_empty(maker: RedisMaker, name: str) -> None:
    catalog, client = maker.open(), maker.server.client()
    for n in range(3):
        catalog.transact(put(b"k%d" % n))
    catalog.transact(lambda tx: tx.delete(b"k0"))
    dumped = client.dump(maker.key(name))
    assert isinstance(dumped, bytes)
    uses: list[Callable[[], object]] = [
        lambda: catalog.read(keys_of), lambda: catalog.transact(put(b"a")), catalog.version, catalog.verify_storage,
    ]  # fmt: skip
    client.delete(maker.key(name))
    for use in uses:
        with pytest.raises(el.CatalogLost):
            use()
    client.set(maker.key(name), "x")
    for use in uses:
        with pytest.raises(el.Corrupt):
            use()
    client.delete(maker.key(name))
    client.restore(maker.key(name), 0, dumped)
    catalog.transact(put(b"a"))
    assert catalog.read(keys_of) == [b"a", b"k1", b"k2"]


def copy_of(server: RedisProcess, folder: Path) -> Path:
    """The data as it is now, from a server that is down for the moment."""
    server.kill()
    server.copy_data(folder)
    server.start()
    return folder


def put_back(server: RedisProcess, copy: Path) -> None:
    server.kill()
    server.put_data_back(copy)
    server.start()


def test_an_older_server_is_refused_by_who_has_seen_more(server: RedisProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        maker = RedisMaker(stack, server)
        writer, reader, asleep = maker.open(), maker.open(), maker.open()
        for _ in range(3):
            writer.transact(increment)
        asleep.version()
        old = copy_of(server, tmp_path / "old")
        writer.transact(increment)
        assert reader.read(lambda view: view.get(b"n")) == {"n": 4}
        put_back(server, old)
        for catalog in (writer, reader):
            for use in (lambda c=catalog: c.read(keys_of), lambda c=catalog: c.transact(increment), catalog.version):
                with pytest.raises(el.CatalogRolledBack, match="restore_catalog"):
                    use()
        assert asleep.transact(increment) == 4  # it cannot know; but when it has caught up, the others still do
        for further in range(3):
            for catalog in (writer, reader):
                with pytest.raises(el.CatalogRolledBack):
                    catalog.transact(increment)
            assert asleep.transact(increment) == 5 + further


def test_an_older_server_is_refused_by_a_fresh_process_through_what_was_shipped(
    server: RedisProcess, tmp_path: Path
) -> None:
    with el.open(tmp_path / "s", server.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        old = copy_of(server, tmp_path / "old")
        table.upsert(pa.table({"id": [1]}))
        ship(store._handle)
    put_back(server, old)
    with pytest.raises(el.CatalogRolledBack):
        el.open(tmp_path / "s", server.url())
    el.restore_catalog(tmp_path / "s", catalog=server.url())
    with el.open(tmp_path / "s", server.url()) as store:
        assert store.table("t").count() == 1


# ---- crashes and lost answers -------------------------------------------------------------------------------------


def test_a_server_killed_in_the_middle_of_commits_keeps_what_it_acknowledged(
    server: RedisProcess, tmp_path: Path
) -> None:
    with el.open(tmp_path / "s", server.url(), durability="os") as store:
        table, over, done = store.create_table("t", SCHEMA, ["id"]), threading.Event(), dict[int, int]()

        def commit(first: int) -> None:
            number = first
            while not over.is_set():
                done[number] = table.upsert(pa.table({"id": [number]}), txn=(str(first), number))
                number += 2

        threads = [threading.Thread(target=commit, args=(first,)) for first in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            count = len(done)
            while len(done) < count + 10 and any(thread.is_alive() for thread in threads):
                pass
            server.kill()
            server.start()
        over.set()
        for thread in threads:
            thread.join()
        history = store.table("t").history().to_pylist()
        assert {row["epoch"] for row in history} == set(done.values())
        assert len(history) == len(done) == table.count()
        assert store.verify().ok


def test_a_lost_answer_is_asked_for_and_nothing_lands_twice(maker: RedisMaker, proxy: TcpProxy) -> None:
    catalog = maker.open(url=maker.server.url(port=proxy.port))
    runs: list[int] = []

    def body(tx: Txn) -> int:
        runs.append(1)
        return increment(tx)

    assert catalog.transact(body) == 1  # the server knows the script now
    for n in range(2, 7):
        runs.clear()
        proxy.cut_answer(COMMIT)
        assert catalog.transact(body) == n
        assert proxy.fired.is_set()
        assert len(runs) == 1
    assert maker.open().read(lambda view: view.get(b"n")) == {"n": 6}


def test_a_commit_that_vanishes_without_a_word_is_made_once(maker: RedisMaker, proxy: TcpProxy) -> None:
    """The connection stays open, and nothing passes it: the client's own patience ends the wait."""
    catalog = maker.open(url=f"{maker.server.url(port=proxy.port)}?socket_timeout=0.3")
    for n in range(1, 4):
        proxy.swallow(COMMIT)
        assert catalog.transact(increment) == n
        assert proxy.fired.is_set()
    proxy.swallow(b"*")  # any request
    assert catalog.read(lambda view: view.get(b"n")) == {"n": 3}
    assert proxy.fired.is_set()
    assert maker.open().read(lambda view: view.get(b"n")) == {"n": 3}


def test_commits_and_reads_pass_a_slow_network(maker: RedisMaker, proxy: TcpProxy) -> None:
    catalog, other = maker.open(url=maker.server.url(port=proxy.port)), maker.open()
    proxy.slow(0.02)
    for n in range(1, 8, 2):  # somebody else, who is quicker, is between
        assert catalog.transact(increment) == n
        assert other.transact(increment) == n + 1
    assert catalog.read(lambda view: view.get(b"n")) == {"n": 8}


def test_a_late_script_meets_the_decision_that_it_shall_not_land(maker: RedisMaker, proxy: TcpProxy) -> None:
    catalog, other = maker.open(url=maker.server.url(port=proxy.port)), maker.open()
    assert catalog.transact(increment) == 1
    proxy.hold(COMMIT)
    assert catalog.transact(increment) == 2  # decided against, and begun again
    assert proxy.fired.is_set()
    version = other.version()
    answer = proxy.deliver()
    assert b":%d\r\n" % scripts.ABORTED in answer
    assert other.version() == version
    assert other.read(lambda view: view.get(b"n")) == {"n": 2}


def test_a_late_script_that_nobody_asked_about_is_refused_by_its_deadline(
    maker: RedisMaker, proxy: TcpProxy, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = maker.open(url=maker.server.url(port=proxy.port)), maker.open()
    monkeypatch.setattr("epochlog.store.catalog.redis.catalog.DEADLINE_MS", 100)
    catalog.transact(increment)
    proxy.hold(COMMIT)
    decide = RedisCatalog._resolve_outcome

    def gone(self: RedisCatalog, *args: object) -> object:
        proxy.refuse(True)
        return decide(self, *args)

    monkeypatch.setattr(RedisCatalog, "_resolve_outcome", gone)
    with pytest.raises(el.OutcomeUnknown, match="txn"):
        catalog.transact(increment)
    proxy.refuse(False)
    late = other.now_ms() + 200
    while other.now_ms() < late:
        pass
    assert b":%d\r\n" % scripts.EXPIRED in proxy.deliver()
    assert other.read(lambda view: view.get(b"n")) == {"n": 1}
    assert catalog.transact(increment) == 2


def test_a_server_that_stays_away_is_told_of_with_what_is_known(
    server: RedisProcess, tmp_path: Path, impatient: None
) -> None:
    store = el.open(tmp_path / "s", server.url())
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(pa.table({"id": [1]}))
    server.kill()
    for use in (lambda: table.upsert(pa.table({"id": [2]})), table.count, lambda: store.last_epoch):
        with pytest.raises(el.CatalogUnavailable, match="this call wrote nothing"):
            use()
    with pytest.raises(el.CatalogUnavailable):
        el.open(tmp_path / "s", server.url())
    server.start()
    assert table.count() == 1
    table.upsert(pa.table({"id": [2]}))
    store.close()


@pytest.mark.rule("1.7")
def test_an_unknown_outcome_says_so_and_the_same_txn_is_safe(
    shared: RedisProcess, proxy: TcpProxy, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = RedisCatalog._resolve_outcome

    def gone(self: RedisCatalog, *args: object) -> object:
        proxy.refuse(True)
        return decide(self, *args)

    with el.open(tmp_path / "s", shared.url(port=proxy.port)) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": [1]}))
        monkeypatch.setattr(RedisCatalog, "_resolve_outcome", gone)
        proxy.cut_answer(COMMIT)
        with pytest.raises(el.OutcomeUnknown, match="same txn"):
            table.upsert(pa.table({"id": [2]}), txn=("app", 1))
        proxy.refuse(False)
        monkeypatch.undo()
        epoch = table.upsert(pa.table({"id": [2]}), txn=("app", 1))
        assert store.resolve(("app", 1)) == epoch
        assert len(table.history()) == 2
        assert table.count() == 2


def test_a_paused_server_is_waited_for(server: RedisProcess) -> None:
    with ExitStack() as stack:
        maker = RedisMaker(stack, server)
        catalog = maker.open(url=f"{server.url()}?socket_timeout=0.2")
        catalog.transact(increment)
        os.kill(server.pid, signal.SIGSTOP)
        resume = threading.Timer(0.8, os.kill, (server.pid, signal.SIGCONT))
        resume.start()
        assert catalog.transact(increment) == 2
        resume.join()
        assert maker.open().read(lambda view: view.get(b"n")) == {"n": 2}


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_a_server_busy_with_a_script_is_waited_for(tmp_path: Path) -> None:
    for server in server_of(tmp_path / "redis", "--lua-time-limit", "1"):
        with ExitStack() as stack:
            catalog = RedisMaker(stack, server).open()
            catalog.transact(increment)

            def spin(server: RedisProcess = server) -> None:
                with pytest.raises(redis.ResponseError):
                    server.client().eval("while true do end", 0)

            spinning = threading.Thread(target=spin)
            spinning.start()
            other = server.client()
            while not is_busy(other):
                pass
            ender = threading.Timer(0.3, lambda other=other: other.script_kill())
            ender.start()
            assert catalog.transact(increment) == 2
            spinning.join()
            ender.join()


# ---- no room -------------------------------------------------------------------------------------------------------


def test_a_server_at_its_maxmemory_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    for server in server_of(tmp_path / "redis", "--maxmemory", "4mb"):
        with ExitStack() as stack:
            maker = RedisMaker(stack, server)
            catalog = maker.open()
            numbers = count()

            def fill(numbers: Iterator[int] = numbers, catalog: RedisCatalog = catalog) -> None:
                for n in numbers:
                    catalog.transact(lambda tx, n=n: tx.put(b"k%05d" % n, {"b": bytes(20_000)}))

            with pytest.raises(el.CatalogFull, match="nothing was committed"):
                fill()
            done = next(numbers) - 1
            assert len(catalog.read(keys_of)) == done > 10
            server.client().config_set("maxmemory", "40mb")
            catalog.transact(put(b"more"))
            assert len(maker.open().read(keys_of)) == done + 1


def test_a_full_disk_loses_nothing_that_was_acknowledged(server: RedisProcess, tmp_path: Path, impatient: None) -> None:
    """A server that always syncs ends when its file cannot grow. Here the file may not: as on a full disk it is written
    in part."""
    with el.open(tmp_path / "s", server.url(), durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        aof = next(path for path in server.folder.rglob("*.aof*") if path.stat().st_size)
        limit = aof.stat().st_size + 20_000
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, limit))
        numbers = count()

        def fill() -> None:
            for n in numbers:
                table.upsert(pa.table({"id": [n]}), txn=("app", n))

        with pytest.raises((el.OutcomeUnknown, el.CatalogUnavailable, el.WriteFailed)):
            fill()
        done = next(numbers) - 1
        assert done > 3
        server.wait()
        server.start()  # there is room again
        assert table.count() in (done, done + 1)
        for number in range(done + 3):
            table.upsert(pa.table({"id": [number]}), txn=("app", number))
        assert table.count() == done + 3 == len(table.history())
        assert store.verify().ok


# ---- settings, users, TLS, hostile values -------------------------------------------------------------------------


@pytest.mark.parametrize("setting, value", [
    ("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru"),
])  # fmt: skip
def test_a_server_that_forgets_is_refused_unless_that_is_wanted(
    server: RedisProcess, tmp_path: Path, setting: str, value: str
) -> None:
    server.client().config_set(setting, value)
    with pytest.raises(el.InvalidInput, match=f"{setting} .*volatile=True"):
        el.open(tmp_path / "s", server.url())
    assert not (tmp_path / "s").exists()
    with el.open(tmp_path / "s", server.url(), volatile=True) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1]}))
    shutil.rmtree(tmp_path / "s")


RIGHTS = next(
    line for line in " ".join((redis_client.__doc__ or "").split()).split(";") if "keys `" in line
).split("commands `")[1].strip("`").split()  # fmt: skip


def test_a_user_with_the_rights_that_are_listed_can_do_all_and_no_other_key(
    server: RedisProcess, tmp_path: Path
) -> None:
    admin = server.client()
    admin.execute_command("ACL", "SETUSER", "lake", "on", f">{PASSWORD}", "~epochlog:*", "-@all", *RIGHTS)
    url = server.url("lake")
    with pytest.raises(el.InvalidInput, match=r"\+config\|get.*volatile=True"):
        el.open(tmp_path / "s", url)
    admin.execute_command("ACL", "SETUSER", "lake", "+config|get")
    with el.open(tmp_path / "s", url) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for n in range(3):
            table.upsert(pa.table({"id": [n]}))
        store.compact(full=True)
        ship(store._handle)
        store.drop_table("t")
        ship(store._handle)
        assert PASSWORD not in repr(store) + repr(vars(store._handle.catalog))
    marker = (tmp_path / "s" / "epochlog.json").read_text()
    assert "lake" not in marker and PASSWORD not in marker
    with server.client() as client:
        assert all(key.startswith(b"epochlog:") for key in client.scan_iter())
        client.flushdb()
    el.restore_catalog(tmp_path / "s", catalog=url)
    el.open(tmp_path / "s", url).close()


@pytest.mark.parametrize("rights", [["~epochlog:*", "+time", "+evalsha", "+eval"], ["~other:*", "+@all"], []])
def test_missing_rights_are_told_without_the_password(server: RedisProcess, tmp_path: Path, rights: list[str]) -> None:
    server.client().execute_command("ACL", "SETUSER", "lake", "on", f">{PASSWORD}", "-@all", *rights)
    with pytest.raises(el.CatalogUnavailable, match="may not run the commands") as caught:
        el.open(tmp_path / "s", server.url("lake"), volatile=True)
    assert PASSWORD not in str(caught.value)
    assert not (tmp_path / "s" / "epochlog.json").exists()


def test_a_wrong_password_is_told_without_it(server: RedisProcess, tmp_path: Path) -> None:
    server.client().execute_command("ACL", "SETUSER", "lake", "on", f">{PASSWORD}", "~*", "+@all")
    with pytest.raises(el.CatalogUnavailable, match="refuses the login") as caught:
        el.open(tmp_path / "s", server.url("lake", "geheim/1"))
    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in str(error)
        error = error.__cause__
    server.client().config_set("requirepass", "x")
    with pytest.raises(el.CatalogUnavailable, match="refuses the login"):
        el.open(tmp_path / "s", server.url())


@pytest.mark.parametrize("url, match", [
    ("http://127.0.0.1/0", "URL like"), ("redis", "URL like"), (7, "URL like"),
    ("redis://u:geheim/1@127.0.0.1:6379/0", "%2F"), ("redis://u:geheim@127.0.0.1:x/0", "cannot be used"),
    ("redis://u:geheim@127.0.0.1:1/0?password_file=x", "password_file"),
    ("redis://u:geheim@127.0.0.1:1/0?socket_timeout=soon", "socket_timeout"),
    ("redis://u:geheim@[::1/0", "URL"),
])  # fmt: skip
def test_a_url_that_cannot_be_used_is_told_without_its_password(tmp_path: Path, url: object, match: str) -> None:
    with pytest.raises(el.InvalidInput, match=match) as caught:
        el.open(tmp_path / "s", url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in str(error)
        error = error.__cause__


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem for 127.0.0.1, signed by itself."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_rediss_checks_the_certificate(
    shared: RedisProcess, tmp_path: Path, certificate: Path, impatient: None
) -> None:
    """The server in the wheel is built without TLS, so the proxy before it ends the encryption."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    proxy = TcpProxy(shared.port, context)
    try:
        url = f"rediss://127.0.0.1:{proxy.port}/0"
        with el.open(tmp_path / "s", f"{url}?ssl_ca_certs={certificate / 'cert.pem'}") as store:
            store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1]}))
            assert store.table("t").count() == 1
        with pytest.raises(el.CatalogUnavailable, match="(?i)certificate"):
            el.open(tmp_path / "s", url)
        with pytest.raises(el.CatalogUnavailable):
            el.open(tmp_path / "s", f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.2")
    finally:
        proxy.stop()
    shutil.rmtree(tmp_path / "s")


def test_bytes_that_somebody_else_put_there_are_damage(maker: RedisMaker) -> None:
    catalog, client = maker.open(), maker.server.client()
    catalog.transact(put(b"k1"))
    catalog.transact(put(b"k2"))
    good = client.hget(maker.key("records"), "k1")
    assert isinstance(good, bytes)
    for bad in (
        b"",
        b"x",
        good[:-1],
        good + b"\0",
        bytes([good[0] ^ 1]) + good[1:],
        client.hget(maker.key("records"), "k2"),
    ):
        client.hset(maker.key("records"), "k1", bad)
        for use in (
            lambda: catalog.read(lambda view: view.get(b"k1")),
            lambda: catalog.read(keys_of),
            catalog.verify_storage,
        ):
            with pytest.raises(el.Corrupt, match="k1"):
                use()
    client.hset(maker.key("records"), "k1", good)
    for field, bad in (("version", "x"), ("version", "-3"), ("version", "1e300"), ("records", "x"), ("clock", "nan")):
        value = client.hget(maker.key("meta"), field)
        client.hset(maker.key("meta"), field, bad)
        with pytest.raises((el.Corrupt, el.CatalogLost)):
            catalog.transact(put(b"k3"))
        client.hset(maker.key("meta"), field, value)
    client.hdel(maker.key("records"), "k1")
    client.hset(maker.key("records"), "another", good)
    for use in (lambda: catalog.read(keys_of), catalog.verify_storage):
        with pytest.raises((el.Corrupt, el.CatalogLost)):
            use()


@pytest.mark.parametrize("rest", [
    [], [[]], [[], [], []], [[b"v"], []], [[None], [[]]], [[1], [[0]]], [["x"], [[0]]], [[None], [[0, b"b"]]],
    [[None], [[0, b"z", b"v"]]], [[None], [[2]]], [[None], [[1]]], [[None], [[0, b"b", b"v", b"a", b"v"]]],
    [[None], [[0, b"a", None]]], [[None], [[0, 7, b"v"]]], [[None], b"x"],
])  # fmt: skip
def test_answers_of_another_shape_are_damage(rest: list) -> None:
    reply = transaction.Reply(0, 1, b"", 0, 0, 0, rest)
    run = transaction.ReadSet(lambda script, arguments: reply, [b"k"])
    with pytest.raises(el.Corrupt):
        list(run.rows(b"a", b"c", False))


def test_a_record_that_no_server_should_hold_is_refused(maker: RedisMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_RECORD", 1_000)
    with pytest.raises(el.LimitExceeded):
        maker.open().transact(lambda tx: tx.put(b"k", {"b": bytes(1_000)}))
