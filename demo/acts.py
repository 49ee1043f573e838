"""What is done to the views on purpose: one is slowed for a while, one is killed in the middle of a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty
from typing import Any, Literal

from epochlog.errors import EpochlogError

from .worker import Driver

COMMITS_WHILE_DEAD = 2


class Slowdown:
    """A refresh that takes `extra_s` seconds longer while `on` is set."""

    def __init__(self, refresh: Callable[[Any], None], extra_s: float) -> None:
        self.on = threading.Event()
        self._refresh = refresh
        self._extra_s = extra_s
        self._closed = threading.Event()

    def __call__(self, ctx: Any) -> None:
        self._refresh(ctx)
        if self.on.is_set():
            self._closed.wait(self._extra_s)

    def close(self) -> None:
        """No more waiting, not even in a refresh that has begun to."""
        self.on.clear()
        self._closed.set()


State = Literal["starting", "alive", "told", "dead", "restarted", "recovered"]


class Victim:
    """A view whose driver is a process of its own, and what becomes of it.

    starting -> alive -> told to hold -> dead (SIGKILL, once it stands in the middle of a barrier) -> restarted (when
    each other view has committed COMMITS_WHILE_DEAD times) -> recovered (when that barrier has been committed).
    """

    def __init__(self, root: str, view: str, log: Path, say: Callable[[str], None]) -> None:
        self.view = view
        self.state: State = "starting"
        self.barrier: tuple[int, int] | None = None
        self.commits_while_dead: dict[str, int] = {}
        self._root, self._log, self._say = root, log, say
        self._commits_before: dict[str, int] = {}
        self._driver = Driver(root, view, log)

    def advance(self, commits: Mapping[str, int], committed_epoch: int, kill_now: bool) -> bool:
        """Look at what has happened since the last call and act on it; True when the state has changed.

        `commits`: the number of commits of each other view so far; `committed_epoch`: the victim's own newest.
        """
        before = self.state
        for event in self._heard():
            self._hear(event, commits)
        if self.state == "alive" and kill_now:
            self._driver.hold()
            self.state = "told"
        elif self.state == "dead":
            self.commits_while_dead = {name: count - self._commits_before[name] for name, count in commits.items()}
        elif self.state == "restarted" and self.barrier and committed_epoch >= self.barrier[1]:
            self._say(f"{self.view} has committed the barrier it was killed in")
            self.state = "recovered"
        return self.state != before

    @property
    def to_come(self) -> bool:
        """It has not been killed yet."""
        return self.state in ("starting", "alive", "told")

    @property
    def mourned(self) -> bool:
        """It is dead, and every other view has gone on long enough to show it."""
        return self.state == "dead" and min(self.commits_while_dead.values(), default=0) >= COMMITS_WHILE_DEAD

    def restart(self) -> None:
        went_on = ", ".join(f"{name} {count}" for name, count in self.commits_while_dead.items())
        self._say(f"commits of the others while {self.view} was dead: {went_on}")
        self._driver = Driver(self._root, self.view, self._log)
        self.state = "restarted"
        self._say(f"{self.view} is being started again (process {self._driver.pid})")

    def close(self) -> None:
        """End its driver: gently when it has lived to the end, else (the demo itself has failed) at once."""
        if self.state == "recovered":
            self._driver.close()
        else:
            self._driver.kill()

    def _heard(self) -> list[dict[str, Any]]:
        events = []
        while True:
            try:
                events.append(self._driver.events.get_nowait())
            except Empty:
                return events

    def _hear(self, event: dict[str, Any], commits: Mapping[str, int]) -> None:
        match self.state, event["event"]:
            case "starting", "ready":
                self.state = "alive"
                self._say(f"{self.view} runs in a driver of its own (process {self._driver.pid})")
            case "restarted", "ready":
                self._say(f"{self.view} is up again and takes the barrier it was killed in")
            case "told", "holding":
                self._driver.kill()
                self.state = "dead"
                self.barrier = (event["prev"], event["curr"])
                self._commits_before = dict(commits)
                self._say(f"{self.view} was killed (SIGKILL) in the middle of a barrier: rows written, not committed")
            case "restarted", "barrier":
                again = (event["prev"], event["curr"])
                if self.barrier and again[0] == self.barrier[0] and again != self.barrier:
                    raise EpochlogError(f"{self.view} was killed in barrier {self.barrier} and came back to {again}")
            case state, "gone" if state != "dead":
                raise EpochlogError(f"the driver of {self.view} has ended by itself; its log is {self._log}")
