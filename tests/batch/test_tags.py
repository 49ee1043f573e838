"""Tags: a token made at night is good for the morning's queries, and a tag for years; no version between is kept."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import epochlog as el
from epochlog.batch import tags
from epochlog.store.catalog import records
from epochlog.store.catalog.keys import TABLE_PREFIX
from epochlog.store.catalog.protocol import scan_prefix
from epochlog.store.metadata import definitions
from epochlog.store.metadata.lookups import find_table, get_runs
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


def tag(lab: Lab, name: Any = "nightly", lasting: Any = NIGHT, tables: Any = None) -> el.Tag:
    with lab.store.snapshot(tables, consistency="aligned") as snapshot:
        return snapshot.tag(name, lasting)


@pytest.mark.rule("3.18")
def test_what_is_tagged_is_read_by_its_token_until_its_end_and_not_after(lab: Lab) -> None:
    with lab.store.snapshot(consistency="aligned") as snapshot:
        before = {table: state_of(snapshot[table].to_arrow()) for table in snapshot}
        nightly = snapshot.tag("nightly", NIGHT)
        assert nightly.epochs == snapshot.epochs and read(lab.store, snapshot.token) == before
    assert (nightly.since_ms, nightly.until_ms) == (lab.now_ms, lab.now_ms + 12 * 3_600_000)
    lab.reopen()
    for _ in range(11):
        go_on(lab)
        assert read(lab.store, nightly.token) == before
        assert lab.store.tags() == [nightly]
    lab.tick(3600)
    assert lab.store.tags() == []
    go_on(lab)
    with pytest.raises(el.EpochExpired, match="has been released"):
        read(lab.store, nightly.token)


@pytest.mark.rule("2.6")
@pytest.mark.rule("3.19")
def test_as_of_reads_at_the_epoch_of_a_tag_below_the_safe_epoch(lab: Lab) -> None:
    """And at no other epoch there, nor if only another table of the snapshot has a tag."""
    lab.root_table("q", options=el.TableOptions(history_retention=timedelta(0)))
    lab.put({1: (0, 1)}, "q")
    lab.tick()
    lab.store.job("j").step_local(sums("r", "j_out"))
    with lab.store.snapshot(consistency="aligned") as snapshot:
        before = {table: state_of(snapshot[table].to_arrow()) for table in snapshot}
        epoch = snapshot.tag("nightly").epochs["r"]
    lab.put({1: (0, 2)}, "q")
    go_on(lab)
    with lab.store.snapshot(["r"], consistency="aligned") as snapshot:
        alone = snapshot.tag("alone").epochs["r"]
    lab.put({1: (0, 3)}, "q")
    go_on(lab)
    with lab.store.snapshot(list(before), consistency=el.AsOf(epoch)) as snapshot:
        assert snapshot.epochs == dict.fromkeys(before, epoch)
        assert {table: state_of(snapshot[table].to_arrow()) for table in snapshot} == before
    for unkept in (epoch - 1, epoch + 1):
        with pytest.raises(el.EpochExpired, match="retention has removed the history of r below"):
            lab.store.snapshot(["r"], consistency=el.AsOf(unkept))
    with lab.store.snapshot(["r"], consistency=el.AsOf(alone)) as snapshot:
        assert snapshot.epochs == {"r": alone}
    with pytest.raises(el.EpochExpired, match=": retention has removed the history of q below"):
        lab.store.snapshot(list(before), consistency=el.AsOf(alone))


@pytest.mark.parametrize("name", ["nightly", "x", "y4", "2026-q3"])
def test_the_name_of_a_tag_in_place_of_its_token_is_told_where_the_token_is(lab: Lab, name: str) -> None:
    tagged = tag(lab, name)
    with pytest.raises(el.InvalidInput, match=r"to read a tag, `tag\.token` of one of store\.tags\(\)"):
        read(lab.store, name)
    assert lab.store.tags() == [tagged] and read(lab.store, tagged.token)


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
    nightly = tag(lab)
    go_on(lab)
    lab.store.close()
    command = [sys.executable, "-c", READER, str(lab.root), nightly.token]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[10, 20, 30]\n", "")


@pytest.mark.rule("3.18")
def test_it_is_released_before_its_time(lab: Lab) -> None:
    nightly, other = tag(lab), tag(lab, "weekly")
    assert [snapshot.name for snapshot in lab.store.tags()] == ["nightly", "weekly"]
    lab.store.drop_tag("nightly")
    assert lab.store.tags() == [other]
    lab.store.drop_tag("weekly")
    with pytest.raises(el.TagNotFound, match="there is no tag 'nightly'; the tags are: none"):
        lab.store.drop_tag("nightly")
    go_on(lab)
    with pytest.raises(el.EpochExpired):
        read(lab.store, nightly.token)


def test_an_open_snapshot_is_no_tag(lab: Lab) -> None:
    with lab.store.snapshot() as snapshot:
        assert lab.store.tags() == []
        with pytest.raises(el.TagNotFound):
            lab.store.drop_tag(snapshot._holder.removeprefix("snapshot:"))


def test_a_tag_keeps_no_file_that_its_epochs_do_not_need(lab: Lab) -> None:
    """A reader of its token plans anew: what a compaction has replaced may go after its grace, not after the night."""
    tag(lab)
    go_on(lab)
    assert lab.store.vacuum(grace=0).kept == ()
    handle: Any = lab.store._handle
    pinned = [hold.version for hold in handle.catalog.read(lambda view: holds_of(view, 1, lab.now_ms))]
    assert pinned and min(pinned) > 1 << 60


def test_tagging_it_again_moves_its_end(lab: Lab) -> None:
    first = tag(lab)
    lab.tick(3600)
    with lab.store.snapshot(consistency=el.Exact(first.token)) as snapshot:
        again = snapshot.tag("nightly", NIGHT)
    assert (again.token, again.since_ms) == (first.token, first.since_ms)
    assert again.until_ms == lab.now_ms + 12 * 3_600_000 and lab.store.tags() == [again]


def test_a_name_is_taken_once(lab: Lab) -> None:
    nightly = tag(lab)
    go_on(lab)
    for tables in (["r"], None):
        with pytest.raises(el.InvalidInput, match="the tag 'nightly' has other tables or epochs: drop it"):
            tag(lab, tables=tables)
    assert lab.store.tags() == [nightly]
    lab.tick(12 * 3600)
    assert tag(lab, tables=["r"]).epochs.keys() == {"r"}  # its time has passed


def test_of_two_at_once_one_has_the_name(lab: Lab) -> None:
    """Holds of two snapshots under one name are atomic in any order: the name holds one complete snapshot."""
    with lab.store.snapshot(["r"], consistency="aligned") as older:
        lab.put({9: (0, 1)})
        with lab.store.snapshot(["r", "j_out"], consistency="latest") as newer:
            start, outcomes = threading.Barrier(2), []

            def take(snapshot: el.Snapshot) -> None:
                start.wait()
                try:
                    outcomes.append(snapshot.tag("nightly", NIGHT))
                except el.InvalidInput as error:
                    outcomes.append(error)

            threads = [threading.Thread(target=take, args=[snapshot]) for snapshot in (older, newer)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    (kept_one,) = (outcome for outcome in outcomes if isinstance(outcome, el.Tag))
    assert len(outcomes) == 2 and lab.store.tags() == [kept_one]
    assert kept_one.epochs in (older.epochs, newer.epochs)


@pytest.mark.rule("3.18")
@pytest.mark.parametrize("lasting", [0, -1, timedelta(days=367), "1h", float("inf"), True])
def test_a_time_that_is_none_is_refused(lab: Lab, lasting: Any) -> None:
    with pytest.raises(el.InvalidInput, match="lasting must be"):
        tag(lab, lasting=lasting)
    assert lab.store.tags() == []


@pytest.mark.parametrize("name", ["", "Nightly", "2026", "-a", "a" * 64, "a/b", "a.b", 5, None])
def test_a_name_that_is_none_is_refused(lab: Lab, name: Any) -> None:
    with pytest.raises(el.InvalidName, match="cannot be named"):
        tag(lab, name)


def test_only_so_many_are_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MOST_TAGS", 2)
    tag(lab, "a")
    tag(lab, "b")
    with pytest.raises(el.LimitExceeded, match="this store has 2 tags"):
        tag(lab, "c")
    tag(lab, "b")
    lab.store.drop_tag("a")
    tag(lab, "c")


def test_a_closed_snapshot_and_one_whose_lease_has_ended_cannot_be_tagged(lab: Lab) -> None:
    snapshot = lab.store.snapshot(consistency="aligned")
    snapshot.close()
    with pytest.raises(el.SnapshotExpired, match="was closed"):
        snapshot.tag("a")
    stopped = lab.store.snapshot(consistency="aligned")
    lab.store._handle.leases.forget(stopped._holder)  # as if its process had been stopped for longer than a lease
    lab.tick(LEASE_MS / 1000)
    go_on(lab)
    with pytest.raises(el.SnapshotExpired, match="has been released; take a new snapshot and tag that"):
        stopped.tag("a")
    assert lab.store.tags() == []


@pytest.mark.rule("3.18")
def test_a_dropped_table_takes_its_part_with_it(lab: Lab) -> None:
    nightly = tag(lab)
    lab.store.drop_job("j")
    (kept,) = lab.store.tags()
    assert (kept.name, kept.epochs) == ("nightly", {"r": nightly.epochs["r"]})
    assert read(lab.store, kept.token).keys() == {"r"}
    with pytest.raises(el.TableDropped):
        read(lab.store, nightly.token)
    lab.store.drop_table("r")
    assert lab.store.tags() == [] and lab.store.verify().ok


# ---- tags of years -------------------------------------------------------------------------------------------------


def past_rows(lab: Lab, table_id: int = 1) -> list[tuple[Any, int, int]]:
    """The replaced rows of a table's runs: key, first epoch, and the epoch that replaced it."""
    handle: Any = lab.store._handle
    rows = []
    for run in handle.catalog.read(lambda view: get_runs(view, table_id)):
        for part in run.history:
            table = pq.read_table(pa.BufferReader(handle.files.read(part.path)))
            rows += zip(*(table[name].to_pylist() for name in ("k", "_epoch", "_until")), strict=True)
    return sorted(rows)


