"""A snapshot of a thousand tables touches no data, is one short write, and costs one record to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.retention.holds import all_holds, all_leases, holds_of
from epochlog.store.session.leases import LEASE_MS
from lab import KEY, SCHEMA, Lab, keys_of, state_of, sums, table_of

NO_PAST = el.TableOptions(history_retention=timedelta(0))


class Untouchable:
    """Files of a store that nobody may ask for anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the files were asked for {name}")


def puts(handle: Any, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Records that `work` wrote to the catalog, by the kind of their keys."""
    counts: Counter[str] = Counter()
    transact = handle.catalog.transact

    class Counting:
        def __init__(self, tx: Any) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        def put(self, key: bytes, record: Any) -> None:
            counts[key.decode().partition("/")[0]] += 1
            self._tx.put(key, record)

    with monkeypatch.context() as patch:
        patch.setattr(handle.catalog, "transact", lambda body: transact(lambda tx: body(Counting(tx))))
        work()
    return counts


def leases(store: Any) -> list[int]:
    return [ends for _, ends in store._handle.catalog.read(lambda view: list(all_leases(view)))]


def held(store: Any) -> int:
    return len(store._handle.catalog.read(lambda view: list(all_holds(view))))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    yield lab
    lab.store.close()


@pytest.mark.slow
@pytest.mark.local_only
def test_a_thousand_tables_are_opened_without_touching_data(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(990)]
    for name in names:
        lab.store.create_table(name, SCHEMA, KEY)
    with lab.store.transaction() as tx:
        for name in names[:200]:
            tx.upsert(name, table_of({1: (1, 1)}))
    lab.tick()
    for number in range(10):
        lab.job(f"j{number}", [f"t{number}"]).step_local(sums(f"t{number}", f"j{number}_out"))
    lab.put({2: (2, 2)}, "t0")
    lab.tick()
    reading = lab.open()
    handle: Any = reading._handle
    files, handle.files = handle.files, Untouchable()
    snapshots: list[el.Snapshot] = []
    wrote = puts(handle, lambda: snapshots.append(reading.snapshot()), monkeypatch)
    assert wrote == {"hold": 1000, "lease": 1}
    snapshot = snapshots[0]
    assert len(snapshot) == 1000 and len(set(snapshot.epochs.values())) == 1
    assert {name: lag_ms for name, lag_ms in snapshot.lag_ms.items() if lag_ms} == {"t0": 1000, "j0_out": 1000}
    snapshots.append(reading.snapshot(consistency=el.Exact(snapshot.token)))
    assert snapshots[1].epochs == snapshot.epochs
    assert puts(handle, handle.leases.renew, monkeypatch) == {"lease": 1}, "two snapshots of a thousand tables"
    handle.files = files
    assert state_of(snapshots[1]["t0"].to_arrow()) == {1: (1, 1)}
    assert state_of(snapshots[1]["j9_out"].to_arrow()) == {0: (1, 1)}
    for open_snapshot in snapshots:
        open_snapshot.close()
    lab.store._handle.runners.renew()  # the jobs are idle
    assert (held(lab.store), leases(lab.store)) == (0, [])
    reading.close()


# ---- the lease that they share -------------------------------------------------------------------------------------


@pytest.fixture
def tables(lab: Lab) -> Lab:
    for name in ("a", "b"):
        lab.root_table(name, options=NO_PAST)
        lab.put({1: (1, 1)}, name)
    lab.tick()
    return lab


def test_one_lease_is_renewed_for_all_snapshots_of_a_store(tables: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, reading = tables, tables.open()
    handle: Any = reading._handle
    first, second = reading.snapshot(), reading.snapshot(["a"])
    assert leases(lab.store) == [lab.now_ms + LEASE_MS]
    lab.now_ms += LEASE_MS - 1
    assert puts(handle, handle.leases.renew, monkeypatch) == {"lease": 1}
    lab.now_ms += LEASE_MS - 1  # past the ends that the holds were written with
    ends = handle.catalog.read(lambda view: [hold.expires_ms for hold in holds_of(view, 1, lab.now_ms)])
    assert ends == [lab.now_ms + 1] * 2
    first.close()
    assert len(leases(lab.store)) == 1
    second.close()
    lab.store._handle.runners.renew()  # the jobs are idle
    assert (held(lab.store), leases(lab.store)) == (0, [])
    assert puts(handle, handle.leases.renew, monkeypatch) == {}
    reading.close()


def test_a_store_has_a_lease_of_its_own(tables: Lab) -> None:
    """The end of one open store ends nothing of another's."""
    lab = tables
    other = lab.open()
    mine, theirs = lab.store.snapshot(["a"]), other.snapshot(["a"])
    assert len(leases(lab.store)) == 2
    other.close()
    assert len(leases(lab.store)) == 1
    assert state_of(mine["a"].to_arrow()) == {1: (1, 1)}
    mine.close()
    assert theirs.epochs == mine.epochs and leases(lab.store) == []


@pytest.mark.rule("3.17")
def test_what_the_dead_held_is_let_go_of_when_their_lease_has_run_out(tables: Lab) -> None:
    """Holds of a process that died last as long as its lease, though they were written long before that was renewed."""
    lab = tables
    other = lab.open()
    other.snapshot(["a"], consistency="latest")
    lab.now_ms += LEASE_MS - 1
    other._handle.leases.renew()
    for holder in list(other._handle.leases._held):  # it dies
        other._handle.leases.forget(holder)
    other._handle.catalog.close()
    lab.now_ms += LEASE_MS - 10
    pinned = lab.store.table("a").info.max_committed_epoch
    lab.put({1: (1, 2)}, "a")
    lab.tick(0.001)
    lab.store.compact("a", full=True)
    assert lab.store.table("a").info.safe_epoch == pinned, "held by one whose lease still runs"
    lab.tick()
    lab.store.compact("a", full=True)
    assert lab.store.table("a").info.safe_epoch > pinned
    assert (held(lab.store), len(leases(lab.store))) == (1, 1)
    lab.store.vacuum(grace=0)
    lab.store._handle.runners.renew()  # the jobs are idle
    assert (held(lab.store), leases(lab.store)) == (0, [])


# ---- overtaken between the choice and the pin -------------------------------------------------------------------


def overtaken(lab: Lab, monkeypatch: pytest.MonkeyPatch, by: Callable[[], object], times: int) -> list[int]:
    """Each of the next `times` transactions of the store that pin is overtaken; how many were so far."""
    catalog: Any = lab.store._handle.catalog
    transact, done = catalog.transact, list[int]()

    def late(body: Callable[[Any], Any]) -> Any:
        if "choose_and_pin" in body.__qualname__ and len(done) < times:
            done.append(1)
            by()
        return transact(body)

    monkeypatch.setattr(catalog, "transact", late)
    return done


@pytest.mark.rule("3.16")
def test_what_is_compacted_and_vacuumed_before_the_pin_is_planned_again(
    tables: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the epoch are there yet, and its files are not."""
    lab, other = tables, tables.open()
    lab.root_table("c", options=el.TableOptions(log_retention=timedelta(0)))
    want, epoch = {1: (1, 1)}, lab.put({1: (1, 1)}, "c")

    def fold() -> None:
        lab.put({2: (2, len(done))}, "c")
        lab.tick()
        other.compact("c", full=True)
        assert other.vacuum(grace=0).deleted

    done = overtaken(lab, monkeypatch, fold, 1)
    with lab.store.snapshot(["c"], consistency=el.Exact({"c": epoch})) as snapshot:
        assert done and state_of(snapshot["c"].to_arrow()) == want
        assert state_of(snapshot["c"].get(keys_of([1, 2]))) == want
    other.close()


@pytest.mark.rule("3.16")
@pytest.mark.parametrize("times", [1, 10])
def test_what_is_let_go_of_before_the_pin_is_chosen_again(
    tables: Lab, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """However often that happens: in the end the choice is made where nothing can overtake it."""
    lab, other = tables, tables.open()

    def move() -> None:
        lab.tick()
        other.table("a").upsert(table_of({1: (1, 10 + len(done))}))
        lab.tick()
        other.compact("a", full=True)

    done = overtaken(lab, monkeypatch, move, times)
    with lab.store.snapshot(["a"], consistency="latest") as snapshot:
        assert state_of(snapshot["a"].to_arrow()) == {1: (1, 10 + len(done))}
        assert snapshot.epochs["a"] >= lab.store.table("a").info.safe_epoch
        assert len(done) == min(times, 4)
    other.close()


@pytest.mark.rule("3.16")
def test_a_table_dropped_and_made_anew_before_the_pin_is_the_new_one(
    tables: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, other = tables, tables.open()

    def replaced() -> None:
        other.drop_table("a")
        other.create_table("a", SCHEMA, KEY).upsert(table_of({7: (7, 7)}))

    assert overtaken(lab, monkeypatch, replaced, 1) == []
    with lab.store.snapshot(["a"], consistency="latest") as snapshot:
        assert state_of(snapshot["a"].to_arrow()) == {7: (7, 7)}
    other.close()
