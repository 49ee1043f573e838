"""Jobs as a StreamingQuery: its micro-batches step the job in the driver, wait and retry.

The rows of the query's source are ignored. So a query needs no extra process, and its checkpoint
may be lost: the catalog has all state of the job. Failures follow the rules of a pipeline (`step_scheduler`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.running_queries import is_active, live
from epochlog.checkpoint.job.step_scheduler import BACKOFF, TRIES, JobStep, started, succeeded
from epochlog.checkpoint.job.step_work import CommittedStep
from epochlog.checkpoint.worker.attached_job import AttachedJob, check_coordinator, reach_coordinator
from epochlog.checkpoint.worker.worker import Worker
from epochlog.errors import EpochlogError, InvalidInput, JobRunning
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import RETRY

from .job import Refresh, SparkRefreshAdapter, check_arguments, step
from .job_source import JobSource
from .live_session import is_session_lost, session_lost_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.1
"""Interval at which a waiting micro-batch checks if its query was stopped."""
MAX_IDLE_S = 10.0
"""Longest time that a micro-batch waits for work. Then the next one waits, so that the query reports progress."""
MOST_OF_ERROR = 1000
"""Number of characters of an error that the progress has. The job's `last_error` has all."""
START_TRIES = 3
_DURATION_PART = r"([0-9]{1,12}) *(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h|days?|d)"
_DURATION = re.compile(rf"(?:interval +)?{_DURATION_PART}(?: +{_DURATION_PART})*", re.IGNORECASE | re.ASCII)
_UNITS_MS = {"m": 60_000, "s": 1_000, "h": 3_600_000, "d": 86_400_000}
_MAX_MS = 36_500 * _UNITS_MS["d"]
"""Largest duration: Spark counts microseconds in 64 bits."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Trigger of a query, by which it steps its job: whenever there is work ("continuous"), until there is no work
    ("available_now"), or once in `every_ms` ("every").
    """

    kind: Literal["continuous", "available_now", "every"]
    every_ms: int = 0

    def options(self) -> dict[str, Any]:
        """Return the arguments of Spark's `trigger`."""
        if self.kind == "available_now":
            return {"availableNow": True}
        return {"processingTime": f"{self.every_ms} milliseconds"}


def parse_trigger(trigger: str | timedelta) -> Trigger:
    """Parse the argument `trigger`. Raises InvalidInput, which lists the permitted values."""
    if trigger == "continuous":
        return Trigger("continuous")
    if trigger == "available_now":
        return Trigger("available_now")
    return Trigger("every", span_ms("trigger", trigger, " (or 'continuous' or 'available_now')"))


def span_ms(name: str, duration: object, alternatives: str = "") -> int:
    """Convert a timedelta, or text as '5 minutes' or '1 minute 30 seconds', into whole milliseconds, at least 1. Raises
    InvalidInput. name: the argument's name in the message; alternatives: other values that the message lists.
    """
    text, ms = duration.strip() if isinstance(duration, str) else "", 0
    if isinstance(duration, timedelta):
        ms = duration // timedelta(milliseconds=1)
    elif _DURATION.fullmatch(text):
        ms = sum(
            int(count) * _unit_ms(unit.lower())
            for count, unit in re.findall(_DURATION_PART, text, re.IGNORECASE | re.ASCII)
        )
    if not 1 <= ms <= _MAX_MS:
        raise InvalidInput(
            f"{name} is a timedelta or text as '5 minutes' or '1 minute 30 seconds', from 1 millisecond to 36,500 days"
            f"{alternatives}, not {repr(duration)[:100]}"
        )
    return ms


def _unit_ms(unit: str) -> int:
    return 1 if unit.startswith(("ms", "milli")) else _UNITS_MS[unit[0]]


