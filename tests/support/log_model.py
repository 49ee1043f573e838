"""Model of a table's log: a small table in a store and as plain dicts, which give the expected log.

Keys are small ints. A value is None, NaN or a number; the ops of an epoch are (key, value) in order, with GONE for a
delete.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.changelog.log_plan import LogPlan, plan_changes
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions

NOW_MS = 1_767_225_600_000
GONE = "gone"
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.float64()), pa.field("s", pa.string())])
KEYS = 12
TINY = {
    "sst.segment.BATCH_ROWS": 2,
    "sst.sorted_run.ROW_GROUP_ROWS": 2,
    "compaction.rewriter.PART_ROWS": 3,
    "sst.segment_writer.FLUSH_ROWS": 5,
    "changelog.log_plan.BATCH_ROWS": 3,
    "changelog.change_reader.UNIT_ROWS": 3,
    "changelog.change_reader.SPLIT_ROWS": 4,
    "changelog.pre_images.SPLIT_ROWS": 3,
    "scan.key_ranges.ROW_BYTES": 1 << 20,  # all rows count as ordinary ones, however small the files
    "scan.key_ranges._SAMPLED_KEYS": 2,
    "scan.key_ranges._ENOUGH_BLOCKS": 3,
    "compaction.packing.LEAST_COMMITS": 2,
    "compaction.packing.MOST_COMMITS": 3,
    "compaction.packing.MERGED": 2,
}
"""Sizes at which a few rows cross every boundary there is."""

Op = tuple[int, Any]
Label = list[Op]
State = dict[int, Any]
Change = tuple[str, int, int, Any]
"""Type, log epoch, key, value."""


def tiny(patch: pytest.MonkeyPatch) -> None:
    for name, size in TINY.items():
        patch.setattr(f"epochlog.store.{name}", size)


@dataclass
class LogModel:
    """One table's log as plain values."""

    groups: list[tuple[int, Label]] = field(default_factory=list)  # (log epoch, its net changes), oldest first
    entries: list[int] = field(default_factory=list)
    mark: int = 0

    def state(self, after: int) -> State:
        """Compute the state that all log epochs at or below `after` make."""
        state: State = {}
        for label, ops in self.groups:
            if label <= after:
                for key, value in ops:
                    state.pop(key, None)
                    if value is not GONE:
                        state[key] = value
        return state

    def commit(self, epoch: int, labels: Iterable[tuple[int, Label]]) -> None:
        self.entries.append(epoch)
        self.groups += [(label, sorted(dict(ops).items())) for label, ops in labels if ops]

    def next_epoch(self, after: int) -> int | None:
        return min((at for at in (*self.entries, *(at for at, _ in self.groups)) if at > after), default=None)

    def changes(self, after: int, until: int, mode: str, images: bool, low: int, high: int) -> list[Change]:
        groups = [(at, ops) for at, ops in self.groups if after < at <= until]
        if mode == "net":
            newest = {key: (at, value) for at, ops in groups for key, value in ops}
            return _shown(self.state(after), [(key, *newest[key]) for key in sorted(newest)], images, low, high)
        changes: list[Change] = []
        for at, ops in groups:
            changes += _shown(self.state(at - 1), [(key, at, value) for key, value in ops], images, low, high)
        return changes


def _shown(state: State, touches: Sequence[tuple[int, int, Any]], images: bool, low: int, high: int) -> list[Change]:
    changes: list[Change] = []
    for key, at, value in touches:
        if not low <= key < high:
            continue
        deleted, exists = value is GONE, key in state
        if not images:
            changes.append(("delete" if deleted else "upsert", at, key, None if deleted else value))
        elif deleted and exists:
            changes.append(("delete", at, key, state[key]))
        elif not deleted and not exists:
            changes.append(("insert", at, key, value))
        elif not deleted and _plain(state[key]) != _plain(value):
            changes += [("update_preimage", at, key, state[key]), ("update_postimage", at, key, value)]
    return changes


