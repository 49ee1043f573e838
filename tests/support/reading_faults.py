"""Faults of reading a view's text, planted behind the parser, and the group of texts that shows each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from sqlglot import exp

from epochlog.views import definition, derivation

Change = Callable[[exp.Query], object]


def _read(patch: pytest.MonkeyPatch, text: Callable[[str], str] | None = None, tree: Change | None = None) -> None:
    original = derivation.parse

    def parse(sql: str) -> exp.Query:
        query = original(text(sql) if text else sql)
        if tree:
            tree(query)
        return query

    for module in (definition, derivation):
        patch.setattr(module, "parse", parse)


def _a_doubled_quote_is_none(patch: pytest.MonkeyPatch) -> None:
    _read(patch, lambda sql: sql.replace("''", "").replace('""', ""))


def _two_backslashes_are_two_characters(patch: pytest.MonkeyPatch) -> None:
    _read(patch, lambda sql: sql.replace("\\\\", "\\\\\\\\"))


def _two_dashes_begin_a_comment_anywhere(patch: pytest.MonkeyPatch) -> None:
    _read(patch, lambda sql: sql.replace("'-- no comment'", "''"))


def _lists_of_columns(change: Callable[[list[exp.Expr]], list[exp.Expr]]) -> Change:
    def tree(query: exp.Query) -> None:
        for alias in query.find_all(exp.TableAlias):
            if len(alias.columns) > 1:
                alias.set("columns", change(list(alias.columns)))

    return tree


def _lists_of_columns_are_rotated(patch: pytest.MonkeyPatch) -> None:
    _read(patch, tree=_lists_of_columns(lambda columns: [*columns[1:], columns[0]]))


def _lists_of_columns_are_names(patch: pytest.MonkeyPatch) -> None:
    """A list whose names the query has is taken for a choice of its columns by name."""

    def tree(query: exp.Query) -> None:
        for source in query.find_all(exp.Subquery):
            names = [column.name for column in source.args["alias"].columns] if source.args.get("alias") else []
            if names and set(names) == set(source.this.named_selects):
                source.args["alias"].set("columns", [])

    _read(patch, tree=tree)


def _joins(change: Callable[[list[exp.Join]], object]) -> Change:
    def tree(query: exp.Query) -> None:
        for block in query.find_all(exp.Select):
            joins = [join for join in block.args.get("joins") or [] if join.args.get("using")]
            if joins:
                change(block.args["joins"])

    return tree


def _chained_using_merges_backwards(patch: pytest.MonkeyPatch) -> None:
    _read(patch, tree=_joins(lambda joins: joins.reverse()))


def _using_of_a_full_join_takes_the_left_column(patch: pytest.MonkeyPatch) -> None:
    def left(joins: list[exp.Join]) -> None:
        for join in joins:
            if join.side in ("FULL", "RIGHT"):
                join.set("side", "LEFT")

    _read(patch, tree=_joins(left))


def _windows(change: Callable[[exp.Window], object]) -> Change:
    def tree(query: exp.Query) -> None:
        for window in list(query.find_all(exp.Window)):
            if window.args.get("order") and not window.args.get("spec"):
                change(window)

    return tree


def _frame(end: str) -> exp.WindowSpec:
    sides = {"end_side": "FOLLOWING"} if end == "UNBOUNDED" else {}
    return exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end=end, **sides)


def _default_frames_end_at_the_row(patch: pytest.MonkeyPatch) -> None:
    _read(patch, tree=_windows(lambda window: window.set("spec", _frame("CURRENT ROW"))))


def _default_frames_have_all_rows(patch: pytest.MonkeyPatch) -> None:
    _read(patch, tree=_windows(lambda window: window.set("spec", _frame("UNBOUNDED"))))


def _nulls_come_last(patch: pytest.MonkeyPatch) -> None:
    def last(query: exp.Query) -> None:
        for ordered in query.find_all(exp.Ordered):
            ordered.set("nulls_first", not ordered.args.get("nulls_first"))

    _read(patch, tree=last)


def _predicates_are_of_the_last_operand(patch: pytest.MonkeyPatch) -> None:
    def tree(query: exp.Query) -> None:
        for test in list(query.find_all(exp.In, exp.Between, exp.Is)):
            left = test.this.unnest()
            if isinstance(left, exp.EQ | exp.LT | exp.GT):
                test.replace(left)
                test.set("this", left.expression.copy())
                left.set("expression", exp.Paren(this=test))

    _read(patch, tree=tree)


FAULTS: Mapping[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a doubled quote is none": (_a_doubled_quote_is_none, "quotes"),
    "two backslashes are two characters": (_two_backslashes_are_two_characters, "quotes"),
    "two dashes begin a comment anywhere": (_two_dashes_begin_a_comment_anywhere, "quotes"),
    "predicates are of the last operand": (_predicates_are_of_the_last_operand, "predicates"),
    "lists of columns are rotated": (_lists_of_columns_are_rotated, "column lists"),
    "lists of columns are names": (_lists_of_columns_are_names, "column lists"),
    "chained USING merges backwards": (_chained_using_merges_backwards, "USING"),
    "USING of a full join takes the left column": (_using_of_a_full_join_takes_the_left_column, "USING"),
    "default frames end at the row": (_default_frames_end_at_the_row, "frames"),
    "default frames have all rows": (_default_frames_have_all_rows, "frames"),
    "NULLs come last": (_nulls_come_last, "frames"),
}
