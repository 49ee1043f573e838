"""The source executor under a name: it goes on where it was acknowledged; with chosen columns and with old rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from lab import Lab, commits, keys_of
from log_source_model import History, Item, RecordingRefresh, barriers, read, received, shown
from seeds import seeds

SHORT = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.root_table("q")
    return lab


def named(lab: Lab, tables: Sequence[str] = ("r",), **options: Any) -> el.UpstreamLog:
    return el.UpstreamLog(lab.store, tables, consumer="dash", **options)


def puts(lab: Lab, count: int, table: str = "r") -> list[int]:
    epochs = []
    for key in range(count):
        epochs.append(lab.put({key % 3: (0, lab.now_ms)}, table))
        lab.tick()
    return epochs


def kinds(items: Sequence[Item]) -> list[str]:
    return [str(row[2]) for row in shown(items)]


# ---- a name ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.11", "4.12", "5.19")
def test_a_consumer_begins_with_the_rows_and_goes_on_past_its_acknowledgement(lab: Lab) -> None:
    puts(lab, 2)
    with named(lab) as log:
        assert kinds(received(log)) == ["insert", "insert", "initial"]
        log.ack()
        puts(lab, 2)
        first, second = barriers(received(log))
        log.ack(el.Barrier(*first, "checkpoint"))
    with named(lab) as log:
        assert log.position == first[1]
        assert barriers(received(log)) == [second]
        log.ack(second[1])
        log.ack(first[1])
    (info,) = lab.store.consumers()
    assert (info.position, info.state, info.lag_commits) == (second[1], "away", 0)
    assert read(lab, consumer="dash") == []


@pytest.mark.parametrize("begin", ["log", "snapshot", "barrier"])
def test_where_a_new_consumer_begins_can_be_said(lab: Lab, begin: str) -> None:
    epochs = puts(lab, 2)
    after = {"log": 0, "snapshot": "snapshot", "barrier": barriers(read(lab))[0][1]}[begin]
    with named(lab, after=after) as log:
        assert kinds(received(log))[0] == ("insert" if begin == "snapshot" else "upsert")
    if begin == "snapshot":  # nothing is acknowledged, so nothing is held
        lab.store.table("r").truncate_log(epochs[1])
    else:
        with pytest.raises(el.LogHeld, match="consumer:dash"):
            lab.store.table("r").truncate_log(epochs[1])
        with named(lab, after=epochs[1]) as log:  # it is not new any more
            assert log.position == after


@pytest.mark.rule("5.19")
def test_what_was_not_given_out_cannot_be_acknowledged(lab: Lab) -> None:
    puts(lab, 3)
    with named(lab, after=0) as log:
        assert isinstance(log.poll(), el.Chunk)
        log.ack()  # nothing yet
        assert lab.store.consumers()[0].position == 0
        barrier = log.poll()
        assert isinstance(barrier, el.Barrier)
        for bad in (barrier.curr + 1, -1, "last"):
            with pytest.raises(el.InvalidInput):
                log.ack(bad)  # type: ignore[arg-type]
        log.ack(barrier)
    with pytest.raises(el.InvalidInput, match="closed"):
        log.ack(barrier)
    with el.UpstreamLog(lab.store, ["r"]) as log, pytest.raises(el.InvalidInput, match="consumer=name"):
        log.ack()


def test_before_its_first_barrier_a_snapshot_is_not_acknowledged(lab: Lab) -> None:
    puts(lab, 1)
    with named(lab) as log:
        log.ack()
        assert isinstance(log.poll(), el.Chunk)
        log.ack()
    assert lab.store.consumers()[0].position is None


def test_the_last_barrier_can_be_acknowledged_after_the_end(lab: Lab) -> None:
    puts(lab, 1)
    lab.store.table("r").finish()
    lab.tick()
    log = named(lab, after=0)
    items = list(log)
    assert isinstance(items[-1], el.EndOfData)
    log.ack()
    log.close()
    assert read(lab, consumer="dash") == [el.EndOfData()]


@pytest.mark.rule("4.13")
def test_one_that_was_taken_over_gets_fenced_and_has_no_effect(lab: Lab) -> None:
    puts(lab, 3)
    old = named(lab, after=0)
    assert isinstance(old.poll(), el.Chunk) and isinstance(old.poll(), el.Barrier)
    with named(lab) as new:
        with pytest.raises(el.Fenced):
            old.ack()
        with pytest.raises(el.Fenced):
            received(old)
        assert len(barriers(received(new))) == 3
        new.ack()
        old.close()
        new.ack()
        lab.store.drop_consumer("dash")
        with pytest.raises(el.ConsumerNotFound):
            new.poll()


def test_what_a_consumer_has_to_read_waits_for_it(lab: Lab) -> None:
    lab.root_table("short", options=SHORT)
    puts(lab, 4, "short")
    with named(lab, ["short"], after=0) as log:
        expected = received(log)
        log.ack(barriers(expected)[1][1])
    lab.store.compact("short", full=True)
    lab.store.vacuum(grace=0)
    assert shown(read(lab, ["short"], consumer="dash")) == shown(expected)[4:]


@pytest.mark.parametrize("too_old", ["error", "snapshot"])
def test_one_that_comes_too_late(lab: Lab, too_old: str) -> None:
    lab.root_table("short", options=SHORT)
    puts(lab, 3, "short")
    with named(lab, ["short"], after=0, keep=0) as log:
        received(log)
        log.ack(barriers(read(lab, ["short"]))[0][1])
    lab.store.compact("short", full=True)
    if too_old == "error":
        with pytest.raises(el.LogTruncated, match="reset_consumer"):
            named(lab, ["short"])
        lab.store.reset_consumer("dash", "snapshot")
    with named(lab, ["short"], too_old=too_old) as log:
        assert kinds(received(log)) == ["insert", "insert", "insert", "initial"]


def test_a_failed_opening_acknowledges_nothing(lab: Lab) -> None:
    lab.root_table("short", options=SHORT)
    lab.root_table("flat", options=el.TableOptions(history_retention=timedelta(0), compact_segments=1))
    puts(lab, 3, "short")
    epochs = puts(lab, 3, "flat")
    for table in ("short", "flat"):
        lab.store.compact(table, full=True)
    with pytest.raises(el.LogTruncated):
        named(lab, ["short"], after=0)
    with pytest.raises(el.EpochExpired, match="begin with after="):
        el.UpstreamLog(lab.store, ["flat"], consumer="flat", after=epochs[0], pre_images=True)
    assert [(info.state, info.position) for info in lab.store.consumers()] == [("away", None)] * 2


def test_a_consumer_of_several_tables_and_of_a_jobs_barriers(lab: Lab) -> None:
    job, ear = lab.job("j", ["r", "q"], ["out"], backfill="log"), RecordingRefresh(["r", "q"], "out")
    for turn in range(4):
        lab.put({turn: (0, turn)}, "rq"[turn % 2])
        lab.tick()
        commits({"j": lambda: job.step_local(ear)})
    with named(lab, ["r", "q"], job=job, after=0) as log:
        items = [log.poll() for _ in range(4)]
        log.ack()
    again = read(lab, ["r", "q"], job=job, consumer="dash")
    assert shown([item for item in [*items, *again] if item is not None]) == ear.heard


# ---- columns and old rows ----------------------------------------------------------------------------------------


def test_only_the_columns_asked_for(lab: Lab) -> None:
    puts(lab, 2)
    puts(lab, 1, "q")
    for after in (0, "snapshot"):
        with el.UpstreamLog(lab.store, ["r", "q"], after=after, columns={"r": ["v", "k"]}) as log:
            chunks = [item for item in received(log) if isinstance(item, el.Chunk)]
        columns = {(chunk.table, *chunk.data.schema.names[:-3]) for chunk in chunks}
        assert columns == {("r", "v", "k"), ("q", "k", "g", "v")}


@pytest.mark.rule("5.18")
def test_old_rows_come_with_the_changes(lab: Lab) -> None:
    lab.put({1: (0, 1), 2: (0, 2)})
    lab.tick()
    lab.put({1: (0, 10), 3: (0, 3)})
    lab.store.table("r").delete(keys_of({2: (0, 0), 9: (0, 0)}))
    lab.tick()
    rows = [row[2:] for row in shown(read(lab, pre_images=True)) if len(row) == 5]
    assert rows == [
        ("insert", 1, 1), ("insert", 2, 2),
        ("update_preimage", 1, 1), ("update_postimage", 1, 10), ("insert", 3, 3),
        ("delete", 2, 2),
    ]  # fmt: skip
    with el.UpstreamLog(lab.store, ["r"], after="snapshot", pre_images=True) as log:
        assert kinds(received(log)) == ["insert", "insert", "initial"]
        lab.put({1: (0, 11)})
        lab.tick()
        assert kinds(received(log))[:2] == ["update_preimage", "update_postimage"]


@pytest.mark.rule("5.18")
def test_a_reader_without_a_name_holds_the_states_for_old_rows(lab: Lab) -> None:
    table = lab.root_table("short", options=SHORT)
    puts(lab, 2, "short")
    with el.UpstreamLog(lab.store, ["short"], pre_images=True) as log:
        received(log)
        puts(lab, 2, "short")
        lab.store.compact("short", full=True)
        assert "update_preimage" in kinds(received(log))
    puts(lab, 1, "short")
    lab.store.compact("short", full=True)
    assert table.info.safe_epoch == table.info.max_committed_epoch


@pytest.mark.rule("5.18")
def test_the_states_for_old_rows_are_held_between_two_readings(lab: Lab) -> None:
    lab.root_table("short", options=SHORT)
    puts(lab, 2, "short")
    with named(lab, ["short"], pre_images=True) as log:
        received(log)
        log.ack()
        puts(lab, 2, "short")
        lab.store.compact("short", full=True)
        assert "update_preimage" in kinds(received(log))
    puts(lab, 2, "short")
    lab.store.compact("short", full=True)
    lab.store.vacuum(grace=0)
    assert kinds(read(lab, ["short"], consumer="dash", pre_images=True)).count("update_preimage") == 4


# ---- random worlds -----------------------------------------------------------------------------------------------


def random_world(lab: Lab, seed: int, turns: int, *, pre_images: bool) -> tuple[History, list[Item]]:
    """A history, and what a reader heard of it live; a job that never merges heard the same."""
    history = History(lab, seed)
    job = lab.job("hearing", history.tables, ["heard"], max_lag=1 << 40, backfill="log")
    ear, live = RecordingRefresh(history.tables, "heard", pre_images=pre_images), list[Item]()
    with el.UpstreamLog(lab.store, history.tables, pre_images=pre_images) as log:
        for _ in range(turns):
            history.turn()
            if history.rng.random() < 0.3:
                live += received(log)
        history.settle()
        live += received(log)
    commits({"hearing": lambda: job.step_local(ear)})
    assert shown(live) == ear.heard
    return history, live


def resumed_anywhere(lab: Lab, seed: int, turns: int, *, pre_images: bool) -> None:
    history, live = random_world(lab, seed, turns, pre_images=pre_images)
    expected = shown(live)
    stops = [(0, 0), *((place + 1, row[1]) for place, row in enumerate(expected) if len(row) == 3)]
    assert len(stops) > 2
    for place, after in stops:
        options = {"after": after, "pre_images": pre_images}
        assert shown(read(lab, history.tables, **options)) == expected[place:], after
        for consumer in lab.store.consumers():
            lab.store.drop_consumer(consumer.name)
        assert shown(read(lab, history.tables, consumer="dash", **options)) == expected[place:], after
    lab.store.reset_consumer("dash", 0)
    by_fits_and_starts(lab, history, expected, pre_images=pre_images)


def by_fits_and_starts(lab: Lab, history: History, expected: list[Any], *, pre_images: bool) -> None:
    """A consumer that dies again and again: what it is given again is what it had not acknowledged, and all of it."""
    rng, done, deaths = history.rng, 0, 0
    while done < len(expected):
        log = el.UpstreamLog(lab.store, history.tables, consumer="dash", pre_images=pre_images)
        place, rows = done, list[Any]()
        for _ in range(rng.randint(1, 8 + deaths)):  # a round may be long
            item = log.poll()
            if item is None:
                break
            rows += shown([item])
            assert rows == expected[place : place + len(rows)]
            if isinstance(item, el.Barrier) and rng.random() < 0.6:
                log.ack(item)
                done = place + len(rows)
        if rng.random() < 0.5:
            log.close()
        deaths += 1
    assert deaths > 2


@pytest.mark.rule("5.16")
@pytest.mark.parametrize("pre_images", [False, True])
def test_it_goes_on_at_any_barrier(lab: Lab, pre_images: bool) -> None:
    resumed_anywhere(lab, 7, 25, pre_images=pre_images)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(200, 203), 2))
def test_it_goes_on_at_any_barrier_of_many_histories(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    resumed_anywhere(lab, seed, 60, pre_images=bool(seed % 2))


# ---- memory ------------------------------------------------------------------------------------------------------

READER = """
import sys
import pyarrow as pa
import epochlog as el

