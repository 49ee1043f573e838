"""A table knows when it was made: before that it cannot be read, from then on until its first commit it is empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.__main__ import main
from epochlog.spark.batch_source import resolve_load
from epochlog.store.catalog.records import DECODED
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.epoch import from_unix_ms
from lab import KEY, SCHEMA, Lab, keys_of, mirror, refuse, table_of
from stores import STORE


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store", durability="disk")  # as those open it who come by its path
    lab.root_table("old")
    lab.put({1: (0, 1)}, "old")
    return lab


def spark_count(lab: Lab, table: str, epoch: int) -> int:
    """Count the table's rows at the epoch that the Spark reader resolves at `load()`."""
    load = resolve_load({"path": str(lab.root), "table": table, "versionAsOf": str(epoch)})
    return lab.store.table(table).count(load.epoch)


def served(lab: Lab, table: str, epoch: int) -> int:
    with el.serve(lab.store, "grpc://127.0.0.1:0") as server, el.connect(server.location) as client:
        return client.snapshot(table, consistency="exact", epochs_or_token={table: epoch}).read_all().num_rows


DOORS: dict[str, Callable[[Lab, str, int], int]] = {
    "to_arrow": lambda lab, table, epoch: lab.store.table(table).to_arrow(epoch=epoch).num_rows,
    "scan": lambda lab, table, epoch: lab.store.table(table).scan(epoch=epoch).read_all().num_rows,
    "count": lambda lab, table, epoch: lab.store.table(table).count(epoch),
    "get": lambda lab, table, epoch: lab.store.table(table).get(keys_of([1]), epoch=epoch).num_rows,
    "to_pandas": lambda lab, table, epoch: len(lab.store.table(table).to_pandas(epoch=epoch)),
    "lazy": lambda lab, table, epoch: lab.store.table(table).lazy(epoch=epoch).collect().height,
    "dataset": lambda lab, table, epoch: lab.store.table(table).dataset(epoch=epoch).count_rows(),
    "exact": lambda lab, table, epoch: lab.store.snapshot(consistency=el.Exact({table: epoch}))[table].count(),
    "as_of": lambda lab, table, epoch: lab.store.snapshot([table], consistency="as_of", epoch=epoch)[table].count(),
    "both": lambda lab, table, epoch: lab.store.snapshot(["old", table], consistency="as_of", epoch=epoch)[
        table
    ].count(),
}
STRICT = ("as_of", "both", "spark")
"""Doors that refuse epoch 0 too; the others read a table there as one without a commit."""
if STORE == "lmdb":  # these open the store by its path
    DOORS |= {"spark": spark_count, "flight": served}


@pytest.mark.rule("2.7")
@pytest.mark.parametrize("door", DOORS)
def test_before_its_making_a_table_is_not_there_and_then_empty(lab: Lab, door: str) -> None:
    before = lab.store.last_epoch
    lab.tick()
    lab.root_table("late")
    made = lab.store.last_epoch
    assert before < made
    read = DOORS[door]
    zero = (0,) if door in STRICT else ()
    for epoch in (*zero, 1, before, made - 1):
        with pytest.raises(Exception, match=r"late.* was created at") as error:
            read(lab, "late", epoch)
        assert isinstance(error.value, el.EpochNotCommitted)
    assert read(lab, "late", made) == 0
    between = lab.put({2: (0, 2)}, "old")
    first = lab.put({1: (0, 1)}, "late")
    assert [read(lab, "late", epoch) for epoch in (made, between, first - 1, first)] == [0, 0, 0, 1]
    assert read(lab, "old", before) == 1


@pytest.mark.rule("2.7")
def test_as_of_a_time_before_its_making_is_refused(lab: Lab) -> None:
    at_ms = lab.now_ms
    lab.tick()
    lab.root_table("late")
    lab.put({1: (0, 1)}, "late")
    with pytest.raises(el.EpochNotCommitted, match="late was created at"):
        lab.store.snapshot(["old", "late"], consistency="as_of", timestamp=at_ms)
    assert lab.store.snapshot(["old"], consistency="as_of", timestamp=at_ms)["old"].count() == 1


