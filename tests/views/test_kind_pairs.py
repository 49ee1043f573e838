"""Expressions of values of each kind and of each pair of kinds: views take those that both engines compute alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from confirmed import kept
from epochlog.views import duckdb_engine, duckdb_functions
from kind_pairs import Case, Product, cases, expressions_of
from view_texts import Text
from views_of_texts import difference

STEP = 20
"""Each test asks one of so many expressions."""


def taken_otherwise(some: Sequence[Case]) -> list[str]:
    """Return the expressions that views take though Spark was not asked about them, or refuse though it was."""
    asked = {expression for sql in kept("pairs").replies for expression in expressions_of(sql)}
    product = Product()
    return [
        f"{verdict}: {case.text}"
        for case in some
        if (verdict := product.verdict(case)) != ("taken" if case.text in asked else "refused")
    ]


@pytest.mark.slow
def test_views_give_spark_s_values_and_types_of_all_pairs_of_kinds() -> None:
    texts = list(kept("pairs").replies)
    assert sum(len(expressions_of(sql)) for sql in texts) > 5000
    differences = {sql: difference(Text(sql, ("k",), "pairs")) for sql in texts}
    assert {sql: wrong for sql, wrong in differences.items() if wrong} == {}


@pytest.mark.slow
def test_views_take_the_pairs_of_kinds_that_spark_was_asked_about() -> None:
    first = random.SystemRandom().randrange(STEP)
    print("first", first)
    assert taken_otherwise(list(cases())[first::STEP]) == []


@pytest.mark.long
def test_views_take_no_other_pair_of_kinds() -> None:
    assert taken_otherwise(list(cases())) == []


# planted errors


@pytest.mark.planted
@pytest.mark.parametrize(("check", "text"), [
    ("reason_of_types", "i = bin"),
    ("reason_of_window", "RANK() OVER ()"),
    ("reason_of_position", "LEAD(i, n) OVER (ORDER BY id)"),
    ("_reason_of_place", "BOOL_AND(f)"),
    ("_reason_of_number", "SUM(NULL)"),
    ("_reason_of_text", "LENGTH(li)"),
    ("_reason_of_group", "SELECT COUNT(*) AS c FROM (SELECT DISTINCT mp AS v FROM x) q"),
])  # fmt: skip
def test_a_check_that_is_left_out_is_found(check: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "block" if text.startswith("SELECT") else "group" if text in ("BOOL_AND(f)", "SUM(NULL)") else "row"
    assert taken_otherwise([Case(place, text)]) == []
    own = getattr(duckdb_functions, check)
    checks = [(types, (lambda *_: None) if call is own else call) for types, call in duckdb_functions._CHECKS]
    monkeypatch.setattr(duckdb_functions, "_CHECKS", checks)
    monkeypatch.setattr(duckdb_functions, check, lambda *_: None)
    assert taken_otherwise([Case(place, text)])


@pytest.mark.planted
def test_a_decimal_that_is_taken_for_a_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its type is that of a sum of integers in Arrow, before it is cast."""
    texts = [sql for sql in kept("pairs").replies if "\nMAX(wide) AS c" in sql]
    answer = duckdb_engine._answer

    def plant(*arguments: Any) -> pa.Table:
        rows = answer(*arguments)
        wide, bigint = pa.decimal128(38, 0), pa.int64()
        return rows.cast(pa.schema([each.with_type(bigint) if each.type == wide else each for each in rows.schema]))

    monkeypatch.setattr(duckdb_engine, "_answer", plant)
    assert any(difference(Text(sql, ("k",), "pairs")) for sql in texts)
