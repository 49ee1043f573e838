"""The law while jobs and tables are altered, adopted, made anew and dropped, also in the middle of refreshes.

Each seed is a store of its own (law/mixed.py). EPOCHLOG_LAW_MIXED_SEEDS=500 makes a campaign of it. Seed 2 alone finds
these mutants: an altered changelog told as stored, deletes dropped as unchanged, epochs below an adoption valid.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from law.mixed import run

pytestmark = pytest.mark.local_only

SEEDS = range(2, 2 + int(os.environ.get("EPOCHLOG_LAW_MIXED_SEEDS", "2")))


@pytest.mark.rule("2.5", "5.11")
@pytest.mark.parametrize("seed", SEEDS)
def test_views_are_their_queries_whatever_is_done_to_them(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path / "store")
