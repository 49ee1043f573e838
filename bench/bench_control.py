"""P16: barriers of 50 jobs with 8 actors each, over the control stream and over a pair of one-shot calls per actor."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import pytest
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el
from epochlog.checkpoint import JobSettings
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import coordinator
from epochlog.checkpoint.coordinator.coordinator import Coordinator
from epochlog.checkpoint.coordinator.managed_jobs import Decided, ManagedJob, Opened
from epochlog.checkpoint.coordinator.state import Owner, key_of
from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.exchange.server import Server
from epochlog.exchange.transport.duplex import connect, run_action
from epochlog.exchange.transport.services import Exchange
from epochlog.store.commit.loads import PartRecord

JOBS, ACTORS, WORKERS, CALLS_AT_ONCE = 50, 8, 4, 16
STREAM, PAIR = "epochlog", "pair of calls"
SETTINGS = el.CoordinatorSettings(60_000, 600_000, JobSettings(interval_ms=None))
DRIVER = Path(__file__).with_name("control_driver.py")


class Watched:
    """A job of which the catalog's side costs nothing: notes when its barrier goes out and when it may be committed."""

    tables: Collection[str] = ("t",)
    endings: tuple[type[el.EpochlogError], ...] = ()
    looked_at: None = None

    def __init__(self, asked: wire.Attach) -> None:
        self._parts = asked.parts
        self._epoch = 0
        self.injected_s = 0.0
        self.took_s = 0.0
        self.done = threading.Event()

    def require_match(self, request: wire.Attach) -> None: ...

    def check(self) -> None: ...

    def leave(self) -> None: ...

    def open(self) -> Opened:
        return Opened(1, self._parts, frozenset(), SETTINGS.checkpoints)

    def decide(self, *, has_changes: bool, drain: bool) -> Decided:
        self.injected_s = perf_counter()
        return Decided(Barrier(self._epoch, self._epoch + 1, "checkpoint" if self._epoch else "initial"), drain)

    def commit(self, commit: Any) -> tuple[int, bool]:
        assert len(commit.segments["t"]) == self._parts
        self.took_s = perf_counter() - self.injected_s
        self._epoch = commit.barrier.curr
        self.done.set()
        return self._epoch, False

    def resolve(self) -> None:
        raise AssertionError

    def failed(self, error: BaseException) -> None:
        raise AssertionError

    def is_overtaken(self) -> bool:
        return False

    def aborted(self, reason: str) -> None:
        raise AssertionError(reason)

    def state(self, index: int) -> PartRecord:
        return PartRecord()


def watch(handle: object, asked: wire.Attach, times: object) -> ManagedJob:
    """Make the managed job of a request; its type shows that it has all that the coordinator calls."""
    return Watched(asked)


class Calling(Coordinator):
    """Coordinator that makes two calls to each actor, to inject and to collect, in place of the streamed messages."""

    def __init__(self, handle: Any, locations: list[str]) -> None:
        self._locations = locations
        self._clients = [connect(location) for location in locations]
        self._callers = ThreadPoolExecutor(CALLS_AT_ONCE)
        super().__init__(handle, SETTINGS)
        self._executor._inject_one = self._call_each  # pyright: ignore[reportAttributeAccessIssue]: replaces a method

    def attach(self, part: wire.PartName) -> None:
        self._open(key_of(part), wire.Attach(part, ACTORS, (), False, 0, True), "bench")
        with self._executor.lock:
            incarnation, decided = self._executor.manager.attach(key_of(part), (part.name, part.number))
            self._executor.owners[part] = Owner("", incarnation, None)
            self._executor.execute(decided)

    def _call_each(self, inject: Any, actor: Any, running: Any) -> None:
        self._callers.submit(self._call, inject, actor, running)

    def _call(self, inject: Any, actor: Any, running: Any) -> None:
        part, incarnation, barrier = running.part(actor), inject.targets[actor], inject.barrier
        message = wire.Injected(
            part, incarnation, inject.barrier_id, barrier.prev, barrier.curr, barrier.kind, inject.taken[actor], False
        )
        place = part.number % WORKERS
        given = {"token": None, "timeout_s": 60.0}
        run_action(self._clients[place], self._locations[place], "inject", wire.encode([message]), **given)
        wanted = wire.encode([wire.Progress(part, incarnation)])
        answer = run_action(self._clients[place], self._locations[place], "collect", wanted, **given)
        with self._executor.lock:
            for report in wire.decode(answer):
                assert isinstance(report, wire.Reported)
                self._handle_part_message(mock.Mock(worker=""), report)

    def close(self, timeout_s: float = 5.0) -> None:
        super().close(timeout_s)
        self._callers.shutdown()
        for client in self._clients:
            client.close()


