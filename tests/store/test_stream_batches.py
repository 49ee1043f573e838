"""Micro-batches of streams as transactions: a restart repeats the newest batch alone, and no other rows pass for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.commit import idempotency, stream_batches
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import CommitTxn, find_committed_epoch, forget_unused, pair_of
from epochlog.store.commit.root_commit import commit_or_delete
from epochlog.store.commit.stream_batches import StreamBatch
from epochlog.store.metadata.lookups import find_table
from epochlog.store.sst.segment_writer import SegmentWriter

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", durability="os") as opened:
        opened.create_table("t", SCHEMA, ["k"])
        yield opened


def land(store: el.Store, txn: CommitTxn, *keys: int) -> bool:
    """Write a batch as `el.sink` does; return False if it was taken for a replay."""
    handle = store._handle
    table = handle.catalog.read(lambda view: find_table(view, "t"))
    if find_committed_epoch(handle, txn, [table.id]) is not None:
        return False
    writer = SegmentWriter(handle.write_target(table))
    writer.upsert(pa.table({"k": list(keys)}, SCHEMA))
    commit_or_delete(handle, [TableEdit(table.id, table.name, tuple(writer.finish()))], txn=txn)
    return True


def keys(store: el.Store) -> list[int]:
    return store.table("t").to_arrow()["k"].to_pylist()


# ---- literal cases -------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.25")
def test_the_first_batch_of_a_new_checkpoint_is_no_replay(store: el.Store) -> None:
    """It was lost in silence: batch 0 counted as the batch 0 of the deleted checkpoint."""
    assert land(store, StreamBatch("app", 0, "old"), 1)
    with pytest.raises(el.CheckpointMismatch, match=r"batch 0 has landed before.*new_checkpoint=True.*newCheckpoint"):
        land(store, StreamBatch("app", 0, "new"), 2)
    assert keys(store) == [1] and not store.verify().unreachable
    for number, key in enumerate((2, 3)):
        assert land(store, StreamBatch("app", number, "new", new_checkpoint=True), key)
        assert not land(store, StreamBatch("app", number, "new", new_checkpoint=True), key)
    assert not land(store, StreamBatch("app", 1, "new"), 3)  # the option may be taken away again
    assert land(store, StreamBatch("app", 2, "new"), 4)
    assert keys(store) == [1, 2, 3, 4]


@pytest.mark.rule("1.25")
def test_an_alter_of_the_application_is_no_batch_of_its_stream(store: el.Store) -> None:
    """Its number made the next batch one of a checkpoint that is older than the table."""
    assert land(store, StreamBatch("app", 0, "q"), 1)
    store.table("t").alter(add=[pa.field("v", pa.int64())])
    store.table("t").alter(drop=["v"], txn=("app", 17))
    assert land(store, StreamBatch("app", 1, "q"), 2) and not land(store, StreamBatch("app", 1, "q"), 2)
    assert keys(store) == [1, 2]


@pytest.mark.rule("1.25")
def test_a_batch_that_is_replayed_across_the_upgrade_stays_one(store: el.Store) -> None:
    for number in range(3):
        assert land(store, ("app", number), number)  # as an earlier release recorded it
    assert not land(store, StreamBatch("app", 2, "q"), 2)
    assert land(store, StreamBatch("app", 3, "q"), 3) and not land(store, StreamBatch("app", 3, "q"), 3)
    with pytest.raises(el.CheckpointMismatch, match="new_checkpoint=True"):
        land(store, StreamBatch("app", 0, "other"), 7)
    assert land(store, StreamBatch("app", 0, "other", new_checkpoint=True), 7)
    assert keys(store) == [0, 1, 2, 3, 7]


@pytest.mark.rule("1.26")
@pytest.mark.parametrize("new_checkpoint", [False, True])
@pytest.mark.parametrize("query", ["q", None])
def test_a_checkpoint_that_went_back_is_refused(store: el.Store, query: str | None, new_checkpoint: bool) -> None:
    """Restored from a backup, or with deleted offsets, it numbers other rows as batches that have landed."""
    for number in range(3):
        assert land(store, StreamBatch("app", number, query), number)
    with pytest.raises(el.CheckpointMismatch, match="start the stream with a new, empty checkpoint"):
        land(store, StreamBatch("app", 1, query, new_checkpoint=new_checkpoint), 9)
    assert keys(store) == [0, 1, 2]


@pytest.mark.rule("1.26")
def test_the_newest_batch_that_is_planned_anew_is_no_replay(store: el.Store) -> None:
    """As from a checkpoint of last night, of a stream with a batch a day."""
    assert land(store, StreamBatch("app", 0, "q", 1_000), 1)
    assert not land(store, StreamBatch("app", 0, "q", 1_000), 1) and not land(store, StreamBatch("app", 0, "q"), 1)
    with pytest.raises(el.CheckpointMismatch, match="checkpoint is older"):
        land(store, StreamBatch("app", 0, "q", 2_000), 2)
    assert land(store, StreamBatch("app", 0, "r", 2_000, new_checkpoint=True), 2)


@pytest.mark.rule("1.26")
def test_a_batch_that_was_empty_gets_no_rows_behind_later_ones(store: el.Store) -> None:
    """It landed, and then batch 2, with the rows after those of the first batch 2, passed for its replay."""
    assert land(store, StreamBatch("app", 0, "q"), 0) and land(store, StreamBatch("app", 2, "q"), 2)
    with pytest.raises(el.CheckpointMismatch):
        land(store, StreamBatch("app", 1, "q"), 9)


def test_outcomes_that_are_forgotten_name_the_option(tmp_path: Path) -> None:
    now_ms = [1_800_000_000_000]
    with el.open(tmp_path / "later", clock=lambda: now_ms[0]) as store:
        store.create_table("t", SCHEMA, ["k"])
        assert land(store, StreamBatch("app", 5, "q"), 1)
        now_ms[0] += 31 * DAY_MS
        assert forget_unused(store._handle) == 1
        for number in (0, 5):
            with pytest.raises(el.TxnOutcomeForgotten, match="new_checkpoint=True"):
                land(store, StreamBatch("app", number, "q"), 2)
        assert land(store, StreamBatch("app", 6, "q"), 2)
        assert land(store, StreamBatch("app", 0, "new", new_checkpoint=True), 3)


def test_a_stream_without_a_query_id_takes_another_name(store: el.Store) -> None:
    assert land(store, StreamBatch("app", 0, None), 1)
    with pytest.raises(el.CheckpointMismatch, match="another application name"):
        land(store, StreamBatch("app", 0, None, new_checkpoint=True), 2)


def test_a_resolved_batch_can_no_longer_land_and_is_no_newest_one(store: el.Store) -> None:
    assert land(store, StreamBatch("app", 0, "q"), 0)
    assert store.resolve(("app", 0)) is not None and store.resolve(("app", 2)) is None
    assert land(store, StreamBatch("app", 1, "q"), 1)
    with pytest.raises(el.TxnAborted):
        land(store, StreamBatch("app", 2, "q"), 2)


def test_of_two_new_streams_with_one_name_one_lands(store: el.Store) -> None:
    """Both have looked before either commits: the transaction decides."""
    handle, batch = store._handle, StreamBatch("app", 0, "second")
    table = handle.catalog.read(lambda view: find_table(view, "t"))
    assert handle.catalog.read(lambda view: pair_of(view, batch)) == ("app", 0)
    writer = SegmentWriter(handle.write_target(table))
    writer.upsert(pa.table({"k": [2]}, SCHEMA))
    edit = TableEdit(table.id, table.name, tuple(writer.finish()))
    real, raced = stream_batches.pair_of_batch, iter([True])

    def pair_of_batch(view: object, txn: StreamBatch) -> tuple[str, int]:
        pair = real(view, txn)  # pyright: ignore[reportArgumentType]
        if next(raced, False):
            assert land(store, ("app", 0), 1) and land(store, StreamBatch("app", 1, "first"), 3)
        return pair

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(idempotency, "pair_of_batch", pair_of_batch)
        with pytest.raises(el.CheckpointMismatch):
            commit_or_delete(handle, [edit], txn=batch)
    assert keys(store) == [1, 3] and not store.verify().unreachable


@pytest.mark.rule("1.25")
def test_an_outcome_of_an_earlier_release_is_not_of_a_query_after_one_that_started_anew(store: el.Store) -> None:
    """Its batch 0 was lost in silence: the outcome belonged to whichever query asked for it."""
    assert land(store, ("app", 0), 1)
    assert not land(store, StreamBatch("app", 0, "first"), 1), "the stream goes on after the upgrade"
    assert land(store, StreamBatch("app", 0, "second", new_checkpoint=True), 2)
    with pytest.raises(el.CheckpointMismatch, match="batch 0 has landed before"):
        land(store, StreamBatch("app", 0, "third"), 3)
    assert land(store, StreamBatch("app#other", 0, "fourth"), 4) and land(store, ("app2", 0), 5)
    assert not land(store, StreamBatch("app2", 0, "fifth"), 5), "another application's start says nothing of this one"
    assert keys(store) == [1, 2, 4, 5]


# ---- random histories ----------------------------------------------------------------------------------------------


class Stream:
    """Stream with restarts, new and restored checkpoints, and a table. Each batch lands once, or raises: none is lost.

    The content of a batch is a number of its own; 0 is an empty batch. The first batches may be of an earlier release,
    which keeps no marks with their outcomes, and Spark may not tell the time at which it has planned a batch. A stream
    does not pass over a batch that has failed.
    """

    def __init__(self, store: el.Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.upgraded, self.tells_time = chance.random() < 0.7, chance.random() < 0.5
        self.newest = (-1, True)  # the number of the newest batch that landed; True if its outcome has marks
        self.landed: set[int] = set()
        self.new_checkpoint = False
        self.checkpoint: dict[int, int] = {}
        self.queries = self.contents = 0
        self.failed = False

    def next(self) -> None:
        if self.failed:
            self.replay()
            return
        self.contents += 1
        number = max(self.checkpoint, default=-1) + 1
        self.checkpoint[number] = self.contents if self.chance.random() < 0.8 else 0
        self.run(number)

    def replay(self) -> None:
        if self.checkpoint:
            self.run(max(self.checkpoint))

    def anew(self) -> None:
        """Start with a new checkpoint, and say so or not."""
        if self.upgraded:
            self.new_checkpoint = self.chance.random() < 0.5
            self.queries, self.checkpoint, self.failed = self.queries + 1, {}, False
            self.next()

    def back(self) -> None:
        """Restore an older checkpoint. Without the times of its batches, a newest one that is planned anew is lost."""
        if self.upgraded and self.tells_time:
            kept = self.chance.randint(0, max(self.checkpoint, default=0))
            self.checkpoint = {number: content for number, content in self.checkpoint.items() if number < kept}
            self.failed = False

    def run(self, number: int) -> None:
        content = self.checkpoint[number]
        if content == 0:
            return
        self.upgraded = self.upgraded or self.chance.random() < 0.3
        planned_ms = content if self.tells_time else None
        batch = StreamBatch("app", number, f"query {self.queries}", planned_ms, self.new_checkpoint)
        was, marked = content in self.landed, self.newest[1]
        try:
            new = land(self.store, batch if self.upgraded else ("app", number), content)
        except el.CheckpointMismatch:
            assert not (was and number == self.newest[0]), "the replay of the newest batch is refused"
            self.failed = True
            return
        self.failed = False
        if new:
            assert not was or (self.new_checkpoint and not marked), "a batch has landed twice"
            self.newest = (number, self.upgraded)
            self.landed.add(content)
        elif marked:
            assert was, "the rows of a batch are lost"


def history(store: el.Store, chance: random.Random) -> None:
    stream = Stream(store, chance)
    for _ in range(14):
        chance.choices([stream.next, stream.replay, stream.anew, stream.back], [6, 3, 2, 1])[0]()


@pytest.mark.medium
@pytest.mark.rule("1.25", "1.26")
@given(st.randoms(use_true_random=False))
def test_any_history_of_checkpoints_loses_no_batch(chance: random.Random) -> None:
    with TemporaryDirectory() as folder, el.open(Path(folder) / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["k"])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(idempotency, "KEPT_OUTCOMES", chance.choice([2, 4, 1_000]))
            history(store, chance)
        assert not store.verify().problems


def blind_to_queries(patched: pytest.MonkeyPatch) -> None:
    """As before: only the number of a batch counts."""
    patched.setattr(stream_batches.StreamBatch, "query_hash", None)


def blind_to_order(patched: pytest.MonkeyPatch) -> None:
    """A batch whose number has landed is always a replay, also behind later ones."""
    patched.setattr(idempotency, "pair_of_batch", lambda _view, batch: (batch.app, batch.number))


def blind_to_times(patched: pytest.MonkeyPatch) -> None:
    """The newest batch counts as replayed, also when it was planned anew."""
    real = stream_batches.StreamBatch.marks
    patched.setattr(stream_batches.StreamBatch, "marks", lambda batch: {**real(batch), "planned_ms": None})


def one_name_for_all(patched: pytest.MonkeyPatch) -> None:
    """A stream that was started anew counts on in the outcomes of the earlier one."""
    real = stream_batches.pair_of_batch
    patched.setattr(idempotency, "pair_of_batch", lambda view, batch: (real(view, batch)[0][:3], batch.number))


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("bug", [blind_to_queries, blind_to_order, blind_to_times, one_name_for_all])
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, el.TxnMismatch)):  # noqa: PT012  # some history finds it
        for seed in range(200):
            with el.open(tmp_path / str(seed), durability="os") as store:
                store.create_table("t", SCHEMA, ["k"])
                history(store, random.Random(seed))
