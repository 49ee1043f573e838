"""Conformance suite for catalogs: the contract of store/catalog/protocol.py as functions to call with a custom catalog.

`CASES` lists the functions. Each takes a function that opens the catalog, and starts with an empty catalog.
"""

from __future__ import annotations

import os
import random
import threading
import traceback
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Protocol

from epochlog.errors import InvalidInput, StoreClosed
from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn
from epochlog.store.catalog.records import unpack
from epochlog.store.env.clock import Clock

from .raising import raises

ALL = (b"", b"\xff\xff")


class OpenCatalog(Protocol):
    """Function that opens one catalog any number of times, as threads and processes do."""

    def __call__(self, clock: Clock | None = None) -> Catalog:
        """Open the catalog again. clock: the clock of its `now_ms`; None: the catalog's own."""
        ...


def put(catalog: Catalog, *keys: bytes, n: int = 0) -> None:
    def body(tx: Txn) -> None:
        for key in keys:
            tx.put(key, {"n": n})

    catalog.transact(body)


def keys_of(view: ReadTxn, start: bytes = ALL[0], stop: bytes = ALL[1], *, reverse: bool = False) -> list[bytes]:
    return [key for key, _ in view.scan(start, stop, reverse=reverse)]


# ---- records and ranges ------------------------------------------------------------------------------------------


def a_record_is_there_until_it_is_deleted(open_catalog: OpenCatalog) -> None:
    first, second = open_catalog(), open_catalog()
    assert first.read(lambda view: view.get(b"a")) is None
    record = {"n": 1 << 62, "b": b"\0\xff", "s": "é", "l": [None, True, 1.5], "m": {1: "x"}}
    first.transact(lambda tx: tx.put(b"a", record))
    assert second.read(lambda view: view.get(b"a")) == record
    second.transact(lambda tx: tx.put(b"a", {}))
    assert first.read(lambda view: view.get(b"a")) == {}
    first.transact(lambda tx: tx.delete(b"a"))
    first.transact(lambda tx: tx.delete(b"never there"))
    assert second.read(lambda view: view.get(b"a")) is None
    assert second.read(keys_of) == []