@pytest.mark.rule("2.7")
def test_a_table_can_be_read_as_soon_as_it_is_made(lab: Lab) -> None:
    lab.root_table("late")
    table = lab.store.table("late")
    assert table.count() == 0
    assert (table.info.max_committed_epoch, table.info.safe_epoch, table.info.log_start_epoch) == (0, 0, 0)
    for policy in ("global", "aligned", "latest", "bounded"):
        options = {"max_lag": 60} if policy == "bounded" else {}
        with lab.store.snapshot(["old", "late"], consistency=policy, **options) as moment:
            assert (moment["late"].count(), moment["old"].count()) == (0, 1)
            epochs, token = moment.epochs, moment.token
        assert lab.store.snapshot(consistency=el.Exact(token)).epochs == epochs
        assert table.count(epochs["late"]) == 0


def test_its_log_begins_at_0_all_the_same(lab: Lab) -> None:
    before = lab.store.last_epoch
    lab.root_table("late")
    table = lab.store.table("late")
    assert table.changes(0).read_all().num_rows == 0 and table.next_epoch(0) is None
    first = lab.put({1: (0, 1)}, "late")
    assert table.changes(0).read_all().num_rows == table.changes(before).read_all().num_rows == 1
    assert table.next_epoch(0) == table.next_epoch(before) == first
    assert table.changes(0, pre_images=True).read_all().column("_change_type").to_pylist() == ["insert"]


def test_a_name_that_is_taken_again_is_another_table(lab: Lab) -> None:
    lab.root_table("t")
    first = lab.put({1: (0, 1)}, "t")
    lab.store.drop_table("t")
    lab.root_table("t")
    with pytest.raises(el.EpochNotCommitted, match="'t' was created at"):
        lab.store.table("t").count(first)
    assert lab.store.table("t").count() == 0


@pytest.mark.rule("2.8")
def test_an_output_was_not_there_before_its_job(lab: Lab) -> None:
    before = lab.store.last_epoch
    lab.tick()
    job = lab.job("j", ["old"])
    with pytest.raises(el.NoConsistentEpoch, match=r"j_out \(creating\) has no commit yet"):
        lab.store.table("j_out").count()
    assert lab.store.table("j_out").count(0) == 0  # without a commit it reads as empty
    lab.put({2: (0, 2)}, "old")
    lab.tick()
    first = job.step_local(mirror("old", "j_out"))
    assert first is not None
    for epoch in (1, before):
        with pytest.raises(el.EpochNotCommitted, match="'j_out' was created at"):
            lab.store.table("j_out").count(epoch)
        with pytest.raises(el.EpochNotCommitted):
            lab.store.snapshot(consistency=el.Exact({"j_out": epoch}))
    assert lab.store.table("j_out").count(first - 1) == 0
    assert lab.store.table("j_out").count(first) == 2


def test_how_far_an_epoch_is_ahead_is_told_as_time(lab: Lab) -> None:
    lab.job("j", ["old"])
    last = lab.store.last_epoch
    with pytest.raises(el.EpochNotCommitted, match=rf"'j_out' at {last} \(.*\): it has no commit yet"):
        lab.rows("j_out", last)
    with pytest.raises(el.EpochNotCommitted, match="j_out at .*: it has no commit yet"):
        lab.store.snapshot(consistency=el.Exact({"j_out": last + 1}))
    for read in (
        lambda epoch: lab.rows("old", epoch),
        lambda epoch: lab.store.snapshot(consistency=el.Exact({"old": epoch})),
    ):
        with pytest.raises(el.EpochNotCommitted, match=rf"complete only through {last} \(.*\), 2\.0 s short"):
            read(last + (2000 << 12))


@pytest.mark.rule("2.8")
def test_a_log_backfill_makes_an_output_readable_before_its_job(lab: Lab) -> None:
    lab.tick()
    for number in range(2, 5):
        lab.put({number: (0, 1)}, "old")
        lab.tick()
    job = lab.job("j", ["old"], backfill="log", max_lag=100)
    first = job.step_local(mirror("old", "j_out"))
    assert first is not None and first < lab.store.last_epoch
    while job.step_local(mirror("old", "j_out")) is not None:
        pass
    assert lab.rows("j_out", first) == lab.rows("old", first)
    with pytest.raises(el.EpochNotCommitted, match=f"'j_out' was created at {first}"):
        lab.store.table("j_out").count(first - 1)


