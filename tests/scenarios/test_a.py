"""Scenarios A of the store and its log, as they were learnt from RisingWave's storage; tests bear their names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.epoch import from_unix_ms

NOW_MS = 1_767_225_600_000
KV = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
State = dict[int, int]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS) as opened:
        yield opened


def kv(state: State) -> pa.Table:
    return pa.table({"k": list(state), "v": list(state.values())}, schema=KV)


def keys(*wanted: int) -> pa.Table:
    return pa.table({"k": pa.array(wanted, pa.int64())})


def content(table: el.Table, epoch: int | None = None) -> State:
    rows = table.to_arrow(epoch=epoch)
    return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


# ---- A1 ----------------------------------------------------------------------------------------------------------


def a1_states(seed: int, count: int) -> list[State]:
    """10 epochs over `count` keys: 5 % skipped, 20 % deleted, the others written; the last epoch deletes all."""
    dice, states = np.random.default_rng(seed), [State()]
    for epoch in range(1, 11):
        state = dict(states[-1])
        fate = dice.random(count)
        for key in range(count):
            if epoch == 10 or 0.05 <= fate[key] < 0.25:
                state.pop(key, None)
            elif fate[key] >= 0.25:
                state[key] = int(dice.integers(3))
        states.append(state)
    return states


def a1_write(store: el.Store, states: list[State], flushes: random.Random | None) -> tuple[el.Table, list[int]]:
    """Seal each epoch, commit on every 3rd and on the last; `flushes` cuts an epoch into segments at random places."""
    table = store.create_table("t", KV, ["k"])
    writers, sealed, labels = [table.writer(), table.writer()], [], [0]
    for epoch in range(1, len(states)):
        before, after = states[epoch - 1], states[epoch]
        label = from_unix_ms(NOW_MS) + 100 * epoch
        put = {key: value for key, value in after.items() if before.get(key) != value}
        gone = [key for key in before if key not in after]
        for part in pieces(put, flushes):
            writers[0].upsert(kv(part))
            if flushes and flushes.random() < 0.5:
                sealed += writers[0].seal(label)  # a flush in the middle of the epoch
                writers[0] = table.writer()
        writers[1].delete(keys(*gone))
        sealed += [segment for writer in writers for segment in writer.seal(label)]
        labels.append(label)
        if epoch % 3 == 0 or epoch == len(states) - 1:
            store.commit({"t": sealed}, epoch=label)
            sealed = []
    return table, labels


def pieces(state: State, dice: random.Random | None) -> list[State]:
    items = list(state.items())
    cuts = sorted(dice.sample(range(len(items) + 1), 3)) if dice and len(items) > 3 else []
    return [dict(items[a:b]) for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


def difference(old: State, new: State, low: int, high: int) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for key in sorted(old.keys() | new.keys()):
        if low <= key < high:
            if key not in old:
                found.append(("insert", key, new[key]))
            elif key not in new:
                found.append(("delete", key, old[key]))
            elif old[key] != new[key]:
                found += [("update_preimage", key, old[key]), ("update_postimage", key, new[key])]
    return found


def net(table: el.Table, after: int, until: int, low: int, high: int) -> list[tuple[str, int, int]]:
    part = (pc.field("k") >= low) & (pc.field("k") < high)
    found = table.changes(after, until, mode="net", pre_images=True, filter=part).read_all()
    return list(zip(*(found[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))


def a1_check(table: el.Table, states: list[State], labels: list[int], ranges: list[tuple[int, int]]) -> None:
    for i in range(len(labels)):
        for j in range(i, len(labels)):
            for low, high in ranges:
                assert net(table, labels[i], labels[j], low, high) == difference(states[i], states[j], low, high), (
                    i,
                    j,
                )


@pytest.mark.parametrize("flushed", [False, True])
def test_a1_net_changes_are_the_difference_of_two_states(store: el.Store, flushed: bool) -> None:
    seed, count = random.SystemRandom().randrange(2**32), 10_000
    print(f"seed {seed}")
    dice = random.Random(seed)
    states = a1_states(seed, count)
    table, labels = a1_write(store, states, dice if flushed else None)
    middle = sorted(dice.sample(range(count), 2))
    a1_check(table, states, labels, [(middle[0], middle[1])] if flushed else [(0, count), (middle[0], middle[1])])
    store.compact("t", full=True)
    assert content(table) == states[-1] == {}
    for i in (3, 6, 9):
        assert content(table, labels[i]) == states[i]
        assert i == 9 or content(table, labels[i + 2]) == states[i], "an epoch is seen with its commit, not before"
        for low, high in ((0, count), (middle[0], middle[1])):
            assert net(table, labels[i], labels[-1], low, high) == difference(states[i], states[-1], low, high)
            assert net(table, labels[i - 2], labels[i], low, high) == difference(states[i - 2], states[i], low, high)


# ---- A3, A4 ------------------------------------------------------------------------------------------------------


def test_a3_reads_of_three_epochs_before_and_after_commit_compaction_and_reopening(tmp_path: Path) -> None:
    def opened() -> el.Store:
        return el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS)

    def check(table: el.Table) -> None:
        assert content(table, e1) == {1: 222}
        assert content(table, e2) == {}
        assert content(table, e3) == content(table) == {1: 555}
        assert [table.count(epoch) for epoch in (e1, e2, e3)] == [1, 0, 1]
        assert table.get(keys(1), epoch=e1)["v"].to_pylist() == [222]
        assert table.get(keys(1), epoch=e2).num_rows == 0
        assert table.get(keys(1), epoch=e3)["v"].to_pylist() == [555]

    with opened() as store:
        table = store.create_table("t", KV, ["k"])
        writer = table.writer()
        writer.upsert(kv({1: 222}))
        sealed = writer.seal(from_unix_ms(NOW_MS) + 1)
        assert content(table) == {}, "sealed is not committed"
        e1 = store.commit({"t": sealed})
        assert content(table) == {1: 222}
        e2 = table.delete(keys(1))
        with store.transaction() as tx:
            tx.upsert("t", kv({1: 444}))
            tx.upsert("t", kv({1: 555}))
        e3 = tx.epoch
        check(table)
        store.compact("t", full=True)
        check(table)
    with opened() as store:
        check(store.table("t"))
        store.compact("t", full=True)
        check(store.table("t"))
        assert store.verify().ok


def test_a4_counts_of_three_epochs_stay_while_safe_epoch_allows(tmp_path: Path) -> None:
    now = [NOW_MS]
    with el.open(tmp_path / "s", durability="os", clock=lambda: now[0]) as store:
        options = el.TableOptions(history_retention=timedelta(seconds=10))
        table = store.create_table("t", KV, ["k"], options=options)
        e1 = table.upsert(kv({1: 1, 2: 2}))
        with store.transaction() as tx:
            tx.delete("t", keys(1))
            tx.upsert("t", kv({3: 3, 4: 4}))
        e2 = tx.epoch
        e3 = table.delete(keys(2, 3, 4))
        for _ in range(2):
            assert [table.count(epoch) for epoch in (e1, e2, e3)] == [2, 3, 0]
            assert [content(table, epoch) for epoch in (e1, e2, e3)] == [{1: 1, 2: 2}, {2: 2, 3: 3, 4: 4}, {}]
            store.compact("t", full=True)
        now[0] += 10_001
        table.upsert(kv({9: 9}))
        store.compact("t", full=True)
        assert e3 < table.info.safe_epoch < table.info.max_committed_epoch
        for epoch in (e1, e2, e3):
            with pytest.raises(el.EpochExpired):
                table.to_arrow(epoch=epoch)
        assert table.count(table.info.safe_epoch) == 0 and table.count() == 1


# ---- A6, A7 ------------------------------------------------------------------------------------------------------


def test_a6_an_inverted_log_range_is_an_error(store: el.Store) -> None:
    table = store.create_table("t", KV, ["k"])
    first, newest = table.upsert(kv({1: 1})), table.upsert(kv({2: 2}))
    for mode in ("epochs", "net"):
        for images in (False, True):
            for after, until in ((newest, first), (newest + 1, newest), (first + 1, first), (1, 0)):
                with pytest.raises(el.InvalidInput, match="inverted"):
                    table.changes(after, until, mode=mode, pre_images=images)
            for after, until in ((newest, newest), (newest, None), (newest + 1, None), (0, 0)):
                assert table.changes(after, until, mode=mode, pre_images=images).read_all().num_rows == 0
    empty = store.create_table("empty", KV, ["k"])
    with pytest.raises(el.InvalidInput):
        empty.changes(1, 0)
    assert empty.changes(0).read_all().num_rows == 0 and empty.changes(5).read_all().num_rows == 0


def test_a7_one_stale_epoch_refuses_the_whole_commit(store: el.Store) -> None:
    fresh, stale = store.create_table("fresh", KV, ["k"]), store.create_table("stale", KV, ["k"])
    old = stale.upsert(kv({1: 1}))
    ahead = old + 100
    writers = {table.name: table.writer() for table in (fresh, stale)}
    for writer in writers.values():
        writer.upsert(kv({7: 7}))
    sealed = {"fresh": writers["fresh"].seal(ahead), "stale": writers["stale"].seal(old)}
    with pytest.raises(el.EpochRegressed, match=str(old)):
        store.commit(sealed, epoch=ahead)
    assert store.last_epoch == old
    assert content(fresh) == {} and content(stale) == {1: 1}
    assert len(fresh.history()) == 0 and fresh.next_epoch(0) is None and stale.next_epoch(old) is None
    tx = store.transaction(epoch=old)
    tx.__enter__()
    tx.upsert("fresh", kv({7: 7}))
    tx.upsert("stale", kv({7: 7}))
    with pytest.raises(el.EpochRegressed):
        tx.__exit__(None, None, None)
    assert content(fresh) == {} and store.last_epoch == old
    at = store.commit(sealed)  # labels are handed out anew
    assert content(fresh) == {7: 7} and content(stale, at) == {1: 1, 7: 7}
    assert store.verify().ok
