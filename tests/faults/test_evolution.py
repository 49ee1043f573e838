"""Random alters, clones, restores and commits under power cuts and kills: each is there whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.commit import clone as clone_module
from epochlog.testing.power_loss_disk import write_tree
from faults.evolution import planned
from faults.fork_runner import fork_runner
from faults.ledger import Ledger
from faults.power import Moment, check_all, look, moments, seeded
from faults.test_kill import kill_at
from faults.workload import Ticks, resume_changes, run_changes
from seeds import seeds

pytestmark = pytest.mark.local_only

SEEDS = range(6)
"""Of the operations; an odd seed is of tables with a sequence."""
CLONED = 5
"""Seed of operations that leave a clone with kept deletes."""
REACHED = ["table:altered", "clone:before-transaction", "clone:after-transaction", "restore:before-commit",
           "commit:before-transaction", "write:half"]  # fmt: skip


def cut(base: Path, most: int) -> None:
    """Cut the power before operations of the disk; look at what survives, go on with it, and look again."""
    dice, clock = seeded(), Ticks()
    (base / "disk").mkdir(parents=True)
    seen = moments(base / "disk", run_changes, Ledger(), clock, dice, chances=1)
    chosen = dice.sample(seen, min(most, len(seen)))
    check_all(chosen, base, clock)
    for number, moment in enumerate(chosen):
        go_on(moment, base / str(number), clock)


def go_on(moment: Moment, base: Path, clock: Ticks) -> None:
    write_tree(moment.tree, base)
    ledger = moment.ledger.copy()
    resume_changes(base / "s", ledger, clock, "os")
    look(base / "s", ledger, clock)


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(SEEDS, 2))
def test_power_cuts_among_changes_of_tables(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_EVOLUTION", str(seed))
    cut(tmp_path, most=8)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(6, 60))
def test_many_power_cuts_among_changes_of_tables(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_EVOLUTION", str(seed))
    cut(tmp_path, most=200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(SEEDS, 2))
def test_kills_among_changes_of_tables(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill at failpoints, each the first, second or third time that it is reached."""
    monkeypatch.setenv("FAULT_EVOLUTION", str(seed))
    dice = seeded()
    with fork_runner() as children:
        for number, name in enumerate(REACHED):
            kill_at(children, tmp_path / str(number), f"{name}:{dice.randrange(1, 4)}", "disk", "changes")


@pytest.mark.parametrize("seed", seeds(SEEDS, 2))
def test_operations_that_are_repeated_have_one_effect(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost answer, whatever the operation is."""
    monkeypatch.setenv("FAULT_EVOLUTION", str(seed))
    ledger = Ledger()
    with el.open(tmp_path / "s", durability="os") as store:
        for number, call in enumerate(planned().calls):
            epochs = {call(store, ledger.evolution) for _ in range(2)}
            ledger.evolved(number, epochs.pop())
            assert not epochs
            ledger.check(store)


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def with_late_changes(base: Path) -> None:
    ledger = Ledger()
    run_changes(base, ledger, durability="os")
    resume_changes(base, ledger, durability="os")
    look(base, ledger, Ticks())


@pytest.mark.planted
def test_a_clone_without_the_kept_deletes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_EVOLUTION", str(CLONED))
    with_late_changes(tmp_path / "right")
    monkeypatch.setattr(clone_module, "kept_deletes", lambda view, table_id, epoch: ())
    with pytest.raises(AssertionError):
        with_late_changes(tmp_path / "wrong")
