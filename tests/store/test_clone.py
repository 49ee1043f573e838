"""Clones: a new table that shares the files of another one at one epoch; each goes its own way from there."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.commit import clone
from epochlog.store.compaction import subcompactions
from epochlog.store.compaction.rewriter import Rewriter
from epochlog.store.metadata import unreachable_files
from epochlog.store.metadata.lookups import find_table, get_runs
from epochlog.store.metadata.shared_files import SharedFile, list_shared
from epochlog.store.metadata.unreachable_files import UnreachableFile
from epochlog.store.retention import retention
from epochlog.store.sst.merge import joined
from lab import Lab, keys_of, state_of, sums, table_of
from law_queries import State
from seeds import seeds

NO_PAST = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "store")


def paths(lab: Lab) -> set[str]:
    """The data files of the store."""
    listed = lab.store._handle.files.list(lab.store._handle.store_id)
    return {info.path for info in listed if info.path.endswith((".arrow", ".parquet"))}


def clear_away(lab: Lab) -> None:
    lab.now_ms += 3_600_000
    for _ in range(2):
        lab.store.vacuum(grace=0)
    report = lab.store.verify()
    assert report.ok, report.problems


@pytest.mark.rule("1.20")
@pytest.mark.parametrize("compacted", ["no", "l0 above a run", "later rows in the run"])
def test_a_clone_has_the_rows_of_its_epoch_and_no_file_of_its_own(lab: Lab, compacted: str) -> None:
    lab.root_table()
    lab.put({key: (0, key) for key in range(6)})
    if compacted == "l0 above a run":
        lab.store.compact("r", full=True)
    lab.tick()
    lab.store.table("r").delete(keys_of([5]))
    at = lab.put({0: (1, 1), 9: (9, 9)})
    then = lab.rows("r")
    lab.tick()
    lab.put({1: (7, 7), 10: (1, 1)})
    lab.store.table("r").delete(keys_of([2]))
    if compacted == "later rows in the run":
        lab.store.compact("r", full=True)
    before = paths(lab)
    made = lab.store.clone("r", "c", as_of=at)
    assert paths(lab) == before and lab.rows("c") == then
    assert made.count() == len(then) == made.info.rows
    assert state_of(made.get(keys_of([0, 2, 5, 10]))) == {key: then[key] for key in (0, 2)}
    assert made.scan(columns=["v"]).read_all().num_rows == len(then)
    lab.tick()
    lab.store.table("c").upsert(table_of({3: (3, 33), 11: (1, 1)}))
    assert lab.rows("c") == {**then, 3: (3, 33), 11: (1, 1)} and 11 not in lab.rows("r")
    lab.store.compact("c", full=True)
    assert lab.rows("c") == {**then, 3: (3, 33), 11: (1, 1)}
    (run,) = lab.store._handle.catalog.read(lambda view: get_runs(view, find_table(view, "c").id))
    assert run.at is None and {part.path.split("/")[1] for part in run.parts} == {"t00000002"}
    assert lab.store.verify().ok


@pytest.mark.rule("1.20")
def test_a_clone_begins_at_its_own_epoch(lab: Lab) -> None:
    lab.root_table(changelog="full", options=el.TableOptions(log_retention=timedelta(days=2)))
    at = lab.put({1: (1, 1)})
    made = lab.store.clone("r", "c")
    info, begin = made.info, lab.store.last_epoch
    assert (info.safe_epoch, info.log_start_epoch, info.max_committed_epoch) == (begin, begin, begin)
    assert info.changelog == "full" and made.info.options == lab.store.table("r").info.options
    for old in (at, begin - 1):
        with pytest.raises((el.EpochExpired, el.EpochNotCommitted)):
            made.to_arrow(epoch=old)
        with pytest.raises(el.LogTruncated):
            made.changes(old)
    lab.tick()
    lab.put({1: (2, 2)}, "c")
    assert made.changes(begin, pre_images=True).read_all()["v"].to_pylist() == [1, 2]
    assert [row["operation"] for row in made.history().to_pylist()] == ["upsert", "clone"]
    with lab.store.snapshot(consistency="global") as snapshot:
        assert snapshot.epochs.keys() == {"r", "c"}


@pytest.mark.rule("1.21")
@pytest.mark.parametrize("dropped", ["r", "c"])
def test_a_shared_file_goes_with_the_last_table(lab: Lab, dropped: str) -> None:
    lab.root_table(options=NO_PAST)
    lab.put({1: (1, 1)})
    lab.store.compact("r", full=True)
    lab.put({2: (2, 2)})
    files = paths(lab)
    lab.store.clone("r", "c")
    kept = ({"r", "c"} - {dropped}).pop()
    rows = lab.rows(kept)
    lab.store.drop_table(dropped)
    clear_away(lab)
    assert lab.rows(kept) == rows and files & paths(lab)
    lab.store.drop_table(kept)
    clear_away(lab)
    assert not files & paths(lab) and not lab.store._handle.catalog.read(list_shared)


@pytest.mark.rule("1.21")
@pytest.mark.parametrize("reader", ["r", "c"])
def test_holds_of_every_table_that_reached_a_file_count(lab: Lab, reader: str) -> None:
    read_while_both_let_go(lab, reader)


def read_while_both_let_go(lab: Lab, reader: str) -> None:
    """A reader of either table has a file open; both let it go, the reader's own table first or last."""
    lab.root_table(options=NO_PAST)
    lab.put({1: (1, 1)})
    lab.store.clone("r", "c")
    for order in (["r", "c"], ["c", "r"]):
        with lab.store.snapshot([reader], consistency="latest") as snapshot:
            rows = lab.rows(reader)
            for name in order:
                lab.tick()
                lab.put({1: (lab.now_ms % 1000, 5)}, name)
                lab.store.compact(name, full=True)
                lab.now_ms += 1000
                lab.store.compact(name, full=True)
            clear_away(lab)
            assert state_of(snapshot[reader].to_arrow()) == rows
        lab.store.drop_table("c")
        lab.store.clone("r", "c")


