"""Fork server for Spark's Python workers: its processes behave as those of python, and end with the program."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_fork import KILLED, forking_python
from wait_until import wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.medium]

MODULE = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), os.environ.get("WORD"), sys.stdin.read()]), flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with forking_python(tmp_path_factory.mktemp("python")) as path:
        yield path


def module(folder: Path, text: str) -> dict[str, str]:
    """Write the module `made` and return an environment in which it is found."""
    (folder / "made.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder), "WORD": "there"}


def test_arguments_environment_folder_and_streams_are_those_of_the_program(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [program, "-m", "made", "a", "b c"],
        env=module(tmp_path, MODULE),
        cwd=tmp_path,
        input="line",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f'["__main__", ["a", "b c"], "{tmp_path}", "there", "line"]'), done


@pytest.mark.parametrize(
    "text, code, words",
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(5)", KILLED, ""),
    ],
)
def test_the_exit_code_and_the_error_are_told(program: str, tmp_path: Path, text: str, code: int, words: str) -> None:
    done = subprocess.run(
        [program, "-m", "made"], env=module(tmp_path, text), capture_output=True, text=True, check=False
    )
    assert done.returncode == code and words in done.stderr


def test_a_process_ends_when_its_program_is_killed(program: str, tmp_path: Path) -> None:
    text = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(1)"
    with subprocess.Popen([program, "-m", "made"], env=module(tmp_path, text), stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        started.send_signal(signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
