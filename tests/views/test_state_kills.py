"""Steps by a view's state in a process that dies by SIGKILL: its rows and its state are of one commit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from epochlog.store.metadata.reachable_files import all_files
from seeds import seeds
from view_states import CASES, StateWorld, count_steps, fail_on_disagreements

NAME = "two tables"
WORKER = f"""
import random, sys
from pathlib import Path
from epochlog.checkpoint.job import state_rows
from view_states import CASES, StateWorld
state_rows.MOST_SEGMENTS = 2
chance = random.Random(int(sys.argv[2]))
world = StateWorld.reopened(Path(sys.argv[1]), CASES[{NAME!r}], chance)
while True:
    world.change()
    world.store.checkpoint()
    world.view.step(take_over=True)
    print("step", flush=True)
"""
PLACES = [
    *("segment:written:3", "job:before-commit:1", "job:after-commit:2"),
    *("segment:written:2", "segment:written:5", "segment:written:9", "write:half:4", "write:done:5"),
    "job:before-commit:3",
]


def kill(root: Path, place: str, seed: int) -> None:
    """Change the tables and step the view in a process that dies at a failpoint; "": at any time."""
    armed = {"EPOCHLOG_KILL_AT": place} if place else {}
    chance = random.Random(seed)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(root), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **armed},
    ) as child:
        assert child.stdout is not None
        last = 60 if place else chance.randrange(1, 12)
        for steps, _ in enumerate(child.stdout):
            if steps >= last:
                child.kill()
                break
        child.communicate()
    assert child.returncode == -9, child.returncode


def check_after_kill(root: Path, seed: int) -> None:
    """Open the store again, and require that the view goes on by its state."""
    with pytest.MonkeyPatch.context() as patch:
        fail_on_disagreements(patch)
        world = StateWorld.reopened(root, CASES[NAME], random.Random(seed))
        try:
            world.check_rows()
            world.check_state()
            count_steps(patch, world.steps)
            world.view.step(take_over=True)
            world.check_rows()
            world.check_state()
            for _ in range(3):
                world.change()
                world.step()
            world.check_state()
            assert set(world.steps) <= {"Changes"}
            world.store.vacuum(grace=0)
            handle = world.store._handle
            on_disk = {info.path for info in handle.files.list(handle.store_id)}
            assert set(handle.catalog.read(all_files)) <= on_disk
        finally:
            world.store.close()


def new_store(root: Path, seed: int) -> None:
    world = StateWorld(root, CASES[NAME], random.Random(seed))
    for _ in range(10):
        world.change()
    world.step()
    world.check_state()
    world.store.close()


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.parametrize("place", seeds(PLACES, 3))
def test_a_kill_leaves_rows_and_a_state_of_one_commit(place: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    new_store(tmp_path / "store", seed)
    kill(tmp_path / "store", place, seed)
    check_after_kill(tmp_path / "store", seed)


@pytest.mark.long
@pytest.mark.local_only
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_leave_rows_and_a_state_of_one_commit(seed: int, tmp_path: Path) -> None:
    chance, places = random.Random(seed), Counter[str]()
    new_store(tmp_path / "store", seed)
    for attempt in range(8):
        place = chance.choice(PLACES) if attempt % 2 else ""
        places[place] += 1
        kill(tmp_path / "store", place, chance.randrange(1 << 32))
        check_after_kill(tmp_path / "store", chance.randrange(1 << 32))
    print(places)
