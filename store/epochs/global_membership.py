"""Membership in `global`: the tables with one common epoch, as a pure function of one EpochView.

A job is outside if it is creating or parked, if it lags more than the store's `global_max_lag`, if its interval is too
long, or if its boundaries coincide too rarely with those of the others. The descendants of its outputs are outside too,
except finished tables, whose content no longer depends on other tables. The remaining tables may still share no epoch
that is young enough, and readable in all tables with a long enough history. Then the jobs that lag most leave, as many
as necessary. A job that has left because of its lag is marked in the catalog (store/commit/lag_marks.py). It takes part
again when it has caught up, so that it does not change sides with every commit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochlog.store.types.epoch import from_unix_ms, show_span, to_unix_ms
from epochlog.store.types.epoch_set import FAR

from .lag import first_in
from .table_epochs import Epochs, TableEpochs


@dataclass(frozen=True, slots=True)
class LateJob:
    """Job that lags too much and is not marked yet, with its newest commit in the EpochView."""

    job_id: int
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    """Names of the tables that take part in `global`, and the largest epoch valid for all of them."""

    members: tuple[str, ...]
    epoch: int
    left_out: Mapping[str, str]
    """Reason for each other table, a sentence by name."""
    late: tuple[LateJob, ...]
    """Jobs to mark."""


def membership(view: Epochs) -> Membership:
    """Compute the members of `global`, their common epoch, and the reasons for which other tables are left out."""
    tables = view.present.closure(view.tables)
    oldest = from_unix_ms(view.clock_ms - view.global_max_lag_ms)
    by_interval = outside_by_interval(tables, view.global_max_lag_ms)
    reasons, outside, late = dict[int, str](), set[int](), list[TableEpochs]()
    for table in tables:
        if not table.derived or table.ended:
            continue
        if _job_id(table) in by_interval:
            reasons[table.table_id] = by_interval[_job_id(table)]
        elif table.state in ("creating", "parked"):
            reasons[table.table_id] = f"it is {table.state}"
        elif not outside.isdisjoint(table.upstreams):
            outside.add(table.table_id)
        elif table.outside_ms is not None or first_in(view, table, table.position) < oldest:
            reasons[table.table_id] = _explain_lag(view, table)
            late += [table] if table.outside_ms is None else []
        if table.table_id in reasons:
            outside.add(table.table_id)
    members, epoch, leaving = _agree(view, tables, outside, oldest)
    reasons |= {table.table_id: _explain_disagreement(view, table) for table in leaving}
    return Membership(
        tuple(table.name for table in members),
        epoch,
        _explain_outside(view, tables, reasons),
        tuple(dict.fromkeys(LateJob(table.job_id, table.position) for table in (*late, *leaving) if table.job_id)),
    )


def outside_by_interval(tables: Iterable[TableEpochs], max_lag_ms: int) -> dict[int, str]:
    """Return, by job, a sentence for each interval that is too long: by itself, or combined with all shorter ones.

    Common boundaries of jobs are the multiples of the least common multiple of their intervals. If that is more than
    half the bound, the common epochs of jobs would be too old although the jobs commit on time. The result depends only
    on the tables (upstreams first), their intervals and their states (finished, parked), not on positions.
    """
    half, bound = max_lag_ms // 2, f"half of global_max_lag ({show_span(max_lag_ms)})"
    reasons, cut_off, jobs = dict[int, str](), set[int](), dict[int, int]()
    for table in tables:
        if not table.interval_ms or table.ended or table.state == "parked":
            continue
        if any(up in cut_off for up in table.upstreams):
            cut_off.add(table.table_id)
        elif table.interval_ms > half:
            cut_off.add(table.table_id)
            reasons[_job_id(table)] = (
                f"its job commits every {show_span(table.interval_ms)}, which is more than {bound}"
            )
        else:
            jobs[_job_id(table)] = table.interval_ms
    common = 1
    for job, interval_ms in sorted(jobs.items(), key=lambda entry: (entry[1], entry[0])):
        combined = math.lcm(common, interval_ms)
        if combined <= half:
            common = combined
        else:
            reasons[job] = (
                f"its job commits every {show_span(interval_ms)}, and at one epoch with all jobs of shorter intervals "
                f"only every {show_span(combined)}, which is more than {bound}"
            )
    return reasons


# ---- agreeing on an epoch ------------------------------------------------------------------------------------------


def _agree(
    view: Epochs, tables: Sequence[TableEpochs], outside: Iterable[int], oldest: int
) -> tuple[list[TableEpochs], int, list[TableEpochs]]:
    """Return the members, their common epoch, and the tables of the jobs that leave to make it possible."""
    members = _without(tables, outside)
    epoch = _common_epoch(view, members, oldest)
    if epoch is not None:
        return members, epoch, []
    movable = [table for table in members if table.derived and not table.ended]
    jobs = list(dict.fromkeys(_job_id(table) for table in _most_lagging_first(view, movable)))

    def members_without(count: int) -> list[TableEpochs]:
        """Return the members after the first `count` jobs have left."""
        leaving = set(jobs[:count])
        return _without(tables, [*outside, *(table.table_id for table in movable if _job_id(table) in leaving)])

    # each job that leaves excludes fewer epochs; when all have left, none is excluded
    count = bisect_left(
        range(len(jobs)), 1, key=lambda count: _common_epoch(view, members_without(count), oldest) is not None
    )
    members, leaving = members_without(count), set(jobs[:count])
    epoch = _common_epoch(view, members, oldest)
    return (
        members,
        view.last_epoch if epoch is None else epoch,
        [table for table in movable if _job_id(table) in leaving],
    )


def _common_epoch(view: Epochs, members: Sequence[TableEpochs], oldest: int) -> int | None:
    """Return the members' largest common valid epoch; None if it is too old, or below the safe epoch of a table with a
    long enough history.
    """
    history_ms = 2 * view.global_max_lag_ms
    safe = max((table.safe_epoch for table in members if table.history_ms >= history_ms), default=0)
    lowest = max(safe, min(oldest - 1, view.last_epoch))
    return view.largest_valid_at_most([table.table_id for table in members], read=(), lowest=lowest)


def _most_lagging_first(view: Epochs, tables: Iterable[TableEpochs]) -> list[TableEpochs]:
    """Sort by the oldest unreflected change, then the longest interval, then the newest job."""
    return sorted(
        tables, key=lambda table: (first_in(view, table, table.position), -table.interval_ms, -_job_id(table))
    )


def _without(tables: Iterable[TableEpochs], outside: Iterable[int]) -> list[TableEpochs]:
    """Return the tables (upstreams first) without those `outside` and their descendants."""
    excluded, remaining = set(outside), list[TableEpochs]()
    for table in tables:
        if table.table_id in excluded or (not table.ended and not excluded.isdisjoint(table.upstreams)):
            excluded.add(table.table_id)
        else:
            remaining.append(table)
    return remaining


def _job_id(table: TableEpochs) -> int:
    """Return the id of the job that writes the table; minus the table's id if the view has no job id."""
    return table.job_id or -table.table_id


