"""Universal compaction (size-tiered), the strategy of all tables.

L0, and the runs above it that are no larger than what is merged so far, become one run. Runs above the oldest one are
folded into it when they hold half as much as it does. So a row is rewritten a logarithmic number of times, reads merge
a logarithmic number of runs, and space stays within a factor.
"""

from __future__ import annotations

from epochlog.store.metadata.version import Runs, TableVersion

from .strategy import CompactionTask, task_from

SPACE_PERCENT = 50
MAX_RUNS = 12


class UniversalStrategy:
    """Size-tiered compaction."""

    def pick(
        self, version: TableVersion, runs: Runs, *, compact_segments: int, full: bool = False, l0_only: bool = False
    ) -> CompactionTask | None:
        l0 = version.l0_segments >= (1 if full or l0_only else compact_segments)
        if l0_only:
            return task_from(version, runs, len(runs), "L0 is at its limit", l0=True) if l0 else None
        if full:
            return task_from(version, runs, 0, "asked for in full", l0=l0) if l0 or len(runs) > 1 else None
        if not runs:
            return task_from(version, runs, 0, _l0_reason(version, compact_segments), l0=True) if l0 else None
        upper = sum(run.live_bytes for run in runs[1:]) + (version.l0_bytes if l0 else 0)
        bottom = runs[0].live_bytes
        if upper and (l0 or len(runs) > 1) and upper * 100 >= bottom * SPACE_PERCENT:
            reason = f"what lies above the oldest run has {upper} bytes, {SPACE_PERCENT} % of its {bottom} are enough"
            return task_from(version, runs, 0, reason, l0=l0)
        first, gathered = (len(runs), version.l0_bytes) if l0 else (len(runs) - 1, runs[len(runs) - 1].live_bytes)
        while first > 1 and runs[first - 1].live_bytes <= gathered:
            first -= 1
            gathered += runs[first].live_bytes
        if l0:
            return task_from(version, runs, first, _l0_reason(version, compact_segments), l0=True)
        if first < len(runs) - 1:
            return task_from(version, runs, first, f"{len(runs) - first} runs are of like size", l0=False)
        if len(runs) > MAX_RUNS:
            return task_from(version, runs, 1, f"there are {len(runs)} runs, {MAX_RUNS} are the most", l0=False)
        return None


def _l0_reason(version: TableVersion, compact_segments: int) -> str:
    return f"L0 has {version.l0_segments} segments, {compact_segments} are enough"