def year(lab: Lab, commits: int = 12, keys: int = 5) -> list[int]:
    """Each commit changes every key, and retention and compaction follow it."""
    epochs = []
    for number in range(commits):
        lab.tick(3600)
        epochs.append(lab.put({key: (number, key) for key in range(keys)}))
        lab.store.compact(full=True)
    return epochs


@pytest.mark.rule("3.19")
def test_a_tag_of_years_keeps_its_rows_and_none_between(lab: Lab) -> None:
    tag = lab.store.tag("2026-q3", ["r"], consistency="latest")
    assert tag.until_ms is None and lab.store.tags() == [tag]
    before = read(lab.store, tag.token)
    epochs = year(lab)
    lab.reopen()
    assert [until for _, _, until in past_rows(lab)] == [epochs[0]] * 3
    for at in epochs[:-1]:
        with pytest.raises(el.EpochExpired):
            lab.store.table("r").to_arrow(epoch=at)
    assert read(lab.store, tag.token) == before and lab.store.verify().ok
    lab.store.vacuum(grace=0)
    with lab.store.snapshot(tag="2026-q3") as snapshot:
        assert state_of(snapshot["r"].to_arrow()) == before["r"]
    assert state_of(lab.store.table("r").to_arrow(epoch=tag.epochs["r"])) == before["r"]


