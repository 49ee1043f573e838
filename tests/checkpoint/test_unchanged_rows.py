"""Unchanged rows of a job stay out of its commit. The net of all its writes decides, per key."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.store.commit import job_commit, unchanged_rows
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.lookups import find_table
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter
from lab import KEY, SCHEMA, Lab, keys_of, mirror, table_of
from log_model import tiny
from seeds import seeds

Row = tuple[int, int]
Ops = Sequence[dict[int, Row] | list[int]]
"""What a refresh does in order: upserts of rows, or deletes of keys."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    made.root_table()
    yield made
    made.store.close()


def writes(*ops: dict[int, Row] | list[int], out: str = "out") -> Callable[[Any], None]:
    def refresh(ctx: Any) -> None:
        for op in ops:
            if isinstance(op, dict):
                ctx.upsert(out, table_of(op))
            else:
                ctx.delete(out, keys_of(op))

    return refresh


def made(lab: Lab, rows: dict[int, Row], **settings: Any) -> el.Job:
    """A job whose output has these rows."""
    job = lab.store.create_job("j", ["r"], {"out": el.Output(SCHEMA, KEY, **settings)})
    step(lab, job, writes(rows))
    return job


def step(lab: Lab, job: el.Job, refresh: Callable[[Any], None]) -> int:
    lab.put({0: (0, lab.store.last_epoch % 1000)})
    lab.store.checkpoint()
    done = job.step_local(refresh)
    assert done
    return done


def written(lab: Lab, table: str = "out") -> list[tuple[str, int]]:
    """The newest log entry."""
    newest = lab.store.table(table).info.max_committed_epoch
    changes = lab.store.table(table).changes(newest - 1, newest).read_all()
    return list(zip(changes["_change_type"].to_pylist(), changes["k"].to_pylist(), strict=True))


def segments_of(lab: Lab, table: str = "out") -> list[Segment]:
    entries = lab.store._handle.catalog.read(lambda view: get_entries(view, find_table(view, table).id, 0, 1 << 60))
    return list(entries[-1].segments)


def assert_no_strays(lab: Lab) -> None:
    report = lab.store.verify()
    assert report.ok and not report.unreachable


# ---- what is left out --------------------------------------------------------------------------------------------

OLD = {1: (0, 1), 2: (0, 2), 3: (0, 3)}


@pytest.mark.rule("5.14")
@pytest.mark.parametrize(
    "ops",
    [
        [OLD],
        [{1: (0, 9)}, {1: (0, 1)}],
        [[1], {1: (0, 1)}],
        [{1: (0, 9)}, [1], {1: (0, 1)}],
        [[7, 8]],
        [{7: (0, 7)}, [7]],
        [[7], {7: (0, 7)}, [7], OLD, [9]],
        [],
    ],
    ids=str,
)
def test_what_changes_nothing_is_no_change(lab: Lab, ops: Ops) -> None:
    """Not the rows, not the log, nobody downstream: the entry is empty."""
    job = made(lab, OLD)
    below = lab.job("below", ["out"])
    lab.store.checkpoint()
    copied = below.step_local(mirror("out", "below_out"))
    at = step(lab, job, writes(*ops))
    lab.store.checkpoint()
    assert below.step_local(mirror("out", "below_out")) is None, "nothing wakes it"
    assert lab.rows("out", at) == OLD == lab.rows("below_out", copied)
    assert written(lab) == [] and lab.entries("out")[-1] == (at, 0)
    assert segments_of(lab) == [] and lab.store.table("out").next_epoch(at - 1) == at
    lab.tick()
    with lab.store.snapshot(consistency="aligned") as moment:
        assert moment.epochs["below_out"] >= at, "it is complete all the same"
    assert_no_strays(lab)


@pytest.mark.rule("5.14")
@pytest.mark.parametrize(
    ("ops", "changes"),
    [
        ([{1: (0, 1), 2: (0, 5)}, [3, 9]], [("upsert", 2), ("delete", 3)]),
        ([{1: (0, 9)}, {1: (0, 8)}], [("upsert", 1)]),
        ([{7: (0, 7), 3: (0, 3)}], [("upsert", 7)]),
        ([[1], {1: (1, 1)}], [("upsert", 1)]),
        ([{1: (0, 1)}, [1]], [("delete", 1)]),
    ],
    ids=str,
)
def test_what_changes_something_stays(lab: Lab, ops: Ops, changes: list[tuple[str, int]]) -> None:
    job = made(lab, OLD)
    step(lab, job, writes(*ops))
    assert written(lab) == changes
    assert_no_strays(lab)