def _plain(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def rows_of(ops: Sequence[Op]) -> pa.Table:
    values = [value for _, value in ops]
    return pa.table([[key for key, _ in ops], values, [_word(value) for value in values]], schema=SCHEMA)


def keys_of(ops: Sequence[Op]) -> pa.Table:
    return pa.table({"k": pa.array([key for key, _ in ops], pa.int64())})


def _word(value: Any) -> str | None:
    return None if value is None else f"w{_plain(value)}"


class ChangelogPair:
    """Store with two tables, one of each changelog, that receive equal commits."""

    NAMES = ("upsert", "full")

    def __init__(self, root: Path, options: el.TableOptions | None = None) -> None:
        self.root, self.now_ms, self.model = root, NOW_MS, LogModel()
        self.store = self.opened()
        for name in self.NAMES:
            self.store.create_table(name, SCHEMA, ["k"], changelog=name, options=options)

    def opened(self) -> el.Store:
        return el.open(self.root, durability="os", clock=lambda: self.now_ms)

    def table(self, name: str) -> el.Table:
        return self.store.table(name)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    def close(self) -> None:
        self.store.close()

    # ---- writing -------------------------------------------------------------------------------------------------

    def commit(self, labels: Sequence[Label], *, sealed: bool = True) -> int:
        """One commit of all these log epochs, the last of which is the commit's own; of both tables at once."""
        start = max(self.store.last_epoch, from_unix_ms(self.now_ms)) + 2
        epochs = [start + 3 * place for place in range(len(labels))] or [start]
        if sealed:
            segments = {name: self._sealed(name, list(zip(epochs, labels, strict=False))) for name in self.NAMES}
            at = self.store.commit(segments, epoch=epochs[-1])
        else:
            with self.store.transaction() as tx:
                for name in self.NAMES:
                    _fill(
                        labels[-1],
                        lambda rows, name=name: tx.upsert(name, rows),
                        lambda k, name=name: tx.delete(name, k),
                    )
            at = tx.epoch
            epochs = [at]
        self.model.commit(at, list(zip(epochs, labels[-len(epochs) :], strict=False)))
        return at

    def _sealed(self, name: str, labels: Sequence[tuple[int, Label]]) -> list[el.Segment]:
        writer, segments = self.table(name).writer(), []
        for label, ops in labels:
            _fill(ops, writer.upsert, writer.delete)
            segments += writer.seal(label)
        return segments

    def truncate(self, before: int) -> None:
        for name in self.NAMES:
            self.table(name).truncate_log(before)
        self.model.mark = max(self.model.mark, before)

    # ---- looking -------------------------------------------------------------------------------------------------

    def marks(self) -> list[int]:
        """All bounds between which anything differs."""
        epochs = {0, self.model.mark, *self.model.entries, *(at for at, _ in self.model.groups)}
        return sorted({max(at + by, 0) for at in epochs for by in (-1, 0)})

    def check(
        self, name: str, after: int, until: int, mode: str, *, images: bool, low: int = 0, high: int = KEYS
    ) -> None:
        part = None if (low, high) == (0, KEYS) else (pc.field("k") >= low) & (pc.field("k") < high)

        def ask() -> pa.RecordBatchReader:
            return self.table(name).changes(after, until, mode=mode, pre_images=images, filter=part)

        read_range = f"{name} ({after}, {until}] {mode}, images {images}, keys {low} to {high}"
        if after < self.model.mark:
            with pytest.raises(el.LogTruncated):
                ask()
        elif images and name == "upsert" and 0 < after < self.table(name).info.safe_epoch:
            with pytest.raises(el.EpochExpired):
                ask()
        else:
            wanted = self.model.changes(after, until, mode, images, low, high)
            assert plain(ask().read_all()) == [(*row[:3], _plain(row[3])) for row in wanted], read_range
            if part is not None:
                plan = self.plan(name, after, until)
                batches = plan.batches(
                    self.store._handle.files,
                    mode,
                    pre_images=images,
                    options=ReadOptions(None, None, KeyRange(low, high)),
                )
                cut = pa.Table.from_batches(list(batches), plan.schema())
                assert plain(cut) == [(*row[:3], _plain(row[3])) for row in wanted], f"a piece of {read_range}"

    def plan(self, name: str, after: int, until: int) -> LogPlan:
        return self.store._handle.catalog.read(lambda view: plan_changes(view, find_table(view, name), after, until))

    def check_all(self, low: int = 3, high: int = 8, most: int = 40) -> None:
        """Every range (of many, some), mode and form, whole and in a range of keys; and every step of next_epoch."""
        ranges = list(combinations_with_replacement(self.marks(), 2))
        for after, until in ranges if len(ranges) <= most else random.Random(len(ranges)).sample(ranges, most):
            for name in self.NAMES:
                for mode in ("epochs", "net"):
                    for images in (False, True):
                        self.check(name, after, until, mode, images=images)
                        self.check(name, after, until, mode, images=images, low=low, high=high)
        for name in self.NAMES:
            for after in self.marks():
                if after >= self.model.mark:
                    assert self.table(name).next_epoch(after) == self.model.next_epoch(after), (name, after)
                else:
                    with pytest.raises(el.LogTruncated):
                        self.table(name).next_epoch(after)
            assert self.table(name).to_arrow()["k"].to_pylist() == sorted(self.model.state(1 << 62))


def _fill(ops: Sequence[Op], upsert: Callable[[Any], Any], delete: Callable[[Any], Any]) -> None:
    """In order: neighbouring writes are one call, and so are neighbouring deletes."""
    if not ops:
        upsert(rows_of([]))
    at = 0
    while at < len(ops):
        end = at
        while end < len(ops) and (ops[end][1] is GONE) == (ops[at][1] is GONE):
            end += 1
        delete(keys_of(ops[at:end])) if ops[at][1] is GONE else upsert(rows_of(ops[at:end]))
        at = end


def plain(changes: pa.Table) -> list[Change]:
    """Change rows as tuples; checks the columns that follow from others."""
    rows = changes.to_pylist()
    for row in rows:
        assert row["s"] == _word(row["v"]), row
        assert row["_commit_timestamp"].timestamp() * 1000 == to_unix_ms(row["_commit_version"])
    return [(row["_change_type"], row["_commit_version"], row["k"], _plain(row["v"])) for row in rows]
