"""Chapters of remembered commits: a table with them reads as one with a record for each commit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.errors import Corrupt
from epochlog.store.catalog.keys import hist_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import UnpackedRecord, decode, pack
from epochlog.store.compaction import chapters, packing
from epochlog.store.epochs.view_reader import EpochMemory
from epochlog.store.metadata import commit_log
from epochlog.store.metadata.chapter import Chapter
from epochlog.store.metadata.commit_log import (
    commit_arrays,
    commit_at,
    commit_epochs,
    history_records,
    newest_chapter,
    newest_commits,
)
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.metadata.version import Commit
from log_model import NOW_MS
from seeds import seeds

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
SMALL = {"LEAST_COMMITS": 2, "MOST_COMMITS": 4, "MERGED": 2}
FOR_LONG = el.TableOptions(history_retention=timedelta(days=2), log_retention=timedelta(days=2))


@pytest.fixture(autouse=True)
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SMALL.items():
        monkeypatch.setattr(packing, name, size)


@pytest.fixture
def now_ms() -> list[int]:
    return [NOW_MS]


@pytest.fixture
def store(tmp_path: Path, now_ms: list[int]) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=lambda: now_ms[0]) as opened:
        yield opened


def put(store: el.Store, now_ms: list[int], count: int, *, step_ms: int = 1000, table: str = "t") -> list[int]:
    """Commit one row so many times; return the epochs."""
    epochs: list[int] = []
    for number in range(count):
        now_ms[0] += step_ms
        rows = pa.Table.from_pylist([{"k": number % 3, "v": number}], schema=SCHEMA)
        epochs.append(store.table(table).upsert(rows))
    return epochs


def write(store: el.Store, table: str = "t") -> int:
    """Write the chapters of a table alone; return their number."""
    handle = store._handle
    return chapters.write_chapters(handle, handle.catalog.read(lambda view: find_table(view, table)))


def sizes(store: el.Store, table: str = "t") -> list[int]:
    """Return the number of commits of each record of remembered commits; 0 for one of a single commit."""

    def read(view: ReadTxn) -> list[int]:
        records = history_records(view, find_table(view, table).id)
        return [0 if record.chapter is None else len(record.chapter) for record in records]

    return store._handle.catalog.read(read)


def known_from(store: el.Store, table: str = "t") -> int:
    def read(view: ReadTxn) -> int:
        definition = find_table(view, table)
        return get_version(view, definition.id, table).known_from

    return store._handle.catalog.read(read)


# ---- a random history beside its twin --------------------------------------------------------------------------------


class Twins:
    """Two stores with equal commits of a table and a view of it; the second one writes chapters."""

    def __init__(self, root: Path, seed: int) -> None:
        self.now_ms, self.dice, self.places = NOW_MS, random.Random(seed), 0
        self.stores = [
            el.open(root / name, durability="os", clock=lambda: self.now_ms) for name in ("single", "chaptered")
        ]
        self.single, self.chaptered = self.stores
        options = el.TableOptions(history_retention=timedelta(minutes=4), log_retention=timedelta(minutes=3))
        for store in self.stores:
            store.create_table("t", SCHEMA, ["k"], options=options)
            store.create_view("v", "SELECT k, v + 1 AS v FROM t WHERE v < 50", ["k"], options=options)
        self.memories = [store._handle.memory for store in self.stores]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def each(self, act: Any) -> None:
        first, second = (act(store) for store in self.stores)
        assert first == second

    def turn(self) -> None:
        self.now_ms += self.dice.choice([1, 100, 1000, 4000])
        if self.dice.random() < 0.05:
            self.each(lambda store: store.view("v").step())
            self.now_ms += 60_000
        kind = self.dice.random()
        if kind < 0.6:
            rows = pa.table({"k": [self.dice.randrange(9)], "v": [self.dice.randrange(100)]}, schema=SCHEMA)
            self.places += 1
            txn = self.dice.choice([None, ("app", self.places), ("other", self.places)])
            self.each(lambda store: self._commit(store, rows, txn))
        elif kind < 0.8:
            self.each(lambda store: store.view("v").step())
        elif kind < 0.9:
            self.each(lambda store: store.compact(self.dice.choice(["t"])))
        for name in ("t", "v"):
            if self.dice.random() < 0.3:
                write(self.chaptered, name)

    def _commit(self, store: el.Store, rows: pa.Table, txn: tuple[str, int] | None) -> int:
        if rows["v"][0].as_py() % 5:
            return store.table("t").upsert(rows, txn=txn)
        writer, base = store.table("t").writer(), store.last_epoch
        writer.upsert(rows)
        return store.commit({"t": writer.seal(base + 4096)}, txn=txn, epoch=base + 2 * 4096)

    def check(self) -> None:
        assert self.chaptered.verify().ok
        for name in ("t", "v"):
            begin = known_from(self.single, name)
            assert known_from(self.chaptered, name) <= begin
            self.each(lambda store, name=name, begin=begin: self.facts(store, name, begin))
        for name in ("t", "v"):
            for _ in range(6):
                moment = datetime.fromtimestamp((self.now_ms - self.dice.randrange(300_000)) / 1000, UTC)
                rows, chaptered = (self.rows(store, name, moment) for store in self.stores)
                assert rows == chaptered or (isinstance(rows, str) and "no longer" in rows), (rows, chaptered)

    @staticmethod
    def rows(store: el.Store, name: str, moment: datetime) -> Any:
        try:
            with store.snapshot([name], consistency="as_of", timestamp=moment) as snapshot:
                return snapshot[name].to_arrow().to_pylist()
        except el.EpochlogError as error:
            return str(error)

    def facts(self, store: el.Store, name: str, begin: int) -> Any:
        """Return what can be asked about the commits past `begin`."""

        def read(view: ReadTxn) -> Any:
            table = find_table(view, name)
            epochs = list(commit_epochs(view, table.id, begin))
            version = get_version(view, table.id, name)
            seen = [
                EpochMemory().of(view, table.id, begin, version.max_committed_epoch),
                store._handle.memory.of(view, table.id, begin, version.max_committed_epoch),
            ]
            ranges: list[Any] = []
            for low in (begin, *epochs[::3]):
                for high in (*epochs[::4], version.max_committed_epoch):
                    arrays = commit_arrays(view, table.id, low, high)
                    ranges.append([array.tolist() for array in arrays])
                    ranges.append(list(commit_epochs(view, table.id, low, high)))
                    assert ranges[-1][::-1] == list(commit_epochs(view, table.id, low, high, reverse=True))
                    assert ranges[-1] == ranges[-2][0]
                ranges.append(list(newest_commits(view, table.id, low)))
            missing = [commit_at(view, table.id, epoch + 1) for epoch in epochs if epoch + 1 not in epochs]
            assert missing == [None] * len(missing)
            commits = [commit_at(view, table.id, epoch) for epoch in epochs]
            assert commits[::-1] == list(newest_commits(view, table.id, begin))
            arrays = [[part.tolist() for part in epochs_of] for epochs_of in seen]
            assert arrays[0] == arrays[1]
            return epochs, commits, arrays, ranges

        return store._handle.catalog.read(read), list(islice(store.table(name).history()["epoch"].to_pylist(), 3))


@pytest.mark.rule("4.21")
@pytest.mark.parametrize("seed", seeds(range(6), 2))
@pytest.mark.local_only
def test_random_histories_read_alike_in_chapters_and_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("epochlog.store.compaction.packing_pass.write_chapters", lambda handle, table, limit_s: 0)
    twins, most = Twins(tmp_path, seed), [0, 0]
    try:
        for turn in range(120):
            twins.turn()
            for place, name in enumerate(("t", "v")):
                most[place] = max(most[place], *sizes(twins.chaptered, name), 0)
            if turn % 15 == 14:
                twins.check()
    finally:
        twins.close()
    assert most[0] > SMALL["MOST_COMMITS"], most
    assert most[1] > 0, most


# ---- literal cases ---------------------------------------------------------------------------------------------------


def test_four_commits_make_a_chapter_and_two_chapters_a_larger_one(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
    epochs = put(store, now_ms, 5)
    assert write(store) == 1
    assert sizes(store) == [4, 0]
    epochs += put(store, now_ms, 4)
    assert write(store) == 2
    assert sizes(store) == [8, 0]
    assert write(store) == 0
    assert store.table("t").history()["epoch"].to_pylist() == epochs[::-1]


def test_the_newest_commit_is_in_no_chapter(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
    put(store, now_ms, 4)
    assert write(store) == 0
    assert sizes(store) == [0, 0, 0, 0]


def test_a_process_that_begins_goes_on_behind_the_chapters(tmp_path: Path, now_ms: list[int]) -> None:
    for _ in range(3):
        with el.open(tmp_path / "s", durability="os", clock=lambda: now_ms[0]) as store:
            if not store.tables():
                store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
            put(store, now_ms, 4)
            write(store)
    with el.open(tmp_path / "s", durability="os", clock=lambda: now_ms[0]) as store:
        assert sizes(store) == [8, 0, 0, 0, 0]
        put(store, now_ms, 5)
        assert write(store) == 3
        assert sizes(store) == [8, 8, 0]


@pytest.mark.rule("4.21")
def test_history_outlives_a_log_of_a_minute(store: el.Store, now_ms: list[int]) -> None:
    """Neither the truncation of the log nor a pack takes the commits that reads of the past need."""
    options = el.TableOptions(history_retention=timedelta(days=2), log_retention=timedelta(minutes=1))
    store.create_table("t", SCHEMA, ["k"], options=options)
    view = store.create_view("v", "SELECT k, v FROM t", ["k"], options=options)
    seen: list[tuple[datetime, list[Any]]] = []
    for _ in range(60):
        put(store, now_ms, 5, step_ms=3000)
        now_ms[0] += 1000
        while view.step():
            pass
        store.compact()
        seen.append((datetime.fromtimestamp(now_ms[0] / 1000, UTC), store.table("t").to_arrow().to_pylist()))
    assert max(sizes(store)) > SMALL["MOST_COMMITS"]
    assert max(sizes(store, "v")) > SMALL["MOST_COMMITS"]
    assert store.table("t").info.log_start_epoch > 0
    for moment, rows in seen[2::7]:
        with store.snapshot(["t", "v"], consistency="as_of", timestamp=moment) as snapshot:
            assert snapshot["t"].to_arrow().to_pylist() == rows
            assert snapshot["v"].to_arrow().to_pylist() == rows
    assert store.verify().ok


def test_a_chapter_spans_a_sixteenth_of_the_time_for_which_commits_are_remembered(
    store: el.Store, now_ms: list[int]
) -> None:
    options = el.TableOptions(history_retention=timedelta(minutes=16), log_retention=timedelta(minutes=1))
    store.create_table("t", SCHEMA, ["k"], options=options)
    put(store, now_ms, 12, step_ms=25_000)  # three of them in a minute
    write(store)
    assert sizes(store) == [3, 3, 3, 0, 0, 0]
    put(store, now_ms, 3, step_ms=70_000)
    put(store, now_ms, 3, step_ms=1000)
    write(store)
    assert sizes(store) == [3, 3, 3, 3, 0, 0, 0, 0, 0, 0]


def test_chapters_that_span_too_much_together_are_merged_as_far_as_they_may(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MERGED", 4)
    options = el.TableOptions(history_retention=timedelta(minutes=16), log_retention=timedelta(minutes=1))
    store.create_table("t", SCHEMA, ["k"], options=options)
    for _ in range(7):
        put(store, now_ms, 4, step_ms=5000)  # twelve of them in a minute
        write(store)
    assert sizes(store) == [12, 4, 4, 4, 0, 0, 0, 0]
    put(store, now_ms, 5, step_ms=5000)
    write(store)
    assert sizes(store) == [12, 12, 4, 4, 0]


def test_retention_forgets_a_chapter_as_a_whole(store: el.Store, now_ms: list[int]) -> None:
    options = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(minutes=1))
    store.create_table("t", SCHEMA, ["k"], options=options)
    epochs = put(store, now_ms, 9, step_ms=1000)
    write(store)
    assert sizes(store) == [4, 4, 0]
    now_ms[0] += 53_000  # the first commits are past the retention, inside of the first chapter
    store.compact("t", full=True)
    assert sizes(store)[0] == 4
    assert known_from(store) == 0
    now_ms[0] += 3_500
    store.compact("t", full=True)
    assert known_from(store) == epochs[3]
    assert store.table("t").history()["epoch"].to_pylist() == epochs[:3:-1]
    assert store.verify().ok


@pytest.mark.parametrize("change", ["chapter", "forget", "drop"])
def test_commits_that_changed_while_a_chapter_was_written_stay(
    store: el.Store, now_ms: list[int], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    options = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(minutes=1))
    store.create_table("t", SCHEMA, ["k"], options=options if change == "forget" else FOR_LONG)
    put(store, now_ms, 9)
    calls: list[str] = []

    def joined(commits: Any) -> Chapter:
        monkeypatch.setattr(Chapter, "of", of)
        calls.append(change)
        if change == "chapter":
            write(store)
        elif change == "forget":
            now_ms[0] += 120_000
            store.compact("t", full=True)
            store.compact("t", full=True)  # now no read needs the entries of the log
        else:
            store.drop_table("t")
        return of(commits)

    of = Chapter.of
    monkeypatch.setattr(Chapter, "of", joined)
    monkeypatch.setattr("epochlog.store.compaction.packing_pass.write_chapters", lambda handle, table, limit_s: 0)
    if change == "drop":
        with pytest.raises(el.TableDropped):
            write(store)
        return
    assert write(store) == 0
    assert calls == [change]
    assert sizes(store) == ([8, 0] if change == "chapter" else [0])
    assert store.verify().ok


def test_a_table_with_a_chapter_is_refused_by_versions_that_know_none(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
    put(store, now_ms, 5)
    assert store._handle.catalog.read(lambda view: find_table(view, "t")).format == 1
    write(store)
    assert store._handle.catalog.read(lambda view: find_table(view, "t")).format == 4


def commits(count: int) -> list[Commit]:
    return [
        Commit(
            epoch=4096 * (number + 1), at_ms=NOW_MS + number, operation=("write", "alter")[number % 2],
            txn=("app", 1 << 62) if number % 3 == 0 else None, job={1: "v", 7: "w"}.get(number), rows_upserted=number,
            rows_deleted=2, segments=1, bytes=900, changed=number % 4 > 0, labels=(7, 9) if number == 2 else (),
        )
        for number in range(count)
    ]  # fmt: skip


def test_a_chapter_gives_the_commits_that_it_was_made_of() -> None:
    made = commits(9)
    first, second = Chapter.of(made[:5]), Chapter.of(made[5:])
    for chapter in (Chapter.of(made), Chapter.joined([first, second])):
        key = hist_key(1, chapter.epoch)
        again = decode(Chapter, key, pack(key, chapter.to_record()))
        assert list(again.commits(range(9))) == made
        assert again.changed.tolist() == [commit.changed for commit in made]
        assert not again.epochs.flags.writeable


def test_a_chapter_of_two_thousand_commits_is_small() -> None:
    key = hist_key(1, 1)
    rng = np.random.default_rng(0)
    drawn = [
        Commit(4096 * int(epoch), NOW_MS + int(epoch), "write", ("stream", number), None, int(rng.integers(1, 99)),
               int(rng.integers(0, 9)), 1, int(rng.integers(900, 1300)), True, ())
        for number, epoch in enumerate(np.cumsum(rng.integers(900, 1100, 2048)))
    ]  # fmt: skip
    assert len(pack(key, Chapter.of(drawn).to_record())) <= 64 << 10


@pytest.mark.parametrize("spoil", ["epoch", "commits", "columns", "texts", "labels", "chapter"])
def test_a_chapter_s_record_that_does_not_fit_is_corrupt(spoil: str) -> None:
    values = {"epoch": 3, "commits": 4, "columns": b"x", "texts": [None, 3], "labels": [[1]], "chapter": 2}
    record = UnpackedRecord({**Chapter.of(commits(5)).to_record(), spoil: values[spoil]})
    with pytest.raises(Corrupt):
        Chapter.from_record(record)


@pytest.mark.damages_store
@pytest.mark.parametrize("damage", ["lost", "twice", "differs"])
def test_verify_names_the_commits_of_a_damaged_chapter(store: el.Store, now_ms: list[int], damage: str) -> None:
    store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
    put(store, now_ms, 9)
    write(store)

    def spoil(tx: Any) -> None:
        record = next(iter(history_records(tx, find_table(tx, "t").id)))
        inner = record.commits
        commit_log.delete_commits(tx, 1, record.epoch)
        if damage == "lost":
            commit_log.put_commit(tx, 1, Chapter.of([inner[0], *inner[2:]]))
        elif damage == "twice":
            commit_log.put_commit(tx, 1, Chapter.of(inner))
            commit_log.put_commit(tx, 1, inner[2])
        else:
            wrong = Commit.from_record({**inner[2].to_record(), "rows_upserted": 77})
            commit_log.put_commit(tx, 1, Chapter.of([*inner[:2], wrong, *inner[3:]]))

    store._handle.catalog.transact(spoil)
    (problem,) = store.verify().problems
    expected = {"lost": "lacks the records? of 1 commits", "twice": "two records", "differs": "wrong records of 1"}
    assert expected[damage].replace("s?", "s") in problem.what


# ---- planted errors --------------------------------------------------------------------------------------------------


def _newest_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = chapters.history_records
    patch.setattr(
        chapters,
        "history_records",
        lambda view, table_id, after=-1, until=1 << 52, **reverse: real(
            view, table_id, after, until if reverse else 1 << 52, **reverse
        ),
    )


def _records_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = chapters._land

    def land(tx: Any, table: Any, records: Any, chapter: Any) -> bool:
        return real(tx, table, [record._replace(value=tx.get_packed(record.key)) for record in records], chapter)

    patch.setattr(chapters, "_land", land)


def _a_range_has_whole_chapters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chapter, "span", lambda chapter, after, until: range(len(chapter)))


def _a_range_ends_before_the_chapter_that_goes_past_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        commit_log,
        "_records_with",
        lambda view, table_id, after, until, reverse=False: view.scan_packed(
            hist_key(table_id, after + 1), hist_key(table_id, until + 1), reverse=reverse
        ),
    )


def _texts_of_the_first_chapter(patch: pytest.MonkeyPatch) -> None:
    real = Chapter.joined.__func__  # pyright: ignore[reportFunctionMemberAccess]  # of a class method

    def joined(cls: Any, parts: Any) -> Chapter:
        whole = real(cls, parts)
        return Chapter(whole.epochs, whole.columns, parts[0].texts + whole.texts, whole.labels)

    patch.setattr(Chapter, "joined", classmethod(joined))


def _needed_commits_go_with_their_chapter(patch: pytest.MonkeyPatch) -> None:
    real = commit_log.last_epochs

    def last_epochs(view: ReadTxn, table_id: int, until: int) -> Iterator[int]:
        beyond = (record.epoch for record in history_records(view, table_id, until) if record.chapter is not None)
        return iter([*real(view, table_id, until), *islice(beyond, 1)])

    patch.setattr("epochlog.store.retention.retention.last_epochs", last_epochs)


@pytest.mark.planted
@pytest.mark.local_only
@pytest.mark.parametrize("plant", [
    pytest.param(_records_are_not_compared, marks=pytest.mark.damages_store),
    _newest_is_taken, _a_range_has_whole_chapters, _texts_of_the_first_chapter, _needed_commits_go_with_their_chapter,
    _a_range_ends_before_the_chapter_that_goes_past_it,
])  # fmt: skip
def test_a_planted_error_of_chapters_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    now_ms = [NOW_MS]
    with pytest.raises((AssertionError, el.EpochlogError, ValueError, IndexError)):  # noqa: PT012  # the first that finds it
        test_a_chapter_gives_the_commits_that_it_was_made_of()
        for number, check in enumerate((
            test_the_newest_commit_is_in_no_chapter,
            test_retention_forgets_a_chapter_as_a_whole,
            lambda opened, clock: test_commits_that_changed_while_a_chapter_was_written_stay(
                opened, clock, monkeypatch, "chapter"
            ),
        )):  # fmt: skip
            with el.open(tmp_path / str(number), durability="os", clock=lambda: now_ms[0]) as opened:
                check(opened, now_ms)
        test_random_histories_read_alike_in_chapters_and_not(tmp_path / "random", monkeypatch, 0)


def test_the_newest_chapter_is_known_without_decoding(store: el.Store, now_ms: list[int]) -> None:
    store.create_table("t", SCHEMA, ["k"], options=FOR_LONG)
    epochs = put(store, now_ms, 6)
    write(store)
    assert store._handle.catalog.read(lambda view: newest_chapter(view, 1)) == epochs[3]
