"""Looks at the catalog that leave out what a question does not need see the same of what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.errors import Corrupt
from epochlog.store.catalog.keys import hist_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import pack
from epochlog.store.epochs import view_reader
from epochlog.store.epochs.view_reader import CommitEpochs, EpochMemory, read_epoch_view
from epochlog.store.metadata import version as versions
from epochlog.store.metadata.version import Commit
from lab import Lab, epochs_of, mirror


def test_a_look_at_some_tables_reads_those_and_what_they_descend_from(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store")
    for name in ("r", "s", "alone"):
        lab.root_table(name)
    jobs = [lab.job("a", ["r"]), lab.job("b", ["s", "a_out"]), lab.job("c", ["b_out"], ["c1", "c2"])]
    lab.put({1: (1, 1)})
    lab.put({1: (1, 1)}, "s")
    lab.tick()
    for job, source, out in zip(jobs, ("r", "a_out", "b_out"), ("a_out", "b_out", "c1"), strict=True):
        job.step_local(mirror(source, out))
    lab.put({2: (1, 1)})
    handle = lab.store._handle
    whole = handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, lab.now_ms, "x"))
    expected = {"r": {"r"}, "a_out": {"r", "a_out"}, "b_out": {"r", "s", "a_out", "b_out"}}
    expected["c1"] = {*expected["b_out"], "c1"}
    for name, seen in expected.items():
        above = [whole.ids[name]]
        part = handle.catalog.read(
            lambda view, above=above: read_epoch_view(view, handle.memory, lab.now_ms, "x", above=above)
        )
        assert set(part.ids) == seen
        assert (part.last_epoch, part.clock_ms, part.store_id) == (whole.last_epoch, whole.clock_ms, "x")
        for table_id, table in part.tables.items():
            whole_table = whole.tables[table_id]
            assert (table.commits.tolist(), table.changes.tolist()) == (
                whole_table.commits.tolist(),
                whole_table.changes.tolist(),
            )
            assert all(
                getattr(table, field) == getattr(whole_table, field)
                for field in ("state", "derived", "upstreams", "name")
            )
            assert (table.safe_epoch, table.known_from) == (whole_table.safe_epoch, whole_table.known_from)
            assert part.complete_through(table_id) == whole.complete_through(table_id)


# ---- the memory of commits ---------------------------------------------------------------------------------------

TABLE = 3


def packed_commit(epoch: int, changed: bool, labels: tuple[int, ...] = (), operation: str = "upsert") -> bytes:
    commit = Commit(epoch, 0, operation, None, None, 0, 0, 0, 0, changed, labels)
    return pack(hist_key(TABLE, epoch), commit.to_record())


@dataclass(frozen=True)
class State:
    """A state of the catalog: the table's commits after `known_from`, and which of them have changes."""

    known_from: int
    commits: tuple[tuple[int, bool], ...]

    @property
    def newest(self) -> int:
        return self.commits[-1][0] if self.commits else self.known_from

    def view(self, meanwhile: Callable[[], object] = lambda: None) -> ReadTxn:
        """Return the state as a transaction, during whose scan `meanwhile` is called: another thread has its look."""
        return cast("ReadTxn", _View(self, meanwhile))

    def seen(self, memory: EpochMemory, meanwhile: Callable[[], object] = lambda: None) -> CommitEpochs:
        return memory.of(self.view(meanwhile), TABLE, self.known_from, self.newest)

    @property
    def expected(self) -> tuple[list[int], list[int]]:
        return [epoch for epoch, _ in self.commits], [epoch for epoch, changed in self.commits if changed]


class _View:
    def __init__(self, state: State, meanwhile: Callable[[], object]) -> None:
        self._state, self._meanwhile = state, meanwhile

    def scan_packed(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._meanwhile()
        for epoch, changed in self._state.commits:
            if start <= (key := hist_key(TABLE, epoch)) < stop:
                yield key, packed_commit(epoch, changed, (epoch - 1,) if epoch % 7 == 0 else ())


def history(moves: list[tuple[int, int]]) -> list[State]:
    """Return the states after each move: so many commits, then so many of the oldest forgotten, but not the newest."""
    states, known_from, commits, epoch = [State(0, ())], 0, list[tuple[int, bool]](), 0
    for added, forgotten in moves:
        for _ in range(added):
            epoch += 1 + epoch % 3
            commits.append((epoch, epoch % 4 != 0))
        for _ in range(min(forgotten, len(commits) - 1)):
            known_from = commits.pop(0)[0]
        states.append(State(known_from, tuple(commits)))
    return states


def check_looks(moves: list[tuple[int, int]], looks: list[tuple[int, int | None]]) -> None:
    """Look at states in any order, as slow threads do, some during the scan of another look. Each look has the commits
    of its state, then and after all other looks.
    """
    states, memory = history(moves), EpochMemory()
    results: list[tuple[State, CommitEpochs]] = []

    def look(place: int, during: int | None) -> None:
        state = states[place % len(states)]
        inner: list[int] = [] if during is None else [during]
        seen = state.seen(memory, lambda: look(inner.pop(), None) if inner else None)
        results.append((state, seen))

    for place, during in looks:
        look(place, during)
    for state, seen in results:
        assert (seen.commits.tolist(), seen.changes.tolist()) == state.expected


MOVES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)
LOOKS = st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 12)), min_size=1, max_size=20)


