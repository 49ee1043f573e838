"""A packed log gives what the log of single commits gives, by every read, however commits were packed."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.changelog import change_reader
from epochlog.store.compaction import packing, trace
from epochlog.store.compaction.chapters import write_chapters
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.trace import PackTrace, read_traces
from epochlog.store.maintenance import scheduler
from epochlog.store.metadata import commit_columns, version
from epochlog.store.metadata.commit_log import scan_entries
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.packed_epochs import PackedEpochs
from epochlog.store.types.epoch import to_unix_ms
from log_model import NOW_MS
from seeds import seeds

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.float64()), pa.field("s", pa.string())])
SMALL = {"LEAST_COMMITS": 2, "MOST_COMMITS": 4, "MERGED": 2}


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SMALL.items():
        monkeypatch.setattr(packing, name, size)


def entries(store: el.Store, name: str = "t") -> list[Any]:
    return store._handle.catalog.read(lambda view: list(scan_entries(view, find_table(view, name).id)))


def packs(store: el.Store, name: str = "t") -> list[int]:
    """Return the number of commits of each pack."""
    return [entry.commits for entry in entries(store, name) if entry.packed is not None]


class Twins:
    """Two stores with equal commits at equal epochs; the log of the second is packed."""

    def __init__(self, root: Path, changelog: str, seed: int, options: el.TableOptions | None = None) -> None:
        self.now_ms = NOW_MS
        self.dice = random.Random(seed)
        self.stores = [
            el.open(root / name, durability="os", clock=lambda: self.now_ms) for name in ("single", "packed")
        ]
        self.single, self.packed = self.stores
        for store in self.stores:
            store.create_table("t", SCHEMA, ["k"], changelog=changelog, options=options)
        self.names = list(SCHEMA.names)
        self.added = 0

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def each(self, act: Callable[[el.Store], Any]) -> None:
        first, second = (act(store) for store in self.stores)
        assert first == second

    def rows(self, count: int) -> pa.Table:
        keys = self.dice.sample(range(40), count)
        schema = self.single.table("t").schema
        columns: list[pa.Array] = [pa.array(keys, pa.int64())]
        for field in list(schema)[1:]:
            values = [self.dice.choice([None, self.dice.randrange(100)]) for _ in keys]
            plain = pa.array([None if value is None else float(value) for value in values], pa.float64())
            columns.append(plain.cast(field.type) if not pa.types.is_string(field.type)
                           else pa.array([None if value is None else f"w{value}" for value in values]))  # fmt: skip
        return pa.table(columns, schema=schema)

    def commit(self) -> None:
        self.now_ms += self.dice.choice([0, 1, 50, 5000])
        kind = self.dice.choice(["upsert"] * 5 + ["delete"] * 2 + ["both", "same", "nothing", "labels"])
        rows = self.rows(self.dice.choice([1, 2, 5, 12]))
        keys = self.rows(3).select(["k"])
        if kind == "upsert":
            self.each(lambda store: store.table("t").upsert(rows))
        elif kind == "delete":
            self.each(lambda store: store.table("t").delete(keys))
        elif kind == "labels":
            self.each(lambda store: self._labels(store, rows))
        elif kind == "nothing":
            self.each(lambda store: store.table("t").delete(pa.table({"k": pa.array([999], pa.int64())})))
        else:
            self.each(lambda store: self._transaction(store, rows, keys, again=kind == "same"))

    def _labels(self, store: el.Store, rows: pa.Table) -> int:
        writer, base = store.table("t").writer(), store.last_epoch
        segments: list[el.Segment] = []
        for step in (1, 2):
            writer.upsert(rows.slice(0, step))
            segments += writer.seal(base + 4096 * step)
        return store.commit({"t": segments}, epoch=base + 3 * 4096)

    def _transaction(self, store: el.Store, rows: pa.Table, keys: pa.Table, *, again: bool) -> int:
        with store.transaction() as tx:
            tx.upsert("t", rows)
            tx.delete("t", keys)
            if again:
                tx.upsert("t", rows.slice(0, 1))
        return store.last_epoch

    def alter(self) -> None:
        self.added += 1
        name = f"c{self.added}"
        self.each(lambda store: store.table("t").alter(add=[pa.field(name, pa.float64())]) and None)

    def pack(self, full: bool) -> None:
        self.each(lambda store: store.compact("t", full=full))

    def truncate(self) -> None:
        marks = self.single.table("t").history(limit=1000)["epoch"].to_pylist()
        mark = self.dice.choice(marks) + self.dice.choice([0, 0, 1])
        self.each(lambda store: store.table("t").truncate_log(min(mark, store.last_epoch)))

    def check(self, ranges: int) -> None:
        single, packed = (store.table("t") for store in self.stores)
        assert packed.info.log_start_epoch == single.info.log_start_epoch
        start = packed.info.log_start_epoch
        history = single.history(limit=1000)
        assert packed.history(limit=1000).equals(history)
        epochs = [start, *(epoch for epoch in history["epoch"].to_pylist() if epoch > start)]
        bounds = sorted({bound for epoch in epochs for bound in (epoch, epoch + 1, epoch + 4096) if bound >= start})
        for _ in range(ranges):
            low, high = sorted((self.dice.choice(bounds), self.dice.choice(bounds)))
            until = self.dice.choice([None, high])
            options: dict[str, Any] = {
                "mode": self.dice.choice(["epochs", "net"]),
                "columns": self.dice.choice([None, ["v"], ["s", "k"]]),
                "filter": self.dice.choice([None, None, pc.field("k") < 17]),
                "pre_images": self.dice.choice([False, True]),
            }
            try:
                expected: Any = single.changes(low, until, **options).read_all()
            except el.EpochlogError as error:
                with pytest.raises(type(error), match=re.escape(str(error))):
                    packed.changes(low, until, **options).read_all()
                continue
            got = packed.changes(low, until, **options).read_all()
            assert got.equals(expected), (low, until, options, got.to_pylist(), expected.to_pylist())
            assert packed.next_epoch(low) == single.next_epoch(low)
        if start:
            for table in (single, packed):
                with pytest.raises(el.LogTruncated):
                    table.changes(start - 1)
        for epoch in self.dice.sample(epochs[1:], min(3, len(epochs) - 1)):
            try:
                expected = single.to_arrow(epoch=epoch)
            except el.EpochlogError as error:
                with pytest.raises(type(error)):
                    packed.to_arrow(epoch=epoch)
                continue
            assert packed.to_arrow(epoch=epoch).equals(expected)
        assert self._heard(self.packed, start) == self._heard(self.single, start)
        reports = [store.verify() for store in self.stores]
        assert all(report.ok for report in reports), reports

    @staticmethod
    def _heard(store: el.Store, start: int) -> list[Any]:
        heard: list[Any] = []
        try:
            with el.UpstreamLog(store, ["t"], after=start) as log:
                while (item := log.poll()) is not None:
                    heard.append(item.data.to_pylist() if isinstance(item, el.Chunk) else (item.prev, item.curr))
        except el.SchemaChanged as error:
            heard.append(str(error))
        return heard


@pytest.mark.rule("4.20")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
@pytest.mark.parametrize("seed", seeds(range(8), 3))
@pytest.mark.local_only
def test_random_logs_read_alike_packed_and_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changelog: str, seed: int
) -> None:
    plainly = packing.pack_log
    monkeypatch.setattr(
        "epochlog.store.sst.segment_writer.FLUSH_ROWS", 4
    )  # so that keys are in several files of a commit
    options = el.TableOptions(compact_segments=2, history_retention=timedelta(days=1))
    twins = Twins(tmp_path, changelog, seed, options)
    chosen = twins.packed._handle
    monkeypatch.setattr(
        "epochlog.store.compaction.packing_pass.pack_log",
        lambda handle, table, limit_s: plainly(handle, table, limit_s) if handle is chosen else 0,
    )
    monkeypatch.setattr(
        "epochlog.store.compaction.packing_pass.write_chapters",
        lambda handle, table, limit_s: write_chapters(handle, table, limit_s) if handle is chosen else 0,
    )
    made = 0
    try:
        for turn in range(60):
            step = twins.dice.random()
            if step < 0.75:
                twins.commit()
            elif step < 0.9:
                twins.pack(full=twins.dice.random() < 0.5)
            elif step < 0.95:
                twins.truncate()
            elif twins.added < 3:
                twins.alter()
            made = max(made, len(packs(twins.packed)))
            if turn % 20 == 19:
                twins.check(12)
        twins.check(40)
    finally:
        twins.close()
    assert made >= 2


# literal cases


@pytest.fixture
def now_ms() -> list[int]:
    return [NOW_MS]


@pytest.fixture
def store(tmp_path: Path, now_ms: list[int]) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=lambda: now_ms[0]) as opened:
        yield opened


def put(store: el.Store, now_ms: list[int], count: int, *, key: int | None = None, step_ms: int = 1000) -> list[int]:
    """Commit one row so many times; return the epochs."""
    epochs: list[int] = []
    for number in range(count):
        now_ms[0] += step_ms
        rows = [{"k": number % 3 if key is None else key, "v": float(len(epochs)), "s": "x"}]
        epochs.append(store.table("t").upsert(pa.Table.from_pylist(rows, schema=SCHEMA)))
    return epochs


def changed(store: el.Store, after: int = 0) -> list[int]:
    return store.table("t").changes(after).read_all()["_commit_version"].to_pylist()


@pytest.mark.logs("log_packed")
def test_four_commits_make_a_pack_and_two_packs_a_larger_one(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 9)
    store.compact("t", full=True)
    assert packs(store) == [8] and len(entries(store)) == 2
    assert changed(store) == epochs
    assert store.table("t").info.log_segments == 2
    assert store.verify().ok
    assert [store.table("t").to_arrow(epoch=epoch).num_rows for epoch in epochs] == [1, 2, *[3] * 7]


def test_changes_of_a_pack_have_the_epochs_of_its_commits(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 5)
    store.compact("t", full=True)
    assert packs(store) == [4]
    assert changed(store) == epochs
    assert changed(store, epochs[1]) == epochs[2:]


def test_the_newest_commit_is_never_packed_and_a_later_one_frees_it(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 4)
    store.compact("t", full=True)
    assert packs(store) == []
    put(store, now_ms, 1)
    store.compact("t", full=True)
    assert packs(store) == [4]


def test_commits_above_the_runs_stay_single(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 5)
    assert packing.pack_log(store._handle, store.table("t")._table) == 0
    assert packs(store) == []


def test_empty_commits_lie_in_packs_and_large_ones_between_them(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SMALL_COMMIT", 4096)
    monkeypatch.setattr(packing, "MERGED", 100)
    store.create_table("t", SCHEMA, ["k"])
    nothing = pa.table({"k": pa.array([], pa.int64())})
    epochs = put(store, now_ms, 1)
    for _ in range(3):
        now_ms[0] += 1000
        epochs.append(store.table("t").delete(nothing))
    many = pa.table({"k": range(5000), "v": [float(n * n) for n in range(5000)], "s": ["y"] * 5000}, schema=SCHEMA)
    large = store.table("t").upsert(many)
    epochs += [large, *put(store, now_ms, 5)]
    store.compact("t", full=True)
    assert packs(store) == [4, 4]
    assert [entry.epoch for entry in entries(store) if entry.packed is None] == [large, epochs[-1]]
    table = store.table("t")
    assert sorted(set(changed(store))) == [epochs[0], *epochs[4:]]
    steps = [0]
    while (following := table.next_epoch(steps[-1])) is not None:
        steps.append(following)
    assert steps[1:] == epochs == table.history(limit=99)["epoch"].to_pylist()[::-1]


def test_a_pack_covers_a_sixteenth_of_the_retention_at_most(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=el.TableOptions(log_retention=timedelta(seconds=160)))
    put(store, now_ms, 8, step_ms=4000)
    store.compact("t", full=True)
    assert packs(store) == [3, 3]  # ten seconds: two steps of four


def test_the_mark_lies_in_a_pack_and_the_pack_goes_with_its_last_commit(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 10)
    store.compact("t", full=True)
    table = store.table("t")
    for place in (1, 2, 6):
        table.truncate_log(epochs[place])
        assert table.info.log_start_epoch == epochs[place] and packs(store) == [8]
        assert changed(store, epochs[place]) == epochs[place + 1 :]
        with pytest.raises(el.LogTruncated):
            table.changes(epochs[place] - 1)
        assert table.info.log_segments == 3 and store.verify().ok
    table.truncate_log(epochs[8])
    assert packs(store) == [] and table.info.log_segments == 2 and changed(store, epochs[8]) == epochs[9:]
    assert store.verify().ok


def test_a_log_that_changed_while_a_pack_was_written_keeps_its_commits(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 6)
    acts: list[Callable[[], Any]] = [lambda: store.table("t").truncate_log(epochs[1])]

    def hit(name: str) -> None:
        if name == "pack:written" and acts:
            acts.pop()()

    monkeypatch.setattr(packing, "hit", hit)
    store.compact("t", full=True)
    assert changed(store, epochs[1]) == epochs[2:] and store.verify().ok
    put(store, now_ms, 6)
    acts.append(lambda: store.drop_table("t"))
    with pytest.raises(el.TableDropped):
        store.compact("t", full=True)
    store.vacuum(grace=0)
    assert [file.path for file in store._handle.files.list(store._handle.store_id) if "/t0" in file.path] == []


def test_two_packers_make_one_pack(store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 5)
    turns = [True]

    def hit(name: str) -> None:
        if name == "pack:written" and turns:
            turns.pop()
            with el.open(store.root, durability="os", clock=lambda: now_ms[0]) as other:
                other.compact("t", full=True)
                assert packs(other) == [4]

    monkeypatch.setattr(packing, "hit", hit)
    store.compact("t", full=True)
    assert packs(store) == [4] and changed(store) == epochs and store.verify().ok


def test_a_clone_of_a_packed_table_is_one_at_each_epoch(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=el.TableOptions(history_retention=timedelta(days=1)))
    epochs = put(store, now_ms, 9)
    store.compact("t", full=True)
    assert packs(store) == [8]
    for number, epoch in enumerate(epochs):
        clone = store.clone("t", f"c{number}", as_of=epoch)
        assert clone.to_arrow().equals(store.table("t").to_arrow(epoch=epoch))
    store.vacuum(grace=0)
    assert all(store.table(f"c{number}").to_arrow().num_rows for number in range(9))
    assert changed(store) == epochs and store.verify().ok


def test_packs_that_do_not_all_fit_are_merged_as_far_as_they_do(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three packs of four commits fit into one, four do not."""
    monkeypatch.setattr(packing, "MERGED", 4)
    monkeypatch.setattr(packing, "MOST_ROWS", 12)
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 5)
    for _ in range(7):
        epochs += put(store, now_ms, 4)
        store.compact("t", full=True)
    assert packs(store) == [12, 12, 4, 4]
    assert changed(store) == epochs
    assert store.verify().ok


