"""Checks of a table: no commit leaves a row that breaks one, through any door, and adding one tests what is there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.commit import preparation, root_commit, row_checks
from lab import Lab
from sink_simulation import SinkWrite

SCHEMA = pa.schema([("k", pa.int64()), ("cents", pa.int64()), ("at", pa.int64())])
CHECKS = {"positive": "cents >= 0", "known": "at <> 13 OR cents = 1"}


def row(k: int, cents: int | None, at: int = 0) -> dict[str, Any]:
    return {"k": k, "cents": cents, "at": at}


def by_upsert(lab: Lab, table: el.Table, rows: list[dict[str, Any]]) -> None:
    table.upsert(rows)


def by_transaction(lab: Lab, table: el.Table, rows: list[dict[str, Any]]) -> None:
    with lab.store.transaction() as tx:
        tx.upsert("t", rows)


def by_labels(lab: Lab, table: el.Table, rows: list[dict[str, Any]]) -> None:
    writer = table.writer()
    writer.upsert(rows)
    lab.store.commit({"t": writer.seal(lab.store.last_epoch + 1)})


def by_update(lab: Lab, table: el.Table, rows: list[dict[str, Any]]) -> None:
    table.update(rows)


DOORS = [by_upsert, by_transaction, by_labels, by_update]


@pytest.mark.rule("1.17")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_a_commit_with_a_row_that_breaks_a_check_is_refused_whole(
    lab: Lab, door: Callable[..., None], changelog: str
) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], checks=CHECKS, changelog=changelog)
    door(lab, table, [row(1, 5), row(2, None)])  # null passes
    commits = table.history().num_rows
    with pytest.raises(
        el.CheckViolated, match=r"check 'positive' \(cents >= 0\) fails for the key 4, where cents is -5"
    ):
        door(lab, table, [row(3, 5), row(4, -5)])
    with pytest.raises(el.CheckViolated, match="check 'known'"):
        door(lab, table, [row(3, 5, 13)])
    assert table.history().num_rows == commits
    assert table.to_arrow()["k"].to_pylist() == [1, 2]
    door(lab, table, [row(3, 1, 13)])
    lab.store.vacuum(grace=timedelta(0))
    assert lab.store.verify().ok


@pytest.mark.rule("1.17")
def test_only_the_row_that_wins_counts(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], checks=CHECKS)
    table.upsert([row(1, -5), row(1, 5)])
    by_transaction(lab, table, [row(1, -5), row(1, 6)])
    with lab.store.transaction() as tx:
        tx.upsert("t", [row(2, -5)])
        tx.delete("t", [2])
    writer, label = table.writer(), lab.store.last_epoch + 1
    writer.upsert([row(3, -5)])
    sealed = writer.seal(label)
    writer.upsert([row(3, 5)])
    lab.store.commit({"t": [*sealed, *writer.seal(label + 1)]})
    assert table.to_arrow()["cents"].to_pylist() == [6, 5]


@pytest.mark.rule("1.17")
def test_a_row_that_loses_by_its_sequence_breaks_nothing(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", checks={"positive": "cents >= 0"})
    table.upsert([row(1, 5, 7)])
    table.upsert([row(1, -5, 6)])
    table.delete([(2, 7)])
    table.upsert([row(2, -5, 6)])
    with pytest.raises(el.CheckViolated, match="key 1"):
        table.upsert([row(1, -5, 8)])
    assert table.to_arrow().to_pylist() == [row(1, 5, 7)]


def test_an_update_is_tested_as_the_whole_row_that_it_gives(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], checks={"sum": "cents <= at"})
    table.upsert([row(1, 5, 7)])
    table.update([{"k": 1, "cents": 7}])
    with pytest.raises(el.CheckViolated, match="cents is 7 and at is 6"):
        table.update([{"k": 1, "at": 6}])


def test_a_restore_and_an_overwrite_are_tested(lab: Lab) -> None:
    options = el.TableOptions(history_retention=timedelta(days=1))
    table = lab.store.create_table("t", SCHEMA, ["k"], options=options)
    bad = table.upsert([row(1, -5)])
    table.upsert([row(1, 5)])
    table.alter(checks=CHECKS)
    with pytest.raises(el.CheckViolated, match="key 1"):
        table.restore(bad)
    assert table.to_arrow()["cents"].to_pylist() == [5]


@pytest.mark.local_only
def test_a_write_of_spark_is_tested(tmp_path: Path) -> None:
    with el.open(tmp_path / "real") as store:
        table = store.create_table("t", SCHEMA, ["k"], checks=CHECKS)
        for mode in ("append", "overwrite"):
            write = SinkWrite(store, "t", SCHEMA, mode)
            messages = write.run(pa.Table.from_pylist([row(1, 5), row(2, -5)], SCHEMA))
            with pytest.raises(el.CheckViolated):
                write.commit(messages)
        assert table.count() == 0


@pytest.mark.rule("1.18")
def test_a_new_check_tests_the_rows_that_are_there(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    table.upsert([row(1, 5), row(2, -5)])
    lab.store.compact("t", full=True)
    with pytest.raises(el.CheckViolated, match="key 2, where cents is -5"):
        table.alter(checks=CHECKS)
    assert table.info.checks == {}
    table.upsert([row(2, 5)])
    table.alter(checks=CHECKS)
    assert table.info.checks == CHECKS
    with pytest.raises(el.CheckViolated):
        table.upsert([row(1, -5)])
    table.alter(checks={})
    table.upsert([row(1, -5)])


@pytest.mark.rule("1.18")
def test_commits_that_land_while_a_check_is_added_are_tested(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    table.upsert([row(1, 5)])
    other = lab.open().table("t")
    landing = [lambda: other.upsert([row(2, 5)]), lambda: other.upsert([row(3, -5)])]
    real = row_checks._test_rows
    read: list[int | None] = []

    def racing(*args: Any) -> Any:
        read.append(args[-1])
        tested = real(*args)
        if landing:
            landing.pop(0)()
        return tested

    monkeypatch.setattr(row_checks, "_test_rows", racing)
    with pytest.raises(el.CheckViolated, match="key 3"):
        table.alter(checks=CHECKS)
    assert read[0] is None
    assert None not in read[1:]
    assert table.info.checks == {}


@pytest.mark.rule("1.18")
def test_a_commit_under_way_is_tested_with_a_check_that_is_added_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    other = lab.open().table("t")
    landing = [lambda: other.alter(checks=CHECKS)]

    def land(name: str) -> None:
        if name == "commit:segments-written" and landing:
            landing.pop()()

    monkeypatch.setattr(root_commit, "hit", land)
    with pytest.raises(el.CheckViolated):
        table.upsert([row(1, -5)])
    assert table.count() == 0


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ({"positive": "cent >= 0"}, "cent"),
        ({"positive": "cents >="}, "cents >="),
        ({"positive": ""}, "must be a condition"),
        ({"Not A Name": "cents >= 0"}, "check name"),
        (["cents >= 0"], "must be a dict"),
    ],
)
def test_a_check_that_cannot_be_tested_is_refused(lab: Lab, checks: Any, says: str) -> None:
    with pytest.raises(el.InvalidInput, match=says):
        lab.store.create_table("t", SCHEMA, ["k"], checks=checks)
    assert not lab.store.tables()


def test_outputs_of_jobs_have_no_checks(lab: Lab) -> None:
    lab.root_table()
    lab.job("copy", ["r"])
    with pytest.raises(el.InvalidInput, match="checks are for root tables"):
        lab.store.table("copy_out").alter(checks={"positive": "v >= 0"})


def test_only_tables_with_checks_have_the_new_format(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    assert "checks" not in table._table.to_record()
    table.alter(checks=CHECKS)
    record = lab.store.table("t")._table.to_record()
    assert record["checks"] == CHECKS
    assert msgpack.unpackb(record["schema"])["format"] == 2
    lab.store.create_table("t", SCHEMA, ["k"], checks=CHECKS, exist_ok=True)
    with pytest.raises(el.TableExists, match="its checks are"):
        lab.store.create_table("t", SCHEMA, ["k"], checks={"positive": "cents > 0"}, exist_ok=True)


@pytest.mark.planted
def test_a_planted_bug_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows as written are tested in place of those that a commit leaves."""
    real = preparation.check_committed

    def each_by_itself(files: Any, table: Any, checks: Any, segments: Any) -> None:
        for segment in segments:
            real(files, table, checks, [segment])

    monkeypatch.setattr(preparation, "check_committed", each_by_itself)
    with pytest.raises(el.CheckViolated):
        test_only_the_row_that_wins_counts(lab)
