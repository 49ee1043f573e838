"""Random queries whose views keep a state, over the tables of `view_states`."""

from __future__ import annotations

import random
from collections.abc import Callable

from epochlog.errors import InvalidInput
from epochlog.views.compiled_plan import CompiledPlan
from epochlog.views.derivation import derive
from view_states import SCHEMAS, StateCase

FROM = (
    "items i",
    "items i",
    "items i JOIN kinds k ON k.id = i.k",
    "items i JOIN kinds k ON k.x = i.w AND (k.b OR i.f)",
    "items i JOIN items k ON k.k = i.g",
    "kinds k JOIN items i ON i.k = k.id",
)
NUMBERS = ("i.e", "i.w", "i.e + i.w", "i.e * 2 - i.k", "CASE WHEN i.f THEN i.e END", "COALESCE(i.w, 0)")
OTHERS = ("i.s", "i.d", "i.ts", "i.m", "i.f", "UPPER(i.s)")
TESTS = ("i.f", "i.e > i.w", "i.s = 's1'", "i.e IS NULL", "NOT i.f", "i.w IN (1, 2)", "i.m > 0", "i.f AND i.e < 3")
OF_KINDS = ("k.x", "k.x + i.e", "k.x - i.w")
OF_ITEMS = ("k.e", "k.w + i.e", "k.id - i.id")
GROUPS = (
    "COALESCE(i.g, -1)",
    "COALESCE(i.s, '')",
    "i.f IS NULL",
    "COALESCE(i.e + i.w, 0)",
    "COALESCE(i.d, DATE '2026-01-01')",
)
NULLABLE = ("i.g", "i.s", "i.d", "i.f", "i.e")


def random_state_case(chance: random.Random) -> StateCase:
    """Return a random view that keeps a state, and that DuckDB may compute."""
    return _first_kept(lambda: _nested(chance) if chance.random() < 0.4 else _case(chance))


def random_case_of_all_groups(chance: random.Random) -> StateCase:
    """Return a random view whose rows are computed of all groups of its state, and that DuckDB may compute."""
    return _first_kept(lambda: _above(chance))


def _first_kept(make: Callable[[], StateCase]) -> StateCase:
    """Return the first view that keeps a state, and that DuckDB may compute."""
    while True:
        case = make()
        try:
            plan = derive(case.sql, SCHEMAS, case.key)
            CompiledPlan(lambda plan=plan: plan, "duckdb").query()
        except InvalidInput:
            continue
        if plan.state is not None:
            return case


def _case(chance: random.Random) -> StateCase:
    source = chance.choice(FROM)
    numbers = [*NUMBERS, *(OF_KINDS if "kinds" in source else OF_ITEMS if " k " in source else ())]
    groups = chance.sample(GROUPS, chance.choice([0, 1, 1, 2]))
    having = []
    if groups and chance.random() < 0.3:
        groups.append(chance.choice(NULLABLE))
        having.append(f"{groups[-1]} IS NOT NULL")
    texts = [_aggregate(chance, numbers) for _ in range(chance.randrange(1, 6))]
    if chance.random() < 0.3:
        having.append(chance.choice(["COUNT(*) > 1", f"COUNT(DISTINCT {chance.choice(numbers)}) > 1", "MIN(i.e) < 3"]))
    named = [f"{group} AS g{place}" for place, group in enumerate(groups)] or ["1 AS g0"]
    outputs = [*named, *(f"{text} AS x{place}" for place, text in enumerate(texts))]
    chance.shuffle(outputs)
    sql = f"SELECT {', '.join(outputs)} FROM {source}"
    if chance.random() < 0.4:
        sql += f" WHERE {chance.choice(TESTS)}"
    if groups:
        sql += f" GROUP BY {', '.join(groups)}"
    if having:
        sql += f" HAVING {' AND '.join(having)}"
    return StateCase(sql, tuple(f"g{place}" for place in range(len(named))))