@pytest.mark.rule("1.21")
@pytest.mark.logs("table_cloned", "table_dropped", "table_created")
def test_a_reader_of_a_dropped_source_keeps_the_files_that_the_clone_lets_go(lab: Lab) -> None:
    lab.root_table(options=NO_PAST)
    lab.put({1: (1, 1)})
    lab.store.clone("r", "c")
    with lab.store.snapshot(["r"], consistency="latest") as snapshot:
        lab.store.drop_table("r")
        lab.store.drop_table("c")
        clear_away(lab)
        assert state_of(snapshot["r"].to_arrow()) == {1: (1, 1)}
    files = paths(lab)
    clear_away(lab)
    assert paths(lab) < files


@pytest.mark.rule("1.20")
@pytest.mark.logs("tag_created", "tag_dropped")
def test_a_clone_of_a_tag_and_of_a_time(lab: Lab) -> None:
    lab.root_table(options=NO_PAST)
    lab.put({1: (1, 1), 2: (2, 2)})
    then, at_ms = lab.rows("r"), lab.now_ms
    lab.store.tag("q", consistency="latest")
    lab.tick(100)
    for number in range(3):
        lab.tick()
        lab.put({1: (number, 9)})
        lab.store.compact("r", full=True)
    assert lab.rows(lab.store.clone("r", "of_tag", as_of="q").info.name) == then
    with pytest.raises(el.EpochExpired):
        lab.store.clone("r", "x", as_of=lab.store.tags()[0].epochs["r"] + 1)
    with pytest.raises(el.TagNotFound):
        lab.store.clone("r", "x", as_of="p")
    lab.store.drop_tag("q")
    lab.store.compact("r", full=True)
    clear_away(lab)
    assert lab.rows("of_tag") == then
    lab.root_table("s")
    lab.put({5: (5, 5)}, "s")
    lab.tick(5)
    moment = datetime.fromtimestamp(lab.now_ms / 1000, UTC)
    lab.tick(5)
    lab.put({5: (6, 6)}, "s")
    assert lab.rows(lab.store.clone("s", "of_time", as_of=moment).info.name) == {5: (5, 5)} and at_ms


@pytest.mark.rule("1.20")
def test_what_cannot_be_cloned_is_refused_and_leaves_nothing(lab: Lab) -> None:
    lab.root_table()
    lab.put({1: (1, 1)})
    before = lab.store.last_epoch
    for error, source, name, as_of in [
        (el.TableExists, "r", "r", None),
        (el.TableNotFound, "nobody", "c", None),
        (el.InvalidName, "r", "C", None),
        (el.EpochNotCommitted, "r", "c", before + 10_000_000_000),
        (el.InvalidInput, "r", "c", -1),
    ]:
        with pytest.raises(error):
            lab.store.clone(source, name, as_of=as_of)
    assert [info.name for info in lab.store.tables()] == ["r"] and lab.store.last_epoch == before


