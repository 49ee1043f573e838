"""Rounds of a log source: one look at the catalog plans many barriers, and nothing that a reader gets depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.checkpoint.job.next_barrier import CommitBoundaries
from epochlog.checkpoint.log_source import log_barriers, log_round, log_source
from epochlog.store.catalog.keys import LOG_PREFIX
from epochlog.store.catalog.protocol import scan_prefix
from epochlog.store.changelog import change_reader, log_plan, log_reader, tail_cache
from epochlog.store.changelog.tail_cache import tail
from epochlog.store.retention import stale_reads
from epochlog.store.types.epoch import width
from epochlog.store.types.epoch_set import FAR, coalesce, ints
from lab import Lab
from log_source_model import History, Item, barriers, read, received, shown
from seeds import seeds
from stand_in_packer import PackedBetween, pack


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.root_table("q")
    return lab


def looks(monkeypatch: pytest.MonkeyPatch, barriers: int, rows: int = 1 << 16, changes: int = 1_024) -> None:
    """Let one look at the catalog plan so many barriers, rows and commits."""
    monkeypatch.setattr(log_source, "LOOK_BARRIERS", barriers)
    monkeypatch.setattr(log_round, "LOOK_ROWS", rows)
    monkeypatch.setattr(log_barriers, "LOOK_CHANGES", changes)


def reads_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads, real = list[int](), lab.store._handle.catalog.read
    monkeypatch.setattr(lab.store._handle.catalog, "read", lambda body: reads.append(1) or real(body))
    return reads


# ---- one look for many barriers ----------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_replay_looks_at_the_catalog_once_for_many_barriers(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(200):
        lab.put({key: (0, key)})
        lab.tick()
    with el.UpstreamLog(lab.store, ["r"]) as log:
        reads = reads_of(lab, monkeypatch)
        items = received(log)
    monkeypatch.undo()
    assert len(barriers(items)) == 200
    assert len(reads) <= 4 + 4, "four rounds, the seal, and the look that finds nothing"
    looks(monkeypatch, 1)
    assert shown(read(lab)) == shown(items)


def test_a_round_has_a_bounded_number_of_rows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, 64, rows=10)
    rounds, real = list[int](), log_round.LogRound.ordered
    monkeypatch.setattr(
        log_round.LogRound,
        "ordered",
        lambda self, rows: rounds.append(sum(plan.rows for plan in self.plans)) or real(self, rows),
    )
    for size in (4, 4, 4, 25, 1, 1, 10):
        lab.put(dict.fromkeys(range(size), (0, size)))
        lab.tick()
    assert len(barriers(read(lab))) == 7
    assert rounds[0] == 8 and sum(rounds) == 49
    assert all(rows <= 10 for rows in rounds if rows != 25), "one barrier alone may have more"


def test_a_reader_without_pre_images_plans_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(3):
        lab.put({key: (0, key)})
        lab.tick()
    asked, real = list[int](), log_plan.read_files
    monkeypatch.setattr(log_plan, "read_files", lambda *args: asked.append(1) or real(*args))
    after = barriers(read(lab))[0][1]
    assert len(barriers(read(lab, after=after))) == 2
    assert not asked
    assert [row[2] for row in shown(read(lab, after=after, pre_images=True))[::2]] == ["insert", "insert"]
    assert asked


# ---- the reader sees no round ------------------------------------------------------------------------------------


def test_a_reader_that_is_fenced_within_a_round_gets_no_further_barrier(lab: Lab) -> None:
    for key in range(3):
        lab.put({key: (0, key)})
        lab.tick()
    with el.UpstreamLog(lab.store, ["r"], consumer="dash", after=0) as old:
        assert isinstance(old.poll(), el.Chunk) and isinstance(old.poll(), el.Barrier)
        with el.UpstreamLog(lab.store, ["r"], consumer="dash"), pytest.raises(el.Fenced):
            old.poll()


def read_before_a_damaged_file(lab: Lab) -> None:
    """Check that a reader gets all barriers before a damaged file, which it reads together with them."""
    for key in range(5):
        lab.put({key: (0, key)})
        lab.tick()
    whole = read(lab)
    records = lab.store._handle.catalog.read(lambda view: [record for _, record in scan_prefix(view, LOG_PREFIX)])
    (lab.root / records[3]["groups"][0][1][0]["path"]).unlink()
    tail.clear()
    for done in (0, 4):
        items = list[Item]()
        with el.UpstreamLog(lab.store, ["r"], after=barriers(whole)[done // 2][0]) as log:
            with pytest.raises(el.Corrupt):
                items.extend(iter(log.poll, None))
            with pytest.raises(el.InvalidInput, match=f"after={barriers(whole)[2][1]}"):
                log.poll()
        assert shown(items) == shown(whole)[done:6]


@pytest.mark.damages_store
@pytest.mark.local_only
@pytest.mark.parametrize("near", [True, False])
def test_what_lies_before_a_damaged_file_is_returned(lab: Lab, monkeypatch: pytest.MonkeyPatch, near: bool) -> None:
    """Part of the newest barrier may be returned when the file is found damaged, or nothing of the round."""
    monkeypatch.setattr(tail_cache, "NEAR_EPOCHS", 16 if near else 0)
    read_before_a_damaged_file(lab)


class Forgetful(Counter[str]):
    """Bug: a reader that plans anew has forgotten what it has returned."""

    def __getitem__(self, key: str) -> int:
        return 0


@pytest.mark.planted
@pytest.mark.damages_store
@pytest.mark.local_only
def test_rows_are_seen_to_be_returned_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "Counter", Forgetful)
    with pytest.raises(AssertionError):
        read_before_a_damaged_file(lab)


SIZES = [(1, 1 << 16, 1_024), (64, 1 << 16, 1_024), (3, 5, 1_024), (64, 2, 2), (7, 1 << 16, 3)]


def read_in_all_sizes(lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int, turns: int, **options: Any) -> None:
    """Read a random history with rounds of each size, from several barriers on."""
    history = History(lab, seed)
    for _ in range(turns):
        history.turn()
    history.settle()
    looks(monkeypatch, 1)
    expected = shown(read(lab, history.tables, **options))
    stops = [(place + 1, row[1]) for place, row in enumerate(expected) if len(row) == 3]
    assert len(stops) > 3
    for size in SIZES:
        looks(monkeypatch, *size)
        for place, after in ((0, 0), *stops[:: max(1, len(stops) // 3)]):
            assert shown(read(lab, history.tables, after=after, **options)) == expected[place:], (size, after)


@pytest.mark.rule("5.16", "5.17")
@pytest.mark.medium
@pytest.mark.parametrize("pre_images", [False, True])
def test_rounds_of_each_size_give_the_same(lab: Lab, monkeypatch: pytest.MonkeyPatch, pre_images: bool) -> None:
    read_in_all_sizes(lab, monkeypatch, 3, 40, pre_images=pre_images)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(300, 306), 2))
def test_rounds_of_each_size_give_the_same_of_many_histories(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    read_in_all_sizes(lab, monkeypatch, seed, 80, pre_images=bool(seed % 2))


def by_label(barriers: Sequence[el.Barrier], plans: Any, changes: Any) -> Any:
    """Bug: a barrier covers the log epochs up to it, not the commits."""
    return log_round.cut_round(barriers, plans, [ints([group.label for group in plan.groups]) for plan in plans])


def one_short(barriers: Sequence[el.Barrier], plans: Any, changes: Any) -> Any:
    """Bug: the last barrier of a round comes without its changes."""
    cut = log_round.cut_round(barriers, plans, changes)
    return log_round.replace(cut, plans=tuple(log_round.replace(plan, groups=plan.groups[:-1]) for plan in cut.plans))


def early(barriers: Sequence[el.Barrier], plans: Any, changes: Any) -> Any:
    """Bug: the changes of each barrier come before the one before it."""
    cut = log_round.cut_round(barriers, plans, changes)
    return log_round.replace(cut, ends=tuple((*ends[1:], ends[-1]) for ends in cut.ends))


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize("bug", [by_label, one_short, early])
def test_the_comparison_of_rounds_is_not_blind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., Any]
) -> None:
    real = log_source.cut_round

    def cut(*args: Any) -> log_round.LogRound:
        return real(*args) if log_source.LOOK_BARRIERS == 1 else bug(*args)

    monkeypatch.setattr(log_source, "cut_round", cut)
    with pytest.raises(AssertionError):
        read_in_all_sizes(lab, monkeypatch, 3, 40)


@pytest.mark.rule("7.8")
def test_an_alter_ends_a_round_at_the_first_change_after_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The barriers of other tables between the alter and that change come first, also those past the alter."""
    table = lab.store.table("r")
    lab.put({1: (0, 1)})
    lab.tick()
    table.alter(rename={"v": "w"})
    altered = table.history(1)["epoch"][0].as_py()
    for key in range(3):
        lab.put({key: (0, key)}, "q")
        lab.tick()
    lab.put({7: (0, 7)}, "q")
    table.upsert([{"k": 2, "g": 0, "w": 2}])
    lab.tick()
    read_rows = []
    for most in (1, 64):
        looks(monkeypatch, most)
        items = list[Item]()
        with el.UpstreamLog(lab.store, ["r", "q"], after=0) as log, pytest.raises(el.SchemaChanged) as changed:
            items.extend(iter(log.poll, None))
        assert changed.value.epoch == altered
        read_rows.append(shown(items))
    assert read_rows[0] == read_rows[1]
    assert [row[0] for row in read_rows[0] if len(row) == 5] == ["r", "q", "q", "q"]
    assert len([row for row in read_rows[0] if len(row) == 3]) == 4


