"""Plans of views held against their queries: named cases, random queries, and errors planted in each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from sqlglot import exp

from confirmed import confirmed
from epochlog.views import derivation, opening, restriction, stability, syntax, touched
from epochlog.views.derivation import ViewPlan
from judged_texts import QUERIES
from seeds import seeds
from view_cases import CASES
from view_world import Differs, DuckDBEngine, Outcome, ViewWorld, plan_of_case, play, random_plan


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.medium
def test_a_named_case_refreshes_to_its_query(name: str, engine: DuckDBEngine) -> None:
    _, scope, full = CASES[name]
    plan = plan_of_case(name)
    assert plan.scope_of({"t"} & set(plan.tables)) == scope or "t" not in plan.tables, plan.explain()
    assert tuple(table for table in plan.tables if not plan.scope_of({table})) == full, plan.explain()
    play(plan, name, 6, engine, engine.judge)


def play_random_queries(seeds: Sequence[int], steps: int, engine: DuckDBEngine) -> Outcome:
    """Play the random queries that DuckDB answers as Spark does; the engines give few others different answers."""
    plans = [random_plan(seed) for seed in seeds]
    judged = confirmed(plan.sql for plan in plans)
    assert len(judged) > 0.8 * len(plans)
    total = Outcome()
    for seed, plan in zip(seeds, plans, strict=True):
        if plan.sql in judged:
            total = total.plus(play(plan, seed, steps, engine, engine.judge))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("first", seeds(range(0, QUERIES, 50)))
def test_random_queries_refresh_to_their_rows(first: int, engine: DuckDBEngine) -> None:
    """Queries whose texts Spark has answered; `tests/spark/test_view_queries.py` has fresh ones."""
    outcome = play_random_queries(range(first, first + 50), 2, engine)
    assert outcome.incremental > 0.15 * outcome.full, outcome


# planted errors

Plant = Callable[[pytest.MonkeyPatch], None]


def _outer_joins_are_inner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.views.null_rejection.narrowed", lambda side, before, right, conditions: "")


def _windows_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stability, "windows_of", lambda block: [])


def _grouping_sets_are_one(patch: pytest.MonkeyPatch) -> None:
    def all_keys(block: exp.Select) -> list[exp.Expr]:
        group = block.args.get("group")
        return [] if group is None else list(group.find_all(exp.Column))

    patch.setattr(stability, "grouped_by", all_keys)


def _limits_are_ignored(patch: pytest.MonkeyPatch) -> None:
    original = stability.stable_outputs

    def stable_outputs(block: exp.Select, *args: Any, **options: Any) -> Callable[[exp.Expr], bool]:
        block = block.copy()
        for clause in ("limit", "offset"):
            block.set(clause, None)
        return original(block, *args, **options)

    patch.setattr(opening, "stable_outputs", stable_outputs)


def _scope_of_one_table(patch: pytest.MonkeyPatch) -> None:
    original, original_query = ViewPlan.scope_of, ViewPlan.touched_query
    patch.setattr(ViewPlan, "scope_of", lambda plan, changed: original(plan, sorted(changed)[:1]))
    patch.setattr(ViewPlan, "touched_query", lambda plan, changed, s: original_query(plan, sorted(changed)[:1], s))


def _one_occurrence_of_each_table(patch: pytest.MonkeyPatch) -> None:
    original = ViewPlan.touched_query

    def touched_query(plan: ViewPlan, changed: Any, scope: Any) -> exp.Query:
        first = {occurrence.table: occurrence for occurrence in reversed(plan.occurrences)}
        return original(replace(plan, occurrences=tuple(first.values())), changed, scope)

    patch.setattr(ViewPlan, "touched_query", touched_query)


def _no_patterns_of_nulls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(touched, "_flagged", lambda flat: set())


def _conditions_below_a_right_join_are_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "of_on", lambda chain, number: [])
    patch.setattr(touched, "of_on", lambda chain, number: [])
    patch.setattr(opening, "of_where", lambda chain, number: [] if chain[number].text else list(chain[number].on))


def _not_in_is_an_equality(patch: pytest.MonkeyPatch) -> None:
    original = opening._membership
    patch.setattr(
        opening,
        "_membership",
        lambda place, query, inner: original(replace(place, clause="where", part=place.query.parent), query, inner),
    )


def _conditions_with_subqueries_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(syntax, "has_query", lambda node: False)


def _a_global_aggregate_needs_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "is_global", lambda block: False)


def _the_right_side_is_subtracted(patch: pytest.MonkeyPatch) -> None:
    original = touched._touched_by_side

    def by_side(query: exp.SetOperation, path: Any, wanted: list[str], tables: Mapping[str, str]) -> exp.Query:
        result = original(query, path, wanted, tables)
        if not isinstance(query, exp.Except) or opening.holds(query.expression, path):
            return result
        right = touched.with_tables(query.expression, tables, touched.EITHER)
        return exp.Except(this=exp.Subquery(this=result), expression=exp.Subquery(this=right), distinct=True)

    patch.setattr(touched, "_touched_by_side", by_side)


def _an_equality_is_not_null_safe(patch: pytest.MonkeyPatch) -> None:
    original = restriction.is_touched

    def is_touched(values: Mapping[str, exp.Expr]) -> exp.Exists:
        condition = original(values)
        for node in list(condition.find_all(exp.NullSafeEQ)):
            node.replace(exp.EQ(this=node.this, expression=node.expression))
        return condition

    patch.setattr(restriction, "is_touched", is_touched)


def _extended_sides_are_restricted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restriction, "_extended", lambda query: set())


def _each_occurrence_is_restricted(patch: pytest.MonkeyPatch) -> None:
    original = restriction._Restriction._restrict_source

    def restrict(self: Any, query: exp.Select, alias: str, columns: Mapping[str, str]) -> None:
        names = {source.alias: source.name for source in syntax.sources_of(query) if isinstance(source, exp.Table)}
        for other, name in names.items():
            if name == names.get(alias):
                original(self, query, other, columns)

    patch.setattr(restriction._Restriction, "_restrict_source", restrict)


def _old_images_are_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewWorld, "changed_images", lambda world, name: world.new_images(name))


def _other_tables_are_current(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewWorld, "either_rows", lambda world, name: list(world.now[name].values()))


PLANTED: Mapping[str, tuple[Plant, Sequence[str]]] = {
    "R0: an outer join under any condition is inner": (_outer_joins_are_inner, ["an anti join by NULL"]),
    "R0: a table has one occurrence": (_one_occurrence_of_each_table, ["a self left join", "a self join"]),
    "R1: windows are ignored": (_windows_are_ignored, ["a window", "a window below IN", "windows of two partitions"]),
    "R1: a column of one grouping set is stable": (_grouping_sets_are_one, ["a rollup"]),
    "R1: LIMIT is ignored": (_limits_are_ignored, ["a limit", "a limit below IN"]),
    "R2: the scope is that of one changed table": (_scope_of_one_table, ["a limit below IN"]),
    "R3: no patterns of NULLs": (_no_patterns_of_nulls, ["a full join", "both sides of a full join"]),
    "R3: conditions below a RIGHT JOIN are applied after it": (
        _conditions_below_a_right_join_are_late,
        ["an inner join below a right join"],
    ),
    "R4: NOT IN is an equality": (_not_in_is_an_equality, ["NOT IN with NULL", "IN as a value"]),
    "R4: conditions with subqueries are kept": (_conditions_with_subqueries_are_kept, ["IN", "EXISTS in EXISTS"]),
    "R5: a global aggregate has no row for no rows": (
        _a_global_aggregate_needs_rows,
        ["a subquery beside a correlated global aggregate"],
    ),
    "R6: the right side of EXCEPT is subtracted": (_the_right_side_is_subtracted, ["EXCEPT ALL"]),
    "R7: no old images of the changed rows": (_old_images_are_missing, ["an aggregate"]),
    "R7: other tables are read at the end of the barrier": (_other_tables_are_current, ["a join"]),
    "R8: touched values are compared by equality": (_an_equality_is_not_null_safe, ["a null-safe join"]),
    "R8: NULL-extended sides are restricted": (_extended_sides_are_restricted, ["both sides of a full join"]),
    "R8: each occurrence of a table is restricted": (_each_occurrence_is_restricted, ["a self join"]),
}


@pytest.mark.planted
@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_found(error: str, monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine) -> None:
    plant, cases = PLANTED[error]
    plant(monkeypatch)
    for attempt in range(60):
        for name in cases:
            try:
                play(plan_of_case(name), f"{name} {attempt}", 5, engine, engine.judge)
            except (Differs, duckdb.Error):  # other rows, or a query over a table that the step has not
                return
    raise AssertionError("no case shows the planted error")


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_source_that_no_condition_connects_is_not_read(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: it would make a cross join with the changed rows. The error planted by `is_kept` is seen in the query."""
    monkeypatch.setattr(derivation, "changed_keys", lambda *arguments: None)  # the changed rows alone tell here
    if is_kept:
        monkeypatch.setattr(touched, "reached_from_change", lambda flat: {join.source.alias for join in flat.joins})
        monkeypatch.setattr(touched, "_without_unneeded", lambda flat, needed: flat)
    plan = plan_of_case("a table of one row beside")
    query = plan.touched_query({"t"}, ("id",))
    assert (f"{touched.EITHER}cfg" in {table.name for table in query.find_all(exp.Table)}) == is_kept