class Loop:
    """Micro-batch function of a query that steps its job. Spark makes one call at a time."""

    def __init__(self, driver: JobDriver, session: SparkSession, trigger: Trigger, poll_ms: int) -> None:
        self.driver = driver
        self.runner = driver.runner
        driver.lease.alive = lambda: is_active(self.query)
        self.query: StreamingQuery | None = None
        self._started = threading.Event()
        self.idle_polls = 0
        """Number of steps that found no work."""
        self._session = session
        self._trigger = trigger
        self._poll_ms = poll_ms
        self._schedule = JobStep()
        self._pause = threading.Event()
        self._stopped = False
        self._step_lock = threading.RLock()
        self.source = JobSource(session, f"{driver.runner.name}, runner {driver.lease.holder}")
        self._steps: list[CommittedStep] = []
        """Steps of the running micro-batch that have committed."""
        self._failed = 0
        """Number of its steps that have failed and are tried again."""
        self._last_batch = 0
        """Number of the newest micro-batch that began before the end of the job."""

    @property
    def active(self) -> bool:
        """Return True if the query is running or starting."""
        return not self._stopped and is_active(self.query)

    def run_in(self, query: StreamingQuery | None) -> None:
        """Note the query whose micro-batches call this loop; None for one that could not be started."""
        self.query = query
        self._started.set()

    def halt(self) -> None:
        """Stop after the current step, and wait for its end."""
        self._stopped = True
        with self._step_lock:
            return

    def enter(self) -> None:
        """Enter the job as its runner, or wait for another runner that has it."""
        try:
            self.driver.enter()
        except JobRunning as error:
            self._schedule = self.driver.after_error(self._schedule, error, _now_ms(), None)

    def _has_finished(self) -> bool:
        """Return True if the data of the job has ended. An error counts for the next step: this one has committed."""
        with suppress(EpochlogError):
            return self.runner.record().state == "finished"
        return False

    def _end(self) -> None:
        """End the query of a job that has finished. A micro-batch cannot stop its own query, so a thread does, once the
        query has reported the progress of this micro-batch.
        """
        self._stopped = True
        self.driver.leave()
        threading.Thread(target=self._stop_query, name=f"epochlog end of {self.runner.name}", daemon=True).start()

    def _stop_query(self) -> None:
        self._started.wait()
        if self.query is not None:
            with suppress(Exception):  # The session was stopped meanwhile, and its queries with it.
                deadline_s = monotonic_s() + MAX_IDLE_S
                while self.query.isActive and not self._is_reported(self.query) and monotonic_s() < deadline_s:
                    self._pause.wait(POLL_S)
                self.query.stop()

    def _is_reported(self, query: StreamingQuery) -> bool:
        """Return True if the query has reported the progress of the newest micro-batch that took a step."""
        progress = query.lastProgress
        return progress is not None and progress.batchId >= self._last_batch

    def __call__(self, _frame: DataFrame, batch: int) -> None:
        """Run one micro-batch."""
        deadline_s, has_committed = monotonic_s() + MAX_IDLE_S, False
        self._last_batch = batch if self.active else self._last_batch
        self._steps.clear()
        self._failed = 0
        self._show_steps()
        while self.active:
            now_ms = _now_ms()
            if now_ms < self._schedule.due_ms:
                if self._schedule.state == "idle" and (has_committed or self._trigger.kind != "continuous"):
                    return
                if self._is_over(deadline_s):
                    return
                self._pause.wait(min((self._schedule.due_ms - now_ms) / 1000, POLL_S))
                continue
            with self._step_lock:
                if not self.active:
                    break
                epoch = self._step_once()
            has_committed = has_committed or epoch is not None
            if (epoch and self._trigger.kind == "every") or self._is_over(deadline_s):
                return
        self.driver.leave()

    def _is_over(self, deadline_s: float) -> bool:
        """Return True if this micro-batch ends so that its query reports progress: another one goes on."""
        return self._trigger.kind == "continuous" and monotonic_s() > deadline_s

    def _note_step(self, step: CommittedStep) -> None:
        self._steps.append(step)
        self._show_steps()

    def _show_steps(self) -> None:
        """Show the steps of this micro-batch in its progress, and the error of a step that is tried again."""
        schedule = self._schedule
        error = schedule.last_error if self._failed or schedule.failures else None
        self.source.show(progress_metrics(self.runner.name, self._steps, self._failed, error))

    def _step_once(self) -> int | None:
        """Run one step and schedule the next; return the committed epoch or None. Raises errors that no retry can fix,
        which end the query.
        """
        self._schedule = started(self._schedule)
        try:
            self.driver.enter()
            epoch = self.driver.step(SparkRefreshAdapter(self.runner.handle, self._session, self._note_step))
            is_idle = epoch is None and self.driver.found_no_work()
        except Exception as error:  # noqa: BLE001  # a refresh may raise any error
            self._handle_error(error)
            return None
        finished = self._has_finished()
        self._schedule = succeeded(self._schedule, epoch, _now_ms(), finished=finished)
        if finished:
            self._end()
        elif epoch is None:
            self._schedule = replace(self._schedule, due_ms=_now_ms() + self._poll_ms)
            self.idle_polls += is_idle
        return epoch

    def _handle_error(self, error: Exception) -> None:
        if not self.active:  # The query was stopped, which ends Spark's tasks with errors.
            return
        tries = TRIES if self._trigger.kind == "available_now" else None
        self._schedule = self.driver.after_error(self._schedule, error, _now_ms(), tries)
        if self._schedule.ended:
            raise error
        if self._schedule.state == "backing off":
            self._failed += 1
            self._show_steps()
            self.runner.fail(error)


