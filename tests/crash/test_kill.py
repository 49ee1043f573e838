"""A committing process is killed with SIGKILL at random moments: what it acknowledged is there, and nothing half."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

import epochlog as el
from crash.children import child, lines
from crash.committer import ROWS, SCHEMA, rows_of, tables_of

pytestmark = pytest.mark.slow


def test_acknowledged_commits_survive_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, times=3)


@pytest.mark.long
def test_acknowledged_commits_survive_many_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, times=20)


def kill_again_and_again(root: Path, times: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with el.open(root / "store") as store:
        for name in "ab":
            store.create_table(name, SCHEMA, ["id"])
    acknowledged: dict[int, int] = {}
    intents: set[int] = set()
    for _ in range(times):
        run_and_kill(root / "store", dice, acknowledged, intents)
        check(root / "store", acknowledged, intents)
    assert acknowledged


def run_and_kill(root: Path, dice: random.Random, acknowledged: dict[int, int], intents: set[int]) -> None:
    """Let the child get somewhere, then kill it: between two lines, or while it is in the middle of a commit."""
    with child("committer", root, dice.randrange(2**32), max(intents, default=0) + 1) as process:
        printed_lines = lines(process, dice.randrange(1, 60))
        for _ in range(dice.randrange(200_000)):  # a fraction of a commit's length, of no fixed phase
            pass
        os.kill(process.pid, signal.SIGKILL)
        printed_lines += (process.stdout.read() if process.stdout else "").splitlines()
    for line in printed_lines:
        word, *numbers = line.split()
        if word == "intent":
            intents.add(int(numbers[0]))
        elif word == "done":
            acknowledged[int(numbers[0])] = int(numbers[1])


def check(root: Path, acknowledged: dict[int, int], intents: set[int]) -> None:
    with el.open(root) as store:
        report = store.verify()
        assert report.ok, report.problems
        landed = {row["txn"]["id"]: row["epoch"] for name in "ab" for row in store.table(name).history().to_pylist()}
        assert set(acknowledged) <= set(landed) <= intents
        assert all(landed[number] == epoch for number, epoch in acknowledged.items())
        expected = Counter({(name, number): ROWS for number in landed for name in tables_of(number)})
        counts = Counter((name, n) for name in "ab" for n in store.table(name).to_arrow()["n"].to_pylist())
        assert counts == expected
        epochs = [store.table(name).history()["epoch"].to_pylist() for name in "ab"]
        assert all(column == sorted(set(column), reverse=True) for column in epochs)
        unknown = max(intents)
        if unknown not in acknowledged:  # the outcome is decided now, and stays so
            outcome = store.resolve(("child", unknown))
            assert outcome == landed.get(unknown)
            repeat(store, unknown, outcome)


def repeat(store: el.Store, number: int, outcome: int | None) -> None:
    """Repeat a transaction and assert that it has its first outcome."""
    try:
        with store.transaction(("child", number)) as tx:
            for table in tables_of(number):
                tx.upsert(table, rows_of(number))
    except el.TxnAborted:
        assert outcome is None
    else:
        assert tx.epoch == outcome
