"""Altered tables beside sequences, checks, a ttl, tags, clones and updates: what is refused, and what goes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.commit import expiry, root_commit, row_checks
from epochlog.store.commit.preparation import prepare_root
from epochlog.store.commit.prepared import Prepared
from lab import Lab

FIELDS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("at", pa.timestamp("ms"))])
AT = datetime(2026, 1, 1)
ROWS = [{"id": key, "a": key, "b": f"b{key}", "at": AT} for key in range(3)]
TTL = el.TableOptions(ttl=timedelta(days=300_000), ttl_column="at")


def sequenced(lab: Lab) -> el.Table:
    table = lab.store.create_table("t", FIELDS, ["id"], sequence_by="at")
    table.upsert(ROWS)
    lab.tick()
    return table


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


CHANGES: list[dict[str, Any]] = [
    {"add": [pa.field("c", pa.int8())]},
    {"drop": ["b"]},
    {"rename": {"b": "c"}},
    {"rename": {"id": "key"}},
    {"drop": ["b"], "add": [pa.field("b", pa.int8())]},
]


@pytest.mark.rule("7.9")
@pytest.mark.parametrize(
    ("make", "column", "says"),
    [
        (checked, "a", r"check 'small' of .*; remove check 'small' first with store.table\('t'\).alter\(checks="),
        (
            expiring,
            "at",
            r"the ttl of the table names it; remove the ttl first with store.table\('t'\).alter\(options=",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["drop", "drop and add", "widen"])
def test_a_column_that_a_check_or_a_ttl_names_is_neither_dropped_nor_widened(
    lab: Lab, make: Callable[[Lab], el.Table], column: str, says: str, kind: str
) -> None:
    table = make(lab)
    changes: dict[str, dict[str, Any]] = {
        "drop": {"drop": [column]},
        "drop and add": {"drop": [column], "add": [FIELDS.field(column)]},
        "widen": {"widen": {column: pa.int64()}},
    }
    with pytest.raises(
        el.InvalidInput, match=f"column '{column}'(: .* cannot be widened| can only be renamed, because {says})"
    ):
        table.alter(**changes[kind])
    assert table.schema.names == FIELDS.names
    assert lab.store.verify().ok


@pytest.mark.rule("7.9")
@pytest.mark.parametrize("make", [checked, expiring, tagged, tagged_once, cloned, a_clone, sequenced])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_other_columns_change_beside_checks_a_ttl_tags_and_clones(
    lab: Lab, make: Callable[[Lab], el.Table], change: dict[str, Any]
) -> None:
    table = make(lab)
    others = {
        info.name: lab.store.table(info.name).to_arrow() for info in lab.store.tables() if info.name != table.name
    }
    table.upsert(ROWS)
    epoch, was = lab.store.last_epoch, table.to_arrow()
    table.alter(**change)
    names = dict(zip(("id", "a", "at"), (change.get("rename", {}).get(n, n) for n in ("id", "a", "at")), strict=True))
    new = {names["id"]: 7, names["a"]: 7, names["at"]: AT}
    table.upsert(pa.table({field.name: pa.array([new.get(field.name)], field.type) for field in table.schema}))
    for compacted in (False, True):
        if compacted:
            lab.tick()
            for info in lab.store.tables():
                lab.store.compact(info.name, full=True)
        assert table.to_arrow(epoch=epoch).equals(was)
        assert table.to_arrow()[names["a"]].to_pylist() == [0, 1, 2, 7]
        for name, rows in others.items():
            assert lab.store.table(name).to_arrow().equals(rows)
    if make is checked:
        with pytest.raises(el.CheckViolated, match="a is 70"):
            table.upsert(table.to_arrow().slice(0, 1).set_column(1, "a", pa.array([70], pa.int32())))
    if make is tagged:
        with lab.store.snapshot(tag="kept") as kept:
            assert kept["t"].to_arrow().to_pylist() == ROWS
    store_is_whole(lab)


@pytest.mark.rule("7.9")
def test_one_call_cannot_give_checks_and_change_columns(lab: Lab) -> None:
    table = filled(lab)
    with pytest.raises(el.InvalidInput, match="new checks test all rows"):
        table.alter(drop=["b"], checks={"small": "a < 0"})
    with pytest.raises(el.InvalidInput, match="the ttl of the table names it"):
        table.alter(drop=["at"], options=TTL)
    assert table.info.options.ttl is None
    table.alter(drop=["b"], options=TTL)
    assert table.info.options.ttl == TTL.ttl
    assert table.schema.names == ["id", "a", "at"]


@pytest.mark.rule("7.9")
def test_checks_are_tested_again_if_the_columns_change_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows passed the check on another column of that name."""
    table = lab.store.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32())]), ["id"])
    table.upsert([{"id": 1, "a": 1, "b": 50}])
    real, calls = row_checks._test_rows, []

    def tested(*args: Any) -> Any:
        plan = real(*args)
        if not calls:
            lab.store.table("t").alter(rename={"a": "b", "b": "a"})
        calls.append(plan)
        return plan

    monkeypatch.setattr(row_checks, "_test_rows", tested)
    with pytest.raises(el.CheckViolated, match="a is 50"):
        table.alter(checks={"small": "a < 9"})
    assert len(calls) == 1


