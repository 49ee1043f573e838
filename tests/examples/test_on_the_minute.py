"""The example package of a policy installs, and fresh processes use it by name: from Python, the shell and Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from lab import KEY, SCHEMA, keys_of, table_of

pytestmark = pytest.mark.local_only

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "on_the_minute"
MINUTE_MS = 60_000

READER = """
import json, sys
import epochlog as el
now = int(sys.argv[2])
with el.open(sys.argv[1], create=False, clock=lambda: now) as store:
    with store.snapshot(["a", "b"], consistency="on_the_minute") as moment:
        rows = {name: moment[name].to_arrow()["k"].to_pylist() for name in moment}
    with store.snapshot(["a"], consistency="on_the_minute", seconds=10) as closer:
        print(json.dumps([type(moment.policy).__name__, rows, closer["a"].count()]))
"""
SPARK = """
import sys
import epochlog as el
spark = el.spark("policies by name", master="local[1]")
load = spark.read.format("epochlog").option("path", sys.argv[1])
print(load.option("table", "a").option("consistency", "on_the_minute").load().count())
"""


def run(*command: Any, **environment: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH with the package in it, as pip installs it; nothing is fetched."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("target")
    shutil.copytree(PACKAGE, source)  # a build leaves its traces beside the sources
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    run(sys.executable, *pip, "--disable-pip-version-check", "--root-user-action=ignore", "--target", target, source)
    return os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])


def lake(folder: Path, minute_ms: int) -> None:
    """Two tables, with a commit of both just before the minute, and others after it."""
    now_ms = minute_ms - 1
    with el.open(folder, clock=lambda: now_ms, durability="os") as store:
        for name in ("a", "b"):
            store.create_table(name, SCHEMA, KEY)
        with store.transaction() as tx:
            tx.upsert("a", table_of({1: (0, 0)}))
            tx.upsert("b", table_of({1: (0, 0), 2: (0, 0)}))
        now_ms = minute_ms
        store.table("a").upsert(table_of({5: (0, 0)}))
        now_ms = minute_ms + 30_000
        store.table("b").delete(keys_of([1]))


@pytest.mark.slow
def test_it_is_installed_and_used_by_name(installed: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    minute_ms = 30_000_000 * MINUTE_MS
    lake(root, minute_ms)
    for later_ms in (30_001, 59_999):  # whenever in the minute it is asked
        printed = run(sys.executable, "-c", READER, root, minute_ms + later_ms, PYTHONPATH=installed)
        assert json.loads(printed) == ["OnTheMinute", {"a": [1], "b": [1, 2]}, 2]
    (after,) = [run(sys.executable, "-c", READER, root, minute_ms + MINUTE_MS, PYTHONPATH=installed)]
    assert json.loads(after)[1] == {"a": [1, 5], "b": [2]}


@pytest.mark.slow
def test_the_shell_knows_its_name(installed: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with el.open(root) as store:
        store.create_table("a", pa.schema([("k", pa.int64())]), ["k"])
    read = [sys.executable, "-m", "epochlog", "read", root, "a", "--epochs", "--json", "--consistency"]
    facts = json.loads(run(*read, "on_the_minute", PYTHONPATH=installed))
    assert facts["tables"][0]["table"] == "a"
    words = [str(word) for word in [*read, "on_the_hour"]]
    unknown = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": installed}, capture_output=True, text=True, check=False
    )
    assert (
        unknown.returncode == 1
        and "aligned, as_of, at_least, bounded, exact, global, latest, on_the_minute" in unknown.stderr
    )


@pytest.mark.spark
@pytest.mark.long
def test_spark_knows_its_name(installed: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    minute_ms = 29_000_000 * MINUTE_MS  # long ago: every minute since then is the same
    lake(root, minute_ms)
    assert run(sys.executable, "-c", SPARK, root, PYTHONPATH=installed).strip() == "2"