@pytest.mark.rule("1.22")
def test_a_clone_of_an_output_is_a_root_table_and_views_read_clones(lab: Lab) -> None:
    lab.root_table()
    lab.put({1: (1, 10), 2: (1, 20)})
    lab.tick()
    job = lab.job("j", ["r"])
    with pytest.raises(el.EpochNotCommitted, match="creating"):
        lab.store.clone("j_out", "frozen")
    job.step_local(sums("r", "j_out"))
    made = lab.store.clone("j_out", "frozen")
    lab.tick()
    lab.put({3: (1, 70)})
    lab.store.checkpoint()
    job.step_local(sums("r", "j_out"))
    assert lab.rows("frozen") != lab.rows("j_out")
    made.upsert(table_of({99: (1, 1)}))
    above = lab.job("k", ["frozen"])
    lab.store.checkpoint()
    above.step_local(sums("frozen", "k_out"))
    assert state_of(lab.store.snapshot(["k_out"], consistency="aligned")["k_out"].to_arrow())
    with pytest.raises(el.EpochlogError):
        lab.job("logged", ["frozen"], backfill="log").step_local(sums("frozen", "logged_out"))


@pytest.mark.rule("1.21")
@pytest.mark.local_only
def test_the_catalog_is_restored_with_its_clones(lab: Lab, tmp_path: Path) -> None:
    """After the export the source is dropped and the clone rewritten: both are there again, and share the file."""
    lab.root_table(options=NO_PAST)
    lab.put({1: (1, 1)})
    lab.store.clone("r", "c")
    lab.store.export_catalog(tmp_path / "dump")
    lab.store.drop_table("r")
    lab.tick()
    lab.put({2: (2, 2)}, "c")
    lab.store.compact("c", full=True)
    lab.store.vacuum()  # within its grace
    lab.store.close()
    shutil.rmtree(lab.root / "catalog")
    el.restore_catalog(str(lab.root), str(tmp_path / "dump"))
    lab.store = lab.open()
    assert lab.rows("r") == lab.rows("c") == {1: (1, 1)} and lab.store.verify().ok
    lab.store.drop_table("c")
    clear_away(lab)
    assert lab.rows("r") == {1: (1, 1)}
    lab.store.drop_table("r")
    clear_away(lab)
    assert not paths(lab)


