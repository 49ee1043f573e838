"""P15, and P10 at that size: what reading, compacting and replaying ten times the base take, in a process each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_compaction import ALONE, OURS, SPEED
from pairs import ReplayClock, Samples
from report import LARGE, Book, Figure, Target

WORK = ("scan", "compact", "replay")
PLAIN = "plain"
ROWS = 20_000_000
LIMIT_MIB = 512
DRIVER = Path(__file__).with_name("memory_driver.py")


def run(work: str, root: Path, rows: int) -> dict[str, float]:
    command = [sys.executable, str(DRIVER), work, str(root), str(rows)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Samples]:
    rows, rounds = max(1000, round(ROWS * scale)), 2 if scale >= 1 else 1
    reports: dict[str, list[dict[str, float]]] = {work: [] for work in (*WORK, PLAIN)}
    for place in range(rounds):
        root = tmp_path_factory.mktemp("memory") / "store"
        run("load", root, rows)
        # the log is read first in whole, as the table that it is; then folded; then replayed from its beginning
        for work in WORK if place == 0 else ("compact",):
            reports[work].append(run(work, root, rows))
        reports[PLAIN].append(run(PLAIN, root, rows))
        shutil.rmtree(root.parent)
    target = Target("epochlog", None, LIMIT_MIB, "≤ 512 MiB above a batch")
    samples: dict[str, Samples] = {}
    for work in WORK:
        names = {"epochlog": "anonymous_mib", "file-mapped pages beside it": "mapped_mib"}
        samples[work] = {name: [each[key] for each in reports[work]] for name, key in names.items()}
        book.add(Figure("P15", f"peak memory: {work} {rows:,} rows", samples[work], (target,), "MiB"))
    took = {name: [each["ms"] for each in reports[work]] for name, work in ((OURS, "compact"), (ALONE, PLAIN))}
    book.add(Figure("P10", f"compact {rows:,} rows in 20 segments", took, SPEED, shape=LARGE))
    memory = Figure("P10", f"peak memory of that, {rows:,} rows", samples["compact"], (target,), "MiB", LARGE)
    book.add(memory)
    return {**samples, PLAIN: took}


@pytest.mark.parametrize("work", WORK)
def test_p15_memory(work: str, measured: dict[str, Samples]) -> None:
    assert measured[work]["epochlog"][0] >= 0


@pytest.mark.parametrize("who", [OURS, ALONE])
def test_p10_throughput_of_20_m_rows(
    who: str, clock: ReplayClock, benchmark: Any, measured: dict[str, Samples]
) -> None:
    clock.play(benchmark, measured[PLAIN][who])