@pytest.mark.rule("3.19")
def test_a_dropped_tag_lets_its_rows_go_and_leaves_those_of_others(lab: Lab) -> None:
    tags = {}
    for number in range(4):
        tags[f"t{number}"] = lab.store.tag(f"t{number}", ["r"], consistency="latest")
        year(lab, 3)
    rows = {name: read(lab.store, tag.token) for name, tag in tags.items()}
    sizes = [len(past_rows(lab))]
    for name in ("t1", "t3", "t0"):
        lab.store.drop_tag(name)
        lab.store.compact()
        sizes.append(len(past_rows(lab)))
        with pytest.raises(el.EpochExpired):
            read(lab.store, tags.pop(name).token)
        assert {kept: read(lab.store, tag.token) for kept, tag in tags.items()} == {kept: rows[kept] for kept in tags}
    assert sizes == [18, 13, 8, 5]
    lab.store.drop_tag("t2")
    lab.store.compact()
    assert past_rows(lab) == [] and lab.store.verify().ok


@pytest.mark.rule("3.19")
def test_a_tag_of_a_tag_keeps_its_epoch(lab: Lab) -> None:
    first = lab.store.tag("a", ["r"], consistency="latest", lasting=NIGHT)
    before = read(lab.store, first.token)
    year(lab, 5)
    again = lab.store.tag("b", consistency=el.Exact(first.token))
    year(lab, 10)
    assert [tag.name for tag in lab.store.tags()] == ["b"] and read(lab.store, again.token) == before


