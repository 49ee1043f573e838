"""The source executor: chunks and barriers made from the logs, against what a job's refresh sees at its barriers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.log_source import log_source as upstream_module
from epochlog.store.changelog import log_reader
from epochlog.store.sst import segment_scan as scan_module
from lab import Lab, commits, mirror, table_of
from log_source_model import LONG, History, Item, RecordingRefresh, barriers, read, received, shown
from seeds import seeds

PATIENCE_S = 60


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.root_table("q")
    return lab


# ---- order -------------------------------------------------------------------------------------------------------


def test_b5_a_downstream_that_was_away_replays_what_it_missed_and_goes_on_live(lab: Lab) -> None:
    """Upstream at e4, downstream at e2: e3 and e4 with their own barriers, then live; no duplicate, no gap."""
    stops: list[int] = []
    with el.UpstreamLog(lab.store, ["r"]) as first:
        for key in (1, 2):
            lab.put({key: (0, key)})
            lab.tick()
        stops += [curr for _, curr in barriers(received(first))]
    for key in (3, 4):
        lab.put({key: (0, key)})
        lab.tick()
    with el.UpstreamLog(lab.store, ["r"], after=stops[-1]) as again:
        replayed = received(again)
        assert [row[3] for row in shown(replayed) if len(row) == 5] == [3, 4]
        assert [prev for prev, _ in barriers(replayed)] == [stops[-1], barriers(replayed)[0][1]]
        lab.put({5: (0, 5)})
        assert received(again) == []  # the boundary is not sealed yet
        lab.tick()
        live = received(again)
        assert [row[3] for row in shown(live)[:-1]] == [5]
        assert barriers(live)[0][0] == barriers(replayed)[-1][1] == again.position - 4096 * 1000


@pytest.mark.rule("5.16")
def test_b6_the_snapshot_first_then_the_log_then_what_comes_live(lab: Lab) -> None:
    lab.put({1: (0, 1), 2: (0, 2), 3: (0, 3)})
    lab.tick()
    with el.UpstreamLog(lab.store, ["r"], after="snapshot") as log:
        rows = shown([item for _ in range(2) if (item := log.poll()) is not None])
        assert [row[2:4] for row in rows[:-1]] == [("insert", 1), ("insert", 2), ("insert", 3)]
        at = rows[-1][1]
        assert rows[-1] == (0, at, "initial") and log.position == at
        lab.put({4: (0, 4)})
        lab.tick()
        lab.put({5: (0, 5)})
        rows = shown(received(log))
        assert [row[2:4] for row in rows if len(row) == 5] == [("upsert", 4)]
        lab.tick()
        rows = shown(received(log))
        assert rows[0][2:4] == ("upsert", 5) and rows[1][2] == "checkpoint"


@pytest.mark.rule("5.17", "5.18")
def test_every_boundary_with_a_change_has_its_barrier_however_late(lab: Lab) -> None:
    """A job would merge boundaries; nothing is read from states, so they may lie below the safe epoch."""
    options = el.TableOptions(history_retention=timedelta(0), compact_segments=1)
    table = lab.root_table("short", options=options)
    for key in range(24):
        lab.put({key: (0, key)}, "short")
        lab.tick(2)
    lab.store.compact("short", full=True)
    items = read(lab, ["short"])
    assert table.info.safe_epoch > barriers(items)[15][1]
    assert len(barriers(items)) == 24
    assert [row[3] for row in shown(items) if len(row) == 5] == list(range(24))


@pytest.mark.rule("5.16")
def test_tables_with_different_rates_are_aligned(lab: Lab) -> None:
    for turn in range(6):
        lab.put({turn: (0, turn)})
        if turn % 3 == 0:
            with lab.store.transaction() as tx:
                tx.upsert("q", table_of({turn: (1, turn)}))
                tx.upsert("r", table_of({-turn: (1, turn)}))
        lab.tick()
    rows = shown(read(lab, ["q", "r"]))
    assert [row[0] for row in rows if len(row) == 5][:3] == ["r", "q", "r"]  # by epoch, and in one epoch as given
    assert [row[1] for row in rows if len(row) == 5] == sorted(row[1] for row in rows if len(row) == 5)
    seen = 0
    for row in rows:
        if len(row) == 5:
            assert row[1] > seen
        else:
            seen = row[1]
    assert len(rows) == 6 + 4 + 6


def test_empty_entries_make_no_barrier(lab: Lab) -> None:
    with el.UpstreamLog(lab.store, ["r", "q"]) as log:
        for _ in range(3):
            lab.put({})
            lab.tick()
        assert received(log) == []
        lab.put({1: (0, 1)}, "q")
        lab.tick()
        assert [type(item) for item in received(log)] == [el.Chunk, el.Barrier]


@pytest.mark.rule("4.3", "5.16")
def test_log_epochs_of_one_commit_come_before_its_barrier(lab: Lab) -> None:
    """Non-checkpoint epochs: visible with their commit, so in its barrier, each as a chunk of its own."""
    start, writer, segments = lab.put({0: (0, 0)}), lab.store.table("r").writer(), []
    for label in (start + 1, start + 2, start + 5):
        writer.upsert(table_of({1: (0, label)}))
        segments += writer.seal(label)
    lab.store.commit({"r": segments}, epoch=start + 5)
    lab.tick()
    items = read(lab)
    assert [item.epoch for item in items if isinstance(item, el.Chunk)] == [start, start + 1, start + 2, start + 5]
    assert len(barriers(items)) == 1


@pytest.mark.rule("4.3")
def test_log_epochs_below_a_boundary_belong_to_the_commit_above_it(lab: Lab) -> None:
    """Nobody can see them at that boundary, so its barrier does not cover them."""
    start, writer, segments = lab.put({0: (0, 0)}, "q"), lab.store.table("r").writer(), []
    for label in (start + 1, start + LONG):
        writer.upsert(table_of({1: (0, label)}))
        segments += writer.seal(label)
    lab.store.commit({"r": segments}, epoch=start + LONG)
    lab.tick(3)
    items = read(lab, ["r", "q"])
    assert [item.table if isinstance(item, el.Chunk) else "|" for item in items] == ["q", "|", "r", "r", "|"]
    assert barriers(items)[0][1] < start + LONG


# ---- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.21")
def test_the_data_ends_when_all_tables_have_ended(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    with el.UpstreamLog(lab.store, ["r", "q"]) as log:
        lab.store.table("r").finish()
        lab.tick()
        assert [type(item) for item in received(log)] == [el.Chunk, el.Barrier]
        lab.put({2: (0, 2)}, "q")  # goes on alone
        lab.tick()
        assert [type(item) for item in received(log)] == [el.Chunk, el.Barrier]
        lab.store.table("q").finish()
        assert log.poll() is None  # its end lies past the newest sealed boundary
        lab.tick()
        assert [type(item) for item in log] == [el.Barrier, el.EndOfData]
        assert log.poll(None) is None  # once
        assert read(lab, ["r", "q"], after=log.position) == [el.EndOfData()]
    assert [type(item) for item in el.UpstreamLog(lab.store, ["r"], after="snapshot")] == [
        el.Chunk, el.Barrier, el.EndOfData,
    ]  # fmt: skip


# ---- against what a job sees -------------------------------------------------------------------------------------


def against_a_job(lab: Lab, seed: int, turns: int) -> None:
    """A job over the same tables that never merges hears the same changes at the same barriers, live and replayed."""
    history = History(lab, seed)
    tables = history.tables
    job = lab.job("hearing", tables, ["heard"], max_lag=1 << 40, backfill="log")
    ear, live = RecordingRefresh(tables, "heard"), []
    with el.UpstreamLog(lab.store, tables) as log:
        for _ in range(turns):
            history.turn()
            if history.rng.random() < 0.3:
                live += received(log)
            if history.rng.random() < 0.2 and log.position:  # its first barrier might come without a change
                job.step_local(ear)
        history.settle()
        live += received(log)
    commits({"hearing": lambda: job.step_local(ear)})
    assert shown(live) == ear.heard
    assert barriers(live), "nothing happened"
    for name in tables:  # they make the tables, at the last barrier
        state: dict[int, int] = {}
        for row in (row for row in ear.heard if row[0] == name):
            state.pop(row[3], None)
            if row[2] == "upsert":
                state[row[3]] = row[4]
        assert state == {key: v for key, (_, v) in lab.rows(name).items()}, name
    resumed(lab, tables, live)
    resumed(lab, tables, live, job="hearing")


def resumed(lab: Lab, tables: Sequence[str], items: Sequence[Item], **options: Any) -> None:
    """At each barrier, and from the beginning, exactly the rest comes."""
    expected = shown(items)
    stops = [(0, 0), *((place + 1, row[1]) for place, row in enumerate(expected) if len(row) == 3)]
    for place, after in stops:
        assert shown(read(lab, tables, after=after, **options)) == expected[place:], after


@pytest.mark.rule("5.17")
@pytest.mark.parametrize("seed", range(2))
def test_a_job_hears_the_same(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    against_a_job(lab, seed, 25)


@pytest.mark.rule("5.17")
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*seeds(range(100, 106), 2), *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(106, 140))],
)
def test_a_job_hears_the_same_in_many_histories(lab: Lab, seed: int) -> None:
    print(f"seed {seed}")
    against_a_job(lab, seed, 80)


@pytest.mark.rule("5.17")
def test_the_barriers_of_a_job_are_repeated_past_ones_and_the_one_at_hand(lab: Lab) -> None:
    """A job that merges, and reads a snapshot first."""
    lab.put({1: (0, 1), 2: (0, 2)})
    lab.put({7: (0, 7)}, "q")
    lab.tick()
    job, ear = lab.job("slow", ["r", "q"], ["out"], max_lag=0), RecordingRefresh(["r", "q"], "out")
    with el.UpstreamLog(lab.store, ["r", "q"], job="slow") as log:
        assert received(log) == []  # nobody has decided yet
        job.step_local(ear)
        heard = shown(received(log))
        assert [row for row in heard if len(row) == 5] == [row for row in ear.heard if len(row) == 5]
        assert heard[-1] == ear.heard[-1] and heard[-1][2] == "initial"
        for key in range(10, 21):
            lab.put({key: (0, key)})
            lab.tick()
        assert received(log) == []

        def fails(ctx: Any) -> None:
            raise ArithmeticError(str(ctx.barrier))

        with pytest.raises(ArithmeticError):
            job.step_local(fails)
        at_hand = shown(received(log))
        assert len(at_hand[-1]) == 3, "the barrier is recorded, though its refresh has failed"
        commits({"slow": lambda: job.step_local(ear)})
        heard += at_hand + shown(received(log))
        assert heard == ear.heard
        assert 1 < len(barriers(received(el.UpstreamLog(lab.store, ["r"], job=job, after=0)))) < 11
    only_q = read(lab, ["q"], job="slow")
    assert shown(only_q)[0][0] == "q" and barriers(only_q) == [r[:2] for r in heard if len(r) == 3]
    for name in ("r", "q"):
        lab.store.table(name).finish()
    lab.tick()
    commits({"slow": lambda: job.step_local(ear)})
    last = read(lab, ["r"], job="slow", after=heard[-1][1])
    assert [type(item) for item in last] == [el.Barrier, el.EndOfData]


# ---- waiting -----------------------------------------------------------------------------------------------------


def test_a_live_reader_waits_and_a_close_ends_it(tmp_path: Path) -> None:
    """On real time, in a thread of its own."""
    with el.open(tmp_path / "store", durability="os") as store:
        table = store.create_table("r", pa.schema([("k", pa.int64())]), ["k"])
        log, items, came = el.UpstreamLog(store, ["r"]), [], threading.Semaphore(0)

        def follow() -> None:
            for item in log:
                items.append(item)
                came.release()

        thread = threading.Thread(target=follow)
        thread.start()
        for key in range(3):
            table.upsert(pa.table({"k": [key]}))
            store.checkpoint()
            assert all(came.acquire(timeout=PATIENCE_S) for _ in range(2))
        log.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert [type(item) for item in items] == [el.Chunk, el.Barrier] * 3
        assert log.poll(None) is None and list(log) == []


def test_waiting_costs_few_looks_and_no_writes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, real = [], lab.store._handle.catalog.read
    with el.UpstreamLog(lab.store, ["r"]) as log:
        lab.put({1: (0, 1)})
        lab.tick()
        received(log)
        before = lab.txn_id()
        monkeypatch.setattr(lab.store._handle.catalog, "read", lambda body: looks.append(1) or real(body))
        assert log.poll(0.25) is None
        monkeypatch.undo()
        assert lab.txn_id() == before
    assert 2 < len(looks) < 30


def test_a_closed_store_ends_the_wait_with_its_error(lab: Lab) -> None:
    log = el.UpstreamLog(lab.store, ["r"])
    lab.store.close()
    with pytest.raises(el.StoreClosed):
        next(log)
    lab.store = lab.open()


# ---- holding -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.21")
def test_the_log_that_is_still_to_be_read_is_held_and_what_is_behind_is_not(lab: Lab) -> None:
    table = lab.store.table("r")
    epochs = []
    for key in range(3):
        epochs.append(lab.put({key: (0, key)}))
        lab.tick()
    with el.UpstreamLog(lab.store, ["r"]) as log:
        with pytest.raises(el.LogHeld, match="upstream:"):
            table.truncate_log(epochs[0])
        assert len(barriers(received(log))) == 3
        table.truncate_log(epochs[2])
        lab.put({9: (0, 9)})
        with pytest.raises(el.LogHeld):
            table.truncate_log(lab.put({10: (0, 10)}))
    table.truncate_log(lab.put({11: (0, 11)}))


@pytest.mark.rule("5.21")
def test_nothing_is_held_again_once_it_is_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes it just before the hold moves."""
    lab.put({1: (0, 1)})
    lab.tick()
    log, real = el.UpstreamLog(lab.store, ["r"]), upstream_module.barriers_of_log
    assert len([log.poll(), log.poll()]) == 2 and log.position
    monkeypatch.setattr(upstream_module, "barriers_of_log", lambda *args: log.close() or real(*args))
    assert log.poll() is None
    lab.store.table("r").truncate_log(lab.put({2: (0, 2)}))


