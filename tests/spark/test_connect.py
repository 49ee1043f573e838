"""Spark Connect: the data source works there in full, and what does not is refused with what to write instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el

pytestmark = [pytest.mark.spark, pytest.mark.local_only, pytest.mark.long]

CLIENT = Path(__file__).with_name("connect_driver.py")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("cents", pa.int64())])


def test_a_client_reads_writes_and_streams(tmp_path: Path) -> None:
    with el.open(tmp_path / "lake") as store:
        store.create_table("orders", SCHEMA, ["id"]).upsert(pa.table({"id": [1, 2], "cents": [10, 20]}))
        store.create_table("copy", SCHEMA, ["id"])
        done = subprocess.run(
            [sys.executable, CLIENT, store.root],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        outcomes = json.loads(done.stdout.splitlines()[-1])
        assert outcomes.pop("session").startswith("pyspark.sql.connect.")
        assert "InvalidInput: a session of Spark Connect cannot install a catalog" in outcomes.pop("catalog")
        for refused in ("step", "compact", "view step", "pipeline"):
            assert "spark must be a classic SparkSession" in outcomes.pop(refused)
        assert "InvalidInput: a view needs a classic SparkSession" in outcomes.pop("view")
        assert "does not support format('epochlog')" in outcomes.pop("saveAsTable")
        assert "InvalidInput: CREATE TABLE t USING epochlog does not work" in outcomes.pop("create")
        error, epochs, count = outcomes.pop("sink")
        assert "its batch 0 comes after another batch 1 has landed" in error, error
        assert (epochs, count) == (2, 2)
        assert outcomes == {
            "sql": [[2, 30]],
            "written": [[1, 110], [2, 20]],
            "stream": [[1, 110], [2, 20]],
            "held": 2,
            "exchanged": 1000,
            "newSession": 1,
        }
        assert store.table("orders").to_arrow().to_pylist() == [{"id": 1, "cents": 110}]
        assert store.table("copy").to_arrow().to_pylist() == [{"id": 1, "cents": 110}, {"id": 2, "cents": 20}]
