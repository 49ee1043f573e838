"""Advice about the key of a view: what it does not warn of never happens, over random tables."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import epochlog as el
from epochlog.store.types.schema import TableSchema
from epochlog.views import key_advice
from epochlog.views.derivation import render
from epochlog.views.normal_form import normal_form
from epochlog.views.parsing import parse
from lab import Lab

T = pa.schema([("k", pa.int64()), ("g", pa.int64()), pa.field("h", pa.int64(), nullable=False)])
U = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("w", pa.int64())])
TABLES = {"t": TableSchema("t", T, ("k",)), "u": TableSchema("u", U, ("a", "b"))}
NULL, TWICE = "can be NULL", "does not imply the key"
CASES = [
    ("SELECT k, g FROM t", "k", ()),
    ("SELECT k, g FROM t", "g", (NULL, TWICE)),
    ("SELECT k + 1 AS x FROM t", "x", (TWICE,)),
    ("SELECT g, COUNT(*) AS n FROM t GROUP BY g", "g", (NULL,)),
    ("SELECT g, COUNT(*) AS n FROM t WHERE g IS NOT NULL GROUP BY g", "g", ()),
    ("SELECT COALESCE(g, 0) AS g, COUNT(*) AS n FROM t GROUP BY COALESCE(g, 0)", "g", ()),
    ("SELECT g, h, COUNT(*) AS n FROM t GROUP BY g, h", "h", (TWICE,)),
    ("SELECT h, g, COUNT(*) AS n FROM t GROUP BY ROLLUP(h, g)", "h", (NULL, TWICE)),
    ("SELECT t.k, u.w FROM t JOIN u ON t.k = u.a", "k", (TWICE,)),
    ("SELECT t.k, u.b, u.w FROM t JOIN u ON t.k = u.a", "k b", ()),
    ("SELECT t.k, u.w FROM t LEFT JOIN u ON t.k = u.a AND u.b = 3", "k", ()),
    ("SELECT u.a, u.b, t.g FROM u LEFT JOIN t ON t.k = u.w", "a b", ()),
    ("SELECT u.a, u.b, t.k FROM u RIGHT JOIN t ON t.k = u.w", "k", (TWICE,)),
    ("SELECT DISTINCT h, k FROM t", "h k", ()),
    ("SELECT k FROM t UNION ALL SELECT a AS k FROM u", "k", (TWICE,)),
    ("SELECT h FROM t UNION SELECT a FROM u", "h", ()),
    ("SELECT h FROM t EXCEPT SELECT w FROM u", "h", ()),
    ("SELECT 1 AS one, COUNT(*) AS n FROM t", "one", ()),
    (
        "SELECT h, k FROM (SELECT h, k, ROW_NUMBER() OVER (PARTITION BY h ORDER BY k) AS r FROM t) q WHERE r = 1",
        "h",
        (),
    ),
]


def advice(text: str, key: list[str]) -> list[str]:
    about = key_advice.key_advice(normal_form(parse(text), TABLES), key, TABLES)
    return [sentence for sentence in (about.nullable, about.repeated) if sentence]


@pytest.mark.parametrize(("text", "key", "expected"), CASES)
def test_what_can_end_a_step_is_warned_of(text: str, key: str, expected: tuple[str, ...]) -> None:
    lines = advice(text, key.split())
    assert len(lines) == len(expected) and all(part in line for part, line in zip(expected, lines, strict=True)), lines


def random_query(chance: random.Random) -> tuple[str, list[str]]:
    """Return a query over both tables or subqueries of them, and some of its columns as a key."""
    sources = {
        "t": ["t", "(SELECT k, g, h FROM t WHERE g > 0)", "(SELECT MIN(k) AS k, g, h FROM t GROUP BY g, h)"],
        "u": ["u", "(SELECT DISTINCT a, b, w FROM u)", "(SELECT a, MAX(b) AS b, MAX(w) AS w FROM u GROUP BY a)"],
    }
    x, y = chance.choice(sources["t"]), chance.choice(sources["u"])
    on = " AND ".join(chance.sample(["x.k = y.a", "x.h = y.b", "x.g = y.w", "y.b = 1", "x.k = 2", "x.h = y.a"], 2))
    join = chance.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    more = f" {chance.choice(['JOIN', 'LEFT JOIN', 'RIGHT JOIN'])} t z ON z.k = x.h" * (chance.random() < 0.3)
    where = chance.choice(["", " WHERE x.g IS NOT NULL", " WHERE y.b = 2", " WHERE x.h = y.b AND x.g > 0"])
    columns = chance.sample(["x.k", "x.g", "x.h", "y.a", "y.b", "y.w"], chance.randrange(1, 5))
    key = sorted(chance.sample([column[2:] for column in columns], chance.randrange(1, len(columns) + 1)))
    group = f" GROUP BY {', '.join(columns)}" if chance.random() < 0.2 else ""
    distinct = "DISTINCT " * (chance.random() < 0.2)
    return f"SELECT {distinct}{', '.join(columns)} FROM {x} x {join} {y} y ON {on}{more}{where}{group}", key


def random_rows(chance: random.Random) -> dict[str, pa.Table]:
    def value(*, nullable: bool = True) -> int | None:
        return None if nullable and chance.random() < 0.3 else chance.randrange(1, 4)

    t = {k: (value(), value(nullable=False)) for k in chance.sample(range(1, 5), 3)}
    u = {(chance.randrange(1, 4), chance.randrange(1, 4)): value() for _ in range(5)}
    return {
        "t": pa.table([list(t), [g for g, _ in t.values()], [h for _, h in t.values()]], schema=T),
        "u": pa.table([[a for a, _ in u], [b for _, b in u], list(u.values())], schema=U),
    }


def unwarned(seeds: range) -> Iterator[str]:
    """Yield the random queries whose rows have a NULL or two rows of one key without a warning of it."""
    with duckdb.connect() as connection:
        for seed in seeds:
            chance = random.Random(seed)
            text, key = random_query(chance)
            warned = " ".join(advice(text, key))
            sql = render(normal_form(parse(text), TABLES).query, "duckdb")
            for _ in range(6):
                for name, rows in random_rows(chance).items():
                    connection.register(name, rows)
                keys = [tuple(row.values()) for row in connection.sql(sql).to_arrow_table().select(key).to_pylist()]
                if NULL not in warned and any(None in row for row in keys):
                    yield f"NULL: {key} of {text}"
                if TWICE not in warned and len(set(keys)) < len(keys):
                    yield f"twice: {key} of {text}"


@pytest.mark.medium
def test_what_is_not_warned_of_never_happens() -> None:
    assert list(unwarned(range(80))) == []


@pytest.mark.medium
def test_not_all_queries_are_warned_of() -> None:
    queries = [random_query(random.Random(seed)) for seed in range(60)]
    assert sum(not advice(text, key) for text, key in queries) > 3


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize("planted", ["outer joins extend nothing", "an outer join's condition holds both ways"])
def test_advice_that_forgets_outer_joins_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted == "outer joins extend nothing":
        monkeypatch.setattr(key_advice, "_extended", lambda block: set())
    else:
        real = key_advice._equalities

        def both(block: object) -> Iterator[object]:
            yield from real(block)  # pyright: ignore[reportArgumentType]
            for join in key_advice.syntax.joins_of(block):  # pyright: ignore[reportArgumentType]
                for part in key_advice.syntax.conjuncts(join.args.get("on")):
                    yield from key_advice._pairs(part)

        monkeypatch.setattr(key_advice, "_equalities", both)
    assert next(unwarned(range(600)), None) is not None


@pytest.mark.logs("view_key", "view_key_nullable")
def test_a_key_whose_steps_may_fail_is_warned_of_without_any_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Lab(tmp_path / "lake").store as store:
        store.create_table("t", T, ["k"])
        store.create_view("quiet", "SELECT g, COUNT(*) AS n FROM t WHERE g IS NOT NULL GROUP BY g", ["g"])
        store.create_view("by_g", "SELECT g, COUNT(*) AS n FROM t GROUP BY g", ["g"])
        store.create_view("v", "SELECT h, k FROM t", ["h"])
    nullable, repeated = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "view=by_g" in nullable.getMessage() and NULL in nullable.getMessage()
    assert "view=v" in repeated.getMessage() and TWICE in repeated.getMessage()


@pytest.mark.logs("view_key", "view_key_nullable")
def test_the_warning_is_logged_at_create_and_replace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(tmp_path / "lake")

    def lines() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith("view_key")]

    with lab.store as store, caplog.at_level(logging.INFO, "epochlog"):
        store.create_table("t", T, ["k"])
        store.create_view("quiet", "SELECT k, g FROM t", ["k"])
        assert not lines()
        store.create_view("v", "SELECT g, k FROM t", ["g"])
        logged = lines()
        assert len(logged) == 2 and all("view=v" in line for line in logged)
        assert NULL in logged[0] and TWICE in logged[1]
        store.replace_views({"v": "SELECT COALESCE(g, 0) AS g, MAX(k) AS k FROM t GROUP BY COALESCE(g, 0)"})
        assert lines() == logged


@pytest.mark.parametrize("call", ["create", "replace"])
def test_a_text_is_parsed_once(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, texts, real = Lab(tmp_path / "lake"), list[str](), sqlglot.parse
    text = "WITH c AS (SELECT k, g FROM t WHERE g IS NOT NULL) SELECT x.k, y.g FROM c x JOIN c y ON x.k = y.k"
    with lab.store as store:
        store.create_table("t", T, ["k"])
        if call == "replace":
            store.create_view("v", "SELECT k, g FROM t", ["k"])

        def parsed(sql: str, **options: Any) -> Any:
            texts.append(sql)
            return real(sql, **options)

        monkeypatch.setattr(sqlglot, "parse", parsed)
        if call == "create":
            store.create_view("v", text, ["k"])
        else:
            store.replace_views({"v": text})
    assert texts == [text]


def test_a_float_that_fits_no_decimal_is_told_how_to_cast(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lake")
    with lab.store as store:
        table = store.create_table("m", pa.schema([("k", pa.int64()), ("v", pa.decimal128(10, 2))]), ["k"])
        for value in (1.005, 0.1 + 0.2, 1e-9, -99_999_999.123):
            with pytest.raises(el.SchemaMismatch) as raised:
                table.upsert(pa.table({"k": [1], "v": [value]}))
            assert "by its shortest text" in str(raised.value)
            assert "CAST(ROUND(column, 2) AS DECIMAL(10, 2))" in str(raised.value)
        for value, said in ((2.0**60, "from the start"), (-1e8, "more than 8 digits"), (float("nan"), "null")):
            with pytest.raises(el.SchemaMismatch, match=said) as raised:
                table.upsert(pa.table({"k": [1], "v": [value]}))
            assert "ROUND" not in str(raised.value)
        table.alter(widen={"v": pa.decimal128(11, 2)})
        table.upsert(pa.table({"k": [3], "v": [-1e8]}))
        table.upsert(pa.table({"k": [1, 2], "v": [10.1, 0.1]}))
        with pytest.raises(el.SchemaMismatch) as raised:
            table.upsert(pa.table({"k": [1], "v": ["x"]}))
        assert "shortest text" not in str(raised.value)
