"""Membership in `global`, rule by rule, on views small enough to check by eye, and rejected wrong answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochlog.store.epochs.global_membership import LateJob
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, from_unix_ms, last_of_unix_ms
from epochlog.store.types.epoch_set import ints

pytestmark = pytest.mark.local_only

MIN = 60_000
START_MS = EPOCH_ORIGIN_MS + 1000 * MIN
BOUND_MS = 10 * MIN


def at(minutes: float) -> int:
    """The last epoch of that minute of the story."""
    return last_of_unix_ms(START_MS + round(minutes * MIN) - 1)


def table(
    number: int, name: str, upstreams: Sequence[int] = (), commits: Sequence[float] = (), **more: object
) -> TableEpochs:
    """A table that changed with each of its commits, which are told in minutes."""
    epochs = ints([at(minutes) for minutes in commits])
    more = {"job_id": number, "interval_ms": 1000} | more if upstreams else more
    return TableEpochs(
        number, name, derived=bool(upstreams), upstreams=tuple(upstreams), commits=epochs, changes=epochs, **more
    )  # pyright: ignore[reportArgumentType]


def view(now: float, *tables: TableEpochs, **more: int) -> EpochView:
    """All that is sealed at that minute of the story."""
    return EpochView(at(now), START_MS + round(now * MIN), {entry.table_id: entry for entry in tables}, "s", **more)


def every(minutes: float, until: float) -> list[float]:
    return [minutes * (count + 1) for count in range(int(until / minutes))]


R = table(1, "r", commits=every(0.5, 30))
SEEN = table(2, "seen", [1], every(0.5, 30))


@pytest.mark.rule("3.8", "3.11")
def test_a_job_over_the_bound_stands_outside_with_its_descendants_and_nobody_else() -> None:
    late = table(3, "late", [1], [19])
    below = table(4, "below", [3], [19])
    v = view(30, R, SEEN, late, below)
    membership = v.membership
    assert membership.members == ("r", "seen") and membership.epoch == at(30)
    assert membership.left_out["late"] == "late cannot be read: it lags 10 min 30 s, more than global_max_lag (10 min)"
    assert membership.left_out["below"].startswith("below cannot be read: it descends from late, which cannot (it lags")
    assert membership.late == (LateJob(3, at(19)),)


@pytest.mark.rule("3.11")
@pytest.mark.parametrize(("seconds", "outside"), [(0, False), (1, True)])
def test_the_bound_itself_is_not_over_it(seconds: int, outside: bool) -> None:
    v = view(30 + seconds / 60, R, table(3, "late", [1], [19.5]))
    first = (START_MS + 20 * MIN) - 1  # the change that it lacks, in Unix ms
    v = replace(v, clock_ms=first + BOUND_MS + seconds)
    assert ("late" in v.membership.left_out) is outside
    assert v.membership.epoch == (v.last_epoch if outside else at(20) - 1)


@pytest.mark.rule("3.11")
def test_a_marked_job_stays_outside_however_small_its_lag_has_become() -> None:
    marked = table(3, "late", [1], [29], outside_ms=START_MS)
    membership = view(30, R, marked).membership
    assert membership.members == ("r",) and not membership.late
    assert (
        "has lagged more than global_max_lag (10 min) and not caught up yet; it lags 30.0 s"
        in membership.left_out["late"]
    )


@pytest.mark.rule("3.9")
@pytest.mark.parametrize("state", ["creating", "parked"])
def test_creating_and_parked_jobs_stand_outside_and_are_not_marked(state: str) -> None:
    membership = view(30, R, table(3, "new", [1], [1], state=state)).membership
    assert membership.left_out == {"new": f"new cannot be read: it is {state}"} and not membership.late


@pytest.mark.rule("3.11")
def test_rebuild_and_drain_with_idle_upstreams_count_from_when_they_were_asked() -> None:
    """With a lag of 0 they would hold `global` at that moment for good."""
    idle = table(1, "r", commits=[1, 2])
    seen = table(2, "seen", [1], [2], due=at(3))
    other = table(5, "other", commits=every(1, 30))
    assert view(12, idle, seen, other).lag_ms("seen") == 9 * MIN + 1
    assert view(12, idle, seen, other).membership.epoch == at(3) - 1
    membership = view(30, idle, seen, other).membership
    assert (
        membership.epoch == at(30) and membership.members == ("r", "other") and membership.late == (LateJob(2, at(2)),)
    )


@pytest.mark.rule("3.11")
def test_the_earlier_of_the_first_missing_change_and_the_due_epoch_counts() -> None:
    seen = table(2, "seen", [1], [10], due=at(20))
    assert view(30, R, seen).lag_ms("seen") == 30 * MIN - (10.5 * MIN - 1)
    seen = table(2, "seen", [1], [29.5], due=at(29.75))
    assert view(30, R, seen).lag_ms("seen") == 15_001


@pytest.mark.rule("3.8")
def test_a_finished_table_never_leaves_not_even_under_an_upstream_that_has() -> None:
    late = table(3, "late", [1], [10], state="parked")
    done = table(4, "done", [3], [9], state="finished")
    of_done = table(5, "of_done", [4], [9])
    membership = view(30, R, late, done, of_done).membership
    assert membership.members == ("r", "done", "of_done") and membership.epoch == at(30)


@pytest.mark.rule("3.10")
def test_punctual_jobs_of_7_and_9_minutes_do_not_make_global_an_hour_old() -> None:
    """Each commits at once at all its boundaries; they have one in common every 63 minutes."""
    r = table(1, "r", commits=every(0.5, 125))
    seven = table(2, "seven", [1], every(7, 125), interval_ms=7 * MIN)
    nine = table(3, "nine", [1], every(9, 125), interval_ms=9 * MIN)
    naive = view(125, r, seven, nine).largest_valid_at_most(["r", "seven", "nine"])
    assert naive is not None and naive < at(63.5)
    membership = view(125, r, seven, nine).membership
    assert membership.members == ("r",) and membership.epoch == at(125) and not membership.late
    assert "commits every 7 min, which is more than half of global_max_lag (10 min)" in membership.left_out["seven"]


@pytest.mark.rule("3.10")
def test_of_jobs_whose_common_boundaries_are_too_rare_the_longest_stand_outside() -> None:
    r = table(1, "r", commits=every(0.5, 30))
    jobs = [table(n, f"every_{n}", [1], every(n, 30), interval_ms=n * MIN) for n in (2, 3, 4)]
    membership = view(30, r, *jobs).membership
    assert membership.members == ("r", "every_2", "every_4")  # 2 and 3 meet every 6 minutes, 2 and 4 every 4
    assert "at one epoch with all jobs of shorter intervals only every 6 min" in membership.left_out["every_3"]
    membership = view(30, r, *jobs, global_max_lag_ms=24 * MIN).membership
    assert not membership.left_out
    membership = view(30, r, replace(jobs[0], state="finished"), *jobs[1:]).membership
    assert membership.members == ("r", "every_2", "every_3")  # who has finished meets everybody


@pytest.mark.rule("3.12")
def test_jobs_that_never_agree_leave_from_the_most_lagging_on() -> None:
    """Each by itself is young enough; together they have no epoch at all."""
    r = table(1, "r", commits=every(0.5, 30))
    odd = table(2, "odd", [1], [15.25, 17.25, 19.25, 21.25, 23.25, 25.25, 27.25, 29.25])
    even = table(3, "even", [1], [16, 18, 20, 22, 24, 26, 28, 30])
    v = view(30.2, r, odd, even)
    assert v.largest_valid_at_most(["r", "odd", "even"]) is None
    membership = v.membership
    assert membership.members == ("r", "even") and membership.epoch == v.last_epoch
    assert membership.late == (LateJob(2, at(29.25)),)
    assert (
        "no epoch of the last 10 min (global_max_lag) is valid for all tables, and it lags most"
        in (membership.left_out["odd"])
    )


@pytest.mark.rule("3.12", "3.13")
def test_a_short_history_lowers_nobodys_epoch_and_a_long_one_is_kept_readable() -> None:
    late = table(3, "late", [1], [25])
    short = replace(R, safe_epoch=at(28), history_ms=2 * BOUND_MS - 1)
    membership = view(30, short, late).membership
    assert membership.members == ("r", "late") and membership.epoch == at(25.5) - 1
    long = replace(short, history_ms=2 * BOUND_MS)
    membership = view(30, long, late).membership
    assert membership.members == ("r",) and membership.epoch == at(30)


def test_an_idle_store_is_not_old_and_has_nobody_outside() -> None:
    v = replace(view(30, R, SEEN), clock_ms=START_MS + 10_000 * MIN)
    assert v.membership.members == ("r", "seen") and v.membership.epoch == at(30)


@pytest.mark.rule("5.5")
def test_a_job_that_never_ran_lags_from_when_it_was_made() -> None:
    made = table(3, "new", [1], state="creating", due=at(5))
    empty, forgotten = table(1, "r"), replace(R, known_from=at(29))
    for upstream in (empty, forgotten):
        assert view(30, upstream, made).lag_ms("new") == 25 * MIN + 1
        assert view(40, upstream, made).lag_ms("new") == 35 * MIN + 1
    assert view(30, R, made).lag_ms("new") == 30 * MIN - (0.5 * MIN - 1)  # the first change is older


def test_outputs_of_one_job_leave_together() -> None:
    first, second = (table(n, f"out_{n}", [1], [19], job_id=7) for n in (3, 4))
    membership = view(30, R, first, second).membership
    assert membership.members == ("r",) and membership.late == (LateJob(7, at(19)),)


def test_epochs_of_the_view_are_those_of_whole_milliseconds() -> None:
    assert at(0) == from_unix_ms(START_MS) - 1
