"""Two processes on one store, through each catalog: nothing is lost and nothing doubled.

EPOCHLOG_RACE_SECONDS says for how long; a few seconds unless it is set.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import epochlog as el
from catalog_makers import KINDS
from crash.children import TESTS
from crash.committer import ROWS
from stores import servers

SECONDS = float(os.environ.get("EPOCHLOG_RACE_SECONDS", "2"))


def racer(stack: ExitStack, root: Path, catalog: str | None, name: int) -> subprocess.Popen[str]:
    from sys import executable

    command = [executable, "-u", "-m", "crash.store_racer", str(root), catalog or "-", str(name), str(SECONDS)]
    process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    return process


@pytest.mark.rule("1.2")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_that_race_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    root, catalog = tmp_path / "s", servers.redis.url() if kind == "redis" else None
    with ExitStack() as stack:
        racers = [racer(stack, root, catalog, name) for name in range(2)]
        for process in racers:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in racers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.stdout.read().split("\n") for process in racers if process.stdout is not None]
    done = dict[tuple[str, int], int]()
    for name, lines in enumerate(outputs):
        assert lines[-2:] == ["end", ""]
        done |= {(str(name), int(line.split()[1])): int(line.split()[2]) for line in lines[:-2]}
    assert len(done) > 10
    with el.open(root, catalog, durability="os") as store:
        history = store.table("t").history().to_pylist()
        assert {(row["txn"]["application"], row["txn"]["id"]): row["epoch"] for row in history} == done
        assert len(history) == len(set(done.values())) == len(done)
        counts = Counter(store.table("t").to_arrow()["n"].to_pylist())
        assert counts == {int(name) * 1_000_000 + number: ROWS for name, number in done}
        assert store.verify().ok
