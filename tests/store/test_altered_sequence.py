"""Altered tables with a sequence: late and reordered changes around alters give one table in any order of arrival."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from altered_sequence import ALTERS, AlteredSequence
from cdc import CdcEvent, events
from epochlog.store.commit import kept_merge
from epochlog.store.metadata.kept_deletes import kept_deletes, kept_records
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.scan import kept_lookup
from epochlog.store.types.schema import TableSchema
from lab import Lab

BATCHES = st.lists(events(keys=3, sequences=6), min_size=1, max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("write"), BATCHES),
    st.tuples(st.just("write"), BATCHES),
    st.tuples(st.just("open"), BATCHES),
    st.tuples(st.sampled_from(["commit", "compact", "reopen"]), st.none()),
    st.tuples(st.just("alter"), st.sampled_from(ALTERS)),
)
Steps = Sequence[tuple[str, Any]]


@contextmanager
def few_files() -> Iterator[None]:
    """Merge kept deletes as soon as there are two files of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_merge, "MOST_FILES", 2)
        yield


def play(steps: Steps, changelog: str = "upsert") -> AlteredSequence:
    with TemporaryDirectory() as folder:
        lab = Lab(Path(folder) / "s")
        try:
            model = AlteredSequence(lab.store, changelog)
            for act, argument in steps:
                if act == "compact":
                    lab.store.compact("t", full=True)
                elif act == "reopen":
                    lab.reopen()
                    model.store = lab.store
                else:
                    getattr(model, act)(*([] if argument is None else [argument]))
                lab.tick()
                model.check()
            model.check_all()
            return model
        finally:
            lab.store.close()


@pytest.mark.medium
@pytest.mark.rule("1.10", "1.12", "7.10")
@given(st.lists(STEPS, max_size=10), st.sampled_from(["upsert", "full"]), st.booleans())
def test_any_order_around_alters_gives_one_table(steps: Steps, changelog: str, merged: bool) -> None:
    if merged:
        with few_files():
            play(steps, changelog)
    else:
        play(steps, changelog)


@pytest.mark.medium
@pytest.mark.rule("1.10", "7.10")
def test_each_order_of_four_events_around_alters_gives_one_table() -> None:
    written = [CdcEvent(1, 3), CdcEvent(1, 4, deleted=True), CdcEvent(1, 2), CdcEvent(2, 5)]
    for order in itertools.permutations(written):
        first, second, third, fourth = ([event] for event in order)
        model = play(
            [("open", first), ("alter", "swap key and sequence"), ("write", second), ("alter", "widen"),
             ("alter", "add"), ("write", third), ("commit", None), ("alter", "rename sequence"), ("write", fourth)]
        )  # fmt: skip
        names = [model.name(id_) for id_ in (1, 2, 3)]
        assert [[row[name] for name in names] for row in model.rows()] == [[2, "2@5", 5]]


@pytest.mark.rule("7.6", "7.10")
def test_deletes_of_an_open_writer_land_after_a_drop_and_rows_do_not() -> None:
    changes = [CdcEvent(1, 5, deleted=True), CdcEvent(1, 4)]  # the row has lost to the delete before the alter
    for later in ([], [CdcEvent(2, 1)]):
        steps: Steps = [("alter", "add"), ("write", [CdcEvent(1, 3)]), ("open", changes + later), ("alter", "drop")]
        model = play([*steps, ("commit", None)])
        assert len(model.rows()) == len(later)  # refused with a row that has the dropped column


# ---- the rules, one by one -------------------------------------------------------------------------------------------


@pytest.mark.rule("7.10")
def test_the_sequence_is_renamed_and_nothing_else(lab: Lab) -> None:
    table = AlteredSequence(lab.store).table
    for change in (
        {"drop": ["at"]},
        {"widen": {"at": pa.decimal128(20, 0)}},
        {"widen": {"at": pa.int64()}, "drop": ["at"]},
    ):
        with pytest.raises(el.InvalidInput, match="the sequence can only be renamed|dropped, and renamed or widened"):
            table.alter(**change)  # pyright: ignore[reportArgumentType]
    table.alter(rename={"at": "changed"}, drop=["n"], add=[pa.field("m", pa.int8())])
    assert table.sequence_by == lab.store.table("t").sequence_by == "changed"
    assert table.schema.names == ["k", "v", "changed", "m"]
    assert not table.schema.field("changed").nullable
    with pytest.raises(el.SchemaMismatch):
        table.upsert([{"k": 1, "v": "a", "changed": None, "m": 1}])
    with pytest.raises(el.EpochlogError):
        table.delete([1])
    table.alter(rename={"changed": "at", "v": "changed"})
    assert (table.sequence_by, table.schema.names) == ("at", ["k", "changed", "at", "m"])


@pytest.mark.rule("7.10", "1.12")
@pytest.mark.parametrize("merged", [False, True])
def test_a_delete_of_before_an_alter_refuses_late_rows(lab: Lab, merged: bool) -> None:
    model = AlteredSequence(lab.store)
    model.write([CdcEvent(1, 5, deleted=True)])
    model.write([CdcEvent(2, 5, deleted=True)])
    model.alter("swap key and sequence")
    model.write([CdcEvent(3, 5, deleted=True)])
    model.alter("add")
    if merged:
        with few_files():
            model.write([CdcEvent(4, 5, deleted=True)])
        kept = lab.store._handle.catalog.read(lambda view: kept_deletes(view, model.table._table.id))
        assert [file.segment.schema_version for file in kept] == [model.table._table.schema.version]
    model.write([CdcEvent(k, 5) for k in (1, 2, 3)])
    assert model.table.count() == 0
    model.write([CdcEvent(k, 6) for k in (1, 2, 3)])
    assert model.table.count() == 3
    model.check_all()