def test_a_job_over_an_old_and_a_new_table_begins_when_both_are_there(lab: Lab) -> None:
    lab.tick()
    lab.store.checkpoint()
    lab.tick(0.5)
    lab.root_table("late")
    made = lab.store.last_epoch
    job = lab.job("j", ["old", "late"])
    assert job.step_local(refuse) is None  # no boundary has been sealed since
    lab.put({7: (0, 7)}, "late")
    lab.tick()
    epoch = job.step_local(mirror("late", "j_out"))
    assert epoch is not None and epoch > made
    assert lab.rows("j_out", epoch) == lab.rows("late", epoch)


@pytest.mark.rule("2.7")
def test_creating_tables_at_a_standing_clock_gives_rising_epochs(lab: Lab) -> None:
    made = []
    for number in range(3):
        lab.root_table(f"t{number}")
        made.append(lab.store.last_epoch)
    assert made == sorted(set(made))
    assert lab.put({1: (0, 1)}, "t0") > made[-1]
    lab.store.create_table("t0", SCHEMA, KEY, exist_ok=True)
    assert lab.store.table("t0").count() == 1


@pytest.mark.rule("2.9")
def test_tables_of_a_store_of_before_read_as_they_did(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lab.store.last_epoch
    lab.root_table("late")
    record = lab.store._handle.catalog.read(lambda view: find_table(view, "late")).to_record()
    del record["created"]
    assert TableDef.from_record(record).created == 0
    read = TableDef.from_record
    monkeypatch.setattr(TableDef, "from_record", lambda record: replace(read(record), created=0))
    kept_bytes = DECODED.resize(0)  # a record that was decoded before is not decoded again
    try:
        assert lab.store.table("late").count(before) == 0
    finally:
        DECODED.resize(kept_bytes)


def test_the_command_line_says_so(lab: Lab, capsys: Any) -> None:
    if STORE != "lmdb":
        return
    before = lab.store.last_epoch
    lab.root_table("late")
    assert main(["read", str(lab.root), "late", "--epoch", str(before)]) == 1
    assert "was created at" in capsys.readouterr().err


def test_commits_with_epochs_of_their_own_go_on_above_the_making(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "other")
    lab.root_table("a")
    assert lab.store.last_epoch == 0  # a store without an epoch gives none away
    assert lab.store.table("a").upsert(table_of({1: (0, 1)}), epoch=7) == 7


@pytest.mark.rule("2.7")
@pytest.mark.parametrize("door", DOORS)
def test_a_table_of_a_store_without_epochs_begins_at_its_making_too(tmp_path: Path, door: str) -> None:
    lab = Lab(tmp_path / "store", durability="disk")
    made = from_unix_ms(lab.store._handle.catalog.now_ms())
    lab.root_table("old")
    lab.root_table("late")
    assert lab.store.last_epoch == 0
    with pytest.raises(el.EpochNotCommitted, match=r"no commit yet\. Take a snapshot that waits"):
        lab.store.table("late").count(7)
    lab.tick()
    at = lab.put({1: (0, 1)}, "old")
    with pytest.raises(el.EpochNotCommitted):
        DOORS[door](lab, "late", made - 1)
    with pytest.raises(el.EpochNotCommitted):
        DOORS[door](lab, "late", 7)
    assert DOORS[door](lab, "late", made) == 0
    assert DOORS[door](lab, "late", at) == 0


@pytest.mark.rule("2.7")
def test_a_label_below_the_clock_lowers_the_making_of_all_tables(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store")
    lab.root_table("a")
    lab.root_table("b")
    job = lab.job("j", ["a"])
    assert lab.store.table("a").upsert(table_of({1: (0, 1)}), epoch=100) == 100
    assert (lab.store.table("a").count(100), lab.store.table("b").count(100)) == (1, 0)
    for name in ("a", "b"):
        with pytest.raises(el.EpochNotCommitted, match="was created at"):
            lab.store.table(name).count(99)
    epoch = job.step_local(mirror("a", "j_out"))
    assert lab.rows("j_out", epoch) == lab.rows("a", epoch)