def _above(chance: random.Random) -> StateCase:
    """Return a view with LIMIT or windows over the groups of another one."""
    below = _nested(chance) if chance.random() < 0.3 else _case(chance)
    names = [
        name
        for name in ("k", "g0", "g1", "g2", *(f"{c}{n}" for c in "xy" for n in range(6)))
        if f" AS {name}" in below.sql.partition(" FROM ")[0]
    ]
    order = ", ".join(f"{name}{chance.choice(['', ' DESC'])}" for name in chance.sample(names, len(names)))
    value = chance.choice(names)
    windows = [
        *(f"ROW_NUMBER() OVER (ORDER BY {order}) AS w", f"COUNT({value}) OVER () AS w"),
        *(f"MAX({value}) OVER () AS w", f"LAG({value}) OVER (ORDER BY {order}) AS w"),
        *(
            "SUM(CASE WHEN " + value + " IS NULL THEN 1 ELSE 0 END) OVER () AS w",
            f"DENSE_RANK() OVER (ORDER BY {value}) AS w",
        ),
    ]
    listed, window = ", ".join(names), chance.choice(windows)
    ways = [
        f"{below.sql} ORDER BY {order} LIMIT {chance.randrange(1, 5)}",
        f"SELECT {listed} FROM ({below.sql}) ORDER BY {order} LIMIT {chance.randrange(1, 5)}",
        f"SELECT {listed}, {window} FROM ({below.sql})",
        f"SELECT {listed}, w FROM (SELECT {listed}, {window} FROM ({below.sql})) WHERE w < 3 OR w IS NULL",
    ]
    return StateCase(chance.choice(ways), below.key)


def _nested(chance: random.Random) -> StateCase:
    """Return a view of the groups of another query."""
    below = _case(chance)
    inner = below.sql.replace("SELECT ", "SELECT COUNT(*) AS n, ", 1)
    outputs = [name for name in ("g0", "g1", "x0", "x1", "x2") if f" AS {name}" in inner]
    group, other = chance.choice(outputs), chance.choice(outputs)
    texts = ["COUNT(*)", "SUM(q.n)", "AVG(q.n)", "MAX(q.n)", "MIN(q.n)", f"COUNT(q.{other})", f"MIN(q.{other})"]
    texts += [f"MAX(q.{other})", f"COUNT(DISTINCT q.{other})", f"COUNT(*) FILTER (WHERE q.{other} IS NULL)"]
    chosen = chance.sample(texts, chance.randrange(1, 5))
    key, keys = chance.choice(
        [
            *((f"q.{group}", f" GROUP BY q.{group} HAVING q.{group} IS NOT NULL"), ("1", "")),
            *((f"q.{group} IS NULL", f" GROUP BY q.{group} IS NULL"), ("q.n", " GROUP BY q.n")),
        ]
    )
    where = chance.choice(["", "", " WHERE q.n > 1", f" WHERE q.{other} IS NOT NULL"])
    named = ", ".join(f"{text} AS y{place}" for place, text in enumerate(chosen))
    return StateCase(f"SELECT {key} AS k, {named} FROM ({inner}) q{where}{keys}", ("k",))


def _aggregate(chance: random.Random, numbers: list[str]) -> str:
    number, other, test = chance.choice(numbers), chance.choice(OTHERS), chance.choice(TESTS)
    either = chance.choice([number, other])
    text = chance.choice(
        [
            *("COUNT(*)", f"COUNT({either})", f"SUM({number})", f"AVG({number})", f"MIN({either})", f"MAX({either})"),
            *(f"COUNT(DISTINCT {either})", f"COUNT(DISTINCT {either})", f"SUM(DISTINCT {number})", f"MIN({either})"),
            *(f"BOOL_AND({test})", f"BOOL_OR({test})", "CAST(SUM(DISTINCT i.m) AS DECIMAL(20,2))"),
        ]
    )
    if text.startswith("CAST"):
        return text
    return f"{text} FILTER (WHERE {chance.choice(TESTS)})" if chance.random() < 0.3 else text
