"""Altered tables beside sequences, checks, a ttl, tags, clones and updates: what is refused, and what goes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.commit import root_commit
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.preparation import prepared_edits
from lab import Lab

FIELDS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("at", pa.timestamp("ms"))])
AT = datetime(2026, 1, 1)
ROWS = [{"id": key, "a": key, "b": f"b{key}", "at": AT} for key in range(3)]
TTL = el.TableOptions(ttl=timedelta(days=300_000), ttl_column="at")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    yield made
    made.store.close()


def sequenced(lab: Lab) -> el.Table:
    return lab.store.create_table("t", FIELDS, ["id"], sequence_by="at")


def checked(lab: Lab) -> el.Table:
    return lab.store.create_table("t", FIELDS, ["id"], checks={"small": "a < 9"})


def expiring(lab: Lab) -> el.Table:
    return lab.store.create_table("t", FIELDS, ["id"], options=TTL)


def tagged(lab: Lab) -> el.Table:
    table = filled(lab)
    lab.store.tag("kept", ["t"])
    return table


def tagged_once(lab: Lab) -> el.Table:
    table = tagged(lab)
    lab.store.drop_tag("kept")
    return table


def cloned(lab: Lab) -> el.Table:
    table = filled(lab)
    lab.store.clone("t", "copy")
    return table


def a_clone(lab: Lab) -> el.Table:
    cloned(lab)
    return lab.store.table("copy")


def filled(lab: Lab) -> el.Table:
    table = lab.store.create_table("t", FIELDS, ["id"])
    table.upsert(ROWS)
    lab.tick()
    return table


@pytest.mark.rule("7.9")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (sequenced, "it orders its changes by a sequence; create a table with the columns that you want"),
        (checked, r"it has checks; remove them first with store.table\('t'\).alter\(checks=\{\}\)"),
        (expiring, r"it has a ttl; remove it first with store.table\('t'\).alter\(options=…\) without ttl="),
        (tagged, "epochs of it were tagged; create a table with the columns that you want"),
        (tagged_once, "epochs of it were tagged; create a table"),
        (cloned, "it shares files with a clone, or did; create a table"),
        (a_clone, "it shares files with a clone, or did; create a table"),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        {"add": [pa.field("c", pa.int8())]},
        {"drop": ["b"]},
        {"rename": {"b": "c"}},
        {"widen": {"a": pa.int64()}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_columns_that_others_need_do_not_change(
    lab: Lab, make: Callable[[Lab], el.Table], says: str, change: dict[str, object]
) -> None:
    table = make(lab)
    with pytest.raises(el.InvalidInput, match=f"its columns cannot change, because {says}"):
        table.alter(**change)  # pyright: ignore[reportArgumentType]
    assert table.schema.names == FIELDS.names
    assert lab.store.verify().ok


@pytest.mark.rule("7.9")
def test_one_call_cannot_give_checks_or_a_ttl_and_change_columns(lab: Lab) -> None:
    table = filled(lab)
    for settings in ({"checks": {"small": "a < 0"}}, {"options": TTL}):
        with pytest.raises(el.InvalidInput, match="its columns cannot change"):
            table.alter(drop=["b"], **settings)  # pyright: ignore[reportArgumentType]
    table.upsert([{"id": 7, "a": 7, "b": "7", "at": AT}])  # neither was set
    assert table.info.options.ttl is None


@pytest.mark.rule("7.9")
def test_the_columns_change_once_checks_and_ttl_are_removed(lab: Lab) -> None:
    table = lab.store.create_table("t", FIELDS, ["id"], options=TTL, checks={"small": "a < 9"})
    table.upsert(ROWS)
    table.alter(checks={}, options=el.TableOptions())
    table.alter(rename={"a": "b", "b": "a"})
    assert sorted(table.to_arrow().column("a").to_pylist()) == ["b0", "b1", "b2"]


@pytest.mark.rule("7.9")
def test_an_altered_table_is_not_cloned(lab: Lab) -> None:
    table = filled(lab)
    before = table.info.max_committed_epoch
    lab.tick()
    table.alter(drop=["b"])
    lab.tick()
    for as_of in (None, before):
        with pytest.raises(el.InvalidInput, match="'t' were altered, .*: create 'copy' with the columns that you want"):
            lab.store.clone("t", "copy", as_of=as_of)
    assert [info.name for info in lab.store.tables()] == ["t"]


@pytest.mark.rule("7.9")
@pytest.mark.parametrize(
    "change",
    [
        {"add": [pa.field("c", pa.int8())]},
        {"drop": ["at"]},
        {"rename": {"a": "b", "b": "a"}},
        {"widen": {"a": pa.int64()}},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_updates_that_were_written_before_an_alter_are_refused(
    lab: Lab, change: dict[str, object], changelog: str
) -> None:
    table = lab.store.create_table("t", FIELDS, ["id"], changelog=changelog)
    table.upsert(ROWS)
    writer = table.writer()
    writer.update([{"id": 1, "a": 9}])
    segments = writer.seal(lab.store.last_epoch + 1)
    lab.store.table("t").alter(**change)  # pyright: ignore[reportArgumentType]
    with pytest.raises(el.SchemaChanged, match="after these updates of some columns were written; retry") as changed:
        lab.store.commit({"t": segments})
    assert changed.value.epoch == table.history(1)["epoch"][0].as_py()
    assert 9 not in table.to_arrow().column("b" if "rename" in change else "a").to_pylist()


@pytest.mark.rule("7.9")
def test_updates_are_refused_if_the_alter_lands_while_they_are_merged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(lab)

    def altered_first(*args: Any) -> list[TableEdit]:
        lab.store.table("t").alter(rename={"a": "b", "b": "a"})
        return prepared_edits(*args)

    monkeypatch.setattr(root_commit, "prepared_edits", altered_first)
    with pytest.raises(el.SchemaChanged, match="after these updates of some columns were written; retry"):
        table.update([{"id": 1, "b": "new"}])
    assert lab.store.table("t").to_arrow().column("a").to_pylist() == ["b0", "b1", "b2"]
    store_is_whole(lab)


@pytest.mark.rule("7.9", "1.15")
@pytest.mark.parametrize("version", ["first", "later"])
def test_updates_of_an_altered_table_change_the_columns_of_now(lab: Lab, version: str) -> None:
    table = filled(lab)
    table.alter(rename={"a": "b", "b": "a"}, widen={"a": pa.int64()})
    if version == "later":
        table.alter(drop=["at"], add=[pa.field("c", pa.int8())])
    lab.tick()
    table = lab.store.table("t")
    table.update([{"id": 1, "b": 1 << 40}])
    table.update([{"id": 2, "a": "new"}], ignore_nulls=True)
    rows = {row["id"]: (row["a"], row["b"]) for row in table.to_arrow().to_pylist()}
    assert rows == {0: ("b0", 0), 1: ("b1", 1 << 40), 2: ("new", 2)}
    store_is_whole(lab)


@pytest.mark.rule("7.9")
def test_an_altered_table_is_given_checks_that_hold_for_rows_of_all_versions(lab: Lab) -> None:
    table = filled(lab)
    writer = table.writer()
    writer.upsert([{"id": 7, "a": 70, "b": "7", "at": AT}])
    segments = writer.seal(lab.store.last_epoch + 1)
    table.alter(rename={"a": "b", "b": "a"})
    with pytest.raises(el.CheckViolated, match="b is 2"):
        table.alter(checks={"small": "b < 2"})
    table.alter(checks={"small": "b < 9"})
    with pytest.raises(el.CheckViolated, match="b is 70"):
        lab.store.commit({"t": segments})
    store_is_whole(lab)


@pytest.mark.rule("7.9")
def test_an_altered_table_is_given_a_ttl(lab: Lab) -> None:
    table = filled(lab)
    table.alter(rename={"at": "made"})
    table.alter(options=el.TableOptions(ttl=timedelta(days=1), ttl_column="made"))
    table.upsert([{"id": 5, "a": 5, "b": "5", "made": datetime(2999, 1, 1)}])
    lab.tick()
    lab.store.compact("t")
    lab.tick()
    assert 5 in table.to_arrow().column("id").to_pylist()
    store_is_whole(lab)


@pytest.mark.rule("7.9")
def test_a_tag_of_an_epoch_before_an_alter_keeps_its_columns(lab: Lab) -> None:
    table = lab.store.create_table(
        "t", FIELDS, ["id"], options=el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
    )
    epoch = table.upsert(ROWS)
    lab.tick()
    with lab.store.snapshot(["t"]) as snapshot:
        was = snapshot["t"].to_arrow().sort_by("id")
        table.alter(drop=["b"], widen={"a": pa.int64()})
        snapshot.tag("before")
    table.upsert([{"id": 1, "a": 1 << 40, "at": AT}, {"id": 3, "a": 3, "at": AT}])
    for _ in range(3):
        lab.tick()
        lab.store.compact("t", full=True)
        table.upsert([{"id": 2, "a": 1 << 41, "at": AT}])
    assert table.info.safe_epoch > epoch
    with lab.store.snapshot(tag="before") as tagged:
        assert tagged["t"].to_arrow().sort_by("id").equals(was)
    store_is_whole(lab)


def store_is_whole(lab: Lab) -> None:
    lab.store.compact("t", full=True)
    report = lab.store.verify()
    assert report.ok, report
