"""Snapshots held under a name: a token made at night is good for the morning's queries, whoever has died meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.batch import named_snapshots
from epochlog.store.retention.holds import holds_of
from epochlog.store.session.leases import LEASE_MS
from lab import Lab, keys_of, state_of, sums

NIGHT = timedelta(hours=12)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0)))
    lab.put({1: (0, 10), 2: (0, 20), 3: (1, 30)})
    lab.tick()
    lab.job("j", ["r"]).step_local(sums("r", "j_out"))
    return lab


def go_on(lab: Lab) -> None:
    """An hour passes in which everything that may go goes."""
    lab.tick(3600)
    lab.put({2: (0, lab.now_ms % 1000), 7: (1, 1)})
    lab.store.table("r").delete(keys_of([1]))
    lab.tick()
    lab.store.job("j").step_local(sums("r", "j_out"))
    lab.store.compact(full=True)
    lab.store.vacuum(grace=0)


def read(store: el.Store, token: str) -> dict[str, Any]:
    with store.snapshot(consistency=el.Exact(token)) as snapshot:
        return {table: state_of(snapshot[table].to_arrow()) for table in snapshot}


def hold(lab: Lab, name: str | None = "nightly", lasting: Any = NIGHT, tables: Any = None) -> el.HeldSnapshot:
    with lab.store.snapshot(tables, consistency="aligned") as snapshot:
        return snapshot.hold(lasting, name)


@pytest.mark.rule("3.18")
def test_what_is_held_is_read_by_its_token_until_its_end_and_not_after(lab: Lab) -> None:
    with lab.store.snapshot(consistency="aligned") as snapshot:
        before = {table: state_of(snapshot[table].to_arrow()) for table in snapshot}
        nightly = snapshot.hold(NIGHT, "nightly")
        assert nightly.epochs == snapshot.epochs and read(lab.store, snapshot.token) == before
    assert (nightly.since_ms, nightly.until_ms) == (lab.now_ms, lab.now_ms + 12 * 3_600_000)
    lab.reopen()
    for _ in range(11):
        go_on(lab)
        assert read(lab.store, nightly.token) == before
        assert lab.store.held_snapshots() == [nightly]
    lab.tick(3600)
    assert lab.store.held_snapshots() == []
    go_on(lab)
    with pytest.raises(el.EpochExpired, match="has been released"):
        read(lab.store, nightly.token)


READER = """
import sys, epochlog as el
with el.open(sys.argv[1], create=False) as store:
    with store.snapshot(consistency=el.Exact(sys.argv[2])) as snapshot:
        print(snapshot['r'].to_arrow()['v'].to_pylist())