def test_a_long_replay_lets_go_as_it_goes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MOVE_HOLD_S", 0)
    epochs = []
    for key in range(6):
        epochs.append(lab.put({key: (0, key)}))
        lab.tick()
    with el.UpstreamLog(lab.store, ["r"]) as log:
        for _ in range(7):  # into the fourth round
            assert log.poll() is not None
        lab.store.table("r").truncate_log(epochs[1])
        with pytest.raises(el.LogHeld):
            lab.store.table("r").truncate_log(epochs[4])
        assert len(barriers(received(log))) == 3


def test_the_rows_of_a_snapshot_are_held_while_they_are_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 2)
    options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)
    lab.root_table("short", options=options)
    lab.put(dict.fromkeys(range(5), (0, 1)), "short")
    lab.tick()
    with el.UpstreamLog(lab.store, ["short"], after="snapshot") as log:
        items = [log.poll()]
        for value in (2, 3):
            lab.put(dict.fromkeys(range(5), (0, value)), "short")
            lab.tick()
        lab.store.compact("short", full=True)
        lab.store.vacuum(grace=0)
        items += received(log)
    rows = [row for row in shown(items) if len(row) == 5]
    assert [row[2:] for row in rows[:5]] == [("insert", key, 1) for key in range(5)]
    assert [row[4] for row in rows[5:]] == [2] * 5 + [3] * 5


