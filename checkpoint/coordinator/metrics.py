"""Metrics of a coordinator and of the tables' epochs, as Prometheus text (format 0.0.4)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from epochlog.checkpoint.job.barrier import BARRIER_PHASES
from epochlog.checkpoint.manager import commands
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.histogram import BOUNDS_S, Histogram, Histograms
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import all_tables, get_version
from epochlog.store.session.handle import Handle

_PHASES: dict[type, str] = dict(
    zip((commands.Decide, commands.Inject, commands.CommitBarrier), BARRIER_PHASES, strict=True)
)
"""Phases of an attempt, by the decision that begins each."""


class Metrics:
    """Counters of a coordinator. Safe for several threads. phases: gets the durations of phases, by job and phase."""

    def __init__(self, phases: Histograms) -> None:
        self._lock = threading.Lock()
        self._latency = Histograms()
        self._phases = phases
        # By job: barrier id, phase and begin in ms of the attempt in flight.
        self._began: dict[str, tuple[int, str, int]] = {}
        self._injected: dict[tuple[str, int], int] = {}
        self._stale: dict[str, int] = defaultdict(int)

    def note(self, decision: commands.Decision, now_ms: int) -> None:
        """Count a decision that is executed now."""
        with self._lock:
            if isinstance(decision, commands.Inject | commands.CommitBarrier | commands.Announce):
                barrier_id, phase, began_ms = self._began.pop(decision.job, (0, "", 0))
                if barrier_id == decision.barrier_id:
                    self._phases.observe((decision.job, phase), max(0, now_ms - began_ms) / 1000)
            if isinstance(decision, commands.Decide | commands.Inject | commands.CommitBarrier):
                self._began[decision.job] = decision.barrier_id, _PHASES[type(decision)], now_ms
            if isinstance(decision, commands.Inject):
                self._injected[decision.job, decision.barrier_id] = now_ms
            elif isinstance(decision, commands.Announce):
                since_ms = self._injected.pop((decision.job, decision.barrier_id), None)
                if since_ms is not None:
                    self._latency.observe((decision.job,), max(0, now_ms - since_ms) / 1000)
            elif isinstance(decision, commands.Abort):
                self._injected.pop((decision.job, decision.barrier_id), None)

    def ignored(self, job: str) -> None:
        """Count a message of a fenced incarnation."""
        with self._lock:
            self._stale[job] += 1

    def text(self, handle: Handle, statuses: Iterable[commands.CheckpointStatus], workers: int, now_ms: int) -> str:
        """Return all metrics as of now, as Prometheus text."""
        statuses = list(statuses)
        with self._lock:
            stale = dict(self._stale)
        lines = [*_head("epochlog_barrier_latency_seconds", "histogram", "From inject to commit.")]
        for (job,), latency in self._latency.items():
            lines += _histogram("barrier_latency_seconds", f'job="{job}"', latency)
        gauges = (
            ("barrier_in_flight_age_seconds", "gauge", "Age of the attempt in flight.", _ages(statuses, now_ms)),
            ("commits_total", "counter", "Checkpoints committed.", {s.job: s.commits for s in statuses}),
            ("aborts_total", "counter", "Attempts aborted.", {s.job: s.aborts for s in statuses}),
            ("failures_in_a_row", "gauge", "Attempts failed in a row.", {s.job: s.failures for s in statuses}),
            ("carried_segments", "gauge", "Segments of aborted attempts.", {s.job: s.carried for s in statuses}),
            (
                "ignored_messages_total",
                "counter",
                "Stale, repeated, unknown or late messages.",
                {s.job: s.ignored + stale.get(s.job, 0) for s in statuses},
            ),
            ("job_epoch", "gauge", "Epoch of the newest commit.", {s.job: s.epoch for s in statuses}),
        )
        for name, kind, about, values in gauges:
            lines += [*_head(f"epochlog_{name}", kind, about), *_values(f"epochlog_{name}", "job", values)]
        lines += [*_head("epochlog_workers_connected", "gauge", "Workers."), f"epochlog_workers_connected {workers}"]
        return "\n".join(lines) + "\n" + store_metrics(handle)


def store_metrics(handle: Handle) -> str:
    """Return the phases of the barriers that this process decided, and each table's epochs, as Prometheus text."""
    lines = [*_head("epochlog_barrier_phase_seconds", "histogram", "Phases: decision, collection, commit.")]
    for (job, phase), latency in handle.barrier_phases.items():
        lines += _histogram("barrier_phase_seconds", f'job="{job}",phase="{phase}"', latency)
    return "\n".join([*lines, *_tables(handle)]) + "\n"


def _ages(statuses: Iterable[commands.CheckpointStatus], now_ms: int) -> dict[str, float]:
    return {s.job: 0.0 if s.since_ms is None else max(0, now_ms - s.since_ms) / 1000 for s in statuses}


def _tables(handle: Handle) -> Iterator[str]:
    """Yield the lines with each table's epochs and lag."""

    def body(view: ReadTxn) -> dict[str, dict[str, int]]:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        values: dict[str, dict[str, int]] = {"committed_epoch": {}, "safe_epoch": {}, "lag_ms": {}}
        for table in all_tables(view):
            version = get_version(view, table.id, table.name)
            values["committed_epoch"][table.name] = version.max_committed_epoch
            values["safe_epoch"][table.name] = version.safe_epoch
            values["lag_ms"][table.name] = epochs.lag_ms(table.id)
        return values

    help_texts = {
        "committed_epoch": "Newest commit of the table.",
        "safe_epoch": "Oldest epoch at which the table can be read.",
        "lag_ms": "Age of the oldest upstream change that the table does not reflect.",
    }
    for name, values in handle.catalog.read(body).items():
        metric = f"epochlog_table_{name}"
        yield from _head(metric, "gauge", help_texts[name])
        yield from _values(metric, "table", values)


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _values(name: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    for owner, value in sorted(values.items()):
        yield f'{name}{{{label}="{owner}"}} {value}'


def _histogram(metric: str, labels: str, latency: Histogram) -> Iterator[str]:
    name = f"epochlog_{metric}"
    for bound, count in zip(BOUNDS_S, latency.counts, strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {latency.total}'
    yield f"{name}_sum{{{labels}}} {latency.sum_s:.6f}"
    yield f"{name}_count{{{labels}}} {latency.total}"
