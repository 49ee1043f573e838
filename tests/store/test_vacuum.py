"""Vacuum deletes what nothing reaches, reads or writes any more, and nothing else; and it tells why a file stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

import epochlog as el
from epochlog.store.catalog.keys import after_prefix, intent_key, unreachable_key
from epochlog.store.epochs.view_reader import forced_boundaries
from epochlog.store.maintenance.vacuum import GRACE, vacuum
from epochlog.store.metadata.unreachable_files import UnreachableFile, list_unreachable
from epochlog.store.retention.holds import all_holds
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.session.write_intents import all_intents
from epochlog.store.types.epoch import MAX_EPOCH
from lab import Lab, state_of, sums, table_of

GRACE_MS = round(GRACE.total_seconds() * 1000)
NO_LOG = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


def files(lab: Lab) -> set[str]:
    """The data files that are there, by path."""
    handle = lab.store._handle
    return {info.path for info in handle.files.list(handle.store_id) if info.path.endswith((".arrow", ".parquet"))}


def replaced(lab: Lab, name: str = "r", commits: int = 3) -> el.Table:
    """A table whose log and first run have been let go of: garbage as it arises every day."""
    table = lab.root_table(name, options=NO_LOG)
    for number in range(commits):
        lab.put({number: (0, number)}, name)
        lab.tick()
        lab.store.compact(name)
    lab.store.compact(name)
    return table


def later(lab: Lab, ms: int = GRACE_MS) -> None:
    lab.now_ms += ms


def paths(files: tuple[el.VacuumedFile, ...]) -> set[str]:
    return {file.path for file in files}


# ---- what goes ---------------------------------------------------------------------------------------------------


def test_replaced_files_go_when_their_grace_is_over(lab: Lab) -> None:
    table = replaced(lab)
    rows, before = lab.rows("r"), files(lab)
    first = lab.store.vacuum()
    assert (first.deleted, first.noted, first.dry_run) == ((), 0, False)
    assert first.kept and {file.reason for file in first.kept} == {"in grace"}
    assert files(lab) == before
    later(lab)
    done = lab.store.vacuum()
    assert paths(done.deleted) == paths(first.kept) and done.bytes_freed == sum(file.bytes for file in first.kept)
    assert files(lab) == before - paths(done.deleted) and len(files(lab)) == done.data_files
    assert lab.rows("r") == rows and table.info.log_segments == 1
    again = lab.store.vacuum()
    assert (again.deleted, again.kept, again.foreign, again.revoked) == ((), (), (), ())
    assert not lab.store._handle.catalog.read(list_unreachable)


def test_a_dry_run_tells_the_same_and_writes_nothing(lab: Lab) -> None:
    replaced(lab)
    writer = lab.store.table("r").writer()
    writer.upsert(table_of({9: (9, 9)}))
    writer.seal(lab.store.last_epoch + 1)
    later(lab)
    before, txn = files(lab), lab.txn_id()
    plan = lab.store.vacuum(dry_run=True)
    assert (files(lab), lab.txn_id()) == (before, txn)
    assert plan.dry_run and "would delete" in repr(plan)
    done = lab.store.vacuum()
    assert replace(plan, dry_run=False) == done and done.deleted


def test_the_files_of_a_dropped_table_go(lab: Lab) -> None:
    replaced(lab)
    lab.root_table("other")
    lab.put({1: (1, 1)}, "other")
    ours = {path for path in files(lab) if "/t00000001/" in path}
    lab.store.drop_table("r")
    assert paths(lab.store.vacuum().kept) == ours
    later(lab)
    assert paths(lab.store.vacuum().deleted) == ours
    assert lab.rows("other") == {1: (1, 1)}


def test_a_file_that_no_record_knows_is_noted_then_deleted(lab: Lab) -> None:
    replaced(lab, commits=1)
    handle = lab.store._handle
    lost = f"{handle.table_folder(1)}/{'a' * 32}-{'b' * 32}.arrow"
    handle.files.write(lost, b"what a writer left that died long ago")
    plan = lab.store.vacuum(dry_run=True)
    assert plan.noted == 1 and not handle.catalog.read(list_unreachable)
    first = lab.store.vacuum()
    assert (first.noted, paths(first.kept)) == (1, {lost})
    later(lab, GRACE_MS - 1)
    assert (lab.store.vacuum().noted, lost in files(lab)) == (0, True)
    later(lab, 1)
    assert paths(lab.store.vacuum().deleted) == {lost}


def test_no_grace_deletes_at_once(lab: Lab) -> None:
    replaced(lab)
    report = lab.store.vacuum(grace=0)
    assert report.deleted and len(files(lab)) == report.data_files
    with pytest.raises(el.InvalidInput):
        lab.store.vacuum(grace=-1)
    with pytest.raises(el.InvalidInput):
        lab.store.vacuum(grace=True)


def test_foreign_files_are_told_of_and_left_alone(lab: Lab) -> None:
    replaced(lab, commits=1)
    handle = lab.store._handle
    mine = [f"{handle.store_id}/notes.txt", f"{handle.table_folder(1)}/x.tmp", f"{handle.table_folder(1)}/a/x.arrow"]
    elsewhere = [f"{'0' * 32}/t00000001/x.arrow", "x.arrow"]
    for path in (*mine, *elsewhere):
        handle.files.write(path, b"mine")
    later(lab, 10 * GRACE_MS)
    for _ in range(2):
        report = lab.store.vacuum(grace=0)
        assert paths(report.foreign) == set(mine) and not report.deleted
        later(lab, 10 * GRACE_MS)
    assert all(handle.files.exists(path) for path in (*mine, *elsewhere))


# ---- what is being written ---------------------------------------------------------------------------------------


def test_a_file_that_is_being_written_stays_and_says_by_whom(lab: Lab) -> None:
    lab.root_table()
    writer = lab.store.table("r").writer()
    writer.upsert(table_of({1: (1, 1)}))
    (segment,) = writer.seal(lab.store.last_epoch + 1)
    later(lab, 100 * 86_400_000)  # its lease has run out by the clock, its holder lives here
    for other in (lab.store, lab.open()):
        (file,) = other.vacuum(grace=0).kept
        assert file.path == segment.path and "being written under store intent" in file.reason
        assert f"{os.getpid()} on " in file.reason
    lab.store.commit({"r": [segment]})
    assert lab.rows("r") == {1: (1, 1)}


def dead_writer(lab: Lab) -> list[el.Segment]:
    """Segments of a writer whose process has died: its intent is there, and nobody renews it."""
    other = lab.open()
    writer = other.table("r").writer()
    writer.upsert(table_of({7: (7, 7)}))
    segments = writer.seal(lab.store.last_epoch + 1)
    for intent in list(other._handle.leases._held):
        other._handle.leases.forget(intent)
    other.close()
    return segments


def test_the_intent_of_a_dead_writer_is_revoked_and_its_files_go(lab: Lab) -> None:
    lab.root_table()
    lab.put({1: (1, 1)})
    (segment,) = dead_writer(lab)
    (ends,) = [intent.expires_ms for intent in lab.store._handle.catalog.read(all_intents) if intent.id in segment.path]
    lab.now_ms = ends - 1
    report = lab.store.vacuum(grace=0)
    assert (report.revoked, paths(report.kept)) == ((), {segment.path})
    lab.now_ms = ends + GRACE_MS - 1
    plan, report = lab.store.vacuum(dry_run=True), lab.store.vacuum()
    assert plan.revoked == report.revoked and [intent.id for intent in report.revoked] == [
        segment.path.split("/")[-1][:32]
    ]
    assert paths(report.kept) == {segment.path} and report.kept[0].since_ms == ends
    with pytest.raises(el.SegmentUnknown, match="revoked"):
        lab.store.commit({"r": [segment]})
    later(lab, 1)
    assert paths(lab.store.vacuum().deleted) == {segment.path}
    assert lab.rows("r") == {1: (1, 1)}


def test_a_writer_dead_for_long_is_cleared_away_in_one_run(lab: Lab) -> None:
    lab.root_table()
    (segment,) = dead_writer(lab)
    later(lab, 10 * 86_400_000)
    plan, done = lab.store.vacuum(dry_run=True), lab.store.vacuum()
    assert paths(plan.deleted) == paths(done.deleted) == {segment.path}
    with pytest.raises(el.SegmentUnknown):
        lab.store.commit({"r": [segment]})
    assert lab.store.verify().unreachable == ()


def test_a_writer_whose_intent_was_revoked_can_write_again(lab: Lab) -> None:
    """As after a long suspension: the first commit is refused, the next one lands."""
    lab.root_table()
    lab.put({1: (1, 1)})
    handle = lab.store._handle
    own = handle.intents.store_intent()
    handle.catalog.transact(lambda tx: tx.delete(intent_key(own)))
    with pytest.raises(el.SegmentUnknown):
        lab.put({2: (2, 2)})
    lab.put({2: (2, 2)})
    assert set(lab.rows("r")) == {1, 2}


def test_a_compaction_whose_intent_was_revoked_puts_nothing_in_place(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.store.compaction import executor

    lab.root_table()
    for number in range(3):
        lab.put({number: (number, number)})
    handle, finish = lab.store._handle, executor._finish

    def revoked_before(handle, tx, *rest):
        for intent in all_intents(tx):
            tx.delete(intent_key(intent.id))
        return finish(handle, tx, *rest)

    monkeypatch.setattr(executor, "_finish", revoked_before)
    lab.store.compact("r")
    assert lab.store.table("r").info.runs == 0
    monkeypatch.undo()
    handle.leases.renew()
    lab.store.compact("r")
    assert lab.store.table("r").info.runs == 1 and len(lab.rows("r")) == 3


# ---- what is being read ------------------------------------------------------------------------------------------


@pytest.mark.rule("3.17")
def test_a_snapshot_keeps_what_it_reads_and_says_so(lab: Lab) -> None:
    table = lab.root_table(options=NO_LOG)
    lab.put({1: (1, 1), 2: (2, 2)})
    snapshot = lab.store.snapshot(["r"])
    rows, read = state_of(snapshot["r"].to_arrow()), files(lab)
    for number in range(3):
        lab.tick(10)
        lab.put({1: (number, 0)})
        table.truncate_log(table.info.max_committed_epoch)
        lab.store.compact("r", full=True)
    later(lab, 100 * 86_400_000)
    report = lab.store.vacuum(grace=0)
    held = {file.path: file for file in report.kept}
    assert read <= set(held) and all("held by snapshot:" in held[path].reason for path in read)
    assert state_of(snapshot["r"].to_arrow()) == rows
    snapshot.close()
    assert read <= paths(lab.store.vacuum(grace=0).deleted)
    assert lab.store.verify().unreachable == ()


def test_a_snapshot_outlives_its_table(lab: Lab) -> None:
    lab.root_table()
    lab.put({1: (1, 1)})
    snapshot = lab.store.snapshot(["r"])
    lab.store.drop_table("r")
    later(lab, 86_400_000)
    assert {file.reason[:17] for file in lab.store.vacuum(grace=0).kept} == {"held by snapshot:"}
    assert state_of(snapshot["r"].to_arrow()) == {1: (1, 1)}
    snapshot.close()
    assert lab.store.vacuum(grace=0).deleted and not files(lab)


def test_files_let_go_of_before_a_snapshot_are_not_held_by_it(lab: Lab) -> None:
    replaced(lab)
    with lab.store.snapshot(["r"]):
        assert lab.store.vacuum(grace=0).deleted


def test_a_recorded_barrier_keeps_what_its_job_has_planned_to_read(lab: Lab) -> None:
    table = lab.root_table(options=replace(NO_LOG, log_retention=timedelta(days=9)))  # else j is parked
    job = lab.job("j", ["r"])
    lab.put({1: (1, 1)})
    lab.store.compact("r", full=True)
    lab.store.checkpoint()

    def refresh(ctx) -> None:
        lab.put({1: (2, 2), 3: (3, 3)})
        for _ in range(2):
            lab.store.compact("r", full=True)
            later(lab, 86_400_000)
            report = lab.store.vacuum(grace=0)
            assert not report.deleted and {file.reason for file in report.kept} == {"held by job:j"}
        sums("r", "j_out")(ctx)

    assert job.step_local(refresh) is not None
    assert lab.rows("j_out") == {0: (1, 1)}
    assert lab.store.vacuum(grace=0).deleted and table.count() == 2


@pytest.mark.local_only
def test_an_unheld_read_that_was_overtaken_is_told_so(lab: Lab) -> None:
    table = lab.root_table(options=NO_LOG)
    lab.put({1: (1, 1)})
    scan, changes = table.scan(), table.changes(0)
    lab.tick()
    lab.put({1: (2, 2)})
    lab.store.compact("r", full=True)
    lab.tick()
    lab.put({1: (3, 3)})
    lab.store.compact("r", full=True)
    assert lab.store.vacuum(grace=0).deleted
    for reader in (scan, changes):
        with pytest.raises(el.SnapshotExpired, match="read again"):
            reader.read_all()
    assert lab.rows("r") == {1: (3, 3)}


@pytest.mark.local_only
@pytest.mark.damages_store
def test_a_file_that_is_missing_is_still_damage(lab: Lab) -> None:
    table = lab.root_table()
    lab.put({1: (1, 1)})
    scan, changes = table.scan(), table.changes(0)
    (path,) = files(lab)
    (lab.root / path).unlink()
    for read in (scan.read_all, changes.read_all, table.to_arrow, table.count):
        with pytest.raises(el.Corrupt, match="gone"):
            read()


# ---- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.logs("file_contradiction")
def test_a_reached_file_is_never_deleted_whatever_is_noted(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.root_table()
    lab.put({1: (1, 1)})
    (path,), handle = files(lab), lab.store._handle
    note = UnreachableFile(path, 1, 1, 0, 0).to_record()
    handle.catalog.transact(lambda tx: tx.put(unreachable_key(1, path), note))
    report = lab.store.vacuum(grace=0)
    assert not report.deleted and paths(report.kept) == {path} and "report this" in report.kept[0].reason
    assert "report this" in caplog.text and lab.rows("r") == {1: (1, 1)}
    handle.catalog.transact(lambda tx: tx.delete(unreachable_key(1, path)))


def test_a_file_that_cannot_be_deleted_is_told_of_and_tried_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(lab)
    kinds = type(lab.store._handle.files)
    delete = kinds.delete

    def refuse(self, path: str) -> None:
        raise el.WriteFailed(f"{path} was not deleted: it is busy")

    monkeypatch.setattr(kinds, "delete", refuse)
    report = lab.store.vacuum(grace=0)
    assert not report.deleted and {"it is busy" in file.reason for file in report.kept} == {True}
    monkeypatch.setattr(kinds, "delete", delete)
    assert paths(lab.store.vacuum(grace=0).deleted) == paths(report.kept)


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("point", ["vacuum:marked", "vacuum:before-delete", "vacuum:before-delete:2", "vacuum:deleted"])
def test_a_vacuum_that_dies_is_repeated_harmlessly(lab: Lab, point: str) -> None:
    replaced(lab)
    (segment,) = dead_writer(lab)
    rows, reached = lab.rows("r"), lab.store.vacuum(dry_run=True).data_files
    lab.store.close()
    code = (
        "import sys, epochlog as el\n"
        "with el.open(sys.argv[1], clock=lambda: int(sys.argv[2]), durability='os') as s: s.vacuum(grace=0)\n"
    )
    later(lab, 30 * 86_400_000)
    done = subprocess.run(
        [sys.executable, "-c", code, str(lab.root), str(lab.now_ms)],
        check=False,
        env={**os.environ, "EPOCHLOG_KILL_AT": point},
    )
    assert done.returncode == -9
    lab.store = lab.open()
    later(lab, LEASE_MS)
    lab.store.vacuum(grace=0)
    assert lab.rows("r") == rows and len(files(lab)) == reached and segment.path not in files(lab)
    report = lab.store.verify()
    assert report.ok and not report.unreachable and not lab.store._handle.catalog.read(list_unreachable)


def test_two_vacuums_at_once(lab: Lab) -> None:
    replaced(lab, commits=8)
    rows, other = lab.rows("r"), lab.open()
    reports: list[el.VacuumReport] = []
    threads = [
        threading.Thread(target=lambda store=store: reports.append(store.vacuum(grace=0)))
        for store in (lab.store, other, lab.store)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 3 and lab.rows("r") == rows and lab.store.verify().unreachable == ()


# ---- records -----------------------------------------------------------------------------------------------------


def test_what_is_told_of_the_dead_goes_too(lab: Lab) -> None:
    table = lab.root_table(options=NO_LOG)
    with lab.open() as other:
        writer = other.table("r").writer()
        writer.upsert(table_of({1: (1, 1)}))
        other.commit({"r": writer.seal(other.last_epoch + 1)})
    catalog = lab.store._handle.catalog

    def used() -> int:
        return catalog.read(lambda view: len(list(view.scan(b"used/", after_prefix(b"used/")))))

    lab.store.vacuum(grace=0)
    assert used() == 1, "its writer might still try again"
    lab.tick()
    lab.put({1: (2, 2)})
    lab.tick()
    lab.store.compact("r", full=True)
    lab.put({1: (3, 3)})
    lab.tick()
    lab.store.compact("r", full=True)
    assert table.info.log_segments == 1
    later(lab, 2 * 86_400_000)
    lab.store.vacuum(grace=0)
    lab.store.vacuum(grace=0)
    assert used() == 0


def test_leases_of_the_dead_go_also_on_dropped_tables(lab: Lab) -> None:
    lab.root_table()
    lab.put({1: (1, 1)})
    other = lab.open()
    other.snapshot(["r"])
    for holder in list(other._handle.leases._held):
        other._handle.leases.forget(holder)
    other.close()
    lab.store.drop_table("r")
    catalog = lab.store._handle.catalog
    assert lab.store.vacuum(grace=0).kept and len(list(catalog.read(lambda view: list(all_holds(view))))) == 1
    later(lab, LEASE_MS)
    assert lab.store.vacuum().deleted == () and len(catalog.read(lambda view: list(all_holds(view)))) == 1
    later(lab)
    assert lab.store.vacuum().deleted and not catalog.read(lambda view: list(all_holds(view)))


def test_outcomes_of_an_application_at_rest_are_forgotten_and_refused(lab: Lab) -> None:
    table = lab.root_table()
    epochs = [table.upsert(table_of({n: (n, n)}), txn=("app", n)) for n in (3, 5)]
    table.upsert(table_of({}), txn=("busy", 1))
    later(lab, 31 * 86_400_000)
    table.upsert(table_of({}), txn=("busy", 2))
    assert table.upsert(table_of({9: (9, 9)}), txn=("app", 5)) == epochs[1]
    lab.store.vacuum()
    for txn_id in (3, 4, 5):
        with pytest.raises(el.TxnOutcomeForgotten):
            table.upsert(table_of({9: (9, 9)}), txn=("app", txn_id))
        with pytest.raises(el.TxnOutcomeForgotten):
            lab.store.resolve(("app", txn_id))
    assert lab.store.resolve(("busy", 1)) is not None
    assert table.upsert(table_of({6: (6, 6)}), txn=("app", 6)) > epochs[1]
    assert set(lab.rows("r")) == {3, 5, 6}


def boundaries(lab: Lab) -> list[int]:
    """Return the forced boundaries of which the catalog has a record."""
    return lab.store._handle.catalog.read(lambda view: forced_boundaries(view, 0, MAX_EPOCH)).tolist()


def test_forced_boundaries_go_once_all_readers_have_passed_them(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint() leaves one; jobs and consumers may commit there for as long as the logs are kept."""
    options = el.TableOptions(log_retention=timedelta(hours=1))
    table = lab.root_table(options=options)
    view = lab.store.create_view("v", "SELECT k, v FROM r", ["k"], options=options)
    consumer = el.UpstreamLog(lab.store, ["r"], consumer="c")

    def act() -> int:
        later(lab, 1000)
        table.upsert(table_of({1: (lab.now_ms, 1)}))
        epoch = lab.store.checkpoint()
        while view.step():
            continue
        while consumer.poll() is not None:
            continue
        return epoch

    epochs = [act() for _ in range(4)]
    consumer.ack()
    assert boundaries(lab) == epochs
    lab.store.vacuum()
    assert boundaries(lab) == epochs, "the log is kept"
    later(lab, 3_700_000)
    behind = act()
    lab.store.vacuum()
    assert boundaries(lab) == [epochs[3], behind], "the consumer has acknowledged the fourth"
    consumer.ack()
    lab.store.vacuum()
    assert boundaries(lab) == [behind]
    later(lab, 3_700_000)
    newest = [act() for _ in range(4)][-1]
    later(lab, 3_700_000)
    act()
    consumer.ack()
    monkeypatch.setattr("epochlog.store.maintenance.vacuum.BATCH", 2)
    lab.store.vacuum()
    assert len(boundaries(lab)) == 1 and boundaries(lab)[0] > newest, "five of them, two in a transaction"
    consumer.close()


