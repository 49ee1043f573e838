"""Disturbances of the demo: one view is slowed for a while, another is killed in the middle of a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty
from typing import Any, Literal

from epochlog.errors import EpochlogError

from .worker import ViewProcess

COMMITS_WHILE_DEAD = 2


class Slowdown:
    """Refresh function that takes `extra_s` seconds longer while `on` is set."""

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
        """End the slowdown, also for a refresh that is waiting."""
        self.on.clear()
        self._closed.set()


State = Literal["starting", "alive", "hold_requested", "dead", "restarted", "recovered"]


class Victim:
    """State machine of the view whose driver process is killed and restarted.

    starting -> alive -> hold_requested -> dead (SIGKILL in the middle of a barrier) -> restarted (after
    COMMITS_WHILE_DEAD commits of each other view) -> recovered (after the commit of that barrier).
    """

    def __init__(self, root: str, view: str, log: Path, say: Callable[[str], None]) -> None:
        self.view = view
        self.state: State = "starting"
        self.barrier: tuple[int, int] | None = None
        self.commits_while_dead: dict[str, int] = {}
        self._root, self._log, self._say = root, log, say
        self._commits_before: dict[str, int] = {}
        self._driver = ViewProcess(root, view, log)

    def advance(self, commits: Mapping[str, int], committed_epoch: int, kill_now: bool) -> bool:
        """Handle the driver's events since the last call; return True if the state has changed.

        `commits`: the number of commits of each other view so far; `committed_epoch`: the victim's newest.
        """
        before = self.state
        for event in self._drain_events():
            self._handle_event(event, commits)
        if self.state == "alive" and kill_now:
            self._driver.hold()
            self.state = "hold_requested"
        elif self.state == "dead":
            self.commits_while_dead = {name: count - self._commits_before[name] for name, count in commits.items()}
        elif self.state == "restarted" and self.barrier and committed_epoch >= self.barrier[1]:
            self._say(f"{self.view} has committed the barrier it was killed in")
            self.state = "recovered"
        return self.state != before

    @property
    def not_killed_yet(self) -> bool:
        """Return True until the kill."""
        return self.state in ("starting", "alive", "hold_requested")

    @property
    def dead_long_enough(self) -> bool:
        """Return True if the victim is dead and each other view has committed COMMITS_WHILE_DEAD times since."""
        return self.state == "dead" and min(self.commits_while_dead.values(), default=0) >= COMMITS_WHILE_DEAD

    def restart(self) -> None:
        counts = ", ".join(f"{name} {count}" for name, count in self.commits_while_dead.items())
        self._say(f"commits of the other views while {self.view} was dead: {counts}")
        self._driver = ViewProcess(self._root, self.view, self._log)
        self.state = "restarted"
        self._say(f"{self.view} is being started again (process {self._driver.pid})")

    def close(self) -> None:
        """End the driver: gracefully after the recovery, with SIGKILL if the demo has failed before."""
        if self.state == "recovered":
            self._driver.close()
        else:
            self._driver.kill()

    def _drain_events(self) -> list[dict[str, Any]]:
        events = []
        while True:
            try:
                events.append(self._driver.events.get_nowait())
            except Empty:
                return events

    def _handle_event(self, event: dict[str, Any], commits: Mapping[str, int]) -> None:
        match self.state, event["event"]:
            case "starting", "ready":
                self.state = "alive"
                self._say(f"{self.view} runs in its own driver (process {self._driver.pid})")
            case "restarted", "ready":
                self._say(f"{self.view} is up again and repeats the barrier it was killed in")
            case "hold_requested", "holding":
                self._driver.kill()
                self.state = "dead"
                self.barrier = (event["prev"], event["curr"])
                self._commits_before = dict(commits)
                self._say(f"{self.view} was killed (SIGKILL) in the middle of a barrier: rows written, not committed")
            case "restarted", "barrier":
                barrier = (event["prev"], event["curr"])
                if self.barrier and barrier[0] == self.barrier[0] and barrier != self.barrier:
                    raise EpochlogError(f"{self.view} was killed in barrier {self.barrier} and came back to {barrier}")
            case state, "gone" if state != "dead":
                raise EpochlogError(f"the driver of {self.view} has ended by itself; its log is {self._log}")
