"""SIGKILL at every named failpoint, each time it is reached: the store opens, and holds what was acknowledged."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.env import failpoints
from epochlog.store.env.failpoints import FAILPOINTS
from faults.fork_runner import ForkRunner, fork_runner, read_ledger
from faults.workload import STORIES

pytestmark = pytest.mark.local_only

LIBRARY = Path(failpoints.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def children() -> Iterator[ForkRunner]:
    with fork_runner() as runner:
        yield runner


def kill_at(children: ForkRunner, base: Path, at: str, durability: str, story: str = "workload") -> bool:
    """Tell the story, die there, look at the store, go on with it. False when the story came to its end."""
    base.mkdir()
    code = children.run(at, base / "s", base / "ledger", durability, story)
    assert code in (0, -9), f"at {at} the child ended with {code}"
    ledger = read_ledger(base / "ledger")
    if not ledger.exists:
        el.open(base / "s", durability=durability).close()
    with el.open(base / "s", durability=durability, create=False) as store:
        ledger.check(store)
    _, resume = STORIES[story]
    resume(base / "s", ledger, durability=durability)
    with el.open(base / "s", durability=durability) as store:
        ledger.check(store)
    return code == -9


@pytest.mark.parametrize("name", FAILPOINTS)
def test_killed_there_the_first_time(children: ForkRunner, tmp_path: Path, name: str) -> None:
    assert kill_at(children, tmp_path / "1", name, "disk"), f"the workload in faults/workload.py never reaches {name}"


@pytest.mark.campaign
@pytest.mark.parametrize("name", FAILPOINTS)
def test_killed_there_every_time(children: ForkRunner, tmp_path: Path, name: str) -> None:
    """Each kill loses everything that no process has synced."""
    turn = 1
    while kill_at(children, tmp_path / str(turn), f"{name}:{turn}", "os"):
        turn += 1
    assert turn > 1
    print(f"{name} is reached {turn - 1} times")


# ---- the registry ------------------------------------------------------------------------------------------------


def reached_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hit":
            assert isinstance(node.args[0], ast.Constant), "a failpoint's name is written where it is reached"
            yield str(node.args[0].value)


@pytest.mark.medium
def test_every_failpoint_is_registered_and_every_registered_one_is_there() -> None:
    folders = [folder for folder in LIBRARY.iterdir() if (folder / "__init__.py").exists() and folder.name != "tests"]
    sources = [*LIBRARY.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    names = [n for path in sources if path.stem != "failpoints" for n in reached_in(path.read_text("utf-8"))]
    assert set(names) == set(FAILPOINTS)
    assert len(names) == len(set(names)), "each failpoint is one place"


def test_an_unknown_name_is_refused() -> None:
    for name in ("nowhere", "write:half:0", "write:half:x", ":1"):
        with pytest.raises(el.InvalidInput, match="no failpoint"):
            failpoints.arm(name)
    try:
        failpoints.arm("write:half")
        failpoints.hit("write:done")
        with pytest.raises(AssertionError, match="not registered"):
            failpoints.hit("nowhere")
    finally:
        failpoints.arm(None)
    failpoints.hit("nowhere")


@pytest.mark.medium
def test_the_environment_arms_a_failpoint(tmp_path: Path) -> None:
    program = "import sys, epochlog as el; el.open(sys.argv[1])"
    environment = {**os.environ, "EPOCHLOG_KILL_AT": "write:synced"}
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "s")], env=environment, check=False)
    assert ended.returncode == -9
    el.open(tmp_path / "s").close()
