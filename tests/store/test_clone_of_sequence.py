"""Clones of tables with a sequence: each refuses the late changes that its source would have refused at the epoch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from cdc import SCHEMA, CdcEvent, contents, deletes, events, upserts
from epochlog.store.commit import clone as clone_module
from epochlog.store.commit import kept_merge
from epochlog.store.metadata.kept_deletes import kept_deletes, kept_records
from epochlog.store.metadata.shared_files import list_shared
from epochlog.store.retention import retention
from epochlog.store.retention.retention import apply_retention
from lab import Lab

SHORT = el.TableOptions(
    history_retention=timedelta(seconds=20),
    log_retention=timedelta(seconds=20),
    tombstone_retention=timedelta(seconds=30.5),  # no whole number of ticks: no commit is at the end of a retention
)
Step = tuple[str, Any]


def write(lab: Lab, table: el.Table, batch: Sequence[CdcEvent]) -> int:
    """Commit events in the present columns of a table, rows and deletes together."""
    sequence = table.sequence_by
    assert sequence is not None
    writer = table.writer()
    writer.upsert(upserts(batch).rename_columns(["k", "v", sequence]))
    writer.delete(deletes(batch).rename_columns(["k", sequence]))
    return lab.store.commit({table.info.name: writer.seal(lab.store.last_epoch + 1)})


def rows_of(table: el.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_arrow().to_pylist()]


class History:
    """The table `t` of a lab, and the steps that were done to it. epochs: those of its commits, by number of step."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", options=SHORT)
        self.done: list[Step] = []
        self.epochs: dict[int, int] = {}

    def do(self, step: Step) -> None:
        kind, argument = step
        number = len(self.done)
        if kind == "restore":
            readable = self.readable()
            argument = readable[argument % len(readable)] if readable else None
            self.restore(argument)
        elif kind == "write":
            self.epochs[number] = write(self.lab, self.table, argument)
        elif kind == "rename":
            self.table.alter(rename={self.table.sequence_by or "": f"at{number}"})
            self.epochs[number] = self.lab.store.last_epoch
        elif kind == "tick":
            self.lab.tick(argument)
        elif kind == "tag":
            if self.epochs:
                self.lab.store.tag(f"tag{number}", ["t"], consistency="latest")
        elif kind == "upkeep":
            self.lab.store.compact("t", full=argument)
            apply_retention(self.table._handle, self.table._table)
            self.lab.store.vacuum(grace=0)
        self.done.append((kind, argument))

    def restore(self, number: int | None) -> None:
        """Restore the rows after an earlier step."""
        if number is not None:
            self.epochs[len(self.done)] = self.table.restore(self.epochs[number])

    def readable(self) -> list[int]:
        """Return the numbers of the commits whose epochs can be read."""
        tagged = {epoch for tag in self.lab.store.tags() for epoch in tag.epochs.values()}
        safe = self.table.info.safe_epoch
        return [number for number, epoch in self.epochs.items() if epoch >= safe or epoch in tagged]

    def replayed(self, lab: Lab, until: int) -> History:
        """Do the steps up to one again in another lab, without upkeep, and move its clock to this one's."""
        copy = History(lab)
        for kind, argument in self.done[: until + 1]:
            if kind == "restore":
                copy.restore(argument)
                copy.done.append((kind, argument))
            else:
                copy.do((kind if kind in ("write", "rename", "tick") else "none", argument))
        lab.now_ms = self.lab.now_ms
        return copy


BATCHES = st.lists(events(keys=4, sequences=8), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("write"), BATCHES),
    st.tuples(st.just("write"), BATCHES),
    st.tuples(st.just("tick"), st.sampled_from([1, 1, 5, 25])),
    st.tuples(st.just("upkeep"), st.booleans()),
    st.tuples(st.just("tag"), st.none()),
    st.tuples(st.just("rename"), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 9)),
)


