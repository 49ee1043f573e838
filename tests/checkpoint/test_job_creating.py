"""Jobs from their making to running: backfills, first commits, who counts as creating, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.job import runner as job_module
from epochlog.store.metadata.definitions import TableDef
from lab import KEY, SCHEMA, Lab, keys_of, mirror, refuse, state_of, sums, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


# ---- backfills -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.2")
def test_a_snapshot_backfill_takes_the_rows_in_one_piece(lab: Lab) -> None:
    for number in range(3):
        lab.put({number: (0, number), 9: (0, number)})
        lab.tick()
    lab.store.table("r").delete(keys_of([0]))
    lab.tick()
    job, seen = lab.job("j", ["r"], backfill="snapshot"), {}

    def look(ctx: Any) -> None:
        seen["barrier"] = ctx.barrier
        for mode in ("net", "epochs"):
            for pre_images in (False, True):
                changes = ctx.changes("r", mode=mode, pre_images=pre_images)
                seen[mode, pre_images] = [(row["k"], row["v"], row["_change_type"]) for row in changes.to_pylist()]
        versions = set(ctx.changes("r").column("_commit_version").to_pylist())
        assert versions == {ctx.barrier.curr}
        assert ctx.previous("r").num_rows == ctx.output("j_out").num_rows == 0
        mirror("r", "j_out")(ctx)

    epoch = job.step_local(look)
    inserts = [(1, 1, "insert"), (2, 2, "insert"), (9, 2, "insert")]
    assert (seen["barrier"].prev, seen["barrier"].kind) == (0, "initial")
    assert [rows for name, rows in seen.items() if name != "barrier"] == [inserts] * 4
    assert lab.entries("j_out") == [(epoch, 3)]
    assert epoch == lab.store.last_epoch  # the newest sealed boundary
    assert lab.rows("j_out") == lab.rows("r")


@pytest.mark.rule("5.2")
def test_a_log_backfill_takes_every_boundary(lab: Lab) -> None:
    for number in range(4):
        lab.put({number: (0, number)})
        lab.tick()
    job = lab.job("j", ["r"], backfill="log", max_lag=100)
    while job.step_local(mirror("r", "j_out")) is not None:
        pass
    assert [rows for _, rows in lab.entries("j_out")] == [1, 1, 1, 1]
    assert [len(lab.rows("j_out", epoch)) for epoch, _ in lab.entries("j_out")] == [1, 2, 3, 4]


def test_a_log_backfill_needs_the_log_from_its_beginning(lab: Lab) -> None:
    for number in range(3):
        lab.put({number: (0, number)})
    lab.store.table("r").truncate_log(lab.store.last_epoch)
    with pytest.raises(el.InvalidInput, match="'j'.*'r'.*backfill='snapshot'"):
        lab.job("j", ["r"], backfill="log")
    assert [info.name for info in lab.store.tables()] == ["r"]
    assert lab.job("j", ["r"], backfill="snapshot").info.state == "creating"


def test_the_log_alone_gives_old_images_from_the_beginning_on(lab: Lab) -> None:
    """Found by the law: what had been let go of the history before the job was made took the pre-images of its first
    barrier with it, though before its first entry a table is empty."""
    lab.root_table("brief", options=el.TableOptions(history_retention=timedelta(0)))
    for number in range(3):
        lab.put({number: (0, number)}, "brief")
        lab.tick()
    lab.store.compact("brief", full=True)
    assert lab.store.table("brief").info.safe_epoch > 0
    job, kinds = lab.job("j", ["brief"], backfill="log", max_lag=0), []

    def look(ctx: Any) -> None:
        kinds.extend(ctx.changes("brief", pre_images=True).column("_change_type").to_pylist())
        mirror("brief", "j_out")(ctx)

    while job.step_local(look) is not None:
        pass
    assert kinds == ["insert"] * 3
    assert lab.rows("j_out") == lab.rows("brief")


def test_a_barrier_once_recorded_keeps_the_rows_that_its_backfill_reads(lab: Lab) -> None:
    lab.root_table("brief", options=el.TableOptions(history_retention=timedelta(0)))
    lab.put({1: (0, 1)}, "brief")
    lab.tick()
    job = lab.job("j", ["brief"])
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    for number in range(3):
        lab.put({1: (0, 10 + number)}, "brief")
        lab.tick()
    lab.store.compact("brief", full=True)
    epoch = job.step_local(mirror("brief", "j_out"))
    assert lab.rows("j_out", epoch) == {1: (0, 1)}


def test_history_let_go_between_deciding_and_recording_is_decided_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would hold a barrier that nobody can read, for good."""
    lab.root_table("brief", options=el.TableOptions(history_retention=timedelta(0)))
    lab.put({1: (0, 1)}, "brief")
    lab.tick()
    job, record = lab.job("j", ["brief"]), job_module.JobRunner._record_barrier

    def recorded(runner: Any, incarnation: int) -> Any:
        lab.put({1: (0, 2)}, "brief")
        lab.tick()
        lab.store.checkpoint()
        lab.store.compact("brief", full=True)
        return record(runner, incarnation)

    monkeypatch.setattr(job_module.JobRunner, "_record_barrier", recorded)
    assert job.step_local(mirror("brief", "j_out")) is not None
    assert lab.rows("j_out") == {1: (0, 2)}


