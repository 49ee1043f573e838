"""A catalog that is cut while a process has it open: typed errors, where a read of its map would end the process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.lmdb import catalog, page_check

pytestmark = pytest.mark.local_only

CUT = """
import os, random, sys
import epochlog as el, pyarrow as pa
from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
if sys.argv[2] == "planted":
    LmdbCatalog._require_file = lambda catalog: None
for seed in range(int(sys.argv[3])):
    chance, root = random.Random(seed), f"{sys.argv[1]}/{seed}"
    with el.open(root, durability="os") as store, el.open(root, durability="os") as other:
        table = store.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
        for at in range(chance.randrange(1, 30)):
            table.upsert(pa.table({"k": [at]}))
        data = f"{root}/catalog/data.mdb"
        whole = os.path.getsize(data)
        os.truncate(data, chance.choice([0, 1, 4096, 8192, whole // 2, whole - 4096, whole - 1]))
        calls = [store.tables, store.jobs, table.history, lambda: table.upsert(pa.table({"k": [-1]})), store.checkpoint]
        calls += [other.tables, lambda: other.table("t"), store.verify]
        for call in chance.sample(calls, len(calls)):
            try:
                call()
            except el.Corrupt as error:
                assert "was cut from" in str(error) and "restore the catalog" in str(error), error
            else:
                assert call == store.verify or call in calls[-3:], call
print("alive")
"""


def cut(folder: Path, how: str, seeds: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CUT, str(folder), how, str(seeds)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_catalog_that_is_cut_ends_calls_and_not_the_process(tmp_path: Path) -> None:
    """The process ended by SIGBUS."""
    done = cut(tmp_path, "real", 20)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_file_that_grows_between_two_looks_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of another thread behind the look at the size made each call Corrupt."""
    with el.open(tmp_path, durability="os") as store, el.open(tmp_path, durability="os") as other:
        look, grown = catalog._inode_and_size, list[int]()

        def look_and_grow(folder: Path) -> Any:
            seen = look(folder)
            if not grown:
                grown.append(seen[1])
                for number in range(50):
                    other.create_table(f"t{number}", pa.schema([("k", pa.int64())]), ["k"])
                grown.append(look(folder)[1])
            return seen

        monkeypatch.setattr(catalog, "_inode_and_size", look_and_grow)
        assert len(store.tables()) == 50
        assert grown[0] < grown[1]


@pytest.mark.planted
@pytest.mark.medium
def test_the_end_of_a_process_is_found(tmp_path: Path) -> None:
    assert cut(tmp_path, "planted", 3).returncode != 0


# two creators


def check_that_creators_take_turns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a creation that failed is emptied, and opened anew, while no other creator can write to it."""
    folder = root / "catalog"
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"\0" * 4096)
    locked: list[bool] = []

    def is_locked() -> bool:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    for name in ("_truncate_unfinished", "_open_env"):
        real = getattr(catalog, name)
        monkeypatch.setattr(
            catalog, name, lambda *args, real=real, **options: (locked.append(is_locked()), real(*args, **options))[1]
        )
    catalog.LmdbCatalog(folder, lambda: 0, durability="os", create=True).close()
    assert locked == [True, True] and not is_locked()


def test_creators_of_a_catalog_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_creators_take_turns(tmp_path, monkeypatch)


@pytest.mark.planted
def test_creators_that_do_not_wait_for_each_other_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a creator empties the file in which another one has committed since."""
    monkeypatch.setattr(catalog.fcntl, "flock", lambda *_: None)
    with pytest.raises(AssertionError):
        check_that_creators_take_turns(tmp_path, monkeypatch)


def test_many_processes_create_one_store_at_once_and_none_loses_its_commit(tmp_path: Path) -> None:
    program = (
        "import sys, epochlog as el, pyarrow as pa\n"
        "with el.open(sys.argv[1], durability='os') as store:\n"
        "    t = store.create_table('t', pa.schema([('k', pa.int64())]), ['k'], exist_ok=True)\n"
        "    t.upsert(pa.table({'k': [int(sys.argv[2])]}))\n"
    )
    for turn in range(3):
        root = tmp_path / str(turn)
        commands = [[sys.executable, "-c", program, str(root), str(number)] for number in range(4)]
        running = [subprocess.Popen(command) for command in commands]
        assert [process.wait() for process in running] == [0] * 4
        with el.open(root, create=False) as store:
            assert store.table("t").to_arrow()["k"].to_pylist() == [0, 1, 2, 3]


def check_that_a_creation_goes_on(root: Path) -> None:
    """A power cut in a creation leaves a part of LMDB's two first pages, with the beginnings of both or without."""
    fresh = root / "fresh"
    fresh.mkdir(parents=True)
    lmdb.open(str(fresh)).close()
    first_pages = (fresh / "data.mdb").read_bytes()
    assert len(first_pages) == 2 * 4096
    for length in (1, 4096, 4112, 4119, 4120, 4200, 4273, 5181, 8191):
        folder = root / str(length) / "catalog"
        folder.mkdir(parents=True)
        (folder / "data.mdb").write_bytes(first_pages[:length])
        with el.open(folder.parent) as store:
            assert store.tables() == []


def test_a_creation_that_was_cut_within_its_first_pages_goes_on(tmp_path: Path) -> None:
    """A file that ended behind the beginning of its second page was called damaged (5,181 bytes of a power cut)."""
    check_that_a_creation_goes_on(tmp_path)


@pytest.mark.planted
def test_an_unfinished_file_that_is_judged_by_its_magic_alone_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a bug: a part of the second page counts as the whole page."""
    monkeypatch.setattr(catalog, "is_unfinished", lambda data: not page_check._are_metas(page_check._read_metas(data)))
    with pytest.raises(el.Corrupt, match="fewer than its two meta pages"):
        check_that_a_creation_goes_on(tmp_path)


@pytest.mark.damages_store
def test_a_catalog_with_commits_that_was_cut_within_its_first_pages_stays_as_it_is(tmp_path: Path) -> None:
    with el.open(tmp_path) as store:
        store.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    data = tmp_path / "catalog" / "data.mdb"
    for length in (8191, 5181, 4300):
        os.truncate(data, length)
        with pytest.raises(el.Corrupt, match=f"it has {length} bytes, fewer than its two meta pages"):
            el.open(tmp_path)
        assert data.stat().st_size == length
