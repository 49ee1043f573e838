"""Plan of one seed: a random graph of loads and jobs, and the faults of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from epochlog.checkpoint import JobSettings
from epochlog.checkpoint.manager.commands import Actor

INTERVAL_MS = 1_000
START_MS = 1_767_225_600_000
FAULTS_END_MS = START_MS + 9_000
QUIET_MS = START_MS + 10_000
"""From this time on no source has new rows."""
GIVE_UP_MS = START_MS + 60_000

KINDS = (
    "loss",
    "repeats",
    "delays",
    "slow",
    "declines",
    "crashes",
    "catalog",
    "coordinator",
    "stops",
    "recovers",
    "claims",
    "drains",
    "forces",
)


class Violation(AssertionError):
    """Broken invariant."""


@dataclass(frozen=True)
class JobShape:
    """Load (no upstreams: its actors make rows) or job, of one vertex.

    rows: the number of rows of each actor of a load; None: unbounded.
    """

    name: str
    table: str
    upstreams: tuple[str, ...]
    parts: int
    settings: JobSettings
    interval: int = 1
    rows: tuple[int | None, ...] = ()
    per_second: int = 5
    snapshot: bool = False
    max_lag: int = 100

    @property
    def derived(self) -> bool:
        return bool(self.upstreams)

    @property
    def actors(self) -> list[Actor]:
        return [("w", index) for index in range(self.parts)]

    @property
    def sources(self) -> list[Actor]:
        """Return the actors that make a load's rows."""
        return [] if self.derived else self.actors


@dataclass(frozen=True)
class Event:
    """Fault or request of one job at one time."""

    at_ms: int
    kind: str
    job: str
    actor: Actor | None = None
    flag: bool = False


@dataclass(frozen=True)
class SimulationPlan:
    """Graph, faults and requests of a run, drawn before it begins."""

    jobs: tuple[JobShape, ...]
    events: tuple[Event, ...]
    coordinator_crashes: tuple[tuple[int, int], ...]  # when, for how long
    troubled: dict[str, dict[str, float]] = field(default_factory=dict)  # rates, by job and kind

    def descendants(self, job: str) -> set[str]:
        """Return the job and its descendants, by name."""
        names = {job}
        for shape in self.jobs:  # upstreams come before their readers
            tables = {other.table for other in self.jobs if other.name in names}
            if tables & set(shape.upstreams):
                names.add(shape.name)
        return names

    def component(self, job: str) -> set[str]:
        """Return the names of the jobs that are connected to the job by tables, in either direction."""
        edges = [{shape.name, up.name} for shape in self.jobs for up in self.jobs if up.table in shape.upstreams]
        names = {job}
        for _ in self.jobs:
            names.update(*(edge for edge in edges if edge & names))
        return names


def draw_plan(seed: int) -> SimulationPlan:
    rng = random.Random(f"plan {seed}")
    loads = [_load(rng, f"load{number}") for number in range(rng.choice([1, 1, 2, 3]))]
    components = [[load.table] for load in loads[: rng.randint(1, len(loads))]]  # tables, upstreams first
    for load in loads[len(components) :]:
        rng.choice(components).append(load.table)
    jobs = list(loads)
    for number in range(rng.choice([1, 2, 2, 3, 4, 6])):
        tables = rng.choice(components)
        jobs.append(_job(rng, f"job{number}", _upstreams(rng, tables)))
        tables.append(jobs[-1].table)
    events: list[Event] = []
    troubled: dict[str, dict[str, float]] = {}
    for shape in jobs:
        events += _events(rng, shape)
        troubled[shape.name] = {
            "loss": rng.choice([0, 0, 0.05, 0.3]),
            "repeats": rng.choice([0, 0.1, 0.5]),
            "delays": rng.choice([0, 20, 300, 2_500]),
            "slow": rng.choice([0, 0, 0.1, 0.3]),
            "declines": rng.choice([0, 0, 0.1]),
            "catalog": rng.choice([0, 0.2, 0.5]),
        }
    crashes = [
        (START_MS + rng.randrange(500, 9_000), rng.randrange(100, 1_500)) for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    return SimulationPlan(
        tuple(jobs), tuple(sorted(events, key=lambda event: event.at_ms)), tuple(sorted(crashes)), troubled
    )


def _settings(rng: random.Random, interval: int | None) -> JobSettings:
    return JobSettings(
        interval_ms=interval,
        min_pause_ms=rng.choice([0, 0, 150]),
        timeout_ms=rng.choice([700, 1_500, 3_000]),
        tolerable_failures=rng.choice([None, None, 1, 3]),
    )


def _upstreams(rng: random.Random, tables: list[str]) -> tuple[str, ...]:
    """Draw the tables that a job reads: the newest (a chain), the two newest (two of them make a diamond), or any."""
    kind = rng.choice(["chain", "diamond", "any"])
    if kind == "any":
        return tuple(rng.sample(tables, rng.randint(1, min(2, len(tables)))))
    return tuple(tables[-1:] if kind == "chain" else tables[-2:])


def _load(rng: random.Random, name: str) -> JobShape:
    parts, bounded = rng.randint(1, 3), rng.random()
    rows = tuple(rng.randrange(0, 30) if rng.random() < bounded else None for _ in range(parts))
    interval = rng.choice([1_000, 1_000, 700, None, None])
    return JobShape(
        name, f"{name}_out", (), parts, _settings(rng, interval), rows=rows, per_second=rng.choice([2, 5, 9])
    )


def _job(rng: random.Random, name: str, upstreams: tuple[str, ...]) -> JobShape:
    interval = rng.choice([1, 1, 1, 2])
    return JobShape(
        name, f"{name}_out", upstreams, rng.randint(1, 3), _settings(rng, interval * INTERVAL_MS),
        interval=interval, snapshot=rng.random() < 0.5, max_lag=rng.choice([1, 3, 100]),
    )  # fmt: skip


def _events(rng: random.Random, shape: JobShape) -> list[Event]:
    def at() -> int:
        return START_MS + rng.randrange(200, 9_000)

    out = [
        Event(at(), "crashes", shape.name, rng.choice(shape.actors), rng.random() < 0.5)
        for _ in range(rng.choice([0, 0, 1, 2, 4]))
    ]
    many = [2, 4, 8] if shape.settings.interval_ms is None else [0, 0, 1, 2]
    out += [Event(at(), "forces", shape.name) for _ in range(rng.choice(many))]
    out += [Event(at(), "stops", shape.name) for _ in range(rng.choice([0, 0, 0, 1]))]
    out += [Event(at(), "recovers", shape.name) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    out += [Event(at(), "claims", shape.name) for _ in range(rng.choice([0, 0, 0, 0, 1]))]
    if not shape.derived and rng.random() < 0.2:
        out.append(Event(at(), "drains", shape.name))
    return out
