"""Scenarios A of the store and its log, as they were learnt from RisingWave's storage; tests bear their names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.types.epoch import from_unix_ms

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


ABSENT = -1
A1_KEYS = 10_000


def a1_states(seed: int) -> np.ndarray:
    """int64[11, keys]: the value of each key after each epoch, or ABSENT. 5 % are skipped, 20 % deleted, the others
    written; the last epoch deletes all.
    """
    dice = np.random.default_rng(seed)
    states = np.full((11, A1_KEYS), ABSENT)
    for epoch in range(1, 11):
        fate, values = dice.random(A1_KEYS), dice.integers(0, 3, A1_KEYS)
        states[epoch] = np.where(fate < 0.05, states[epoch - 1], np.where(fate < 0.25, ABSENT, values))
    states[10] = ABSENT
    return states


def a1_write(table: el.Table, store: el.Store, states: np.ndarray, flushes: random.Random | None) -> list[int]:
    """Seal each epoch, commit on every 3rd and on the last; `flushes` cuts an epoch into segments at random places.

    Deletes of keys that are not there, and writes of the values that are, are among them. Returns the labels.
    """
    writers, sealed, labels = [table.writer(), table.writer()], [], [0]
    for epoch in range(1, len(states)):
        before, after = states[epoch - 1], states[epoch]
        label = from_unix_ms(NOW_MS) + 100 * epoch
        put = np.flatnonzero((after != ABSENT) & ((before != after) | (np.arange(A1_KEYS) % 7 == 0)))
        gone = np.flatnonzero((after == ABSENT) & ((before != after) | (np.arange(A1_KEYS) % 7 == 0)))
        for part in np.split(put, sorted(flushes.choices(range(len(put) + 1), k=3)) if flushes else []):
            writers[0].upsert(pa.table({"k": part, "v": after[part]}))
            if flushes and flushes.random() < 0.5:
                sealed += writers[0].seal(label)  # a flush in the middle of the epoch
                writers[0] = table.writer()
        writers[1].delete(pa.table({"k": gone}))
        sealed += [segment for writer in writers for segment in writer.seal(label)]
        labels.append(label)
        if epoch % 3 == 0 or epoch == len(states) - 1:
            store.commit({table.name: sealed}, epoch=label)
            sealed = []
    return labels


Changes = tuple[list[str], list[int], list[int]]
"""Types, keys and values."""


def difference(old: np.ndarray, new: np.ndarray, low: int, high: int) -> Changes:
    keys = np.flatnonzero(old != new)
    keys = keys[(keys >= low) & (keys < high)]
    pre, post = keys[old[keys] != ABSENT], keys[new[keys] != ABSENT]
    kinds = [
        *np.where(new[pre] != ABSENT, "update_preimage", "delete"),
        *np.where(old[post] != ABSENT, "update_postimage", "insert"),
    ]
    order = np.argsort(np.concatenate([2 * pre, 2 * post + 1]))
    values = np.concatenate([old[pre], new[post]])[order]
    return [str(kinds[i]) for i in order], np.concatenate([pre, post])[order].tolist(), values.tolist()


def net(table: el.Table, after: int, until: int, low: int, high: int) -> Changes:
    part = (pc.field("k") >= low) & (pc.field("k") < high)
    changes = table.changes(after, until, mode="net", pre_images=True, filter=part).read_all()
    return tuple(changes[name].to_pylist() for name in ("_change_type", "k", "v"))  # pyright: ignore[reportReturnType]


@pytest.mark.rule("1.6", "4.1")
@pytest.mark.medium
@pytest.mark.parametrize("changelog", ["upsert", pytest.param("full", marks=pytest.mark.long)])
@pytest.mark.parametrize("flushed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a1_net_changes_are_the_difference_of_two_states(store: el.Store, flushed: bool, changelog: str) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, states = random.Random(seed), a1_states(seed)
    table = store.create_table("t", KV, ["k"], changelog=changelog)
    labels = a1_write(table, store, states, dice if flushed else None)
    middle = sorted(dice.sample(range(A1_KEYS), 2))
    for compacted in (False, True):
        if compacted:
            store.compact("t", full=True)
        ranges = list(combinations_with_replacement(range(len(labels)), 2))
        for i, j in ranges if flushed or not compacted else dice.sample(ranges, 20):
            for low, high in ((0, A1_KEYS), (middle[0], middle[1])):
                changes, wanted = (
                    net(table, labels[i], labels[j], low, high),
                    difference(states[i], states[j], low, high),
                )
                assert changes == wanted, (i, j, low, high, compacted)
        for i in (3, 6, 9, 10):
            there = np.flatnonzero(states[i] != ABSENT)
            assert content(table, labels[i]) == dict(zip(there.tolist(), states[i][there].tolist(), strict=True))
            assert i >= 9 or content(table, labels[i + 2]) == content(table, labels[i]), "seen with its commit"


# ---- A2, A5 ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.6", "4.9")
@pytest.mark.medium
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_a2_next_epoch_walks_all_committed_epochs_and_waits_for_the_sealed_ones(
    store: el.Store, changelog: str
) -> None:
    table, start = store.create_table("t", KV, ["k"], changelog=changelog), from_unix_ms(NOW_MS)
    writer, sealed = table.writer(), []
    labels = [start + 7 * number for number in range(1, 106)]
    for number, label in enumerate(labels, start=1):
        writer.upsert(kv({number % 4: number}))
        sealed += writer.seal(label)
        if number <= 100 and number % 10 == 0:
            store.commit({"t": sealed}, epoch=label)
            sealed = []
    walked, at = [], 0
    while (following := table.next_epoch(at)) is not None:
        walked.append(following)
        at = following
    assert walked == labels[:100]
    assert table.next_epoch(labels[99]) is None, "sealed is not committed"
    store.commit({"t": sealed}, epoch=labels[104])
    assert table.next_epoch(labels[99]) == labels[100], "the first of the five"
    changes = table.changes(labels[99], pre_images=True).read_all()
    assert changes["_commit_version"].unique().to_pylist() == labels[100:]
    assert changes["v"].to_pylist() == [97, 101, 98, 102, 99, 103, 100, 104, 101, 105], "each by the value before it"


@pytest.mark.rule("4.9")
def test_a5_an_empty_commit_leaves_a_log_entry_and_a_dropped_table_none(tmp_path: Path) -> None:
    def opened() -> el.Store:
        return el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS)

    with opened() as store:
        table = store.create_table("t", KV, ["k"], changelog="full")
        epochs = [table.upsert(kv({1: 1})), table.upsert(kv({})), table.delete(keys()), store.commit({"t": []})]
        epochs += [table.delete(keys(1)), table.upsert(kv({2: 2}))]
        for _ in range(2):
            walked = [table.next_epoch(at) for at in (0, *epochs)]
            assert walked == [*epochs, None], "compaction drops no log entry"
            changes = table.changes(0, pre_images=True).read_all()
            assert changes["_commit_version"].to_pylist() == [epochs[0], epochs[4], epochs[5]]
            assert len(table.history()) == 6
            store.compact("t", full=True)
        store.drop_table("t")
        for asked in (lambda: table.next_epoch(0), lambda: table.changes(0), table.history):
            with pytest.raises(el.TableDropped):
                asked()
    with opened() as store:
        assert store.tables() == []
        again = store.create_table("t", KV, ["k"])
        assert again.next_epoch(0) is None and again.changes(0).read_all().num_rows == 0


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


@pytest.mark.rule("1.2", "1.5")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_a7_one_stale_epoch_refuses_the_whole_commit(store: el.Store, changelog: str) -> None:
    fresh, stale = (store.create_table(name, KV, ["k"], changelog=changelog) for name in ("fresh", "stale"))
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
    report = store.verify()
    assert report.ok and not report.unreachable
