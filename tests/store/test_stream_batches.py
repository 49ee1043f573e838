"""Micro-batches of streams as transactions: a restart repeats the newest batch alone, and no other rows pass for it."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.commit import idempotency, stream_batches
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import CommitTxn, find_committed_epoch, forget_unused, pair_of
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.commit.stream_batches import NO_BATCH, StreamBatch
from epochlog.store.commit.transaction import commit_changes
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
    change = TableChange(table, tuple(writer.finish()))
    commit_changes(handle, [change], RootCommit(txn=txn), delete_refused=True)
    return True


def land_before(store: el.Store, txn: tuple[str, int], *keys: int) -> bool:
    """Write a batch as an earlier release does, whose outcomes have no marks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(idempotency, "PAIR_MARKS", {})
        return land(store, txn, *keys)


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
        assert land_before(store, ("app", number), number)
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


@pytest.mark.medium
@pytest.mark.rule("1.25", "1.26")
@pytest.mark.parametrize("chosen", [False, True], ids=["number of the batch", "number of the user's"])
@pytest.mark.parametrize("kept", [1, 2])
def test_no_batch_whose_outcome_is_dropped_lands_again_or_is_lost(
    kept: int, chosen: bool, store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches 0 to 3 have landed; each comes again: of the query, of another, or of one that is not told."""
    monkeypatch.setattr(idempotency, "KEPT_OUTCOMES", kept)
    replays: dict[tuple[str | None, str | None], set[int]] = {}
    for landed, asking, number in itertools.product(("q", None, "before"), ("q", "other", None), range(4)):
        app = f"{landed}/{asking}/{number}"
        for earlier in range(4):
            if landed == "before":
                assert land_before(store, (app, earlier), earlier)
            else:
                assert land(store, StreamBatch(app, earlier, landed, batch=100 + earlier if chosen else None), earlier)
        before = store.last_epoch
        try:
            lands = land(store, StreamBatch(app, number, asking, batch=100 + number if chosen else None), 9)
        except (el.CheckpointMismatch, el.TxnOutcomeForgotten):
            assert store.last_epoch == before
            continue
        assert not lands, "it landed twice, or beside another batch with its number"
        replays.setdefault((landed, asking), set()).add(number)
    known = set(range(4 - kept, 4)) if chosen else {3}
    pairs = (("q", "q"), (None, None), ("before", None), ("before", "q"), ("before", "other"))
    assert replays == dict.fromkeys(pairs, known)


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
    change = TableChange(table, tuple(writer.finish()))
    real, raced = stream_batches.pair_of_batch, iter([True])

    def pair_of_batch(view: object, txn: StreamBatch) -> tuple[str, int]:
        pair = real(view, txn)  # pyright: ignore[reportArgumentType]
        if next(raced, False):
            assert land(store, ("app", 0), 1) and land(store, StreamBatch("app", 1, "first"), 3)
        return pair

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(idempotency, "pair_of_batch", pair_of_batch)
        assert find_committed_epoch(handle, batch, [table.id]) is None
        with pytest.raises(el.CheckpointMismatch):
            commit_changes(handle, [change], RootCommit(txn=batch), delete_refused=True)
    assert keys(store) == [1, 3] and not store.verify().unreachable


@pytest.mark.rule("1.25")
def test_an_outcome_of_an_earlier_release_is_not_of_a_query_after_one_that_started_anew(store: el.Store) -> None:
    """Its batch 0 was lost in silence: the outcome belonged to whichever query asked for it."""
    assert land_before(store, ("app", 0), 1)
    assert not land(store, StreamBatch("app", 0, "first"), 1), "the stream goes on after the upgrade"
    assert land(store, StreamBatch("app", 0, "second", new_checkpoint=True), 2)
    with pytest.raises(el.CheckpointMismatch, match="batch 0 has landed before"):
        land(store, StreamBatch("app", 0, "third"), 3)
    assert land(store, StreamBatch("app#other", 0, "fourth"), 4) and land_before(store, ("app2", 0), 5)
    assert not land(store, StreamBatch("app2", 0, "fifth"), 5), "another application's start says nothing of this one"
    assert keys(store) == [1, 2, 4, 5]


@pytest.mark.rule("1.25")
@pytest.mark.parametrize("batch", [None, NO_BATCH])
def test_a_thread_without_the_querys_id_loses_no_batch(store: el.Store, batch: int | None) -> None:
    """Its query was unknown, which counted as equal: the rows after a deleted checkpoint were lost in silence."""
    assert land(store, StreamBatch("app", 0, "q"), 1)
    with pytest.raises(el.CheckpointMismatch, match="does not tell here which query writes.*InheritableThread"):
        land(store, StreamBatch("app", 0, None, batch=batch), 2)
    assert land(store, StreamBatch("by thread", 0, None, batch=batch), 3)
    with pytest.raises(el.CheckpointMismatch, match="from another checkpoint"):
        land(store, StreamBatch("by thread", 0, "q"), 4)
    assert not land(store, StreamBatch("by thread", 0, None, batch=batch), 3), "as over Spark Connect"


@pytest.mark.rule("1.25")
def test_a_chosen_number_is_of_the_query_that_wrote_it(store: el.Store) -> None:
    """Only a number equal to the batch's kept its query: others lost the rows after a deleted checkpoint."""
    assert land(store, StreamBatch("app", 1000, "old", 5, batch=0), 1)
    assert not land(store, StreamBatch("app", 1000, "old", 5, batch=0), 1)
    with pytest.raises(el.CheckpointMismatch, match=r"transaction \('app', 1000\) has landed before"):
        land(store, StreamBatch("app", 1000, "new", 9, batch=0), 2)
    with pytest.raises(el.CheckpointMismatch, match="its checkpoint is older"):
        land(store, StreamBatch("app", 1000, "old", 9, batch=0), 2)
    assert not land(store, StreamBatch("app", 1000, "old", 9, batch=1), 2), "each batch repeats one write"
    assert land(store, StreamBatch("app", 1000, "new", 9, new_checkpoint=True, batch=0), 2)
    assert not land(store, StreamBatch("app", 1000, "new", 9, new_checkpoint=True, batch=0), 2)


@pytest.mark.rule("1.25", "1.26")
def test_numbers_made_of_the_batchs_are_replayed(store: el.Store) -> None:
    """Number 0 equals the batch's, and number 1 of that batch was taken for a later one: it was refused for ever."""
    for _ in range(2):
        for number in (0, 1):
            land(store, StreamBatch("app", number, "q", 5, batch=None if number == 0 else 0), number)
    assert keys(store) == [0, 1]


@pytest.mark.rule("1.25", "1.26")
@pytest.mark.parametrize("write", [("app", 20261127), StreamBatch("app", 20261127, None, batch=NO_BATCH)])
@pytest.mark.parametrize("before", [land, land_before])
def test_a_write_beside_the_stream_is_no_batch_of_it(
    store: el.Store, write: CommitTxn, before: Callable[..., bool]
) -> None:
    """Repeat the case in which it counted as the newest batch, and the stream's next one was refused for ever."""
    assert land(store, StreamBatch("app", 0, "q"), 0)
    assert (before if isinstance(write, tuple) else land)(store, write, 100)
    assert land(store, StreamBatch("app", 1, "q"), 1) and not land(store, StreamBatch("app", 1, "q"), 1)
    assert not land(store, write, 100)
    assert land(store, ("app", 2), 102)
    with pytest.raises(el.CheckpointMismatch, match="batch 2 has landed before"):
        land(store, StreamBatch("app", 2, "q"), 2)
    with pytest.raises(el.CheckpointMismatch, match="its transaction"):
        land(store, StreamBatch("app", 1, None, batch=NO_BATCH), 101)
    assert keys(store) == [0, 1, 100, 102]


@pytest.mark.rule("1.7")
def test_a_stream_whose_tables_changed_names_them(store: el.Store) -> None:
    """Check the advice: it was a new id, which no user of el.sink chooses."""
    store.create_table("u", SCHEMA, ["k"])
    assert land(store, StreamBatch("app", 0, "q"), 0)
    ids = [store._handle.catalog.read(lambda view, name=name: find_table(view, name)).id for name in ("t", "u")]
    with pytest.raises(el.TxnMismatch, match=r"in the tables \['t'\], and comes again for the tables \['t', 'u'\]"):
        find_committed_epoch(store._handle, StreamBatch("app", 0, "q"), ids)


# ---- random histories ----------------------------------------------------------------------------------------------


NUMBERINGS: dict[str, Callable[[int], list[int]]] = {
    "batch ids": lambda batch: [batch],
    "two writes a batch": lambda batch: [2 * batch, 2 * batch + 1],
    "from 1000 on": lambda batch: [1000 + batch],
    "both": lambda batch: [batch, 1000 + batch],
}


class Stream:
    """Stream with restarts, new and restored checkpoints, and a table. Each batch lands once, or raises: none is lost.

    The content of a write is a number of its own; 0 is an empty batch. The first batches may be of an earlier release,
    which keeps no marks with their outcomes, and Spark may not tell the time at which it has planned a batch, nor, to
    some threads, its query. Other writes take numbers of the application. A stream does not pass over a batch that has
    failed.
    """

    def __init__(self, store: el.Store, chance: random.Random, kept: int) -> None:
        self.store, self.chance, self.kept = store, chance, kept
        self.upgraded, self.tells_time = chance.random() < 0.7, chance.random() < 0.5
        self.has_threads = chance.random() < 0.2
        self.numbers = chance.choice(list(NUMBERINGS.values()))
        self.is_crowded = kept < 1_000 and len(self.numbers(0)) > 1  # so that the newest outcome may be forgotten
        self.landed: set[int] = set()
        self.by: dict[int, set[str]] = defaultdict(set)  # number -> the kinds of writes that have landed under it
        self.new_checkpoint, self.is_disturbed = False, False
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
            self.is_disturbed = True
            self.new_checkpoint = self.chance.random() < 0.5
            self.queries, self.checkpoint, self.failed = self.queries + 1, {}, False
            self.next()

    def back(self) -> None:
        """Restore an older checkpoint. Without the times of its batches, a newest one that is planned anew is lost."""
        if self.upgraded and self.tells_time:
            self.is_disturbed = True
            kept = self.chance.randint(0, max(self.checkpoint, default=0))
            self.checkpoint = {number: content for number, content in self.checkpoint.items() if number < kept}
            self.failed = False

    def other_write(self) -> None:
        """Write beside the stream: far from its numbers, or on one of them; in Spark, or with a pair in Python."""
        self.contents += 1
        self.is_crowded |= self.kept < 1_000
        number = self.contents + self.chance.choice([0, 0, 20_000_000])
        if number < 20_000_000 and not self.upgraded:
            return
        self.is_disturbed |= number < 20_000_000 or not self.upgraded
        in_spark = self.upgraded and self.chance.random() < 0.5
        if not in_spark and self.by[number]:
            return  # Who chooses a pair that has landed repeats its commit.
        write = StreamBatch("app", number, None, batch=NO_BATCH) if in_spark else ("app", number)
        try:
            new = (land if self.upgraded else land_before)(self.store, write, self.contents * 2)
        except (el.CheckpointMismatch, el.TxnOutcomeForgotten):
            assert self.by[number] or self.kept < 1_000, "a write is refused whose pair has not landed"
            return
        assert new or "legacy" in self.by[number] or "no query" in self.by[number], "the rows of a write are lost"
        if new:
            self.by[number].add("pair")

    def run(self, batch: int) -> None:
        content = self.checkpoint[batch]
        if content == 0:
            return
        self.upgraded = self.upgraded or self.chance.random() < 0.3
        try:
            for part, number in enumerate(self.numbers(batch)):
                self.write(batch, number, 2 * content + part)
        except (el.CheckpointMismatch, el.TxnOutcomeForgotten):
            assert self.is_disturbed or self.has_threads or self.kept < 1_000, "a false alarm"
            self.failed = True
            return
        self.failed = False

    def write(self, batch: int, number: int, content: int) -> None:
        # A chosen number whose query is unknown is not told from a write outside of the stream that was started anew.
        has_id = not self.has_threads or (number != batch and self.queries > 0) or self.chance.random() < 0.5
        query = f"query {self.queries}" if has_id else None
        chosen = None if number == batch else NO_BATCH if query is None else batch
        planned_ms = content // 2 if self.tells_time and query is not None else None
        was, kinds = content in self.landed, self.by[number]
        if self.upgraded:
            kind = "query" if query is not None else "no query"
            new = land(self.store, StreamBatch("app", number, query, planned_ms, self.new_checkpoint, chosen), content)
        else:
            kind, new = "legacy", land_before(self.store, ("app", number), content)
            # Of several writes of one batch without marks, only the last is known to be the newest.
            self.is_disturbed |= len(self.numbers(batch)) > 1
        unsure = {"legacy", *(["no query", "pair"] if query is None else [])}
        if not new:
            assert was or kinds & unsure, "the rows of a batch are lost"
            return
        is_unsure = kinds & {"legacy", "no query", "pair"} or self.is_crowded
        assert not was or (self.new_checkpoint and is_unsure), "a batch has landed twice"
        kinds.add(kind)
        self.landed.add(content)


def history(store: el.Store, chance: random.Random) -> None:
    kept = chance.choice([2, 4, 1_000, 1_000])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(idempotency, "KEPT_OUTCOMES", kept)
        stream = Stream(store, chance, kept)
        for _ in range(14):
            acts = [stream.next, stream.replay, stream.anew, stream.back, stream.other_write]
            chance.choices(acts, [6, 3, 2, 1, 1])[0]()


@pytest.mark.medium
@pytest.mark.rule("1.25", "1.26")
@given(st.randoms(use_true_random=False))
def test_any_history_of_checkpoints_loses_no_batch(chance: random.Random) -> None:
    with TemporaryDirectory() as folder, el.open(Path(folder) / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["k"])
        history(store, chance)
        assert not store.verify().problems


def blind_to_queries(patched: pytest.MonkeyPatch) -> None:
    """As before: only the number of a batch counts."""
    patched.setattr(stream_batches.StreamBatch, "query_hash", stream_batches.NO_QUERY)


def blind_to_order(patched: pytest.MonkeyPatch) -> None:
    """A batch whose number has landed is always a replay, also behind later ones."""
    patched.setattr(idempotency, "pair_of_batch", lambda _view, batch: (batch.app, batch.number))


def blind_to_times(patched: pytest.MonkeyPatch) -> None:
    """The newest batch counts as replayed, also when it was planned anew."""
    real = stream_batches.StreamBatch.marks
    patched.setattr(stream_batches.StreamBatch, "marks", lambda batch: {**real(batch), "planned_ms": None})


def blind_to_missing_ids(patched: pytest.MonkeyPatch) -> None:
    """Take an outcome of a known query for that of a thread to which Spark tells no query."""
    real = stream_batches._is_of_another
    patched.setattr(
        stream_batches, "_is_of_another", lambda view, app, batch: batch.query is not None and real(view, app, batch)
    )


def blind_to_chosen_numbers(patched: pytest.MonkeyPatch) -> None:
    """Take an outcome under a number that the user chose for a replay's, whatever its query, as before."""
    real = idempotency.pair_of_batch
    patched.setattr(
        idempotency,
        "pair_of_batch",
        lambda view, batch: real(view, batch) if batch.batch is None else (batch.app, batch.number),
    )


def any_pair_is_the_newest(patched: pytest.MonkeyPatch) -> None:
    """Count a pair that is no batch as the newest batch of the application's stream, as before."""
    real = stream_batches._Landed.of
    patched.setattr(
        stream_batches._Landed,
        "of",
        lambda number, record: (landed := real(number, record)) and replace(landed, batch=None),
    )


def one_name_for_all(patched: pytest.MonkeyPatch) -> None:
    """A stream that was started anew counts on in the outcomes of the earlier one."""
    real = stream_batches.pair_of_batch
    patched.setattr(idempotency, "pair_of_batch", lambda view, batch: (real(view, batch)[0][:3], batch.number))


BUGS = [
    *(blind_to_queries, blind_to_order, blind_to_times, one_name_for_all),
    *(blind_to_missing_ids, blind_to_chosen_numbers, any_pair_is_the_newest),
]


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, el.TxnMismatch)):  # noqa: PT012  # some history finds it
        for seed in range(200):
            with el.open(tmp_path / str(seed), durability="os") as store:
                store.create_table("t", SCHEMA, ["k"])
                history(store, random.Random(seed))
