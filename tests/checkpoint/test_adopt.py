"""Outputs that outlive their job become root tables, and what was valid stays true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from lab import KEY, SCHEMA, Lab, keys_of, mirror, refuse, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def finished(lab: Lab, outputs: list[str]) -> el.Job:
    """A job over r that has taken in two commits and ended."""

    def refresh(ctx: Any) -> None:
        for name in outputs:
            mirror("r", name)(ctx)

    job = lab.job("j", ["r"], outputs)
    for number in (1, 2):
        lab.put({number: (0, number)})
        lab.tick()
        assert job.step_local(refresh) is not None
    job.stop(drain=True)
    assert job.info.state == "finished"
    return job


@pytest.mark.rule("2.10")
@pytest.mark.logs("table_adopted")
def test_a_finished_jobs_table_is_written_by_anybody(lab: Lab) -> None:
    job = finished(lab, ["t"])
    before = lab.rows("t")
    with pytest.raises(el.NotWritable, match="'t'"):
        lab.store.table("t").upsert(table_of({9: (9, 9)}))
    table = lab.store.adopt("t")
    assert (table.info.state, table.info.job) == ("created", None)
    assert lab.rows("t") == before
    epoch = table.upsert(table_of({9: (9, 9)}))
    assert lab.rows("t", epoch) == {**before, 9: (9, 9)}
    assert lab.rows("t", epoch - 1) == before
    with pytest.raises(el.JobNotFound):
        _ = job.info
    assert lab.store.adopt("t").name == "t"  # it is one already
    lab.store.compact("t", full=True)
    lab.store.drop_table("r")  # nothing reads it any more
    lab.reopen()
    assert lab.rows("t") == {**before, 9: (9, 9)}
    lab.store.drop_table("t")


def test_what_may_still_be_written_by_its_job_is_refused(lab: Lab) -> None:
    job = lab.job("j", ["r"], ["t"])
    before = lab.txn_id()
    with pytest.raises(el.TableInUse, match=r"'t'.*'j', which is creating.*drain=True.*keep_outputs=True"):
        lab.store.adopt("t")
    with pytest.raises(el.TableNotFound):
        lab.store.adopt("nothing")
    assert lab.txn_id() == before and job.info.state == "creating"


@pytest.mark.rule("2.10")
@pytest.mark.logs("job_dropped")
def test_a_job_is_dropped_and_its_tables_stay(lab: Lab) -> None:
    job = lab.job("j", ["r"], ["t"])
    lab.put({1: (0, 1)})
    lab.tick()
    assert job.step_local(mirror("r", "t")) is not None
    missed = lab.put({2: (0, 2)})
    lab.store.drop_job("j", keep_outputs=True)
    assert lab.rows("t") == {1: (0, 1)}
    with pytest.raises(el.JobNotFound):
        job.step_local(refuse)
    with lab.store.snapshot(["r", "t"], consistency="aligned") as moment:
        assert moment.epochs["t"] > missed  # before that, t lacked a change of r
    with pytest.raises(el.NoConsistentEpoch, match="t is a root table from"):
        lab.store.snapshot(["r", "t"], consistency="as_of", epoch=missed)
    assert lab.rows("t", missed) == {1: (0, 1)}  # by itself it can be read there
    lab.store.table("t").delete(keys_of([1]))
    lab.store.create_job("j", ["r"], {"u": (SCHEMA, KEY)})  # the name is free


@pytest.mark.rule("2.10")
def test_jobs_that_read_it_go_on(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    first, below = lab.job("j", ["r"], ["t"]), lab.job("k", ["t"], ["v"])
    assert first.step_local(mirror("r", "t")) is not None
    assert below.step_local(mirror("t", "v")) is not None
    lab.put({2: (0, 2)})
    lab.tick()
    assert first.step_local(mirror("r", "t")) is not None
    with pytest.raises(el.TableInUse):
        lab.store.drop_job("j")
    lab.store.drop_job("j", keep_outputs=True)
    lab.tick()
    assert below.step_local(mirror("t", "v")) is not None
    assert lab.rows("v") == lab.rows("t") == {1: (0, 1), 2: (0, 2)}
    lab.store.table("t").upsert(table_of({3: (0, 3)}))
    lab.tick()
    epoch = below.step_local(mirror("t", "v"))
    assert epoch is not None and lab.rows("v", epoch) == lab.rows("t", epoch)
    with lab.store.snapshot(consistency="global") as moment:
        assert set(moment) == {"r", "t", "v"}
        assert lab.rows("v", moment.epochs["v"]) == lab.rows("t", moment.epochs["t"])


@pytest.mark.rule("2.11")
def test_jobs_that_have_ended_with_it_stay_ended(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.store.table("r").finish()
    lab.tick()
    first, below = lab.job("j", ["r"], ["t"]), lab.job("k", ["t"], ["v"])
    assert first.step_local(mirror("r", "t")) is not None
    assert below.step_local(mirror("t", "v")) is not None
    assert (first.info.state, below.info.state) == ("finished", "finished")
    lab.store.adopt("t")
    lab.store.table("t").upsert(table_of({5: (5, 5)}))
    lab.tick()
    assert below.step_local(refuse) is None and below.info.state == "finished"
    assert lab.rows("v") == {1: (0, 1)}
    with lab.store.snapshot(["t", "v"], consistency="aligned") as moment:  # v has ended and is valid by itself
        assert moment["t"].count() == 2 and moment["v"].count() == 1
    assert lab.store.verify().ok
    lab.store.adopt("v")
    assert lab.store.jobs() == []
    with pytest.raises(el.JobNotFound, match="or its tables were adopted"):
        below.step_local(refuse)


def test_one_of_two_outputs_is_adopted_alone(lab: Lab) -> None:
    job = finished(lab, ["a", "b"])
    lab.store.adopt("a").upsert(table_of({7: (7, 7)}))
    assert job.info.outputs == ("b",)
    with pytest.raises(el.NotWritable, match="'b'"):
        lab.store.table("b").upsert(table_of({7: (7, 7)}))
    assert lab.store.verify().ok
    lab.store.drop_job("j")
    assert [info.name for info in lab.store.tables()] == ["a", "r"]


@pytest.mark.rule("2.10")
def test_no_epoch_of_before_is_told_wrongly(lab: Lab) -> None:
    """At every epoch, aligned reads of what came from t are refused, or as its query says."""
    lab.put({1: (0, 1)})
    lab.tick()
    first, below = lab.job("j", ["r"], ["t"]), lab.job("k", ["t"], ["v"])
    for number in range(2, 6):
        lab.put({number: (0, number)})
        lab.tick()
        if number != 4:
            first.step_local(mirror("r", "t"))
        below.step_local(mirror("t", "v"))
    behind = lab.put({9: (0, 9)})
    lab.store.drop_job("j", keep_outputs=True)
    adopted = lab.store.last_epoch
    lab.store.table("t").upsert(table_of({8: (0, 8)}))
    lab.tick()
    below.step_local(mirror("t", "v"))
    chosen = 0
    for epoch in sorted({epoch for table in "rtv" for epoch, _ in lab.entries(table)} | {behind, adopted}):
        try:
            moment = lab.store.snapshot(["t", "v"], consistency="as_of", epoch=epoch)
        except (el.NoConsistentEpoch, el.EpochNotCommitted):
            continue
        with moment:
            chosen += 1
            assert min(moment.epochs.values()) >= adopted
            assert lab.rows("v", moment.epochs["v"]) == lab.rows("t", moment.epochs["t"])
    assert chosen


def test_a_creating_job_in_pieces_leaves_no_piece(lab: Lab) -> None:
    lab.put({number: (0, number) for number in range(10)})
    lab.tick()
    job = lab.job("j", ["r"], ["t"], snapshot_rows=3)
    assert job.step_local(mirror("r", "t")) == 0
    lab.store.drop_job("j", keep_outputs=True)
    assert lab.rows("t") == {}
    lab.store.table("t").upsert(table_of({1: (1, 1)}))
