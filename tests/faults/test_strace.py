"""The kernel's own calls fail under the store, or kill it in the middle: LMDB's, too, which no double can stand for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import epochlog as el
from faults.fork_runner import read_ledger
from faults.power import seeded
from faults.workload import resume_workload

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.local_only

CALLS = {
    "fsync": "error=EIO",
    "fdatasync": "error=EIO",
    "pwrite64": "error=ENOSPC",
    "pwrite64 ": "error=EIO",
    "write": "error=ENOSPC",
    "write ": "error=EIO",
    "mkdir": "error=ENOSPC",
    "unlink": "error=EIO",
    "pwrite64  ": "signal=SIGKILL",
    "fdatasync ": "signal=SIGKILL",
}


def strace(base: Path, call: str, injection: str | None, turn: int) -> tuple[int, int]:
    """The story under strace; its exit code, and how many of these calls it made (those that failed too)."""
    path = shutil.which("strace")
    assert path, "strace is needed here. Type: apt-get install strace (scripts/setup.sh does so where it may)"
    inject = [f"--inject={call}:{injection}:when={turn}"] if injection else []
    command = [path, "-f", "-qq", "-o", str(base / "trace"), f"--trace={call}", *inject]
    program = [sys.executable, "-B", "-m", "faults.under_strace", str(base / "s"), str(base / "ledger")]
    code = subprocess.run([*command, *program], cwd=TESTS, check=False).returncode
    return code, len(re.findall(rf"\b{call}\(", (base / "trace").read_text(errors="replace")))


def fail_and_go_on(base: Path, call: str, injection: str, turn: int) -> None:
    base.mkdir()
    code, _ = strace(base, call, injection, turn)
    assert code in ((-9, 137) if "SIGKILL" in injection else (0, 3)), (
        f"{call}:{injection}:{turn} ended the child with {code}"
    )
    ledger = read_ledger(base / "ledger")
    if not ledger.exists:
        el.open(base / "s").close()
    with el.open(base / "s", create=False) as store:
        ledger.check(store)
    resume_workload(base / "s", ledger)
    with el.open(base / "s") as store:
        ledger.check(store)


def some_turns(tmp_path: Path, name: str, count: int) -> None:
    """Of the calls that the story makes, some fail, each in a run of its own."""
    call, injection = name.strip(), CALLS[name]
    (tmp_path / "all").mkdir()
    code, calls = strace(tmp_path / "all", call, None, 0)
    assert code == 0 and calls > 0
    dice = seeded()
    for turn in sorted(dice.sample(range(1, calls + 1), min(count, calls))):
        fail_and_go_on(tmp_path / str(turn), call, injection, turn)


@pytest.mark.long
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("name", CALLS, ids=[f"{name.strip()}-{what}" for name, what in CALLS.items()])
def test_calls_fail(tmp_path: Path, name: str, turns: int) -> None:
    some_turns(tmp_path, name, turns)


@pytest.mark.slow
def test_the_last_write_of_a_catalog_commit_fails(tmp_path: Path) -> None:
    """Nobody knows then whether it landed: that is said, and the same txn again decides it."""
    (tmp_path / "all").mkdir()
    strace(tmp_path / "all", "pwrite64", None, 0)
    sizes = re.findall(r"pwrite64\(\d+, .*, (\d+), \d+\) = ", (tmp_path / "all" / "trace").read_text(errors="replace"))
    metas = [turn for turn, size in enumerate(sizes, 1) if int(size) < 4096]
    turns = iter(metas[len(metas) // 2 :])  # no two runs make just the same calls: one of them may be another's
    code, base = 0, tmp_path
    while code != 3:
        base = tmp_path / str(next(turns))
        base.mkdir()
        code, _ = strace(base, "pwrite64", "error=EIO", int(base.name))
    ledger = read_ledger(base / "ledger")
    with el.open(base / "s", create=False) as store:
        ledger.check(store)
    resume_workload(base / "s", ledger)
    assert not ledger.unknown
    with el.open(base / "s") as store:
        ledger.check(store)


@pytest.mark.slow
def test_the_catalogs_first_write_fails(tmp_path: Path) -> None:
    """A failed first write loses no data, because none exists; the next try creates the store."""
    fail_and_go_on(tmp_path / "1", "pwrite64", "error=EIO", 1)
