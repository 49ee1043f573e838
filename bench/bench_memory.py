"""P15: the most memory that reading, compacting and replaying ten times the base take, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from report import Book, Figure, Target

WORK = ("scan", "compact", "replay")
ROWS = 20_000_000
LIMIT_MIB = 512
DRIVER = Path(__file__).with_name("memory_driver.py")


def run(work: str, root: Path, rows: int) -> dict[str, float]:
    command = [sys.executable, str(DRIVER), work, str(root), str(rows)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    root, rows = tmp_path_factory.mktemp("memory") / "store", max(1000, round(ROWS * scale))
    run("load", root, rows)
    # the log is read first in whole, as the table that it is; then folded; then replayed from its beginning
    told = {work: run(work, root, rows) for work in WORK}
    found = {}
    for work, peak in told.items():
        samples = {"epochlog": [peak["anonymous_mib"]], "file-mapped pages beside it": [peak["mapped_mib"]]}
        target = Target("epochlog", None, LIMIT_MIB, "≤ 512 MiB above a batch")
        found[work] = Figure("P15", f"peak memory: {work} {rows:,} rows", samples, (target,), "MiB")
        book.add(found[work])
    return found


@pytest.mark.parametrize("work", WORK)
def test_p15_memory(work: str, figures: dict[str, Figure]) -> None:
    assert figures[work].samples["epochlog"][0] >= 0