# ---- explanations --------------------------------------------------------------------------------------------------


def _explain_outside(view: Epochs, tables: Iterable[TableEpochs], reasons: Mapping[int, str]) -> dict[str, str]:
    """Explain for each table (upstreams first) that takes no part: by its own reason, or by that of an ancestor."""
    heads, sentences = dict[int, TableEpochs](), dict[str, str]()
    for table in tables:
        ups = () if table.ended else table.upstreams
        head = table if table.table_id in reasons else next((heads[up] for up in ups if up in heads), None)
        if head is not None:
            heads[table.table_id] = head
            reason = reasons[head.table_id]
            sentences[table.name] = f"{table.name} cannot be read: " + (
                reason if head is table else f"it descends from {head.name}, which cannot ({reason})"
            )
    return {name: sentences[name] for name in (table.name for table in view.tables.values()) if name in sentences}


def _explain_lag(view: Epochs, table: TableEpochs) -> str:
    """Explain for a job that lags more than the bound, or has lagged so and not caught up since."""
    first, bound = first_in(view, table, table.position), show_span(view.global_max_lag_ms)
    lag_ms = 0 if first == FAR else max(0, view.clock_ms - to_unix_ms(first))
    if lag_ms > view.global_max_lag_ms:
        return f"it lags {show_span(lag_ms)}, more than global_max_lag ({bound})"
    return (
        f"it has lagged more than global_max_lag ({bound}) and not caught up yet; it lags {show_span(lag_ms)} now, and "
        "takes part again once a commit of it is within its max_lag, which job.alter changes"
    )


def _explain_disagreement(view: Epochs, table: TableEpochs) -> str:
    """Explain for a job that has left, so that the others have a common epoch."""
    lag_ms = max(0, view.clock_ms - to_unix_ms(min(first_in(view, table, table.position), view.last_epoch)))
    return (
        f"with it, no epoch of the last {show_span(view.global_max_lag_ms)} (global_max_lag) is valid for all tables, "
        f"and it lags most: {show_span(lag_ms)}"
    )
