"""CPU time of a whole process tree: from a control group of its own, or where none can be made from /proc.

    python scripts/cpu_time.py FILE COMMAND...    # run COMMAND; FILE gets its user and system seconds as JSON
    python scripts/cpu_time.py --table FOLDER     # print the record of `make test CPU=FOLDER`, by folder and test

The command's JVMs, servers and killed drivers count too. A control group (cpuacct, for root on Linux) has the time of
each process that was ever in it. /proc misses children whose parent ignores SIGCHLD, as the daemon of Spark's Python
workers does. Orphans are adopted there (PR_SET_CHILD_SUBREAPER), waited for as init would, and counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
NOT_FOUND = 127  # the exit code of shells for a command that they cannot start
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
GROUP_VARIABLE = "EPOCHLOG_CPU_GROUP"
"""Environment variable with the folder of the control group of a pass, if it has one."""


@dataclass(frozen=True)
class CpuTime:
    """CPU time in seconds: user and system."""

    user: float
    system: float

    def __sub__(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.user - before.user, self.system - before.system)

    @property
    def total(self) -> float:
        return self.user + self.system


def join_group(parent: Path, name: str) -> Path | None:
    """Make a control group and move this process into it, with all that it will start. None where that is refused."""
    group = parent / name
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def group_cpu(group: Path) -> CpuTime:
    """Return the CPU time of all processes that are or were in a control group or in one below it."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = dict(line.split() for line in (group / "cpuacct.stat").read_text().splitlines())
    return CpuTime(int(fields["user"]) / ticks, int(fields["system"]) / ticks)


def tree_cpu(pid: int) -> CpuTime:
    """Return the CPU time of a process, of the children that it has waited for, and of all its living descendants.

    A process that ends while this function reads counts as nothing, unless its parent has not been read yet.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    user = system = 0
    for process in _tree(pid):
        times = _ticks(process)
        user, system = user + times[0] + times[2], system + times[1] + times[3]
    return CpuTime(user / ticks, system / ticks)


def _tree(pid: int) -> Iterator[int]:
    """Yield the process ids of a process and of all its descendants, children first."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except OSError:  # the thread or the process has ended
            continue
        for child in children:
            yield from _tree(int(child))
    yield pid


def _ticks(pid: int) -> list[int]:
    """Return utime, stime, cutime and cstime of a process in clock ticks; zeros if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return [0, 0, 0, 0]
    after_name = stat[stat.rindex(")") + 2 :].split()  # a name may have spaces and parentheses
    return [int(field) for field in after_name[11:15]]


def run(command: list[str], file: Path) -> int:
    """Run a command, write the CPU time of its tree into the file, and return its exit code, or end by its signal."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    group = join_group(CPUACCT, f"epochlog-{os.getpid()}")
    environment = {**os.environ, **({GROUP_VARIABLE: str(group)} if group else {})}
    try:
        code = _wait(subprocess.Popen(command, env=environment))
        spent = group_cpu(group) if group else tree_cpu(os.getpid())  # with orphans that live on
        file.write_text(json.dumps({"user": spent.user, "system": spent.system}), "utf-8")
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return NOT_FOUND
    finally:
        if group is not None:
            leave_group(group)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child, and for orphans that end before it; return the child's exit code, or its signal as negative."""
    pid, status = os.wait()
    while pid != child.pid:
        pid, status = os.wait()
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode


def leave_group(group: Path) -> None:
    """Move the processes of a control group and of those below it into the group above, and remove them."""
    for inner in group.glob("*/"):
        leave_group(inner)
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            (group.parent / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):  # a process that was forked meanwhile keeps the group, and nothing else
        group.rmdir()


def table(folder: Path) -> str:
    """Return the recorded times of all tests: by pass and folder, and the tests that take most."""
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    by_folder: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        name = "/".join(row["test"].split("::")[0].split("/")[:2])
        sums = by_folder[row["pass"], name]
        for index, value in enumerate((1, row["user"], row["system"], row["wall"])):
            sums[index] += value
    lines = [f"{'pass':44} {'folder':24} {'tests':>6} {'user':>8} {'system':>8} {'wall':>8}"]
    ordered = sorted(by_folder.items(), key=lambda item: -item[1][1] - item[1][2])
    lines += [f"{p:44.44} {n:24} {c:6.0f} {u:8.1f} {s:8.1f} {w:8.1f}" for (p, n), (c, u, s, w) in ordered]
    lines += ["", f"{'user':>8} {'system':>8} {'wall':>8}  test"]
    rows.sort(key=lambda row: -row["user"] - row["system"])
    lines += [f"{r['user']:8.1f} {r['system']:8.1f} {r['wall']:8.1f}  {r['test']} ({r['pass']})" for r in rows[:300]]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--table":
        print(table(Path(sys.argv[2])))
        return 0
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    return run(sys.argv[2:], Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
