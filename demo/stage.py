"""Loop of the running demo: streams, jobs, the pace of the feed, the disturbances and the moments, tick by tick."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from epochlog.errors import EpochlogError, NoConsistentEpoch
from epochlog.store.types.epoch import to_unix_ms

from .acts import Slowdown, Victim
from .compare import TABLES, ComparedMoment, findings
from .feed import STREAMS, DayFeed, arrived, start_stream
from .picture import Phase
from .session import start_view
from .show import Screen, ShownLine
from .views import VIEWS

SLOWED, KILLED = "carrier_scoreboard", "weather_impact"
COUNT_EVERY_S = 8.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Parameters of a run. `slow_*` and `kill_*` are fractions of `days`."""

    days: int
    moments: int
    files_per_batch: int
    interval_ms: int
    slow_extra_s: float
    slow_from: float = 0.12
    slow_until: float = 0.35
    kill_from: float = 0.45
    kill_until: float = 0.7
    compact_segments: int = 48
    ahead_days: int = 6

    def due_day(self, moment: int) -> int:
        """Return the day that must arrive before moment number `moment` (from 0)."""
        return self.days * (moment + 1) // (self.moments + 1)

    def allowed_days(self, taken: int, days_in: int) -> int:
        """Return the number of days that may be released: `ahead_days` more than the streams have read. Each moment
        frees at least one day, so that the next moment has new data.
        """
        last = self.days if taken >= self.moments else min(self.due_day(taken + 2), self.days - self.moments + taken)
        return min(last, days_in + self.ahead_days)


