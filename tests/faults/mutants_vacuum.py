"""Bugs of vacuum and retention, and the checks that notice them: whatever is read, written or held must be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog import api
from epochlog.store.commit import table_ddl
from epochlog.store.compaction import subcompactions
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.maintenance import vacuum, vacuum_plan
from epochlog.store.metadata import reachable_files
from epochlog.store.metadata.lookups import find_table
from epochlog.store.retention import retention
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.session.leases import LEASE_MS
from faults.mutant import Mutant
from lab import Lab, mirror, state_of, sums, table_of

NO_PAST = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


@contextmanager
def lab_at(base: Path) -> Iterator[Lab]:
    lab = Lab(base / "s")
    try:
        yield lab
    finally:
        lab.store.close()


def readable(read: Callable[[], Any]) -> Any:
    """Return the result of `read`. Raises AssertionError when its files or epochs have been removed."""
    try:
        return read()
    except (el.SnapshotExpired, el.SegmentUnknown, el.EpochExpired, el.LogTruncated, el.NoConsistentEpoch) as error:
        raise AssertionError(f"it was taken away: {error}") from error


def replace_everything(lab: Lab) -> None:
    """All files that the table r had are garbage after this, as far as holders allow."""
    for number in range(2):
        lab.tick()
        lab.put({1: (number, 0)})
        lab.store.compact("r", full=True)


# ---- checks ------------------------------------------------------------------------------------------------------


def what_is_pinned_stays(base: Path) -> None:
    with lab_at(base) as lab:
        lab.root_table(options=NO_PAST)
        lab.put({1: (1, 1)})
        with lab.store.snapshot(["r"]) as snapshot:
            replace_everything(lab)
            lab.store.vacuum(grace=0)
            assert readable(lambda: state_of(snapshot["r"].to_arrow())) == {1: (1, 1)}


def what_is_written_stays(base: Path) -> None:
    with lab_at(base) as lab:
        lab.root_table()
        writer = lab.store.table("r").writer()
        writer.upsert(table_of({1: (1, 1)}))
        sealed = writer.seal(lab.store.last_epoch + 1)
        lab.store.vacuum(grace=0)
        readable(lambda: lab.store.commit({"r": sealed}))
        assert lab.rows("r") == {1: (1, 1)}


def what_lands_meanwhile_stays(base: Path) -> None:
    """A writer begins, writes, commits and ends, just when vacuum is about to list the files."""
    with lab_at(base) as lab, pytest.MonkeyPatch.context() as patch:
        lab.root_table()
        lab.put({1: (1, 1)})
        listing = LocalFiles.list

        def interrupted(files: LocalFiles, prefix: str = "") -> Any:
            with lab.open() as other:
                other.table("r").upsert(table_of({2: (2, 2)}))
            return listing(files, prefix)

        patch.setattr(LocalFiles, "list", interrupted)
        lab.store.vacuum(grace=0)
        patch.undo()
        assert lab.rows("r") == {1: (1, 1), 2: (2, 2)}


def what_is_read_without_a_hold_has_its_grace(base: Path) -> None:
    with lab_at(base) as lab:
        table = lab.root_table(options=NO_PAST)
        lab.put({1: (1, 1)})
        scan = table.scan()
        replace_everything(lab)
        lab.store.vacuum()
        assert readable(lambda: state_of(scan.read_all())) == {1: (1, 1)}


def what_a_consumer_has_not_read_stays(base: Path) -> None:
    with lab_at(base) as lab:
        table = lab.root_table(options=NO_PAST)
        at = lab.put({1: (1, 1)})
        lab.tick()
        hold = Hold("consumer:c", 1, at, None, lab.now_ms, None)
        lab.store._handle.catalog.transact(lambda tx: put_holds(tx, [hold]))
        replace_everything(lab)
        with suppress(el.LogHeld):
            table.truncate_log(table.info.max_committed_epoch)
        lab.store.vacuum(grace=0)
        assert readable(lambda: table.changes(at).read_all().num_rows) == 2


def a_compaction_left_behind_is_taken_up(base: Path) -> None:
    with lab_at(base) as lab, pytest.MonkeyPatch.context() as patch:
        patch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 8)
        patch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 4)
        lab.root_table()
        for number in range(3):
            lab.put({k: (number, k) for k in range(40)})
        rows, handle = lab.rows("r"), lab.store._handle
        table = handle.catalog.read(lambda view: find_table(view, "r"))
        assert compact_table(handle, table, full=True, budget=2) is CompactionOutcome.PROGRESS
        lab.reopen()
        lab.now_ms += LEASE_MS
        lab.store.vacuum(grace=0)
        lab.store.compact("r", full=True)
        assert lab.store.table("r").info.runs == 1 and lab.rows("r") == rows


def a_view_at_rest_stays_readable(base: Path) -> None:
    with lab_at(base) as lab:
        lab.root_table(options=NO_PAST)
        above, below = lab.job("a", ["r"]), lab.job("b", ["a_out"])
        for number in range(3):
            lab.put({number: (0, number)})
            lab.store.checkpoint()
            above.step_local(mirror("r", "a_out"))
            if not number:
                below.step_local(sums("a_out", "b_out"))
            lab.now_ms += 6 * 3_600_000  # less in all than after which b would be parked
            lab.store.compact(full=True)
            lab.store.compact()
        with readable(lambda: lab.store.snapshot(["b_out"], consistency="aligned")) as snapshot:
            assert state_of(snapshot["b_out"].to_arrow()) == {0: (1, 0)}


def old_states_stay_for_as_long_as_promised(base: Path) -> None:
    with lab_at(base) as lab:
        lab.root_table()
        first = lab.put({1: (1, 1)})
        lab.tick()
        lab.put({1: (2, 2)})
        for _ in range(2):
            lab.store.compact("r", full=True)
            lab.store.vacuum(grace=0)
        assert readable(lambda: lab.rows("r", first)) == {1: (1, 1)}


# ---- bugs --------------------------------------------------------------------------------------------------------


def pins_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (vacuum, vacuum_plan):
        monkeypatch.setattr(module, "pins", lambda hold, version: False)


def intents_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "all_intents", lambda view: [])
    monkeypatch.setattr(vacuum, "intent_key", lambda intent: b"intent/none")


def the_catalog_is_asked_before_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    real, read_known = vacuum.vacuum, vacuum._read_known

    def early(handle: Any, **options: Any) -> Any:
        known = handle.catalog.read(lambda view: read_known(handle, view, [], []))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vacuum, "_read_known", lambda *arguments: replace(known, now_ms=handle.catalog.now_ms()))
            patch.setattr(vacuum, "all_files", lambda view: known.reached)
            return real(handle, **options)

    monkeypatch.setattr(api, "vacuum", early)


def there_is_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = vacuum.classify_files
    monkeypatch.setattr(vacuum, "classify_files", lambda listed, known, grace_ms: judge(listed, known, 0))


def truncation_ignores_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (retention, table_ddl):
        monkeypatch.setattr(module, "holds_of", lambda *args, **options: [])


def pieces_that_are_done_are_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable_files, "_run_files_of_subcompaction", lambda record: iter(()))


def memory_ends_with_the_nearest_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention ignores the needs of jobs further downstream."""
    real = retention.commit_epochs

    def commits(view: Any, table_id: int, **bounds: Any) -> Any:
        return real(view, table_id, **bounds) if bounds else iter(())  # without bounds: the oldest of an output

    monkeypatch.setattr(retention, "commit_epochs", commits)


def replaced_rows_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_is_past", lambda part, version: part.history)


MUTANTS = [
    Mutant("vacuum-ignores-pins", pins_are_ignored, what_is_pinned_stays),
    Mutant("vacuum-ignores-intents", intents_are_ignored, what_is_written_stays),
    Mutant("vacuum-asks-before-listing", the_catalog_is_asked_before_the_listing, what_lands_meanwhile_stays),
    Mutant("vacuum-gives-no-grace", there_is_no_grace, what_is_read_without_a_hold_has_its_grace),
    Mutant(
        "vacuum-forgets-compactions-under-way",
        pieces_that_are_done_are_not_reached,
        a_compaction_left_behind_is_taken_up,
    ),
    Mutant("truncation-ignores-holds", truncation_ignores_holds, what_a_consumer_has_not_read_stays),
    Mutant("memory-ends-with-the-nearest-reader", memory_ends_with_the_nearest_reader, a_view_at_rest_stays_readable),
    Mutant("replaced-rows-go-at-once", replaced_rows_go_at_once, old_states_stay_for_as_long_as_promised),
]
