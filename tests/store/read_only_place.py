"""Read a store from a place that permits only reads, in a process of its own: `python -m store.read_only_place`.

Arguments: an empty folder, and the place: "mount" (a read-only bind mount over the root), "full" (no free byte), "user"
(another user, who owns nothing; for root), "rights" (the rights to write are taken away; for all others).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.cli.main import run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
NOBODY = 65_534


def make(root: Path) -> None:
    with el.open(root) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1, 2], "v": [10, 20]}, schema=SCHEMA))
        store.create_view("w", "SELECT id, v + 1 AS v FROM t", ["id"])
        store.checkpoint()
        store.view("w").step()


def read(root: Path) -> None:
    """Read by several doors; one write is refused."""
    with el.open(root, read_only=True) as store:
        with store.snapshot(["t", "w"]) as snapshot:
            assert snapshot["w"].to_arrow()["v"].to_pylist() == [11, 21]
        table = store.table("t")
        assert table.get(pa.table({"id": [2]})).num_rows == table.count() - 1 == 1
        assert sum(batch.num_rows for batch in table.changes(0)) == 2
        assert store.verify().ok
        assert store.view("w").check().ok
        with pytest.raises(el.StoreReadOnly, match="opened read-only"):
            table.upsert(pa.table({"id": [3], "v": [30]}, schema=SCHEMA))


def run_commands(root: Path) -> list[int]:
    """Run a command that reads and one that writes; return their exit codes."""
    return [run([command, str(root)]) for command in ("ls", "vacuum")]


def require_advice(root: Path) -> None:
    """A plain open says how to read the store. A command that reads needs no advice."""
    assert run_commands(root) == [0, 1]
    with pytest.raises(el.StoreReadOnly, match="read_only=True"):
        el.open(root)


def take_rights(root: Path, others: int) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod((0o500 if path.is_dir() else 0o400) | (others if path.is_dir() else others & 0o044))


def fill(folder: Path) -> None:
    """Leave no free byte on the disk of a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(folder)], check=True)
    make(folder / "s")
    with (folder / "filling").open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 4096)
        except OSError:
            return


def main(folder: Path, place: str) -> None:
    root = folder / "s"
    if place == "full":
        fill(folder)
        read(root)
        (root / "catalog" / "lock.mdb").unlink()  # a copy of a store has none
        read(root)
        return
    make(root)
    read(root)  # loads all modules: another user may not read them
    assert run_commands(root) == [0, 0]
    if place == "mount":
        subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
    elif place == "user":
        for parent in (folder, *folder.parents):
            if not os.stat(parent).st_mode & 0o001:
                parent.chmod(os.stat(parent).st_mode | 0o001)
        take_rights(root, 0o055)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    else:
        take_rights(root, 0)
    read(root)
    require_advice(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
