"""Run the workload in children that die at a failpoint. This process imports the library once and forks each child.

A line of JSON on standard input, {"at": "name:n" or null, "root": path, "ledger": path, "durability": word, "story":
word}, starts a child. When the child has ended, a line reports its exit code (-9 when it was killed). The ledger's file
lists the calls of the child, written without a buffer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import epochlog as el
from epochlog.store.env.failpoints import arm
from faults.workload import STORIES, LedgerWriter, parse_ledger

TESTS = Path(__file__).resolve().parents[1]


class ForkRunner:
    """Parent's side of the process that forks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, at: str | None, root: Path, ledger: Path, durability: str = "disk", story: str = "workload") -> int:
        """Return the exit code of a child that died at a failpoint or finished the story."""
        request = {"at": at, "root": str(root), "ledger": str(ledger), "durability": durability, "story": story}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def fork_runner() -> Iterator[ForkRunner]:
    command = [sys.executable, "-u", "-m", "faults.fork_runner"]
    process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield ForkRunner(process)
    finally:
        process.kill()
        process.communicate()


def read_ledger(path: Path) -> Any:
    return parse_ledger(path.read_text().splitlines(keepends=True))


# ---- the child's side ----------------------------------------------------------------------------------------------


def run_child(request: dict[str, str]) -> None:
    handle = os.open(request["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    arm(request["at"])
    run_story, _ = STORIES[request["story"]]
    run_story(
        Path(request["root"]),
        LedgerWriter(lambda line: os.write(handle, line.encode())),
        durability=request["durability"],
    )


def main() -> None:
    el.open  # noqa: B018  imports what is imported late, once for all children
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_child(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
