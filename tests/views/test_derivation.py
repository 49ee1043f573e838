"""Plans of views held against their queries: named cases, random queries, and errors planted in each rule.

The examples of docs/VIEWS.md are played in a store, with the rule and with an error in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlglot import exp

import epochlog as el
from confirmed import confirmed
from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.views import (
    aggregate_state,
    derivation,
    flat_blocks,
    opening,
    reads,
    restriction,
    row_changes,
    stability,
    state_changes,
    state_step,
    stored,
    syntax,
    touched,
)
from epochlog.views.batches import Batch
from epochlog.views.derivation import Coverage
from epochlog.views.table_names import EITHER, IS_NEW, NOW
from epochlog.views.table_reads import TableRead
from judged_texts import QUERIES
from seeds import seeds
from view_cases import CASES
from view_world import Differs, DuckDBEngine, Outcome, ViewWorld, plan_of_case, play, random_plan, touched_query

PAGE = Path(__file__).parents[2] / "docs" / "VIEWS.md"


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
    assert plan.coverage.scope_of({"t"} & set(plan.tables)) == scope or "t" not in plan.tables, plan.explain()
    assert tuple(table for table in plan.tables if not plan.coverage.scope_of({table})) == full, plan.explain()
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
    for name in ("scope_of", "changed_batches"):
        original = getattr(Coverage, name)
        patch.setattr(Coverage, name, lambda self, changed, original=original: original(self, sorted(changed)[:1]))


def _one_occurrence_of_each_table(patch: pytest.MonkeyPatch) -> None:
    original = Coverage.changed_batches

    def changed_batches(coverage: Coverage, changed: Any) -> tuple[Batch, ...]:
        first = {occurrence.table: occurrence.alias for occurrence in reversed(coverage.occurrences)}
        return original(replace(coverage, batches=tuple((alias,) for alias in first.values())), changed)

    patch.setattr(Coverage, "changed_batches", changed_batches)


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
@pytest.mark.rule("R0", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8")
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


# examples of the page


def _old_images_are_not_read(patch: pytest.MonkeyPatch) -> None:
    original = reads.read_changes

    def new_images(*arguments: Any) -> pa.Table:
        rows = original(*arguments)
        return rows.filter(pc.invert(pc.is_in(rows[CHANGE_TYPE], pa.array(reads.OLD_IMAGES))))

    patch.setattr(reads, "read_changes", new_images)


def _other_tables_are_read_at_the_end(patch: pytest.MonkeyPatch) -> None:
    original = reads.rows_for

    def rows_for(read: TableRead, changes: Any, at: Any, union: Any) -> Any:
        return at(NOW) if read.prefix == EITHER else original(read, changes, at, union)

    patch.setattr(reads, "rows_for", rows_for)


def _outer_joins_are_linear(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aggregate_state, "is_inner_join", lambda block: True)


def _a_value_that_loses_a_row_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_changes, "_appeared", lambda before, after: pc.sign(pc.subtract(after, before)))


def _old_groups_are_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    original = state_step.handed_on

    def new_groups(*arguments: Any) -> pa.Table:
        rows = original(*arguments)
        return rows.filter(rows.column(IS_NEW))

    patch.setattr(state_step, "handed_on", new_groups)


def _rows_are_of_the_groups_before(patch: pytest.MonkeyPatch) -> None:
    write = state_step.StateStep._write

    def unless_it_was_there(step: Any, block: Any, change: Any) -> None:
        if step._before is None:
            write(step, block, change)

    patch.setattr(state_step.StateStep, "_write", unless_it_was_there)


def _conditions_of_inner_queries_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "_require", lambda *_: None)


def _any_join_has_one_row_of_a_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_changes, "_gives_all_keys", lambda *_: True)


Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Example:
    """Example of a rule: the rows of tables before and in a barrier, and the view's rows after it, right and wrong."""

    plant: Plant
    sql: str
    key: Sequence[str]
    before: Mapping[str, Rows]
    then: Mapping[str, Rows]
    right: Rows
    wrong: Rows
    deleted: Mapping[str, int] = field(default_factory=dict)


