"""Mutants of the library: the check of each one must fail.

To add one: a function that breaks the library through `monkeypatch`, and a line in MUTANTS with a check that passes
without it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog import transaction
from epochlog.store.catalog.lmdb import catalog as lmdb_catalog
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.env import local_folder as files_module
from epochlog.store.env.files import Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.sst import segment
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.testing.power_loss_disk import File, PowerLossDisk
from faults import mutants_compaction, mutants_log, mutants_tags, mutants_vacuum
from faults.damage import check_damage
from faults.mutant import Mutant
from faults.power import Again, cut_everywhere, fail_once, run_with_faults

pytestmark = [pytest.mark.local_only, pytest.mark.long]


# ---- checks ------------------------------------------------------------------------------------------------------


def power_cuts(base: Path) -> None:
    cut_everywhere(base, random.Random(1), chances=0)


def a_failed_sync_of_a_segment(base: Path) -> None:
    """Of each in turn: some are compacted before the power fails, from what the kernel still shows."""
    for number in range(1, 9):
        fail_sync_of(base / str(number), number)


def fail_sync_of(base: Path, number: int) -> None:
    synced: list[str] = []

    def fail(operation: str, path: str) -> OSError | None:
        if operation == "sync" and path.endswith(".arrow"):
            synced.append(path)
            if len(synced) == number:
                return OSError(5, "Input/output error")
        return None

    again = Again()
    run_with_faults(base, again, fail)
    assert len(again.failures) == 1


def a_full_disk(base: Path) -> None:
    """From the first segment on there is no room for one call."""
    for number in range(20, 30):
        fail_once(base / str(number), number, 28)


def short_writes(base: Path) -> None:
    run_with_faults(base, Again(), lambda operation, path: None, most_bytes=100)


def damage(base: Path) -> None:
    check_damage(base, stride=300)


# ---- bugs --------------------------------------------------------------------------------------------------------


def file_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PowerLossDisk.fsync

    def fsync(disk: PowerLossDisk, handle: int) -> None:
        if not isinstance(disk._opened[handle].node, File):
            real(disk, handle)

    monkeypatch.setattr(PowerLossDisk, "fsync", fsync)


def without_sync_of(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Path], bool]) -> None:
    real = files_module.sync_dir

    def sync_dir(folder: str | Path) -> None:
        if not wanted(Path(folder)):
            real(folder)

    monkeypatch.setattr(files_module, "sync_dir", sync_dir)


def name_of_a_file_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync_of(monkeypatch, lambda folder: folder.name.startswith("t0"))


def name_of_the_tables_folder_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync_of(monkeypatch, lambda folder: len(folder.name) == 32)


def names_in_the_root_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync_of(monkeypatch, lambda folder: folder.name == "s")


def name_of_the_root_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_sync_of(monkeypatch, lambda folder: folder.name == "disk")


def name_of_the_catalogs_file_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_catalog, "sync_dir", lambda folder: None)


def catalog_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lmdb_catalog._open_environment
    monkeypatch.setattr(lmdb_catalog, "_open_environment", lambda folder, durability: real(folder, "os"))


def commit_before_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is told first, the file is written then."""
    late: dict[str, tuple[LocalFiles, pa.Buffer]] = {}
    write, stamp, read, transact = LocalFiles.write, LocalFiles.stamp, LocalFiles.read, LmdbCatalog.transact
    exists = LocalFiles.exists

    def write_late(files: LocalFiles, path: str, data: pa.Buffer) -> None:
        if path.endswith(".arrow"):
            late[path] = (files, data)
        else:
            write(files, path, data)

    def stamp_of_a_file(files: LocalFiles, path: str) -> Any:
        """Write the late file before the commit reads it; otherwise the bug would show without a power cut."""
        if path in late:
            write(files, path, late.pop(path)[1])
        return stamp(files, path)

    def read_a_file(files: LocalFiles, path: str) -> pa.Buffer:
        """Read a file; a late one is written before, as by its stamp: a small one is read without its stamp."""
        if path in late:
            write(files, path, late.pop(path)[1])
        return read(files, path)

    def transact_first(catalog: LmdbCatalog, body: Callable[[Any], Any]) -> Any:
        try:
            return transact(catalog, body)
        finally:
            for path, (files, data) in list(late.items()):
                write(files, path, data)
                del late[path]

    monkeypatch.setattr(LocalFiles, "write", write_late)
    monkeypatch.setattr(LocalFiles, "stamp", stamp_of_a_file)
    monkeypatch.setattr(LocalFiles, "read", read_a_file)
    monkeypatch.setattr(LocalFiles, "exists", lambda files, path: path in late or exists(files, path))
    monkeypatch.setattr(LmdbCatalog, "transact", transact_first)


