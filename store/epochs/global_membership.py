"""Membership in `global`: the tables for which one common epoch is chosen, as a pure function of one EpochView.

A job that is creating, parked, or lags more than the store's `global_max_lag` stands outside, and so does one whose
interval is too long, or meets those of the others too rarely. All that descends from its outputs stands outside with
it, but for finished tables, whose content depends on nobody any more. If the tables that are left still share no epoch
that is young enough, and readable where their history is kept for long enough, the jobs that lag most leave, as many
as it takes. A job that has left for its lag is marked in the catalog (store/commit/lag_marks.py) and takes part again
when it has caught up, so that it does not come and go with every commit.
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
    """A job that lags too much and is not marked yet, and the newest commit that it had when that was seen."""

    job_id: int
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    """The tables that take part in `global` by name, the largest epoch valid for all of them, and why others do not.

    left_out: a sentence for each other table, by name. late: the jobs that are to be marked.
    """

    members: tuple[str, ...]
    epoch: int
    left_out: Mapping[str, str]
    late: tuple[LateJob, ...]


def membership(view: Epochs) -> Membership:
    """Compute the present members of `global`, their common epoch, and the reasons why the others are left out."""
    tables = view.closure(view.tables)
    oldest = from_unix_ms(view.clock_ms - view.global_max_lag_ms)
    by_interval = outside_by_interval(tables, view.global_max_lag_ms)
    why, out, late = dict[int, str](), set[int](), list[TableEpochs]()
    for table in tables:
        if not table.derived or table.ended:
            continue
        if _job(table) in by_interval:
            why[table.table_id] = by_interval[_job(table)]
        elif table.state in ("creating", "parked"):
            why[table.table_id] = f"it is {table.state}"
        elif not out.isdisjoint(table.upstreams):
            out.add(table.table_id)
        elif table.outside_ms is not None or first_in(view, table, table.position) < oldest:
            why[table.table_id] = _behind(view, table)
            late += [table] if table.outside_ms is None else []
        if table.table_id in why:
            out.add(table.table_id)
    members, at, leaving = _agreeing(view, tables, out, oldest)
    why |= {table.table_id: _disagrees(view, table) for table in leaving}
    return Membership(
        tuple(table.name for table in members),
        at,
        _left_out(view, tables, why),
        tuple(dict.fromkeys(LateJob(table.job_id, table.position) for table in (*late, *leaving) if table.job_id)),
    )


def outside_by_interval(tables: Iterable[TableEpochs], max_lag_ms: int) -> dict[int, str]:
    """Return, by job, a sentence for each interval that is too long: alone, or together with all shorter ones.

    Boundaries that jobs have in common come every least common multiple of their intervals; where that is more than
    half the bound, jobs that commit on time would still share epochs that are too old. The tables (upstreams first),
    their intervals and who has finished or is parked decide alone, not how far the jobs are.
    """
    half, bound = max_lag_ms // 2, f"half of global_max_lag ({show_span(max_lag_ms)})"
    found, cut_off, jobs = dict[int, str](), set[int](), dict[int, int]()
    for table in tables:
        if not table.interval_ms or table.ended or table.state == "parked":
            continue
        if any(up in cut_off for up in table.upstreams):
            cut_off.add(table.table_id)
        elif table.interval_ms > half:
            cut_off.add(table.table_id)
            found[_job(table)] = f"its job commits every {show_span(table.interval_ms)}, which is more than {bound}"
        else:
            jobs[_job(table)] = table.interval_ms
    common = 1
    for job, interval_ms in sorted(jobs.items(), key=lambda one: (one[1], one[0])):
        together = math.lcm(common, interval_ms)
        if together <= half:
            common = together
        else:
            found[job] = (
                f"its job commits every {show_span(interval_ms)}, and at one epoch with all jobs of shorter intervals "
                f"only every {show_span(together)}, which is more than {bound}"
            )
    return found


# ---- agreeing on an epoch ------------------------------------------------------------------------------------------


def _agreeing(
    view: Epochs, tables: Sequence[TableEpochs], out: Iterable[int], oldest: int
) -> tuple[list[TableEpochs], int, list[TableEpochs]]:
    """Return the members, their common epoch, and the tables of the jobs that have to leave for it."""
    members = _without(tables, out)
    at = _common(view, members, oldest)
    if at is not None:
        return members, at, []
    movable = [table for table in members if table.derived and not table.ended]
    jobs = list(dict.fromkeys(_job(table) for table in _most_lagging_first(view, movable)))

    def staying(count: int) -> list[TableEpochs]:
        """Return the members after the first `count` jobs have left."""
        gone = set(jobs[:count])
        return _without(tables, [*out, *(table.table_id for table in movable if _job(table) in gone)])

    # the more leave, the fewer epochs are ruled out; when all have, nobody lacks anything
    count = bisect_left(range(len(jobs)), 1, key=lambda count: _common(view, staying(count), oldest) is not None)
    members, gone = staying(count), set(jobs[:count])
    at = _common(view, members, oldest)
    return members, view.last_epoch if at is None else at, [table for table in movable if _job(table) in gone]


def _common(view: Epochs, members: Sequence[TableEpochs], oldest: int) -> int | None:
    """Return the members' largest common valid epoch; None if it is too old, or below a history that is kept long
    enough.
    """
    kept_ms = 2 * view.global_max_lag_ms
    safe = max((table.safe_epoch for table in members if table.history_ms >= kept_ms), default=0)
    floor = max(safe, min(oldest - 1, view.last_epoch))
    return view.largest_valid_at_most([table.table_id for table in members], read=(), floor=floor)


def _most_lagging_first(view: Epochs, tables: Iterable[TableEpochs]) -> list[TableEpochs]:
    """Sort by oldest unreflected change; of equals the longest interval, then the newest job, comes first."""
    return sorted(tables, key=lambda one: (first_in(view, one, one.position), -one.interval_ms, -_job(one)))


def _without(tables: Iterable[TableEpochs], out: Iterable[int]) -> list[TableEpochs]:
    """Return the tables (upstreams first) without the given ones and their descendants."""
    gone, left = set(out), list[TableEpochs]()
    for table in tables:
        if table.table_id in gone or (not table.ended and not gone.isdisjoint(table.upstreams)):
            gone.add(table.table_id)
        else:
            left.append(table)
    return left


def _job(table: TableEpochs) -> int:
    """Return the id of the job that writes the table; minus the table's id where the view does not tell the job."""
    return table.job_id or -table.table_id