class Family:
    """Clones of clones, written, compacted, dropped and read under snapshots in any order, and a dict for each."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.seed, self.dice = lab, seed, random.Random(seed)
        lab.root_table("t0", options=NO_PAST)
        self.states: dict[str, State] = {"t0": {}}
        self.pins: list[tuple[el.Snapshot, str, State]] = []
        self.made = 1

    def step(self) -> None:
        self.lab.now_ms += self.dice.randint(1, 50)
        name, keys = self.dice.choice(sorted(self.states)), self.dice.sample(range(12), self.dice.randint(1, 5))
        actions = [self.put, self.put, self.delete, self.compact, self.clone, self.drop, self.pin, self.unpin]
        self.dice.choice(actions)(name, keys)
        if self.dice.random() < 0.2:
            self.lab.store.vacuum(grace=0)
        for table, rows in self.states.items():
            assert self.lab.rows(table) == rows, (self.seed, table)
        for snapshot, table, rows in self.pins:
            assert state_of(snapshot[table].to_arrow()) == rows, (self.seed, table)

    def put(self, name: str, keys: list[int]) -> None:
        rows = {key: (self.dice.randrange(100), key) for key in keys}
        self.lab.put(rows, name)
        self.states[name] = {**self.states[name], **rows}

    def delete(self, name: str, keys: list[int]) -> None:
        self.lab.store.table(name).delete(keys_of(keys))
        self.states[name] = {key: row for key, row in self.states[name].items() if key not in keys}

    def compact(self, name: str, keys: list[int]) -> None:
        self.lab.store.compact(name, full=len(keys) > 2)

    def clone(self, name: str, keys: list[int]) -> None:
        self.lab.store.clone(name, f"t{self.made}")
        self.states[f"t{self.made}"] = self.states[name]
        self.made += 1

    def drop(self, name: str, keys: list[int]) -> None:
        if len(self.states) > 1:
            self.lab.store.drop_table(name)
            del self.states[name]

    def pin(self, name: str, keys: list[int]) -> None:
        self.pins.append((self.lab.store.snapshot([name], consistency="latest"), name, self.states[name]))

    def unpin(self, name: str, keys: list[int]) -> None:
        if self.pins:
            self.pins.pop(self.dice.randrange(len(self.pins)))[0].close()

    def end(self) -> None:
        """Without readers and tables no file is left."""
        report = self.lab.store.verify()
        assert report.ok, (self.seed, report.problems)
        for snapshot, _, _ in self.pins:
            snapshot.close()
        for name in self.states:
            self.lab.store.drop_table(name)
        clear_away(self.lab)
        left = paths(self.lab)
        assert not left, (self.seed, left)


def run_family(lab: Lab, seed: int, steps: int = 60) -> None:
    family = Family(lab, seed)
    for _ in range(steps):
        family.step()
    family.end()


@pytest.mark.rule("1.21")
@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(4), 2))
def test_families_of_clones(lab: Lab, seed: int) -> None:
    run_family(lab, seed)


# ---- bugs --------------------------------------------------------------------------------------------------------


def a_file_goes_with_the_first_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        unreachable_files, "release_files", lambda tx, table, paths: ((path, (table,)) for path in paths)
    )


def holds_of_the_owner_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnreachableFile, "readers", property(lambda note: (note.table_id,)))


def a_shared_file_is_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedFile, "without", lambda shared, table_id: shared)


def later_rows_are_cloned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "_cut", lambda run, at: replace(run, history=()))


def a_cut_run_is_merged_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rewriter, "_cut", lambda rewriter, run, epoch, keys: joined(
        rewriter._read(run.parts, [*rewriter.table.schema.names, "_epoch"], keys)))  # fmt: skip


def retention_takes_the_history_of_a_cut_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = retention.get_runs
    monkeypatch.setattr(
        retention, "get_runs", lambda view, table: tuple(replace(r, at=None) for r in real(view, table))
    )


def parts_of_a_cut_run_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subcompactions._spans
    monkeypatch.setattr(
        subcompactions,
        "_spans",
        lambda task, runs, entries: real(task, [replace(run, at=None) for run in runs], entries),
    )


def past_clones(lab: Lab) -> None:
    """A clone of an epoch that its source's run has passed reads as it was, after any compaction and retention."""
    lab.root_table()
    lab.put({key: (0, key) for key in range(4)})
    lab.tick()
    at = lab.put({0: (1, 1), 8: (8, 8)})
    then = lab.rows("r")
    lab.tick()
    lab.store.table("r").delete(keys_of([3]))
    lab.put({1: (7, 7), 20: (1, 1)})
    lab.store.compact("r", full=True)
    lab.store.clone("r", "c", as_of=at)
    lab.store.table("c").alter(options=NO_PAST)
    assert lab.rows("c") == then
    for key in (50, 51):
        lab.tick()
        lab.put({key: (5, 5)}, "c")
        then = {**then, key: (5, 5)}
        lab.store.compact("c")
        assert lab.rows("c") == then
        lab.store.compact("c", full=True)
        assert lab.rows("c") == then


def families(lab: Lab) -> None:
    for seed in range(6):
        run_family(lab, seed)
        lab.now_ms += 3_600_000


MUTANTS = [
    (a_file_goes_with_the_first_table, families),
    (holds_of_the_owner_alone_count, lambda lab: read_while_both_let_go(lab, "c")),
    (a_shared_file_is_never_let_go, families),
    (later_rows_are_cloned_too, past_clones),
    (a_cut_run_is_merged_whole, past_clones),
    (retention_takes_the_history_of_a_cut_run, past_clones),
    (parts_of_a_cut_run_are_reused, past_clones),
]


@pytest.mark.rule("1.20")
def test_a_clone_of_a_past_epoch_stays_as_it_was(lab: Lab) -> None:
    past_clones(lab)


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("bug, check", MUTANTS, ids=[bug.__name__ for bug, _ in MUTANTS])
def test_each_guard_of_clones_is_needed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], check: Callable[[Lab], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, el.Corrupt, el.SnapshotExpired)):
        check(lab)
    lab.store.close()
    shutil.rmtree(lab.root)  # what is left there is not whole
