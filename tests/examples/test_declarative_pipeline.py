"""The example of a Spark Declarative Pipeline: each run takes the changes since the last one, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import epochlog as el

pytestmark = [pytest.mark.spark, pytest.mark.local_only, pytest.mark.long, pytest.mark.needs("pipelines")]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "declarative_pipeline"


def test_each_run_takes_what_changed_since_the_last(tmp_path: Path) -> None:
    folder, root = tmp_path / "example", tmp_path / "lake"
    shutil.copytree(EXAMPLE, folder)
    definition = folder / "spark-pipeline.yml"
    text = definition.read_text("utf-8")
    assert "file:///tmp/epochlog-declarative/storage" in text
    definition.write_text(text.replace("file:///tmp/epochlog-declarative/storage", (tmp_path / "storage").as_uri()))
    python = Path(sys.executable)
    environment = {
        **os.environ,
        "EPOCHLOG_ROOT": str(root),
        "PYSPARK_PYTHON": str(python),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def run_pipeline() -> None:
        # Spark 4.3.0 completes the run, and then its client fails to read a message about a Python source: exit code 1.
        log = run("spark-pipelines", "run")
        assert "Run is COMPLETED." in log, log

    assert "orders has 2 rows" in run("python", "make_orders.py")
    run_pipeline()
    with el.open(root) as store:
        doubled = store.table("doubled")
        assert doubled.to_arrow().to_pydict() == {"id": [1, 2], "cents": [200, 400]}
        store.table("orders").delete([{"id": 1}])
        assert "orders has 2 rows" in run("python", "make_orders.py")
        commits = doubled.history().num_rows
        run_pipeline()
        assert doubled.to_arrow().to_pydict() == {"id": [2, 3], "cents": [400, 600]}
        assert doubled.history().num_rows == commits + 1
