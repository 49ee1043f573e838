"""P18: TPC-H's views after a refresh of a thousandth of the orders: by hand and in SQL, and made anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pairs import ReplayClock, Samples
from report import Book, Figure, Target

DRIVER = Path(__file__).with_name("tpch_driver.py")
VIEWS = ("q1", "q6", "q3_orders", "q3", "q5", "q10_customers", "q10")
SCALE = 0.5  # as TPC counts it: 3 M lines
LEGS = ["all seven, by changes, side by side"]
LEGS += [f"{view}, {how}" for view in VIEWS for how in ("by changes", "in SQL", "made anew")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Samples:
    folder = tmp_path_factory.mktemp("tpch")
    rounds = 2 if scale >= 1 else 1
    tpch_scale = SCALE * scale
    command = [sys.executable, str(DRIVER), str(folder), f"{tpch_scale:g}", str(rounds)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    samples: Samples = json.loads(done.stdout)
    targets = tuple(Target(f"{view}, in SQL", f"{view}, by changes", 1.3, "≤ 1.3") for view in VIEWS)
    book.add(
        Figure("P18", f"TPC-H at scale {tpch_scale:g}, from a refresh of both tables to the commit", samples, targets)
    )
    return samples


@pytest.mark.parametrize("leg", LEGS)
def test_p18_views_after_a_refresh(leg: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[leg])