class Stage:
    """Runner of the demo: call `start`, then `run`, and `close` in any case. Times are seconds of the run."""

    def __init__(
        self,
        store: Any,
        spark: SparkSession,
        feed: DayFeed,
        plan: DemoPlan,
        victim: Victim,
        screen: Screen,
        now_s: Callable[[], float],
    ) -> None:
        self.store, self.spark, self.feed, self.plan = store, spark, feed, plan
        self.victim, self.screen, self.now_s = victim, screen, now_s
        self.slowdown = Slowdown(store.view(SLOWED).refresh, plan.slow_extra_s)
        self.commits = dict.fromkeys(TABLES, 0)
        self.moments: list[ComparedMoment] = []
        self.phases: dict[str, Phase] = {}
        self.arrived = dict.fromkeys(STREAMS, (0, 0))
        self.days_in = 0
        self._commits_at_release = 0
        self._queries: list[Any] = []
        self._rows: dict[str, tuple[float, int, int]] = {}
        self._infos: dict[str, Any] = {}
        self._origin_ms = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compaction: Future[Any] | None = None
        self._compacted: dict[str, int] = {}
        self._closed = threading.Event()

    # ---- begin and end ----

    def start(self, root: str, checkpoints: Path, origin_ms: int) -> None:
        """Start all jobs but the victim's, and the two streams; `origin_ms` is the run's second 0 in Unix ms."""
        self._origin_ms = origin_ms
        for name in VIEWS:
            if name != KILLED:
                view = self.store.view(name)
                refresh = self.slowdown if name == SLOWED else view.refresh
                self._queries.append(start_view(view, self.spark, refresh))
        for stream in STREAMS:
            args = (root, checkpoints, self.plan.files_per_batch)
            self._queries.append(start_stream(self.spark, self.feed, stream, *args))

    def close(self) -> None:
        """Stop all queries and the victim; wait for the running compaction."""
        self.slowdown.close()
        self._pool.shutdown()
        self.victim.close()
        for query in self._queries:
            query.stop()

    # ---- the loop ----

    def run(self, tick_s: float = 0.5) -> None:
        """Run until all days are read, all moments are taken and each view has caught up."""
        while not self.tick():
            self._closed.wait(tick_s)

    def tick(self) -> bool:
        """Read the state, act on it and show it; return True at the end of the run."""
        self._raise_query_errors()
        self.arrived = {stream: arrived(self.store, stream) for stream in STREAMS}
        self.days_in = self.feed.days_in("flights", self.arrived["flights"][0])
        lags = {job.name: job.lag_ms for job in self.store.jobs()}
        lines = self._lines(lags)
        self._feed()
        self._slow()
        self._kill()
        self._compact()
        self.screen.update(self.now_s(), f"day {self.days_in} of {self.plan.days}", lines)
        self._take_due_moment()
        return self._finished(lags)

    def _feed(self) -> None:
        """Release the days that the state of the run permits.

        No day before the first commit of each view, over empty tables. The last days wait for the kill, and a victim
        that must hold but has no change to refresh gets one more day. While the victim restarts, each commit of another
        view releases a few days, so that some are left for the time after it.
        """
        commits = [self.commits[name] for name in VIEWS]
        if not all(commits):
            return
        days = self.plan.allowed_days(len(self.moments), self.days_in)
        if self.victim.not_killed_yet:
            is_held = self.victim.state == "hold_requested" and self.days_in >= self.feed.released
            days = min(days, max(int(self.plan.days * self.plan.kill_until), self.feed.released + is_held))
        if self.victim.state == "restarted":
            has_new_commit = max(commits) > self._commits_at_release
            days = min(days, self.feed.released + 2 * self.plan.files_per_batch * has_new_commit)
        self._commits_at_release = max(commits)
        self.feed.release(days)

    def _finished(self, lags: dict[str, int]) -> bool:
        return (
            all(self.arrived[stream][0] >= self.feed.rows[stream][-1] for stream in STREAMS)
            and len(self.moments) >= self.plan.moments
            and self.victim.state == "recovered"
            and not any(lags.values())
        )

    def _raise_query_errors(self) -> None:
        for query in self._queries:
            if not query.isActive:
                raise EpochlogError(f"the query {query.name or query.id} has ended: {query.exception()}")

    def trace(self, table: str) -> list[tuple[float, float]]:
        """Return the commits in the table's history, oldest first: time and epoch of each."""
        history = self.store.table(table).history()
        commit_ms = history["timestamp"].cast("int64").to_pylist()
        points = [(at_ms - self._origin_ms) / 1000 for at_ms in commit_ms]
        return sorted(zip(points, map(self.epoch_s, history["epoch"].to_pylist()), strict=True))

    def epoch_s(self, epoch: int) -> float:
        """Convert an epoch to seconds of the run."""
        return (to_unix_ms(epoch) - self._origin_ms) / 1000

    def show_final_state(self) -> None:
        """Show the final state, with all rows counted."""
        self._rows.clear()
        self.screen.update(self.now_s(), f"day {self.days_in} of {self.plan.days}", self._lines({}))

    def _lines(self, lags: dict[str, int]) -> list[ShownLine]:
        infos = {info.name: info for info in self.store.tables()}
        lines = [self._line(infos[name], lags.get(name, 0)) for name in TABLES]
        self._infos = infos
        return lines

    def _line(self, info: Any, lag_ms: int) -> ShownLine:
        before, epoch = self._infos.get(info.name), info.max_committed_epoch
        self.commits[info.name] += epoch > (before.max_committed_epoch if before else 0)
        states = {SLOWED: "slowed" if self.slowdown.on.is_set() else "", KILLED: self._victim_state()}
        at_s = self.epoch_s(epoch) if epoch else None
        rows = self._count(info, self.now_s())
        return ShownLine(info.name, at_s, lag_ms, rows, self.commits[info.name], states.get(info.name, ""))

    def _count(self, info: Any, at_s: float) -> int:
        """Return the table's rows. They are counted every COUNT_EVERY_S, because a count reads all keys."""
        counted_s, epoch, rows = self._rows.get(info.name, (-COUNT_EVERY_S, -1, 0))
        if epoch != info.max_committed_epoch and at_s - counted_s >= COUNT_EVERY_S:
            self._rows[info.name] = at_s, info.max_committed_epoch, info.rows
            return info.rows
        return rows

    # ---- acts ----

    def _slow(self) -> None:
        share = self.days_in / self.plan.days
        on = self.slowdown.on
        if not on.is_set() and SLOWED not in self.phases and share >= self.plan.slow_from:
            on.set()
            self.say(f"{SLOWED} is slowed: each refresh takes {self.plan.slow_extra_s:g} s longer")
            self._phase(SLOWED, "slowed", self.now_s())
        elif on.is_set():
            self._phase(SLOWED, "slowed")
            if share >= self.plan.slow_until:
                on.clear()
                self.say(f"{SLOWED} is no longer slowed")

    def _kill(self) -> None:
        commits = {name: self.commits[name] for name in VIEWS if name != KILLED}
        due = (
            self.days_in / self.plan.days >= self.plan.kill_from
            and bool(self.moments)
            and not self.slowdown.on.is_set()
        )
        committed = self._infos[KILLED].max_committed_epoch
        if self.victim.advance(commits, committed, due) and self.victim.state == "dead":
            self._phase(KILLED, "killed and restarted", self.now_s())
        if self.victim.state in ("dead", "restarted"):
            self._phase(KILLED, "killed and restarted")
        if self.victim.dead_long_enough and self._taken_while_dead():
            self.victim.restart()

    def _victim_state(self) -> str:
        return {"dead": "killed", "restarted": "killed, restarting", "starting": "starting"}.get(self.victim.state, "")

    def _taken_while_dead(self) -> bool:
        return any("killed" in moment.during for moment in self.moments)

    def _phase(self, table: str, what: str, start_s: float | None = None) -> None:
        begin = self.phases[table].start_s if start_s is None else start_s
        self.phases[table] = Phase(table, what, begin, self.now_s())

    def _compact(self) -> None:
        """Compact a root table in the background when it has `compact_segments` new segments."""
        if self._compaction and self._compaction.done():
            self._compaction.result()
            self._compaction = None
        if self._compaction is None:
            for name in STREAMS:
                segments = self._infos[name].log_segments
                if segments - self._compacted.get(name, 0) >= self.plan.compact_segments:
                    self._compacted[name] = segments
                    self._compaction = self._pool.submit(self.store.compact, name)
                    return

    # ---- moments ----

    def _take_due_moment(self) -> None:
        number = len(self.moments)
        dead = self.victim.dead_long_enough and not self._taken_while_dead()
        limit = self.plan.moments - 2 * self.victim.not_killed_yet
        if number < limit and (dead or self.days_in >= self.plan.due_day(number)):
            moment = self.take_moment(fresh_only=not dead)
            if moment:
                self.moments.append(moment)

    def take_moment(self, fresh_only: bool) -> ComparedMoment | None:
        """Take a snapshot of all tables under `aligned` and one under `latest`, and compare both with the SQL.

        Return None without an aligned epoch, and with `fresh_only` also without one after the last moment's (for the
        first moment: after the first flights).
        """
        at_s, during = self.now_s(), self._during()
        try:
            aligned = self.store.snapshot(list(TABLES), consistency="aligned")
        except NoConsistentEpoch:
            return None
        with aligned:
            epoch_s = self.epoch_s(aligned.epochs["flights"])
            if fresh_only and epoch_s <= (self.moments[-1].epoch_s if self.moments else self._first_flights_s()):
                return None
            with self.store.snapshot(list(TABLES), consistency="latest") as latest:
                lag_ms = max(aligned.lag_ms.values())
                moment = ComparedMoment(
                    len(self.moments) + 1,
                    at_s,
                    self.days_in,
                    during,
                    epoch_s,
                    lag_ms,
                    findings(aligned),
                    findings(latest),
                )
        worst = sum(finding.differing for finding in moment.latest.values())
        verdict = "all equal" if moment.equal else "NOT EQUAL"
        self.say(f"snapshot {moment.number}: {verdict} under aligned, {worst} rows differ under latest")
        return moment

    def _first_flights_s(self) -> float:
        return self.epoch_s(self.store.table("flights").next_epoch(0))

    def _during(self) -> str:
        acts = [f"{KILLED} {self._victim_state()}"] if self._victim_state() else []
        if self.slowdown.on.is_set():
            acts.append(f"{SLOWED} slowed")
        return ", ".join(acts)

    def say(self, text: str) -> None:
        self.screen.say(self.now_s(), text)
