"""Orders of views that leave ties: one answer, whatever the order of the rows, and one that the query could give."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pytest
from sqlglot import exp

from epochlog.views import tie_breaks
from epochlog.views.derivation import ViewPlan, derive
from view_ties import TIES, certain_part
from view_world import SCHEMAS, Answers, Differs, DuckDBEngine, Outcome, Row, ViewWorld, check_step


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


def answer(tables: ViewWorld, plan: ViewPlan, engine: DuckDBEngine) -> list[Row]:
    """Return the rows of the plan's query. Raises Differs if they depend on the order of the tables' rows."""
    answers: list[list[Row]] = []
    for _ in range(2):
        contents = tables.contents()
        for rows in contents.values():
            tables.chance.shuffle(rows)
        engine.load(contents)
        answers.append(engine.rows(plan.query()))
    if Counter(answers[0]) != Counter(answers[1]):
        raise Differs(f"two orders of the rows, two answers: {answers}")
    return answers[0]


def play_with_ties(name: str, seed: object, steps: int, engine: DuckDBEngine) -> None:
    sql, certain = TIES[name]
    plan = derive(sql, SCHEMAS, ["a" if "a" in certain else certain[-1] if certain else "k"])
    tables, outcome = ViewWorld(random.Random(f"ties {seed}"), plan.tables), Outcome()
    tables.before = tables.now
    places = [plan.form.outputs.index(column) for column in certain]
    was = answer(tables, plan, engine)
    for _ in range(steps):
        changed = tables.change()
        wanted = answer(tables, plan, engine)
        try:
            check_step(tables, plan, engine, Answers(was, wanted), changed, outcome)
        except Differs as error:
            raise Differs(f"{name}, seed {seed}: {error}") from error
        if certain:
            ours = Counter(tuple(row[place] for place in places) for row in wanted)
            judged = Counter(engine.judge(certain_part(sql, certain), tables.now))
            if ours != judged:
                raise Differs(f"{name}, seed {seed}: {ours - judged} {judged - ours}")
        was = wanted


@pytest.mark.parametrize("name", TIES)
@pytest.mark.medium
def test_ties_have_one_answer(name: str, engine: DuckDBEngine) -> None:
    for seed in range(4):
        play_with_ties(name, seed, 4, engine)


def test_a_group_of_null_and_a_total_are_told_apart() -> None:
    """DuckDB happens to give them in one order; the plan does not rely on it."""
    number = "ROW_NUMBER() OVER (PARTITION BY a ORDER BY MAX(v)) AS n"
    plan = derive(f"SELECT a, b, {number} FROM t GROUP BY GROUPING SETS ((a, b), (a))", SCHEMAS, ["a"])
    (order,) = plan.query().find_all(exp.Order)
    assert [key.expressions[0].name for key in order.find_all(exp.Grouping)] == ["a", "b"]


# planted errors

Plant = Callable[[pytest.MonkeyPatch], None]


def _ties_are_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.views.normal_form.break_ties", lambda query, sources: None)


def _limits_have_ties(patch: pytest.MonkeyPatch) -> None:
    original = tie_breaks.break_ties

    def break_ties(query: exp.Select, sources: Any) -> None:
        order = query.args.pop("order", None)
        original(query, sources)
        query.set("order", order)

    patch.setattr("epochlog.views.normal_form.break_ties", break_ties)


def _windows_have_ties(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tie_breaks, "_break_ties_of_window", lambda window, keys: None)


def _the_first_source_decides(patch: pytest.MonkeyPatch) -> None:
    original = tie_breaks.break_ties
    patch.setattr("epochlog.views.normal_form.break_ties", lambda query, sources: original(query, sources[:1]))


def _the_first_key_decides(patch: pytest.MonkeyPatch) -> None:
    original = tie_breaks._break_ties_of_window
    patch.setattr(tie_breaks, "_break_ties_of_window", lambda window, keys: original(window, keys[:1]))


def _keys_in_grouping_sets_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tie_breaks, "_keys_of_groups", lambda group: [])


def _frames_of_rows_have_ties(patch: pytest.MonkeyPatch) -> None:
    original = tie_breaks._break_ties_of_window

    def of_window(window: exp.Window, keys: Sequence[exp.Expr]) -> None:
        if isinstance(window.this, tie_breaks.ORDERED):
            original(window, keys)

    patch.setattr(tie_breaks, "_break_ties_of_window", of_window)


def _the_keys_come_first(patch: pytest.MonkeyPatch) -> None:
    def of_window(window: exp.Window, keys: Sequence[exp.Expr]) -> None:
        order = window.args.get("order")
        if order is not None:
            order.set("expressions", [*(tie_breaks._ordered(key) for key in keys), *order.expressions])

    patch.setattr(tie_breaks, "_break_ties_of_window", of_window)


def _functions_of_neighbours_have_ties(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tie_breaks, "ORDERED", (exp.RowNumber,))


PLANTED: Mapping[str, tuple[Plant, Sequence[str]]] = {
    "ties are left": (_ties_are_left, ["a limit", "a window"]),
    "limits have ties": (_limits_have_ties, ["a limit", "a limit of a union", "a limit below IN"]),
    "windows have ties": (_windows_have_ties, ["the first of each group"]),
    "the key of the first source decides": (_the_first_source_decides, ["a window over a join"]),
    "the first column of a key decides": (_the_first_key_decides, ["a window over groups"]),
    "keys in grouping sets are ignored": (_keys_in_grouping_sets_are_ignored, ["a window over grouping sets"]),
    "frames of rows have ties": (_frames_of_rows_have_ties, ["a frame of rows"]),
    "the key comes before the order": (_the_keys_come_first, ["a window"]),
    "functions of neighbours have ties": (_functions_of_neighbours_have_ties, ["the row before"]),
}


@pytest.mark.planted
@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found(error: str, monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine) -> None:
    plant, cases = PLANTED[error]
    plant(monkeypatch)
    for name in cases:
        assert any(differs(name, seed, engine) for seed in range(60)), name


def differs(name: str, seed: int, engine: DuckDBEngine) -> bool:
    try:
        play_with_ties(name, seed, 4, engine)
    except Differs:
        return True
    return False
