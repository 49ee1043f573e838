"""Snapshots in pieces: each piece once, at one epoch, whoever takes it; and what is left when they end early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from lab import Lab, State, keys_of, mirror, refuse, state_of, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def filled(lab: Lab, rows: int, table: str = "r") -> State:
    """Rows in several segments, some of them replaced and deleted again."""
    state = {k: (k % 3, k) for k in range(rows)}
    lab.put(dict.fromkeys(range(rows + 2), (9, 9)), table)
    lab.put(dict(list(state.items())[::2]), table)
    lab.put(dict(list(state.items())[1::2]), table)
    lab.store.table(table).delete(keys_of([rows, rows + 1]))
    lab.tick()
    return state


def until_committed(step: Callable[[], int | None], limit: int = 1000) -> int:
    """Count the steps that return 0 before the commit."""
    for pieces in range(limit):
        done = step()
        assert done is not None
        if done:
            return pieces
    raise AssertionError("it does not end")


@pytest.mark.rule("5.8")
@pytest.mark.parametrize(("rows", "most", "pieces"), [(10, 3, 4), (9, 3, 3), (1, 5, 1), (0, 1, 1), (7, 1, 7)])
def test_each_row_once_in_key_order(lab: Lab, rows: int, most: int, pieces: int) -> None:
    state, seen = filled(lab, rows) if rows else {}, []
    lab.tick()
    job = lab.job("j", ["r"], snapshot_rows=most)

    def look(ctx: Any) -> None:
        changes = ctx.changes("r", pre_images=bool(len(seen) % 2))
        assert set(changes.column("_change_type").to_pylist()) <= {"insert"}
        assert set(changes.column("_commit_version").to_pylist()) <= {ctx.barrier.curr}
        assert (ctx.barrier.prev, ctx.barrier.kind, ctx.previous("r").num_rows) == (0, "initial", 0)
        assert state_of(ctx.table("r")) == state
        assert sorted(state_of(ctx.output("j_out"))) == [k for chunk in seen for k in chunk]
        seen.append(changes.column("k").to_pylist())
        mirror("r", "j_out")(ctx)

    assert until_committed(lambda: job.step_local(look)) == pieces
    assert [k for chunk in seen for k in chunk] == sorted(state) and max(map(len, seen)) <= most
    assert lab.rows("j_out") == state and len(lab.entries("j_out")) == 1
    assert job.info.state == "running" and job.info.snapshot_rows == 0
    assert job.step_local(refuse) is None
    assert lab.store.verify().ok


@pytest.mark.rule("5.8")
def test_all_pieces_are_of_one_epoch_and_the_log_follows(lab: Lab) -> None:
    state = filled(lab, 6)
    job, epochs = lab.job("j", ["r"], snapshot_rows=2), set()

    def look(ctx: Any) -> None:
        epochs.add(ctx.barrier.curr)
        mirror("r", "j_out")(ctx)
        lab.put({0: (5, 5), 100: (5, 5)})
        lab.store.table("r").delete(keys_of([3]))
        lab.tick()
        lab.store.compact("r", full=True)

    assert until_committed(lambda: job.step_local(look)) == 3
    assert len(epochs) == 1 and lab.entries("j_out")[0][0] in epochs
    assert lab.rows("j_out") == state
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r") != state


@pytest.mark.rule("5.8")
def test_several_upstreams_one_after_another(lab: Lab) -> None:
    for name in ("s", "empty"):
        lab.root_table(name)
    r, s = filled(lab, 5), filled(lab, 3, "s")
    job, seen = lab.job("j", ["r", "empty", "s"], snapshot_rows=2), []

    def look(ctx: Any) -> None:
        row_counts = {up: ctx.changes(up).num_rows for up in ("r", "empty", "s")}
        assert sum(map(bool, row_counts.values())) <= 1
        seen.append(row_counts)
        assert (state_of(ctx.table("r")), state_of(ctx.table("s"))) == (r, s)
        for up, shift in (("r", 0), ("s", 1000)):
            rows = ctx.changes(up).to_pylist()
            ctx.upsert("j_out", table_of({row["k"] + shift: (row["g"], row["v"]) for row in rows}))

    assert until_committed(lambda: job.step_local(look)) == 6
    assert [tuple(row_counts.values()) for row_counts in seen] == [
        (2, 0, 0),
        (2, 0, 0),
        (1, 0, 0),
        (0, 0, 0),
        (0, 0, 2),
        (0, 0, 1),
    ]
    assert lab.rows("j_out") == {**r, **{k + 1000: row for k, row in s.items()}}


@pytest.mark.rule("5.8")
def test_rolling_sums_over_pieces(lab: Lab) -> None:
    """A refresh that rolls its output forward sees what earlier pieces made."""
    state = filled(lab, 11)
    job = lab.job("j", ["r"], snapshot_rows=2)

    def roll(ctx: Any) -> None:
        rows = ctx.changes("r").column("v").to_pylist()
        count, total = state_of(ctx.output("j_out")).get(0, (0, 0))
        ctx.upsert("j_out", table_of({0: (count + len(rows), total + sum(rows))}))

    assert until_committed(lambda: job.step_local(roll)) == 6
    assert lab.rows("j_out") == {0: (11, sum(v for _, v in state.values()))}
    assert lab.entries("j_out")[0][1] == 6  # a row for each piece, one of them readable


def test_keys_of_several_columns(lab: Lab) -> None:
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.float64()), ("v", pa.binary())])
    source = lab.store.create_table("wide", schema, ["a", "b"])
    rows = [(a, b, b"x") for a in ("", "a", "a\0", "é", "zz") for b in (float("-inf"), -1.5, 0.0, 2.0, float("nan"))]
    a, b, v = zip(*rows, strict=True)
    source.upsert(pa.table({"a": a, "b": b, "v": v}, schema=schema))
    lab.tick()
    job = lab.store.create_job("j", ["wide"], {"out": (schema, ["a", "b"])}, snapshot_rows=4)

    def copy(ctx: Any) -> None:
        changes = ctx.changes("wide", columns=["a", "b", "v"])
        assert changes.num_rows <= 4
        ctx.upsert("out", changes.select(["a", "b", "v"]))

    assert until_committed(lambda: job.step_local(copy)) == 7
    assert str(lab.store.table("out").to_arrow()) == str(source.to_arrow())


def test_columns_and_filter_of_a_piece(lab: Lab) -> None:
    filled(lab, 6)
    job, seen = lab.job("j", ["r"], snapshot_rows=4), []

    def look(ctx: Any) -> None:
        seen.append(ctx.changes("r", columns=["v"], filter=pc.field("k") > 2).column("v").to_pylist())

    until_committed(lambda: job.step_local(look))
    assert seen == [[3], [4, 5]]


@pytest.mark.rule("5.8")
def test_a_failed_piece_is_taken_again_and_a_taken_one_is_not(lab: Lab) -> None:
    state = filled(lab, 8)
    job, seen, dice = lab.job("j", ["r"], snapshot_rows=2), [], iter([0, 1, 1, 0, 1, 0, 0])

    def look(ctx: Any) -> None:
        mirror("r", "j_out")(ctx)
        if next(dice):
            raise ZeroDivisionError
        seen.append(ctx.changes("r").column("k").to_pylist())

    for _ in range(8):
        try:
            done = job.step_local(look)
        except ZeroDivisionError:
            assert job.info.state == "failed" and job.info.snapshot_rows == 2 * len(seen)
            lab.reopen()
            job = lab.store.job("j")
        else:
            assert job.info.last_error is None and done is not None
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lab.rows("j_out") == state
    report = lab.store.verify()
    assert report.ok and not report.unreachable, report


def test_a_fenced_runner_takes_no_piece(lab: Lab) -> None:
    filled(lab, 6)
    old = lab.job("j", ["r"], snapshot_rows=2)

    def overtaken(ctx: Any) -> None:
        mirror("r", "j_out")(ctx)
        assert lab.store.job("j").step_local(mirror("r", "j_out"), take_over=True) == 0

    with pytest.raises(el.Fenced):
        old.step_local(overtaken)
    job = lab.store.job("j")
    assert job.info.snapshot_rows == 2
    assert until_committed(lambda: job.step_local(mirror("r", "j_out"))) == 2
    assert lab.rows("j_out") == lab.rows("r")
    assert not lab.store.verify().unreachable


def test_pieces_outlive_the_store_that_made_them_and_vacuum(lab: Lab) -> None:
    """They need no intent any more: the catalog reaches them."""
    state = filled(lab, 6)
    job = lab.job("j", ["r"], snapshot_rows=2)
    for _ in range(2):
        job.step_local(mirror("r", "j_out"))
        lab.reopen()
        job = lab.store.job("j")
        lab.now_ms += 20 * 3_600_000
        lab.store.vacuum(grace=0)
        report = lab.store.verify()
        assert report.ok and not report.unreachable, report
    until_committed(lambda: job.step_local(mirror("r", "j_out")))
    assert lab.rows("j_out") == state
    lab.store.vacuum(grace=0)
    assert lab.store.verify().ok and lab.rows("j_out") == state


def test_abandoned_in_mid_snapshot(lab: Lab) -> None:
    """Parked when the log goes; its pieces are let go of and vacuumed; made anew it begins at its beginning."""
    filled(lab, 6)
    job = lab.job("j", ["r"], snapshot_rows=2)
    assert job.step_local(mirror("r", "j_out")) == 0
    made = lab.store._handle.files.list(lab.store._handle.table_folder(job_output(lab)))
    assert len(made) == 1
    lab.put({100: (0, 0)})
    lab.now_ms += 30 * 3_600_000
    lab.store.compact("r")
    assert (job.info.state, job.info.committed_epoch, job.info.snapshot_rows) == ("parked", 0, 0)
    assert lab.rows("j_out", 0) == {}
    assert [file.path for file in lab.store.vacuum(grace=0).deleted if "t00000002" in file.path] == [made[0].path]
    with pytest.raises(el.JobParked):
        job.step_local(refuse)
    job.rebuild()
    assert job.info.state == "creating"
    assert until_committed(lambda: job.step_local(mirror("r", "j_out"))) == 4
    assert lab.rows("j_out") == lab.rows("r") and job.info.state == "running"


@pytest.mark.rule("5.8")
def test_several_parts_take_it_whole(lab: Lab) -> None:
    """Pieces are for one runner; one that lets parts refresh side by side drops them and begins at the beginning."""
    state = filled(lab, 6)
    job = lab.job("j", ["r"], snapshot_rows=2)
    assert job.step_local(mirror("r", "j_out")) == 0
    run = lab.store.job("j")._runner.begin(unchunked=True)
    assert run is not None and run.next_cursor is None and not run.fully_loaded
    assert run.outputs["j_out"].previous.segments == () and lab.store.job("j").info.snapshot_rows == 0
    context = LocalRefreshContext(lab.store._handle, run)
    assert sorted(state_of(context.changes("r"))) == sorted(state)
    assert not lab.store.verify().problems


def job_output(lab: Lab, name: str = "j_out") -> int:
    return lab.store.table(name)._table.id


def test_a_downstream_waits_for_the_whole_snapshot(lab: Lab) -> None:
    filled(lab, 4)
    job, above = lab.job("j", ["r"], snapshot_rows=1), lab.job("above", ["j_out"], snapshot_rows=3)
    for _ in range(4):
        assert job.step_local(mirror("r", "j_out")) == 0
        assert above.step_local(refuse) is None
    first = job.step_local(mirror("r", "j_out"))
    assert until_committed(lambda: above.step_local(mirror("j_out", "above_out"))) == 2
    assert lab.entries("above_out")[0][0] >= (first or 0)
    assert lab.rows("above_out") == lab.rows("r")


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1"])
def test_what_is_no_number_of_rows(lab: Lab, bad: Any) -> None:
    with pytest.raises(el.InvalidInput, match="snapshot_rows"):
        lab.job("j", ["r"], snapshot_rows=bad)


@pytest.mark.medium
def test_it_holds_nobody_back(tmp_path: Path) -> None:
    """Another job's barriers, and what `global` chooses, are the same with a job that is being created and without."""

    def ticks(folder: str, creating: bool) -> list[tuple[int | None, int]]:
        lab, epochs = Lab(tmp_path / folder), []
        lab.root_table()
        other = lab.job("other", ["r"])
        lab.put({k: (0, k) for k in range(40)})
        lab.tick()
        job = lab.job("j", ["r"], snapshot_rows=1) if creating else None
        above = lab.job("above", ["j_out"]) if creating else None
        for number in range(20):
            lab.put({number: (1, number)})
            lab.tick()
            if job is not None and above is not None:
                assert job.step_local(mirror("r", "j_out")) == 0 and above.step_local(refuse) is None
            epoch = other.step_local(mirror("r", "other_out"))
            with lab.store.snapshot() as snapshot:
                assert sorted(snapshot) == ["other_out", "r"]
                epochs.append((epoch, snapshot.epochs["other_out"]))
        lab.store.close()
        return epochs

    assert ticks("with", creating=True) == ticks("without", creating=False)