@pytest.mark.rule("3.19")
def test_a_reader_of_a_tag_holds_back_nothing_else(lab: Lab) -> None:
    """An open snapshot of an old tag keeps that epoch, also when the tag is dropped; not all epochs from it on."""
    tag = lab.store.tag("a", ["r"], consistency="latest")
    before = read(lab.store, tag.token)
    year(lab, 2)
    with lab.store.snapshot(tag="a") as snapshot:
        lab.store.drop_tag("a")
        epochs = year(lab, 4)
        assert lab.store.table("r").info.safe_epoch == epochs[-1]
        lab.store.vacuum(grace=0)
        assert {"r": state_of(snapshot["r"].to_arrow())} == before == read(lab.store, tag.token)
    lab.store.compact(full=True)
    with pytest.raises(el.EpochExpired):
        read(lab.store, tag.token)


@pytest.mark.rule("3.19")
def test_a_table_is_restored_to_a_tag(lab: Lab) -> None:
    tag = lab.store.tag("before", ["r"], consistency="latest")
    before = read(lab.store, tag.token)
    year(lab, 3)
    lab.store.table("r").restore(tag.epochs["r"])
    assert state_of(lab.store.table("r").to_arrow()) == before["r"]


@pytest.mark.rule("3.19")
def test_a_tag_of_a_view_is_read_with_its_upstream_when_their_commits_are_forgotten(lab: Lab) -> None:
    tag = lab.store.tag("q", consistency="aligned", tables=["r", "j_out"])
    before = read(lab.store, tag.token)
    for _ in range(4):
        lab.tick(2 * 86_400)
        go_on(lab)
    assert min(lab.store.table("r").history()["epoch"].to_pylist()) > tag.epochs["r"]
    with lab.store.snapshot(tag="q") as snapshot:
        assert {table: state_of(snapshot[table].to_arrow()) for table in snapshot} == before
        assert min(snapshot.lag_ms.values()) > 0


@pytest.mark.rule("3.19")
def test_an_older_version_refuses_a_table_with_a_tag(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take a tag for a hold of all history, or release the rows below the safe epoch: it fails at once."""

    def formats() -> list[int]:
        handle: Any = lab.store._handle
        return [
            msgpack.unpackb(record["schema"])["format"]
            for _, record in handle.catalog.read(lambda view: list(scan_prefix(view, TABLE_PREFIX)))
        ]

    assert formats() == [1, 1]
    lab.store.tag("a", ["r"], consistency="latest")
    assert formats() == [2, 1]
    monkeypatch.setattr("epochlog.store.types.schema._FORMAT", 1)
    definitions.SCHEMAS.clear()
    records.DECODED.clear()
    lab.store._handle.catalog.read(lambda view: find_table(view, "j_out"))
    with pytest.raises(el.UnsupportedFormat, match="upgrade epochlog"):
        lab.store.compact("r")


def test_a_snapshot_of_a_tag_takes_no_policy(lab: Lab) -> None:
    lab.store.tag("a", consistency="aligned")
    for options in ({"consistency": "latest"}, {"max_lag": 5}):
        with pytest.raises(el.InvalidInput, match="leave out consistency"):
            lab.store.snapshot(tag="a", **options)
    with pytest.raises(el.TagNotFound, match="the tags are: a"):
        lab.store.snapshot(tag="b")
