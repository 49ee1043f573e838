"""Restore of a root table: one commit of the difference, exact whatever lands meanwhile."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.commit import difference, table_restore
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.segment_writer import SegmentWriter
from lab import KEY, SCHEMA, Lab, State, mirror

KEPT = el.TableOptions(history_retention=timedelta(days=1))
FIRST: State = {1: (0, 10), 2: (0, 20), 3: (0, 30)}


def changed(lab: Lab, table: el.Table) -> tuple[int, list[tuple[str, int, int]]]:
    """Put three rows, change one of each kind; return the epoch before the changes and the changes that undo them."""
    before = lab.put(FIRST)
    lab.put({2: (0, 21), 4: (0, 40)})
    table.delete([3])
    undone = [("update_preimage", 2, 21), ("update_postimage", 2, 20), ("insert", 3, 30), ("delete", 4, 40)]
    return before, undone


def changes(table: el.Table, after: int) -> list[tuple[str, int, int]]:
    rows = table.changes(after, pre_images=True).read_all()
    return list(zip(*(rows[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))


@pytest.mark.parametrize("changelog", ["upsert", "full"])
@pytest.mark.parametrize("log", ["whole", "truncated", "compacted"])
def test_a_restore_is_one_commit_of_the_difference(lab: Lab, changelog: str, log: str) -> None:
    table = lab.root_table(options=KEPT, changelog=changelog)
    before, undone = changed(lab, table)
    newest = lab.put()  # an entry without rows
    if log == "truncated":
        table.truncate_log(newest)
    elif log == "compacted":
        lab.store.compact("r", full=True)
    at = table.restore(before)
    assert lab.rows("r") == FIRST
    assert changes(table, newest) == undone
    assert lab.rows("r", newest) == {1: (0, 10), 2: (0, 21), 4: (0, 40)}
    assert table.history(1).select(["epoch", "operation", "rows_upserted", "rows_deleted"]).to_pylist() == [
        {"epoch": at, "operation": "restore", "rows_upserted": 2, "rows_deleted": 1}
    ]
    assert lab.store.verify().ok


def test_a_restore_of_the_rows_that_are_there_is_an_empty_commit(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    before = lab.put(FIRST)
    lab.put({1: (0, 11)})
    newest = lab.put({1: (0, 10)})
    table.restore(before)
    assert lab.entries("r")[-1][1] == 0
    assert not changes(table, newest)
    table.restore(0)
    assert lab.rows("r") == {}


@pytest.mark.rule("1.9")
@pytest.mark.parametrize("log", ["whole", "truncated"])
def test_commits_that_land_meanwhile_are_undone_too(lab: Lab, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try loses its race but the fourth. What lands changes keys that the restore writes, and keys that it does
    not.
    """
    table = lab.root_table(options=KEPT)
    before, _ = changed(lab, table)
    if log == "truncated":
        table.truncate_log(lab.put())
    landing: list[Any] = [
        lambda: lab.put({2: (0, 20), 1: (0, 11)}),  # one as the target has it, one that was equal
        lambda: table.delete([1, 3]),
        lambda: lab.put({4: (9, 9), 5: (0, 50), 3: (9, 9)}),
    ]
    with lab.open() as other:
        first = other.table("r")

        def land(_: str) -> None:
            if landing:
                landing.pop(0)()
                first.upsert(pa.table({"k": [6], "g": [0], "v": [len(landing)]}, schema=SCHEMA))

        monkeypatch.setattr(table_restore, "hit", land)
        table.restore(before)
    assert not landing
    assert lab.rows("r") == FIRST
    assert lab.store.verify().ok
    assert not lab.store.vacuum(grace=timedelta(0)).deleted


def test_a_commit_that_lands_meanwhile_decides_only_its_keys_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.root_table(options=KEPT)
    before = lab.put({k: (0, k) for k in range(1000)})
    lab.put({k: (1, k) for k in range(1000)})
    lookups: list[int] = []
    real = ScanPlan.rows_of

    def counted(self: ScanPlan, files: Any, keys: pa.Array, columns: Any) -> Any:
        lookups.append(len(keys))
        return real(self, files, keys, columns)

    monkeypatch.setattr(ScanPlan, "rows_of", counted)
    landing = [1]
    monkeypatch.setattr(table_restore, "hit", lambda _: lab.put({7: (2, 2)}) if landing and landing.pop() else None)
    table.restore(before)
    assert lookups[-2:] == [1, 1]
    assert lab.rows("r") == {k: (0, k) for k in range(1000)}