@pytest.mark.rule("5.21")
def test_a_hold_that_is_due_ends_a_round(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold of a plan pins its files, so it does not move within a round."""
    for key in range(6):
        lab.put({key: (0, key)})
        lab.tick()
    moved_s = [0.0]
    monkeypatch.setattr(log_reader, "monotonic_s", lambda: moved_s[0])
    with el.UpstreamLog(lab.store, ["r"]) as log:
        assert len(barriers([item for _ in range(4) if (item := log.poll())])) == 2
        first = log.position
        with pytest.raises(el.LogHeld):
            lab.store.table("r").truncate_log(first)
        moved_s[0] += log_reader.MOVE_HOLD_S
        assert [type(log.poll()), type(log.poll())] == [el.Chunk, el.Barrier]
        assert isinstance(log.poll(), el.Chunk)
        lab.store.table("r").truncate_log(first)
        assert len(barriers(received(log))) == 3


# ---- boundaries --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=6),
    st.lists(st.integers(0, 120), max_size=5),
    st.lists(st.integers(0, 130), min_size=1, max_size=8),
)
def test_the_first_boundary_from_each_epoch(spans: list[tuple[int, int]], forced: list[int], epochs: list[int]) -> None:
    """Compared with a walk over all boundaries, in tenths of an interval."""
    tenth = width(1) // 10
    marks = sorted({mark for start, length in spans for mark in range(start, start + length + 1)})
    starts = [mark for mark in marks if mark - 1 not in marks]
    ends = [mark for mark in marks if mark + 1 not in marks]
    intervals = coalesce((ints(starts) * tenth, (ints(ends) + 1) * tenth - 1))
    asked, at = ints(sorted(epochs)) * tenth, ints(sorted(set(forced))) * tenth
    boundaries = CommitBoundaries(intervals, at, 1)
    regular = [k * width(1) - 1 for k in range(1, 20)]
    usable = sorted(
        epoch
        for epoch in {*regular, *at.tolist()}
        if any(low <= epoch <= high for low, high in zip(*map(np.ndarray.tolist, intervals), strict=True))
    )
    expected = [next((boundary for boundary in usable if boundary >= epoch), int(FAR)) for epoch in asked.tolist()]
    assert boundaries.first_from(asked).tolist() == expected
    assert boundaries.first() == (usable[0] if usable else None)


# ---- a log that is packed meanwhile ------------------------------------------------------------------------------


def packed_at_each_call(lab: Lab, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """Compare what a reader returns, while the log is packed after each of its calls of the catalog, with what an
    undisturbed one does. It must find all files of its plans. Return the number of files that were deleted meanwhile.
    """
    history = History(lab, 5)
    for _ in range(30):
        history.turn()
    history.settle()
    expected = shown(read(lab, ["r", "q"], **options))
    looks(monkeypatch, 4, rows=6)
    monkeypatch.setattr(log_reader, "MOVE_HOLD_S", 0)
    for name in ("UNIT_ROWS", "SPLIT_ROWS"):
        monkeypatch.setattr(change_reader, name, 2)
    missed, real = list[str](), stale_reads._explain_missing
    monkeypatch.setattr(
        stale_reads, "_explain_missing", lambda handle, error: missed.append(error.path) or real(handle, error)
    )
    tail.clear()
    with lab.open() as packer, el.UpstreamLog(lab.store, ["r", "q"], **options) as log:
        with PackedBetween(lab.store, packer) as packed:
            items = received(log)
            assert not any(isinstance(item, el.EndOfData) for item in items)
        assert shown(items) == expected
    assert not missed
    return packed.deleted


@pytest.mark.rule("5.21")
@pytest.mark.medium
@pytest.mark.parametrize("options", [{}, {"pre_images": True}])
def test_the_files_of_a_plan_are_held_from_before_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    assert packed_at_each_call(lab, monkeypatch, **options) > 10


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
def test_a_hold_after_the_plan_is_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the hold moves past a plan's version before the plan is read."""
    real = log_source.UpstreamLog._next_round

    def planned_first(log: el.UpstreamLog) -> Any:
        log_round = real(log)
        log._hold.take(lambda _: (None, log.position))
        return log_round

    monkeypatch.setattr(log_source.UpstreamLog, "_next_round", planned_first)
    with pytest.raises((AssertionError, el.SnapshotExpired)):
        packed_at_each_call(lab, monkeypatch)


@pytest.mark.rule("1.72")
@pytest.mark.rule("4.18")
@pytest.mark.local_only
def test_a_reader_that_may_hold_nothing_plans_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(6):
        lab.put({key: (0, key), key + 1: (0, key)})
        lab.tick()
    lab.store.checkpoint()
    expected = shown(read(lab))
    looks(monkeypatch, 2)
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 1)
    monkeypatch.setattr(tail_cache, "NEAR_EPOCHS", 0)
    for name in ("UNIT_ROWS", "SPLIT_ROWS"):
        monkeypatch.setattr(change_reader, name, 1)
    items, deleted = list[Item](), 0
    with el.open(lab.root, read_only=True, **lab.options) as reader, el.UpstreamLog(reader, ["r"], after=0) as log:
        while (item := log.poll()) is not None:
            items.append(item)
            deleted += pack(lab.store)
    assert shown(items) == expected
    assert deleted > 10
