"""Power fails before any operation, and again during recovery: what was acknowledged is there, and nothing is half."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import epochlog as el
from faults.disk import Disk, Tree, install, write_tree
from faults.ledger import Ledger
from faults.story import Ticks, go_on, tell


@dataclass(frozen=True)
class Moment:
    """A power cut: before which operation, what of the disk survives it, and what had been promised by then."""

    what: str
    tree: Tree
    ledger: Ledger


Told = Callable[[Path, Ledger, Ticks], None]


def moments(base: Path, told: Told, ledger: Ledger, clock: Ticks, dice: random.Random, chances: int) -> list[Moment]:
    """All that power cuts during a story may leave of `base`; the story itself runs to its end."""
    found: list[Moment] = []
    seen: set[object] = set()

    def on_step(what: str) -> None:
        trees = disk.survivals(dice, chances)
        for tree in trees:
            fingerprint = (frozenset(tree.items()), repr(ledger))
            if fingerprint not in seen:
                seen.add(fingerprint)
                found.append(Moment(f"{len(disk.steps)}: {what}", tree, ledger.copy()))

    disk = Disk(base, on_step)
    with pytest.MonkeyPatch.context() as patch:
        install(disk, patch)
        told(base / "s", ledger, clock)
        on_step("the end")
    assert {"mkdir", "create", "write", "sync", "transact"} - {step.split()[0] for step in disk.steps} <= {"mkdir"}
    return found


def check_moment(moment: Moment, base: Path, clock: Ticks) -> None:
    """Open what survived."""
    write_tree(moment.tree, base)
    try:
        look(base / "s", moment.ledger, clock)
    except Exception as error:
        raise AssertionError(f"after a power cut before {moment.what}: {error!r}") from error


def look(root: Path, ledger: Ledger, clock: Ticks) -> None:
    """The store holds what was promised, or, when its creation was cut off, can be created anew."""
    if not ledger.exists:
        el.open(root, clock=clock, durability="os").close()
    with el.open(root, clock=clock, durability="os", create=False) as store:
        ledger.check(store)


def seeded() -> random.Random:
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}: repeat with FAULT_SEED={seed}")
    return random.Random(seed)


def cuts(base: Path, dice: random.Random, chances: int, told: Told = tell) -> tuple[list[Moment], Ticks]:
    """The power cut before each operation of the story."""
    clock = Ticks()
    (base / "disk").mkdir(parents=True)
    return moments(base / "disk", told, Ledger(), clock, dice, chances), clock


def check_all(found: list[Moment], base: Path, clock: Ticks) -> None:
    for number, moment in enumerate(found):
        check_moment(moment, base / str(number), clock)
        shutil.rmtree(base / str(number))


def cut_everywhere(base: Path, dice: random.Random, chances: int, most: int | None = None) -> None:
    """Cut the power before each operation of the story; what survives (or `most` of it) is opened and checked."""
    found, clock = cuts(base, dice, chances)
    print(f"{len(found)} survivals")
    check_all(found if most is None else dice.sample(found, most), base, clock)


def cut_twice(base: Path, dice: random.Random, first: int, second: int) -> None:
    """Cut it again while what survived is opened and written on: `first` survivals, and `second` of each of them."""
    found, clock = cuts(base, dice, chances=1)
    for number, moment in enumerate(dice.sample(found, min(first, len(found)))):
        folder = base / f"again{number}"
        write_tree(moment.tree, folder)
        ledger = moment.ledger.copy()
        again = moments(folder, go_on, ledger, clock, dice, chances=1)
        check_all([again[-1], *dice.sample(again, min(second, len(again)))], folder, clock)
        shutil.rmtree(folder)


def test_a_power_cut_before_any_operation(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, seeded(), chances=1, most=60)


def test_a_power_cut_during_recovery(tmp_path: Path) -> None:
    cut_twice(tmp_path, seeded(), first=6, second=4)


@pytest.mark.slow
def test_power_cuts_with_much_lost_by_chance(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, seeded(), chances=6)


@pytest.mark.slow
def test_many_power_cuts_during_recovery(tmp_path: Path) -> None:
    cut_twice(tmp_path, seeded(), first=120, second=5)
