"""Diagnosis of a store's clocks: symptoms, each with what to do.

Rules: docs/SEMANTICS.md, 1.60 to 1.67.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import lease_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.known_clocks import (
    MAX_JUMP_MS,
    ClockReading,
    KnownClock,
    KnownClocks,
    read_clocks,
)
from epochlog.store.metadata.lookups import all_jobs, all_tables
from epochlog.store.session.job_runners import describe_runner, live_runner
from epochlog.store.session.leases import RUNNER_MS
from epochlog.store.types.epoch import show_span, show_time, to_unix_ms

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

LEAST_LEAD_MS = 10_000
"""Shortest lead that is a symptom: clocks within it are taken as equal."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """Trouble with a clock, and what to do about it."""

    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """State of a store's clocks at one moment."""

    at_ms: int
    last_epoch: int
    lead_ms: int
    """Time by which its newest epoch leads the clock."""
    clocks: tuple[KnownClock, ...]
    symptoms: tuple[Symptom, ...]


def lead_ms(last_epoch: int, now_ms: int) -> int:
    """Return the time by which the newest epoch leads a clock, if that is longer than clocks differ; else 0."""
    lead = to_unix_ms(last_epoch) - now_ms if last_epoch else 0
    return lead if lead > LEAST_LEAD_MS else 0


def diagnose(handle: Handle) -> Diagnosis:
    """Compare the clock with the newest epoch, with the boot clock and with the clocks that the catalog knows."""

    def body(view: ReadTxn) -> Diagnosis:
        now_ms, last_epoch = handle.catalog.now_ms(), Counters.read(view).last_epoch
        known, now = read_clocks(view), handle.clock_guard.reading()
        symptoms = [] if now is None else [*_of_clock(handle, known, now, last_epoch)]
        symptoms += _of_lead(view, lead_ms(last_epoch, now_ms), last_epoch)
        symptoms += _of_runners(handle, view, now_ms)
        return Diagnosis(now_ms, last_epoch, lead_ms(last_epoch, now_ms), known.clocks, tuple(symptoms))

    return handle.catalog.read(body)


def _of_clock(handle: Handle, known: KnownClocks, now: ClockReading, last_epoch: int) -> Iterator[Symptom]:
    """Yield the symptoms of this machine's clock."""
    before, name = known.of(now.boot), handle.clock_guard.name
    trust = handle.clock_guard.trust_command
    if before is not None and (jump_ms := before.jumped_ms(now, last_epoch)):
        yield Symptom(
            f"{name} has jumped {show_span(jump_ms)} ahead since the last commit of {now.host}, which may not commit",
            f"set the clock right; if it is right now, run `{trust}` on {now.host}",
        )
    own_lead_ms = handle.clock_guard.lead_ms(now.wall_ms)
    if own_lead_ms > LEAST_LEAD_MS:
        yield Symptom(
            f"{name} leads the clock of {now.host} by {show_span(own_lead_ms)}: retention, vacuum and ttl of "
            f"{now.host} wait for its own clock",
            "set the wrong one of both clocks right",
        )
    noted = known.noted(now).clocks[-1]
    for other in known.clocks:
        ahead_ms = noted.ahead_ms.get(other.boot, 0)
        if ahead_ms > LEAST_LEAD_MS:
            yield Symptom(
                f"{name} leads that of {other.host} by {show_span(ahead_ms)}: retention, vacuum and ttl of {now.host} "
                "wait for the slower clock",
                f"set the wrong one of both clocks right; if {other.host} is gone, run `{trust}` on {now.host}",
            )


def _of_runners(handle: Handle, view: ReadTxn, now_ms: int) -> Iterator[Symptom]:
    """Yield a symptom of each runner whose lease ends later than a lease that was renewed by the present clock."""
    for job in all_jobs(view):
        runner = live_runner(view, handle, job)
        lease = None if runner is None else view.get(lease_key(runner.lease))
        if runner is None or lease is None or lease["expires_ms"] <= now_ms + RUNNER_MS + LEAST_LEAD_MS:
            continue
        yield Symptom(
            f"job {job.name!r} is run by {describe_runner(runner, now_ms)}, which was alive before the clock was set "
            f"back: if it has died since, its lease lasts until {show_time(lease['expires_ms'])}",
            "nothing, if it runs: it renews its lease within seconds. If it has died, `start` and Pipeline take the "
            "job over after ten seconds; `step` does so at once with take_over=True",
        )


def _of_lead(view: ReadTxn, lead: int, last_epoch: int) -> Iterator[Symptom]:
    """Yield the symptom of a store that leads the clock."""
    if not lead:
        return
    waiting = [table.name for table in all_tables(view) if table.options.ttl is not None and lead > MAX_JUMP_MS]
    ttl = f" Rows of {', '.join(waiting)} do not expire before that: delete them by a condition." if waiting else ""
    yield Symptom(
        f"the store leads the clock by {show_span(lead)}: a clock was ahead, or this one is behind",
        "set the clock of every machine right. Nothing else is needed: all writers go on, and times of epochs are "
        f"right again from {show_time(to_unix_ms(last_epoch))} on.{ttl}",
    )