@pytest.mark.rule("7.10", "1.14")
def test_a_restore_over_an_alter_restores_kept_deletes(lab: Lab) -> None:
    model = AlteredSequence(lab.store)
    model.write([CdcEvent(1, 5, deleted=True), CdcEvent(2, 1)])
    before = lab.store.last_epoch
    model.alter("swap key and sequence")
    model.write([CdcEvent(1, 6), CdcEvent(2, 7, deleted=True)])
    model.table.restore(before)
    rows = [{"at": 2, "v": "2@1", "k": 1, "n": 15}]
    assert model.table.to_arrow().to_pylist() == rows
    late = pa.Table.from_pylist([{"at": 1, "v": "late", "k": 5, "n": 1}], model.table.schema)
    model.table.upsert(late)
    assert model.table.to_arrow().to_pylist() == rows  # the delete of before refuses it
    assert lab.store.verify().ok


@pytest.mark.rule("7.10", "1.13")
def test_an_alter_that_lands_before_the_transaction_is_no_loss(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.store.commit import root_commit

    model = AlteredSequence(lab.store)
    model.write([CdcEvent(1, 5), CdcEvent(2, 5, deleted=True)])
    real = root_commit.prepare_root
    landing: list[Callable[[], object]] = [
        lambda: model.alter("swap key and sequence"),
        lambda: model.write([CdcEvent(3, 9)]),
        lambda: model.alter("add"),
    ]

    def prepared(*args: Any) -> Any:
        changes = real(*args)
        if landing:
            landing.pop(0)()
        return changes

    model.open([CdcEvent(1, 4), CdcEvent(2, 5), CdcEvent(3, 1), CdcEvent(4, 2, deleted=True)])
    pending = model.pending[-1]
    monkeypatch.setattr(root_commit, "prepare_root", prepared)
    model.commit()
    monkeypatch.undo()
    assert pending.changes and not landing
    model.check_all()
    model.write([CdcEvent(4, 2)])
    model.check_all()


@pytest.mark.rule("7.10")
@pytest.mark.local_only
def test_the_catalog_is_restored_with_kept_deletes_of_several_versions(lab: Lab, tmp_path: Path) -> None:
    model = AlteredSequence(lab.store)
    model.write([CdcEvent(1, 5, deleted=True), CdcEvent(2, 1)])
    model.alter("swap key and sequence")
    model.write([CdcEvent(3, 5, deleted=True)])
    lab.store.export_catalog(tmp_path / "dump")
    lab.store.close()
    shutil.rmtree(lab.root / "catalog")
    el.restore_catalog(str(lab.root), str(tmp_path / "dump"))
    lab.store = model.store = lab.open()
    model.write([CdcEvent(1, 4), CdcEvent(3, 4), CdcEvent(2, 2)])
    model.check_all()


@pytest.mark.damages_store
def test_verify_finds_a_kept_delete_of_an_unknown_version(lab: Lab) -> None:
    model = AlteredSequence(lab.store)
    model.write([CdcEvent(1, 5, deleted=True)])
    model.alter("add")
    handle, table_id = lab.store._handle, model.table._table.id

    def body(tx: Any) -> None:
        for key, files in list(kept_records(tx, table_id)):
            changed = [replace(file, segment=replace(file.segment, schema_version=7)) for file in files]
            tx.put(key, {"files": [file.to_record() for file in changed]})

    handle.catalog.transact(body)
    assert any("unknown version 7" in problem.what for problem in lab.store.verify().problems)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def kept_by_name(patch: pytest.MonkeyPatch) -> None:
    """Columns of kept deletes are found by their names."""

    def schema(table: TableSchema) -> TableSchema:
        fields = pa.schema([table.schema.field(name) for name in table.delete_columns])
        return TableSchema(table.name, fields, table.primary_key, table.sequence_by)

    patch.setattr(kept_lookup, "kept_schema", schema)
    patch.setattr(kept_merge, "kept_schema", schema)


def the_sequence_keeps_its_name(patch: pytest.MonkeyPatch) -> None:
    """The column that has the sequence's old name becomes the sequence."""
    real = SchemaChange._next

    def next_schema(self: SchemaChange, schema: TableSchema, lineage: Any) -> TableSchema:
        made = real(self, schema, lineage)
        return replace(made, sequence_by=schema.sequence_by) if schema.sequence_by in made.schema.names else made

    patch.setattr(SchemaChange, "_next", next_schema)


SWAPPED: Steps = [
    ("write", [CdcEvent(1, 5, deleted=True), CdcEvent(2, 1)]),
    ("compact", None),
    ("write", [CdcEvent(1, 4), CdcEvent(2, 1)]),
    ("alter", "swap key and sequence"),
    ("write", [CdcEvent(1, 4), CdcEvent(2, 1), CdcEvent(3, 1, deleted=True)]),
    ("write", [CdcEvent(2, 0), CdcEvent(3, 1)]),
]


@pytest.mark.planted
@pytest.mark.local_only  # one of them damages its store, whose folder goes with the test
@pytest.mark.parametrize("plant", [kept_by_name, the_sequence_keeps_its_name])
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    play(SWAPPED)
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError)):
        play(SWAPPED)
