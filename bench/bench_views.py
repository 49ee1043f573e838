"""P19 and P20: views in SQL on DuckDB: a refresh after few changes, and the bank's totals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bank
import numpy as np
import pyarrow as pa
import pytest
from pairs import ReplayClock, Samples, ratio, timed, turned
from plots import Panel, Plot, Point, at
from report import Book, Figure, Target, quartiles

import epochlog as el

LINES, LINES_OF_ORDER, CHANGED, TRANSFERS = 2_000_000, 4, 100, 1_000_000
OURS, LARGE, ANEW = "epochlog", "ten times the rows", "all rows anew"
SIZES = {OURS: 1.0, LARGE: 10.0}
WITHIN_MS, FLAT = 150, 1.3
VIEWS = {
    "group by": (
        "SELECT order_id, SUM(cents) AS cents, COUNT(*) AS n FROM line GROUP BY order_id",
        ["order_id"],
    ),
    "join on key": (
        """SELECT l.order_id, l.number, o.customer, l.cents
           FROM line l JOIN orders o ON l.order_id = o.order_id""",
        ["order_id", "number"],
    ),
}
LINE = pa.schema([("order_id", pa.int64()), ("number", pa.int64()), ("cents", pa.int64())])
ORDERS = pa.schema([("order_id", pa.int64()), ("customer", pa.int64())])
BANK, BEHIND = "reads with a wrong total", "behind the transfers"
LEGS = [
    *(("P19", f"{view}", who) for view in VIEWS for who in (OURS, LARGE, ANEW)),
    *(("P20", what, who) for what in (BANK, BEHIND) for who in (*bank.POLICIES, bank.SPARK)),
]


class Shop:
    """Store with orders and their lines, and the views over them, kept by their changes or made anew."""

    def __init__(self, root: Path, lines: int, refresh: str = "auto") -> None:
        self._chance, self._orders = np.random.default_rng(lines), max(lines // LINES_OF_ORDER, 2)
        self.store = el.open(root, checkpoint_interval_ms=10)
        self._lines = self.store.create_table("line", LINE, ["order_id", "number"])
        orders = self.store.create_table("orders", ORDERS, ["order_id"])
        ids = np.arange(self._orders)
        orders.upsert(pa.table([ids, self._chance.integers(0, 10_000, len(ids))], schema=ORDERS))
        numbers = np.tile(np.arange(LINES_OF_ORDER), len(ids))
        self._upsert(np.repeat(ids, LINES_OF_ORDER), numbers)
        self._views = {
            view: self.store.create_view(f"v{number}", *query, refresh=refresh)
            for number, (view, query) in enumerate(VIEWS.items())
        }
        self.store.checkpoint()
        for view in VIEWS:
            self._step(view)
        self.store.compact()

    def _upsert(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        cents = self._chance.integers(1, 10_000, len(ids))
        self._lines.upsert(pa.table([ids, numbers, cents], schema=LINE))

    def _step(self, view: str) -> None:
        while self._views[view].step() is not None:
            pass

    def refresh(self, place: int) -> dict[str, float]:
        """Change a hundred lines; return for each view the ms of its steps up to its commit. `place` says whose turn it
        is to begin.
        """
        ids = self._chance.choice(self._orders, min(CHANGED, self._orders), replace=False)
        self._upsert(np.sort(ids), self._chance.integers(0, LINES_OF_ORDER, len(ids)))
        self.store.checkpoint()
        return {view: timed(partial(self._step, view)) for view in turned(list(VIEWS), place)}

    def check(self) -> None:
        for view in self._views.values():
            report = view.check()
            assert report.ok, report


def refreshed(folder: Path, scale: float) -> dict[str, Samples]:
    """Return for each view the times of refreshes over tables of both sizes, and of all rows anew over the smaller."""
    shops = {name: Shop(folder / name, round(LINES * scale * size)) for name, size in SIZES.items()}
    shops[ANEW] = Shop(folder / "anew", round(LINES * scale), refresh="full")
    taken: dict[str, Samples] = {view: {name: [] for name in shops} for view in VIEWS}
    rounds, of_anew = (20, 2) if scale >= 1 else (4, 1)
    for place in range(-2, rounds):  # two rounds warm up
        for name in turned(list(SIZES), place):
            # the order of the views changes at every second round, so that each follows both sizes as often
            for view, took in shops[name].refresh(place // 2).items():
                taken[view][name] += [took] if place >= 0 else []
    for place in range(of_anew):
        for view, took in shops[ANEW].refresh(place).items():
            taken[view][ANEW].append(took)
    for name, shop in shops.items():
        if name != LARGE:  # it has the same views, and all their rows at this size take a minute
            shop.check()
        shop.store.close()
    return taken


def refresh_plot(samples: dict[str, Samples], lines: int) -> Plot:
    """Draw the time of a refresh over the number of rows."""
    panels = []
    for view, took in samples.items():
        points: list[Point] = [(lines * size, *quartiles(took[name])) for name, size in SIZES.items()]
        panels.append(Panel(f"{view}: ms from the change to the commit", points, WITHIN_MS, f"at most {WITHIN_MS} ms"))
    worst = max(ratio(took, LARGE, OURS) for took in samples.values())
    title = f"A refresh after {CHANGED} changed rows: {worst:.2f} × the time at ten times the rows"
    return Plot("refresh", title, "rows of the table", panels, log_x=True)


def bank_run(folder: Path, scale: float) -> dict[str, dict[str, Any]]:
    """Run the bank beside Spark's queries; return what each kind of read saw."""
    count, seconds = max(20_000, round(TRANSFERS * scale)), max(6.0, 30 * scale)
    command = [sys.executable, bank.__file__, "--transfers", f"{count}", "--seconds", f"{seconds:g}", "--spark"]
    done = subprocess.run([*command, "--json", "seen.json"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, dict[str, Any]] = json.loads((folder / "seen.json").read_text())
    return seen


def bank_figures(seen: dict[str, dict[str, Any]], count: int) -> list[Figure]:
    never = tuple(Target(policy, None, 0, "0 %") for policy in ("aligned", "global"))
    shares = {name: [100 * tally["wrong"] / max(tally["reads"], 1)] for name, tally in seen.items()}
    behind = {name: tally["behind_s"] or [0.0] for name, tally in seen.items()}
    what = f"bank of {count:,} transfers"
    return [
        Figure("P20", f"{what}: {BANK}", shares, never, unit="%"),
        Figure("P20", f"{what}: {BEHIND}", behind, (), unit="s"),
    ]


def bank_plot(seen: dict[str, dict[str, Any]]) -> Plot:
    """Draw the dollars by which what was credited and what was debited differ in each read."""
    panels = []
    for name in ("aligned", "latest", bank.SPARK):
        points = [at(second, dollars) for second, dollars in seen[name]["off"]] or [at(0, 0)]
        share = seen[name]["wrong"] / max(seen[name]["reads"], 1)
        panels.append(Panel(f"{name}: {share:.0%} of reads wrong", points, 0, ""))
    title = "A bank's money in views that commit alone: $ credited and not debited, by read"
    return Plot("bank", title, "seconds", panels)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[tuple[str, str], Samples]:
    folder = tmp_path_factory.mktemp("views")
    lines = round(LINES * scale)
    taken = refreshed(folder / "shops", scale)
    for view in VIEWS:
        targets = (Target(OURS, None, WITHIN_MS, f"≤ {WITHIN_MS} ms"), Target(LARGE, OURS, FLAT, f"≤ {FLAT}"))
        book.add(Figure("P19", f"refresh of a view, {CHANGED} of {lines:,} rows changed: {view}", taken[view], targets))
    book.plot(refresh_plot(taken, lines))
    seen = bank_run(folder, scale)
    shares, behind = bank_figures(seen, max(20_000, round(TRANSFERS * scale)))
    for figure in (shares, behind):
        book.add(figure)
    book.plot(bank_plot(seen))
    parts: Sequence[tuple[str, str, Samples]] = [
        *(("P19", view, samples) for view, samples in taken.items()),
        ("P20", BANK, shares.samples), ("P20", BEHIND, behind.samples),
    ]  # fmt: skip
    return {(each, what): samples for each, what, samples in parts}


@pytest.mark.parametrize(("each", "what", "who"), LEGS)
def test_views(
    each: str, what: str, who: str, clock: ReplayClock, benchmark, measured: dict[tuple[str, str], Samples]
) -> None:
    clock.play(benchmark, measured[each, what][who])
