"""Command of the demo: options, set-up, run and report."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from epochlog.api import open as open_store
from epochlog.errors import EpochlogError
from epochlog.page.port import PagePort
from epochlog.store.types.epoch import to_unix_ms

from . import data
from .acts import Victim
from .compare import TABLES, ComparedMoment, keys_unlike_feed
from .feed import DayFeed
from .page import draw_page
from .picture import Figures, Trace, draw, save
from .session import session
from .show import Screen, comparison
from .stage import KILLED, DemoPlan, Stage
from .tables import create

FULL = DemoPlan(days=365, moments=10, files_per_batch=4, interval_ms=3000, slow_extra_s=5.0)
QUICK = DemoPlan(days=40, moments=4, files_per_batch=2, interval_ms=1000, slow_extra_s=1.5)
LOG_WIDTH = 120
WORK, PICTURE, PAGE_PICTURE = "epochlog-demo-work", "committed-epochs.png", "page.png"


def parser() -> argparse.ArgumentParser:
    """Build the parser of the demo's options."""
    result = argparse.ArgumentParser(prog="epochlog demo", description="A year of flights, four views, ten snapshots.")
    result.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture and the store")
    result.add_argument("--days", type=int, help="how many days of 2013 to feed (default: all 365)")
    result.add_argument("--quick", action="store_true", help=f"{QUICK.days} days and {QUICK.moments} snapshots only")
    result.add_argument(
        "--json", action="store_true", help="a summary as JSON on standard output, all else on standard error"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if each view was equal to its SQL in all snapshots under `aligned` and no key was lost,
    else 1.
    """
    options = parser().parse_args(argv)
    plan = QUICK if options.quick else FULL
    if options.days is not None:
        if not 14 <= options.days <= FULL.days:
            parser().error(f"--days must be from 14 to {FULL.days}, not {options.days}")
        plan = replace(plan, days=options.days)
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    began = time.monotonic()

    def now_s() -> float:
        return time.monotonic() - began

    try:
        summary = perform(plan, options.output, console, now_s)
    except EpochlogError as error:
        Console(stderr=True).print(f"epochlog demo: {error}", highlight=False, soft_wrap=True)
        return 1
    if options.json:
        print(json.dumps(summary, indent=2))
    return 0 if summary["equal"] else 1


def perform(plan: DemoPlan, output: Path, console: Console, now_s: Callable[[], float]) -> dict[str, Any]:
    """Run the demo and return its summary. The output folder gets the picture, its data, the store and a log."""
    work = output / WORK
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    root = str(work / "store")
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(console))
        store = stack.enter_context(open_store(root, checkpoint_interval_ms=plan.interval_ms))
        tables = {name: data.read(name) for name in data.KEYS}
        spark = session("epochlog demo", output / "spark.log")
        stack.callback(spark.stop)
        epoch = create(store, spark, tables)
        page = stack.enter_context(closing(PagePort(store._handle, "127.0.0.1:0")))
        screen.say(now_s(), f"see the store while it runs: {page.location}")
        origin_ms = to_unix_ms(epoch) - int(now_s() * 1000)
        victim = Victim(root, KILLED, output / "killed-view.log", lambda text: screen.say(now_s(), text))
        stack.callback(victim.close)
        days = data.arrivals(
            tables["flights"], tables["weather"], plan.days, max(plan.files_per_batch, min(7, plan.days // 8))
        )
        feed = DayFeed(work / "feed", days)
        stage = Stage(store, spark, feed, plan, victim, screen, now_s)
        stack.callback(stage.close)
        screen.say(
            now_s(),
            f"{len(days)} days, {feed.rows['flights'][-1]:,} rows of flights; two Spark drivers are starting",
        )
        stage.start(root, work / "checkpoints", origin_ms)
        stage.run()
        screen.say(now_s(), "all days are in and every view has caught up")
        outcome = outcome_of(stage, days)
        page_trouble = draw_page(page.location, output / PAGE_PICTURE)
    picture = output / PICTURE
    snapshots = [(moment.at_s, moment.epoch_s) for moment in outcome.moments]
    figures = Figures(outcome.traces, list(stage.phases.values()), snapshots)
    draw(picture, figures)
    save(picture.with_suffix(".json"), figures)
    page_line = f"page: {output / PAGE_PICTURE}" if page_trouble is None else f"no picture of the page: {page_trouble}"
    return report(console, outcome, picture, page_line, now_s())


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Outcome of a finished run. The last moment is after the end of the data."""

    stage: Stage
    days: Sequence[data.Day]
    moments: Sequence[ComparedMoment]
    differing_from_feed: dict[str, int]
    traces: dict[str, Trace]

    @property
    def equal(self) -> bool:
        return all(moment.equal for moment in self.moments) and not any(self.differing_from_feed.values())


def outcome_of(stage: Stage, days: Sequence[data.Day]) -> DemoOutcome:
    """Take the last snapshots after the end of the data, and return the outcome."""
    stage.show_final_state()
    end = stage.take_moment(fresh_only=False)
    assert end is not None
    lost = keys_unlike_feed(stage.store, stage.feed.inboxes)
    return DemoOutcome(stage, days, [*stage.moments, end], lost, {name: stage.trace(name) for name in TABLES})


def report(console: Console, outcome: DemoOutcome, picture: Path, page: str, took_s: float) -> dict[str, Any]:
    """Print the comparison and the summary; return the summary. page: the line about the picture of the page."""
    stage, days = outcome.stage, outcome.days
    console.print(comparison(outcome.moments))
    summary = {
        "equal": outcome.equal,
        "seconds": round(took_s, 1),
        "days": len(days),
        "flights": sum(day.flights.num_rows - day.corrected - day.deleted for day in days),
        "corrected": sum(day.corrected for day in days),
        "deleted": sum(day.deleted for day in days),
        "weather": sum(day.weather.num_rows for day in days),
        "commits": {name: len(trace) for name, trace in outcome.traces.items()},
        "commits_while_dead": stage.victim.commits_while_dead,
        "differing_from_feed": outcome.differing_from_feed,
        "picture": str(picture),
        "page": page,
        "moments": [as_json(moment) for moment in outcome.moments],
    }
    for line in sentences(summary, outcome.moments):
        console.print(line, highlight=False, soft_wrap=True)
    return summary


def sentences(summary: dict[str, Any], moments: Sequence[ComparedMoment]) -> list[str]:
    """Return the lines of the summary for people."""
    snapshots = moments[:-1]
    unequal = sum(not moment.equal for moment in moments)
    torn = sum(any(finding.differing for finding in moment.latest.values()) for moment in snapshots)
    rows = sum(finding.differing for moment in snapshots for finding in moment.latest.values())
    changes = f"{summary['corrected']:,} of them corrected later, {summary['deleted']:,} deleted"
    dead = ", ".join(f"{name} {count}" for name, count in summary["commits_while_dead"].items())
    return [
        f"aligned: every view equal to its SQL in {len(moments) - unequal} of {len(moments)} snapshots",
        f"latest: {torn} of the {len(snapshots)} snapshots during the run were torn, {rows:,} rows differed in all",
        f"fed: {summary['flights']:,} flights ({changes}) and {summary['weather']:,} rows of weather",
        f"keys lost, doubled or wrong in the root tables at the end: {sum(summary['differing_from_feed'].values())}",
        f"commits of the other views while {KILLED} was dead: {dead}",
        f"picture: {summary['picture']}",
        summary["page"],
        f"{'OK' if summary['equal'] else 'FAILED'} in {summary['seconds']:.1f} s",
    ]


def as_json(moment: ComparedMoment) -> dict[str, Any]:
    """Return a moment as JSON-able values."""
    views = {
        name: {
            "rows": finding.rows,
            "differ_aligned": finding.differing,
            "differ_latest": moment.latest[name].differing,
        }
        for name, finding in moment.aligned.items()
    }
    keys = ("number", "at_s", "day", "during", "epoch_s", "lag_ms")
    return {key: getattr(moment, key) for key in keys} | {"views": views}
