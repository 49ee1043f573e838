"""Reads of changes without a hold, while another process replaces the files of the log by others with equal rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.changelog import change_reader, replanned
from epochlog.store.changelog import log_plan as log_plan_module
from lab import Lab, keys_of, table_of
from stand_in_packer import pack

ROWS = 8
"""Rows that are read at a time, and of a batch."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    small_units(monkeypatch)
    lab = Lab(tmp_path / "store")
    yield lab
    lab.store.close()


def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UNIT_ROWS", "SPLIT_ROWS"):
        monkeypatch.setattr(change_reader, name, ROWS)
    monkeypatch.setattr(log_plan_module, "BATCH_ROWS", ROWS // 2)


def filled(lab: Lab, **options: Any) -> el.Table:
    """Return a table with commits of all kinds: small, large, with several log epochs, of deletes, of nothing."""
    table = lab.root_table(**options)
    for turn in range(5):
        lab.put(dict.fromkeys(range(turn, turn + 3), (0, turn)))
        lab.put({})
    lab.put(dict.fromkeys(range(40), (0, 7)))
    table.delete(keys_of(dict.fromkeys(range(3, 30, 2), (0, 0))))
    start, writer, segments = lab.put({1: (0, 8)}), table.writer(), []
    for label in (start + 1, start + 2, start + 5):
        writer.upsert(table_of(dict.fromkeys(range(6), (0, label % 1000))))
        segments += writer.seal(label)
    lab.store.commit({"r": segments}, epoch=start + 5)
    lab.put(dict.fromkeys(range(12), (0, 9)))
    return table


def packed_while_read(lab: Lab, table: el.Table, packs: list[int], **options: Any) -> int:
    """Compare the changes with those of an undisturbed read; return the number of files deleted meanwhile. packs:
    numbers of the batches before which the log is packed.
    """
    expected = table.changes(options.pop("after", 0), **options).read_all()
    after = table.info.log_start_epoch
    batches, deleted = list[pa.RecordBatch](), 0
    reader = table.changes(after, **options)
    with lab.open() as packer:
        while True:
            if len(batches) in packs:
                deleted += pack(packer)
            try:
                batches.append(reader.read_next_batch())
            except StopIteration:
                break
    assert pa.Table.from_batches(batches, reader.schema).equals(expected.combine_chunks())
    return deleted


MODES = [
    {},
    {"mode": "net"},
    {"pre_images": True},
    {"mode": "net", "pre_images": True},
    {"columns": ["v"], "filter": pc.field("k") > 4},
]


@pytest.mark.rule("4.18")
@pytest.mark.medium
@pytest.mark.parametrize("changelog", ["upsert", "full"])
@pytest.mark.parametrize("options", MODES)
def test_changes_go_on_in_the_files_that_replaced_theirs(lab: Lab, options: dict[str, Any], changelog: Any) -> None:
    table = filled(lab, changelog=changelog)
    assert packed_while_read(lab, table, [1], **options) > 10
    assert packed_while_read(lab, table, list(range(0, 40, 7)), **options) > 10


@pytest.mark.rule("4.18")
@pytest.mark.medium
@pytest.mark.parametrize("seed", range(4))
def test_changes_are_the_same_whenever_the_log_is_packed(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    for options in rng.sample(MODES, 2):
        packs = rng.sample(range(30), 4)
        print(f"seed {seed}, packed before the batches {packs}")
        packed_while_read(lab, filled(lab), packs, **options)
        lab.store.drop_table("r")


def test_an_alter_ends_changes_that_were_planned_anew_where_it_did(lab: Lab) -> None:
    table = filled(lab)
    table.alter(add=[pa.field("c", pa.int8())])
    table.upsert([{"k": 1, "g": 0, "v": 1, "c": 1}])
    table.alter(rename={"v": "w"})
    altered = table.history(1)["epoch"][0].as_py()
    table.upsert([{"k": 2, "g": 0, "w": 2, "c": 1}])
    reader, batches = table.changes(0), list[pa.RecordBatch]()

    def read_on(packer: el.Store) -> None:
        while True:
            batches.append(reader.read_next_batch())
            pack(packer)

    with lab.open() as packer, pytest.raises(el.SchemaChanged) as changed:
        read_on(packer)
    assert changed.value.epoch == altered
    assert pa.Table.from_batches(batches).equals(table.changes(0, altered - 1).read_all().combine_chunks())


@pytest.mark.rule("4.18")
@pytest.mark.local_only
def test_a_log_that_was_truncated_meanwhile_ends_the_read(lab: Lab) -> None:
    table = filled(lab)
    reader = table.changes(0)
    reader.read_next_batch()
    table.truncate_log(table.info.max_committed_epoch)
    lab.store.compact("r", full=True)
    lab.tick()
    lab.store.vacuum(grace=0)
    with pytest.raises(el.SnapshotExpired):
        reader.read_all()


def whole_epochs(rows: Any, batch: pa.RecordBatch) -> Any:
    """Bug: the new plan begins at the last epoch, and skips nothing of it."""
    return replanned.Returned(rows.by_epoch, int(batch.column("_commit_version")[-1].as_py()), 0)


def past_the_epoch(rows: Any, batch: pa.RecordBatch) -> Any:
    """Bug: the new plan begins past the last epoch, of which more may be to come."""
    return replanned.Returned(rows.by_epoch, int(batch.column("_commit_version")[-1].as_py()) + 1, 0)


def all_rows(rows: Any, batch: pa.RecordBatch) -> Any:
    """Bug: the rows of all epochs are skipped in the last one."""
    return replanned.Returned(rows.by_epoch, int(batch.column("_commit_version")[-1].as_py()), rows.rows + len(batch))


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("bug", [whole_epochs, past_the_epoch, all_rows])
def test_the_comparison_of_packed_reads_is_not_blind(lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    monkeypatch.setattr(replanned.Returned, "and_batch", bug)
    with pytest.raises(AssertionError):
        packed_while_read(lab, filled(lab), list(range(0, 40, 7)))