def test_a_pass_reads_no_record_that_an_earlier_one_left_single(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large commits stay single, and are looked at once by each process."""
    monkeypatch.setattr(packing, "SMALL_COMMIT", 10)
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 30)
    store.compact("t", full=True)
    put(store, now_ms, 2)
    seen: list[int] = []
    is_small = packing._is_small
    monkeypatch.setattr(packing, "_is_small", lambda entry: seen.append(entry.epoch) or is_small(entry))
    store.compact("t", full=True)
    assert packs(store) == []
    assert len(seen) <= 4


@pytest.mark.parametrize("error", [el.OutcomeUnknown("cut"), KeyboardInterrupt()], ids=["unknown", "Ctrl-C"])
def test_a_pack_that_landed_keeps_its_files_whatever_its_transaction_says(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 9)
    transact = store._handle.catalog.transact

    def cut(body: Callable[[Any], Any]) -> Any:
        result = transact(body)
        if packs(store) == [4]:
            monkeypatch.undo()
            raise error
        return result

    for name, size in SMALL.items():
        monkeypatch.setattr(packing, name, size)
    monkeypatch.setattr(store._handle.catalog, "transact", cut)
    with pytest.raises(type(error)):
        store.compact("t", full=True)
    assert packs(store) == [4]
    assert changed(store) == epochs
    assert store.verify().ok
    put(store, now_ms, 1)
    for name, size in SMALL.items():
        monkeypatch.setattr(packing, name, size)
    store.compact("t", full=True)
    assert packs(store) == [8]
    store.vacuum(grace=0)
    assert changed(store)[:-1] == epochs and store.verify().ok


def test_maintenance_goes_on_until_all_is_packed(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit makes one pack and one chapter when its time is over, and the table is visited again at once."""
    monkeypatch.setattr(scheduler, "PACKING_S", 0.0)
    monkeypatch.setattr(packing, "MERGED", 100)
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 41)
    handle = store._handle
    compact_table(handle, handle.catalog.read(lambda view: find_table(view, "t")), full=True)
    maintenance = scheduler.Maintenance(handle)
    for turn in range(1, 11):
        assert maintenance.run_once()
        assert packs(store) == [4] * turn
    assert not maintenance.run_once()
    assert packs(store) == [4] * 10