@pytest.mark.rule("5.21")
def test_a_log_that_was_truncated_unread_is_refused(lab: Lab) -> None:
    first = lab.put({1: (0, 1)})
    lab.tick()
    at = barriers(read(lab))[0][1]
    second = lab.put({2: (0, 2)})
    lab.store.table("r").truncate_log(second)
    for after in (0, first, at):
        with pytest.raises(el.LogTruncated, match="truncated unread"):
            el.UpstreamLog(lab.store, ["q", "r"], after=after)
    el.UpstreamLog(lab.store, ["r"], after=second).close()


def test_a_log_of_which_nothing_unread_was_truncated_is_followed(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    at = barriers(read(lab))[0][1]
    lab.store.table("r").truncate_log(lab.put({}))  # the mark lies above, but no change between
    assert lab.store.table("r").info.log_start_epoch > at
    lab.put({2: (0, 2)})
    lab.tick()
    items = read(lab, after=at)
    assert [row[3] for row in shown(items)[:-1]] == [2] and barriers(items)[0][0] == at


@pytest.mark.rule("5.21")
def test_a_barrier_below_the_mark_of_a_log_that_lost_no_change_is_read(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    at = barriers(read(lab))[0][1]
    lab.put({2: (0, 2)})
    lab.tick()
    lab.store.table("q").truncate_log(lab.put({}, "q"))  # the mark lies above the barrier of the other table
    lab.tick()
    items = read(lab, ["r", "q"], after=at)
    assert [(row[0], row[3]) for row in shown(items) if len(row) == 5] == [("r", 2)]
    assert barriers(items)[0][0] == at and barriers(items)[0][1] < lab.store.table("q").info.log_start_epoch


def test_barriers_of_a_job_that_are_forgotten_are_refused(lab: Lab) -> None:
    lab.root_table("kept", options=el.TableOptions(log_retention=timedelta(days=30)))
    job = lab.job("j", ["kept"], ["out"])
    for key in range(3):
        lab.put({key: (0, key)}, "kept")
        lab.tick(86_400 * 2)
        commits({"j": lambda: job.step_local(mirror("kept", "out"))})
    first = barriers(read(lab, ["kept"], job="j", after=1))[0][1]
    for _ in range(2):
        lab.store.compact("out", full=True)
    with pytest.raises(el.LogTruncated, match="commits of job 'j' are recorded only past"):
        read(lab, ["kept"], job="j", after=first - 1)
    assert len(barriers(read(lab, ["kept"], after=first - 1))) == 2  # the table's own log is all there


# ---- bounds and refusals -----------------------------------------------------------------------------------------


def test_a_large_epoch_comes_in_pieces(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 3)
    lab.put({key: (0, key) for key in range(8)})
    lab.put({key: (0, key) for key in range(2)})
    lab.tick()
    assert [item.data.num_rows for item in read(lab) if isinstance(item, el.Chunk)] == [3, 3, 2, 2]


@pytest.mark.medium
def test_little_is_read_ahead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One barrier over sixty epochs: at the first chunk no more than a few of them have been opened."""
    for name in ("UNIT_ROWS", "SPLIT_ROWS"):
        monkeypatch.setattr(f"epochlog.store.changelog.change_reader.{name}", 8)
    for key in range(30):
        lab.put({key: (0, key)})
        lab.put({key: (0, key)}, "q")
    lab.tick()
    opened, real = [], scan_module.verified
    monkeypatch.setattr(scan_module, "verified", lambda *args: opened.append(1) or real(*args))
    with el.UpstreamLog(lab.store, ["r", "q"]) as log:
        most = 0
        for place in range(60):
            assert isinstance(log.poll(), el.Chunk)
            most = max(most, len(opened) - place)
        assert isinstance(log.poll(), el.Barrier)
    assert len(opened) == 60 and most <= 40


def test_after_an_error_in_a_round_nothing_pretends_to_be_the_end(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put({1: (0, 1)})
    lab.put({2: (0, 2)})
    lab.tick()
    real = log_reader.follow

    def broken(*args: Any) -> Any:
        for batch in real(*args):
            yield batch.slice(0, 1)
            raise el.ReadFailed("the disk is away")

    monkeypatch.setattr(log_reader, "follow", broken)
    with el.UpstreamLog(lab.store, ["r"]) as log:
        assert isinstance(next(log), el.Chunk)
        with pytest.raises(el.ReadFailed):
            next(log)
        with pytest.raises(el.InvalidInput, match="open another one with after=0"):
            next(log)


def test_a_dropped_table_or_job_is_told(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    with el.UpstreamLog(lab.store, ["q"]) as log, el.UpstreamLog(lab.store, ["r"], job=job) as following:
        lab.store.drop_table("q")
        lab.root_table("q")  # another table of that name
        with pytest.raises(el.TableDropped):
            next(log)
        lab.store.drop_job("j")
        with pytest.raises(el.JobNotFound):
            next(following)


def test_bad_input_is_named(lab: Lab) -> None:
    lab.job("j", ["r"])
    for tables, options in (
        ("r", {}), ([], {}), (["r", "r"], {}), (["r"], {"after": -1}), (["r"], {"after": "latest"}),
        (["q"], {"job": "j"}), (["r"], {"after": True}),
        (["r"], {"columns": {"q": ["k"]}}), (["r"], {"columns": {"r": ["x"]}}), (["r"], {"columns": ["k"]}),
    ):  # fmt: skip
        with pytest.raises(el.InvalidInput):
            el.UpstreamLog(lab.store, tables, **options)
    with pytest.raises(el.TableNotFound):
        el.UpstreamLog(lab.store, ["nothing"])
    with pytest.raises(el.JobNotFound):
        el.UpstreamLog(lab.store, ["r"], job="nothing")
    assert "UpstreamLog open, r, q after 5" in repr(el.UpstreamLog(lab.store, ["r", "q"], after=5))
