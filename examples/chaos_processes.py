"""Processes of chaos.py: those that are started again whenever they end, and the victims among all that they start."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DRIVER, JVM, EXECUTOR, WORKER, COORDINATOR = KINDS = (
    "driver",
    "JVM of a driver",
    "executor",
    "Python worker",
    "coordinator",
)
"""Kinds of victims."""


@dataclass(frozen=True)
class Process:
    """Live process of the system."""

    pid: int
    parent: int
    session: int
    """Id of the process that began its session: its own, and all that it started, belong to it."""
    command: str


def processes() -> dict[int, Process]:
    """Return all live processes by id, without those that have ended and wait for their parent."""
    live: dict[int, Process] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z":
                live[int(folder.name)] = Process(int(folder.name), int(parent), int(session), command)
    return live


def victims(kind: str, sessions: Mapping[int, str], live: Mapping[int, Process]) -> list[Process]:
    """Return the processes of a kind. sessions: DRIVER or COORDINATOR by the id of each session."""
    return [process for process in live.values() if kind == _kind_of(process, sessions.get(process.session), live)]


def _kind_of(process: Process, service: str | None, live: Mapping[int, Process]) -> str | None:
    if service is None or process.pid == process.session:
        return service
    if "CoarseGrainedExecutorBackend" in process.command:
        return EXECUTOR
    if "SparkSubmit" in process.command:
        return JVM
    parent = live.get(process.parent)
    is_worker = parent is not None and all("pyspark.daemon" in each.command for each in (process, parent))
    return WORKER if is_worker else None


class Service:
    """Process that is started again whenever it ends, in a session of its own with all that it starts."""

    def __init__(
        self, kind: str, command: Sequence[str], environment: Mapping[str, str], log: Path, *, away_s: float = 0.0
    ) -> None:
        """Start it. away_s: seconds from its end to its next start."""
        self.kind = kind
        self.sessions: list[int] = []
        """Ids of the sessions that it had; the last one is the present one's."""
        self._command, self._environment, self._log, self._away_s = command, environment, log, away_s
        self._ended_s: float | None = None
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.sessions.append(process.pid)
        return process

    def look(self) -> None:
        """Start the process again if it has ended. What it has left of its session ends by itself."""
        if self._process.poll() is None:
            return
        self._ended_s = self._ended_s or time.monotonic()
        if time.monotonic() - self._ended_s >= self._away_s:
            self._process, self._ended_s = self._start(), None

    def end(self) -> None:
        """Kill all processes of its sessions, and return when none is left."""
        pause = threading.Event()
        while left := [process.pid for process in processes().values() if process.session in self.sessions]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pause.wait(0.01)
        self._process.wait()
