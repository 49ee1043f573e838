"""pytest plugin: CPU time of each test with all its processes, as JSON lines in the folder EPOCHLOG_CPU_TABLE.

Start it with `-p cpu_table` below `scripts/cpu_time.py`; `scripts/cpu_time.py --table FOLDER` prints the sums. Each
process of pytest-xdist has a control group of its own, so that tests that run side by side do not count each other's
time. Where there are no control groups, the time is that of the living tree, without orphans.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from cpu_time import GROUP_VARIABLE, CpuTime, group_cpu, join_group, tree_cpu

_group: Path | None = None


def pytest_configure() -> None:
    global _group
    parent = os.environ.get(GROUP_VARIABLE)
    _group = join_group(Path(parent), f"pytest-{os.getpid()}") if parent else None


def spent() -> CpuTime:
    return group_cpu(_group) if _group else tree_cpu(os.getpid())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before, start = spent(), time.perf_counter()
    outcome = yield
    took, wall = spent() - before, time.perf_counter() - start
    name = f"{item.config.option.markexpr} {os.environ.get('EPOCHLOG_TEST_STORE', '')}".strip()
    row = {"test": item.nodeid, "pass": name, "user": took.user, "system": took.system, "wall": wall}
    with Path(os.environ["EPOCHLOG_CPU_TABLE"], f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return outcome