root, images, count = sys.argv[1], sys.argv[2] == "images", int(sys.argv[3])
with el.open(root, create=False) as store, el.UpstreamLog(store, ["t"], pre_images=images) as log:
    rows, early, late = 0, 0, 0
    for item in log:
        if isinstance(item, el.EndOfData):
            break
        if isinstance(item, el.Chunk):
            rows += item.data.num_rows
            if rows <= count // 2:
                early = max(early, pa.total_allocated_bytes())
            late = max(late, pa.total_allocated_bytes())
print(rows, early, late)
"""


def kept_bytes(root: Path, images: str) -> int:
    """Return the growth (bytes) of Arrow's memory in the second half of a replay of many changes in one barrier."""
    turns, size = 12, 250_000
    with el.open(root, durability="os", checkpoint_interval_ms=86_400_000) as store:
        schema = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("text", pa.string())])
        options = el.TableOptions(compact_segments=1000, max_segments=1000)
        table = store.create_table("t", schema, ["k"], options=options)
        texts = pa.array([f"{n:<40}" for n in range(1000)]).take(pa.array(np.arange(size) % 1000))
        for turn in range(turns):
            keys = np.arange(size) * 2 + turn % 2
            table.upsert(pa.table({"k": keys, "v": keys + turn * 0.5, "text": texts}))
        table.finish()
        store.checkpoint()
    count = (2 + (turns - 2) * 2 if images == "images" else turns) * size
    command = [sys.executable, "-c", READER, str(root), images, str(count)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    rows, early, late = map(int, printed)
    print(f"{images}: {rows:,} rows, {early >> 20} MiB at first, {late >> 20} MiB at last")
    assert rows == count
    return late - early


@pytest.mark.rule("4.5")
@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.parametrize("images", ["none", "images"])
def test_memory_is_bounded_whatever_lies_between_two_barriers(tmp_path: Path, images: str) -> None:
    assert kept_bytes(tmp_path / "s", images) < 64 << 20