def test_a_backfill_begins_where_the_logs_do_and_not_below(lab: Lab) -> None:
    """Found by the law: the newest sealed boundary lay below the log's truncation mark, its rows could be read, and the
    log that was to follow them was gone."""
    lab.tick()
    end = lab.put({1: (0, 1)})  # the boundary before it is sealed by it
    lab.store.table("r").truncate_log(end)
    job = lab.job("j", ["r"], backfill="snapshot")
    assert job.step_local(refuse) is None
    lab.put({2: (0, 2)})
    lab.tick()
    first = job.step_local(mirror("r", "j_out"))
    assert first is not None and first > end
    lab.put({3: (0, 3)})
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == {1: (0, 1), 2: (0, 2), 3: (0, 3)}


# ---- first commits ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.2")
@pytest.mark.parametrize("backfill", ["snapshot", "log"])
def test_an_empty_input_has_a_first_commit(lab: Lab, backfill: str) -> None:
    job = lab.job("j", ["r"], backfill=backfill)
    epoch = job.step_local(sums("r", "j_out"))
    assert epoch is not None
    assert lab.rows("j_out") == {0: (0, 0)}
    with lab.store.snapshot() as snapshot:
        assert snapshot.epochs == {"r": epoch, "j_out": epoch}
    assert job.step_local(refuse) is None
    assert (job.info.state, job.info.lag_ms) == ("running", 0)


