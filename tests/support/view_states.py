"""Views that keep a state of their aggregates, over two tables with values of many types, and random changes."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from confirmed import RawJudge
from epochlog.store.types.schema import TableSchema
from epochlog.views import step
from epochlog.views.state_changes import Disagreement
from epochlog.views.state_step import GroupRows, StateStep

ITEMS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("g", pa.int32()),
        ("e", pa.int64()),
        ("w", pa.int32()),
        ("s", pa.string()),
        ("f", pa.bool_()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("m", pa.decimal128(9, 2)),
        ("k", pa.int64()),
    ]
)
KINDS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("r", pa.string()), ("x", pa.int32()), ("b", pa.bool_())]
)
TABLES = {"items": ITEMS, "kinds": KINDS}
SCHEMAS = {name: TableSchema(name, schema, ("id",)) for name, schema in TABLES.items()}
FIRST = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


@dataclass(frozen=True)
class StateCase:
    """View that keeps a state."""

    sql: str
    key: tuple[str, ...]
    judged: str = ""
    """Text that DuckDB runs in its place, if it cannot run the view's own."""


ALL_KINDS = (
    "COUNT(DISTINCT e) AS u, MIN(e) AS low, MAX(e) AS high, SUM(e) AS total, AVG(e) AS mean, COUNT(*) AS n, "
    "COUNT(e) AS known, COUNT_IF(f) AS good, BOOL_AND(f) AS every_one, BOOL_OR(f) AS some_one"
)
CASES = {
    "all kinds": StateCase(f"SELECT g, {ALL_KINDS} FROM items WHERE g IS NOT NULL GROUP BY g", ("g",)),
    "all kinds of all rows": StateCase(f"SELECT 1 AS one, {ALL_KINDS} FROM items", ("one",)),
    "filters": StateCase(
        "SELECT COALESCE(g, -1) AS g, COUNT(*) FILTER (WHERE f) AS n, COUNT(DISTINCT e) FILTER (WHERE f) AS u, "
        "COUNT(DISTINCT e) FILTER (WHERE e > w) AS v, COUNT(DISTINCT e) AS x, SUM(e) FILTER (WHERE NOT f) AS total, "
        "MIN(s) FILTER (WHERE e > 1) AS low, AVG(w) FILTER (WHERE f) AS mean, BOOL_AND(f) FILTER (WHERE e < 2) AS t, "
        "SUM(DISTINCT w) FILTER (WHERE f) AS once FROM items GROUP BY COALESCE(g, -1)",
        ("g",),
    ),
    "HAVING": StateCase(
        "SELECT s, COUNT(DISTINCT e) AS u, MAX(w) AS high FROM items GROUP BY s "
        "HAVING s IS NOT NULL AND COUNT(DISTINCT e) > 1 AND MIN(w) < 2",
        ("s",),
    ),
    "HAVING of all rows": StateCase(
        "SELECT 1 AS one, COUNT(DISTINCT e) AS u FROM items WHERE g = 0 HAVING COUNT(DISTINCT e) > 2", ("one",)
    ),
    "groups that are NULL": StateCase(
        "SELECT COALESCE(g, -1) AS k, g, COALESCE(s, '') AS t, s, COUNT(DISTINCT e) AS u, MIN(d) AS first, "
        "MAX(ts) AS last, CAST(SUM(m) AS DECIMAL(20,2)) AS cents FROM items "
        "GROUP BY COALESCE(g, -1), g, COALESCE(s, ''), s",
        ("k", "t"),
    ),
    "keys of other types": StateCase(
        "SELECT d, f, m, ts, MIN(w) AS low, MAX(s) AS high, MIN(f) AS all_of, COUNT(DISTINCT s) AS u FROM items "
        "WHERE d IS NOT NULL AND f IS NOT NULL AND m IS NOT NULL AND ts IS NOT NULL GROUP BY d, f, m, ts",
        ("d", "f", "m", "ts"),
    ),
    "values of other types": StateCase(
        "SELECT COALESCE(w, 9) AS w, COUNT(DISTINCT s) AS a, COUNT(DISTINCT d) AS b, COUNT(DISTINCT ts) AS c, "
        "COUNT(DISTINCT m) AS e, COUNT(DISTINCT f) AS h, CAST(SUM(DISTINCT m) AS DECIMAL(20,2)) AS once, "
        "MIN(m) AS low, MAX(d) AS last, "
        "MIN(ts) AS since, MAX(f) AS any_of FROM items GROUP BY COALESCE(w, 9)",
        ("w",),
    ),
    "several arguments": StateCase(
        "SELECT COALESCE(g, -1) AS g, COUNT(DISTINCT e, s) AS pairs, COUNT(DISTINCT s, f, d) FILTER (WHERE w > 0) AS "
        "n, SUM(DISTINCT e) AS once, MIN(e + w) AS low FROM items GROUP BY COALESCE(g, -1)",
        ("g",),
        "SELECT COALESCE(g, -1) AS g, COUNT(DISTINCT CASE WHEN e IS NOT NULL AND s IS NOT NULL THEN (e, s) END) AS "
        "pairs, COUNT(DISTINCT CASE WHEN s IS NOT NULL AND f IS NOT NULL AND d IS NOT NULL THEN (s, f, d) END) FILTER "
        "(WHERE w > 0) AS n, SUM(DISTINCT e) AS once, MIN(e + w) AS low FROM items GROUP BY COALESCE(g, -1)",
    ),
    "functions of aggregates": StateCase(
        "SELECT COALESCE(g, -1) + 1 AS g, MAX(e) - MIN(e) AS spread, COALESCE(SUM(e), 0) * 2 + COUNT(DISTINCT w) AS x, "
        "CASE WHEN BOOL_OR(f) THEN MIN(s) ELSE 'none' END AS t, CAST(SUM(m) AS DECIMAL(20,2)) AS cents, MAX(m) AS most "
        "FROM items GROUP BY COALESCE(g, -1) + 1",
        ("g",),
    ),
    "a self join": StateCase(
        "SELECT a.e, COUNT(DISTINCT b.e) AS u, MIN(b.w) AS low, MAX(a.w + b.w) AS high, AVG(b.e) AS mean, "
        "COUNT(*) AS n FROM items a JOIN items b ON b.k = a.g WHERE a.e IS NOT NULL GROUP BY a.e",
        ("e",),
    ),
    "two tables": StateCase(
        "SELECT kinds.r, COUNT(DISTINCT items.e) AS u, SUM(DISTINCT items.w + kinds.x) AS once, MIN(items.s) AS low, "
        "MAX(kinds.x) AS high, AVG(items.w) AS mean, BOOL_AND(kinds.b AND items.f) AS t "
        "FROM items JOIN kinds ON kinds.id = items.k WHERE kinds.r IS NOT NULL GROUP BY kinds.r",
        ("r",),
    ),
    "two tables, all rows": StateCase(
        "SELECT 0 AS one, COUNT(DISTINCT items.e) AS u, MIN(items.w - kinds.x) AS low, MAX(kinds.r) AS high "
        "FROM items, kinds WHERE kinds.x = items.g AND (kinds.b OR items.f)",
        ("one",),
    ),
    "groups of groups": StateCase(
        "SELECT COALESCE(g, -1) AS g, COUNT(*) AS n, MIN(n) AS low, MAX(total) AS high, COUNT(DISTINCT n) AS u, "
        "AVG(n) AS mean, SUM(total) AS total, COUNT(s) AS named, MIN(s) FILTER (WHERE n > 1) AS first "
        "FROM (SELECT g, s, COUNT(*) AS n, SUM(e) AS total FROM items GROUP BY g, s) GROUP BY COALESCE(g, -1)",
        ("g",),
    ),
    "some groups of hidden groups": StateCase(
        "SELECT COALESCE(q.g, 0) + q.n AS k, COUNT(*) AS n, MIN(q.low) AS low, MAX(q.high) AS high FROM "
        "(SELECT g, MIN(w) AS low, MAX(e) AS high, COUNT(DISTINCT d) AS n FROM items WHERE e IS NOT NULL "
        "GROUP BY g, s, f HAVING COUNT(*) < 4 AND MIN(w) IS NOT NULL) q WHERE q.low < 3 "
        "GROUP BY COALESCE(q.g, 0) + q.n HAVING COUNT(*) < 5",
        ("k",),
    ),
    "rows of groups": StateCase(
        "SELECT g, low * n AS x, n FROM (SELECT g, COUNT(DISTINCT e) AS n, MIN(w) AS low FROM items "
        "WHERE g IS NOT NULL GROUP BY g) WHERE n > 1 AND low IS NOT NULL",
        ("g",),
    ),
    "distinct rows": StateCase(
        "SELECT 1 AS one, COUNT(*) AS n, MAX(e) AS high, COUNT(DISTINCT g) AS u FROM (SELECT DISTINCT g, e FROM items)",
        ("one",),
    ),
    "a group that is read twice": StateCase(
        "SELECT a, COALESCE(b, -1) AS b, MAX(t) AS high, MIN(n) AS low FROM (SELECT COALESCE(g, 9) AS a, "
        "COALESCE(g, 9) AS b, COALESCE(w, 9) AS w, SUM(e) AS t, COUNT(*) AS n FROM items "
        "GROUP BY COALESCE(g, 9), COALESCE(w, 9)) GROUP BY a, COALESCE(b, -1)",
        ("a", "b"),
    ),
    "a group with two names": StateCase(
        "SELECT a, b, MAX(t) AS high FROM (SELECT COALESCE(g, 9) AS a, COALESCE(g, 9) AS b, SUM(e) AS t FROM items "
        "GROUP BY COALESCE(g, 9), COALESCE(w, 9)) GROUP BY a, b",
        ("a", "b"),
    ),
    "an aggregate of all rows below": StateCase(
        "SELECT 1 AS one, MAX(n) AS n, COUNT(*) AS known, MIN(high) AS high FROM "
        "(SELECT COUNT(DISTINCT e) AS n, MAX(w) AS high FROM items WHERE g = 1)",
        ("one",),
    ),
    "three blocks": StateCase(
        "SELECT COALESCE(high, -1) AS high, COUNT(*) AS n, MIN(g) AS low, SUM(parts) AS parts FROM "
        "(SELECT g, MAX(n) AS high, COUNT(*) AS parts FROM (SELECT i.g, i.s, COUNT(DISTINCT i.e) AS n, MIN(k.x) AS x "
        "FROM items i JOIN kinds k ON k.id = i.k GROUP BY i.g, i.s) WHERE x < 3 GROUP BY g) "
        "GROUP BY COALESCE(high, -1)",
        ("high",),
    ),
    "the largest groups": StateCase(
        "SELECT g, s, COUNT(*) AS n, SUM(e) AS total, MAX(ts) AS last FROM items WHERE g IS NOT NULL AND s IS NOT NULL "
        "GROUP BY g, s HAVING COUNT(*) > 0 ORDER BY n DESC, COUNT(DISTINCT w), g, s LIMIT 3",
        ("g", "s"),
    ),
    "places of groups": StateCase(
        "SELECT r, ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC, r) AS place, n * 2 AS twice, SUM(n) OVER () AS of_all, "
        "RANK() OVER (ORDER BY n) AS by_n, n FROM (SELECT kinds.r, COUNT(items.e) AS n, MIN(items.w) AS low "
        "FROM items JOIN kinds ON kinds.id = items.k WHERE kinds.r IS NOT NULL GROUP BY kinds.r) GROUP BY r, n",
        ("r",),
    ),
    "shares of all groups": StateCase(
        "SELECT COALESCE(g, -1) AS g, COUNT(*) * 100 - SUM(COUNT(*)) OVER () AS share, MAX(SUM(w)) OVER () AS most, "
        "LAG(COUNT(*)) OVER (ORDER BY COALESCE(g, -1)) AS before, SUM(COUNT(*) FILTER (WHERE f)) OVER (ORDER BY "
        "COALESCE(g, -1)) AS so_far FROM items GROUP BY COALESCE(g, -1)",
        ("g",),
    ),
    "first rows of places of groups": StateCase(
        "SELECT g, s, n FROM (SELECT g, s, n, ROW_NUMBER() OVER (ORDER BY n DESC, s, g) AS place FROM "
        "(SELECT g, s, COUNT(*) AS n FROM items WHERE g IS NOT NULL AND s IS NOT NULL AND e IS NOT NULL "
        "GROUP BY g, s)) WHERE place <= 4",
        ("g", "s"),
    ),
    "an aggregate of all rows, limited": StateCase(
        "SELECT 1 AS one, COUNT(*) AS n, MIN(s) AS low, CAST(SUM(m) AS DECIMAL(20,2)) AS total FROM items "
        "ORDER BY n LIMIT 1",
        ("one",),
    ),
    "rows of a join": StateCase(
        "WITH r AS (SELECT i.g AS k, i.e + COALESCE(o.x, 0) AS v, o.r FROM items i JOIN kinds o ON o.id = i.k "
        "WHERE i.f OR o.b), s AS (SELECT k, v - 1 AS v, r FROM r WHERE v > 0) "
        "SELECT k, COUNT(DISTINCT v) AS u, MIN(r) AS low, MAX(v) AS high FROM s WHERE k IS NOT NULL GROUP BY k",
        ("k",),
    ),
}