@given(MOVES, LOOKS)
def test_looks_in_any_order_have_the_commits_of_their_state(
    moves: list[tuple[int, int]], looks: list[tuple[int, int | None]]
) -> None:
    check_looks(moves, looks)


def copied_by_looks(states: list[State]) -> int:
    """Return the number of remembered commits that looks at these states, in order, have copied."""
    memory, copied, before = EpochMemory(), 0, CommitEpochs(np.empty(0, np.int64), np.empty(0, np.int64))
    for state in states:
        seen = state.seen(memory)
        for epochs, older in zip(seen, before, strict=True):
            assert epochs.dtype == np.int64 and not epochs.flags.writeable
            copied += 0 if not len(older) or np.shares_memory(epochs, older) else len(older)
        before = seen
    return copied


def test_a_look_copies_no_remembered_commit() -> None:
    """Of 400 looks after one commit each, few copy; so it is while retention forgets as many."""
    growing, sliding = history([(1, 0)] * 400), history([(100, 0), *[(1, 1)] * 400])
    assert 0 < copied_by_looks(growing) <= 2 * 3 * 400
    assert 0 < copied_by_looks(sliding) <= 2 * 3 * 500


def test_forgotten_commits_leave_the_memory() -> None:
    memory, states = EpochMemory(), history([(100, 0), *[(1, 1)] * 400])
    for state in states:
        state.seen(memory)
    assert memory.bytes <= 2 * 8 * 500, "of 100 remembered ones, with room for those that were forgotten"


def test_the_commits_of_dropped_tables_leave_the_memory(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store")
    for name in ("kept", "dropped"):
        lab.root_table(name)
        lab.put({1: (1, 1)}, name)
    handle = lab.store._handle
    epochs = epochs_of(lab.store)
    assert handle.memory._known.keys() == epochs.tables.keys() == {*epochs.ids.values()}
    lab.store.drop_table("dropped")
    epochs_of(lab.store)
    assert handle.memory._known.keys() == {epochs.ids["kept"]}


def test_a_commit_is_read_without_decoding_it_and_with_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and labels at the end of a record change nothing, and a damaged record is refused."""
    key = hist_key(TABLE, 7)
    for changed in (False, True):
        for labels in ((), (5,), (0xC3, 0xA6)):
            for operation in ("upsert", "çchanged", "changed\u00e6labels"):
                assert versions.has_changed(key, packed_commit(7, changed, labels, operation)) is changed
    later = pack(key, {"epoch": 7, "changed": True, "labels": [], "message": "\u00e7changed\u00e6labels"})
    assert versions.has_changed(key, later)
    for damaged in (packed_commit(7, True)[:-1], b"", packed_commit(8, True)):
        with pytest.raises(Corrupt):
            versions.has_changed(key, damaged)
    monkeypatch.setattr(versions, "unpack", lambda *_: pytest.fail("the record was decoded"))
    assert versions.has_changed(key, packed_commit(7, True)) and not versions.has_changed(key, packed_commit(7, False))


def copied(self: Any, after: int, until: int) -> np.ndarray:
    part = self._buffer[: self._length]
    part = part[(part > after) & (part <= until)].copy()
    part.flags.writeable = False
    return part


def appended_whole(self: Any, fresh: CommitEpochs) -> None:
    self._commits.append(fresh.commits)
    self._changes.append(fresh.changes)


@pytest.mark.planted
def test_a_copy_at_each_look_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: each look copies the remembered commits."""
    monkeypatch.setattr(view_reader._GrowingInts, "between", copied)
    with pytest.raises(AssertionError):
        test_a_look_copies_no_remembered_commit()


@pytest.mark.planted
def test_commits_that_two_looks_add_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a look adds commits that another thread has added during its scan."""
    monkeypatch.setattr(view_reader._KnownCommits, "append", appended_whole)
    with pytest.raises(AssertionError):
        check_looks([(3, 0), (2, 0)], [(1, None), (2, 2), (2, None)])


@pytest.mark.planted
def test_a_gap_in_the_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a look adds the commits after those that were forgotten to those before."""

    class Gapped(view_reader._KnownCommits):
        @property
        def begin(self) -> int:
            return 0

        @begin.setter
        def begin(self, value: int) -> None: ...

    monkeypatch.setattr(view_reader, "_KnownCommits", Gapped)
    with pytest.raises(AssertionError):
        check_looks([(4, 0), (6, 9)], [(2, None), (1, None)])
