"""Clones as of an epoch before an alter: they have the columns of that epoch, and each table is altered by itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from altered_table import AlteredTable, random_alter, random_rows
from epochlog.store.commit import clone as clone_module
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.types.schema import TableSchema
from lab import Lab

ALTERS: dict[str, list[dict[str, Any]]] = {
    "add": [{"add": {"c": pa.int8()}}],
    "drop": [{"drop": ["a"]}],
    "rename": [{"rename": {"a": "c"}}],
    "swap": [{"rename": {"a": "b", "b": "a"}}],
    "swap of keys": [{"rename": {"k": "a", "a": "k"}}],
    "widen": [{"widen": {"a": pa.int64()}}],
    "drop, then add of its name": [{"drop": ["a"]}, {"add": {"a": pa.int64()}}],
    "widen, then drop": [{"widen": {"a": pa.int64()}}, {"drop": ["a", "b"]}],
}


def row(altered: AlteredTable, key: int, **values: Any) -> dict[str, Any]:
    """Return a row by the present names: its values by those of the first columns, if they are still there."""
    names = {id_: name for id_, name, _ in altered.columns}
    given = {1: key, 2: "g", 3: values.get("a"), 4: values.get("b")}
    return {names[id_]: value for id_, value in given.items() if id_ in names}


def clear_away(lab: Lab) -> None:
    lab.now_ms += 3_600_000
    for _ in range(2):
        lab.store.vacuum(grace=0)


def clone_before(lab: Lab, alters: list[dict[str, Any]], compacted: str) -> None:
    """Clone a table as of an epoch before alters, and let both go their own ways."""
    table = AlteredTable(lab.store)
    table.upsert([row(table, key, a=key, b=f"b{key}") for key in range(6)])
    if compacted == "before":
        lab.store.compact("t", full=True)
    lab.tick()
    epoch = table.upsert([row(table, 1, a=100, b="new"), row(table, 9, a=9, b="9")])
    lab.tick()
    for change in alters:
        table.alter(**change)
    wide = any(id_ == 3 and kind == pa.int64() for id_, _, kind in table.columns)
    table.upsert([row(table, 2, a=(1 << 40) if wide else 7, b="later"), row(table, 10, a=0, b="")])
    if compacted == "after":
        lab.store.compact("t", full=True)
    clone = table.clone("copy", epoch)
    for _ in range(2):
        clone.check()
        table.check()
        clone.alter(add={"y": pa.string()}, rename={"b": "z"}) if "z" not in clone.table.schema.names else None
        clone.upsert([row(clone, 2, a=-1, b="clone")])
        table.alter(add={f"w{len(table.alters)}": pa.int8()})
        table.delete([(1, "g")])
        lab.tick()
        lab.store.compact("copy", full=True)
        clone.check()
        lab.store.compact("t", full=True)
        clear_away(lab)
    third = clone.clone("third", max(clone.moments))
    lab.store.drop_table("t")
    clone.alter(drop=["a"])
    lab.store.compact(full=True)
    clear_away(lab)
    clone.check()
    third.check()
    lab.reopen()
    assert lab.store.table("third").to_arrow().to_pylist() == third.moments[max(third.moments)].read()


@pytest.mark.medium
@pytest.mark.rule("1.20", "7.9")
@pytest.mark.parametrize("compacted", ["before", "after", "never"])
@pytest.mark.parametrize("alters", ALTERS.values(), ids=ALTERS)
def test_a_clone_as_of_an_epoch_before_an_alter_has_its_columns(
    lab: Lab, alters: list[dict[str, Any]], compacted: str
) -> None:
    clone_before(lab, alters, compacted)


@pytest.mark.rule("7.1", "7.9")
@pytest.mark.parametrize("before", [True, False])
def test_a_swap_of_the_source_is_no_repetition_on_the_clone(lab: Lab, before: bool) -> None:
    table = AlteredTable(lab.store)
    epoch = table.upsert([row(table, 1, a=1, b="x")])
    swap = {"rename": {"a": "b", "b": "a"}}
    altered = table.alter(**swap)
    clone = table.clone("copy", epoch if before else altered)
    clone.alter(**swap)
    clone.check()
    assert clone.table.schema.names == (["k", "g", "b", "a"] if before else ["k", "g", "a", "b"])
    with pytest.raises(el.InvalidInput, match="has this change already"):
        clone.table.alter(**swap)
    clone.check()


@pytest.mark.rule("7.9")
def test_a_clone_of_a_tag_before_an_alter_has_the_columns_of_the_tag(lab: Lab) -> None:
    table = AlteredTable(lab.store, options=el.TableOptions())
    table.upsert([row(table, 1, a=1, b="x")])
    lab.tick()
    lab.store.tag("kept", ["t"])
    (epoch,) = lab.store.tags()[0].epochs.values()
    table.moments[epoch] = table.moments[max(table.moments)]
    table.alter(drop=["a"], rename={"b": "a"})
    table.upsert([row(table, 1, b="y")])
    lab.tick(200_000)
    lab.store.compact(full=True)
    assert epoch < table.table.info.safe_epoch
    clone = table.clone("copy", epoch)
    lab.store.drop_tag("kept")
    lab.tick(200_000)
    lab.store.compact(full=True)
    clear_away(lab)
    clone.check()
    assert clone.table.to_arrow().to_pylist() == [{"k": 1, "g": "g", "a": 1, "b": "x"}]


@pytest.mark.rule("7.9")
def test_a_setting_that_names_a_later_column_refuses_a_clone_of_before(lab: Lab) -> None:
    table = AlteredTable(lab.store)
    epoch = table.upsert([row(table, 1, a=1, b="x")])
    altered = table.alter(widen={"a": pa.int64()})
    table.table.alter(checks={"small": "a < 9000000000"})
    for _ in range(2):
        with pytest.raises(el.InvalidInput, match="check 'small' of 't' names the column 'a'"):
            lab.store.clone("t", "copy", as_of=epoch)
    assert lab.store.clone("t", "later", as_of=altered).schema.field("a").type == pa.int64()
    table.table.alter(checks={"small": "k < 9"})
    clone = lab.store.clone("t", "copy", as_of=epoch)
    assert clone.schema.field("a").type == pa.int32()
    with pytest.raises(el.CheckViolated):
        clone.upsert([{"k": 10, "g": "g", "a": 1, "b": "x"}])
    assert lab.store.verify().ok


def test_a_job_and_a_feed_of_a_clone_have_its_columns(lab: Lab) -> None:
    table = AlteredTable(lab.store)
    epoch = table.upsert([row(table, 1, a=1, b="x")])
    table.alter(drop=["a"], rename={"b": "a"})
    clone = table.clone("copy", epoch)
    begin = max(clone.moments)
    clone.upsert([row(clone, 2, a=2, b="y")])
    clone.check_feed(begin)
    clone.check_changes(begin, max(clone.moments))
    seen: list[Any] = []
    job = lab.store.create_job("j", ["copy"], {"out": (pa.schema([("k", pa.int64())]), ["k"])})

    def refresh(ctx: Any) -> None:
        seen.append(ctx.table("copy").to_pylist())
        ctx.upsert("out", pa.table({"k": [len(seen)]}))

    lab.store.checkpoint()
    lab.tick()
    while job.step_local(refresh) is not None:
        pass
    assert seen == [clone.moments[max(clone.moments)].read()]


@pytest.mark.medium
@pytest.mark.rule("1.22", "7.9")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_families_of_altered_clones(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    family = [AlteredTable(lab.store, changelog=rng.choice(["upsert", "full"]))]
    for turn in range(40):
        member = rng.choice(family)
        member.upsert(random_rows(rng, member.columns, 3, 4))
        action = rng.random()
        if action < 0.35:
            change = random_alter(rng, member)
            if change is not None:
                member.alter(**change)
        elif action < 0.5 and len(family) < 5:
            readable = [epoch for epoch, _ in member.readable()]
            family.append(member.clone(f"c{turn}", rng.choice(readable)))
        elif action < 0.6 and member.rows:
            member.delete(rng.sample(sorted(member.rows), 1))
        elif action < 0.7:
            member.restore(rng.choice([epoch for epoch, _ in member.readable()]))
        elif action < 0.9:
            lab.store.compact(member.name, full=rng.random() < 0.5)
        elif len(family) > 3:
            family.remove(member)
            lab.store.drop_table(member.name)
            clear_away(lab)
        lab.tick(0.1)
        if turn % 10 == 9:
            for each in family:
                each.check()


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def the_present_columns(patch: pytest.MonkeyPatch) -> None:
    def schema(source: TableDef, name: str, at: int, begin: int) -> TableSchema:
        lineage = tuple(replace(version, name=name) for version in source.schema.lineage)
        return replace(source.schema, name=name).with_lineage(lineage)

    patch.setattr(clone_module, "schema_of_clone", schema)


def no_later_versions(patch: pytest.MonkeyPatch) -> None:
    """The clone knows the versions up to its epoch only, and files may be of later ones."""

    def schema(source: TableDef, name: str, at: int, begin: int) -> TableSchema:
        lineage = tuple(replace(v, name=name) for v in source.schema.lineage if v.version <= at)
        return replace(lineage[-1], name=name).with_lineage(lineage)

    patch.setattr(clone_module, "schema_of_clone", schema)


@pytest.mark.planted
@pytest.mark.parametrize(
    "plant", [the_present_columns, pytest.param(no_later_versions, marks=pytest.mark.damages_store)]
)
def test_a_clone_with_other_versions_is_found(
    lab: Lab, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError)):
        clone_before(lab, ALTERS["drop, then add of its name"], "after")


@pytest.mark.planted
def test_a_swap_that_is_taken_for_a_repetition_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SchemaChange.applied
    monkeypatch.setattr(SchemaChange, "applied", lambda self, schema, _, again: real(self, schema, 0, again=again))
    with pytest.raises(el.InvalidInput, match="already"):
        test_a_swap_of_the_source_is_no_repetition_on_the_clone(lab, True)


@pytest.mark.damages_store
def test_verify_finds_a_shared_file_without_a_column_of_the_clone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.store.compaction import subcompaction_rewriter

    monkeypatch.setattr(subcompaction_rewriter, "compaction_schema", lambda schema, _: schema)
    table = AlteredTable(lab.store)
    epoch = table.upsert([row(table, 1, a=1, b="x")])
    table.alter(drop=["a"])
    lab.store.compact("t", full=True)
    lab.store.clone("t", "copy", as_of=epoch)
    problems = [problem.what for problem in lab.store.verify().problems if problem.where == "table copy"]
    assert problems and all("lacks the columns [3]" in problem for problem in problems)
