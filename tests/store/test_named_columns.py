"""Renamed columns that a table's settings name: the ttl and the checks follow the column, whatever its name is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.commit import clone as clone_module
from epochlog.store.commit import expiry, table_ddl
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.types.predicate import columns_of_predicate, parse_predicate, rename_in_predicate
from epochlog.store.types.schema import TableSchema
from lab import Lab

HOUR_MS = 3_600_000
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("at", TIME), ("until", TIME), ("n", pa.int32())])
HOURLY = el.TableOptions(history_retention=timedelta(days=9), ttl=timedelta(hours=1), ttl_column="at")
SWAP = {"at": "until", "until": "at"}


def expiring(lab: Lab, name: str = "t") -> el.Table:
    return lab.store.create_table(name, SCHEMA, ["k"], options=HOURLY)


def put(lab: Lab, table: el.Table, hours: dict[int, tuple[int, int]]) -> int:
    """Write rows: by key the hours from now of its first column with a time, which the ttl named, and of its second."""
    now = datetime.fromtimestamp(lab.now_ms / 1000, UTC)
    names = table.schema.names
    rows = [
        dict(zip(names, (k, now + timedelta(hours=at), now + timedelta(hours=until), k), strict=True))
        for k, (at, until) in hours.items()
    ]
    return table.upsert(rows)


def keys(table: el.Table) -> list[int]:
    return sorted(table.to_arrow().column(table.schema.names[0]).to_pylist())


def by_compact(lab: Lab) -> None:
    lab.store.compact()


def by_maintenance(lab: Lab) -> None:
    worker = Maintenance(lab.store._handle)
    worker.run_once()
    assert not worker.errors


def by_older_handle(lab: Lab) -> None:
    other = lab.open()
    other.compact()
    other.close()


# ---- the ttl ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.23", "7.9")
@pytest.mark.parametrize("expire", [by_compact, by_maintenance, by_older_handle])
@pytest.mark.parametrize(
    "rename", [{"at": "time"}, SWAP, {"at": "k", "k": "at"}, {"at": "until", "until": "old"}], ids=str
)
def test_rows_expire_by_the_column_of_the_ttl_whatever_its_name(
    lab: Lab, rename: dict[str, str], expire: Callable[[Lab], None]
) -> None:
    table = expiring(lab)
    put(lab, table, {1: (-2, 9), 2: (9, -2), 3: (-2, -2), 4: (0, 0)})
    table.alter(rename=rename)
    assert lab.store.table("t").info.options == replace(HOURLY, ttl_column=rename["at"])
    lab.tick()
    expire(lab)
    assert keys(table) == [2, 4]
    put(lab, table, {5: (-2, 9), 6: (9, -2)})
    lab.now_ms += 700_000
    expire(lab)
    assert keys(table) == [2, 4, 6]
    lab.now_ms += HOUR_MS
    expire(lab)
    assert keys(table) == [2, 6]
    assert lab.store.verify().ok


@pytest.mark.rule("1.23", "7.9")
def test_running_maintenance_and_an_open_handle_go_on_after_a_rename(lab: Lab) -> None:
    table, other = expiring(lab), lab.open()
    worker, older = Maintenance(other._handle), other.table("t")
    put(lab, table, {1: (-2, 9), 2: (9, -2)})
    lab.tick()
    worker.run_once()
    assert keys(older) == [2]
    table.alter(rename=SWAP)
    put(lab, table, {3: (-2, 9), 4: (9, -2)})
    lab.now_ms += 700_000
    worker.run_once()
    assert not worker.errors and keys(table) == [2, 4]
    table.alter(rename={"until": "time"})
    lab.now_ms += 20 * HOUR_MS
    worker.run_once()
    assert not worker.errors and keys(table) == []
    assert older.info.options.ttl_column == "time"
    other.close()


def meanwhile(lab: Lab, patch: pytest.MonkeyPatch, changes: Callable[[], object]) -> el.Table:
    """Make changes after rows were chosen to expire, before the commit of their deletes."""
    table = expiring(lab)
    put(lab, table, {1: (-2, 9), 2: (9, -2), 3: (-2, -2), 4: (9, 9)})
    real, done = expiry.commit_changes, []

    def overtaken(*args: Any, **named: Any) -> Any:
        if not done:
            done.append(changes())
        return real(*args, **named)

    patch.setattr(expiry, "commit_changes", overtaken)
    lab.tick()
    lab.store.compact("t")
    assert done
    return table


@pytest.mark.rule("1.23", "7.9")
def test_a_rename_while_rows_are_to_expire_changes_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes() -> None:
        table = lab.store.table("t")
        put(lab, table, {3: (9, -2)})  # renewed
        table.alter(rename=SWAP)

    table = meanwhile(lab, monkeypatch, changes)
    assert keys(table) == [2, 3, 4]
    assert table.history(1)["operation"].to_pylist() == ["expire"], "it is decided again, not given up"


@pytest.mark.rule("1.23", "7.9")
def test_a_ttl_of_another_column_under_the_same_name_is_another_ttl(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    another_column(lab, monkeypatch)


def another_column(lab: Lab, patch: pytest.MonkeyPatch) -> None:
    def changes() -> None:
        table = lab.store.table("t")
        table.alter(options=replace(HOURLY, ttl=None, ttl_column=None))
        table.alter(rename=SWAP)
        table.alter(options=HOURLY)

    table = meanwhile(lab, patch, changes)
    lab.store.compact("t")
    assert keys(table) == [1, 4]


@pytest.mark.rule("1.20", "1.23", "7.9")
def test_clones_and_restores_of_before_a_rename_expire_by_their_own_name(lab: Lab) -> None:
    of_before(lab)


def of_before(lab: Lab) -> None:
    table = expiring(lab)
    epoch = put(lab, table, {1: (-2, 9), 2: (9, -2)})
    table.alter(rename=SWAP)
    lab.store.compact("t")
    lab.tick()
    lab.store.compact("t")
    clone = lab.store.clone("t", "c", as_of=epoch)
    assert clone.info.options.ttl_column == "at" and keys(clone) == [1, 2]
    table.restore(epoch)
    assert table.info.options.ttl_column == "until" and keys(table) == [1, 2]
    lab.tick()
    lab.store.compact()
    assert keys(clone) == keys(table) == [2]
    clone.alter(rename={"at": "begin"})
    assert (clone.info.options.ttl_column, table.info.options.ttl_column) == ("begin", "until")


@pytest.mark.rule("7.9")
@pytest.mark.local_only
def test_the_catalog_is_restored_with_a_renamed_ttl(lab: Lab, tmp_path: Path) -> None:
    table = expiring(lab)
    put(lab, table, {1: (-2, 9), 2: (9, -2)})
    table.alter(rename=SWAP)
    lab.store.export_catalog(tmp_path / "dump")
    lab.store.close()
    shutil.rmtree(lab.root / "catalog")
    el.restore_catalog(str(lab.root), str(tmp_path / "dump"))
    lab.store = lab.open()
    lab.tick()
    lab.store.compact()
    assert keys(lab.store.table("t")) == [2]


@pytest.mark.rule("7.9", "7.12")
def test_a_repeated_rename_leaves_the_ttl_where_it_is(lab: Lab) -> None:
    table = expiring(lab)
    for _ in range(2):
        table.alter(rename=SWAP, txn=("deploy", 1))
        assert table.info.options.ttl_column == "until"
    for change in (SWAP, {"until": "x"}, {"at": "until"}):
        with pytest.raises(el.InvalidInput, match="a new ttl does not go with a rename of 'until'"):
            table.alter(rename=change, options=replace(HOURLY, ttl_column="until"))
    table.alter(rename={"n": "m"}, options=replace(HOURLY, ttl_column="at"))
    assert table.info.options.ttl_column == "at"


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.17", "7.9")
def test_a_check_follows_its_columns(lab: Lab) -> None:
    checks_follow(lab)


def checks_follow(lab: Lab) -> None:
    text = "n >= 0 AND (until IS NULL OR at <= until)"
    table = lab.store.create_table("t", SCHEMA, ["k"], checks={"good": text, "small": "n<9 or `n` = 100"})
    epoch = put(lab, table, {1: (0, 1)})
    writer = table.writer()
    writer.upsert(pa.Table.from_pylist([{"k": 5, "at": None, "until": None, "n": -1}], SCHEMA))
    written = writer.seal(lab.store.last_epoch + 1)
    table.alter(rename={**SWAP, "n": "a number"})
    with pytest.raises(el.CheckViolated, match='"a number" >= 0'):
        lab.store.commit({"t": written})
    assert dict(lab.store.table("t")._table.checks) == {
        "good": '"a number" >= 0 AND (at IS NULL OR until <= at)',
        "small": '"a number"<9 or "a number" = 100',
    }
    put(lab, table, {2: (0, 1)})
    for bad in ({3: (1, 0)}, {-1: (0, 1)}, {20: (0, 1)}):
        with pytest.raises(el.CheckViolated):
            put(lab, table, bad)
    lab.reopen()
    clone = lab.store.clone("t", "c", as_of=epoch)
    assert dict(clone._table.checks) == {"good": "n >= 0 AND (until IS NULL OR at <= until)", "small": "n<9 or n = 100"}
    put(lab, clone, {2: (0, 1)})
    for bad in ({3: (1, 0)}, {-1: (0, 1)}, {20: (0, 1)}):
        with pytest.raises(el.CheckViolated):
            put(lab, clone, bad)


@pytest.mark.rule("1.17", "7.9")
def test_a_column_with_the_name_of_a_keyword_changes_no_check(lab: Lab) -> None:
    """`date` before a text is a literal, also if there is a column of that name."""
    checks = {"late": "at > date '2020-01-01'", "flag": "n = 3"}
    table = lab.store.create_table("t", SCHEMA, ["k"], checks=checks)
    table.alter(add=[pa.field("date", TIME), pa.field("true", pa.bool_())], rename={"n": "TRUE", "until": "timestamp"})
    row = {"k": 1, "at": datetime(2021, 1, 1, tzinfo=UTC), "timestamp": None, "TRUE": 3, "date": None, "true": None}
    table.upsert([row])
    assert dict(table._table.checks)["flag"] == '"TRUE" = 3'
    for bad in ({"at": datetime(2019, 1, 1, tzinfo=UTC)}, {"TRUE": 4}):
        with pytest.raises(el.CheckViolated):
            table.upsert([{**row, **bad}])


def test_a_quoted_column_beside_a_keyword_stays_apart_from_it(lab: Lab) -> None:
    checks = {"both": 'n>0 AND"a number"<9OR"a number"is null'}
    schema = SCHEMA.append(pa.field("a number", pa.int64()))
    table = lab.store.create_table("t", schema, ["k"], checks=checks)
    table.alter(rename={"a number": "m"})
    assert dict(table._table.checks) == {"both": 'n>0 AND"m"<9OR"m"is null'}
    table.upsert([{"k": 1, "at": None, "until": None, "n": 0, "m": None}])
    with pytest.raises(el.CheckViolated):
        table.upsert([{"k": 2, "at": None, "until": None, "n": 0, "m": 3}])


NAMES = ["a", "b", "date", "TRUE", "is", "x y", 'q"q', "b`b", "timestamp", "in"]


def random_predicate(rng: random.Random, depth: int = 0) -> str:
    def column() -> str:
        name = rng.choice(NAMES)
        return "`" + name.replace("`", "``") + "`" if rng.random() < 0.5 else '"' + name.replace('"', '""') + '"'

    kind = rng.randrange(8 if depth < 3 else 5)
    if kind >= 5:
        parts = [random_predicate(rng, depth + 1) for _ in range(2)]
        return [f"NOT ({parts[0]})", f"({parts[0]} AND {parts[1]})", f"{parts[0]} or {parts[1]}"][kind - 5]
    return [
        f"{column()} < {rng.randrange(9)}",
        f"{rng.randrange(9)}>={column()}",
        f"{column()} is not null",
        f"{column()} IN (1, 2)",
        f"{column()} = {column()}",
    ][kind]


@pytest.mark.parametrize("seed", range(60))
def test_a_renamed_predicate_is_the_same_one(seed: int) -> None:
    rng = random.Random(seed)
    text, others = random_predicate(rng), rng.sample(NAMES, len(NAMES))
    before = pa.schema([(name, pa.int64()) for name in NAMES])
    names = dict(zip(NAMES, others, strict=True))
    renamed = rename_in_predicate(text, before, names)
    after = pa.schema([(names[name], pa.int64()) for name in NAMES])
    assert columns_of_predicate(renamed, after) == [names[name] for name in columns_of_predicate(text, before)], seed
    rows = [[rng.choice([None, 0, 1, 2, 5]) for _ in range(30)] for _ in NAMES]
    old, new = (pa.table([pa.array(row, pa.int64()) for row in rows], schema=schema) for schema in (before, after))
    passed = [table.filter(parse_predicate(t, s)) for table, t, s in ((old, text, before), (new, renamed, after))]
    assert passed[0].rename_columns(others) == passed[1], seed
    back = {new: old for old, new in names.items()}
    assert rename_in_predicate(renamed, after, {}) == renamed
    assert columns_of_predicate(rename_in_predicate(renamed, after, back), before) == columns_of_predicate(text, before)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def settings_keep_their_names(patch: pytest.MonkeyPatch) -> None:
    def same(table: TableDef, schema: TableSchema) -> TableDef:
        return replace(table, schema=schema)

    for module in (table_ddl, clone_module):
        patch.setattr(module, "with_schema", same)


def clones_take_the_present_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clone_module, "with_schema", lambda table, schema: replace(table, schema=schema))


def the_ttl_is_that_of_a_name(patch: pytest.MonkeyPatch) -> None:
    def by_name(table: TableDef) -> Any:
        return None if table.options.ttl is None else (table.options.ttl, table.options.ttl_column)

    patch.setattr(TableDef, "expiry", property(by_name))


def renamed_to_another_column(lab: Lab) -> None:
    test_rows_expire_by_the_column_of_the_ttl_whatever_its_name(lab, SWAP, by_compact)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (settings_keep_their_names, renamed_to_another_column),
        (settings_keep_their_names, checks_follow),
        (clones_take_the_present_names, of_before),
        (clones_take_the_present_names, checks_follow),
    ],
)
def test_a_planted_bug_is_found(
    lab: Lab, plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[Lab], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError, pytest.fail.Exception)):
        check(lab)


@pytest.mark.planted
def test_an_expiry_that_is_compared_by_name_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    the_ttl_is_that_of_a_name(monkeypatch)
    with pytest.raises(AssertionError):
        another_column(lab, monkeypatch)