@pytest.mark.rule("7.9", "1.23")
def test_rows_expire_beside_an_alter_that_comes_in_between(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.store.create_table("t", FIELDS, ["id"], options=el.TableOptions(ttl=timedelta(days=1), ttl_column="at"))
    past, now = datetime(1960, 1, 1), datetime(2999, 1, 1)
    table.upsert([{"id": key, "a": key, "b": "x", "at": past if key < 3 else now} for key in range(4)])
    real, altered = expiry._write_deletes, []

    def write(*args: Any) -> Any:
        if not altered:
            altered.append(lab.store.table("t").upsert([{"id": 1, "a": 5, "b": "renewed", "at": now}]))
            lab.store.table("t").alter(rename={"id": "b", "b": "id"})
            lab.store.table("t").upsert([{"b": 2, "a": 6, "id": "renewed", "at": now}])
        return real(*args)

    monkeypatch.setattr(expiry, "_write_deletes", write)
    lab.tick()
    assert expiry.expire_rows(lab.store._handle, table._table) == 1
    assert altered
    assert table.to_arrow()["b"].to_pylist() == [1, 2, 3]  # 0 has expired
    store_is_whole(lab)


@pytest.mark.rule("7.9")
def test_the_columns_change_once_checks_and_ttl_are_removed(lab: Lab) -> None:
    table = lab.store.create_table("t", FIELDS, ["id"], options=TTL, checks={"small": "a < 9"})
    table.upsert(ROWS)
    table.alter(checks={}, options=el.TableOptions())
    table.alter(rename={"a": "b", "b": "a"})
    assert sorted(table.to_arrow().column("a").to_pylist()) == ["b0", "b1", "b2"]


@pytest.mark.rule("7.9", "1.20")
@pytest.mark.parametrize("compacted", ["before", "after", "never"])
def test_a_clone_of_an_altered_table_has_its_columns(lab: Lab, compacted: str) -> None:
    table = filled(lab)
    before = table.info.max_committed_epoch
    if compacted == "before":
        lab.store.compact("t", full=True)
    lab.tick()
    table.alter(rename={"a": "b", "b": "a"}, add=[pa.field("c", pa.int8())], drop=["at"])
    table.upsert([{"id": 1, "b": 10, "a": "new", "c": 1}])
    if compacted == "after":
        lab.store.compact("t", full=True)
    lab.tick()
    assert lab.store.clone("t", "old", as_of=before).to_arrow().equals(table.to_arrow(epoch=before))
    lab.store.drop_table("old")
    rows = table.to_arrow()
    clone = lab.store.clone("t", "copy", as_of=table.info.max_committed_epoch)
    assert clone.to_arrow().equals(rows)
    assert clone.schema.equals(table.schema)
    clone.alter(add=[pa.field("at", pa.int8())], drop=["c"])
    table.alter(add=[pa.field("d", pa.string())], rename={"c": "e"})
    clone.upsert([{"id": 9, "b": 9, "a": "9", "at": 9}])
    table.upsert([{"id": 9, "b": 9, "a": "9", "d": "d", "e": 9}])
    for _ in range(2):
        assert clone.to_arrow().drop_columns(["at"]).slice(0, 3).equals(rows.drop_columns(["c"]))
        assert clone.to_arrow()["at"].to_pylist() == [None, None, None, 9]
        assert table.to_arrow()["e"].to_pylist() == [None, 1, None, 9]
        lab.tick()
        lab.store.compact("copy", full=True)
        lab.store.compact("t", full=True)
    again = lab.store.clone("copy", "third")
    lab.store.drop_table("copy")
    lab.store.drop_table("t")
    lab.store.vacuum()
    assert again.to_arrow()["at"].to_pylist() == [None, None, None, 9]
    store_is_whole(lab, "third")


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
    lab: Lab, change: dict[str, Any], changelog: str
) -> None:
    table = lab.store.create_table("t", FIELDS, ["id"], changelog=changelog)
    table.upsert(ROWS)
    writer = table.writer()
    writer.update([{"id": 1, "a": 9}])
    segments = writer.seal(lab.store.last_epoch + 1)
    lab.store.table("t").alter(**change)
    with pytest.raises(el.SchemaChanged, match="after these updates of some columns were written; retry") as changed:
        lab.store.commit({"t": segments})
    assert changed.value.epoch == table.history(1)["epoch"][0].as_py()
    assert 9 not in table.to_arrow().column("b" if "rename" in change else "a").to_pylist()


@pytest.mark.rule("7.9")
def test_updates_are_refused_if_the_alter_lands_while_they_are_merged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(lab)

    def altered_first(*args: Any) -> Sequence[Prepared]:
        lab.store.table("t").alter(rename={"a": "b", "b": "a"})
        return prepare_root(*args)

    monkeypatch.setattr(root_commit, "prepare_root", altered_first)
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


def store_is_whole(lab: Lab, table: str = "t") -> None:
    lab.store.compact(table, full=True)
    report = lab.store.verify()
    assert report.ok, report


@pytest.mark.parametrize("change", [{"add": [pa.field("c\0d", pa.int64())]}, {"rename": {"a": "c\0d"}}])
def test_names_with_nul_are_refused(lab: Lab, change: dict[str, Any]) -> None:
    """Spark and DuckDB cut them, so that no write by Spark and no view found the column."""
    table = filled(lab)
    with pytest.raises(el.InvalidSchema, match=r"table t, column 'c\\x00d'.*NUL"):
        table.alter(**change)
    assert table.schema.names == FIELDS.names