class JobQuery(StreamingQuery):
    """StreamingQuery of a job. Its progress has the time of the refreshes, as `durationMs["refresh"]`: Spark's own
    times have that in which a micro-batch waited for work.
    """

    def __init__(self, query: StreamingQuery, loop: Loop) -> None:
        super().__init__(query._jsq)
        self._loop = loop

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802  # Spark's own name
        progress = super().lastProgress
        return None if progress is None else self._with_cost(progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802  # Spark's own name
        return [self._with_cost(progress) for progress in super().recentProgress]

    def _with_cost(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        shown: Any = progress
        refresh_ms = sum(int(source.metrics.get("refreshMs", 0)) for source in progress.sources)
        for durations in (
            progress.durationMs,
            (shown._jdict or {}).get("durationMs", {}),
        ):  # the second one is of `json`
            durations["refresh"] = refresh_ms
        return progress

    def processAllAvailable(self) -> None:  # noqa: N802  # Spark's own name
        """Wait until the job has no more work. Raises the error that ended the query."""
        before, pause = self._loop.idle_polls, threading.Event()
        while self.isActive and self._loop.idle_polls < before + 2:  # The first poll may have begun before this call.
            pause.wait(POLL_S)
        error = self.exception()
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop the query after the current barrier, and release the job for other runners."""
        self._loop.halt()  # Otherwise Spark interrupts the step, which counts as a failure of the job.
        super().stop()
        self._loop.driver.leave()


def start(
    runner: JobRunner,
    session: SparkSession,
    refresh: Refresh,
    *,
    trigger: str | timedelta = "continuous",
    poll: str | timedelta = "100 milliseconds",
    take_over: bool = False,
    coordinator: str | Worker | None = None,
) -> StreamingQuery:
    """Run the job as a StreamingQuery that commits barrier after barrier.

    A failure is recorded on the job and retried by the rules of a pipeline. An error that no retry can fix ends the
    query, and so does the end of the job's data, without an error. Raises JobRunning if the job has a live query in
    this process; the query waits for a runner in another one.
    """
    runner.handle.require_writable()
    check_arguments(runner, session, refresh)
    parsed = parse_trigger(trigger)
    poll_ms = span_ms("poll", poll)
    live.claim(runner, take_over=take_over)
    runner.repeat_step = lambda: step(runner, session, refresh)
    loop = None
    try:
        loop = Loop(_new_driver(runner, refresh, parsed, coordinator, take_over=take_over), session, parsed, poll_ms)
        loop.enter()
        query = JobQuery(_start_with_retries(runner, session, lambda: _start_query(loop, session, parsed)), loop)
    except BaseException:
        if loop is not None:
            loop.run_in(None)
            loop.driver.leave()
        live.set(runner, None)
        raise
    loop.run_in(query)
    live.set(runner, query)
    return query


def _new_driver(
    runner: JobRunner, refresh: Refresh, trigger: Trigger, coordinator: str | Worker | None, *, take_over: bool
) -> JobDriver:
    """Return the driver of a query: under a coordinator, or without one.

    Raises InvalidInput for a bad coordinator, and for a trigger with one; AccessDenied if it wants a token.
    """
    if coordinator is None:
        return JobDriver(runner, refresh, "query", take_over=take_over)
    if trigger.kind != "continuous":
        raise InvalidInput(
            f"job {runner.name!r}: a coordinator decides the barriers, so leave out trigger=; set the job's interval "
            "with job.alter(interval=…)"
        )
    check_coordinator(coordinator, runner.handle, f"job {runner.name!r}")
    worker = reach_coordinator(coordinator, runner.handle)
    return AttachedJob(runner, refresh, "query", worker, take_over=take_over, owns_worker=worker is not coordinator)


def _start_query(loop: Loop, session: SparkSession, trigger: Trigger) -> StreamingQuery:
    stream = loop.source.rows()
    name = f"{loop.runner.name}@{loop.runner.handle.store_id[:8]}"
    if any(query.name == name for query in session.streams.active):  # a fenced query that has not ended yet
        name = f"{name}, incarnation {loop.driver.lease.incarnation}"
    return stream.writeStream.foreachBatch(loop).queryName(name).trigger(**trigger.options()).start()


def _start_with_retries(
    runner: JobRunner, session: SparkSession, start_query: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """Start the query in at most START_TRIES attempts. Raises SparkLost for a lost session, or the last failure."""
    pause = threading.Event()
    for failures in range(1, START_TRIES + 1):
        try:
            return start_query()
        except Exception as error:
            cause = error
            if is_session_lost(session):
                cause = session_lost_error(f"job {runner.name!r}", "this barrier", session)
            runner.fail(cause)
            if cause is not error:
                raise cause from error
            if failures == START_TRIES:
                raise
            RETRY.log(what=f"starting the query of job {runner.name}", error=error)
            pause.wait(BACKOFF.delay_s(failures))
    raise AssertionError("not reached")


def progress_metrics(
    job: str, steps: Sequence[CommittedStep], failed: int = 0, error: str | None = None
) -> dict[str, str]:
    """Return what the progress of a micro-batch says of its steps, by name: of the last one all, and the sum of their
    rows and times. Pure.

    failed: number of steps that failed. error: of the newest one that is or was tried again; None for none.
    """
    metrics = {"job": job, "steps": str(len(steps))}
    if steps:
        last = steps[-1]
        metrics |= {"epoch": str(last.epoch), "engine": last.engine, "operation": last.operation}
        metrics |= {"rows": str(sum(step.rows for step in steps))}
        metrics |= {"refreshMs": str(sum(step.took_ms for step in steps))}
    if error is not None:
        metrics |= {"failedSteps": str(failed), "error": " ".join(error.split())[:MOST_OF_ERROR]}
    return metrics


def _now_ms() -> int:
    return int(monotonic_s() * 1000)