def a_transaction_for_each_table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = transaction.commit_changes

    def commit_one_by_one(handle: Any, changes: list[Any], target: Any, **options: Any) -> Any:
        first = real(handle, changes[:1], target, **options)
        for change in changes[1:]:
            real(handle, [change], RootCommit(txn=(target.txn[0] + "'", target.txn[1])), **options)
        return first

    monkeypatch.setattr(transaction, "commit_changes", commit_one_by_one)


def a_failed_sync_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PowerLossDisk.fsync

    def fsync(disk: PowerLossDisk, handle: int) -> None:
        try:
            real(disk, handle)
        except OSError:
            real(disk, handle)

    monkeypatch.setattr(PowerLossDisk, "fsync", fsync)


def a_failed_write_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partly written file stays and becomes part of the commit."""
    real = LocalFiles.write

    def write(files: LocalFiles, path: str, data: pa.Buffer) -> None:
        try:
            real(files, path, data)
        except el.WriteFailed:
            return

    monkeypatch.setattr(LocalFiles, "write", write)
    monkeypatch.setattr(files_module, "_try_delete", lambda path: None)


def a_failed_flush_keeps_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed flush drops its rows, and the commit goes on without them."""
    real = SegmentWriter.finish

    def finish(writer: SegmentWriter, label: int | None = None) -> list[segment.Segment]:
        try:
            return real(writer, label)
        except el.WriteFailed:
            return []

    monkeypatch.setattr(SegmentWriter, "finish", finish)


def one_write_is_taken_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_all(handle: int, data: memoryview) -> None:
        files_module.os.write(handle, data.cast("B"))

    monkeypatch.setattr(files_module, "_write_all", write_all)


def no_checksum_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def unverified(files: Files, path: str, size: int, crc32: int, *, recheck: bool = False) -> pa.Buffer:
        return files.read(path)

    monkeypatch.setattr(segment, "verified", unverified)


def a_damaged_file_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else is blamed."""
    real = segment.verified

    def lenient(files: Files, path: str, size: int, crc32: int, *, recheck: bool = False) -> pa.Buffer:
        try:
            return real(files, path, size, crc32, recheck=recheck)
        except el.Corrupt:
            with files.open_input(path) as file:
                data = file.read()
            raise el.Corrupt("elsewhere", f"{len(data)} bytes") from None

    monkeypatch.setattr(segment, "verified", lenient)


MUTANTS = [
    Mutant("file-not-synced", file_not_synced, power_cuts),
    Mutant("name-of-a-file-not-synced", name_of_a_file_not_synced, power_cuts),
    Mutant("name-of-the-tables-folder-not-synced", name_of_the_tables_folder_not_synced, power_cuts),
    Mutant("names-in-the-root-not-synced", names_in_the_root_not_synced, power_cuts),
    Mutant("name-of-the-root-not-synced", name_of_the_root_not_synced, power_cuts),
    Mutant("name-of-the-catalogs-file-not-synced", name_of_the_catalogs_file_not_synced, power_cuts),
    Mutant("catalog-not-synced", catalog_not_synced, power_cuts),
    Mutant("commit-before-its-segments", commit_before_its_segments, power_cuts),
    Mutant("a-transaction-for-each-table", a_transaction_for_each_table, power_cuts),
    Mutant("a-failed-sync-is-tried-again", a_failed_sync_is_tried_again, a_failed_sync_of_a_segment),
    Mutant("a-failed-write-is-passed-over", a_failed_write_is_passed_over, a_full_disk),
    Mutant("a-failed-flush-keeps-its-writer", a_failed_flush_keeps_its_writer, a_failed_sync_of_a_segment),
    Mutant("one-write-is-taken-for-all", one_write_is_taken_for_all, short_writes),
    Mutant("no-checksum-is-compared", no_checksum_is_compared, damage),
    Mutant("a-damaged-file-is-not-named", a_damaged_file_is_not_named, damage),
    *mutants_compaction.MUTANTS,
    *mutants_log.MUTANTS,
    *mutants_tags.MUTANTS,
    *mutants_vacuum.MUTANTS,
]


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    with pytest.raises((AssertionError, el.Corrupt)) as caught:
        mutant.caught_by(tmp_path)
    print(f"{mutant.name}: {str(caught.value)[:300]}")
    for entry in tmp_path.iterdir():  # what is left there is not whole
        shutil.rmtree(entry)


@pytest.mark.parametrize("check", list(dict.fromkeys(mutant.caught_by for mutant in MUTANTS)))
def test_without_a_bug_each_check_passes(check: Callable[[Path], object], tmp_path: Path) -> None:
    check(tmp_path)