COLUMNS = {
    "orders": ["id", "customer", "day", "cents"],
    "customers": ["id", "region"],
    "a": ["id", "k", "v"],
    "b": ["id", "k", "v"],
    "r": ["id", "c"],
    "t": ["id", "a", "b", "v"],
    "u": ["id", "a", "v"],
}
EXAMPLES = {
    "R0": Example(
        _outer_joins_are_inner,
        "SELECT o.id, c.region FROM orders o LEFT JOIN customers c ON c.id = o.customer WHERE c.id IS NULL",
        ["id"],
        {"orders": [(1, 7, 1, 0), (2, 8, 1, 0)], "customers": [(8, "eu")]},
        {"orders": [(3, 9, 1, 0)]},
        [(1, None), (3, None)],
        [],
    ),
    "R1": Example(
        _windows_are_ignored,
        "SELECT id, cents, SUM(cents) OVER (PARTITION BY day) AS total FROM orders",
        ["id"],
        {"orders": [(1, 1, 1, 10), (2, 1, 1, 20)]},
        {"orders": [(1, 1, 1, 15)]},
        [(1, 15, 35), (2, 20, 35)],
        [(1, 15, 15), (2, 20, 30)],
    ),
    "R2": Example(
        _scope_of_one_table,
        "SELECT id FROM a WHERE a.v IN (SELECT v FROM b ORDER BY id LIMIT 1)",
        ["id"],
        {"a": [(1, 0, 5), (2, 0, 6)], "b": [(7, 0, 5)]},
        {"a": [(3, 0, 6)], "b": [(6, 0, 6)]},
        [(2,), (3,)],
        [(1,), (3,)],
    ),
    "R3": Example(
        _no_patterns_of_nulls,
        "SELECT COALESCE(a.id, 0) AS a, COALESCE(b.id, 0) AS b FROM a FULL JOIN b ON a.k = b.k",
        ["a", "b"],
        {"a": [(1, 10, 0)], "b": [(2, 20, 0)]},
        {"b": [(3, 10, 0)]},
        [(0, 2), (1, 3)],
        [(0, 2), (1, 0), (1, 3)],
    ),
    "R4": Example(
        _not_in_is_an_equality,
        "SELECT id FROM a WHERE a.k NOT IN (SELECT k FROM b)",
        ["id"],
        {"a": [(1, 10, 0), (2, 20, 0)], "b": [(5, 20, 0)]},
        {"b": [(6, None, 0)]},
        [],
        [(1,)],
    ),
    "R5": Example(
        _a_global_aggregate_needs_rows,
        "SELECT t.id FROM t WHERE t.v <= (SELECT COUNT(*) + COALESCE((SELECT MAX(u.v) FROM u WHERE u.a = t.a), 0) FROM "
        "r WHERE r.c = t.b)",
        ["id"],
        {"t": [(1, 1, 1, 3)], "u": [(1, 1, 2)], "r": [(1, 9)]},
        {"u": [(1, 1, 5)]},
        [(1,)],
        [],
    ),
    "R6": Example(
        _the_right_side_is_subtracted,
        "SELECT k FROM a EXCEPT ALL SELECT k FROM b",
        ["k"],
        {"a": [(1, 1, 0)], "b": [(1, 1, 0)]},
        {"a": [(2, 1, 0)]},
        [(1,)],
        [],
    ),
    "R7, old images": Example(
        _old_images_are_not_read,
        "SELECT day, MAX(cents) AS most FROM orders GROUP BY day",
        ["day"],
        {"orders": [(1, 1, 1, 10), (2, 1, 1, 20)]},
        {"orders": [(2, 1, 2, 20)]},
        [(1, 10), (2, 20)],
        [(1, 20), (2, 20)],
    ),
    "R7, other tables": Example(
        _other_tables_are_read_at_the_end,
        "SELECT c.region, MAX(o.cents) AS most FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region",
        ["region"],
        {"orders": [(2, 1, 1, 20)], "customers": [(1, "eu"), (2, "us")]},
        {"orders": [(2, 2, 1, 20)]},
        [("us", 20)],
        [("eu", 20), ("us", 20)],
        {"customers": 1},
    ),
    "R8": Example(
        _an_equality_is_not_null_safe,
        "SELECT MAX(id) AS id, day FROM orders GROUP BY day",
        ["id"],
        {"orders": [(1, 1, None, 0), (5, 1, 1, 0)]},
        {"orders": [(2, 1, None, 0)]},
        [(2, None), (5, 1)],
        [(5, 1)],
    ),
    "R9": Example(
        _outer_joins_are_linear,
        "SELECT a.k, COUNT(*) AS n FROM a LEFT JOIN b ON b.k = a.k GROUP BY a.k",
        ["k"],
        {"a": [(1, 1, 0)], "b": []},
        {"b": [(1, 1, 0)]},
        [(1, 1)],
        [(1, 2)],
    ),
    "R11": Example(
        _any_join_has_one_row_of_a_key,
        "SELECT a.id, b.v FROM a JOIN b ON b.k = a.k",
        ["id"],
        {"a": [(1, 1, 0)], "b": [(1, 1, 10), (2, 2, 20), (3, 2, 30)]},
        {"a": [(1, 2, 0)]},
        [(1, 30)],
        [],
        {"b": 2},
    ),
    "R12": Example(
        _a_value_that_loses_a_row_is_gone,
        "SELECT day, COUNT(DISTINCT customer) AS customers FROM orders GROUP BY day",
        ["day"],
        {"orders": [(1, 7, 1, 10), (2, 7, 1, 20)]},
        {},
        [(1, 1)],
        [(1, 0)],
        {"orders": 2},
    ),
    "R12, groups of groups": Example(
        _old_groups_are_not_handed_on,
        "SELECT n, COUNT(*) AS buyers FROM (SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer) GROUP BY n",
        ["n"],
        {"orders": [(1, 7, 1, 10)]},
        {"orders": [(2, 7, 1, 20)]},
        [(2, 1)],
        [(1, 1), (2, 1)],
    ),
    "R14": Example(
        _rows_are_of_the_groups_before,
        "SELECT k, RANK() OVER (ORDER BY COUNT(*) DESC) AS place FROM a GROUP BY k",
        ["k"],
        {"a": [(1, 1, 0), (2, 2, 0), (3, 2, 0)]},
        {"a": [(4, 1, 0), (5, 1, 0)]},
        [(1, 1), (2, 2)],
        [(1, 2), (2, 1)],
    ),
    "R13": Example(
        _conditions_of_inner_queries_are_lost,
        "SELECT k, COUNT(*) AS n FROM (SELECT k FROM a WHERE v > 1) GROUP BY k",
        ["k"],
        {"a": [(1, 1, 5), (2, 1, 0)]},
        {"a": [(3, 1, 0), (4, 1, 7)]},
        [(1, 2)],
        [(1, 4)],
    ),
}


