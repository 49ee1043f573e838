"""Jobs as a StreamingQuery: in its micro-batches this driver steps the job, waits and tries again.

The rows of the query's source, which Spark makes itself, are ignored; so a query costs no process, and its checkpoint
need not be kept. The catalog is the only truth. Failures are treated as a pipeline treats them (`step_scheduler`).
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.streaming.query import StreamingQuery

from epochlog.checkpoint.job.claims import Tenure
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.running_queries import is_active, live
from epochlog.checkpoint.pipeline.step_scheduler import (
    BACKOFF,
    TRIES,
    JobStep,
    backoff_ms,
    failed,
    started,
    succeeded,
    waiting,
)
from epochlog.errors import InvalidInput, JobRunning
from epochlog.store.env.clock import monotonic_s

from .job import Refresh, check_given, gone, lost, step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_S = 0.1
"""How often a waiting micro-batch looks whether its query was stopped."""
REST_S = 10.0
"""How long a micro-batch waits for something to do; then the next one does, so that the query reports progress."""
START_TRIES = 3
_PART = r"([0-9]{1,12}) *(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h|days?|d)"
_SPAN = re.compile(rf"(?:interval +)?{_PART}(?: +{_PART})*", re.IGNORECASE | re.ASCII)
_UNITS_MS = {"m": 60_000, "s": 1_000, "h": 3_600_000, "d": 86_400_000}
_MOST_MS = 36_500 * _UNITS_MS["d"]
"""Spark counts microseconds in 64 bits."""
_log = logging.getLogger("epochlog")


@dataclass(frozen=True, slots=True)
class TriggerPace:
    """Pace at which a query steps its job: whenever there is something to do, until there is nothing, or once in
    `every_ms`.
    """

    kind: Literal["continuous", "available_now", "every"]
    every_ms: int = 0

    def options(self) -> dict[str, Any]:
        """Return the arguments of Spark's `trigger` for this pace."""
        if self.kind == "available_now":
            return {"availableNow": True}
        return {"processingTime": f"{self.every_ms} milliseconds"}


def make_pace(trigger: str | timedelta) -> TriggerPace:
    """Parse `trigger` into a pace. Raises InvalidInput, which lists the permitted values."""
    if trigger == "continuous":
        return TriggerPace("continuous")
    if trigger == "available_now":
        return TriggerPace("available_now")
    return TriggerPace("every", span_ms("trigger", trigger, " (or 'continuous' or 'available_now')"))


def span_ms(what: str, span: object, more: str = "") -> int:
    """Convert a timedelta, or text as '5 minutes' or '1 minute 30 seconds', into whole milliseconds, at least 1. Raises
    InvalidInput, in which `what` names the value.
    """
    text = span.strip() if isinstance(span, str) else ""
    ms = 0
    if isinstance(span, timedelta):
        ms = span // timedelta(milliseconds=1)
    elif _SPAN.fullmatch(text):
        ms = sum(
            int(count) * _unit_ms(unit.lower()) for count, unit in re.findall(_PART, text, re.IGNORECASE | re.ASCII)
        )
    if not 1 <= ms <= _MOST_MS:
        raise InvalidInput(
            f"{what} is a timedelta or text as '5 minutes' or '1 minute 30 seconds', from 1 millisecond to 36,500 days"
            f"{more}, not {repr(span)[:100]}"
        )
    return ms


def _unit_ms(unit: str) -> int:
    return 1 if unit.startswith(("ms", "milli")) else _UNITS_MS[unit[0]]


