"""A slowed refresh still does its work; a killed driver is gone with all it started; its life goes step by step."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from epochlog import errors
from epochlog.demo import acts, worker
from wait_until import wait_until


def test_a_slowed_refresh_waits_after_its_work_and_no_longer_once_closed() -> None:
    done: list[Any] = []
    slow = acts.Slowdown(done.append, extra_s=3600)
    slow(1)
    assert done == [1]
    slow.on.set()
    thread = threading.Thread(target=slow, args=(2,))
    thread.start()
    slow.close()
    thread.join()
    assert done == [1, 2]


PROGRAM = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print('{"event": "ready", "child": %d}' % child.pid, flush=True)
for line in sys.stdin:
    print('{"event": "%s"}' % line.strip(), flush=True)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen
    monkeypatch.setattr(
        worker.subprocess, "Popen", lambda command, **how: popen([sys.executable, "-c", PROGRAM], **how)
    )


def test_a_driver_is_heard_told_and_ended(program: None, tmp_path: Path) -> None:
    driver = worker.ViewProcess("root", "view", tmp_path / "log")
    assert driver.events.get()["event"] == "ready"
    driver.hold()
    assert driver.events.get()["event"] == "hold"
    driver.close()
    assert driver.events.get()["event"] == "gone"
    driver.close()


def test_a_killed_driver_takes_its_children_with_it(program: None, tmp_path: Path) -> None:
    driver = worker.ViewProcess("root", "view", tmp_path / "log")
    child = Path("/proc", str(driver.events.get()["child"]), "stat")
    assert not ended(child)
    driver.kill()
    assert driver.events.get()["event"] == "gone"
    wait_until(lambda: ended(child))


def ended(stat: Path) -> bool:
    """Return True for a missing process or a zombie. It may end between the opening of its file and the reading."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_an_event_is_written_at_once_with_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a driver said "ready" and "barrier" at once, and both events stood on one line."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    worker.say("barrier", prev=5, curr=9)
    assert [text for text in written if text] == ['{"event": "barrier", "prev": 5, "curr": 9}\n']


class FakeDriver:
    """Double of a driver that records its orders; its events are put by the test."""

    made: list[FakeDriver]

    def __init__(self, root: str, view: str, log: Path) -> None:
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.orders: list[str] = []
        self.pid = 1
        self.made.append(self)

    def hold(self) -> None:
        self.orders.append("hold")

    def kill(self) -> None:
        self.orders.append("kill")


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[FakeDriver]:
    FakeDriver.made = []
    monkeypatch.setattr(acts, "ViewProcess", FakeDriver)
    return FakeDriver.made


def test_the_victims_life(drivers: list[FakeDriver]) -> None:
    messages: list[str] = []
    victim = acts.Victim("root", "v", Path("log"), messages.append)
    assert not victim.advance({"a": 1}, 0, kill_now=True)
    drivers[0].events.put({"event": "ready"})
    assert victim.advance({"a": 1}, 0, kill_now=False)
    drivers[0].events.put({"event": "barrier", "prev": 5, "curr": 9})
    victim.advance({"a": 2}, 5, kill_now=True)
    assert (victim.state, drivers[0].orders) == ("hold_requested", ["hold"])
    drivers[0].events.put({"event": "holding", "prev": 5, "curr": 9})
    victim.advance({"a": 3}, 5, kill_now=True)
    assert (victim.state, drivers[0].orders) == ("dead", ["hold", "kill"])
    drivers[0].events.put({"event": "gone"})
    victim.advance({"a": 4}, 5, kill_now=True)
    assert not victim.dead_long_enough
    victim.advance({"a": 5}, 5, kill_now=True)
    assert victim.dead_long_enough
    victim.restart()
    drivers[1].events.put({"event": "ready"})
    drivers[1].events.put({"event": "barrier", "prev": 5, "curr": 9})
    victim.advance({"a": 6}, 5, kill_now=True)
    assert victim.state == "restarted"
    victim.advance({"a": 6}, 9, kill_now=True)
    assert victim.state == "recovered"
    assert victim.commits_while_dead == {"a": 2}
    assert not victim.advance({"a": 7}, 12, kill_now=True)
    assert drivers[1].orders == []


def test_another_barrier_after_the_restart_is_an_error(drivers: list[FakeDriver]) -> None:
    victim = acts.Victim("root", "v", Path("log"), lambda text: None)
    victim.state = "restarted"
    victim.barrier = (5, 9)
    drivers[0].events.put({"event": "barrier", "prev": 5, "curr": 13})
    with pytest.raises(errors.EpochlogError, match=r"killed in barrier \(5, 9\) and came back to \(5, 13\)"):
        victim.advance({}, 5, kill_now=False)


def test_a_driver_that_ends_by_itself_is_an_error(drivers: list[FakeDriver]) -> None:
    victim = acts.Victim("root", "v", Path("log"), lambda text: None)
    drivers[0].events.put({"event": "gone"})
    with pytest.raises(errors.EpochlogError, match="has ended by itself; its log is log"):
        victim.advance({}, 0, kill_now=False)