def clone_and_replay(steps: Sequence[Step], chosen: int, late: Sequence[Sequence[CdcEvent]], dropped: bool) -> None:
    """Clone a table as of one of its epochs: from there on late changes do to the clone what they do to a table to
    which the same was done up to that epoch.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_merge, "MOST_FILES", 2)
        lab, other = Lab(Path(folder) / "s"), Lab(Path(folder) / "other")
        try:
            source = History(lab)
            for step in steps:
                source.do(step)
            readable = source.readable()
            if not readable:
                return
            number = readable[chosen % len(readable)]
            copy = source.replayed(other, number).table
            before = rows_of(source.table)
            clone = lab.store.clone("t", "c", as_of=source.epochs[number])
            assert rows_of(clone) == rows_of(copy)
            if dropped:
                lab.store.drop_table("t")
            for batch in late:
                write(lab, clone, batch)
                write(other, copy, batch)
                assert rows_of(clone) == rows_of(copy)
                lab.store.compact("c", full=True)
                lab.store.vacuum(grace=0)
                for each in (lab, other):
                    each.tick()
            assert dropped or rows_of(source.table) == before
            second = lab.store.clone("c", "second")
            for batch in late:
                write(lab, second, batch[::-1])
                write(lab, clone, batch[::-1])
            assert rows_of(second) == rows_of(clone)
            problems = lab.store.verify().problems
            assert problems == (), problems
        finally:
            lab.store.close()
            other.store.close()


@pytest.mark.medium
@pytest.mark.rule("1.20", "1.12")
@given(st.lists(STEPS, max_size=10), st.integers(0, 9), st.lists(BATCHES, min_size=1, max_size=3), st.booleans())
def test_late_changes_do_to_a_clone_what_they_do_to_its_source(
    steps: list[Step], chosen: int, late: list[list[CdcEvent]], dropped: bool
) -> None:
    clone_and_replay(steps, chosen, late, dropped)


# ---- the rules, one by one -------------------------------------------------------------------------------------------


@pytest.mark.rule("1.20")
def test_a_clone_has_the_kept_deletes_of_its_epoch_and_no_others(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at")
    write(lab, table, [CdcEvent(1, 5, deleted=True)])
    epoch = write(lab, table, [CdcEvent(2, 5), CdcEvent(3, 1)])
    write(lab, table, [CdcEvent(2, 9, deleted=True), CdcEvent(4, 9, deleted=True)])
    write(lab, table, [CdcEvent(1, 9)])
    lab.store.compact("t", full=True)
    clone = lab.store.clone("t", "c", as_of=epoch)
    assert clone.sequence_by == "at" and contents(clone) == {2: ("2@5", 5), 3: ("3@1", 1)}
    begin = lab.store.last_epoch
    write(lab, clone, [CdcEvent(1, 5), CdcEvent(2, 6), CdcEvent(4, 6)])
    assert contents(clone) == {2: ("2@6", 6), 3: ("3@1", 1), 4: ("4@6", 6)}
    clone.restore(begin)
    write(lab, clone, [CdcEvent(1, 4)])
    assert contents(clone) == {2: ("2@5", 5), 3: ("3@1", 1)}  # a restore to its begin brings its kept deletes back


@pytest.mark.rule("1.20", "1.12")
def test_a_kept_delete_ends_in_a_clone_when_it_ends_in_the_source(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", options=SHORT)
    epoch = write(lab, table, [CdcEvent(1, 5, deleted=True), CdcEvent(2, 5, deleted=True)])
    lab.tick(30)
    clone = lab.store.clone("t", "c")
    assert clone.info.max_committed_epoch > epoch
    for each in (table, clone):
        write(lab, each, [CdcEvent(1, 4)])
        assert contents(each) == {}
    lab.tick(1)
    for each in (table, clone):
        write(lab, each, [CdcEvent(2, 4)])
        assert contents(each) == {2: ("2@4", 4)}


def of_a_tag(lab: Lab) -> None:
    """Clone and restore a tagged epoch that the safe epoch has long passed: its kept deletes are still known."""
    options = el.TableOptions(history_retention=timedelta(seconds=5), log_retention=timedelta(seconds=5))
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", options=options)
    write(lab, table, [CdcEvent(1, 5, deleted=True), CdcEvent(2, 1)])
    lab.store.tag("q", ["t"], consistency="latest")
    for at in (6, 7, 8):
        lab.tick(10)
        write(lab, table, [CdcEvent(1, at), CdcEvent(2, at, deleted=True), CdcEvent(3, at, deleted=True)])
        lab.store.compact("t", full=True)
        apply_retention(table._handle, table._table)
        lab.store.vacuum(grace=0)
    (epoch,) = lab.store.tags()[0].epochs.values()
    assert table.info.safe_epoch > epoch
    clone = lab.store.clone("t", "c", as_of="q")
    table.restore(epoch)
    for each in (clone, table):
        write(lab, each, [CdcEvent(1, 4), CdcEvent(3, 4)])
        assert contents(each) == {2: ("2@1", 1), 3: ("3@4", 4)}
    assert lab.store.verify().ok


@pytest.mark.rule("1.14", "1.20", "3.19")
def test_a_clone_and_a_restore_of_a_tag_have_the_kept_deletes_of_its_epoch(lab: Lab) -> None:
    of_a_tag(lab)


@pytest.mark.rule("3.19")
def test_records_of_kept_deletes_go_with_the_tag_that_needs_them(lab: Lab) -> None:
    of_a_tag(lab)
    table = lab.store.table("t")

    def records() -> int:
        lab.tick(10)
        write(lab, table, [CdcEvent(9, lab.now_ms % 97)])
        apply_retention(table._handle, table._table)
        return len(table._handle.catalog.read(lambda view: list(kept_records(view, table._table.id))))

    lab.tick(100)
    assert records() == 2  # the tag's, and the newest
    lab.store.drop_tag("q")
    assert records() == 1


def files_of_both(lab: Lab) -> None:
    """Drop the source, merge the clone's kept deletes: each file goes with the last table that reaches it."""
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", options=SHORT)
    for k in range(4):
        write(lab, table, [CdcEvent(k, 5, deleted=True)])
    clone = lab.store.clone("t", "c")
    shared = {file.path for file in lab.store._handle.catalog.read(list_shared)}
    assert len(shared) == 4
    lab.store.drop_table("t")
    lab.now_ms += 3_600_000
    lab.store.vacuum(grace=0)
    assert lab.store.verify().ok
    lab.now_ms -= 3_600_000
    write(lab, clone, [CdcEvent(k, 4) for k in range(4)])
    assert contents(clone) == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_merge, "MOST_FILES", 2)
        write(lab, clone, [CdcEvent(5, 5, deleted=True)])
    (kept,) = lab.store._handle.catalog.read(lambda view: kept_deletes(view, clone._table.id))
    assert kept.segment.path not in shared
    lab.tick(100)
    write(lab, clone, [])
    apply_retention(clone._handle, clone._table)
    lab.now_ms += 3_600_000
    for _ in range(2):
        lab.store.vacuum(grace=0)
    left = {info.path for info in lab.store._handle.files.list(lab.store._handle.store_id)}
    assert not shared & left and lab.store.verify().ok
    assert not lab.store._handle.catalog.read(list_shared)