def ranges_run_in_byte_order_whatever_the_bytes(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    keys = [b"\0", b"\0\0", b"\x01\xff", b"A", b"Z", b"a", b"a\0", b"a\0b", b"ab", b"b", b"\x7f", b"\x80", b"\xc3\xa9",
            b"\xfe\xff", b"[", b"(", b"-", b"+", b"a/%08x", b"{x}"]  # fmt: skip
    put(catalog, *random.Random(1).sample(keys, len(keys)))
    ordered = sorted(keys)
    assert catalog.read(keys_of) == ordered
    assert catalog.read(lambda view: keys_of(view, reverse=True)) == ordered[::-1]
    edges = [b"", *keys, b"zz", b"\xff"]
    for start in edges:
        for stop in edges:
            expected = [key for key in ordered if start <= key < stop]
            assert catalog.read(lambda v, a=start, b=stop: keys_of(v, a, b)) == expected
            assert catalog.read(lambda v, a=start, b=stop: keys_of(v, a, b, reverse=True)) == expected[::-1]


def long_ranges_are_whole_from_both_ends_and_may_be_left_early(open_catalog: OpenCatalog) -> None:
    catalog, keys = open_catalog(), list[bytes]()
    for count in (63, 64, 65, 576, 577, 5_000):
        more = [b"k/%08d" % n for n in range(len(keys), count)]
        put(catalog, *more)
        keys += more
        check_range(catalog, keys)


def check_range(catalog: Catalog, keys: list[bytes]) -> None:
    assert catalog.read(keys_of) == keys
    assert catalog.read(lambda view: keys_of(view, reverse=True)) == keys[::-1]
    for taken in (1, 64, 65, len(keys) - 1):
        first = catalog.read(lambda view, n=taken: [key for key, _ in islice(view.scan(*ALL), n)])
        last = catalog.read(lambda view, n=taken: [key for key, _ in islice(view.scan(*ALL, reverse=True), n)])
        assert (first, last) == (keys[:taken], keys[::-1][:taken])


def large_records_in_a_range_come_whole(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()

    def body(tx: Txn) -> None:
        for n in range(40):
            tx.put(b"%d" % (10 + n), {"b": bytes([n]) * 1_000_000})

    catalog.transact(body)
    records = catalog.read(lambda view: [(key, record["b"]) for key, record in view.scan(*ALL)])
    assert records == [(b"%d" % (10 + n), bytes([n]) * 1_000_000) for n in range(40)]


# ---- transactions ------------------------------------------------------------------------------------------------


def a_transaction_sees_its_own_writes(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
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


def a_record_is_copied_when_it_is_put(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()

    def body(tx: Txn) -> None:
        record = {"n": 1}
        tx.put(b"a", record)
        record["n"] = 2
        stored = tx.get(b"a")
        assert stored is not None and stored == {"n": 1}
        stored["n"] = 3
        assert tx.get(b"a") == {"n": 1}

    catalog.transact(body)
    assert catalog.read(lambda view: view.get(b"a")) == {"n": 1}


def a_body_that_raises_has_no_effect(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    put(catalog, b"a")

    def body(tx: Txn) -> None:
        tx.put(b"b", {})
        tx.delete(b"a")
        raise ZeroDivisionError

    with raises(ZeroDivisionError):
        catalog.transact(body)
    assert catalog.read(keys_of) == [b"a"]


def errors_that_are_kept_hold_nothing(open_catalog: OpenCatalog) -> None:
    """Keep a thousand errors, as a log does: each keeps the frames of its read alive."""
    catalog = open_catalog()
    catalog.transact(lambda tx: tx.put(b"a", {"n": 1}))

    def fails(view: ReadTxn) -> None:
        for key, _ in view.scan(b"a", b"b"):
            raise InvalidInput(str(key))

    errors = []
    for _ in range(1_100):
        try:
            catalog.read(fails)
        except InvalidInput as error:
            errors.append(error)
    assert len(errors) == 1_100 and catalog.read(lambda view: view.get(b"a")) == {"n": 1}


def a_body_returns_what_it_returns(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    assert catalog.transact(lambda tx: 7) == 7
    assert catalog.transact(lambda tx: tx.put(b"a", {}) or "x") == "x"
    assert catalog.read(lambda view: view.get(b"a")) == {}


def run_all(works: list[Callable[[], None]]) -> None:
    """Run the functions in threads, and raise the first error."""
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


def counting_threads_of_two_handles_lose_and_double_nothing(open_catalog: OpenCatalog) -> None:
    count, seen = 60, list[int]()

    def work() -> None:
        catalog = open_catalog()
        for _ in range(count):
            seen.append(catalog.transact(increment))

    shared = open_catalog()
    run_all([work, work, *[lambda: seen.extend(shared.transact(increment) for _ in range(count))] * 2])
    assert sorted(seen) == list(range(1, 4 * count + 1))
    assert len(shared.read(lambda view: keys_of(view, b"k/", b"k0"))) == 4 * count


def a_body_sees_one_state_however_often_it_asks(open_catalog: OpenCatalog) -> None:
    """Move both ends of pairs together; every body sees equal ends, even one that runs again."""
    writer, reader, over, writes = open_catalog(), open_catalog(), threading.Event(), [0]
    put(writer, *[b"%s/%d" % (side, n) for side in (b"a", b"z") for n in range(8)])

    def write() -> None:
        numbers = random.Random(2)
        try:
            while not over.is_set():

                def move(tx: Txn, n: int = numbers.randrange(8)) -> None:
                    record = {"n": (tx.get(b"a/%d" % n) or {"n": 0})["n"] + 1}
                    tx.put(b"a/%d" % n, record)
                    tx.put(b"z/%d" % n, record)

                writer.transact(move)
                writes[0] += 1
        finally:
            over.set()

    def check_pairs(view: ReadTxn) -> tuple[int, int]:
        first = [view.get(b"a/%d" % n) for n in range(8)]
        second = [record for _, record in view.scan(b"z", b"zz", reverse=True)][::-1]
        assert first == second
        return view.version, sum(record["n"] for record in second)

    def read() -> None:
        try:
            read: list[tuple[int, int]] = []
            overtaken, last = 0, writes[0] + 3_000  # at most, for a catalog whose reads keep writers out
            while len(read) < 60 or (overtaken < 40 and writes[0] < last and not over.is_set()):
                before = writes[0]
                read.append(reader.read(check_pairs))
                overtaken += writes[0] > before  # a write landed during this read
            sums = [total for _, total in (*read, *(reader.transact(check_pairs) for _ in range(60)))]
            assert all(a <= b for a, b in pairwise(sums))
            assert len(dict(read)) == len(set(read))  # each version has one sum
        finally:
            over.set()

    run_all([write, read])


def two_transactions_that_read_what_the_other_writes_are_one_after_the_other(open_catalog: OpenCatalog) -> None:
    """Add keys only if fewer than ten are in the range: without checks of the range, concurrent adds exceed ten."""

    def add(tx: Txn, name: bytes) -> bool:
        room = len(keys_of(tx, b"r/", b"r0")) < 10
        if room:
            tx.put(b"r/" + name, {})
        return room

    added: list[bool] = []

    def work(worker: int) -> None:
        catalog = open_catalog()
        added.extend(catalog.transact(lambda tx, n=n: add(tx, b"%d-%d" % (worker, n))) for n in range(20))

    run_all([lambda worker=worker: work(worker) for worker in range(3)])
    assert sum(added) == 10
    assert len(open_catalog().read(keys_of)) == 10


def random_transactions_do_what_a_dict_does(open_catalog: OpenCatalog) -> None:
    numbers, model = random.Random(1), dict[bytes, int]()
    catalogs, seen = [open_catalog(), open_catalog()], dict[int, dict[bytes, int]]()
    names = [b"%s%d" % (letter, n) for letter in (b"a", b"b/", b"b\0", b"c\xff") for n in range(6)]
    for step in range(300):
        catalog, draft = numbers.choice(catalogs), dict(model)
        script = [(numbers.choice("pdgs"), numbers.choice(names), numbers.choice(names)) for _ in range(8)]
        fails = numbers.random() < 0.2

        def body(
            tx: Txn, script: list = script, step: int = step, fails: bool = fails, before: dict[bytes, int] = draft
        ) -> dict[bytes, int]:
            draft = dict(before)
            for operation, key, other in script:
                if operation == "p":
                    tx.put(key, {"n": step})
                    draft[key] = step
                elif operation == "d":
                    tx.delete(key)
                    draft.pop(key, None)
                elif operation == "g":
                    packed = tx.get_packed(key)
                    assert tx.get(key) == ({"n": draft[key]} if key in draft else None)
                    assert (None if packed is None else unpack(key, packed)) == tx.get(key)
                else:
                    expected = sorted(k for k in draft if key <= k < other)
                    packed_records = {k: unpack(k, packed)["n"] for k, packed in tx.scan_packed(key, other)}
                    assert packed_records == {k: draft[k] for k in expected}
                    assert keys_of(tx, key, other) == expected
                    assert keys_of(tx, key, other, reverse=True) == expected[::-1]
            if fails:
                raise ZeroDivisionError
            return draft

        try:
            draft = catalog.transact(body)
        except ZeroDivisionError:
            draft = model
        model = draft
        for other in catalogs:
            version, records = other.read(
                lambda view: (view.version, {key: record["n"] for key, record in view.scan(*ALL)})
            )
            assert records == model == seen.setdefault(version, model)


# ---- clock, threads, forks, end ----------------------------------------------------------------------------------


def the_clock_that_is_given_is_the_one_that_is_asked(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog(lambda: 1_767_225_600_000)
    assert catalog.now_ms() == 1_767_225_600_000
    assert catalog.transact(lambda tx: catalog.now_ms()) == 1_767_225_600_000


def the_clock_of_its_own_moves_on(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    before = catalog.now_ms()
    assert before > 1_735_689_600_000  # 2025
    while catalog.now_ms() == before:
        pass
    assert catalog.now_ms() > before
    assert catalog.transact(lambda tx: catalog.now_ms()) >= before


def in_a_fork(work: Callable[[], object]) -> None:
    """Run `work` in a forked child; raise AssertionError if it raised or died."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def a_forked_child_and_its_parent_both_go_on(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    catalog.transact(increment)
    for _ in range(3):
        in_a_fork(lambda: catalog.transact(increment))
        catalog.transact(increment)
    assert catalog.read(lambda view: view.get(b"n")) == {"n": 7}


def a_closed_catalog_says_so_and_its_neighbour_goes_on(open_catalog: OpenCatalog) -> None:
    closed, neighbour = open_catalog(), open_catalog()
    closed.close()
    closed.close()
    for use in (lambda: closed.read(keys_of), lambda: closed.transact(increment), closed.verify_storage):
        with raises(StoreClosed):
            use()
    assert neighbour.transact(increment) == 1


def a_whole_catalog_passes_its_check(open_catalog: OpenCatalog) -> None:
    catalog = open_catalog()
    put(catalog, *[b"k/%d" % n for n in range(3_000)])
    catalog.verify_storage()


CASES: tuple[Callable[[OpenCatalog], None], ...] = (
    a_record_is_there_until_it_is_deleted,
    ranges_run_in_byte_order_whatever_the_bytes,
    long_ranges_are_whole_from_both_ends_and_may_be_left_early,
    large_records_in_a_range_come_whole,
    a_transaction_sees_its_own_writes,
    a_record_is_copied_when_it_is_put,
    a_body_that_raises_has_no_effect,
    errors_that_are_kept_hold_nothing,
    a_body_returns_what_it_returns,
    counting_threads_of_two_handles_lose_and_double_nothing,
    a_body_sees_one_state_however_often_it_asks,
    two_transactions_that_read_what_the_other_writes_are_one_after_the_other,
    random_transactions_do_what_a_dict_does,
    the_clock_that_is_given_is_the_one_that_is_asked,
    the_clock_of_its_own_moves_on,
    a_forked_child_and_its_parent_both_go_on,
    a_closed_catalog_says_so_and_its_neighbour_goes_on,
    a_whole_catalog_passes_its_check,
)
"""The whole suite: a catalog conforms if no case raises."""
