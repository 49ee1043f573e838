"""Universal compaction: what is picked and why, pieces that stay as they are, tasks left behind, writers slowed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.keys import compact_key, intent_key
from epochlog.store.compaction import (
    executor,
    rewriter,
    strategy,
    subcompaction_rewriter,
    subcompactions,
    universal,
    write_stall,
)
from epochlog.store.compaction.claim import CLAIM_MS
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.strategy import CompactionTask, task_from
from epochlog.store.compaction.subcompactions import Subcompaction, cut_task
from epochlog.store.compaction.task_record import CompactionOutcome, Work, read_work
from epochlog.store.compaction.trace import Trace, read_traces
from epochlog.store.compaction.universal import UniversalStrategy
from epochlog.store.env.process_id import has_died, identity
from epochlog.store.metadata.lookups import find_table, get_runs, get_version
from epochlog.store.metadata.version import LabelGroup, LogEntry, Runs, TableVersion
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS
from epochlog.store.types.key_codec import KeyCodec
from logged_events import logged

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
CODEC = KeyCodec(SCHEMA, ("id",))
FOREVER = el.TableOptions(history_retention=timedelta(days=1000))


class Clock:
    """Unix ms that stand still until told."""

    def __init__(self) -> None:
        self.now_ms = EPOCH_ORIGIN_MS + 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=clock) as opened:
        yield opened


def rows(first: int, count: int, n: int = 0) -> pa.Table:
    return pa.table({"id": range(first, first + count), "n": [n] * count}, schema=SCHEMA)


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, schema=pa.schema([SCHEMA.field("id")]))


def numbers(table: el.Table, epoch: int | None = None) -> dict[int, int]:
    rows = table.to_arrow(epoch=epoch)
    return dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))


def some(store: el.Store, name: str = "t", **options: Any) -> CompactionOutcome:
    handle = store._handle
    return compact_table(handle, handle.catalog.read(lambda view: find_table(view, name)), **options)


def runs_of(store: el.Store, name: str = "t") -> tuple[SortedRun, ...]:
    return store._handle.catalog.read(lambda view: get_runs(view, find_table(view, name).id))


def work_of(store: el.Store, name: str = "t") -> Work | None:
    return store._handle.catalog.read(lambda view: read_work(view, find_table(view, name).id))


def traces_of(store: el.Store, name: str = "t") -> list[Trace]:
    return store._handle.catalog.read(lambda view: read_traces(view, find_table(view, name).id))


# ---- picking -------------------------------------------------------------------------------------------------------


def run(lo: int, hi: int, size: int, history: int = 0) -> SortedRun:
    part = RunFile(f"{lo}-{hi}", 1, size, 0, 0, 9, blocks=(0,))
    past = (RunFile(f"h{lo}-{hi}", 1, history, 0, 0, 9, blocks=(0,), history=True, until=hi),) if history else ()
    return SortedRun(lo, hi, (part,), past)


def at(compacted: int, newest: int, segments: int, size: int) -> TableVersion:
    return TableVersion(newest, 0, compacted_epoch=compacted, l0_segments=segments, l0_bytes=size)


@pytest.mark.parametrize(
    "sizes,l0,options,expected",
    [
        ([], (7, 70), {}, None),
        ([], (8, 80), {}, (0, 0, True)),
        ([1000], (8, 80), {}, (1, 0, True)),  # small beside the bottom: a run of its own
        ([1000], (8, 500), {}, (0, 1, True)),  # half of the bottom: all of it
        ([1000, 80], (8, 80), {}, (1, 1, True)),  # of like size: together
        ([1000, 160], (8, 80), {}, (2, 0, True)),
        ([1000, 200, 80], (8, 80), {}, (2, 1, True)),
        ([1000, 160, 80], (8, 80), {}, (1, 2, True)),
        ([1000, 100, 100], (0, 0), {}, (1, 2, False)),
        ([1000, 200, 100], (7, 10), {}, None),
        ([1000, 300, 200], (7, 10), {}, (0, 3, False)),  # half of the bottom without L0
        ([1000], (1, 1), {"full": True}, (0, 1, True)),
        ([1000], (0, 0), {"full": True}, None),
        ([1000, 10], (0, 0), {"full": True}, (0, 2, False)),
        ([1000, 80], (1, 80), {"l0_only": True}, (2, 0, True)),
        ([1000, 80], (0, 0), {"l0_only": True}, None),
    ],
)
def test_what_is_picked(
    sizes: list[int], l0: tuple[int, int], options: dict[str, bool], expected: tuple[int, int, bool] | None
) -> None:
    runs = tuple(run(10 * i, 10 * i + 10, size) for i, size in enumerate(sizes))
    task = UniversalStrategy().pick(at(10 * len(runs), 10 * len(runs) + 5, *l0), runs, compact_segments=8, **options)
    if expected is None:
        assert task is None
    else:
        first, count, with_l0 = expected
        assert task is not None and (task.lo, task.runs, task.l0_after is not None) == (10 * first, count, with_l0)
        assert task.hi == 10 * len(runs) + (5 if with_l0 else 0) and task.bottom == (first == 0)
        assert task.inputs(runs) == runs[first:] and task.reason


def test_too_many_runs_are_made_fewer() -> None:
    runs = (run(0, 1, 1 << 40), *(run(i, i + 1, 1 << (30 - i)) for i in range(1, universal.MAX_RUNS + 1)))
    task = UniversalStrategy().pick(at(len(runs), len(runs), 0, 0), runs, compact_segments=8)
    assert task is not None and (task.lo, task.runs) == (1, universal.MAX_RUNS)
    assert UniversalStrategy().pick(at(len(runs) - 1, len(runs) - 1, 0, 0), runs[:-1], compact_segments=8) is None


def test_a_task_knows_whether_its_inputs_are_there() -> None:
    older, newer, third = run(0, 10, 5), run(10, 20, 5), run(20, 30, 5)
    both = CompactionTask("", 0, 20, 2, None, 0)
    assert both.inputs((older, newer)) == (older, newer) == both.inputs((older, newer, third))
    assert both.inputs((run(0, 20, 9), third)) is None and both.inputs((older,)) is None
    with_l0 = CompactionTask("", 10, 25, 1, 20, 0)
    assert with_l0.inputs((older, newer)) == (newer,)
    assert with_l0.inputs((older, newer, third)) is None  # somebody else has folded L0
    alone = CompactionTask("", 20, 25, 0, 20, 0)
    assert alone.inputs((older, newer)) == () and alone.inputs((older, newer, third)) is None


# ---- pieces --------------------------------------------------------------------------------------------------------


def part(low: int, high: int, **fields: Any) -> RunFile:
    return RunFile(f"p{low}", fields.pop("rows", 100), fields.pop("bytes", 1000), 0, low, high, blocks=(low,), **fields)


def log(low: int, high: int, rows: int = 10, blocks: tuple[int, ...] = ()) -> LogEntry:
    segment = Segment(f"s{low}", 1, rows, 0, 100, 0, low, high, blocks=blocks or (low,))
    return LogEntry(9, (LabelGroup(9, (segment,)),))


def cut(
    runs: list[SortedRun], entries: list[LogEntry], bottom: bool = True, rewritten: tuple[str, ...] = ()
) -> list[Subcompaction]:
    task = CompactionTask("", 0 if bottom else 1, 9, len(runs), 5, 0, rewritten)
    return cut_task(CODEC, task, runs, entries)


def test_a_part_that_nothing_touches_stays() -> None:
    base = SortedRun(0, 5, (part(0, 99), part(100, 199), part(200, 299)))
    pieces = cut([base], [log(150, 160)])
    assert pieces == [
        Subcompaction(0, 100, "p0"),
        Subcompaction(100, 200),
        Subcompaction(200, 300, "p200"),
        *pieces[3:],
    ]
    assert [piece.reused for piece in cut([base], [log(300, 400)])] == ["p0", "p100", "p200", None]


def test_a_part_is_rewritten_for_what_reaches_into_its_keys() -> None:
    base = part(0, 99)
    for other in (log(99, 150), log(50, 50)):
        assert all(piece.reused is None for piece in cut([SortedRun(0, 5, (base,))], [other]))
    past = part(40, 50, history=True, until=4)
    assert cut([SortedRun(0, 5, (base,), (past,))], [log(500, 600)])[0].reused == "p0"
    assert cut([SortedRun(0, 5, (base,), (past,))], [log(500, 600)], rewritten=("p40",))[0].reused is None
    marked = SortedRun(1, 5, (part(0, 99, deletes=1),))
    assert cut([marked], [log(500, 600)], bottom=False)[0].reused == "p0"
    assert cut([marked], [log(500, 600)], bottom=True)[0].reused is None


def test_pieces_tile_the_keys_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 30)
    blocks = tuple(range(0, 1000, 10))
    pieces = cut([], [log(0, 999, 1000, blocks)])
    assert len(pieces) == 34 and pieces[0].low is None and pieces[-1].high is None
    assert all(left.high == right.low for left, right in pairwise(pieces))
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 1 << 30)
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_BYTES", 50)
    assert len(cut([], [log(0, 999, 1000, blocks)])) == 2


def test_the_greatest_key_of_all_ends_the_pieces() -> None:
    top = (1 << 63) - 1
    pieces = cut([SortedRun(0, 5, (part(5, top),))], [log(0, 1)])
    assert pieces[-1] == Subcompaction(5, None, "p5") and pieces[0].reused is None


# ---- runs and epochs -----------------------------------------------------------------------------------------------


def test_a_delete_in_an_upper_run_hides_the_row_below_and_is_gone_at_the_bottom(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"], options=FOREVER)
    first = table.upsert(rows(0, 1000))
    store.compact("t")
    second = table.delete(keys(5, 7, 2000))
    third = table.upsert(rows(7, 1, n=3))
    fourth = table.delete(keys(7))
    assert some(store, l0_only=True) is CompactionOutcome.DONE
    assert [(run.lo, run.hi) for run in runs_of(store)] == [(0, first), (first, fourth)]
    assert sum(run.deletes for run in (*runs_of(store)[1].parts, *runs_of(store)[1].history)) == 4

    def as_it_was() -> None:
        assert len(numbers(table, first)) == 1000 and table.count(first) == 1000
        assert 7 not in numbers(table, second) and len(numbers(table, second)) == 998
        assert numbers(table, third)[7] == 3 and table.count(third) == 999
        assert len(numbers(table)) == table.count() == 998
        assert table.get(keys(5, 6, 7)).to_pylist() == [{"id": 6, "n": 0}]

    as_it_was()
    store.compact("t", full=True)
    (bottom,) = runs_of(store)
    assert (bottom.lo, bottom.hi) == (0, fourth) and not any(run.deletes for run in bottom.parts)
    as_it_was()


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_random_runs_read_as_a_dict_at_every_epoch(
    store: el.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 9)
    monkeypatch.setattr(rewriter, "PART_ROWS", 7)
    rng = random.Random(seed)
    table = store.create_table("t", SCHEMA, ["id"], options=replace(FOREVER, compact_segments=2))
    state: dict[int, int] = {}
    states: dict[int, dict[int, int]] = {}
    for n in range(60):
        clock.now_ms += 10
        ids = rng.sample(range(40), rng.randint(1, 8))
        if rng.random() < 0.3:
            epoch = table.delete(keys(*ids))
            state = {key: value for key, value in state.items() if key not in ids}
        else:
            epoch = table.upsert(pa.table({"id": ids, "n": [n] * len(ids)}, schema=SCHEMA))
            state = {**state, **dict.fromkeys(ids, n)}
        states[epoch] = state
        if rng.random() < 0.4:
            some(store, l0_only=rng.random() < 0.5, budget=rng.choice([None, 1, 3]))
        if rng.random() < 0.05:
            store.compact("t", full=True)
    assert len(traces_of(store)) > 3
    for epoch, expected in states.items():
        assert numbers(table, epoch) == expected, f"at {epoch}"
    assert store.verify().ok


def test_versions_that_no_epoch_can_see_are_not_kept(store: el.Store, clock: Clock) -> None:
    table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(history_retention=timedelta(seconds=10)))
    for n in range(5):
        clock.now_ms += 1000
        table.upsert(rows(0, 10, n))
    some(store, l0_only=True)
    assert sum(part.rows for part in runs_of(store)[0].history) == 40
    clock.now_ms += 60_000
    newest = table.upsert(rows(0, 1, 9))
    store.compact("t")
    (only,) = runs_of(store)
    assert sum(part.rows for part in only.history) == 1  # the row that was there until now
    assert table.info.safe_epoch > 0 and only.hi == newest
    with pytest.raises(el.EpochExpired):
        table.to_arrow(epoch=table.info.safe_epoch - 1)


def test_a_table_that_grows_at_its_end_is_not_written_again(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(0, 1000))
    store.compact("t")
    (old,) = runs_of(store)[0].parts
    table.upsert(rows(1000, 600))
    store.compact("t")
    (grown,) = runs_of(store)
    assert grown.parts[0] == old and len(grown.parts) == 2 and table.count() == 1600
    trace = traces_of(store)[0]
    assert trace.bytes_reused == old.bytes and trace.rows_in == trace.rows_out == 600


@pytest.mark.medium
def test_what_was_replaced_once_is_not_written_again(store: el.Store, clock: Clock) -> None:
    table = store.create_table("t", SCHEMA, ["id"], options=FOREVER)
    table.upsert(rows(0, 100))
    seen: list[set[str]] = []
    states: dict[int, dict[int, int]] = {}
    for n in range(60):
        clock.now_ms += 1000
        epoch = table.upsert(rows(n, 20, n))
        states[epoch] = numbers(table)
        store.compact("t")
        seen.append({part.path for run in runs_of(store) for part in run.history})
    assert sum(before <= after for before, after in pairwise(seen)) > 45  # most of the time all stay
    assert max(map(len, seen)) <= strategy.HISTORY_PARTS + 2  # now and then the small ones become one
    assert sum(part.rows for part in runs_of(store)[0].history) == 60 * 20 - (table.count() - 100)
    for epoch, expected in states.items():
        assert numbers(table, epoch) == expected
    written = sum(trace.rows_out for trace in traces_of(store))
    assert written < 60 * (table.count() + 60)


# ---- left behind, and taken over -----------------------------------------------------------------------------------


@pytest.fixture
def large(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> el.Table:
    """A table whose compaction takes several pieces."""
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 100)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 50)
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(0, 1000))
    table.upsert(rows(500, 1000, n=1))
    return table


def parquet(store: el.Store) -> set[str]:
    listed = store._handle.files.list(store._handle.store_id)
    return {info.path.rsplit("/", 1)[-1] for info in listed if info.path.endswith(".parquet")}


@pytest.mark.medium
def test_a_budget_is_kept_and_the_rest_is_done_later(store: el.Store, large: el.Table) -> None:
    expected = numbers(large)
    assert some(store, full=True, budget=3) is CompactionOutcome.PROGRESS
    work = work_of(store)
    assert work is not None and len(work.done) == 3 and large.info.runs == 0
    first = {part.path for part in work.parts}
    assert store.verify().unreachable == ()
    assert some(store, full=True, budget=4) is CompactionOutcome.PROGRESS
    assert some(store, full=True) is CompactionOutcome.DONE
    assert work_of(store) is None and numbers(large) == expected
    assert first <= {part.path for part in runs_of(store)[0].parts}
    assert [trace.pieces for trace in traces_of(store)] == [len(work.subcompactions)]


@pytest.mark.medium
def test_a_task_whose_owner_died_is_taken_over_when_its_lease_has_ended(
    store: el.Store, clock: Clock, large: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    made, done = rewriter.Rewriter.rewrite, list[int]()

    def dying(*args: Any, **options: Any) -> Any:
        if len(done) == 2:
            raise Died
        done.append(1)
        return made(*args, **options)

    monkeypatch.setattr(rewriter.Rewriter, "rewrite", dying)
    with pytest.raises(Died):
        some(store, full=True)
    monkeypatch.setattr(rewriter.Rewriter, "rewrite", made)
    assert some(store, full=True) is CompactionOutcome.BUSY  # nobody knows yet that it died
    clock.now_ms += LEASE_MS
    assert some(store, full=True) is CompactionOutcome.DONE
    assert len(numbers(large)) == 1500 and store.verify().unreachable == ()


@pytest.mark.medium
def test_who_was_taken_over_has_no_effect(
    store: el.Store, clock: Clock, large: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still while another took its task over, and finished it, goes on."""
    made, calls = rewriter.Rewriter.rewrite, list[int]()
    monkeypatch.setattr(subcompaction_rewriter, "AT_ONCE", 1)  # else the piece before is recorded meanwhile
    other = el.open(store.root, durability="os", clock=clock)

    def stopped(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            clock.now_ms += LEASE_MS
            monkeypatch.setattr("epochlog.store.session.leases._alive_holders", {})  # as in another process
            assert some(other, full=True) is CompactionOutcome.DONE
        return made(*args, **options)

    monkeypatch.setattr(rewriter.Rewriter, "rewrite", stopped)
    assert some(store, full=True) is CompactionOutcome.LOST
    other.close()
    assert len(numbers(large)) == 1500 and store.verify().ok
    (run,) = runs_of(store)
    assert parquet(store) == {part.path.rsplit("/", 1)[-1] for part in (*run.parts, *run.history)}


@pytest.mark.medium
def test_a_compaction_that_fails_is_continued_at_once(
    store: el.Store, large: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, done = numbers(large), list[int]()
    real = rewriter.Rewriter.rewrite

    def failing(*args: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) > 3:
            raise el.WriteFailed("the disk is full")
        return real(*args, **options)

    monkeypatch.setattr(rewriter.Rewriter, "rewrite", failing)
    with pytest.raises(el.WriteFailed, match="the disk is full"):
        some(store, full=True)
    monkeypatch.setattr(rewriter.Rewriter, "rewrite", real)
    work = work_of(store)
    assert work is not None and 0 < len(work.done) < len(work.subcompactions)
    assert some(store, full=True) is CompactionOutcome.DONE and numbers(large) == expected


@pytest.mark.medium
@pytest.mark.local_only
def test_a_compaction_without_an_input_is_continued_once_the_file_is_back(store: el.Store, large: el.Table) -> None:
    expected = numbers(large)
    (last, *_) = sorted(Path(store.root).rglob("*.arrow"), key=lambda path: -path.stat().st_mtime_ns)
    away = last.rename(last.with_suffix(".away"))
    with pytest.raises(el.Corrupt, match="the file is gone"):
        some(store, full=True)
    away.rename(last)
    assert work_of(store) is not None
    assert some(store, full=True) is CompactionOutcome.DONE and numbers(large) == expected


@pytest.mark.medium
@pytest.mark.parametrize("renewed", [False, True])
def test_an_interrupted_compaction_is_continued_at_once(
    store: el.Store, large: el.Table, monkeypatch: pytest.MonkeyPatch, renewed: bool
) -> None:
    """renewed: a renewal of the leases that began before the end of the compaction ends after it."""
    expected, real = numbers(large), executor.record_subcompaction

    def interrupted(handle: Any, table: Any, work: Work, number: int) -> bool:
        if len(work.done) == 3:
            raise KeyboardInterrupt
        return real(handle, table, work, number)

    monkeypatch.setattr(executor, "record_subcompaction", interrupted)
    claimed, leases = list[Work | None](), store._handle.leases
    with pytest.raises(KeyboardInterrupt):
        some(store, full=True, progress=lambda done, total: claimed.append(work_of(store)))
    monkeypatch.setattr(executor, "record_subcompaction", real)
    first, work = claimed[0], work_of(store)
    assert first is not None and work is not None and len(work.done) == 2
    if renewed:
        leases.keep(first.owner, [compact_key(large._table.id)], CLAIM_MS)
        leases.renew()
        leases.forget(first.owner)
    assert some(store, full=True) is CompactionOutcome.DONE and numbers(large) == expected


@pytest.mark.medium
def test_a_compaction_whose_write_intent_was_revoked_is_continued_at_once(
    store: el.Store, large: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, real = numbers(large), executor.record_subcompaction

    def revoking(handle: Any, table: Any, work: Work, number: int) -> bool:
        if len(work.done) == 3:
            key = intent_key(handle.intents.store_intent())
            handle.catalog.transact(lambda tx: tx.delete(key))
        return real(handle, table, work, number)

    monkeypatch.setattr(executor, "record_subcompaction", revoking)
    assert some(store, full=True) is CompactionOutcome.LOST
    monkeypatch.setattr(executor, "record_subcompaction", real)
    work = work_of(store)
    assert work is not None and len(work.done) == 2
    assert some(store, full=True) is CompactionOutcome.DONE and numbers(large) == expected
    assert traces_of(store)[0].pieces == len(work.subcompactions)


@pytest.mark.medium
def test_the_close_of_a_store_keeps_the_pieces_that_its_compaction_has_done(
    store: el.Store, clock: Clock, large: el.Table
) -> None:
    expected = numbers(large)
    with el.open(store.root, durability="os", clock=clock) as other:
        handle = other._handle

        def close(done: int, total: int) -> None:
            if done == 2:
                other.close()

        definition = handle.catalog.read(lambda view: find_table(view, "t"))
        with pytest.raises(el.StoreClosed):
            compact_table(handle, definition, full=True, progress=close)
    work = work_of(store)
    assert work is not None and len(work.done) == 2 and large.info.runs == 0
    assert some(store, full=True) is CompactionOutcome.DONE and work_of(store) is None
    assert numbers(large) == expected and traces_of(store)[0].pieces == len(work.subcompactions)


KILLED = """
import sys, epochlog as el
from epochlog.store.compaction import subcompactions
from epochlog.store.sst import segment
subcompactions.SUBCOMPACTION_ROWS, segment.BATCH_ROWS = 100, 50
el.open(sys.argv[1], durability="os").compact("t", full=True)
"""


@pytest.mark.medium
@pytest.mark.local_only
def test_a_task_whose_process_is_known_to_have_died_is_taken_over_at_once(tmp_path: Path) -> None:
    with el.open(tmp_path / "k", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 50)
            table.upsert(rows(0, 1000))
        environment = {**os.environ, "EPOCHLOG_KILL_AT": "compact:range-recorded:3"}
        done = subprocess.run([sys.executable, "-c", KILLED, store.root], env=environment, check=False)
        assert done.returncode == -9
        work = work_of(store)
        assert work is not None and len(work.done) == 3 and table.info.runs == 0
        store.compact("t", full=True)
        assert table.info.runs == 1 and table.count() == 1000 and traces_of(store)[0].pieces == len(work.subcompactions)


def test_a_process_is_told_from_one_that_has_died() -> None:
    me = identity()
    assert not has_died(me) and not has_died("") and not has_died("junk")
    machine, pid, began = me.rsplit(" ", 2)
    assert has_died(f"{machine} {pid} {int(began) - 1}")  # another one had this id before
    assert not has_died(f"elsewhere/1 {pid} 1")
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert has_died(f"{machine} {int(ended.stdout)} {began}")


@pytest.mark.medium
def test_l0_can_be_folded_beside_a_long_merge_of_runs(store: el.Store, large: el.Table) -> None:
    some(store, l0_only=True)
    large.upsert(rows(0, 900, n=2))
    some(store, l0_only=True)
    expected = numbers(large)
    assert some(store, full=True, budget=2) is CompactionOutcome.PROGRESS
    newest = large.upsert(rows(3000, 1))
    handle = store._handle
    work = work_of(store)
    assert work is not None
    handle.leases.keep(work.owner, [])  # as if its owner were at work in this process
    assert some(store, full=True) is CompactionOutcome.BUSY and some(store, l0_only=True) is CompactionOutcome.DONE
    handle.leases.forget(work.owner)
    assert some(store, budget=1000) is CompactionOutcome.DONE
    assert numbers(large) == {**expected, 3000: 0} and runs_of(store)[-1].hi == newest


def test_dropping_a_table_ends_its_compaction(store: el.Store, large: el.Table) -> None:
    assert some(store, full=True, budget=2) is CompactionOutcome.PROGRESS
    store.drop_table("t")
    assert store.verify().ok
    store._handle.catalog.read(lambda view: [1 / 0 for key, _ in view.scan(b"compact/", b"compact0")])


# ---- commits at the limit ------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.logs("compaction", "write_stall")
def test_a_commit_at_the_limit_folds_l0_and_says_so(store: el.Store, caplog: pytest.LogCaptureFixture) -> None:
    table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(compact_segments=2, max_segments=4))
    for n in range(40):
        table.upsert(rows(n, 10, n))
        version = store._handle.catalog.read(lambda view: get_version(view, 1, "t"))
        assert version.l0_segments < 4
    stalls = logged(caplog, "write_stall")
    assert len(stalls) >= 10 and {(stall["segments"], stall["limit"]) for stall in stalls} == {(4, 4)}
    assert {trace.by for trace in traces_of(store)} == {"commit"} and table.count() == 49
    assert table.info.runs < 6 and table.next_epoch(0) is not None and table.info.log_segments == 40


@pytest.mark.logs("compaction_awaited")
def test_a_commit_waits_for_a_compaction_of_l0_elsewhere(
    store: el.Store, large: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert some(store, l0_only=True, budget=2) is CompactionOutcome.PROGRESS
    work = work_of(store)
    assert work is not None
    store._handle.leases.keep(work.owner, [])  # as if its owner were at work in this process
    large.alter(options=el.TableOptions(compact_segments=2, max_segments=2))
    monkeypatch.setattr(write_stall, "WAIT_S", 0.05)
    large.upsert(rows(3000, 1))
    store._handle.leases.forget(work.owner)
    assert numbers(large)[3000] == 0 and len(numbers(large)) == 1501


@pytest.mark.logs("retry")
def test_a_compaction_that_fails_fails_no_commit(
    store: el.Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(compact_segments=2, max_segments=2))

    def full(*args: Any, **options: Any) -> Any:
        raise el.WriteFailed("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rewriter.Rewriter, "rewrite", full)
        for n in range(5):
            table.upsert(rows(n, 1, n))
    (retry, *_), what = logged(caplog, "retry"), "the compaction of table t"
    assert retry == {"event": "retry", "what": what, "error": "WriteFailed: the disk is full"} and table.count() == 5
    table.upsert(rows(9, 1))
    assert table.info.runs == 1 and table.count() == 6


@pytest.mark.parametrize(
    "options", [{"max_segments": 0}, {"max_segments": True}, {"compact_segments": 9, "max_segments": 8}]
)
def test_limits_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(el.InvalidInput, match="max_segments"):
        el.TableOptions(**options)


class Newest:
    """A strategy of one's own: L0 alone, as soon as it has a segment, and all that there is when that is asked for."""

    def pick(
        self, version: TableVersion, runs: Runs, *, compact_segments: int, full: bool = False, l0_only: bool = False
    ) -> CompactionTask | None:
        first = 0 if full else len(runs)
        return task_from(version, runs, first, "L0 has a segment", l0=True) if version.l0_segments else None


def test_another_strategy_is_asked_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "STRATEGY", Newest())
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for n in range(3):
            table.upsert(pa.table({"id": [1, n + 2], "n": [n, n]}))
            store.compact()
        handle = store._handle
        at = handle.catalog.read(lambda view: find_table(view, "t")).id
        assert len(handle.catalog.read(lambda view: get_runs(view, at))) == 3
        assert {trace.reason for trace in handle.catalog.read(lambda view: read_traces(view, at))} == {
            "L0 has a segment"
        }
        assert table.to_arrow().sort_by("id").to_pydict() == {"id": [1, 2, 3, 4], "n": [2, 0, 1, 2]}
