"""Mutants of the log and of the pre-images stored with it, and the histories that catch them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from epochlog.store.changelog import change_reader, change_rows, log_plan, pre_images
from epochlog.store.changelog.change_rows import ByKey, Touches
from epochlog.store.commit import preparation, root_commit, unchanged_rows
from epochlog.store.commit import transaction as commit_transaction
from epochlog.store.metadata.version import LogEntry
from epochlog.store.sst.merge import Rows
from faults.mutant import Mutant
from log_model import GONE, KEYS, SCHEMA, ChangelogPair, Label, keys_of, rows_of, tiny

NAN = float("nan")


def random_logs(base: Path) -> None:
    """Commits of several labels, compactions and truncations: every range, mode and form as the oracle has it."""
    for seed in range(4):
        one_log(base / str(seed), random.Random(seed), small=seed % 2 == 0)


def one_log(root: Path, dice: random.Random, *, small: bool) -> None:
    """small: all is read in many small pieces."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            tiny(patch)
        world = ChangelogPair(root)
        try:
            for number in range(5):
                world.commit([label(dice) for _ in range(dice.randint(1, 3))])
                if number == 2:
                    world.truncate(dice.choice(world.marks()[1:4]))
                if number == 3:
                    world.store.compact(full=True)
            world.check_all(most=18)
        finally:
            world.close()


def label(dice: random.Random) -> Label:
    return [(dice.randrange(KEYS), dice.choice([None, NAN, 1.0, 2.0, GONE])) for _ in range(dice.randint(1, 7))]


