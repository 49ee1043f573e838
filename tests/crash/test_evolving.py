"""A process that alters, updates, restores, tags and clones tables is killed at random moments: each operation is there
whole, or not at all, and nothing of an acknowledged one is lost.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from crash.children import child, lines
from crash.evolver import LATE, PLAIN, SCHEMAS, Rows, State, note_epoch, operation

pytestmark = pytest.mark.slow


def test_changes_of_tables_survive_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "s", times=3)


@pytest.mark.long
def test_changes_of_tables_survive_many_kills(tmp_path: Path) -> None:
    done = kill_again_and_again(tmp_path / "s", times=25)
    assert (
        min(done[kind] for kind in ("update", "late", "alter", "tag", "clone", "restore", "compact", "vacuum")) > 0
    ), done


def kill_again_and_again(root: Path, times: int) -> Counter[str]:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice, state, first, done = random.Random(seed), State(), 1, Counter[str]()
    with el.open(root) as store:
        store.create_table(PLAIN, SCHEMAS[PLAIN], ["id"])
        store.create_table(LATE, SCHEMAS[LATE], ["id"], sequence_by="at")
    for _ in range(times):
        state, first = run_and_kill(root, seed, dice, state, first, done)
    assert done
    return done


def run_and_kill(
    root: Path, seed: int, dice: random.Random, state: State, first: int, done: Counter[str]
) -> tuple[State, int]:
    """Let the child get somewhere and kill it; return the state that the store is found in, and the next number."""
    with child("evolver", root, seed, first) as process:
        assert process.stdin is not None
        process.stdin.write(state.dumps() + "\n")
        process.stdin.flush()
        printed = lines(process, dice.randrange(1, 50))
        for _ in range(dice.randrange(1_500_000)):  # a fraction of an operation's length, of no fixed phase
            pass
        os.kill(process.pid, signal.SIGKILL)
        printed += (process.stdout.read() if process.stdout else "").splitlines()
    words = [line.split() for line in printed]
    epochs = {int(number[0]): int(number[1]) for word, *number in words if word == "done"}
    intents = [int(number[0]) for word, *number in words if word == "intent"]
    last = max(intents, default=first - 1)
    for number in range(first, last + 1):
        before = state.copy()
        kind, _ = operation(seed, number, state)
        if number in epochs:
            note_epoch(state, epochs[number])
            done[kind] += 1
        else:
            assert number == last, f"operation {number} was not acknowledged, but a later one began"
            return settled(root, before, state, f"{kind}, number {number}"), last + 1
    check(root, state, "all operations were acknowledged")
    return state, last + 1


def settled(root: Path, before: State, after: State, what: str) -> State:
    """Return the state of the two that the store has; whichever it is, it has it whole."""
    try:
        check(root, before, what)
    except AssertionError:
        check(root, after, what)
        return after
    return before


def check(root: Path, state: State, what: str) -> None:
    with el.open(root) as store:
        report = store.verify()
        assert report.ok, (what, report.problems)
        assert store.table(PLAIN).schema.names == ["id", *state.columns], what
        assert rows_of(store.table(PLAIN).to_arrow()) == state.plain, what
        assert rows_of(store.table(LATE).to_arrow()) == state.late, what
        assert {tag.name for tag in store.tags()} == set(state.tags), what
        for name, (_, rows) in state.tags.items():
            with store.snapshot([PLAIN], tag=name) as snapshot:
                assert rows_of(snapshot[PLAIN].to_arrow()) == rows, (what, name)
        assert {info.name for info in store.tables()} == {PLAIN, LATE, *state.clones}, what
        for name, rows in state.clones.items():
            assert rows_of(store.table(name).to_arrow()) == rows, (what, name)
        for epoch, _, rows in state.past:
            assert rows_of(store.table(PLAIN).to_arrow(epoch=epoch)) == rows, (what, epoch)


def rows_of(table: pa.Table) -> Rows:
    return {row[0]: list(row[1:]) for row in zip(*table.to_pydict().values(), strict=True)}
