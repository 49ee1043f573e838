"""Inner queries that give way (R13): which do, and that the rows stay those of the query."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

from epochlog.views import flat_blocks
from epochlog.views.derivation import derive
from epochlog.views.flat_blocks import flattened
from epochlog.views.normal_form import normal_form
from epochlog.views.parsing import parse
from epochlog.views.table_names import NOW
from epochlog.views.touched import with_tables
from judged_texts import QUERIES
from seeds import seeds
from view_cases import CASES
from view_states import SCHEMAS as ITEMS
from view_states import TABLES, random_row
from view_world import DuckDBEngine, ViewWorld, plan_of_case, random_plan

FLAT = {
    "rows": ("SELECT g FROM (SELECT g, e FROM items WHERE e > 1) WHERE e < 5", 0),
    "rows of rows": ("SELECT g + 1 AS g FROM (SELECT g FROM (SELECT g, e FROM items WHERE f) WHERE e > 1)", 0),
    "a CTE": ("WITH r AS (SELECT g, e * 2 AS e FROM items) SELECT g, MAX(e - 1) AS high FROM r GROUP BY g", 0),
    "a CTE that is read twice": (
        "WITH r AS (SELECT id, g FROM items WHERE f) SELECT a.id, b.g FROM r a JOIN r b ON a.id = b.id",
        0,
    ),
    "joins inside and outside": (
        "SELECT r.x, o.s FROM items o JOIN (SELECT i.id, k.x FROM items i JOIN kinds k ON k.id = i.k) r ON r.id = o.id",
        0,
    ),
    "groups below": ("SELECT n FROM (SELECT g, COUNT(*) AS n FROM items GROUP BY g) WHERE n > 2", 0),
    "groups of rows below": ("SELECT n FROM (SELECT g, MIN(e) AS n FROM (SELECT g, e FROM items) GROUP BY g)", 0),
    "groups of groups": ("SELECT MAX(n) AS n FROM (SELECT g, COUNT(*) AS n FROM items GROUP BY g)", 1),
    "a window over rows": (
        "SELECT g, ROW_NUMBER() OVER (PARTITION BY g ORDER BY id) AS p FROM (SELECT id, g FROM items WHERE f)",
        0,
    ),
    "a constant": ("SELECT g + y AS x FROM (SELECT g, 1 AS y, -3 AS z FROM items WHERE f) WHERE z < y", 0),
    "a text": ("SELECT y, g FROM (SELECT g, 'a' AS y FROM items)", 1),
    "a constant that nothing reads": ("SELECT g FROM (SELECT g, NULL AS y, 'a' AS z FROM items)", 0),
    "a constant of all rows": ("SELECT 1 AS one FROM (SELECT COUNT(*) AS n FROM items)", 1),
    "DISTINCT": ("SELECT g FROM (SELECT DISTINCT g, e FROM items)", 1),
    "LIMIT": ("SELECT g FROM (SELECT g FROM items ORDER BY id LIMIT 3)", 1),
    "a window": ("SELECT p FROM (SELECT ROW_NUMBER() OVER (ORDER BY id) AS p FROM items)", 1),
    "a union": ("SELECT g FROM (SELECT g FROM items UNION ALL SELECT x FROM kinds)", 1),
    "a left join": ("SELECT k.id, r.h FROM kinds k LEFT JOIN (SELECT id, 1 AS h FROM items) r ON r.id = k.id", 1),
    "a left join inside": (
        "SELECT id FROM (SELECT i.id, k.x FROM items i LEFT JOIN kinds k ON k.id = i.k) WHERE x IS NULL",
        1,
    ),
    "a subquery inside": ("SELECT g FROM (SELECT g, (SELECT MAX(x) FROM kinds) AS m FROM items) WHERE m > g", 1),
    "groups in a join": (
        "SELECT k.id, q.n FROM kinds k JOIN (SELECT g, COUNT(*) AS n FROM items GROUP BY g) q ON q.g = k.id",
        1,
    ),
    "a rollup": ("SELECT n FROM (SELECT g, COUNT(*) AS n FROM items GROUP BY ROLLUP (g)) WHERE n > 1", 1),
}
"""Texts, and the number of inner queries that are left of them."""


@pytest.mark.rule("R13")
@pytest.mark.parametrize("name", FLAT)
def test_which_inner_queries_give_way(name: str) -> None:
    text, left = FLAT[name]
    form = normal_form(parse(text), ITEMS)
    before = form.query.sql()
    query = flattened(form.query)
    sources = [node for node in query.find_all(exp.Subquery) if isinstance(node.parent, exp.From | exp.Join)]
    assert len(sources) == left, query.sql()
    assert form.query.sql() == before, "the normal form has changed"


def test_expressions_keep_their_bounds() -> None:
    text = "SELECT a * 2 AS x FROM (SELECT e + w AS a FROM items WHERE f OR g = 1) WHERE a > 1 OR a IS NULL"
    query = flattened(normal_form(parse(text), ITEMS).query)
    assert query.sql("duckdb").replace('"', "") == (
        "SELECT (s2.e + s2.w) * 2 AS x FROM items AS s2 "
        "WHERE ((s2.e + s2.w) > 1 OR (s2.e + s2.w) IS NULL) AND (s2.f OR s2.g = 1)"
    )


def test_expressions_that_would_grow_too_long_stay_where_they_are() -> None:
    names = ["items", *(f"c{number}" for number in range(40))]
    ctes = [f"{name} AS (SELECT id, e + e AS e FROM {below})" for below, name in pairwise(names)]
    text = f"WITH {', '.join(ctes)} SELECT id, e FROM {names[-1]}"
    query = flattened(normal_form(parse(text), ITEMS).query)
    assert 20 < len(list(query.find_all(exp.Select))) < 40
    assert len(list(query.walk())) < 2 * flat_blocks.MOST_NODES


def test_constants_keep_their_types() -> None:
    """A column of 1 is INT on both engines; beside a SMALLINT, DuckDB takes the literal for one."""
    query = flattened(normal_form(parse("SELECT w + y AS x FROM (SELECT w, 1 AS y FROM items)"), ITEMS).query)
    assert "CAST(1 AS INT)" in query.sql("duckdb")


def test_a_view_through_a_cte_has_the_rules_of_its_query() -> None:
    cte = "WITH r AS (SELECT i.id, i.g, i.e, i.k FROM items i WHERE i.f) "
    sums = derive(cte + "SELECT g, SUM(e) AS s, COUNT(*) AS n FROM r GROUP BY g", ITEMS, ["g"])
    rows = derive(cte + "SELECT r.id, k.x FROM r JOIN kinds k ON k.id = r.k", ITEMS, ["id"])
    most = derive(cte + "SELECT g, MAX(e) AS m FROM r GROUP BY g", ITEMS, ["g"])
    assert sums.state is not None and rows.row_changes is not None and most.state is not None


@pytest.mark.medium
@pytest.mark.rule("R13")
@pytest.mark.parametrize("name", FLAT)
def test_flat_queries_have_the_rows_of_the_text(name: str) -> None:
    text, _ = FLAT[name]
    flat = flattened(normal_form(parse(text), ITEMS).query).sql("duckdb", identify=True)
    chance = random.Random(seed := random.randrange(1 << 32))
    print("seed", seed)
    count = 0
    with duckdb.connect() as connection:
        for size in (0, 6, 14, 40, 40):
            for table, schema in TABLES.items():
                rows = [random_row(chance, table, number) for number in range(size)]
                connection.register(table, pa.Table.from_pylist(rows, schema=schema))
            wanted = connection.execute(text).fetchall()
            assert Counter(connection.execute(flat).fetchall()) == Counter(wanted), flat
            count += len(wanted)
    assert count


@pytest.mark.medium
@pytest.mark.rule("R13")
@pytest.mark.parametrize("first", seeds(range(0, QUERIES, 50), 2))
def test_flat_random_queries_have_the_rows_of_the_text(first: int) -> None:
    with duckdb.connect() as connection:
        engine = DuckDBEngine(connection)
        for name in (*CASES, *map(str, range(first, first + 50))):
            plan = plan_of_case(name) if name in CASES else random_plan(int(name))
            flat = with_tables(flattened(plan.form.query), plan.form.occurrences, NOW)
            if flat != plan.query():
                for seed in range(3):
                    world = ViewWorld(random.Random(f"flat {name} {seed}"), plan.tables)
                    engine.load(world.contents(flat))
                    wanted = engine.judge(plan.sql, world.now)
                    assert Counter(engine.rows(flat)) == Counter(wanted), (name, seed, plan.sql, flat.sql())


def _outer_joins_are_flat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "_joins_inner", lambda block: True)


def _limits_are_flat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "_DEPENDING", ())


def _windows_are_flat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "windows_of", lambda block: [])


def _parentheses_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "_as_part", lambda value: value)


def _conditions_are_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flat_blocks, "_require", lambda *_: None)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, tuple[Plant, Callable[[], None]]] = {
    "outer joins": (_outer_joins_are_flat, partial(test_which_inner_queries_give_way, "a left join")),
    "limits": (_limits_are_flat, partial(test_which_inner_queries_give_way, "LIMIT")),
    "windows": (_windows_are_flat, partial(test_which_inner_queries_give_way, "a window")),
    "parentheses": (_parentheses_are_lost, test_expressions_keep_their_bounds),
    "conditions": (_conditions_are_lost, test_expressions_keep_their_bounds),
}


@pytest.mark.planted
@pytest.mark.rule("R13")
@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_found(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check_rule = PLANTED[error]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_rule()