def a_race(base: Path) -> None:
    """Another commit lands when the old rows of one have been written."""
    world = ChangelogPair(base / "s")
    table, real, raced = world.table("full"), pre_images.write_images, []

    def write(*args: Any) -> Any:
        result = real(*args)
        if not raced:
            raced.append(True)
            table.upsert(rows_of([(1, 2.0)]))
            table.delete(keys_of([(2, GONE)]))
        return result

    try:
        start = table.upsert(rows_of([(1, 1.0), (2, 1.0)]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preparation, "write_images", write)
            table.upsert(rows_of([(1, 3.0), (2, 3.0)]))
        changes = table.changes(start, pre_images=True).read_all()
        rows = list(zip(*(changes[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))
        old, new = "update_preimage", "update_postimage"
        assert rows == [
            *[(old, 1, 1.0), (new, 1, 2.0), ("delete", 2, 1.0)],
            *[(old, 1, 2.0), (new, 1, 3.0), ("insert", 2, 3.0)],
        ]
    finally:
        world.close()


def an_alter(base: Path) -> None:
    """A table begins to store old rows when it has entries already."""
    world = ChangelogPair(base / "s")
    try:
        table = world.table("upsert")
        start = table.upsert(rows_of([(1, 1.0)]))
        table.upsert(rows_of([(1, 2.0)]))
        table.alter(changelog="full")
        table.upsert(rows_of([(1, 3.0)]))
        changes = table.changes(start, mode="net", pre_images=True).read_all()
        assert changes["v"].to_pylist() == [1.0, 3.0]
    finally:
        world.close()


def a_job_that_repeats_itself(base: Path) -> None:
    """Run a job that rewrites its rows with one change, and writes other rows in between."""
    world = ChangelogPair(base / "s")
    try:
        world.table("upsert").upsert(rows_of([(1, 1.0)]))
        job = world.store.create_job("j", ["upsert"], {"out": (SCHEMA.remove(2), ["k"])})
        out, before = world.store.table("out"), [(1, 0.0), (2, 2.0), (3, NAN)]
        for writes in ([before], [[(key, 9.0) for key in range(5)], [(1, -0.0), (2, 2.0), (3, NAN)]]):
            world.table("upsert").upsert(rows_of([(1, float(len(writes)))]))
            world.store.checkpoint()
            with pytest.MonkeyPatch.context() as patch:
                tiny(patch)  # a segment for each
                last = job.step_local(
                    lambda ctx, writes=writes: [ctx.upsert("out", rows_of(rows).drop(["s"])) for rows in writes]
                )
            assert last
        assert out.changes(last - 1, last).read_all()["k"].to_pylist() == [0, 1, 4]
    finally:
        world.close()


# ---- bugs ----------------------------------------------------------------------------------------------------------


def images_are_those_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the state that the commit makes."""
    real = pre_images.write_images

    def after(handle: Any, table: Any, before: Any, epochs: Sequence[Any], intent: str) -> Any:
        return real(handle, table, before.extended([segment for epoch in epochs for segment in epoch]), epochs, intent)

    monkeypatch.setattr(preparation, "write_images", after)


def images_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base of a change is looked at for an overwrite only."""
    real = root_commit.append_entry

    def append(tx: Any, table: Any, prepared: Any, *args: Any, **options: Any) -> Any:
        return real(tx, table, replace(prepared, base=None), *args, **options)

    monkeypatch.setattr(root_commit, "append_entry", append)


def labels_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """All segments of a commit become one log epoch."""
    real = commit_transaction.grouped

    def merged(segments: Any, epoch: int, labels: Any) -> Any:
        return {epoch: [segment for _, group in sorted(real(segments, epoch, labels).items()) for segment in group]}

    monkeypatch.setattr(commit_transaction, "grouped", merged)


def later_labels_do_not_see_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared with the state before the whole commit."""

    def replaced(touches: Touches, sorted_: ByKey, state: Rows) -> np.ndarray:
        return change_rows.lookup(state.keys, touches.keys)

    monkeypatch.setattr(pre_images, "replaced", replaced)


def an_earlier_delete_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_rows.replaced

    def overlooked(touches: Touches, *args: Any) -> np.ndarray:
        return real(replace(touches, deleted=np.zeros(len(touches), np.bool_)), *args)

    for module in (change_reader, pre_images):
        monkeypatch.setattr(module, "replaced", overlooked)


def net_keeps_the_last_image(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_reader.ChangeReader._stored_images

    def last(self: Any, unit: Any, epochs: Any, touches: Touches) -> Any:
        old, order = real(self, unit, epochs, touches), change_rows.by_key(touches)
        places = old.places.copy()
        places[order.oldest] = old.places[order.newest]
        return replace(old, places=places)

    monkeypatch.setattr(change_reader.ChangeReader, "_stored_images", last)


def net_keeps_the_first_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByKey, "newest", property(lambda sorted_: sorted_.order[sorted_.first]))


def unchanged_rows_are_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_rows.Pool, "differing", lambda pool, left, right, key: np.ones(len(left), np.bool_))


def nan_differs_from_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_rows.same_values

    def numbers(left: pa.Array, right: pa.Array) -> np.ndarray:
        same = real(left, right)
        if pa.types.is_floating(left.type):
            same &= ~np.isnan(left.to_numpy(zero_copy_only=False)) | np.asarray(left.is_null())
        return same

    monkeypatch.setattr(change_rows, "same_values", numbers)


def bounds_are_those_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label belongs to a range when its commit does."""
    real = log_plan.plan_changes

    def by_commit(view: Any, table: Any, after: int, until: int | None = None, **_: Any) -> Any:
        return real(view, table, after, until, by_commit=True)

    monkeypatch.setattr("epochlog.table.plan_changes", by_commit)


def next_epoch_knows_commits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LogEntry.from_record

    def without_labels(record: Any) -> LogEntry:
        entry = real(record)
        return replace(entry, groups=tuple(group for group in entry.groups if group.label == entry.epoch))

    def next_epoch(view: Any, table: Any, after: int) -> int | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogEntry, "from_record", without_labels)
            return log_plan.next_epoch(view, table, after)

    monkeypatch.setattr("epochlog.table.next_epoch", next_epoch)


def pieces_leave_the_first_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_reader.key_splits

    def later(*args: Any) -> Any:
        pieces = real(*args)
        return pieces[1:] if len(pieces) > 1 else pieces

    monkeypatch.setattr(change_reader, "key_splits", later)


def the_state_before_a_unit_is_that_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_plan.ScanPlan, "extended", lambda plan, segments: plan)


def old_rows_are_as_the_table_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's current setting, not each log entry, decides if old rows count as stored."""
    monkeypatch.setattr(log_plan, "_stores_images", lambda table, group: table.changelog == "full")


def what_is_written_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is not judged on what it comes to."""
    real = unchanged_rows.newest_wins
    monkeypatch.setattr(unchanged_rows, "newest_wins", lambda rows: real(rows[::-1]))


def zeros_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = change_rows.same_values

    def same(left: pa.Array, right: pa.Array) -> np.ndarray:
        return real(*(pc.add(side, 0.0) if pa.types.is_floating(side.type) else side for side in (left, right)))

    monkeypatch.setattr(change_rows, "same_values", same)


MUTANTS = [
    Mutant("old-rows-are-as-the-table-is-now", old_rows_are_as_the_table_is_now, an_alter),
    Mutant("what-a-job-writes-first-counts", what_is_written_first_counts, a_job_that_repeats_itself),
    Mutant("unchanged-rows-of-a-job-are-kept", unchanged_rows_are_changes, a_job_that_repeats_itself),
    Mutant("a-zero-is-another-zero", zeros_are_one, a_job_that_repeats_itself),
    Mutant("images-of-the-state-after", images_are_those_after, random_logs),
    Mutant("images-are-not-made-again-when-another-commit-landed", images_are_not_made_again, a_race),
    Mutant("labels-of-a-commit-are-merged", labels_are_merged, random_logs),
    Mutant("labels-of-a-commit-do-not-see-each-other", later_labels_do_not_see_earlier_ones, random_logs),
    Mutant("a-delete-within-the-range-is-overlooked", an_earlier_delete_is_overlooked, random_logs),
    Mutant("net-keeps-the-last-image", net_keeps_the_last_image, random_logs),
    Mutant("net-keeps-the-first-change", net_keeps_the_first_change, random_logs),
    Mutant("unchanged-rows-are-changes", unchanged_rows_are_changes, random_logs),
    Mutant("nan-differs-from-nan", nan_differs_from_nan, random_logs),
    Mutant("bounds-are-those-of-commits", bounds_are_those_of_commits, random_logs),
    Mutant("next_epoch-knows-commits-only", next_epoch_knows_commits_only, random_logs),
    Mutant("the-first-piece-of-a-long-range-is-left-out", pieces_leave_the_first_keys_out, random_logs),
    Mutant("old-rows-are-looked-up-before-all-epochs", the_state_before_a_unit_is_that_before_all, random_logs),
]