"""


@pytest.mark.rule("3.18")
@pytest.mark.medium
@pytest.mark.local_only
def test_another_process_reads_it(lab: Lab) -> None:
    nightly = hold(lab)
    go_on(lab)
    lab.store.close()
    command = [sys.executable, "-c", READER, str(lab.root), nightly.token]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[10, 20, 30]\n", "")


@pytest.mark.rule("3.18")
def test_it_is_released_before_its_time(lab: Lab) -> None:
    nightly, other = hold(lab), hold(lab, "weekly")
    assert [snapshot.name for snapshot in lab.store.held_snapshots()] == ["nightly", "weekly"]
    lab.store.release_snapshot("nightly")
    assert lab.store.held_snapshots() == [other]
    lab.store.release_snapshot("weekly")
    with pytest.raises(el.SnapshotNotFound, match="no snapshot is held as 'nightly'; held are: none"):
        lab.store.release_snapshot("nightly")
    go_on(lab)
    with pytest.raises(el.EpochExpired):
        read(lab.store, nightly.token)


def test_an_open_snapshot_is_not_a_held_one(lab: Lab) -> None:
    with lab.store.snapshot() as snapshot:
        assert lab.store.held_snapshots() == []
        with pytest.raises(el.SnapshotNotFound):
            lab.store.release_snapshot(snapshot._holder.removeprefix("snapshot:"))


def test_a_held_snapshot_keeps_no_file_that_its_epochs_do_not_need(lab: Lab) -> None:
    """A reader of its token plans anew: what a compaction has replaced may go after its grace, not after the night."""
    hold(lab)
    go_on(lab)
    assert lab.store.vacuum(grace=0).kept == ()
    handle: Any = lab.store._handle
    pinned = [hold.version for hold in handle.catalog.read(lambda view: holds_of(view, 1, lab.now_ms))]
    assert pinned and min(pinned) > 1 << 60


def test_holding_it_again_moves_its_end(lab: Lab) -> None:
    first = hold(lab)
    lab.tick(3600)
    with lab.store.snapshot(consistency=el.Exact(first.token)) as snapshot:
        again = snapshot.hold(NIGHT, "nightly")
    assert (again.token, again.since_ms) == (first.token, first.since_ms)
    assert again.until_ms == first.until_ms + 3_600_000 and lab.store.held_snapshots() == [again]


def test_a_name_is_taken_once(lab: Lab) -> None:
    nightly = hold(lab)
    go_on(lab)
    for tables in (["r"], None):
        with pytest.raises(el.InvalidInput, match="another snapshot is held as 'nightly': release it"):
            hold(lab, tables=tables)
    assert lab.store.held_snapshots() == [nightly]
    lab.tick(12 * 3600)
    assert hold(lab, tables=["r"]).epochs.keys() == {"r"}  # its time has passed
    assert len({hold(lab, None).name for _ in range(3)}) == 3


def test_of_two_at_once_one_has_the_name(lab: Lab) -> None:
    """Holds of two snapshots under one name are atomic in any order: the name holds one complete snapshot."""
    with lab.store.snapshot(["r"], consistency="aligned") as older:
        lab.put({9: (0, 1)})
        with lab.store.snapshot(["r", "j_out"], consistency="latest") as newer:
            start, outcomes = threading.Barrier(2), []

            def take(snapshot: el.Snapshot) -> None:
                start.wait()
                try:
                    outcomes.append(snapshot.hold(NIGHT, "nightly"))
                except el.InvalidInput as error:
                    outcomes.append(error)

            threads = [threading.Thread(target=take, args=[snapshot]) for snapshot in (older, newer)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    (held_one,) = (outcome for outcome in outcomes if isinstance(outcome, el.HeldSnapshot))
    assert len(outcomes) == 2 and lab.store.held_snapshots() == [held_one]
    assert held_one.epochs in (older.epochs, newer.epochs)


@pytest.mark.rule("3.18")
@pytest.mark.parametrize("lasting", [0, -1, timedelta(days=367), "1h", None, float("inf"), True])
def test_a_time_that_is_none_is_refused(lab: Lab, lasting: Any) -> None:
    with pytest.raises(el.InvalidInput, match="lasting must be"):
        hold(lab, lasting=lasting)
    assert lab.store.held_snapshots() == []


@pytest.mark.parametrize("name", ["", "Nightly", "1", "a" * 64, "a/b", 5])
def test_a_name_that_is_none_is_refused(lab: Lab, name: Any) -> None:
    with pytest.raises(el.InvalidName, match="cannot be held as"):
        hold(lab, name)


def test_only_so_many_are_held(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_snapshots, "MOST_HELD", 2)
    hold(lab, "a")
    hold(lab, "b")
    with pytest.raises(el.LimitExceeded, match="2 snapshots of this store are held"):
        hold(lab, "c")
    hold(lab, "b")
    lab.store.release_snapshot("a")
    hold(lab, "c")


def test_a_closed_snapshot_and_one_whose_lease_has_ended_cannot_be_held(lab: Lab) -> None:
    snapshot = lab.store.snapshot(consistency="aligned")
    snapshot.close()
    with pytest.raises(el.SnapshotExpired, match="was closed"):
        snapshot.hold(NIGHT)
    stopped = lab.store.snapshot(consistency="aligned")
    lab.store._handle.leases.forget(stopped._holder)  # as if its process had been stopped for longer than a lease
    lab.tick(LEASE_MS / 1000)
    go_on(lab)
    with pytest.raises(el.SnapshotExpired, match="has been released; take a new snapshot"):
        stopped.hold(NIGHT)
    assert lab.store.held_snapshots() == []


@pytest.mark.rule("3.18")
def test_a_dropped_table_takes_its_part_with_it(lab: Lab) -> None:
    nightly = hold(lab)
    lab.store.drop_job("j")
    (held_snapshot,) = lab.store.held_snapshots()
    assert (held_snapshot.name, held_snapshot.epochs) == ("nightly", {"r": nightly.epochs["r"]})
    assert read(lab.store, held_snapshot.token).keys() == {"r"}
    with pytest.raises(el.TableDropped):
        read(lab.store, nightly.token)
    lab.store.drop_table("r")
    assert lab.store.held_snapshots() == [] and lab.store.verify().ok