def table_of(name: str, rows: Rows) -> pa.Table:
    types = [pa.string() if column == "region" else pa.int64() for column in COLUMNS[name]]
    schema = pa.schema(list(zip(COLUMNS[name], types, strict=True)))
    return pa.Table.from_pylist([dict(zip(COLUMNS[name], row, strict=True)) for row in rows], schema=schema)


def rows_of_example(root: Path, example: Example) -> Rows:
    for kept in (stored._derive, stored.compiled):  # the plan of an example depends on the planted error
        kept.cache_clear()
    with el.open(root, durability="os") as store:
        for name, rows in example.before.items():
            store.create_table(name, table_of(name, []).schema, ["id"]).upsert(table_of(name, rows))
        view = store.create_view("v", example.sql, example.key)
        store.checkpoint()
        view.step()
        with store.transaction() as tx:  # a boundary between two commits would make two steps of them
            for name, rows in example.then.items():
                tx.upsert(name, table_of(name, rows))
            for name, key in example.deleted.items():
                tx.delete(name, pa.table({"id": [key]}))
        store.checkpoint()
        assert view.step()
        return [tuple(row.values()) for row in store.table("v").to_arrow().to_pylist()]


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.rule("R0", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R11", "R12", "R13", "R14")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_gives_the_right_and_the_wrong_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES[name]
    assert example.sql in " ".join(PAGE.read_text("utf-8").split())
    if name.partition(",")[0] not in ("R9", "R12", "R13", "R14"):
        monkeypatch.setattr(derivation, "state_of", lambda *arguments: None)  # a state would hide the other rules
    assert rows_of_example(tmp_path / "right", example) == example.right
    example.plant(monkeypatch)
    assert rows_of_example(tmp_path / "wrong", example) == example.wrong
    stored._derive.cache_clear()


@pytest.mark.rule("R7")
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_source_that_no_condition_connects_is_not_read(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: it would make a cross join with the changed rows. The error planted by `is_kept` is seen in the query."""
    monkeypatch.setattr(derivation, "changed_keys", lambda *arguments: None)  # the changed rows alone tell here
    if is_kept:
        monkeypatch.setattr(touched, "reached_from_change", lambda flat: {join.source.alias for join in flat.joins})
        monkeypatch.setattr(touched, "_without_unneeded", lambda flat, needed: flat)
    plan = plan_of_case("a table of one row beside")
    query = touched_query(plan, {"t"}, ("id",))
    assert (f"{touched.EITHER}cfg" in {table.name for table in query.find_all(exp.Table)}) == is_kept