def test_a_packer_that_was_suspended_for_long_does_not_try_for_ever(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has revoked its write intent, as that of a dead one; until it has a new one, no pack lands."""
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 9)
    written: list[int] = []
    write = packing._write
    monkeypatch.setattr(packing, "_write", lambda *args: written.append(1) or write(*args))
    with monkeypatch.context() as patch:
        patch.setattr(packing, "find_revoked_intent", lambda tx, paths: "revoked")
        store.compact("t", full=True)
    assert packs(store) == [] and written == [1]
    store.compact("t", full=True)
    assert packs(store) == [8] and changed(store) == epochs


def damage(store: el.Store, entry: Any) -> str:
    """Cut the file of a log entry; return its path within the store."""
    path = entry.groups[0].segments[0].path
    file = Path(store.root) / path
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])
    return path


@pytest.mark.damages_store
@pytest.mark.logs("log_not_packed")
def test_commits_with_a_damaged_file_stay_single_and_the_others_are_packed(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file of the log stops neither the packing of later commits nor the rest of maintenance."""
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 7)
    with monkeypatch.context() as patch:
        patch.setattr("epochlog.store.compaction.packing_pass.pack_log", lambda handle, table, limit_s: 0)
        store.compact("t", full=True)
    damage(store, entries(store)[1])
    put(store, now_ms, 7)
    store.compact("t", full=True)
    assert packs(store) == [8]
    assert [entry.commits for entry in entries(store)] == [1, 1, 1, 1, 8, 1, 1]
    assert store.table("t").to_arrow().num_rows == 3