# ---- telling why ---------------------------------------------------------------------------------------------------


def _left_out(view: Epochs, tables: Iterable[TableEpochs], why: Mapping[int, str]) -> dict[str, str]:
    """Explain for each table (upstreams first) that takes no part: for reasons of its own, or of an ancestor."""
    heads, told = dict[int, TableEpochs](), dict[str, str]()
    for table in tables:
        ups = () if table.ended else table.upstreams
        head = table if table.table_id in why else next((heads[up] for up in ups if up in heads), None)
        if head is not None:
            heads[table.table_id] = head
            because = why[head.table_id]
            told[table.name] = f"{table.name} cannot be read: " + (
                because if head is table else f"it descends from {head.name}, which cannot ({because})"
            )
    return {name: told[name] for name in (table.name for table in view.tables.values()) if name in told}


def _behind(view: Epochs, table: TableEpochs) -> str:
    """Explain for a job that lags more than the bound, or has done so and not caught up since."""
    first, bound = first_in(view, table, table.position), show_span(view.global_max_lag_ms)
    lag_ms = 0 if first == FAR else max(0, view.clock_ms - to_unix_ms(first))
    if lag_ms > view.global_max_lag_ms:
        return f"it lags {show_span(lag_ms)}, more than global_max_lag ({bound})"
    return (
        f"it has lagged more than global_max_lag ({bound}) and not caught up yet; it lags {show_span(lag_ms)} now, and "
        "takes part again once a commit of it is within its max_lag, which job.alter changes"
    )


def _disagrees(view: Epochs, table: TableEpochs) -> str:
    """Explain for a job that has left so that the others agree."""
    lag_ms = max(0, view.clock_ms - to_unix_ms(min(first_in(view, table, table.position), view.last_epoch)))
    return (
        f"with it, no epoch of the last {show_span(view.global_max_lag_ms)} (global_max_lag) is valid for all tables, "
        f"and it lags most: {show_span(lag_ms)}"
    )