@pytest.mark.rule("1.21")
def test_files_of_kept_deletes_are_shared(lab: Lab) -> None:
    files_of_both(lab)


@pytest.mark.rule("1.21")
@pytest.mark.local_only
def test_the_catalog_is_restored_with_shared_kept_deletes(lab: Lab, tmp_path: Path) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at")
    write(lab, table, [CdcEvent(1, 5, deleted=True)])
    lab.store.clone("t", "c")
    lab.store.export_catalog(tmp_path / "dump")
    lab.store.drop_table("t")
    lab.store.vacuum()  # within its grace
    lab.store.close()
    shutil.rmtree(lab.root / "catalog")
    el.restore_catalog(str(lab.root), str(tmp_path / "dump"))
    lab.store = lab.open()
    for name in ("t", "c"):
        write(lab, lab.store.table(name), [CdcEvent(1, 4)])
        assert contents(lab.store.table(name)) == {}
    assert lab.store.verify().ok


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def nothing_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clone_module, "kept_deletes", lambda view, table_id, epoch: ())


def the_present_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clone_module, "kept_deletes", lambda view, table_id, epoch: kept_deletes(view, table_id))


def kept_anew(patch: pytest.MonkeyPatch) -> None:
    """The deletes of a source begin their retention again in its clone."""
    real = clone_module.put_kept
    patch.setattr(
        clone_module,
        "put_kept",
        lambda tx, table, epoch, files: real(tx, table, epoch, [replace(file, epoch=epoch) for file in files]),
    )


def tags_keep_no_deletes(patch: pytest.MonkeyPatch) -> None:
    real = retention.forgettable
    patch.setattr(
        retention,
        "forgettable",
        lambda view, table, version, limit: real(view, table, replace(version, kept=()), limit),
    )


def kept_files_are_not_shared(patch: pytest.MonkeyPatch) -> None:
    real = clone_module._paths
    patch.setattr(clone_module, "_paths", lambda runs, entries, kept: real(runs, entries, ()))


@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (nothing_kept, test_a_clone_has_the_kept_deletes_of_its_epoch_and_no_others),
        (the_present_deletes, test_a_clone_has_the_kept_deletes_of_its_epoch_and_no_others),
        (kept_anew, test_a_kept_delete_ends_in_a_clone_when_it_ends_in_the_source),
        (tags_keep_no_deletes, of_a_tag),
        pytest.param(kept_files_are_not_shared, files_of_both, marks=pytest.mark.damages_store),
    ],
)
def test_a_planted_bug_is_found(
    lab: Lab, plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[Lab], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError)):
        check(lab)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [nothing_kept, the_present_deletes])
def test_a_planted_bug_is_found_by_replay(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = [
        ("write", [CdcEvent(1, 5, deleted=True), CdcEvent(2, 3)]),
        ("rename", None),
        ("write", [CdcEvent(3, 7, deleted=True)]),
    ]
    late = [[CdcEvent(1, 4), CdcEvent(3, 5)]]
    clone_and_replay(steps, 1, late, dropped=False)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        clone_and_replay(steps, 1, late, dropped=False)