@pytest.mark.rule("2.4")
def test_a_table_is_valid_nowhere_below_its_first_commit(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    early = lab.store.checkpoint()
    lab.put({2: (0, 2)})
    lab.tick()
    first = lab.job("j", ["r"]).step_local(mirror("r", "j_out"))
    with pytest.raises(el.NoConsistentEpoch, match="j_out"):
        lab.store.snapshot(["r", "j_out"], consistency="as_of", epoch=early)
    with lab.store.snapshot(["r", "j_out"], consistency="as_of", epoch=first) as snapshot:
        assert set(snapshot.epochs.values()) == {first}


# ---- creating --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.5")
def test_creating_until_the_first_commit(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    job = lab.job("j", ["r"])
    assert (job.info.state, lab.store.table("j_out").info.state) == ("creating", "creating")
    job.step_local(mirror("r", "j_out"))
    assert (job.info.state, lab.store.table("j_out").info.state) == ("running", "created")


def far_behind(lab: Lab, boundaries: int) -> None:
    for number in range(boundaries):
        lab.put({number: (0, number)})
        lab.tick()
    lab.store.checkpoint()


@pytest.mark.rule("5.5")
def test_creating_while_the_lag_is_above_max_lag(lab: Lab) -> None:
    far_behind(lab, 7)
    job, states = lab.job("j", ["r"], backfill="log", max_lag=1), []
    while job.step_local(mirror("r", "j_out")) is not None:
        states.append(job.info.state)
    assert states[0] == "creating" and states[-1] == "running"
    assert states == sorted(states)  # once running, it stays so


@pytest.mark.rule("5.5")
def test_creating_while_an_upstream_is(lab: Lab) -> None:
    far_behind(lab, 7)
    first, second = lab.job("a", ["r"], backfill="log", max_lag=1), lab.job("b", ["a_out"])
    first.step_local(mirror("r", "a_out"))
    second.step_local(mirror("a_out", "b_out"))
    assert (lab.state("a"), lab.state("b")) == ("creating", "creating")
    while first.step_local(mirror("r", "a_out")) is not None:
        pass
    assert (lab.state("a"), lab.state("b")) == ("running", "creating")
    assert second.step_local(mirror("a_out", "b_out")) is not None
    assert lab.state("b") == "running"


@pytest.mark.rule("5.5")
def test_a_job_runs_once_its_upstream_does_though_that_brought_no_rows(lab: Lab) -> None:
    """Its upstream came to run by an empty commit, which wakes nobody: it would have been creating for good."""
    far_behind(lab, 7)
    first, second = lab.job("a", ["r"], backfill="log", max_lag=1), lab.job("b", ["a_out"])
    small = mirror("r", "a_out", keep=lambda v: v < 4)  # what comes after the first merged stop is left out
    first.step_local(small)
    assert second.step_local(mirror("a_out", "b_out")) is not None
    while first.step_local(small) is not None:
        pass
    assert (lab.state("a"), lab.state("b")) == ("running", "creating")
    assert second.step_local(refuse) is None
    assert lab.state("b") == "running"
    before = lab.txn_id()
    assert second.step_local(refuse) is None
    assert lab.txn_id() == before
    with lab.store.snapshot(["b_out"], consistency="global") as snapshot:
        assert state_of(snapshot["b_out"].to_arrow()) == {k: (0, k) for k in range(4)}


@pytest.mark.rule("3.9")
def test_global_refuses_what_is_creating_and_what_descends_from_it(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    lab.job("done", ["r"]).step_local(mirror("r", "done_out"))
    lab.job("slow", ["r"])
    lab.job("above", ["slow_out", "done_out"])
    with lab.store.snapshot() as snapshot:
        assert sorted(snapshot) == ["done_out", "r"]
    for table in ("slow_out", "above_out"):
        with pytest.raises(el.TableNotReadable, match=table):
            lab.store.snapshot(["r", table], consistency="global")
    with pytest.raises(el.NoConsistentEpoch, match="slow_out"):
        lab.store.snapshot(["r"], consistency=el.Global(include_creating=True))


def test_a_job_of_many_outputs_is_made_without_looking_at_them_again_for_each(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables of the store were read for each output, to see whether it would close a cycle: 3 s for 200 of them."""
    plain, read = TableDef.from_record, []

    def counted(record: Any) -> TableDef:
        read.append(record)
        return plain(record)

    monkeypatch.setattr(TableDef, "from_record", staticmethod(counted))
    looks = []
    for count in (10, 100):
        read.clear()
        outputs = {f"out_{count}_{place}": (SCHEMA, KEY) for place in range(count)}
        lab.store.create_job(f"job_{count}", upstreams=["r"], outputs=outputs)
        looks.append(len(read))
    assert looks[1] <= looks[0] + 2 * 90, looks


# ---- what is refused -------------------------------------------------------------------------------------------------


def made(lab: Lab) -> tuple[list[str], list[str], int]:
    return [info.name for info in lab.store.tables()], [info.name for info in lab.store.jobs()], lab.txn_id()


OUT = {"out": (SCHEMA, KEY)}


@pytest.mark.rule("1.1")
@pytest.mark.parametrize("arguments, error, names", [
    ({"name": "j", "upstreams": ["r"], "outputs": OUT}, el.JobExists, "'j'"),
    ({"name": "n", "upstreams": ["nothing"], "outputs": OUT}, el.TableNotFound, "'nothing'"),
    ({"name": "n", "upstreams": ["r", "out"], "outputs": OUT}, el.JobCycle, "'out'"),
    ({"name": "n", "upstreams": ["k_out"], "outputs": {"j_out": (SCHEMA, KEY)}}, el.JobCycle, "'n'.*'j_out'"),
    ({"name": "n", "upstreams": ["k_out"], "outputs": {"r": (SCHEMA, KEY)}}, el.JobCycle, "'n'.*'r'"),
    ({"name": "n", "upstreams": ["r"], "outputs": {"j_out": (SCHEMA, KEY)}}, el.OutputOwned, "'j_out'.*'j'"),
    ({"name": "n", "upstreams": ["r"], "outputs": {"other": (SCHEMA, KEY)}}, el.OutputOwned, "'other'.*root"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "backfill": "some"}, el.InvalidInput, "'n'.*backfill.*'some'"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "interval": 0}, el.InvalidInput, "'n'.*interval.*0"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "interval": 1.5}, el.InvalidInput, "'n'.*interval"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "interval": True}, el.InvalidInput, "'n'.*interval"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "max_lag": -1}, el.InvalidInput, "'n'.*max_lag"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "max_lag": float("nan")}, el.InvalidInput, "'n'.*max_lag"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "max_lag": float("inf")}, el.InvalidInput, "'n'.*max_lag"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "max_lag": timedelta(-1)}, el.InvalidInput, "'n'.*max_lag"),
    ({"name": "n", "upstreams": ["r"], "outputs": OUT, "max_lag": "1"}, el.InvalidInput, "'n'.*max_lag"),
    ({"name": "n", "upstreams": [], "outputs": OUT}, el.InvalidInput, "'n'.*upstreams"),
    ({"name": "n", "upstreams": "r", "outputs": OUT}, el.InvalidInput, "'n'.*upstreams"),
    ({"name": "n", "upstreams": 5, "outputs": OUT}, el.InvalidInput, "'n'.*upstreams"),
    ({"name": "n", "upstreams": [["r"]], "outputs": OUT}, el.InvalidInput, "'n'.*upstreams"),
    ({"name": "n", "upstreams": ["r", "r"], "outputs": OUT}, el.InvalidInput, "'n'.*upstreams"),
    ({"name": "n", "upstreams": ["r"], "outputs": {}}, el.InvalidInput, "'n'.*outputs"),
    ({"name": "n", "upstreams": ["r"], "outputs": {"out": SCHEMA}}, el.InvalidInput, "'n'.*'out'"),
    ({"name": "n", "upstreams": ["r"], "outputs": {"out": (SCHEMA, ["nothing"])}}, el.InvalidSchema, "out.*nothing"),
    ({"name": "n", "upstreams": ["r"], "outputs": {"a": (SCHEMA, KEY), "B!": (SCHEMA, KEY)}}, el.InvalidName, "B!"),
    ({"name": "No Name", "upstreams": ["r"], "outputs": OUT}, el.InvalidName, "No Name"),
])  # fmt: skip
def test_a_job_that_cannot_be_is_refused_and_leaves_nothing(
    lab: Lab, arguments: dict[str, Any], error: type[Exception], names: str
) -> None:
    lab.root_table("other")
    lab.job("j", ["r"])
    lab.job("k", ["j_out"])
    before = made(lab)
    with pytest.raises(error, match=names):
        lab.store.create_job(**arguments)
    assert made(lab) == before


def test_a_table_in_use_is_not_dropped(lab: Lab) -> None:
    lab.job("j", ["r"])
    lab.job("k", ["j_out"])
    before = made(lab)
    for drop, table_or_job, names in (
        (lab.store.drop_table, "r", "'r'.*'j'"),
        (lab.store.drop_table, "j_out", "'j_out'.*'j'"),
        (lab.store.drop_table, "k_out", "'k_out'.*'k'"),
        (lab.store.drop_job, "j", "'j'.*'k'"),
    ):
        with pytest.raises(el.TableInUse, match=names):
            drop(table_or_job)
    assert made(lab) == before


def test_dropping_a_job_takes_its_tables_and_frees_its_upstreams(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    job, other = lab.job("j", ["r"]), lab.job("k", ["j_out"])
    job.step_local(mirror("r", "j_out"))
    lab.store.drop_job("k")
    lab.store.drop_job("j")
    assert [info.name for info in lab.store.tables()] == ["r"] and lab.store.jobs() == []
    for gone in (job, other):
        with pytest.raises(el.JobNotFound):
            gone.step_local(refuse)
        with pytest.raises(el.JobNotFound):
            _ = gone.info
    for call in (lab.store.job, lab.store.drop_job):
        with pytest.raises(el.JobNotFound, match="'j'"):
            call("j")
    again = lab.job("j", ["r"])  # another job under the old name
    with pytest.raises(el.JobNotFound):
        job.step_local(refuse)
    assert again.step_local(mirror("r", "j_out")) is not None
    lab.store.drop_job("j")
    lab.store.drop_table("r")
    assert lab.store.verify().ok


def test_a_job_dropped_during_its_refresh_commits_nothing(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()

    def dropped(ctx: Any) -> None:
        ctx.upsert("j_out", table_of({1: (1, 1)}))
        lab.store.drop_job("j")

    with pytest.raises(el.JobNotFound):
        lab.job("j", ["r"]).step_local(dropped)
    assert [info.name for info in lab.store.tables()] == ["r"]
    assert lab.store.verify().ok


@pytest.mark.rule("1.1")
def test_a_derived_table_is_written_by_its_job_alone(lab: Lab) -> None:
    lab.job("j", ["r"])
    table = lab.store.table("j_out")
    for write in (
        lambda: table.upsert(table_of({1: (1, 1)})),
        lambda: table.delete(keys_of([1])),
        table.writer,
        table.finish,
    ):
        with pytest.raises(el.NotWritable, match="j_out"):
            write()
    assert lab.entries("j_out") == []
