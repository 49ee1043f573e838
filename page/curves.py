"""Curves of the last fifteen minutes: lag, rows, barrier latency and compaction debt, sampled while the page is served.

A sample reads the commits since the sample before it, so its cost is that of one look at the store and of what is new.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from epochlog.checkpoint.job.next_barrier import BARRIER_PHASES
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.commit_log import newest_commits
from epochlog.store.metadata.version import Commit
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import to_unix_ms

from .document import PageLook

KEPT_S = 900.0
SAMPLE_S = 5.0
MOST_SAMPLES = int(KEPT_S / SAMPLE_S)
MOST_NEW_COMMITS = 2_000
"""Commits of one table that a sample reads; it skips older ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    """State at one time. decision_ms, collection_ms, commit_ms: mean times of the phases of the barriers that this
    process ran. None: no commit, or the first sample.
    """

    at_ms: int
    lag_ms: int
    """Largest lag of a table."""
    rows_per_s: float | None
    """Rows committed to root tables since the sample before."""
    latency_ms: float | None
    """Mean time from the boundary of a job's commit to the commit."""
    decision_ms: float | None
    collection_ms: float | None
    commit_ms: float | None
    l0_segments: int
    debt_segments: int


class Curves:
    """Samples of the last KEPT_S seconds. Safe for several threads."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._newest: dict[int, int] = {}  # the newest commit of each table at the last sample
        self._phases: Mapping[str, tuple[int, float]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Return the number of samples that were ever taken."""
        return self._version

    def sample(self, look: PageLook) -> None:
        """Add a sample of a look."""
        tables = look.store.epochs.tables
        first = not self._version
        newest = {table_id: table.position for table_id, table in tables.items()}
        fresh = {
            table_id: self._newest.get(table_id, 0)
            for table_id, epoch in newest.items()
            if epoch > self._newest.get(table_id, 0)
        }
        rows, latencies = 0, list[int]()
        if not first and fresh:
            for table_id, commit in self._handle.catalog.read(lambda view: _commits(view, fresh)):
                if tables[table_id].derived:
                    latencies.append(max(0, commit.at_ms - to_unix_ms(commit.epoch)))
                else:
                    rows += commit.rows_upserted + commit.rows_deleted
        phases = self._phase_sums()
        means = {phase: _mean_ms(self._phases.get(phase, sums), sums) for phase, sums in phases.items()}
        segments = [(look.version.l0_segments, look.table.options.compact_segments) for look in look.store.tables]
        with self._lock:
            elapsed_s = (look.store.now_ms - self._samples[-1].at_ms) / 1000 if self._samples else 0.0
            self._samples.append(
                Sample(
                    look.store.now_ms,
                    max((table.lag_ms for table in look.store.tables), default=0),
                    round(rows / elapsed_s, 3) if elapsed_s > 0 else None,
                    sum(latencies) / len(latencies) if latencies else None,
                    means["decision"],
                    means["collection"],
                    means["commit"],
                    sum(count for count, _ in segments),
                    sum(max(0, count - begin) for count, begin in segments),
                )
            )
            self._newest, self._phases, self._version = newest, phases, self._version + 1

    def document(self) -> dict[str, Any]:
        """Return the samples as columns, oldest first."""
        with self._lock:
            samples = list(self._samples)
        return {
            "kept_s": KEPT_S,
            "sample_s": SAMPLE_S,
            **{name: [getattr(sample, name) for sample in samples] for name in Sample.__slots__},
        }

    def newest(self) -> dict[str, Any] | None:
        """Return the newest sample; None without one."""
        with self._lock:
            return asdict(self._samples[-1]) if self._samples else None

    def _phase_sums(self) -> dict[str, tuple[int, float]]:
        """Return for each phase the number of barriers of this process and the sum of their seconds."""
        sums: dict[str, tuple[int, float]] = dict.fromkeys(BARRIER_PHASES, (0, 0.0))
        for (_, phase), histogram in self._handle.barrier_phases.items():
            count, seconds = sums[phase]
            sums[phase] = count + histogram.total, seconds + histogram.sum_s
        return sums


def _mean_ms(before: tuple[int, float], after: tuple[int, float]) -> float | None:
    count = after[0] - before[0]
    return 1000 * (after[1] - before[1]) / count if count > 0 else None


def _commits(view: ReadTxn, after: Mapping[int, int]) -> list[tuple[int, Commit]]:
    """Return the commits of the tables after these epochs, at most MOST_NEW_COMMITS of each, the newest."""
    commits = list[tuple[int, Commit]]()
    for table_id, epoch in after.items():
        newest = islice(newest_commits(view, table_id, epoch), MOST_NEW_COMMITS)
        commits += ((table_id, commit) for commit in newest)
    return commits