class Loop:
    """Micro-batch function of a query, which steps its job. Spark calls one at a time."""

    def __init__(
        self, runner: JobRunner, session: SparkSession, refresh: Refresh, pace: TriggerPace, poll_ms: int
    ) -> None:
        self.runner = runner
        self.tenure: Tenure = runner.tenure("query")
        self.tenure.alive = lambda: is_active(self.query)
        self.query: StreamingQuery | None = None
        self.looks = 0
        """How often there was nothing to do."""
        self._session = session
        self._refresh = refresh
        self._pace = pace
        self._poll_ms = poll_ms
        self._now = JobStep()
        self._pause = threading.Event()
        self._halted = False
        self._at_work = threading.RLock()

    @property
    def active(self) -> bool:
        """Return True if the query goes on, or is being started."""
        return not self._halted and is_active(self.query)

    def halt(self) -> None:
        """Stop stepping, and wait for the step at hand."""
        self._halted = True
        with self._at_work:
            return

    def enter(self, *, take_over: bool = False) -> bool:
        """Enter the job as its runner; return False if another runner has it, which the query then waits for."""
        try:
            self.runner.enter(self.tenure, take_over=take_over)
        except JobRunning as error:
            if self._now.state != "waiting":
                _log.info("%s. The query waits for it to end", error)
            self._now = waiting(self._now, _now_ms())
            return False
        return True

    def __call__(self, _frame: DataFrame, _batch: int) -> None:
        """Run one micro-batch."""
        rest_s, done = monotonic_s() + REST_S, False
        while self.active:
            now_ms = _now_ms()
            if now_ms < self._now.due_ms:
                if self._now.state == "idle" and (done or monotonic_s() > rest_s or self._pace.kind != "continuous"):
                    return
                self._pause.wait(min((self._now.due_ms - now_ms) / 1000, LOOK_S))
                continue
            with self._at_work:
                if not self.active:
                    break
                epoch = self._try()
            done = done or epoch is not None
            if epoch and self._pace.kind == "every":
                return
        self.runner.leave(self.tenure)

    def _try(self) -> int | None:
        """Run one step and schedule the next; return the committed epoch or None. Raises errors that another try cannot
        mend: they end the query.
        """
        waited = self._now.state == "waiting"
        self._now = self._now if waited else started(self._now)
        try:
            if not self.runner.entered(self.tenure) and not self.enter():
                return None
            epoch = step(self.runner, self._session, self._refresh, tenure=self.tenure)
        except Exception as error:  # noqa: BLE001  # a refresh raises what it likes
            self._failed(error)
            return None
        self._now = succeeded(self._now, epoch, _now_ms(), finished=False)
        if epoch is None:
            self._now = replace(self._now, due_ms=_now_ms() + self._poll_ms)
            self.looks += 1
        return epoch

    def _failed(self, error: Exception) -> None:
        if not self.active:  # stopped meanwhile, and Spark's tasks with it
            return
        tries = TRIES if self._pace.kind == "available_now" else None
        self._now = failed(self._now, error, _now_ms(), tries)
        name, failures = self.runner.name, self._now.failures
        if self._now.ended:
            self.runner.leave(self.tenure)
            raise error
        self.runner.fail(error)
        _log.warning(
            "job %r failed, and is tried again in %d ms (failures in a row: %d): %s: %s",
            name,
            backoff_ms(failures),
            failures,
            type(error).__name__,
            error,
        )


class JobQuery(StreamingQuery):
    """StreamingQuery of a job."""

    def __init__(self, query: StreamingQuery, loop: Loop) -> None:
        super().__init__(query._jsq)
        self._loop = loop

    def processAllAvailable(self) -> None:  # noqa: N802  # Spark's own name
        """Wait until the job has found nothing more to do. Raises the error that the query failed with."""
        before, pause = self._loop.looks, threading.Event()
        while self.isActive and self._loop.looks < before + 2:  # the first look may have begun before this call
            pause.wait(LOOK_S)
        error = self.exception()
        if error is not None:
            raise error

    def stop(self) -> None:
        """Stop the query after the barrier at hand; the job is free for others when it returns."""
        self._loop.halt()  # Spark would interrupt it, and the job would count as failed
        super().stop()
        self._loop.runner.leave(self._loop.tenure)


def start(
    runner: JobRunner,
    session: SparkSession,
    refresh: Refresh,
    *,
    trigger: str | timedelta = "continuous",
    poll: str | timedelta = "100 milliseconds",
    take_over: bool = False,
) -> StreamingQuery:
    """Run the job as a StreamingQuery that commits barrier after barrier.

    A failure is noted on the job and tried again, as a pipeline does; an error that another try cannot mend ends the
    query. Raises JobRunning when the job has a live query in this process; for a runner elsewhere the query waits.
    """
    check_given(runner, session, refresh)
    loop = Loop(runner, session, refresh, make_pace(trigger), span_ms("poll", poll))
    live.claim(runner, take_over=take_over)
    runner.repeat_step = lambda: step(runner, session, refresh)
    try:
        loop.enter(take_over=take_over)
        query = JobQuery(_retried(runner, session, lambda: _started(loop, session, make_pace(trigger))), loop)
    except BaseException:
        runner.leave(loop.tenure)
        live.set(runner, None)
        raise
    loop.query = query
    live.set(runner, query)
    return query


def _started(loop: Loop, session: SparkSession, pace: TriggerPace) -> StreamingQuery:
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    name = f"{loop.runner.name}@{loop.runner.handle.store_id[:8]}"
    if any(query.name == name for query in session.streams.active):  # one that was fenced, and is at work still
        name = f"{name}, incarnation {loop.tenure.incarnation}"
    return stream.writeStream.foreachBatch(loop).queryName(name).trigger(**pace.options()).start()


def _retried(runner: JobRunner, session: SparkSession, begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start the query by `begin`, in START_TRIES attempts at most; each failure is noted on the job. Raises SparkLost
    for a session that has gone, or the last failure.
    """
    pause = threading.Event()
    for failures in range(1, START_TRIES + 1):
        try:
            return begin()
        except Exception as error:
            known = lost(runner.name, session) if gone(session) else error
            runner.fail(known)
            if known is not error:
                raise known from error
            if failures == START_TRIES:
                raise
            _log.warning("the query of job %r could not be started, and is tried again: %s", runner.name, error)
            pause.wait(BACKOFF.delay_s(failures))
    raise AssertionError("not reached")


def _now_ms() -> int:
    return int(monotonic_s() * 1000)
