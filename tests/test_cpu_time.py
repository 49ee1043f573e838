"""CPU time of process trees: ended children, orphans and living descendants count, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cpu_time
import passes
import pytest

pytestmark = [pytest.mark.local_only, pytest.mark.medium]

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
ORPHAN = f"""
import os
if os.fork() == 0:      # this one ends at once, and what it starts is nobody's child
    if os.fork() == 0:
        exec({BURN!r})
        open('burnt', 'w').close()
    os._exit(0)
os.wait()
while not os.path.exists('burnt'): pass
"""
LIVING = """
import os
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    import time
    while time.process_time() < 0.3: pass
    os.write(writing, b'.')
    os.execvp('sleep', ['sleep', '3'])  # lives on, and ends by itself
os.read(reading, 1)
"""


def cpu_of(code: str, folder: Path) -> float:
    """Return the CPU seconds that scripts/cpu_time.py finds for a program."""
    file = folder / "cpu"
    command = [*passes.CPU_TIME, str(file), sys.executable, "-c", code]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0
    return sum(json.loads(file.read_text()).values())


def test_a_control_group_is_left_and_removed(tmp_path: Path) -> None:
    before = set(cpu_time.CPUACCT.glob("epochlog-*"))
    cpu_of(LIVING, tmp_path)
    assert set(cpu_time.CPUACCT.glob("epochlog-*")) <= before


@pytest.mark.parametrize("code", [BURN, CHILD, ORPHAN], ids=["itself", "child", "orphan"])
def test_each_process_of_the_tree_counts(code: str, tmp_path: Path) -> None:
    assert cpu_of(code, tmp_path) >= 0.29


def test_a_process_that_lives_on_counts(tmp_path: Path) -> None:
    assert cpu_of(LIVING, tmp_path) >= 0.29


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    def code_of(*command: str) -> int:
        done = subprocess.run([*passes.CPU_TIME, str(tmp_path / "cpu"), *command], stderr=subprocess.PIPE, check=False)
        return done.returncode

    assert code_of(sys.executable, "-c", "exit(3)") == 3
    assert code_of(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)") == -15
    assert code_of("/no/such/command") == cpu_time.NOT_FOUND


def test_the_table_sums_tests_by_folder(tmp_path: Path) -> None:
    rows = [
        {"test": f"tests/{name}", "pass": "all", "user": user, "system": 0.5, "wall": 9.0}
        for name, user in (("a/test_x.py::test_1", 1.0), ("a/test_y.py::test_2", 2.0), ("b/test_z.py::test_3", 4.0))
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    (tmp_path / "2.jsonl").write_text(json.dumps(rows[2]) + "\n")
    lines = [line.split() for line in cpu_time.table(tmp_path).splitlines()]
    assert lines[1:3] == [["all", "tests/b", "1", "4.0", "0.5", "9.0"], ["all", "tests/a", "2", "3.0", "1.0", "18.0"]]
    assert lines[5][3] == "tests/b/test_z.py::test_3"
