"""Cuts the power before each operation of a story, or makes one of them fail, and looks at what survives."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import epochlog as el
from epochlog.testing.power_loss_disk import PowerLossDisk, Tree, write_tree
from faults.ledger import Ledger
from faults.workload import Ticks, resume_workload, run_workload


@dataclass(frozen=True)
class Moment:
    """A power cut: before which operation, what of the disk survives it, and what had been promised by then."""

    what: str
    tree: Tree
    ledger: Ledger


Workload = Callable[[Path, Ledger, Ticks], None]


def moments(
    base: Path, workload: Workload, ledger: Ledger, clock: Ticks, dice: random.Random, chances: int
) -> list[Moment]:
    """All that power cuts during a story may leave of `base`; the story itself runs to its end."""
    moments_seen: list[Moment] = []
    seen: set[object] = set()

    def on_step(step: str) -> None:
        trees = disk.survivals(dice, chances)
        for tree in trees:
            fingerprint = (frozenset(tree.items()), repr(ledger))
            if fingerprint not in seen:
                seen.add(fingerprint)
                moments_seen.append(Moment(f"{len(disk.steps)}: {step}", tree, ledger.copy()))

    disk = PowerLossDisk(base, on_step)
    with disk.installed():
        workload(base / "s", ledger, clock)
        on_step("the end")
    assert {"mkdir", "create", "write", "sync", "transact"} - {step.split()[0] for step in disk.steps} <= {"mkdir"}
    return moments_seen


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


def cuts(
    base: Path, dice: random.Random, chances: int, workload: Workload = run_workload
) -> tuple[list[Moment], Ticks]:
    """The power cut before each operation of the story."""
    clock = Ticks()
    (base / "disk").mkdir(parents=True)
    return moments(base / "disk", workload, Ledger(), clock, dice, chances), clock


def check_all(moments_seen: list[Moment], base: Path, clock: Ticks) -> None:
    for moment in moments_seen:
        check_moment(moment, base / "survival", clock)
        shutil.rmtree(base / "survival")


def cut_everywhere(base: Path, dice: random.Random, chances: int, most: int | None = None) -> None:
    """Cut the power before each operation of the story; what survives (or `most` of it) is opened and checked."""
    moments_seen, clock = cuts(base, dice, chances)
    print(f"{len(moments_seen)} survivals")
    check_all(moments_seen if most is None else dice.sample(moments_seen, most), base, clock)


def cut_twice(base: Path, dice: random.Random, first: int, second: int) -> None:
    """Cut it again while what survived is opened and written on: `first` survivals, and `second` of each of them."""
    moments_seen, clock = cuts(base, dice, chances=1)
    for number, moment in enumerate(dice.sample(moments_seen, min(first, len(moments_seen)))):
        folder = base / f"again{number}"
        write_tree(moment.tree, folder)
        ledger = moment.ledger.copy()
        again = moments(folder, resume_workload, ledger, clock, dice, chances=1)
        check_all([again[-1], *dice.sample(again, min(second, len(again)))], folder, clock)
        shutil.rmtree(folder)


# ---- calls that fail ----------------------------------------------------------------------------------------------

Fail = Callable[[str, str], OSError | None]
FAILING = ("mkdir", "create", "write", "sync", "unlink")


class Again:
    """Makes each call, and after a WriteFailed once more, as a user does who has mended the cause."""

    def __init__(self) -> None:
        self.failures: list[el.WriteFailed] = []

    def __call__(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except el.WriteFailed as failure:
            self.failures.append(failure)
            return action()


class Warnings(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def calls(base: Path) -> int:
    """Count the system calls of the story that can fail."""
    steps = run_with_faults(base, Again(), lambda operation, path: None).steps
    return sum(step.split()[0] in FAILING for step in steps)


def run_with_faults(
    base: Path, again: Again, fail: Callable[[str, str], OSError | None], most_bytes: int | None = None
) -> PowerLossDisk:
    """Run the workload on a disk with faults; then its power fails, and what survives is checked."""
    (base / "disk").mkdir(parents=True)
    disk, ledger, clock = PowerLossDisk(base / "disk"), Ledger(), Ticks()
    disk.fail, disk.most_bytes = fail, most_bytes
    with disk.installed():
        run_workload(base / "disk" / "s", ledger, clock, attempt=again)
        trees = disk.survivals(random.Random(0), 0)
    check_all([Moment("the end", tree, ledger) for tree in trees], base, clock)
    return disk


def fail_once(base: Path, number: int, code: int) -> None:
    """Let the `number`-th of the calls that can fail do so: that is told, the same again works, nothing is lost.

    A merge of kept deletes, which follows its commit, tells it by a warning: the commit has landed.
    """
    again, seen, warnings = Again(), list[str](), Warnings()

    def fail(operation: str, path: str) -> OSError | None:
        if operation not in FAILING:
            return None
        seen.append(f"{operation} {path}")
        return OSError(code, os.strerror(code), path) if len(seen) == number else None

    log = logging.getLogger("epochlog")
    log.addHandler(warnings)
    try:
        run_with_faults(base, again, fail)
    finally:
        log.removeHandler(warnings)
    operation, path = seen[number - 1].split(" ", 1)
    if operation == "unlink" and not again.failures:
        return  # what cannot be removed is left to vacuum
    messages = [*map(str, again.failures), *(text for text in warnings.texts if "kept deletes" in text)]
    assert len(messages) == 1, f"{operation} {path} failed, and nobody said so"
    message = messages[0]
    assert os.strerror(code) in message and str(base) in message, message