def test_many_files_go_in_batches_and_progress_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.maintenance.vacuum.BATCH", 2)
    replaced(lab, commits=5)
    progress: list[tuple[int, int]] = []
    report = vacuum(lab.store._handle, grace=0, progress=lambda done, total: progress.append((done, total)))
    assert progress[-1] == (len(report.deleted), len(report.deleted)) and len(progress) == -(-len(report.deleted) // 2)
    stopped = replaced(lab, "other", commits=5)
    half = vacuum(lab.store._handle, grace=0, stop=lambda: True)
    assert not half.deleted and lab.store.vacuum(grace=0).deleted and stopped.count() == 5


def test_a_store_made_of_nothing(lab: Lab) -> None:
    report = lab.store.vacuum()
    assert report == el.VacuumReport() and "deleted 0 files" in repr(report)
    shutil.rmtree(lab.root / lab.store._handle.store_id, ignore_errors=True)
    assert lab.store.vacuum() == report


@pytest.mark.local_only
def test_a_file_that_does_not_bear_one_of_our_names_is_somebody_elses(lab: Lab) -> None:
    table = replaced(lab)
    mine = lab.root / lab.store._handle.table_folder(table._table.id) / "my_notes.parquet"
    mine.write_bytes(b"notes")
    report = lab.store.vacuum(grace=0)
    assert mine.exists() and [path.rsplit("/", 1)[-1] for path in paths(report.foreign)] == ["my_notes.parquet"]
    mine.unlink()
