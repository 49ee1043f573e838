"""Metrics of a coordinator and of the tables' epochs, as Prometheus text (format 0.0.4)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from epochlog.checkpoint.job.next_barrier import BARRIER_PHASES
from epochlog.checkpoint.manager import commands
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.consumer_info import consumers_within
from epochlog.store.env.histogram import Histograms
from epochlog.store.env.lru_cache import process_caches
from epochlog.store.env.metrics import OF_CACHES, RECORDED, Labels, Metric
from epochlog.store.epochs.view_reader import read_epochs_and_records
from epochlog.store.metadata.lookups import all_jobs
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

    def lines(
        self, handle: Handle, statuses: Iterable[commands.CheckpointStatus], workers: int, now_ms: int
    ) -> Iterator[str]:
        """Yield the lines of all metrics as of now. The catalog is read before the first one."""
        of_store, statuses = store_lines(handle), list(statuses)
        with self._lock:
            stale = dict(self._stale)
        values: dict[Metric, dict[Labels, float]] = {
            BARRIER_AGE: {(s.job,): _age_s(s, now_ms) for s in statuses},
            JOB_COMMITS: {(s.job,): s.commits for s in statuses},
            JOB_ABORTS: {(s.job,): s.aborts for s in statuses},
            JOB_FAILURES: {(s.job,): s.failures for s in statuses},
            JOB_CARRIED: {(s.job,): s.carried for s in statuses},
            JOB_IGNORED: {(s.job,): s.ignored + stale.get(s.job, 0) for s in statuses},
            JOB_EPOCH: {(s.job,): s.epoch for s in statuses},
            WORKERS: {(): workers},
        }
        yield from BARRIER_LATENCY.histogram_lines(self._latency.items())
        for metric, by_labels in values.items():
            yield from metric.lines(by_labels)
        yield from of_store


BARRIER_LATENCY = Metric("epochlog_barrier_latency_seconds", "histogram", "From inject to commit.", ("job_name",))
BARRIER_AGE = Metric("epochlog_barrier_in_flight_age_seconds", "gauge", "Age of the attempt in flight.", ("job_name",))
JOB_COMMITS = Metric("epochlog_job_commits_total", "counter", "Checkpoints committed.", ("job_name",))
JOB_ABORTS = Metric("epochlog_job_aborts_total", "counter", "Attempts aborted.", ("job_name",))
JOB_FAILURES = Metric("epochlog_job_failures_in_a_row", "gauge", "Attempts failed in a row.", ("job_name",))
JOB_CARRIED = Metric("epochlog_job_carried_segments", "gauge", "Segments of aborted attempts.", ("job_name",))
JOB_IGNORED = Metric(
    "epochlog_job_ignored_messages_total", "counter", "Stale, repeated, unknown or late messages.", ("job_name",)
)
JOB_EPOCH = Metric("epochlog_job_epoch", "gauge", "Epoch of the newest commit.", ("job_name",))
WORKERS = Metric("epochlog_workers_connected", "gauge", "Workers and drivers that are connected.")
OF_COORDINATOR = (
    BARRIER_LATENCY,
    BARRIER_AGE,
    JOB_COMMITS,
    JOB_ABORTS,
    JOB_FAILURES,
    JOB_CARRIED,
    JOB_IGNORED,
    JOB_EPOCH,
    WORKERS,
)
"""Metrics of a coordinator."""

BARRIER_PHASE = Metric(
    "epochlog_barrier_phase_seconds",
    "histogram",
    "Phases of barriers: decision, collection, commit.",
    ("job_name", "phase"),
)
COMMITTED_EPOCH = Metric("epochlog_table_committed_epoch", "gauge", "Newest commit of the table.", ("table",))
SAFE_EPOCH = Metric("epochlog_table_safe_epoch", "gauge", "Oldest epoch at which the table can be read.", ("table",))
TABLE_LAG = Metric(
    "epochlog_table_lag_seconds",
    "gauge",
    "Age of the oldest upstream change that the table does not reflect.",
    ("table",),
)
L0_SEGMENTS = Metric("epochlog_table_l0_segments", "gauge", "Segments of the log that wait for compaction.", ("table",))
L0_BYTES = Metric("epochlog_table_l0_bytes", "gauge", "Bytes of the segments that wait for compaction.", ("table",))
LOG_BYTES = Metric("epochlog_table_log_bytes", "gauge", "Bytes of the table's log.", ("table",))
RUN_BYTES = Metric("epochlog_table_run_bytes", "gauge", "Bytes of the table's sorted runs.", ("table",))
CONSUMER_LAG = Metric(
    "epochlog_consumer_lag_seconds",
    "gauge",
    "Age of the oldest change that the consumer has not acknowledged.",
    ("consumer",),
)
CONSUMER_COMMITS = Metric(
    "epochlog_consumer_lag_commits", "gauge", "Commits that the consumer has not acknowledged.", ("consumer",)
)
JOB_FAILING = Metric(
    "epochlog_job_failing_seconds", "gauge", "Time since the job's first failure after its last commit.", ("job_name",)
)
JOB_PARKED = Metric("epochlog_job_parked", "gauge", "Whether the job is parked: 1 until its rebuild.", ("job_name",))
OF_TABLES = (COMMITTED_EPOCH, SAFE_EPOCH, TABLE_LAG, L0_SEGMENTS, L0_BYTES, LOG_BYTES, RUN_BYTES)
OF_CONSUMERS = (CONSUMER_LAG, CONSUMER_COMMITS)
OF_JOBS = (JOB_FAILING, JOB_PARKED)
ALL = (*OF_COORDINATOR, BARRIER_PHASE, *RECORDED, *OF_CACHES, *OF_TABLES, *OF_JOBS, *OF_CONSUMERS)
"""Every metric that epochlog serves."""


def as_text(lines: Iterable[str]) -> str:
    """Return the text of lines."""
    return "".join(f"{line}\n" for line in lines)


def store_lines(handle: Handle) -> Iterator[str]:
    """Read the catalog, and return the lines of metrics of this process's work, and of the tables, jobs and consumers
    of the store, in Prometheus' form. The lines are made as they are taken.
    """
    read: list[Values] = handle.catalog.read(
        lambda view: [_tables(view, handle), _jobs(view, handle), _consumers(view, handle)]
    )
    process = (BARRIER_PHASE.histogram_lines(handle.barrier_phases.items()), handle.recorder.lines(RECORDED))
    caches = {(name,): (cache.bytes, len(cache), cache.limit_bytes) for name, cache in process_caches()}
    of = zip((OF_CACHES, OF_TABLES, OF_JOBS, OF_CONSUMERS), [caches, *read], strict=True)
    return chain(*process, chain.from_iterable(_lines(metrics, values) for metrics, values in of))


Values = Mapping[Labels, Sequence[float]]
"""Values of several metrics by labels, in the order of the metrics."""


def _lines(metrics: Sequence[Metric], values: Values) -> Iterator[str]:
    rows = sorted(values.items())
    for place, metric in enumerate(metrics):
        yield from metric.ordered_lines((labels, row[place]) for labels, row in rows)


def _age_s(status: commands.CheckpointStatus, now_ms: int) -> float:
    return 0.0 if status.since_ms is None else max(0, now_ms - status.since_ms) / 1000


def _tables(view: ReadTxn, handle: Handle) -> Values:
    """Return each table's epochs, lag and sizes."""
    epochs, records = read_epochs_and_records(view, handle.memory, handle.catalog.now_ms(), above=None)
    values: dict[Labels, tuple[float, ...]] = {}
    for table, _, version in records.values():
        lag_s = epochs.lag_ms(table.id) / 1000
        sizes = version.l0_segments, version.l0_bytes, version.log_bytes, version.run_bytes
        values[table.name,] = version.max_committed_epoch, version.safe_epoch, lag_s, *sizes
    return values


def _jobs(view: ReadTxn, handle: Handle) -> Values:
    """Return each job's failure and parking, whichever process runs it."""
    now_ms = handle.catalog.now_ms()
    return {
        (job.name,): (
            0 if job.failed_ms is None else max(0, now_ms - job.failed_ms) / 1000,
            int(job.state == "parked"),
        )
        for job in all_jobs(view)
    }


def _consumers(view: ReadTxn, handle: Handle) -> Values:
    """Return each consumer's lag; a consumer without a position has none."""
    positioned = [info for info in consumers_within(view, handle) if info.lag_ms is not None]
    return {(info.name,): ((info.lag_ms or 0) / 1000, info.lag_commits or 0) for info in positioned}
