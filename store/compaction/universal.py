"""Universal compaction (size-tiered), the strategy of all tables.

L0 and the newest runs, each no larger than the inputs gathered so far, become one run. All runs are merged into the
oldest one when L0 and the newer runs hold half as many bytes as it does. So a row is rewritten a logarithmic number of
times, a read merges a logarithmic number of runs, and space amplification is bounded.

Example, in MB: runs of 2000, 300 and 100, and 150 in L0. L0 takes in the run of 100, as it is no larger, but not the
one of 300, which is larger than both together: a run of 250 replaces them. Once L0 and the runs above that of 2000 have
1000, all become one run.
"""

from __future__ import annotations

from epochlog.store.metadata.version import Runs, TableVersion

from .strategy import CompactionTask, task_from

SPACE_PERCENT = 50
"""Bytes of L0 and the newer runs, in percent of the oldest run's, at which all are merged into one run."""
MAX_RUNS = 12
"""Most runs of a table. Beyond, all but the oldest are merged, whatever their sizes."""


class UniversalStrategy:
    """Strategy that merges L0 and runs of similar size. `history --compactions` shows the reasons of its tasks."""

    def pick(
        self, version: TableVersion, runs: Runs, *, compact_segments: int, full: bool = False, l0_only: bool = False
    ) -> CompactionTask | None:
        l0 = version.l0_segments >= (1 if full or l0_only else compact_segments)
        if l0_only:
            return task_from(version, runs, len(runs), "L0 is at its limit", l0=True) if l0 else None
        if full:
            due = l0 or len(runs) > 1 or any(run.at is not None for run in runs)
            return task_from(version, runs, 0, "full compaction", l0=l0) if due else None
        if not runs:
            return task_from(version, runs, 0, _l0_reason(version, compact_segments), l0=True) if l0 else None
        upper = sum(run.live_bytes for run in runs[1:]) + (version.l0_bytes if l0 else 0)
        bottom = runs[0].live_bytes
        if upper and (l0 or len(runs) > 1) and upper * 100 >= bottom * SPACE_PERCENT:
            newer = "L0 and the newer runs have" if l0 else "the newer runs have"
            reason = f"{newer} {upper:,} bytes, at least {SPACE_PERCENT} % of the oldest run's {bottom:,}"
            return task_from(version, runs, 0, reason, l0=l0)
        first, gathered = (len(runs), version.l0_bytes) if l0 else (len(runs) - 1, runs[len(runs) - 1].live_bytes)
        while first > 1 and runs[first - 1].live_bytes <= gathered:
            first -= 1
            gathered += runs[first].live_bytes
        if l0:
            return task_from(version, runs, first, _l0_reason(version, compact_segments), l0=True)
        if first < len(runs) - 1:
            return task_from(version, runs, first, f"the newest {len(runs) - first} runs are of similar size", l0=False)
        if len(runs) > MAX_RUNS:
            return task_from(version, runs, 1, f"the table has {len(runs)} runs, more than {MAX_RUNS}", l0=False)
        return None


def _l0_reason(version: TableVersion, compact_segments: int) -> str:
    return f"L0 has {version.l0_segments} segments, at least {compact_segments}"
