"""Executors in processes of their own: the catalog is the driver's alone, in LMDB or in Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from catalog_makers import KINDS
from spark_store import SCHEMA, rows
from stores import servers

pytestmark = [pytest.mark.spark, pytest.mark.local_only]

DRIVER = Path(__file__).with_name("cluster_driver.py")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_other_processes_read_one_snapshot(tmp_path: Path, kind: str) -> None:
    catalog = None if kind == "lmdb" else servers.redis.url()
    with el.open(str(tmp_path / "lake"), catalog) as store:
        orders = store.create_table("orders", SCHEMA, ["id"])
        city = store.create_table("city", pa.schema([("day", pa.string()), ("name", pa.string())]), ["day"])
        copy = store.create_table("copy", SCHEMA, ["id"])
        orders.upsert(rows(0, 3_000))
        store.compact("orders")
        orders.upsert(rows(2_990, 10, amount=2.0))
        city.upsert(pa.table({"day": ["d0", "d1", "d2"], "name": ["zero", "one", "two"]}))
        with store.snapshot(["orders", "city"], consistency="aligned") as snapshot:
            seen = snapshot["orders"].to_arrow()
            orders.upsert(rows(0, 5_000, amount=9.0))
            city.delete(pa.table({"day": ["d1"]}))
            store.compact(full=True)
            command = [sys.executable, str(DRIVER), store.root, catalog or "", snapshot.token]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "joined": [["one", 1000], ["two", 1000], ["zero", 1000]],
            "tasks": 4,
            "view": 45,
            "feed": 5_000,
            "executors": 2,
            "parallelism": 2,
        }
        assert copy.to_arrow().equals(seen)