def random_row(chance: random.Random, table: str, number: int) -> dict[str, Any]:
    """Return a row of a table; a quarter of its values are NULL."""
    small = [chance.randrange(4) for _ in range(9)]
    if table == "kinds":
        values: tuple[Any, ...] = ("abcd"[small[0]], small[1], small[2] < 2)
    else:
        days = [dt.timedelta(days=small[5] % 2), dt.timedelta(days=small[6] % 2)]
        texts = "s" + str(small[3])
        at = (FIRST + days[0]).date(), FIRST + days[1]
        values = (*small[:3], texts, small[4] < 2, *at, Decimal(small[7] - 1) / 4, small[8])
    kept = [None if chance.random() < 0.25 else value for value in values]
    return dict(zip(TABLES[table].names, (number, *kept), strict=True))


@cache
def _judge() -> RawJudge:
    return RawJudge()


@dataclass
class StateWorld:
    """Store with both tables and a view that keeps a state. `steps` has the kinds of its steps."""

    root: Path
    case: StateCase
    chance: random.Random
    steps: Counter[str] = field(default_factory=Counter[str])
    ids: Mapping[str, int] = field(default_factory=lambda: {"items": 14, "kinds": 5})
    """Number of keys of each table."""

    is_new: bool = True
    """False for a store that has the tables and the view."""

    def __post_init__(self) -> None:
        self.store = el.open(self.root, durability="os", checkpoint_interval_ms=10)
        if not self.is_new:
            self.view = self.store.view("v")
            return
        for name, schema in TABLES.items():
            self.store.create_table(name, schema, ["id"])
        self.view = self.store.create_view("v", self.case.sql, list(self.case.key))

    @classmethod
    def reopened(cls, root: Path, case: StateCase, chance: random.Random) -> StateWorld:
        """Open the store of a world again."""
        return cls(root, case, chance, is_new=False)

    def change(self) -> None:
        """Commit random changes of one table or both."""
        tables = self.chance.choice([["items"], ["items"], ["kinds"], ["items", "kinds"]])
        with self.store.transaction() as tx:
            for name in tables:
                some = self.chance.sample(range(self.ids[name]), self.chance.choice([1, 1, 2, 4]))
                gone = [number for number in some if self.chance.random() < 0.4]
                rows = [random_row(self.chance, name, number) for number in some if number not in gone]
                if rows:
                    tx.upsert(name, pa.Table.from_pylist(rows, schema=TABLES[name]))
                if gone:
                    tx.delete(name, pa.table({"id": gone}))

    def put(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Upsert rows; columns that are left out are NULL."""
        self.store.table(table).upsert(pa.Table.from_pylist([dict(row) for row in rows], schema=TABLES[table]))

    def step(self) -> None:
        """Step the view to the newest commit, and compare it with the answer of DuckDB to its text."""
        self.store.checkpoint()
        while self.view.step() is not None:
            self.check_rows()

    def check_rows(self) -> None:
        text, upstreams = self.case.judged or self.case.sql, self.view.info.upstreams
        text = text.replace("COUNT_IF(f)", "COUNT(*) FILTER (WHERE f)")  # that of DuckDB is NULL where all f are
        report = self.view.job.check(lambda ctx: _judge().rows(text, {name: ctx.table(name) for name in upstreams}))
        assert report.ok, report

    def check_state(self) -> None:
        report = self.view.check(state=True)
        assert len(report.outputs) > 1, "the view keeps no state"
        assert report.ok, report

    def play(self, rounds: int) -> None:
        """Change the tables and step the view many times. Fails for rows, or a state, that are not the query's."""
        for number in range(rounds):
            for _ in range(self.chance.choice([1, 1, 3])):
                self.change()
            self.step()
            if number % 10 == 9:
                self.check_state()
        self.check_state()

    @property
    def share(self) -> float:
        """Return the share of the steps with changes that the state has given."""
        return self.steps["Changes"] / max(1, self.steps.total())


def play_case(root: Path, case: StateCase, seed: int, rounds: int) -> StateWorld:
    """Play a case, and return its closed world."""
    print("seed", seed)
    with pytest.MonkeyPatch.context() as patch:
        world = StateWorld(root, case, random.Random(seed))
        count_steps(patch, world.steps)
        try:
            world.play(rounds)
        finally:
            world.store.close()
    return world


def count_steps(patch: pytest.MonkeyPatch, steps: Counter[str]) -> None:
    """Count the kinds of steps with changes."""
    decide = step._Driver.decide

    def decided(driver: Any, changed: Any) -> step.Step:
        result = decide(driver, changed)
        if changed:
            steps[type(result).__name__] += 1
        return result

    patch.setattr(step._Driver, "decide", decided)


def fail_on_disagreements(patch: pytest.MonkeyPatch) -> None:
    """Let a step fail whose changes do not fit the state: the repair would hide an error."""
    by_changes: Callable[..., GroupRows | None] = StateStep.by_changes

    def required(state: StateStep, changed: Any) -> GroupRows | None:
        try:
            return by_changes(state, changed)
        except Disagreement as error:
            raise AssertionError(f"the changes do not fit the state: {error}") from error

    patch.setattr(StateStep, "by_changes", required)
