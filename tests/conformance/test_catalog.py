"""What every catalog keeps: one suite of the protocol, for the embedded one and for Redis."""

from __future__ import annotations

import os
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path

import pytest

from conformance.catalogs import KINDS, LmdbMaker, Maker, RedisMaker
from epochlog.errors import InvalidInput, StoreClosed
from epochlog.store.catalog import Catalog, Txn, View
from stores import servers

ALL = (b"", b"\xff\xff")


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    with ExitStack() as stack:
        yield LmdbMaker(stack, tmp_path / "c") if request.param == "lmdb" else RedisMaker(stack, servers.redis)


@pytest.fixture
def catalog(maker: Maker) -> Catalog:
    return maker.open()


def put(catalog: Catalog, *keys: bytes, n: int = 0) -> None:
    def body(tx: Txn) -> None:
        for key in keys:
            tx.put(key, {"n": n})

    catalog.transact(body)


def keys_of(view: View, start: bytes = ALL[0], stop: bytes = ALL[1], *, reverse: bool = False) -> list[bytes]:
    return [key for key, _ in view.scan(start, stop, reverse=reverse)]


# ---- records and ranges ------------------------------------------------------------------------------------------


def test_a_record_is_there_until_it_is_deleted(maker: Maker) -> None:
    one, two = maker.open(), maker.open()
    assert one.read(lambda view: view.get(b"a")) is None
    record = {"n": 1 << 62, "b": b"\0\xff", "s": "é", "l": [None, True, 1.5], "m": {1: "x"}}
    one.transact(lambda tx: tx.put(b"a", record))
    assert two.read(lambda view: view.get(b"a")) == record
    two.transact(lambda tx: tx.put(b"a", {}))
    assert one.read(lambda view: view.get(b"a")) == {}
    one.transact(lambda tx: tx.delete(b"a"))
    one.transact(lambda tx: tx.delete(b"never there"))
    assert two.read(lambda view: view.get(b"a")) is None
    assert two.read(keys_of) == []


def test_ranges_run_in_byte_order_whatever_the_bytes(catalog: Catalog) -> None:
    keys = [b"\0", b"\0\0", b"\x01\xff", b"A", b"Z", b"a", b"a\0", b"a\0b", b"ab", b"b", b"\x7f", b"\x80", b"\xc3\xa9",
            b"\xfe\xff", b"[", b"(", b"-", b"+", b"a/%08x", b"{x}"]  # fmt: skip
    put(catalog, *random.Random(1).sample(keys, len(keys)))
    ordered = sorted(keys)
    assert catalog.read(keys_of) == ordered
    assert catalog.read(lambda view: keys_of(view, reverse=True)) == ordered[::-1]
    edges = [b"", *keys, b"zz", b"\xff"]
    for start in edges:
        for stop in edges:
            wanted = [key for key in ordered if start <= key < stop]
            assert catalog.read(lambda v, a=start, b=stop: keys_of(v, a, b)) == wanted
            assert catalog.read(lambda v, a=start, b=stop: keys_of(v, a, b, reverse=True)) == wanted[::-1]


@pytest.mark.parametrize("count", [63, 64, 65, 576, 577, 5_000])
def test_long_ranges_are_whole_from_both_ends_and_may_be_left_early(catalog: Catalog, count: int) -> None:
    keys = [b"k/%08d" % n for n in range(count)]
    put(catalog, *keys)
    assert catalog.read(keys_of) == keys
    assert catalog.read(lambda view: keys_of(view, reverse=True)) == keys[::-1]
    for taken in (1, 64, 65, count - 1):
        first = catalog.read(lambda view, n=taken: [key for key, _ in islice(view.scan(*ALL), n)])
        last = catalog.read(lambda view, n=taken: [key for key, _ in islice(view.scan(*ALL, reverse=True), n)])
        assert (first, last) == (keys[:taken], keys[::-1][:taken])


@pytest.mark.medium
def test_large_records_in_a_range_come_whole(catalog: Catalog) -> None:
    def body(tx: Txn) -> None:
        for n in range(40):
            tx.put(b"%d" % (10 + n), {"b": bytes([n]) * 1_000_000})

    catalog.transact(body)
    found = catalog.read(lambda view: [(key, record["b"]) for key, record in view.scan(*ALL)])
    assert found == [(b"%d" % (10 + n), bytes([n]) * 1_000_000) for n in range(40)]


# ---- transactions ------------------------------------------------------------------------------------------------


