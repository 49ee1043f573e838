"""Metrics of what this process does with a store, and their text form: Prometheus' exposition format 0.0.4.

Every metric is declared once, with its unit in its name: epochlog_<subject>_seconds, _bytes, or _total of a counter.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from .histogram import BOUNDS_S, Histogram, Histograms

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric with its name, its kind, its help text and the names of its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()

    def head(self) -> Iterator[str]:
        """Yield the lines that describe the metric."""
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"

    def lines(self, values: Mapping[Labels, float]) -> Iterator[str]:
        """Yield the lines of a counter or a gauge, sorted by the labels."""
        yield from self.ordered_lines(sorted(values.items()))

    def ordered_lines(self, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
        """Yield the lines of a counter or a gauge whose values come in the order of their labels."""
        yield from self.head()
        for labels, value in values:
            yield f"{self.name}{self._shown(labels)} {value}"

    def histogram_lines(self, histograms: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
        """Yield the lines of a histogram."""
        yield from self.head()
        for labels, histogram in histograms:
            for bound, count in zip(BOUNDS_S, histogram.counts, strict=True):
                yield f"{self.name}_bucket{self._shown(labels, f'{bound}')} {count}"
            yield f"{self.name}_bucket{self._shown(labels, '+Inf')} {histogram.total}"
            yield f"{self.name}_sum{self._shown(labels)} {histogram.sum_s:.6f}"
            yield f"{self.name}_count{self._shown(labels)} {histogram.total}"

    def _shown(self, labels: Labels, bound: str | None = None) -> str:
        pairs = list(zip(self.labels, labels, strict=True)) + ([] if bound is None else [("le", bound)])
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Recorder:
    """Recorder of the counters and histograms of this process for one store. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Metric, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[Metric, Histograms] = defaultdict(Histograms)

    def add(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Raise a counter."""
        with self._lock:
            self._counts[metric][labels] += by

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Add a duration to a histogram."""
        with self._lock:
            histograms = self._histograms[metric]
        histograms.observe(labels, seconds)

    def lines(self, metrics: Iterable[Metric]) -> Iterator[str]:
        """Yield the text of these counters and histograms. One without labels is 0 before its first event."""
        for metric in metrics:
            with self._lock:
                counts, histograms = dict(self._counts.get(metric, {})), self._histograms.get(metric)
            if metric.kind == "histogram":
                kept = dict(histograms.items()) if histograms is not None else {}
                yield from metric.histogram_lines((kept or ({} if metric.labels else {(): Histogram()})).items())
            else:
                yield from metric.lines(counts or ({} if metric.labels else {(): 0}))


_recorders: dict[str, Recorder] = {}
_lock = threading.Lock()


def recorder_of(store_id: str) -> Recorder:
    """Return the recorder of this process for a store. All open stores of one id share it: Spark opens a store for each
    load.
    """
    with _lock:
        return _recorders.setdefault(store_id, Recorder())


COMMITS = Metric("epochlog_commits_total", "counter", "Commits of tables by this process.", ("table",))
COMMITTED_ROWS = Metric("epochlog_committed_rows_total", "counter", "Rows and deletes that commits wrote.", ("table",))
COMMIT_SECONDS = Metric(
    "epochlog_commit_seconds", "histogram", "Duration of a commit, from its written files to its end."
)
WRITE_STALL_SECONDS = Metric(
    "epochlog_write_stall_seconds",
    "histogram",
    "Time for which a commit compacted its table, because its log was too long.",
    ("table",),
)
COMPACTIONS = Metric(
    "epochlog_compactions_total", "counter", "Compactions of tables, by their outcome.", ("table", "outcome")
)
COMPACTION_SECONDS = Metric("epochlog_compaction_seconds", "histogram", "Duration of a compaction, or of a part of it.")
PACKS = Metric("epochlog_packs_total", "counter", "Packs made of the commits of a table's log.", ("table",))
PACKED_COMMITS = Metric(
    "epochlog_packed_commits_total",
    "counter",
    "Commits of a table's log that packs took in; a pack of packs counts them again.",
    ("table",),
)
COMPACTION_WRITTEN_BYTES = Metric(
    "epochlog_compaction_written_bytes_total", "counter", "Bytes of the files that compactions wrote.", ("table",)
)
COMPACTION_CHECKED_ROWS = Metric(
    "epochlog_compaction_checked_rows_total",
    "counter",
    "Rows of new files that compactions read back and compared with the rows that they had written.",
    ("table",),
)
COMPACTION_CHECK_FAILURES = Metric(
    "epochlog_compaction_check_failures_total",
    "counter",
    "Compactions that ended because a new file did not return the rows that were written to it.",
    ("table",),
)
VACUUM_SECONDS = Metric("epochlog_vacuum_seconds", "histogram", "Duration of a vacuum.")
VACUUMED_FILES = Metric("epochlog_vacuumed_files_total", "counter", "Files that vacuums deleted.")
VACUUMED_BYTES = Metric("epochlog_vacuumed_bytes_total", "counter", "Bytes of the files that vacuums deleted.")
MAINTENANCE_FAILURES = Metric(
    "epochlog_maintenance_failures_total",
    "counter",
    "Failed attempts of the maintenance: of a table, vacuum or shipping.",
    ("subject",),
)
LINEAGE_EVENTS = Metric(
    "epochlog_lineage_events_total",
    "counter",
    "Events of OpenLineage: sent, failed or dropped.",
    ("outcome",),
)
CALLS_REFUSED = Metric(
    "epochlog_calls_refused_total",
    "counter",
    "Calls that the server refused, by the port (flight, page) and the reason (token, session, role, limit).",
    ("door", "reason"),
)
READS = Metric(
    "epochlog_reads_total", "counter", "Reads of tables and of their changes, by the way of reading.", ("door",)
)
CACHE_BYTES = Metric("epochlog_cache_bytes", "gauge", "Bytes of a cache of this process.", ("cache",))
CACHE_ENTRIES = Metric("epochlog_cache_entries", "gauge", "Entries of a cache of this process.", ("cache",))
CACHE_LIMIT = Metric("epochlog_cache_limit_bytes", "gauge", "Bytes at which a cache evicts entries.", ("cache",))
OF_CACHES = (CACHE_BYTES, CACHE_ENTRIES, CACHE_LIMIT)
"""Metrics of the process' caches, of all its stores."""

RECORDED = (
    COMMITS,
    COMMITTED_ROWS,
    COMMIT_SECONDS,
    WRITE_STALL_SECONDS,
    COMPACTIONS,
    COMPACTION_SECONDS,
    PACKS,
    PACKED_COMMITS,
    COMPACTION_WRITTEN_BYTES,
    COMPACTION_CHECKED_ROWS,
    COMPACTION_CHECK_FAILURES,
    VACUUM_SECONDS,
    VACUUMED_FILES,
    VACUUMED_BYTES,
    MAINTENANCE_FAILURES,
    LINEAGE_EVENTS,
    CALLS_REFUSED,
    READS,
)
"""Metrics that a Recorder has."""
