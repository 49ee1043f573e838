"""Making a job's outputs anew: one entry with what differs, the old rows readable until then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from lab import INTERVAL_MS, Lab, State, keys_of, mirror, refuse, table_of

DAY_MS = 86_400_000


@pytest.fixture(params=[None, 2], ids=["whole", "pieces"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.pieces = request.param
    return lab


def running(lab: Lab, name: str = "j", upstream: str = "r") -> el.Job:
    """A job that copies, with its first commit."""
    job = lab.job(name, [upstream], snapshot_rows=lab.pieces)
    lab.tick()
    commit(lambda: job.step_local(mirror(upstream, f"{name}_out")))
    return job


def commit(step: Callable[[], int | None]) -> int:
    """Steps until a commit; its epoch."""
    while not (done := step()):
        assert done == 0
    return done


def changed(lab: Lab, table: str, after: int) -> dict[int, str]:
    """The changes of a table past an epoch, as of now."""
    changes = lab.store.table(table).changes(after, mode="net", pre_images=True).read_all().to_pylist()
    return {row["k"]: row["_change_type"] for row in changes if row["_change_type"] != "update_preimage"}


def doubled(source: str, output: str) -> Callable[[Any], None]:
    """New logic: twice the value, of those below 4."""

    def refresh(ctx: Any) -> None:
        for row in ctx.changes(source).to_pylist():
            if row["_change_type"] == "delete" or row["v"] >= 4:
                ctx.delete(output, keys_of([row["k"]]))
            else:
                ctx.upsert(output, table_of({row["k"]: (row["g"], 2 * row["v"])}))

    return refresh


def parked(lab: Lab, rows: State) -> el.Job:
    """A job whose log has gone: it has `rows`, and lacks what comes after."""
    lab.put(rows)
    job = running(lab)
    lab.put({2: (0, 20), 7: (0, 7)})
    lab.store.table("r").delete(keys_of([3]))
    lab.now_ms += 2 * DAY_MS
    lab.store.compact("r", full=True)
    assert job.info.state == "parked"
    return job


@pytest.mark.rule("5.11")
def test_a_parked_job_goes_on_with_the_difference(lab: Lab) -> None:
    job = parked(lab, {k: (0, k) for k in range(5)})
    before, old = job.info.committed_epoch, lab.rows("j_out")
    job.rebuild()
    info = job.info
    assert (info.state, info.rebuilding, info.lost, info.committed_epoch) == ("creating", True, None, before)
    assert lab.rows("j_out") == old
    with pytest.raises(el.TableNotReadable, match="creating"):
        lab.store.snapshot(["j_out"], consistency="global")
    epoch = commit(lambda: job.step_local(mirror("r", "j_out")))
    assert lab.rows("j_out") == lab.rows("r")
    assert changed(lab, "j_out", before) == {2: "update_postimage", 3: "delete", 7: "insert"}
    assert lab.entries("j_out")[-1] == (epoch, 3)
    assert lab.store.table("j_out").history().to_pylist()[0]["operation"] == "rebuild"
    assert (job.info.state, job.info.rebuilding) == ("running", False)
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}
    assert lab.rows("j_out", epoch - 1) == old, "the states before it are there"
    lab.put({50: (0, 50)})
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r")
    report = lab.store.verify()
    assert report.ok and not set(report.unreachable) - gone(lab), report


def gone(lab: Lab) -> set[str]:
    return {file.path for file in lab.store.vacuum(dry_run=True, grace=0).deleted}


@pytest.mark.rule("5.11")
def test_new_logic_for_a_job_that_runs_or_fails(lab: Lab) -> None:
    lab.put({k: (0, k) for k in range(6)})
    job = running(lab)
    above = lab.job("above", ["j_out"])
    assert above.step_local(mirror("j_out", "above_out")) is not None
    lab.put({9: (0, 1)})
    lab.tick()
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    job.rebuild()
    assert (job.info.state, job.info.last_error, lab.rows("j_out")[3]) == ("running", None, (0, 3))
    with lab.store.snapshot(["j_out", "above_out"]) as snapshot:
        assert snapshot["j_out"].to_arrow().num_rows == 6
    commit(lambda: job.step_local(doubled("r", "j_out")))
    assert lab.rows("j_out") == {0: (0, 0), 1: (0, 2), 2: (0, 4), 3: (0, 6), 9: (0, 2)}
    seen: dict[int, str] = {}

    def replay(ctx: Any) -> None:
        seen.update({row["k"]: row["_change_type"] for row in ctx.changes("j_out").to_pylist()})
        mirror("j_out", "above_out")(ctx)

    assert above.step_local(replay) is not None
    assert seen == {1: "upsert", 2: "upsert", 3: "upsert", 4: "delete", 5: "delete", 9: "upsert"}
    assert lab.rows("above_out") == lab.rows("j_out")


def test_nothing_differs(lab: Lab) -> None:
    """An entry without rows: nobody above is woken."""
    lab.put({k: (0, k) for k in range(5)})
    job = running(lab)
    above = running(lab, "above", "j_out")
    job.rebuild()
    epoch = commit(lambda: job.step_local(mirror("r", "j_out")))
    assert lab.entries("j_out")[-1] == (epoch, 0)
    assert above.step_local(refuse) is None
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}


@pytest.mark.rule("5.11")
def test_the_refresh_sees_nothing_of_before(lab: Lab) -> None:
    lab.put({k: (0, k) for k in range(5)})
    job = running(lab)
    lab.tick()
    seen = []

    def look(ctx: Any) -> None:
        assert (ctx.barrier.prev, ctx.barrier.kind, ctx.previous("r").num_rows) == (0, "initial", 0)
        assert set(ctx.changes("r").column("_change_type").to_pylist()) == {"insert"}
        assert sorted(ctx.output("j_out").column("k").to_pylist()) == seen
        seen.extend(ctx.changes("r").column("k").to_pylist())
        mirror("r", "j_out")(ctx)

    job.rebuild()
    commit(lambda: job.step_local(look))
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.rule("5.11")
def test_who_runs_the_job_is_not_fenced_and_does_it_with_the_next_step(lab: Lab) -> None:
    lab.put({k: (0, k) for k in range(5)})
    old = running(lab)
    lab.put({1: (0, 9)})
    lab.tick()

    def meanwhile(ctx: Any) -> None:
        mirror("r", "j_out")(ctx)
        lab.store.job("j").rebuild()

    with pytest.raises(el.BarrierChanged, match="a rebuild of job"):
        old.step_local(meanwhile)
    assert old.info.rebuilding and old.info.incarnation == 1
    commit(lambda: old.step_local(doubled("r", "j_out")))
    assert lab.rows("j_out")[2] == (0, 4) and old.info.incarnation == 1
    assert not set(lab.store.verify().unreachable) - gone(lab)


def test_asked_for_twice_it_starts_over(lab: Lab) -> None:
    lab.put({k: (0, k) for k in range(5)})
    job = running(lab)
    lab.tick()
    job.rebuild()
    if lab.pieces:
        assert job.step_local(mirror("r", "j_out")) == 0
    job.rebuild()
    assert job.info.snapshot_rows == 0
    commit(lambda: job.step_local(doubled("r", "j_out")))
    assert lab.rows("j_out") == {0: (0, 0), 1: (0, 2), 2: (0, 4), 3: (0, 6)}


def test_failures_and_new_runners_in_the_middle(lab: Lab) -> None:
    job = parked(lab, {k: (0, k) for k in range(6)})
    old = lab.rows("j_out")
    job.rebuild()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            job.step_local(lambda ctx: (mirror("r", "j_out")(ctx), 1 // 0)[0])
        lab.reopen()
        job = lab.store.job("j")
        assert lab.rows("j_out") == old and job.info.rebuilding
        if lab.pieces:
            assert job.step_local(mirror("r", "j_out")) == 0
    commit(lambda: job.step_local(mirror("r", "j_out")))
    assert lab.rows("j_out") == lab.rows("r")


def test_a_creating_one_starts_over(lab: Lab) -> None:
    lab.put({k: (0, k) for k in range(5)})
    lab.tick()
    job = lab.job("j", ["r"], snapshot_rows=lab.pieces)
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    job.rebuild()
    lab.put({1: (0, 2)})
    lab.tick()
    job.rebuild()
    epoch = commit(lambda: job.step_local(mirror("r", "j_out")))
    assert lab.rows("j_out") == lab.rows("r")
    assert [at for at, _ in lab.entries("j_out")] == [epoch] and job.info.state == "running"


@pytest.mark.rule("5.11")
def test_a_finished_one_is_refused(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    job = running(lab)
    lab.store.table("r").finish()
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None and job.info.state == "finished"
    with pytest.raises(el.TableFinished, match=r"'j'.*'j_out'"):
        job.rebuild()


def test_its_last_barrier_may_be_a_rebuild(lab: Lab) -> None:
    job = parked(lab, {k: (0, k) for k in range(6)})
    lab.store.table("r").finish()
    job.rebuild()
    commit(lambda: job.step_local(mirror("r", "j_out")))
    assert job.info.state == "finished" and lab.store.table("j_out").info.state == "finished"
    assert lab.rows("j_out") == lab.rows("r")


def test_a_whole_chain_was_parked(lab: Lab) -> None:
    """r -> a -> b, and b reads r too: b lacks its log as well, and can only go on when a has."""
    lab.put({1: (0, 1)})
    job = running(lab, "a")
    both = lab.job("b", ["a_out", "r"])
    assert both.step_local(mirror("r", "b_out")) is not None
    lab.put({1: (0, 2)})
    lab.now_ms += 2 * DAY_MS
    lab.store.compact()
    assert (lab.state("a"), lab.state("b")) == ("parked", "parked")
    both.rebuild()
    assert both.step_local(refuse) is None
    job.rebuild()
    commit(lambda: job.step_local(mirror("r", "a_out")))
    commit(lambda: both.step_local(mirror("r", "b_out")))
    assert lab.rows("a_out") == lab.rows("b_out") == {1: (0, 2)}
    with lab.store.snapshot() as snapshot:
        assert sorted(snapshot) == ["a_out", "b_out", "r"]


def test_every_kind_of_column_is_compared(lab: Lab) -> None:
    """Null is null, NaN is NaN; a row that is the same in all columns is not in the entry."""
    schema = pa.schema([("k", pa.int64()), ("f", pa.float64()), ("l", pa.list_(pa.float32())), ("s", pa.string())])
    nan = float("nan")
    rows = [(1, nan, [1.0, nan], None), (2, None, None, "x"), (3, 0.5, [], ""), (4, nan, [nan], "y")]
    columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
    lab.store.create_table("w", schema, ["k"]).upsert(pa.table(columns, schema=schema))
    lab.tick()
    job = lab.store.create_job("j", ["w"], {"out": (schema, ["k"])}, snapshot_rows=lab.pieces)

    def copy(ctx: Any) -> None:
        ctx.upsert("out", ctx.changes("w").select(schema.names))

    first = commit(lambda: job.step_local(copy))
    lab.store.table("w").upsert(pa.table({"k": [3], "f": [0.5], "l": [[0.0]], "s": [""]}, schema=schema))
    lab.tick()
    job.rebuild()
    commit(lambda: job.step_local(copy))
    assert lab.store.table("out").changes(first, mode="net").read_all().column("k").to_pylist() == [3]


def test_a_large_table_is_compared_key_range_by_key_range(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.store.commit import difference

    monkeypatch.setattr(difference, "BATCH_ROWS", 7)
    lab.put({k: (0, k) for k in range(100)})
    job = lab.job("j", ["r"], snapshot_rows=lab.pieces and 9)
    lab.tick()
    commit(lambda: job.step_local(mirror("r", "j_out")))
    lab.put({k: (1, k) for k in range(0, 130, 10)})
    lab.store.table("r").delete(keys_of(range(40, 60)))
    lab.now_ms += INTERVAL_MS
    before = job.info.committed_epoch
    job.rebuild()
    commit(lambda: job.step_local(mirror("r", "j_out")))
    wanted = dict.fromkeys(range(0, 100, 10), "update_postimage") | dict.fromkeys((100, 110, 120), "insert")
    wanted |= dict.fromkeys(range(40, 60), "delete")
    assert changed(lab, "j_out", before) == wanted
    assert lab.rows("j_out") == lab.rows("r")


@pytest.mark.rule("2.3", "5.11")
def test_what_was_read_before_reads_the_same_after(lab: Lab) -> None:
    """Found by the law: the outputs of an idle job are complete through last_epoch, and the new rows landed there."""
    lab.put({k: (0, k) for k in range(6)})
    job = running(lab)
    lab.root_table("other")
    lab.put({1: (1, 1)}, "other")
    with lab.store.snapshot(["j_out", "r"], consistency="aligned") as before:
        token, old, at = before.token, before["j_out"].to_arrow(), before.epochs["j_out"]
    assert at == lab.store.last_epoch > job.info.committed_epoch
    job.rebuild()
    lab.put({2: (1, 1)}, "other")
    with lab.store.snapshot(["j_out", "r"], consistency="aligned") as during:
        assert during.epochs["j_out"] < lab.store.last_epoch and during["j_out"].to_arrow().equals(old)
    assert commit(lambda: job.step_local(doubled("r", "j_out"))) > at
    with lab.store.snapshot(consistency=el.Exact(token)) as again:
        assert again["j_out"].to_arrow().equals(old) and again.epochs["j_out"] == at
