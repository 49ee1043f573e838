"""A reader that waits for an epoch writes nothing, looks at one record, and is woken by what it waits for."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import epochlog as el
from epochlog.batch import choice
from epochlog.store.catalog.keys import HEAD
from epochlog.store.env.backoff import Backoff
from epochlog.store.session import watcher
from epochlog.store.session.watcher import CatalogWatcher, ChangeEvent
from lab import Lab, state_of, sums
from wait_until import WAIT_LIMIT_S, wait_until

NEVER_S = 3600.0


class Calls:
    """Counts of an open store's catalog reads and transactions, by calling function."""

    def __init__(self, handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self._lock = threading.Lock()
        for name, count in (("read", self.reads), ("transact", self.writes)):
            monkeypatch.setattr(handle.catalog, name, self._counting(getattr(handle.catalog, name), count))

    def _counting(self, call: Callable[[Any], Any], count: Counter[str]) -> Callable[[Any], Any]:
        def counted(body: Any) -> Any:
            with self._lock:
                count[body.__qualname__.split(".")[0]] += 1
            return call(body)

        return counted


class CountingAtLeast(el.AtLeast):
    """Counts how often it was asked."""

    __slots__ = ()
    times: ClassVar[Counter[int]] = Counter()

    def choose(self, view: Any, tables: Sequence[str], /) -> dict[str, int]:
        self.times[self.epoch] += 1
        return el.AtLeast.choose(self, view, tables)


class Reader:
    """A thread that takes a snapshot."""

    def __init__(self, store: el.Store, consistency: Any) -> None:
        self.outcome: el.Snapshot | BaseException | None = None
        self._thread = threading.Thread(target=self._take, args=(store, consistency), daemon=True)
        self._thread.start()

    def _take(self, store: el.Store, consistency: Any) -> None:
        try:
            self.outcome = store.snapshot(["r", "j_out"], consistency=consistency)
        except BaseException as error:
            self.outcome = error

    def done(self) -> el.Snapshot:
        self._thread.join(WAIT_LIMIT_S)
        assert isinstance(self.outcome, el.Snapshot), self.outcome
        return self.outcome


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.put({1: (0, 10)})
    lab.tick()
    lab.job("j", ["r"]).step_local(sums("r", "j_out"))
    yield lab
    lab.store.close()


@pytest.fixture
def only_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are asked again because something has changed, for no other reason."""
    monkeypatch.setattr(choice, "ASK_ANYWAY_S", NEVER_S)


@contextmanager
def rare_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody looks at the catalog by himself."""
    with monkeypatch.context() as patch:
        patch.setattr(watcher, "BACKOFF", Backoff(first_s=NEVER_S, limit_s=NEVER_S))
        yield


def step(store: el.Store) -> None:
    assert store.job("j").step_local(sums("r", "j_out"))


@pytest.mark.rule("1.3")
@pytest.mark.medium
@pytest.mark.usefixtures("only_news")
def test_whoever_waits_writes_nothing_and_looks_at_one_record(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = lab.put({1: (0, 11)})
    lab.tick()
    CountingAtLeast.times.clear()
    with lab.open() as reading:
        calls = Calls(reading._handle, monkeypatch)
        readers = [Reader(reading, CountingAtLeast(epoch, timeout=NEVER_S)) for _ in range(5)]
        wait_until(lambda: calls.reads["CatalogWatcher"] >= 3 and CountingAtLeast.times[epoch] >= 2 * len(readers))
        quiet = settled(calls)
        looks = calls.reads["CatalogWatcher"]
        wait_until(lambda: calls.reads["CatalogWatcher"] >= looks + 5)
        assert calls.reads["_ask"] == quiet, "asked again, and nothing had changed"
        assert not calls.writes, "a waiting reader took the right to write from somebody"
        step(lab.store)
        for reader in readers:
            with reader.done() as snapshot:
                assert min(snapshot.epochs.values()) >= epoch
                assert state_of(snapshot["j_out"].to_arrow()) == {0: (1, 11)}
        assert calls.writes["choose_and_pin"] == len(readers)


def settled(calls: Calls) -> int:
    """Wait until no more choices are made, and return their number."""
    before, looks = -1, 0
    while calls.reads["_ask"] != before:
        before, looks = calls.reads["_ask"], calls.reads["CatalogWatcher"]
        wait_until(lambda looks=looks: calls.reads["CatalogWatcher"] >= looks + 3)
    return before


@pytest.mark.usefixtures("only_news")
def test_a_policy_is_asked_no_oftener_than_something_changed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = lab.put({1: (0, 11)})
    lab.tick()
    CountingAtLeast.times.clear()
    with lab.open() as reading:
        calls = Calls(reading._handle, monkeypatch)
        reader = Reader(reading, CountingAtLeast(epoch, timeout=NEVER_S))
        wait_until(lambda: CountingAtLeast.times[epoch] == 2)
        for number in range(10):
            lab.put({5: (0, number)})
        step(lab.store)
        reader.done().close()
        assert CountingAtLeast.times[epoch] <= 2 + 10 + 2, "a commit or two of the step, and each of ten before"
        assert sum(calls.writes.values()) == 2, "one to pin, one to let go"


@pytest.mark.usefixtures("only_news")
def test_what_the_same_store_commits_wakes_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with rare_looks(monkeypatch):
        epoch = lab.put({1: (0, 11)})
        lab.tick()
        CountingAtLeast.times.clear()
        reader = Reader(lab.store, CountingAtLeast(epoch, timeout=NEVER_S))
        wait_until(lambda: CountingAtLeast.times[epoch] >= 2)
        step(lab.store)
        reader.done().close()


def test_a_policy_that_looks_at_the_clock_is_asked_though_nothing_changes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "ASK_ANYWAY_S", 0.01)
    wanted_ms, calls = lab.now_ms + 5_000, Counter[str]()

    class NotBefore:
        timeout = NEVER_S

        def choose(self, view: Any, tables: Sequence[str]) -> dict[str, int]:
            calls["times"] += 1
            if view.clock_ms < wanted_ms:
                raise el.NoConsistentEpoch("it is too early")
            return el.Latest().choose(view, tables)

    reader = Reader(lab.store, NotBefore())
    wait_until(lambda: calls["times"] >= 3)  # at first, when it began to wait, and for no reason
    lab.tick(5)
    reader.done().close()


def test_who_waits_is_told_when_the_store_is_closed(lab: Lab) -> None:
    reading, epoch = lab.open(), lab.put({1: (0, 11)})
    CountingAtLeast.times.clear()
    reader = Reader(reading, CountingAtLeast(epoch, timeout=NEVER_S))
    wait_until(lambda: CountingAtLeast.times[epoch] >= 2)
    reading.close()
    wait_until(lambda: reader.outcome is not None)
    assert isinstance(reader.outcome, el.StoreClosed)


def test_the_last_answer_is_what_a_timeout_gives(lab: Lab) -> None:
    calls = Counter[str]()

    class Refusing:
        timeout = 0.02

        def choose(self, view: Any, tables: Sequence[str]) -> dict[str, int]:
            calls["times"] += 1
            raise el.NoConsistentEpoch(f"answer {calls['times']}.")

    with pytest.raises(el.NoConsistentEpoch) as caught:
        lab.store.snapshot(["r"], consistency=Refusing())
    assert str(caught.value) == f"answer {calls['times']}."


# ---- the watch itself ------------------------------------------------------------------------------------------------


class Still:
    """A catalog in which nothing changes; its first look lasts until it is let go."""

    def __init__(self) -> None:
        self.looking, self.go_on, self.looks = threading.Event(), threading.Event(), 0
        self.on_commit: Callable[[], None] = lambda: None

    def read(self, body: Callable[[Any], Any]) -> Any:
        self.looks += 1
        self.looking.set()
        assert self.go_on.wait(WAIT_LIMIT_S)
        return body(self)

    def get(self, key: bytes) -> dict[str, int] | None:
        return {"last_epoch": 7, "version": 7} if key == HEAD else None


@pytest.mark.local_only
def test_who_comes_while_the_watch_looks_is_told_too() -> None:
    """Two arrivals, the second while the look for the first is under way: both are told once."""
    catalog: Any = Still()
    watcher = CatalogWatcher(catalog)
    first, second = ChangeEvent(), ChangeEvent()
    watcher.add(first)
    assert catalog.looking.wait(WAIT_LIMIT_S)
    watcher.add(second)
    catalog.go_on.set()
    assert first._notified.wait(WAIT_LIMIT_S)
    assert second._notified.wait(WAIT_LIMIT_S), "it came late, and was never told"
    first._notified.clear()
    looks = catalog.looks
    wait_until(lambda: catalog.looks >= looks + 3)
    assert not first._notified.is_set(), "somebody else's arrival is no news"
    watcher.remove(first)
    watcher.remove(second)
    wait_until(lambda: watcher._thread is None)


@pytest.mark.local_only
def test_a_forked_child_waits_with_a_watch_of_its_own(lab: Lab) -> None:
    epoch = lab.put({1: (0, 11)})
    CountingAtLeast.times.clear()
    reader = Reader(lab.store, CountingAtLeast(epoch, timeout=NEVER_S))
    wait_until(lambda: CountingAtLeast.times[epoch] >= 2)
    pid = os.fork()
    if not pid:
        try:
            with lab.store._handle.watcher.listen() as event:
                os._exit(0 if event._notified.wait(WAIT_LIMIT_S) else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lab.tick()
    step(lab.store)
    reader.done().close()
