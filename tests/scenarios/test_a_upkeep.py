"""Scenarios A8-A12: what is refused at a commit, and what stays for whom when a store is looked after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.catalog.keys import intent_key
from epochlog.store.session.leases import LEASE_MS
from lab import Lab, mirror, state_of, sums, table_of

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SHORT = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(minutes=1), compact_segments=1)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    yield made
    made.store.close()


def sealed(lab: Lab, rows: dict[int, tuple[int, int]], table: str = "r") -> list[el.Segment]:
    writer = lab.store.table(table).writer()
    writer.upsert(table_of(rows))
    return writer.seal(lab.store.last_epoch + 1)


def data_files(lab: Lab) -> set[str]:
    return {str(path.relative_to(lab.root)) for path in lab.root.rglob("t0*/*")}


# ---- A8 ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.5")
def test_a8_a_segment_already_vacuumed_is_refused_and_a_retry_succeeds(lab: Lab) -> None:
    lab.root_table()
    (segment,) = sealed(lab, {1: (1, 1)})
    own = segment.path.rsplit("/", 1)[-1][:32]
    lab.store._handle.catalog.transact(lambda tx: tx.delete(intent_key(own)))  # as another process revokes it
    assert [file.path for file in lab.store.vacuum(grace=0).deleted] == [segment.path]
    with pytest.raises(el.SegmentUnknown, match="is gone; write its rows again"):
        lab.store.commit({"r": [segment]})
    lab.store._handle.leases.renew()
    assert lab.rows("r") == {} and lab.store.commit({"r": sealed(lab, {1: (1, 1)})})
    assert lab.rows("r") == {1: (1, 1)}


@pytest.mark.rule("1.5")
@pytest.mark.local_only
def test_a8_a_segment_from_a_revoked_intent_is_refused_and_a_retry_succeeds(lab: Lab) -> None:
    lab.root_table()
    (segment,) = sealed(lab, {1: (1, 1)})
    own = segment.path.rsplit("/", 1)[-1][:32]
    lab.store._handle.catalog.transact(lambda tx: tx.delete(intent_key(own)))
    lab.store.vacuum()
    assert segment.path in data_files(lab), "in its grace it is still there, and must not be taken for data"
    with pytest.raises(el.SegmentUnknown, match="revoked"):
        lab.store.commit({"r": [segment]})
    lab.store.commit({"r": sealed(lab, {1: (1, 1)})})
    assert lab.rows("r") == {1: (1, 1)}


def test_a9_what_could_not_be_sealed_keeps_what_follows_from_being_committed_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.root_table()
    writer, e1 = lab.store.table("r").writer(), lab.store.last_epoch + 1
    e2, first, second = e1 + 1, {1: (0, 1), 2: (0, 2)}, {2: (0, 22), 3: (0, 3)}

    def full(*_: object) -> None:
        raise el.WriteFailed("the disk is full")

    writer.upsert(table_of(first))
    with monkeypatch.context() as patch:
        patch.setattr(type(lab.store._handle.files), "write", full)
        with pytest.raises(el.WriteFailed, match="the disk is full"):
            writer.seal(e1)
    for action in (lambda: writer.upsert(table_of(second)), lambda: writer.seal(e2)):
        with pytest.raises(el.WriteFailed, match="earlier write"):  # though there is room again
            action()
    assert lab.rows("r") == {} and lab.store.table("r").next_epoch(0) is None
    writer.abort()
    segments = []
    for label, rows in ((e1, first), (e2, second)):
        writer.upsert(table_of(rows))
        segments += writer.seal(label)
    assert lab.store.commit({"r": segments}, epoch=e2) == e2
    assert lab.rows("r") == {**first, **second}
    assert lab.store.table("r").next_epoch(0) == e1 and lab.store.table("r").next_epoch(e1) == e2


@pytest.mark.rule("1.5")
def test_a8_a_fenced_writer_is_refused_and_the_new_one_succeeds(lab: Lab) -> None:
    lab.root_table()
    old = lab.job("j", ["r"])
    lab.put({1: (1, 1)})
    lab.store.checkpoint()

    def overtaken(ctx) -> None:
        mirror("r", "j_out")(ctx)
        assert lab.store.job("j").step_local(mirror("r", "j_out"), take_over=True) is not None
        lab.store.vacuum(grace=0)

    with pytest.raises(el.Fenced):
        old.step_local(overtaken)
    assert lab.rows("j_out") == {1: (1, 1)} and len(lab.entries("j_out")) == 1
    lab.reopen()
    lab.now_ms += LEASE_MS
    lab.store.vacuum(grace=0)
    assert lab.store.verify().unreachable == (), "what the fenced one wrote is gone"


# ---- A10 ---------------------------------------------------------------------------------------------------------


def test_a10_dropping_the_uncommitted_data_of_one_table_leaves_that_of_another(lab: Lab) -> None:
    for name in ("one", "two"):
        lab.root_table(name)
    first, second = (sealed(lab, {1: (1, 1)}, name) for name in ("one", "two"))
    writer = lab.store.table("one").writer()
    writer.upsert(table_of({9: (9, 9)}))
    writer.abort()
    lab.store.drop_table("one")
    later = lab.store.vacuum(grace=0)
    assert not later.deleted, "their writer lives: it may not know yet that its table has gone"
    with pytest.raises(el.TableNotFound):
        lab.store.commit({"one": first})
    lab.store.commit({"two": second})
    assert lab.rows("two") == {1: (1, 1)}
    lab.reopen()
    lab.now_ms += 10 * 24 * HOUR_MS
    assert {file.path for file in lab.store.vacuum(grace=0).deleted} == {segment.path for segment in first}
    assert lab.rows("two") == {1: (1, 1)}


# ---- A11 ---------------------------------------------------------------------------------------------------------


def an_hour_of_writing(lab: Lab, check: object = None) -> None:
    for minute in range(60):
        lab.now_ms += MINUTE_MS
        lab.put({0: (0, minute), minute: (1, minute)})
        lab.store.compact("r", full=minute % 2 == 0)
        lab.store.vacuum()
        if callable(check):
            check()


@pytest.mark.medium
def test_a11_a_long_reader_reads_the_same_and_what_it_needs_goes_when_it_closes(lab: Lab) -> None:
    table = lab.root_table(options=SHORT)
    for number in range(4):
        lab.put({k: (number, k) for k in range(10)})
    snapshot, rows = lab.store.snapshot(["r"]), lab.rows("r")
    at, needed = snapshot.epochs["r"], data_files(lab)

    def the_same() -> None:
        assert state_of(snapshot["r"].to_arrow()) == rows == lab.rows("r", at)
        assert table.info.safe_epoch <= at and needed <= data_files(lab)

    an_hour_of_writing(lab, the_same)
    snapshot.close()
    lab.store.compact("r", full=True)
    assert table.info.safe_epoch > at and len(table.history()) < 10
    lab.now_ms += 16 * MINUTE_MS
    lab.store.vacuum()
    assert not needed & data_files(lab) and lab.store.verify().ok
    with pytest.raises(el.EpochExpired):
        lab.rows("r", at)


@pytest.mark.medium
def test_a11_the_log_that_a_reader_needs_stays_while_it_needs_it(lab: Lab) -> None:
    """The reader is a job that is ever further behind, and works: it takes in one minute of ten."""
    table, minutes = lab.root_table(options=replace(SHORT, log_retention=timedelta(minutes=15))), count()
    job = lab.job("j", ["r"], max_lag=1e9)
    lab.put({1: (1, 1)})
    lab.store.checkpoint()
    assert job.step_local(mirror("r", "j_out")) is not None

    def now_and_then() -> None:
        if next(minutes) % 10 == 9:
            assert job.step_local(mirror("r", "j_out")) is not None

    an_hour_of_writing(lab, now_and_then)
    at = job.info.committed_epoch
    assert table.info.log_start_epoch <= at and len(table.changes(at).read_all()) == 2 * (60 - 6)
    lab.store.checkpoint()
    while job.step_local(mirror("r", "j_out")) is not None:
        pass
    assert lab.rows("j_out") == lab.rows("r")
    lab.now_ms += 16 * MINUTE_MS
    lab.store.compact("r", full=True)
    assert table.info.log_start_epoch > at and table.info.log_segments < 5


@pytest.mark.medium
@pytest.mark.local_only
def test_a11_what_a_reader_held_goes_when_it_dies(lab: Lab) -> None:
    table = lab.root_table(options=SHORT)
    lab.put({k: (0, k) for k in range(10)})
    needed, at = data_files(lab), table.info.max_committed_epoch
    code = (
        "import os, sys, epochlog as el\n"
        "store = el.open(sys.argv[1], durability='os', clock=lambda: int(sys.argv[2]))\n"
        "snapshot = store.snapshot(['r'])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(lab.root), str(lab.now_ms)], check=False)
    assert died.returncode == -9
    for minute in range(9):
        lab.now_ms += MINUTE_MS
        lab.put({0: (0, minute)})
        lab.store.compact("r", full=True)
        lab.store.vacuum(grace=0)
        assert needed <= data_files(lab) and table.info.safe_epoch <= at
    lab.now_ms += LEASE_MS
    for _ in range(2):
        lab.put({0: (1, 1)})
        lab.store.compact("r", full=True)
        lab.now_ms += 2 * MINUTE_MS
    lab.store.vacuum(grace=0)
    assert table.info.safe_epoch > at and not needed & data_files(lab)


# ---- A12 ---------------------------------------------------------------------------------------------------------


def look_after(lab: Lab) -> None:
    for _ in range(2):
        lab.now_ms += 30 * 24 * HOUR_MS
        lab.store.compact(full=True)
        lab.store.compact()
        lab.store.vacuum()


def test_a12_a_table_at_rest_keeps_its_newest_version_for_ever(lab: Lab) -> None:
    still, busy = lab.root_table("still", options=SHORT), lab.root_table("busy", options=SHORT)
    job = lab.job("j", ["still"])
    lab.put({1: (1, 1)}, "still")
    newest = lab.put({2: (2, 2)}, "still")
    lab.store.checkpoint()
    assert job.step_local(sums("still", "j_out")) is not None
    for number in range(5):
        lab.put({number: (0, number)}, "busy")
        look_after(lab)
        with lab.store.snapshot(consistency="aligned") as snapshot:
            assert set(snapshot) == {"still", "busy", "j_out"}
            assert state_of(snapshot["still"].to_arrow()) == {1: (1, 1), 2: (2, 2)}
            assert state_of(snapshot["j_out"].to_arrow()) == {0: (2, 3)}
        assert lab.rows("still") == lab.rows("still", newest) == {1: (1, 1), 2: (2, 2)}
    assert still.info.safe_epoch == still.info.log_start_epoch == newest and busy.count() == 5
    assert len(still.history()) == 1 and lab.store.verify().ok


def test_a12_a_view_that_stalls_stays_readable_where_it_stands(lab: Lab) -> None:
    """Its root goes on for longer than all retentions: the job is parked, and what it had made is read as it is."""
    lab.root_table(options=SHORT)
    job = lab.job("j", ["r"])
    lab.put({1: (1, 1)})
    lab.store.checkpoint()
    at = job.step_local(sums("r", "j_out"))
    assert at is not None
    for number in range(3):
        lab.put({number: (7, 7)})
        look_after(lab)
        assert job.info.state == "parked" and lab.rows("j_out") == lab.rows("j_out", at) == {0: (1, 1)}
        with lab.store.snapshot(["j_out", "r"], consistency="latest") as both:
            assert state_of(both["j_out"].to_arrow()) == {0: (1, 1)}
        with pytest.raises(el.NoConsistentEpoch, match=r"j_out \(parked\)"):
            lab.store.snapshot(["j_out", "r"], consistency="aligned")
    job.rebuild()
    lab.store.checkpoint()
    while job.step_local(sums("r", "j_out")) is not None:
        pass
    assert lab.rows("j_out") == {0: (3, 21)}
