"""A store against a dict per commit: random histories of everything that users do to root tables, with tiny files.

The sizes at which files are cut into blocks, parts and batches are made a few rows: small data crosses all of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import epochlog as el
from epochlog.store.compaction.executor import compact_table
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms
from model.tables import SHAPES, ModelTable, Op, Row, Shape, key_order, plain, rows_of

RETENTIONS_MS = [(0, 0), (0, 86_400_000), (10, 1000), (1000, 10), (1000, 86_400_000), (3_600_000, 86_400_000)]
"""Of a table's states, and of its log."""
START_MS = 1_767_225_600_000
SKEW_MS = 10_000
MOST_LEAD_MS = 3_600_000
TINY = {
    "epochlog.store.sst.segment.BATCH_ROWS": 3,
    "epochlog.store.sst.sorted_run.ROW_GROUP_ROWS": 3,
    "epochlog.store.compaction.rewriter.PART_ROWS": 5,
    "epochlog.store.compaction.subcompactions.SUBCOMPACTION_ROWS": 6,
    "epochlog.store.scan.scan_plan.BATCH_ROWS": 4,
    "epochlog.store.scan.scan_plan.READ_BYTES": 100,
    "epochlog.store.changelog.log_plan.BATCH_ROWS": 3,
    "epochlog.store.changelog.change_reader.UNIT_ROWS": 3,
    "epochlog.store.changelog.change_reader.SPLIT_ROWS": 4,
    "epochlog.store.scan.key_ranges.ROW_BYTES": 1 << 20,  # all rows count as ordinary ones, however small the files
    "epochlog.store.scan.key_ranges._SAMPLED_KEYS": 2,
    "epochlog.store.changelog.pre_images.SPLIT_ROWS": 3,
    "epochlog.store.sst.merge.SPLIT_ROWS": 3,
    "epochlog.store.sst.merge._MIN_CHUNK_ROWS": 1,
    "epochlog.store.sst.segment_writer.FLUSH_ROWS": 6,
}


@dataclass
class Sealed:
    """Segments of several tables, sealed at some labels and not committed yet."""

    segments: dict[str, list[el.Segment]] = field(default_factory=dict)
    calls: dict[str, list[tuple[int, list[list[Op]]]]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)

    def labels(self) -> list[int]:
        return sorted({segment.label for group in self.segments.values() for segment in group if segment.label})


def rows_for(shape: Shape) -> st.SearchStrategy[Row]:
    return st.tuples(*(st.sampled_from(shape.values[name]) for name in shape.names))


def ops_for(shape: Shape, most: int = 8) -> st.SearchStrategy[Op]:
    rows = st.lists(rows_for(shape), min_size=0, max_size=most).map(tuple)
    return st.builds(Op, st.sampled_from([False, False, True]), rows)


