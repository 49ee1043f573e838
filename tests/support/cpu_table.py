"""pytest plugin: CPU time of each test with all processes that it runs, as JSON lines in the folder EPOCHLOG_CPU_TABLE.

Start it with `-p cpu_table` below `scripts/cpu_time.py`; `scripts/cpu_time.py --table FOLDER` prints the sums.
Without pytest-xdist a test has the time of the whole run's tree, orphans of killed processes included. A process of
xdist has the time of its own tree: tests that run side by side must not count each other's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from cpu_time import ROOT_VARIABLE, tree_cpu


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    root = os.getpid() if "PYTEST_XDIST_WORKER" in os.environ else int(os.environ.get(ROOT_VARIABLE, os.getpid()))
    before, start = tree_cpu(root), time.perf_counter()
    outcome = yield
    spent, wall = tree_cpu(root) - before, time.perf_counter() - start
    name = f"{item.config.option.markexpr} {os.environ.get('EPOCHLOG_TEST_STORE', '')}".strip()
    row = {"test": item.nodeid, "pass": name, "user": spent.user, "system": spent.system, "wall": wall}
    with Path(os.environ["EPOCHLOG_CPU_TABLE"], f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return outcome