def test_a_transaction_sees_its_own_writes(catalog: Catalog) -> None:
    put(catalog, b"a", b"c", b"e", b"g")

    def body(tx: Txn) -> None:
        tx.put(b"b", {"n": 1})
        tx.put(b"c", {"n": 1})
        tx.delete(b"e")
        tx.delete(b"h")
        tx.put(b"z", {"n": 1})
        tx.delete(b"z")
        assert (tx.get(b"b"), tx.get(b"c"), tx.get(b"e"), tx.get(b"z")) == ({"n": 1}, {"n": 1}, None, None)
        assert [(key, record["n"]) for key, record in tx.scan(*ALL)] == [(b"a", 0), (b"b", 1), (b"c", 1), (b"g", 0)]
        assert keys_of(tx, reverse=True) == [b"g", b"c", b"b", b"a"]
        assert keys_of(tx, b"b", b"c") == [b"b"]
        assert keys_of(tx, b"d", b"g") == []
        tx.put(b"e", {"n": 2})
        assert keys_of(tx, b"d", b"g", reverse=True) == [b"e"]

    catalog.transact(body)
    assert catalog.read(keys_of) == [b"a", b"b", b"c", b"e", b"g"]


def test_what_was_put_is_what_it_was_then(catalog: Catalog) -> None:
    def body(tx: Txn) -> None:
        record = {"n": 1}
        tx.put(b"a", record)
        record["n"] = 2
        found = tx.get(b"a")
        assert found is not None and found == {"n": 1}
        found["n"] = 3
        assert tx.get(b"a") == {"n": 1}

    catalog.transact(body)
    assert catalog.read(lambda view: view.get(b"a")) == {"n": 1}