class StoreMachine(RuleBasedStateMachine):
    """One open store with a table of each shape, and the model beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name in TINY:  # a module that is first imported now would keep the tiny value of another one for good
            import_module(name.rpartition(".")[0])
        for name, size in TINY.items():
            self.patch.setattr(name, size)
        self.root = tempfile.mkdtemp(prefix="store-machine-")
        self.now = START_MS
        self.last_epoch = 0
        self.tables: dict[str, ModelTable] = {}
        self.handles: dict[str, el.Table] = {}
        self.sealed: list[Sealed] = []
        self.pins: list[tuple[el.Snapshot, dict[str, tuple[ModelTable, int, list[Row]]]]] = []
        self.tags: dict[str, tuple[int | None, dict[str, tuple[ModelTable, int]]]] = {}
        self.outcomes: dict[int, tuple[int | None, list[str], dict[str, ModelTable]]] = {}
        self.store = self.opened()

    def opened(self) -> el.Store:
        return el.open(self.root, durability="os", clock=lambda: self.now)

    # ---- set-up and end ------------------------------------------------------------------------------------------

    @initialize(data=st.data())
    def make_tables(self, data: st.DataObject) -> None:
        for name in SHAPES:
            self.make(data, name)

    def make(self, data: st.DataObject, name: str) -> None:
        retention_ms, log_retention_ms = data.draw(st.sampled_from(RETENTIONS_MS))
        compact_segments, full = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.booleans())
        shape = SHAPES[name]
        options = el.TableOptions(
            history_retention=timedelta(milliseconds=retention_ms),
            log_retention=timedelta(milliseconds=log_retention_ms),
            compact_segments=compact_segments,
        )
        changelog = "full" if full else "upsert"
        self.handles[name] = self.store.create_table(
            name, shape.schema, list(shape.key), changelog=changelog, options=options
        )
        created = from_unix_ms(self.now)
        if self.last_epoch:  # an epoch is issued for it
            self.last_epoch = created = max(self.last_epoch + 1, created)
        self.tables[name] = ModelTable(
            name,
            shape,
            retention_ms,
            compact_segments,
            TINY["epochlog.store.sst.segment_writer.FLUSH_ROWS"],
            full=full,
            log_retention_ms=log_retention_ms,
            created=created,
        )

    def issue(self, epoch: int) -> None:
        """Move the store's newest epoch; all tables are there at the first one."""
        if not self.last_epoch:
            for model in self.tables.values():
                model.created = min(model.created, epoch)
        self.last_epoch = epoch

    def begin(self, model: ModelTable) -> int:
        """The lowest epoch at which the table can be read; 0 while the store has none."""
        return model.created if self.last_epoch else 0

    def teardown(self) -> None:
        try:
            if self.tables:
                self.check_everything()
        finally:
            self.store.close()
            self.patch.undo()
            shutil.rmtree(self.root, ignore_errors=True)

    def check_everything(self) -> None:
        self.check_files()
        for name, model in self.tables.items():
            for images in (False, True):
                self.check_changes(name, model.log_start, None, "epochs", images, None)
            for after in {group.label for group in model.groups if group.label >= model.log_start}:
                self.check_changes(name, after, None, "net", True, None)
            self.check_read(name, max(model.safe_epoch, self.begin(model)))
            for epoch in model.kept:
                self.check_read(name, epoch)
            history = self.handles[name].history().to_pylist()
            assert [
                (row["epoch"], row["operation"], row["rows_upserted"], row["rows_deleted"], row["segments"])
                for row in history
            ] == [(e.epoch, e.operation, e.upserted, e.deleted, e.segments) for e in reversed(model.entries)][
                : len(history)
            ]
            assert len(history) >= sum(entry.epoch >= model.memory for entry in model.entries)
        report = self.store.verify()
        assert report.ok, report.problems

    def check_files(self) -> None:
        """Every live epoch, every snapshot and every log as the model has them."""
        for name, model in self.tables.items():
            for epoch, _ in model.states:
                self.check_read(name, epoch)
            self.check_changes(name, model.log_start, None, "epochs", False, None)
        for snapshot, pinned in self.pins:
            for name, (_, _, rows) in pinned.items():
                assert rows_of(snapshot[name].to_arrow()) == rows

    # ---- commits -------------------------------------------------------------------------------------------------

    def expect_epoch(self, labels: int = 0) -> int:
        """The epoch of a commit that is given none."""
        return max(from_unix_ms(self.now), self.last_epoch + 1) + max(labels - 1, 0)

    def newest_explicit(self) -> int:
        """The largest epoch that may be given."""
        return max(from_unix_ms(self.now + SKEW_MS), self.last_epoch + (1 << 12))

    def explicit(self, ahead: int) -> tuple[int, type[Exception] | None]:
        """An epoch that is `ahead` of what the store gives out next (or behind), and the error that it meets."""
        epoch = max(max(from_unix_ms(self.now), self.last_epoch + 1) + ahead, 1)
        if epoch <= self.last_epoch:
            return epoch, el.EpochRegressed
        return epoch, None if epoch <= self.newest_explicit() else el.ClockSkew

    def open_tables(self) -> list[str]:
        return [name for name, model in self.tables.items() if not model.finished]

    @precondition(lambda self: self.open_tables())
    @rule(
        data=st.data(), ahead=st.none() | st.integers(-3, 5000) | st.just(60 << 24), txn=st.none() | st.integers(0, 40)
    )
    def write(self, data: st.DataObject, ahead: int | None, txn: int | None) -> None:
        name = data.draw(st.sampled_from(self.open_tables()))
        model, table = self.tables[name], self.handles[name]
        op = data.draw(ops_for(model.shape))
        epoch, refused = (None, None) if ahead is None else self.explicit(ahead)
        expected = epoch if ahead is not None else self.expect_epoch()
        pair = None if txn is None else ("writer", txn)
        if txn in self.outcomes:
            self.expect_replay(lambda: self.do(table, op, epoch, pair), txn, [name])
        elif refused is not None:
            files = self.files()
            with pytest.raises(refused):
                self.do(table, op, epoch, pair)
            assert self.files() == files
        else:
            assert self.do(table, op, epoch, pair) == expected
            assert expected is not None
            model.commit(expected, [(expected, [[op]])], "delete" if op.delete else "upsert")
            self.landed(expected, txn, [name])

    def do(self, table: el.Table, op: Op, epoch: int | None, txn: tuple[str, int] | None) -> int:
        shape = SHAPES[table.name]
        if op.delete:
            return table.delete(shape.keys(op.rows), epoch=epoch, txn=txn)
        return table.upsert(shape.table(op.rows), epoch=epoch, txn=txn)

    def landed(self, epoch: int, txn: int | None, names: Sequence[str]) -> None:
        self.issue(epoch)
        if txn is not None:
            self.outcomes[txn] = (epoch, sorted(names), {name: self.tables[name] for name in names})

    def expect_replay(self, commit: Any, txn: int | None, names: Sequence[str]) -> None:
        assert txn is not None
        epoch, tables, models = self.outcomes[txn]
        files = self.files()
        if epoch is None:
            with pytest.raises(el.TxnAborted):
                commit()
        elif tables != sorted(names) or any(self.tables[name] is not models[name] for name in names):
            with pytest.raises(el.TxnMismatch):
                commit()
        else:
            assert commit() == epoch
        assert self.files() == files

    def files(self) -> set[str]:
        report = self.store.verify()
        return set(report.unreachable) | {str(report.files), str(report.bytes)}

    @precondition(lambda self: self.open_tables())
    @rule(data=st.data(), txn=st.none() | st.integers(0, 40))
    def transaction(self, data: st.DataObject, txn: int | None) -> None:
        names = data.draw(st.lists(st.sampled_from(self.open_tables()), min_size=1, max_size=3))
        calls = [(name, data.draw(ops_for(SHAPES[name], 4))) for name in names]

        def commit() -> int:
            with self.store.transaction(None if txn is None else ("writer", txn)) as tx:
                for name, op in calls:
                    if op.delete:
                        tx.delete(name, SHAPES[name].keys(op.rows))
                    else:
                        tx.upsert(name, SHAPES[name].table(op.rows))
            return tx.epoch

        expected = self.expect_epoch()
        if txn in self.outcomes:
            self.expect_replay(commit, txn, list(set(names)))
        else:
            assert commit() == expected
            for name in set(names):
                ops = [op for table, op in calls if table == name]
                self.tables[name].commit(expected, [(expected, [ops])], "upsert")
            self.landed(expected, txn, list(set(names)))

    @rule(txn=st.integers(0, 40))
    def resolve(self, txn: int) -> None:
        epoch, _, _ = self.outcomes.setdefault(txn, (None, [], {}))
        assert self.store.resolve(("writer", txn)) == epoch

    @precondition(lambda self: self.open_tables())
    @rule(data=st.data(), steps=st.lists(st.integers(1, 3000), min_size=1, max_size=3))
    def seal(self, data: st.DataObject, steps: list[int]) -> None:
        names = data.draw(st.lists(st.sampled_from(self.open_tables()), min_size=1, max_size=2, unique=True))
        bundle = Sealed(ids={name: id(self.tables[name]) for name in names})
        for name in names:
            label, writers = self.last_epoch, [self.handles[name].writer() for _ in range(data.draw(st.integers(1, 2)))]
            bundle.segments[name], bundle.calls[name] = [], []
            for step in steps:
                label += step
                batches = []
                for writer in writers:
                    ops = data.draw(st.lists(ops_for(SHAPES[name], 4), max_size=2))
                    for op in ops:
                        writer.delete(SHAPES[name].keys(op.rows)) if op.delete else writer.upsert(
                            SHAPES[name].table(op.rows)
                        )
                    bundle.segments[name] += writer.seal(label)
                    batches.append(ops)
                bundle.calls[name].append((label, batches))
        self.sealed.append(bundle)

    @precondition(lambda self: self.sealed)
    @rule(data=st.data(), relabel=st.booleans())
    def commit_sealed(self, data: st.DataObject, relabel: bool) -> None:
        bundle = self.sealed.pop(data.draw(st.integers(0, len(self.sealed) - 1)))
        labels = bundle.labels()
        gone = [name for name, was in bundle.ids.items() if id(self.tables[name]) != was]
        if any(bundle.segments[name] for name in gone):
            with pytest.raises(el.SegmentUnknown):
                self.store.commit(bundle.segments)
        if gone:
            return
        if any(self.tables[name].finished for name in bundle.ids):
            with pytest.raises(el.TableFinished):
                self.store.commit(bundle.segments)
            return
        at: int | None
        if relabel:
            at, refused = self.expect_epoch(len(labels)), el.ClockSkew
        else:
            low = min([*labels, labels[-1] if labels else self.last_epoch + 1])
            at = labels[-1] if labels else self.last_epoch + 1
            refused = el.EpochRegressed if low <= self.last_epoch else el.ClockSkew
            if low <= self.last_epoch or at > self.newest_explicit():
                at = None
        epoch = None if relabel else (labels[-1] if labels else self.last_epoch + 1)
        if at is None:
            with pytest.raises(refused):
                self.store.commit(bundle.segments, epoch=epoch)
            self.sealed.append(bundle)  # a refused commit may be made again
            return
        assert self.store.commit(bundle.segments, epoch=epoch) == at
        first = at - max(len(labels) - 1, 0)
        given = {label: first + place if relabel else label for place, label in enumerate(labels)}
        for name, calls in bundle.calls.items():
            renamed = [(given[label], batches) for label, batches in calls if label in given]
            self.tables[name].commit(at, renamed, "upsert")
        self.landed(at, None, [])
        if labels:  # once only
            with pytest.raises(el.SegmentUnknown):
                self.store.commit(bundle.segments)

    @precondition(lambda self: len(self.open_tables()) > 1)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def finish(self, data: st.DataObject, chance: int) -> None:
        name, expected = data.draw(st.sampled_from(self.open_tables())), self.expect_epoch()
        if chance:
            return
        assert self.handles[name].finish() == expected
        self.tables[name].finish(expected)
        self.landed(expected, None, [])
        with pytest.raises(el.TableFinished):
            self.handles[name].upsert(SHAPES[name].table([]))

    @precondition(lambda self: self.open_tables())
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        name, expected = data.draw(st.sampled_from(self.open_tables())), self.expect_epoch()
        model, table = self.tables[name], self.handles[name]
        target = data.draw(st.sampled_from([at for at, _ in model.states] + [self.last_epoch]))
        if 0 < target < self.begin(model):
            error: type[Exception] | None = el.EpochNotCommitted
        elif not model.keeps(target):
            error = el.EpochExpired
        else:
            error = None
        if error is not None:
            files = self.files()
            with pytest.raises(error):
                table.restore(target)
            assert self.files() == files
            return
        assert table.restore(target) == expected
        model.restore(expected, target, table.history(1)["segments"][0].as_py())
        self.landed(expected, None, [])

    # ---- upkeep --------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, 7, 400, 1000, 5000, 30_000, 1_000_000, -1, -300, -4000, -20_000, -5_000_000]))
    def tick(self, ms: int) -> None:
        self.now += ms

    @rule()
    def checkpoint(self) -> None:
        at = max(from_unix_ms(self.now), self.last_epoch)
        assert self.store.checkpoint() == at
        self.issue(at)

    @rule(name=st.none() | st.sampled_from(sorted(SHAPES)), full=st.booleans())
    def compact(self, name: str | None, full: bool) -> None:
        models = list(self.tables.values()) if name is None else [self.tables[name]]
        self.store.compact(name, full=full)
        for model in models:
            self.expire(model)
            held, tagged = self.held(model), self.tagged(model)
            model.retain(self.past, held, tagged)
            least = 1 if full or name is not None else model.compact_segments
            model.compact(from_unix_ms(self.now - model.retention_ms), held, tagged, least=least)

    def expire(self, model: ModelTable) -> None:
        leads = self.last_epoch > from_unix_ms(self.now + MOST_LEAD_MS)
        rows, epoch = [] if leads else model.expired(), self.expect_epoch()
        if rows:
            model.commit(epoch, [(epoch, [[Op(True, tuple(rows))]])], "expire")
            self.landed(epoch, None, [])

    @rule(name=st.sampled_from(sorted(SHAPES)), l0_only=st.booleans(), budget=st.integers(0, 2))
    def compact_a_little(self, name: str, l0_only: bool, budget: int) -> None:
        """A slice of a compaction, left for the next one to take over; what can be read is as before."""
        if name not in self.handles:
            return
        handle, model = self.store._handle, self.tables[name]
        table = handle.catalog.read(lambda view: find_table(view, name))
        compact_table(handle, table, l0_only=l0_only, full=not l0_only, budget=budget)
        model.compact(self.past(model.retention_ms), self.held(model), self.tagged(model), least=None)

    @rule(rounds=st.integers(1, 3))
    def maintain(self, rounds: int) -> None:
        worker = Maintenance(self.store._handle)
        for number in range(rounds):
            worker.run_once()
            for model in self.tables.values():
                model.retain(self.past, self.held(model), self.tagged(model))
                if not number:
                    self.expire(model)
        assert not worker.errors

    @rule(grace=st.sampled_from([0, 0, 60, 900]), dry_run=st.booleans())
    def vacuum(self, grace: int, dry_run: bool) -> None:
        plan = self.store.vacuum(dry_run=True, grace=grace)
        if dry_run:
            return
        done = self.store.vacuum(grace=grace)
        assert replace(plan, dry_run=False) == done and not done.foreign
        self.check_files()
        kept_paths = {file.path for file in done.kept}
        assert set(self.store.verify().unreachable) == kept_paths
        if grace == 0 and not self.pins:
            ahead = {file.path for file in done.kept if (file.since_ms or 0) > self.now}  # the clock was put back
            assert all("being written" in file.reason for file in done.kept if file.path not in ahead)

    def past(self, ms: int) -> int:
        return from_unix_ms(self.now - ms)

    def held(self, model: ModelTable) -> list[int]:
        """The epochs at which open snapshots read that table."""
        pinned = [pins[model.name] for _, pins in self.pins if model.name in pins]
        return [epoch for table, epoch, _ in pinned if table is model]

    @rule(
        name=st.sampled_from(sorted(SHAPES)),
        full=st.none() | st.booleans(),
        retentions_ms=st.none() | st.sampled_from(RETENTIONS_MS),
        compact_segments=st.sampled_from([1, 2, 4]),
        expires=st.booleans(),
    )
    def alter(
        self,
        name: str,
        full: bool | None,
        retentions_ms: tuple[int, int] | None,
        compact_segments: int,
        expires: bool,
    ) -> None:
        """Other settings, from now on; what is there is as it was."""
        model, options = self.tables[name], None
        if retentions_ms is not None:
            states_ms, log_ms = retentions_ms
            options = el.TableOptions(
                history_retention=timedelta(milliseconds=states_ms),
                log_retention=timedelta(milliseconds=log_ms),
                compact_segments=compact_segments,
                **({"ttl": timedelta(days=1000), "ttl_column": "day"} if expires and name == "pairs" else {}),
            )
            model.ttl = options.ttl is not None
            model.retention_ms, model.log_retention_ms, model.compact_segments = states_ms, log_ms, compact_segments
        if full is not None:
            model.full = full
        if options is not None or full is not None:
            self.handles[name].alter(options=options, changelog={None: None, True: "full", False: "upsert"}[full])

    @rule(data=st.data(), name=st.sampled_from(sorted(SHAPES)))
    def truncate(self, data: st.DataObject, name: str) -> None:
        model = self.tables[name]
        before = data.draw(st.sampled_from([at + d for at, _ in model.states for d in (-1, 0, 1) if at + d >= 0]))
        if before > model.newest:
            with pytest.raises(el.InvalidInput):
                self.handles[name].truncate_log(before)
            return
        self.handles[name].truncate_log(before)
        model.log_start = max(model.log_start, before)

    @rule(data=st.data(), name=st.sampled_from(sorted(SHAPES)), chance=st.integers(0, 2))
    def drop(self, data: st.DataObject, name: str, chance: int) -> None:
        if chance:
            return
        old = self.handles[name]
        self.store.drop_table(name)
        with pytest.raises(el.TableNotFound):
            self.store.table(name)
        self.make(data, name)
        for call in (old.to_arrow, lambda: old.changes(0), lambda: old.next_epoch(0), old.finish, lambda: old.info):
            with pytest.raises(el.TableDropped):
                call()

    @rule(data=st.data(), name=st.sampled_from(sorted(SHAPES)), chance=st.integers(0, 1))
    def clone(self, data: st.DataObject, name: str, chance: int) -> None:
        """A table goes, and a clone of a clone of it takes its name; its readers stay."""
        if chance or not self.tables:
            return
        model = self.tables[name]
        readable = [at for at, _ in model.states if model.keeps(at) and at >= self.begin(model)]
        target = data.draw(st.sampled_from([None, *readable, *sorted(model.kept)]))
        at = model.newest if target is None else target
        begins = []
        for _ in range(2):
            self.issue(max(self.last_epoch + 1, from_unix_ms(self.now)))
            begins.append(self.last_epoch)
        self.store.clone(name, "spare", as_of=target)
        self.store.drop_table(name)
        self.handles[name] = self.store.clone("spare", name)
        self.store.drop_table("spare")
        middle = model.clone(at, begins[0])
        self.tables[name] = middle.clone(begins[0], begins[1])

    @rule()
    def reopen(self) -> None:
        self.drop_pins()
        self.store.close()
        self.store = self.opened()
        self.handles = {name: self.store.table(name) for name in self.handles}

    # ---- snapshots -----------------------------------------------------------------------------------------------

    @rule(policy=st.sampled_from(["latest", "aligned"]), names=st.sets(st.sampled_from(sorted(SHAPES)), min_size=1))
    def pin(self, policy: str, names: set[str]) -> None:
        snapshot = self.store.snapshot(sorted(names), consistency=policy)
        for name in names:
            model = self.tables[name]
            # before its first commit a table is empty from its making on
            newest = max(model.newest, self.begin(model))
            assert snapshot.epochs[name] == (newest if policy == "latest" else self.last_epoch)
        pinned = {n: (self.tables[n], snapshot.epochs[n], self.tables[n].rows(snapshot.epochs[n])) for n in names}
        self.pins.append((snapshot, pinned))

    @precondition(lambda self: self.pins)
    @rule(data=st.data(), close=st.booleans())
    def reread(self, data: st.DataObject, close: bool) -> None:
        place = data.draw(st.integers(0, len(self.pins) - 1))
        snapshot, pinned = self.pins[place]
        for name, (_, _, rows) in pinned.items():
            assert rows_of(snapshot[name].to_arrow()) == rows
            assert snapshot[name].count() == len(rows)
        if close:
            self.pins.pop(place)
            snapshot.close()
            with pytest.raises(el.SnapshotExpired):
                snapshot[next(iter(pinned))]

    def drop_pins(self) -> None:
        for snapshot, pinned in self.pins:
            for name, (_, _, rows) in pinned.items():
                assert rows_of(snapshot[name].to_arrow()) == rows
        self.pins = []

    # ---- tags ----------------------------------------------------------------------------------------------------

    def tagged(self, model: ModelTable) -> list[int]:
        """The epochs of that table at which there are tags now."""
        kept = [tables for until_ms, tables in self.tags.values() if until_ms is None or until_ms > self.now]
        return [epoch for tables in kept for table, epoch in tables.values() if table is model]

    @rule(
        name=st.sampled_from(["a", "2026-q3", "b"]),
        names=st.sets(st.sampled_from(sorted(SHAPES)), min_size=1),
        policy=st.sampled_from(["latest", "aligned"]),
        lasting=st.none() | st.sampled_from([5.0, 2000.0]),
    )
    def tag(self, name: str, names: set[str], policy: str, lasting: float | None) -> None:
        latest_ms = max(self.now, to_unix_ms(self.last_epoch))  # the clock may have been put back
        until_ms = None if lasting is None else latest_ms + round(lasting * 1000)
        taken = self.live_tag(name)
        with self.store.snapshot(sorted(names), consistency=policy) as snapshot:
            if taken and {table: epoch for table, (_, epoch) in taken.items()} != snapshot.epochs:
                with pytest.raises(el.InvalidInput):
                    snapshot.tag(name, lasting)
                return
            assert snapshot.tag(name, lasting).until_ms == until_ms
            self.tags[name] = until_ms, {table: (self.tables[table], at) for table, at in snapshot.epochs.items()}

    def live_tag(self, name: str) -> dict[str, tuple[ModelTable, int]]:
        """The tables that a tag has now, with their epochs."""
        until_ms, tables = self.tags.get(name, (0, {}))
        if until_ms is not None and until_ms <= self.now:
            return {}
        return {table: entry for table, entry in tables.items() if self.tables[table] is entry[0]}

    @precondition(lambda self: self.tags)
    @rule(data=st.data(), drop=st.booleans())
    def read_tag(self, data: st.DataObject, drop: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        tables = self.live_tag(name)
        if not tables:
            with pytest.raises(el.TagNotFound):
                self.store.snapshot(tag=name)
            with pytest.raises(el.TagNotFound):
                self.store.drop_tag(name)
            return
        if all(model.keeps(epoch) for model, epoch in tables.values()):
            snapshot = self.store.snapshot(tag=name)
            assert snapshot.epochs == {table: epoch for table, (_, epoch) in tables.items()}
            for table, (model, epoch) in tables.items():
                assert rows_of(snapshot[table].to_arrow()) == model.rows(epoch)
            if drop:
                self.pins.append((snapshot, {n: (m, at, m.rows(at)) for n, (m, at) in tables.items()}))
            else:
                snapshot.close()
        else:  # its time had passed when retention ran, and the clock was put back
            with pytest.raises(el.EpochExpired):
                self.store.snapshot(tag=name)
        if drop:
            self.store.drop_tag(name)
            del self.tags[name]

    # ---- questions -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(sorted(SHAPES)))
    def read(self, data: st.DataObject, name: str) -> None:
        model = self.tables[name]
        marks = sorted({at + d for at, _ in model.states for d in (-1, 0, 1)} | {self.last_epoch, self.last_epoch + 1})
        self.check_read(name, model.safe_epoch)
        self.check_read(name, data.draw(st.sampled_from([at for at in marks if at >= 0])))
        self.check_projection(data, name)

    def check_read(self, name: str, epoch: int) -> None:
        model, table = self.tables[name], self.handles[name]
        if epoch > self.last_epoch or 0 < epoch < self.begin(model):  # 0 is before all epochs
            with pytest.raises(el.EpochNotCommitted):
                table.to_arrow(epoch=epoch)
        elif not model.keeps(epoch):
            with pytest.raises(el.EpochExpired):
                table.to_arrow(epoch=epoch)
        else:
            rows = model.rows(epoch)
            assert rows_of(table.to_arrow(epoch=epoch)) == rows
            assert table.to_arrow(epoch=epoch).schema == model.shape.schema
            assert rows_of(table.scan(epoch=epoch).read_all()) == rows
            assert table.count(epoch) == len(rows)

    def check_projection(self, data: st.DataObject, name: str) -> None:
        """Columns, filter and get, at the newest or an older epoch, against the same applied to all rows."""
        model, table, shape = self.tables[name], self.handles[name], SHAPES[name]
        epoch = data.draw(
            st.sampled_from(
                [at for at, _ in model.states if at >= max(model.safe_epoch, self.begin(model))] + [self.last_epoch]
            )
        )
        columns = data.draw(st.none() | st.lists(st.sampled_from(shape.names), unique=True))
        expression = data.draw(st.none() | filters(shape))
        whole = table.to_arrow(epoch=epoch)
        wanted = whole if expression is None else whole.filter(expression)
        wanted = wanted if columns is None else wanted.select(columns)
        for rows in (
            table.to_arrow(epoch=epoch, columns=columns, filter=expression),
            table.scan(epoch=epoch, columns=columns, filter=expression).read_all(),
        ):
            assert rows.num_rows == wanted.num_rows
            assert rows_of(rows) == rows_of(wanted)
        asked = data.draw(st.lists(rows_for(shape), max_size=5))
        state = model.state(epoch)
        here = [state[key] for key in map(shape.key_of, asked) if key in state]
        assert rows_of(table.get(shape.keys(asked), epoch=epoch)) == here

    @rule(data=st.data(), name=st.sampled_from(sorted(SHAPES)), net=st.booleans(), images=st.booleans())
    def changes(self, data: st.DataObject, name: str, net: bool, images: bool) -> None:
        model, mode = self.tables[name], "net" if net else "epochs"
        marks = sorted({0, *(g.label for g in model.groups), *(e.epoch for e in model.entries), self.last_epoch + 5})
        marks = sorted({max(mark + d, 0) for mark in marks for d in (-1, 0)})
        after = data.draw(st.sampled_from(marks))
        until = data.draw(st.none() | st.sampled_from(marks))
        part = data.draw(st.none() | st.sampled_from(SHAPES[name].values[SHAPES[name].key[0]]))
        self.check_changes(name, after, until, mode, images, part)
        if after < model.log_start:
            with pytest.raises(el.LogTruncated):
                self.handles[name].next_epoch(after)
        else:
            assert self.handles[name].next_epoch(after) == model.next_epoch(after)

    def check_changes(self, name: str, after: int, until: int | None, mode: str, images: bool, part: Any) -> None:
        """Against the model; `part`: only keys whose first column is at least that."""
        model, table, shape = self.tables[name], self.handles[name], SHAPES[name]
        column = shape.key[0]
        expression = None if part is None else pc.field(column) >= pc.scalar(part)

        def ask() -> list[tuple[str, int, Row]]:
            reader = table.changes(after, until, mode=mode, pre_images=images, filter=expression)
            changes = reader.read_all()
            rows = rows_of(changes.select(shape.names))
            types, epochs = changes["_change_type"].to_pylist(), changes["_commit_version"].to_pylist()
            return list(zip(types, epochs, rows, strict=True))

        if until is not None and until < after:
            with pytest.raises(el.InvalidInput):
                ask()
        elif after < model.log_start:
            with pytest.raises(el.LogTruncated):
                ask()
        elif images and not model.stores(after, until) and after > 0 and not model.keeps(after):
            with pytest.raises(el.EpochExpired):
                ask()
        else:
            low = None if part is None else key_order((plain(part),))
            expected = model.changes(after, until, mode, images, lambda key: low is None or key_order(key[:1]) >= low)
            assert ask() == expected

    @invariant()
    def infos_agree(self) -> None:
        if not self.tables:
            return
        assert self.store.last_epoch == self.last_epoch
        for info in self.store.tables():
            model = self.tables[info.name]
            assert info.max_committed_epoch == model.newest
            assert info.safe_epoch == model.safe_epoch
            assert info.log_start_epoch == model.log_start
            assert info.log_segments == model.log_segments()
            assert info.runs >= (1 if model.compacted else 0)
            assert info.state == ("finished" if model.finished else "created")
            assert info.rows == len(model.rows(model.newest))


def filters(shape: Shape) -> st.SearchStrategy[pc.Expression]:
    """Comparisons of columns with values that occur, null tests, and combinations of two of them."""

    def atoms() -> Iterator[st.SearchStrategy[pc.Expression]]:
        for name in shape.names:
            kind, column = shape.schema.field(name).type, pc.field(name)
            if str(kind).startswith("list"):
                yield st.sampled_from([column.is_null(), column.is_valid()])
                continue
            values = st.sampled_from([v for v in shape.values[name] if v is not None])
            scalars = values.map(lambda value, kind=kind: pa_scalar(value, kind))
            yield scalars.map(lambda scalar, column=column: column >= scalar)
            yield scalars.map(lambda scalar, column=column: ~(column > scalar))
            yield scalars.map(lambda scalar, column=column: column == scalar)
            yield st.sampled_from([column.is_null(), column.is_valid()])

    atom = st.one_of(list(atoms()))
    return (
        atom
        | st.tuples(atom, atom).map(lambda two: two[0] & two[1])
        | st.tuples(atom, atom).map(lambda two: two[0] | two[1])
    )


def pa_scalar(value: Any, kind: Any) -> pc.Expression:
    import pyarrow as pa

    return pc.scalar(pa.array([value], kind)[0])


def run(examples: int, steps: int) -> None:
    """The suite's --hypothesis-seed repeats it."""
    run_state_machine_as_test(StoreMachine, settings=settings(max_examples=examples, stateful_step_count=steps))


@pytest.mark.rule("1.2", "1.6", "1.8", "4.1")
def test_a_store_is_its_model() -> None:
    run(examples=12, steps=30)


@pytest.mark.long
def test_a_store_is_its_model_for_longer() -> None:
    run(examples=25, steps=50)


@pytest.mark.long
def test_a_store_is_its_model_for_long() -> None:
    run(examples=120, steps=60)
