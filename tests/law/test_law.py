"""The law on random job graphs through the real store: at a valid epoch a table equals its query over the root tables.

Each seed is a store under random load (law_world.py). EPOCHLOG_LAW_SEEDS=2000 makes a long campaign of the fast part,
EPOCHLOG_LAW_FIRST_SEED=1234 begins there; EPOCHLOG_LAW_SLOW_SEEDS counts the slow part. Without pytest:
`PYTHONPATH=tests:tests/support python -m law.campaign 1000`.

Which bugs these runs catch is shown in test_mutants.py.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from law_world import LawWorld, run

FIRST_SEED = int(os.environ.get("EPOCHLOG_LAW_FIRST_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("EPOCHLOG_LAW_SEEDS", "20")))
SLOW_SEEDS = range(100_000, 100_000 + int(os.environ.get("EPOCHLOG_LAW_SLOW_SEEDS", "20")))
BATCH = 10


def batches(seeds: range) -> list[Any]:
    """Return parts of the seeds; where no number of seeds is asked for, all but the first are for `make long`."""
    parts = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    named = [pytest.param(part, id=f"seeds-{part[0]}-{part[-1]}") for part in parts]
    brief = len(named) if "EPOCHLOG_LAW_SEEDS" in os.environ else 1
    return [*named[:brief], *(pytest.param(*part.values, id=part.id, marks=pytest.mark.long) for part in named[brief:])]


@pytest.mark.rule("2.5")
@pytest.mark.parametrize("seeds", batches(SEEDS))
def test_the_law_holds_under_random_load(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        run(seed, tmp_path / str(seed))


@pytest.mark.long
@pytest.mark.parametrize("seeds", batches(SLOW_SEEDS))
def test_the_law_holds_under_longer_random_load(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        run(seed, tmp_path / str(seed), rounds=40)


@pytest.mark.long
@pytest.mark.local_only
def test_the_load_has_everything_in_it(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += run(seed, tmp_path / str(seed)).seen
    reads = ["aligned", "global", "as_of", "everything", "exact", "no epoch"]
    load = ["empty", "labels", "finished", "drained", "truncated", "failed", "fenced", "fenced in flight", "reopened"]
    load += ["pieces", "rebuilt", "parked", "altered", "unchanged"]
    missing = {what: seen[what] for what in [*reads, *load] if not seen[what]}
    assert not missing, (missing, seen)


@pytest.mark.planted
def test_a_failure_names_its_seed(tmp_path: Path) -> None:
    world = LawWorld(7, tmp_path / "store")
    with pytest.raises(AssertionError, match="seed 7"):
        world.check(False, "anything")
    world.close()