def test_views_follow_a_restore(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    job = lab.job("copy", ["r"])
    refresh = mirror("r", "copy_out")
    before, _ = changed(lab, table)
    lab.tick()
    job.step_local(refresh)
    table.restore(before)
    lab.tick()
    job.step_local(refresh)
    assert lab.rows("copy_out") == FIRST


@pytest.mark.rule("1.9")
def test_labels_below_the_epoch_of_a_later_commit_are_undone(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    lab.put(FIRST)
    writer, label = table.writer(), lab.store.last_epoch + 10
    writer.upsert(pa.table({"k": [7], "g": [0], "v": [7]}, schema=SCHEMA))
    segments = writer.seal(label)
    writer.upsert(pa.table({"k": [8], "g": [0], "v": [8]}, schema=SCHEMA))
    segments += writer.seal(label + 10)
    lab.store.commit({"r": segments}, epoch=label + 10)
    assert lab.rows("r", label) == FIRST
    table.restore(label)
    assert lab.rows("r") == FIRST


@pytest.mark.logs("table_restored")
def test_a_pair_restores_once(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    before, _ = changed(lab, table)
    at = table.restore(before, txn=("undo", 1))
    lab.put({9: (0, 9)})
    assert table.restore(before, txn=("undo", 1)) == at
    assert 9 in lab.rows("r")


def test_the_epoch_is_held_while_the_restore_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lab.root_table(options=el.TableOptions(history_retention=timedelta(seconds=5)))
    before, _ = changed(lab, table)

    def let_go(*_: object) -> None:
        lab.tick(10)
        lab.store.compact("r", full=True)
        lab.store.vacuum(grace=timedelta(0))

    real = table_restore.difference_of_keys
    monkeypatch.setattr(table_restore, "difference_of_keys", lambda *arguments: (let_go(), real(*arguments))[1])
    table.restore(before)
    assert lab.rows("r") == FIRST
    let_go()
    with pytest.raises(el.EpochExpired):
        table.restore(before)


def test_a_restore_to_a_time_and_to_a_tag(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    lab.put(FIRST)
    moment = datetime.fromtimestamp(lab.now_ms / 1000, UTC)
    lab.tick(5)
    lab.put({1: (0, 11), 5: (0, 50)})
    lab.store.tag("q", consistency="latest")
    second = lab.rows("r")
    lab.put({6: (0, 60)})
    table.restore(moment)
    assert lab.rows("r") == FIRST
    table.restore("q")
    assert lab.rows("r") == second
    lab.root_table("other")
    with pytest.raises(el.InvalidInput, match="the tag 'q' has no table 'other'"):
        lab.store.table("other").restore("q")


def test_what_cannot_be_restored_is_refused(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    before, _ = changed(lab, table)
    lab.job("copy", ["r"])
    for error, epoch in (
        (el.EpochNotCommitted, lab.store.last_epoch + 1),
        (el.InvalidInput, -1),
        (el.TagNotFound, "x"),
        (el.InvalidInput, 1.5),
    ):
        with pytest.raises(error):
            table.restore(epoch)  # type: ignore[arg-type]
    with pytest.raises(el.NotWritable, match="output of a job"):
        lab.store.table("copy_out").restore(before)
    table.finish()
    with pytest.raises(el.TableFinished):
        table.restore(before)


def test_rows_are_compared_bit_by_bit(lab: Lab) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("x", pa.float64())])
    table = lab.store.create_table("f", schema, KEY, options=KEPT)
    nan = float("nan")
    before = table.upsert(pa.table({"k": [1, 2, 3, 4], "x": [0.0, nan, None, 1.0]}, schema=schema))
    table.upsert(pa.table({"k": [1, 2, 3, 4], "x": [-0.0, nan, nan, 1.0]}, schema=schema))
    table.restore(before)
    assert table.history(1)["rows_upserted"].to_pylist() == [2]
    assert str(table.to_arrow()["x"].to_pylist()) == "[0.0, nan, None, 1.0]"


@pytest.mark.rule("1.9")
@pytest.mark.parametrize("pieces", [1, 7])
def test_random_histories_are_restored(lab: Lab, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(difference, "BATCH_ROWS", pieces)
    table = lab.root_table(options=KEPT)
    states: list[tuple[int, State]] = []
    for _ in range(60):
        kind = chance.choice(["put", "put", "delete", "restore", "compact", "truncate"])
        keys = chance.sample(range(12), chance.randint(1, 6))
        if kind == "put":
            lab.put({k: (chance.randint(0, 1), chance.randint(0, 2)) for k in keys})
        elif kind == "delete":
            table.delete(keys)
        elif kind == "restore" and states:
            epoch, state = chance.choice(states)
            table.restore(epoch)
            assert lab.rows("r") == state
        elif kind == "compact":
            lab.store.compact("r", full=chance.random() < 0.5)
        elif kind == "truncate" and states:
            table.truncate_log(table.info.max_committed_epoch)
        states.append((lab.store.last_epoch, lab.rows("r")))
    for epoch, state in states[1:]:
        assert lab.rows("r", epoch) == state
    assert lab.store.verify().ok


# ---- planted bugs ----------------------------------------------------------------------------------------------------


class WithoutDeletes(SegmentWriter):
    """Writer that writes no deletes."""

    def delete(self, keys: object) -> None:
        """Leave the rows that have come since where they are."""


def later_rows_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(difference, "SegmentWriter", WithoutDeletes)


def a_lost_race_decides_nothing_again(patch: pytest.MonkeyPatch) -> None:
    real = table_restore.difference_of_keys
    tries: list[int] = []
    patch.setattr(
        table_restore,
        "difference_of_keys",
        lambda *arguments: [] if tries.append(1) or len(tries) > 1 else real(*arguments),
    )


def zeros_are_equal(patch: pytest.MonkeyPatch) -> None:
    def same_values(old: pa.Table, new: pa.Table) -> Any:
        columns = [pc.fill_null(pc.equal(old[name], new[name]), False) for name in old.column_names]
        return reduce(pc.and_, columns).to_numpy()

    patch.setattr(difference, "same_rows", same_values)


PLANTED = [
    (later_rows_stay, lambda lab, _: test_a_restore_to_a_time_and_to_a_tag(lab)),
    (
        a_lost_race_decides_nothing_again,
        lambda lab, patch: test_commits_that_land_meanwhile_are_undone_too(lab, "whole", patch),
    ),
    (zeros_are_equal, lambda lab, _: test_rows_are_compared_bit_by_bit(lab)),
]


@pytest.mark.planted
@pytest.mark.parametrize(("plant", "case"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(plant: Any, case: Any, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        case(lab, monkeypatch)