@pytest.mark.rule("5.14")
def test_without_it_all_that_is_written_lands(lab: Lab) -> None:
    job = made(lab, OLD, drop_unchanged=False)
    step(lab, job, writes(OLD, [7]))
    assert written(lab) == [("upsert", 1), ("upsert", 2), ("upsert", 3), ("delete", 7)]
    lab.store.table("out").alter(drop_unchanged=True)
    step(lab, job, writes(OLD, [7]))
    assert written(lab) == []


@pytest.mark.rule("5.14")
def test_a_first_commit_is_compared_with_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of it only deletes could be left out; without any its segments are not looked at."""
    monkeypatch.setattr(unchanged_rows, "_changed_rows", None)
    job = made(lab, OLD)
    monkeypatch.undo()
    assert written(lab) == [("upsert", 1), ("upsert", 2), ("upsert", 3)]
    lab.store.drop_job(job.name)
    lab.tick()
    lab.store.create_job("j", ["r"], {"out": (SCHEMA, KEY)})
    step(lab, lab.store.job("j"), writes({5: (0, 5), 6: (0, 6)}, [6, 7]))
    assert written(lab) == [("upsert", 5)]


@pytest.mark.rule("5.14")
def test_floats_are_compared_by_their_bits(lab: Lab) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), ("v", pa.float64()), ("l", pa.list_(pa.float32()))])

    def table(*values: float | None) -> pa.Table:
        return pa.table({"k": range(len(values)), "v": values, "l": [[v] for v in values]}, schema=schema)

    job = lab.store.create_job("j", ["r"], {"out": (schema, ["k"])})
    step(lab, job, lambda ctx: ctx.upsert("out", table(0.0, -0.0, math.nan, None, 1.0)))
    step(lab, job, lambda ctx: ctx.upsert("out", table(-0.0, -0.0, -math.nan, None, 2.0)))
    assert written(lab) == [("upsert", 0), ("upsert", 4)]
    assert math.copysign(1, lab.store.table("out").to_arrow()["v"][0].as_py()) == -1


# ---- segments ----------------------------------------------------------------------------------------------------


def begun(lab: Lab, job: el.Job) -> tuple[JobRunner, Any]:
    lab.put({0: (0, lab.store.last_epoch % 1000)})
    lab.store.checkpoint()
    run = job._runner.begin()
    assert run is not None
    return job._runner, run


def segments(run: Any, *ops: dict[int, Row] | list[int]) -> list[Segment]:
    """One segment for each, as parts and tasks write them."""
    written_segments: list[Segment] = []
    for op in ops:
        writer = SegmentWriter(run.output("out").target)
        writer.upsert(table_of(op)) if isinstance(op, dict) else writer.delete(keys_of(op))
        written_segments += writer.finish()
    return written_segments


@pytest.mark.rule("5.14")
def test_segments_without_it_are_kept_as_they_are(lab: Lab) -> None:
    job = made(lab, OLD)
    runner, run = begun(lab, job)
    job_segments = segments(run, {1: (0, 9), 7: (0, 7)}, {2: (0, 2), 3: (0, 8)}, [8, 9])
    runner.commit(run, {"out": job_segments})
    first, second = segments_of(lab)
    assert first.path == job_segments[0].path and (first.rows, second.rows) == (2, 1)
    assert written(lab) == [("upsert", 1), ("upsert", 3), ("upsert", 7)]
    assert_no_strays(lab)


def test_what_was_rewritten_is_used(lab: Lab) -> None:
    """Nobody can commit it once more, and vacuum has nothing to wait for."""
    job = made(lab, OLD)
    runner, run = begun(lab, job)
    job_segments = segments(run, {1: (0, 1), 2: (0, 9)})
    runner.commit(run, {"out": job_segments})
    assert runner.commit(run, {"out": job_segments}) == run.barrier.curr, "the same commit again has the same outcome"
    assert not lab.store._handle.files.exists(job_segments[0].path)
    runner, run = begun(lab, job)
    with pytest.raises(el.SegmentUnknown):
        runner.commit(run, {"out": job_segments})
    runner.commit(run, {"out": segments(run, {2: (0, 10)})})
    assert_no_strays(lab)
    lab.tick(10_000)
    lab.store.vacuum(grace=timedelta(0))
    assert lab.store.verify().ok and lab.rows("out")[2] == (0, 10)


@pytest.mark.parametrize("keep", [False, True])
def test_a_refused_commit_leaves_what_the_next_attempt_needs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    job = made(lab, OLD, changelog="full")
    runner, run = begun(lab, job)
    job_segments = segments(run, {1: (0, 1), 2: (0, 9)})
    monkeypatch.setattr(job_commit.JobCommit, "record", _refuse)
    with pytest.raises(el.UpstreamIncomplete):
        runner.commit(run, {"out": job_segments}, keep=keep)
    monkeypatch.undo()
    exists = lab.store._handle.files.exists
    assert exists(job_segments[0].path) == keep
    if keep:
        more = segments(run, {2: (0, 2), 5: (0, 5)})
        runner.commit(run, {"out": [*job_segments, *more]}, keep=True)
        assert written(lab) == [("upsert", 5)]
    assert_no_strays(lab)


def _refuse(*_: object) -> bool:
    raise el.UpstreamIncomplete("not yet")


def test_a_segment_that_is_gone_is_named(lab: Lab) -> None:
    job = made(lab, OLD)
    runner, run = begun(lab, job)
    job_segments = segments(run, {1: (0, 1)}, {2: (0, 9)})
    lab.store._handle.files.delete(job_segments[1].path)
    with pytest.raises(el.SegmentUnknown, match=job_segments[1].path):
        runner.commit(run, {"out": job_segments})
    assert lab.rows("out") == OLD


@pytest.mark.rule("5.14")
def test_pieces_of_a_snapshot_are_judged_together(lab: Lab) -> None:
    """A row that one chunk inserts and a later chunk deletes does not appear in the commit."""
    lab.put({1: (0, 1), 2: (0, 2), 3: (0, 3)})
    job = lab.store.create_job("j", ["r"], {"out": el.Output(SCHEMA, KEY, changelog="full")}, snapshot_rows=1)

    def refresh(ctx: Any) -> None:
        mirror("r", "out")(ctx)
        if ctx.changes("r")["k"].to_pylist() == [3]:
            ctx.delete("out", keys_of([1, 9]))

    lab.store.checkpoint()
    while job.step_local(refresh) == 0:
        pass
    assert written(lab) == [("upsert", 2), ("upsert", 3)] and len(segments_of(lab)) == 2
    lab.store.vacuum(grace=timedelta(0))
    lab.store.vacuum(grace=timedelta(0))
    assert_no_strays(lab)


# ---- at random ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.14")
@pytest.mark.medium
@pytest.mark.parametrize("changelog", ["upsert", "full"])
@pytest.mark.parametrize("seed", seeds(range(4)))
def test_random_refreshes_commit_what_differs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int, changelog: str
) -> None:
    """The log entry is the difference of two states for all orders, segments, chunks and compactions."""
    tiny(monkeypatch)
    monkeypatch.setattr(unchanged_rows, "SPLIT_ROWS", 3)
    rng, rows = random.Random(seed), dict[int, Row]()
    job = lab.store.create_job("j", ["r"], {"out": el.Output(SCHEMA, KEY, changelog=changelog)})
    for _ in range(12):
        ops: list[dict[int, Row] | list[int]] = []
        after = dict(rows)
        for _ in range(rng.randint(0, 5)):
            keys = rng.sample(range(12), rng.randint(1, 6))
            if rng.random() < 0.3:
                ops.append(keys)
                after = {key: row for key, row in after.items() if key not in keys}
            else:
                new = {key: rows.get(key, (0, 0)) if rng.random() < 0.6 else (0, rng.randint(0, 2)) for key in keys}
                ops.append(new)
                after.update(new)
        before = lab.store.table("out").info.max_committed_epoch
        if rng.random() < 0.5:
            step(lab, job, writes(*ops))
        else:
            runner, run = begun(lab, job)
            runner.commit(run, {"out": segments(run, *ops)})
        differ = sorted(key for key in {*rows, *after} if rows.get(key) != after.get(key))
        assert written(lab) == [("upsert" if key in after else "delete", key) for key in differ], (seed, ops)
        changes = lab.store.table("out").changes(before, pre_images=True).read_all()
        assert sorted(set(changes["k"].to_pylist())) == differ
        rows = after
        assert lab.rows("out") == rows
        if rng.random() < 0.3:
            lab.store.compact("out", full=rng.random() < 0.5)
            lab.store.vacuum(grace=timedelta(0))
    assert_no_strays(lab)