class Crowd:
    """A coordinator with its worker processes."""

    def __init__(self, jobs: int, coordinator: Coordinator, children: list[subprocess.Popen[str]]) -> None:
        self._jobs = jobs
        self._coordinator = coordinator
        self._children = children
        self._tasks: list[Any] = []

    def ready(self) -> None:
        """Wait until every actor runs."""
        pause = threading.Event()
        while True:
            jobs = self._coordinator.status()
            if len(jobs) == self._jobs and all(set(job.actors.values()) == {"RUNNING"} for job in jobs):
                break
            pause.wait(0.01)
        self._tasks = [running.managed_job for running in self._coordinator._executor.running.values()]

    def round(self) -> tuple[float, float]:
        """A barrier of every job at once: the median of their latencies, and the CPU time of all processes; in ms."""
        gc.collect()
        for task in self._tasks:
            task.done.clear()
        before = self._cpu_s()
        for job in range(self._jobs):
            self._coordinator.checkpoint("job", f"job{job}")
        for task in self._tasks:
            assert task.done.wait(120)
        cpu_s = self._cpu_s() - before
        return statistics.median(task.took_s for task in self._tasks) * 1000, cpu_s * 1000

    def _cpu_s(self) -> float:
        """Of this process and its workers; the clock of another process's CPU time has this number on Linux."""
        return time.process_time() + sum(time.clock_gettime((~child.pid << 3) | 2) for child in self._children)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@contextmanager
def streaming(handle: Any, jobs: int) -> Iterator[Crowd]:
    coordinator = Coordinator(handle, SETTINGS)
    server = Server("grpc://127.0.0.1:0", token=None, exchanges={b"control": Exchange(coordinator.serve)})
    children = [start("line", server.location, worker, jobs, ACTORS, WORKERS) for worker in range(WORKERS)]
    try:
        assert [said(child) for child in children] == ["ready"] * WORKERS
        yield Crowd(jobs, coordinator, children)
    finally:
        for child in children:
            child.communicate("")
        coordinator.close()
        server.shutdown()


@contextmanager
def calling(handle: Any, jobs: int) -> Iterator[Crowd]:
    children = [start("calls") for _ in range(WORKERS)]
    coordinator = Calling(handle, [said(child) for child in children])
    try:
        for job in range(jobs):
            for actor in range(ACTORS):
                coordinator.attach(wire.PartName("job", f"job{job}", actor))
        yield Crowd(jobs, coordinator, children)
    finally:
        coordinator.close()
        for child in children:
            child.communicate("")


@pytest.fixture(scope="module")
def figures(scale: float, book: Book, tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    jobs, rounds = (JOBS, 15) if scale >= 1 else (max(2, round(JOBS * scale)), 3)
    latency: Samples = {STREAM: [], PAIR: []}
    cpu: Samples = {STREAM: [], PAIR: []}
    with ExitStack() as stack:
        store = stack.enter_context(el.open(tmp_path_factory.mktemp("control"), durability="os"))
        stack.enter_context(mock.patch.object(coordinator, "make_managed_job", watch))
        # the segments that are reported are there as little as their table
        stack.enter_context(mock.patch.object(coordinator, "check_reported"))
        crowds = {
            STREAM: stack.enter_context(streaming(store._handle, jobs)),
            PAIR: stack.enter_context(calling(store._handle, jobs)),
        }
        for crowd in crowds.values():
            crowd.ready()
        for place in range(-2, rounds):
            for name in turned(list(crowds), place):
                took_ms, cpu_ms = crowds[name].round()
                if place >= 0:
                    latency[name].append(took_ms)
                    cpu[name].append(cpu_ms)
    what, target = f"{jobs} jobs × {ACTORS} actors, one barrier each", (Target(STREAM, PAIR, 1, "< 1"),)
    measured = [
        Figure("P16", f"barrier latency, {what}", latency, target),
        Figure("P16", f"CPU time, {what}", cpu, target),
    ]
    for figure in measured:
        book.add(figure)
    return measured


@pytest.mark.parametrize("who", [STREAM, PAIR])
@pytest.mark.parametrize("place", [0, 1], ids=["latency", "cpu"])
def test_p16_barriers(who: str, place: int, clock: ReplayClock, benchmark: Any, figures: list[Figure]) -> None:
    clock.play(benchmark, figures[place].samples[who])
