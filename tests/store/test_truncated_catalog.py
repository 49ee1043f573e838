"""A catalog that is cut while a process has it open: typed errors, where a read of its map would end the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.lmdb import catalog

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