@pytest.mark.damages_store
def test_a_damaged_pack_is_named_with_its_commits(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    epochs = put(store, now_ms, 9)
    store.compact("t", full=True)
    assert packs(store) == [8]
    path = damage(store, entries(store)[0])
    described = f"it has the changes of the 8 commits from {epochs[0]} (2026-"
    with pytest.raises(el.Corrupt) as error:
        store.table("t").changes(epochs[2], epochs[3]).read_all()
    assert path in str(error.value) and f"it has the changes of the 1 commits from {epochs[3]} " in str(error.value)
    (problem,) = [problem for problem in store.verify().problems if problem.where == path]
    assert described in problem.what and f" to {epochs[7]} " in problem.what
    assert "no rows that the table needs" in problem.what
    assert store.table("t").to_arrow().num_rows == 3
    assert len(changed(store, epochs[7])) == 1


@pytest.mark.parametrize("first", ["upsert", "full"])
def test_empty_commits_of_another_changelog_do_not_decide_a_pack_s_old_rows(
    tmp_path: Path, now_ms: list[int], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The commits without rows after an alter of the changelog lie in the pack of the commits before it."""
    answers: list[list[Any]] = []
    for packs_log in (True, False):
        if not packs_log:
            monkeypatch.setattr("epochlog.store.compaction.packing_pass.pack_log", lambda handle, table, limit_s: 0)
        with el.open(tmp_path / str(packs_log), durability="os", clock=lambda: now_ms[0]) as store:
            now_ms[0] = NOW_MS
            options = el.TableOptions(history_retention=timedelta(0))
            table = store.create_table("t", SCHEMA, ["k"], changelog=first, options=options)
            put(store, now_ms, 2)
            table.alter(changelog="full" if first == "upsert" else "upsert")
            for _ in range(2):
                now_ms[0] += 1000
                table.delete(pa.table({"k": pa.array([], pa.int64())}))
            put(store, now_ms, 5)
            store.compact("t", full=True)
            store.compact("t", full=True)
            assert packs(store) == ([4, 4] if packs_log else [])
            epochs = table.history()["epoch"].to_pylist()[::-1]
            answers.append([_old_rows(table, low, high) for low in epochs for high in epochs if low <= high])
            assert store.verify().ok
    assert answers[0] == answers[1]
    assert el.EpochExpired in answers[0] and any(rows not in ([], el.EpochExpired) for rows in answers[0])


def _old_rows(table: el.Table, after: int, until: int) -> Any:
    try:
        return table.changes(after, until, pre_images=True).read_all().to_pylist()
    except el.EpochExpired as error:
        return type(error)


def test_a_pack_has_the_columns_of_now_whoever_asks_for_it(store: el.Store, now_ms: list[int]) -> None:
    """Maintenance looks at all tables first; another process may alter one before its turn."""
    before = store.create_table("t", SCHEMA, ["k"])._table
    put(store, now_ms, 2)
    store.table("t").alter(rename={"v": "w"})
    now_ms[0] += 1000
    epochs = [store.table("t").upsert(pa.table({"k": [number], "w": [1.0], "s": ["x"]})) for number in range(6)]
    store.compact("t", full=True)
    put_more = [store.table("t").upsert(pa.table({"k": [9], "w": [2.0], "s": ["x"]})) for _ in range(5)]
    handle = store._handle
    compact_table(handle, handle.catalog.read(lambda view: find_table(view, "t")), full=True)
    assert packing.pack_log(handle, before) > 0
    assert changed(store, epochs[0] - 1) == epochs + put_more
    assert store.verify().ok


def test_a_pack_is_read_in_one_piece() -> None:
    """A unit of a read of changes never cuts a pack by key ranges: its commits would come interleaved."""
    assert packing.MOST_ROWS < change_reader.SPLIT_ROWS


def test_a_table_with_a_pack_is_refused_by_versions_that_know_none(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 4)
    assert store.table("t")._table.format == 1
    store.compact("t", full=True)
    put(store, now_ms, 1)
    store.compact("t", full=True)
    table = store._handle.catalog.read(lambda view: find_table(view, "t"))
    assert table.format == 4 and not table.schema.evolved
    store.table("t").alter(add=[pa.field("n", pa.int32())])
    store.table("t").alter(widen={"n": pa.float64()})
    table = store._handle.catalog.read(lambda view: find_table(view, "t"))
    assert table.format == 4 and table.schema.evolved


def test_a_short_log_has_no_packs_past_its_retention_and_a_long_history_stays(
    store: el.Store, now_ms: list[int]
) -> None:
    """History of two days with a log of a minute: a pack covers four seconds, and goes with the log."""
    options = el.TableOptions(history_retention=timedelta(days=2), log_retention=timedelta(minutes=1))
    table = store.create_table("t", SCHEMA, ["k"], options=options)
    epochs, most = list[int](), 0
    for _ in range(20):
        epochs += put(store, now_ms, 10)
        store.compact("t", full=True)
        most = max(most, *packs(store))
        start = now_ms[0] - 60_000
        kept = sum(to_unix_ms(epoch) >= start for epoch in epochs)
        assert sum(entry.commits for entry in entries(store)) <= kept + 4, "no pack keeps more than a sixteenth longer"
    assert most == 4 and table.info.safe_epoch < epochs[0]
    assert all(table.to_arrow(epoch=epoch).num_rows == min(number, 3) for number, epoch in enumerate(epochs, 1))
    assert table.history(limit=999)["epoch"].to_pylist()[: len(epochs)] == epochs[::-1]
    with pytest.raises(el.LogTruncated):
        table.changes(epochs[0])
    assert changed(store, epochs[-30]) == epochs[-29:] and store.verify().ok


@pytest.mark.parametrize("step_ms", [1000, 9000, 37_000, 38_000])
def test_packs_of_a_log_of_ten_minutes_span_a_sixteenth_of_it(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    monkeypatch.setattr(packing, "MOST_COMMITS", 64)
    options = el.TableOptions(log_retention=timedelta(minutes=10), history_retention=timedelta(days=1))
    store.create_table("t", SCHEMA, ["k"], options=options)
    epochs = put(store, now_ms, 600_000 // step_ms, step_ms=step_ms)
    store.compact("t", full=True)
    made = [entry for entry in entries(store) if entry.packed is not None]
    assert all(to_unix_ms(entry.epoch) - to_unix_ms(entry.first) <= 37_500 for entry in made)
    assert max((entry.commits for entry in made), default=1) == 37_500 // step_ms + 1
    assert changed(store, epochs[0]) == epochs[1:] and store.verify().ok


def test_a_view_of_empty_commits_is_packed(store: el.Store, now_ms: list[int]) -> None:
    """Changes of the upstream that leave the view as it is make commits without rows."""
    store.create_table("t", SCHEMA, ["k"])
    store.create_view("few", "SELECT k, v FROM t WHERE v > 100", ["k"], options=el.TableOptions(compact_segments=2))
    commits = list[int]()
    for number in range(13):
        put(store, now_ms, 1)
        if number == 6:
            store.table("t").upsert(pa.Table.from_pylist([{"k": 7, "v": 101.0, "s": "x"}], schema=SCHEMA))
        store.checkpoint()
        assert store.view("few").step() is not None
        commits.append(store.table("few").info.max_committed_epoch)
    store.compact("few", full=True)
    few = store.table("few")
    assert sum(packs(store, "few")) >= 8 and few.info.log_segments == 1
    assert few.history()["epoch"].to_pylist() == commits[::-1]
    assert few.changes(0).read_all()["_commit_version"].to_pylist() == [commits[6]]
    assert [few.to_arrow(epoch=epoch).num_rows for epoch in commits] == [0] * 6 + [1] * 7
    assert store.view("few").check().ok and store.verify().ok


def test_bulk_commits_between_small_ones_stay_as_they_are(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SMALL_COMMIT", 4096)
    store.create_table("t", SCHEMA, ["k"], changelog="full")
    many = pa.table({"k": range(3000), "v": [float(n * n) for n in range(3000)], "s": ["y"] * 3000}, schema=SCHEMA)
    small, bulk = list[int](), list[int]()
    for turn in range(6):
        small += put(store, now_ms, 1 + turn % 3)
        now_ms[0] += 1000
        bulk.append(store.table("t").upsert(many))
    before = {entry.epoch: entry for entry in entries(store)}
    store.compact("t", full=True)
    after = entries(store)
    assert [entry for entry in after if entry.epoch in bulk] == [before[epoch] for epoch in bulk]
    assert packs(store) == [2, 3, 2], "one alone between two bulk commits stays single, and so do the newest"
    rows = store.table("t").changes(0).read_all()["_commit_version"].to_pylist()
    assert list(dict.fromkeys(rows)) == sorted([*small, *bulk]) and len(rows) == len(small) + 6 * 3000
    assert store.verify().ok


@pytest.mark.parametrize("clones_first", [False, True])
def test_a_packed_table_and_its_clones_at_each_epoch_outlive_each_other(
    store: el.Store, now_ms: list[int], clones_first: bool
) -> None:
    """Both are vacuumed: the clones while their source is there, and after one of the two sides is dropped."""
    options = el.TableOptions(history_retention=timedelta(days=1))
    store.create_table("t", SCHEMA, ["k"], changelog="full", options=options)
    epochs = put(store, now_ms, 12)
    store.compact("t", full=True)
    states = {epoch: store.table("t").to_arrow(epoch=epoch) for epoch in epochs}
    changes = store.table("t").changes(0, pre_images=True).read_all()
    clones = {epoch: f"c{number}" for number, epoch in enumerate(epochs)}
    for epoch, name in clones.items():
        store.clone("t", name, as_of=epoch)
    store.vacuum(grace=0)
    for name in clones.values():
        for _ in range(5):
            now_ms[0] += 1000
            store.table(name).upsert(pa.Table.from_pylist([{"k": 50, "v": 1.0, "s": "z"}], schema=SCHEMA))
        store.compact(name, full=True)
        assert packs(store, name) == [4]
    store.vacuum(grace=0)
    for name in clones.values() if clones_first else ["t"]:
        store.drop_table(name)
    store.vacuum(grace=0)
    if clones_first:
        assert all(store.table("t").to_arrow(epoch=epoch).equals(state) for epoch, state in states.items())
        assert store.table("t").changes(0, pre_images=True).read_all().equals(changes)
    else:
        for epoch, name in clones.items():
            rows = store.table(name).to_arrow().filter(pc.field("k") < 50)
            assert rows.equals(states[epoch].combine_chunks()) or rows.to_pylist() == states[epoch].to_pylist()
    assert store.verify().ok


def _truncate(store: el.Store, epochs: list[int]) -> None:
    store.table("t").truncate_log(epochs[2])


def _drop(store: el.Store, epochs: list[int]) -> None:
    store.drop_table("t")


def _clone(store: el.Store, epochs: list[int]) -> None:
    store.clone("t", "copy")


def _alter(store: el.Store, epochs: list[int]) -> None:
    store.table("t").alter(add=[pa.field("n", pa.int8())])


def _restore(store: el.Store, epochs: list[int]) -> None:
    store.table("t").restore(epochs[3])


@pytest.mark.parametrize("act", [_truncate, _drop, _clone, _alter, _restore])
def test_an_act_between_plan_and_commit_of_a_pack_loses_nothing(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch, act: Callable[[el.Store, list[int]], None]
) -> None:
    options = el.TableOptions(history_retention=timedelta(days=1))
    store.create_table("t", SCHEMA, ["k"], changelog="full", options=options)
    epochs = put(store, now_ms, 10)
    acts = [act]

    def hit(name: str) -> None:
        if name == "pack:written" and acts:
            now_ms[0] += 1000
            acts.pop()(store, epochs)

    monkeypatch.setattr(packing, "hit", hit)
    if act is _drop:
        with pytest.raises(el.TableDropped):
            store.compact("t", full=True)
        store.vacuum(grace=0)
        assert not list(store._handle.files.list(store._handle.store_id))
        return
    states = {epoch: store.table("t").to_arrow(epoch=epoch).to_pylist() for epoch in epochs}
    store.compact("t", full=True)
    assert not acts and packs(store)
    table, start = store.table("t"), epochs[2] if act is _truncate else 0
    after = [epoch for epoch in epochs if epoch > start]
    assert table.changes(start, epochs[-1]).read_all()["_commit_version"].to_pylist() == after
    for epoch in epochs:
        assert table.to_arrow(epoch=epoch).to_pylist() == states[epoch]
    if act is _clone:
        assert store.table("copy").to_arrow().to_pylist() == states[epochs[-1]]
    if act is _restore:
        assert table.to_arrow().to_pylist() == states[epochs[3]]
    store.vacuum(grace=0)
    assert store.verify().ok


def traced(store: el.Store) -> list[tuple[int, int, int, int]]:
    """Return the packs, commits and files of each trace of packing, newest first."""
    traces = store._handle.catalog.read(lambda view: read_traces(view, find_table(view, "t").id))
    sums = [trace.packed for trace in traces if isinstance(trace, PackTrace)]
    return [(packed.packs, packed.commits, packed.files_in, packed.files_out) for packed in sums]


def test_each_pass_has_one_trace(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 3)
    store.compact("t", full=True)
    assert traced(store) == []
    put(store, now_ms, 6)
    store.compact("t", full=True)
    assert packs(store) == [8]
    assert traced(store) == [(3, 16, 8 + 2, 3)], "two packs of commits, and one of the two"
    store.compact("t", full=True)
    assert len(traced(store)) == 1
    for _ in range(2 * trace.KEPT_TRACES):
        store._handle.catalog.transact(lambda tx: trace.put_trace(tx, 1, 10**6 + now_ms[0], PackTrace(
            now_ms[0], "x", version.PackingSums(1), 0)))  # fmt: skip
        now_ms[0] += 1
    assert len(traced(store)) == trace.KEPT_TRACES


def test_packs_of_a_pass_that_failed_are_in_the_next_trace(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("t", SCHEMA, ["k"])
    put(store, now_ms, 9)
    fails = [True]

    def hit(name: str) -> None:
        if name == "pack:landed" and fails:
            fails.pop()
            raise el.WriteFailed("no space left")

    monkeypatch.setattr(packing, "hit", hit)
    with pytest.raises(el.WriteFailed):
        store.compact("t", full=True)
    assert packs(store) == [4] and traced(store) == []
    store.table("t").truncate_log(store.table("t").history()["epoch"].to_pylist()[0])
    put(store, now_ms, 5)
    store.compact("t", full=True)
    assert [packs_ for packs_, *_ in traced(store)] == [2] and store.verify().ok


@pytest.mark.parametrize("spoil", ["columns", "commits", "epoch", "rows", "pack"])
def test_a_pack_s_record_that_does_not_fit_is_corrupt(spoil: str) -> None:
    ones = np.ones(3, np.int64)
    packed = PackedEpochs(np.array([5, 7, 9]), ones * 0, *[ones * 0] * 2, *[ones] * 4)
    record = version.LogEntry(9, (version.LabelGroup(9, (), (), False, packed),)).to_record()
    assert version.LogEntry.from_record(dict(record)).packed == packed
    wrong = {
        "columns": {"columns": record["columns"][:-1]}, "commits": {"commits": 4}, "epoch": {"epoch": 8},
        "rows": {"columns": replace(packed, rows=ones).to_bytes()}, "pack": {"pack": 2},
    }[spoil]  # fmt: skip
    with pytest.raises(el.Corrupt, match="LogEntry"):
        version.LogEntry.from_record({**record, **wrong})
    with pytest.raises(ValueError, match="for 4097 commits"):
        PackedEpochs.from_bytes(packed.to_bytes(), commit_columns.MOST_PACKED + 1)


def test_a_pack_s_commits_are_immutable_and_small_when_pickled() -> None:
    count = 2000
    ones = np.ones(count, np.int64)
    packed = PackedEpochs(np.arange(1, count + 1) * 4_096_000, *[ones * 20, ones * 0] * 3, ones * 1400)
    data = pickle.dumps(packed)
    assert pickle.loads(data) == packed and len(data) <= 20 * count
    assert pickle.loads(pickle.dumps(packed.slice(500, 700))) == packed.slice(500, 700)
    with pytest.raises(ValueError, match="read-only"):
        packed.rows[0] = 1


# planted errors


def _newest_is_packed(patch: pytest.MonkeyPatch) -> None:
    real = packing.log_records
    patch.setattr(
        packing,
        "log_records",
        lambda view, table_id, after, until, **reverse: real(
            view, table_id, after, until if reverse else 1 << 52, **reverse
        ),
    )


def _records_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = packing._land

    def land(handle: Any, tx: Any, task: Any, pack: Any) -> str:
        fitting = tuple(record._replace(value=tx.get_packed(record.key)) for record in task.records)
        return real(handle, tx, replace(task, records=fitting), pack)

    patch.setattr(packing, "_land", land)


def _parts_are_whole_packs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(version.LabelGroup, "cut", lambda group, after, until: group)


def _rows_before_netting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change_reader, "newest_of_each_epoch", lambda touches: touches)


def _one_label_for_a_pack(patch: pytest.MonkeyPatch) -> None:
    real = change_reader.change_files
    patch.setattr(change_reader, "change_files", lambda group: [replace(file, epochs=None) for file in real(group)])


@pytest.mark.planted
@pytest.mark.local_only
@pytest.mark.parametrize("plant", [
    _newest_is_packed, _parts_are_whole_packs, _one_label_for_a_pack,
    pytest.param(_records_are_not_compared, marks=pytest.mark.damages_store),
    pytest.param(_rows_before_netting, marks=pytest.mark.damages_store),
])  # fmt: skip
def test_a_planted_error_of_packs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    now_ms = [NOW_MS]
    with pytest.raises((AssertionError, el.EpochlogError, ValueError, IndexError)):  # noqa: PT012  # the first that finds it
        for check in (
            test_changes_of_a_pack_have_the_epochs_of_its_commits,
            test_the_newest_commit_is_never_packed_and_a_later_one_frees_it,
            partial(test_a_log_that_changed_while_a_pack_was_written_keeps_its_commits, monkeypatch=monkeypatch),
        ):
            with el.open(tmp_path / str(now_ms[0]), durability="os", clock=lambda: now_ms[0]) as store:
                check(store, now_ms)
            now_ms[0] += 1
        test_random_logs_read_alike_packed_and_not(tmp_path, monkeypatch, "full", 0)