def test_a_body_that_raises_has_no_effect(catalog: Catalog) -> None:
    put(catalog, b"a")

    def body(tx: Txn) -> None:
        tx.put(b"b", {})
        tx.delete(b"a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        catalog.transact(body)
    assert catalog.read(keys_of) == [b"a"]


def test_errors_that_are_kept_hold_nothing(catalog: Catalog) -> None:
    """As a log does that keeps its records; LMDB has a thousand places for readers."""
    catalog.transact(lambda tx: tx.put(b"a", {"n": 1}))

    def fails(view: View) -> None:
        for key, _ in view.scan(b"a", b"b"):
            raise InvalidInput(str(key))

    kept = []
    for _ in range(1_100):
        try:
            catalog.read(fails)
        except InvalidInput as error:
            kept.append(error)
    assert len(kept) == 1_100 and catalog.read(lambda view: view.get(b"a")) == {"n": 1}


def test_a_body_returns_what_it_returns(catalog: Catalog) -> None:
    assert catalog.transact(lambda tx: 7) == 7
    assert catalog.transact(lambda tx: tx.put(b"a", {}) or "x") == "x"
    assert catalog.read(lambda view: view.get(b"a")) == {}


def run_all(works: list[Callable[[], None]]) -> None:
    """Run in threads; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def increment(tx: Txn) -> int:
    n = (tx.get(b"n") or {"n": 0})["n"] + 1
    tx.put(b"n", {"n": n})
    tx.put(b"k/%08d" % n, {})
    return n


def test_counting_threads_of_two_handles_lose_and_double_nothing(maker: Maker) -> None:
    count, seen = 60, list[int]()

    def work() -> None:
        catalog = maker.open()
        for _ in range(count):
            seen.append(catalog.transact(increment))

    shared = maker.open()
    run_all([work, work, *[lambda: seen.extend(shared.transact(increment) for _ in range(count))] * 2])
    assert sorted(seen) == list(range(1, 4 * count + 1))
    assert len(shared.read(lambda view: keys_of(view, b"k/", b"k0"))) == 4 * count


def test_a_body_sees_one_state_however_often_it_asks(maker: Maker) -> None:
    """Writers move both ends of every pair together; no body, not even one that will run again, sees them apart."""
    writer, reader, over = maker.open(), maker.open(), threading.Event()
    put(writer, *[b"%s/%d" % (side, n) for side in (b"a", b"z") for n in range(8)])

    def write() -> None:
        numbers = random.Random(2)
        while not over.is_set():

            def move(tx: Txn, n: int = numbers.randrange(8)) -> None:
                record = {"n": (tx.get(b"a/%d" % n) or {"n": 0})["n"] + 1}
                tx.put(b"a/%d" % n, record)
                tx.put(b"z/%d" % n, record)

            writer.transact(move)

    def look(view: View) -> tuple[int, int]:
        left = [view.get(b"a/%d" % n) for n in range(8)]
        right = [record for _, record in view.scan(b"z", b"zz", reverse=True)][::-1]
        assert left == right
        return view.version, sum(record["n"] for record in right)

    def read() -> None:
        try:
            read = [reader.read(look) for _ in range(60)]
            sums = [total for _, total in (*read, *(reader.transact(look) for _ in range(60)))]
            assert all(a <= b for a, b in pairwise(sums))
            assert len(dict(read)) == len(set(read))  # of one version there is one sum
        finally:
            over.set()

    run_all([write, read])


def test_two_transactions_that_read_what_the_other_writes_are_one_after_the_other(maker: Maker) -> None:
    """Each adds a key only if fewer than ten are in the range: without range checks both would at the edge."""

    def add(tx: Txn, name: bytes) -> bool:
        room = len(keys_of(tx, b"r/", b"r0")) < 10
        if room:
            tx.put(b"r/" + name, {})
        return room

    added: list[bool] = []

    def work(who: int) -> None:
        catalog = maker.open()
        added.extend(catalog.transact(lambda tx, n=n: add(tx, b"%d-%d" % (who, n))) for n in range(20))

    run_all([lambda who=who: work(who) for who in range(3)])
    assert sum(added) == 10
    assert len(maker.open().read(keys_of)) == 10


@pytest.mark.parametrize("seed", range(5))
def test_random_transactions_do_what_a_dict_does(maker: Maker, seed: int) -> None:
    numbers, model = random.Random(seed), dict[bytes, int]()
    catalogs, seen = [maker.open(), maker.open()], dict[int, dict[bytes, int]]()
    names = [b"%s%d" % (letter, n) for letter in (b"a", b"b/", b"b\0", b"c\xff") for n in range(6)]
    for step in range(60):
        catalog, draft = numbers.choice(catalogs), dict(model)
        script = [(numbers.choice("pdgs"), numbers.choice(names), numbers.choice(names)) for _ in range(8)]
        fails = numbers.random() < 0.2

        def body(
            tx: Txn, script: list = script, step: int = step, fails: bool = fails, before: dict[bytes, int] = draft
        ) -> dict[bytes, int]:
            draft = dict(before)
            for what, key, other in script:
                if what == "p":
                    tx.put(key, {"n": step})
                    draft[key] = step
                elif what == "d":
                    tx.delete(key)
                    draft.pop(key, None)
                elif what == "g":
                    assert tx.get(key) == ({"n": draft[key]} if key in draft else None)
                else:
                    wanted = sorted(k for k in draft if key <= k < other)
                    assert keys_of(tx, key, other) == wanted
                    assert keys_of(tx, key, other, reverse=True) == wanted[::-1]
            if fails:
                raise ZeroDivisionError
            return draft

        try:
            draft = catalog.transact(body)
        except ZeroDivisionError:
            draft = model
        model = draft
        for other in catalogs:
            version, found = other.read(
                lambda view: (view.version, {key: record["n"] for key, record in view.scan(*ALL)})
            )
            assert found == model == seen.setdefault(version, model)


# ---- clock, threads, forks, end ----------------------------------------------------------------------------------


def test_the_clock_that_is_given_is_the_one_that_is_asked(maker: Maker) -> None:
    catalog = maker.open(lambda: 1_767_225_600_000)
    assert catalog.now_ms() == 1_767_225_600_000
    assert catalog.transact(lambda tx: catalog.now_ms()) == 1_767_225_600_000


def test_the_clock_of_its_own_moves_on(catalog: Catalog) -> None:
    before = catalog.now_ms()
    assert before > 1_735_689_600_000  # 2025
    while catalog.now_ms() == before:
        pass
    assert catalog.now_ms() > before
    assert catalog.transact(lambda tx: catalog.now_ms()) >= before


def in_a_fork(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_and_its_parent_both_go_on(catalog: Catalog) -> None:
    catalog.transact(increment)
    for _ in range(3):
        in_a_fork(lambda: catalog.transact(increment) and None)
        catalog.transact(increment)
    assert catalog.read(lambda view: view.get(b"n")) == {"n": 7}


def test_a_closed_catalog_says_so_and_its_neighbour_goes_on(maker: Maker) -> None:
    one, two = maker.open(), maker.open()
    one.close()
    one.close()
    for use in (lambda: one.read(keys_of), lambda: one.transact(increment), one.check):
        with pytest.raises(StoreClosed):
            use()
    assert two.transact(increment) == 1


def test_a_whole_catalog_passes_its_check(catalog: Catalog) -> None:
    put(catalog, *[b"k/%d" % n for n in range(3_000)])
    catalog.check()
