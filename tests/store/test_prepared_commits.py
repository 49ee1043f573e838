"""Preparation of commits by the settings of their tables, and how often a commit asks the catalog."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.commit import root_commit
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.prepared import NO_REQUIREMENTS, Requirements
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.sst.segment import Segment
from lab import Lab

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = pa.table({"k": [1, 2], "v": [10, 20]}, schema=SCHEMA)
SETTINGS: dict[str, tuple[dict[str, Any], Requirements]] = {
    "plain": ({}, NO_REQUIREMENTS),
    "sequence": ({"sequence_by": "v"}, Requirements(by_sequence=True)),
    "checks": ({"checks": {"positive": "v > 0"}}, Requirements(checks=(("positive", "v > 0"),))),
    "full changelog": ({"changelog": "full"}, Requirements(images=True)),
    "all": (
        {"sequence_by": "v", "checks": {"positive": "v > 0"}, "changelog": "full"},
        Requirements(by_sequence=True, checks=(("positive", "v > 0"),), images=True),
    ),
}


@pytest.fixture(params=SETTINGS)
def settings(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Requirements]:
    return SETTINGS[request.param]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The catalog's reads and transactions, in order."""
    made: list[str] = []
    for name in ("read", "transact"):
        monkeypatch.setattr(LmdbCatalog, name, _noted(name, getattr(LmdbCatalog, name), made))
    return made


def _noted(name: str, real: Any, made: list[str]) -> Any:
    def call(catalog: LmdbCatalog, body: Any) -> Any:
        made.append(name)
        return real(catalog, body)

    return call


def segment(lab: Lab, table: el.Table, **fields: Any) -> Segment:
    writer = table.writer()
    writer.upsert(ROWS)
    (written,) = writer.seal(1)
    return replace(written, **fields)


@pytest.mark.local_only
def test_settings_say_what_a_change_requires(lab: Lab, settings: tuple[dict[str, Any], Requirements]) -> None:
    options, required = settings
    table = lab.store.create_table("t", SCHEMA, ["k"], **options)
    rows, current = segment(lab, table), table._table
    assert Requirements.of(current, TableChange(current, (rows,))) == required
    assert Requirements.of(current, TableChange(current, (rows,), sequence="given")) == replace(
        required, by_sequence=False
    )
    assert Requirements.of(current, TableChange(current)) == NO_REQUIREMENTS
    updates = replace(rows, updates=("v",))
    assert Requirements.of(current, TableChange(current, (rows, updates))) == replace(required, merge=True)


@pytest.mark.local_only
def test_outputs_leave_unchanged_rows_out_but_not_of_a_difference(lab: Lab) -> None:
    rows = segment(lab, lab.store.create_table("t", SCHEMA, ["k"]))
    lab.store.create_job("j", ["t"], {"out": (SCHEMA, ["k"])})
    lab.store.table("out").alter(drop_unchanged=True)
    output: TableDef = lab.store.table("out")._table
    required = Requirements(changed_only=True)
    assert Requirements.of(output, TableChange(output, (rows,))) == required
    assert Requirements.of(output, TableChange(output), (rows,)) == required, "staged segments land with the change"
    assert Requirements.of(output, TableChange(output, (rows,), is_difference=True)) == NO_REQUIREMENTS


@pytest.mark.local_only
def test_a_commit_makes_one_transaction(
    lab: Lab, settings: tuple[dict[str, Any], Requirements], calls: list[str]
) -> None:
    """A table with a sequence, checks or pre-images ran one that had to fail before it was prepared."""
    table = lab.store.create_table("t", SCHEMA, ["k"], **settings[0])
    table.upsert(ROWS)  # it registers the store's write intent
    calls.clear()
    table.upsert(ROWS, txn=("app", 1))
    assert calls.count("transact") == 1


@pytest.mark.local_only
def test_a_pair_is_looked_up_once_before_and_once_inside(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[object] = []
    real = root_commit.resolve_outcome

    def resolve(view: Any, *args: Any) -> int | None:
        looked_up.append(args[0])
        return real(view, *args)

    monkeypatch.setattr(root_commit, "resolve_outcome", resolve)
    table = lab.store.create_table("t", SCHEMA, ["k"])
    epoch = table.upsert(ROWS, txn=("app", 1))
    assert looked_up == [("app", 1)] * 2
    assert table.upsert("no rows at all", txn=("app", 1)) == epoch
    assert looked_up == [("app", 1)] * 3


@pytest.mark.local_only
@pytest.mark.parametrize("settings", ["checks", "full changelog"], indirect=True)
def test_a_setting_that_comes_meanwhile_is_heeded(
    lab: Lab, settings: tuple[dict[str, Any], Requirements], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was prepared for the settings that its writer has read."""
    table, other = lab.store.create_table("t", SCHEMA, ["k"]), lab.open()
    table.upsert(ROWS)
    landing = [lambda: other.table("t").alter(**settings[0])]

    def alter(name: str) -> None:
        if name == "commit:segments-written" and landing:
            landing.pop()()

    monkeypatch.setattr(root_commit, "hit", alter)
    epoch = table.upsert(pa.table({"k": [1], "v": [11]}, schema=SCHEMA))
    entries = lab.store._handle.catalog.read(lambda view: get_entries(view, table._table.id, epoch - 1, epoch))
    assert [group.stores_images for entry in entries for group in entry.groups] == ["changelog" in settings[0]]
    assert not landing
