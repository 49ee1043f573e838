"""Refusal of texts that Spark reads as the clock where it needs a date or a timestamp: 'now', 'today' and others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .advice import ADVICE, written
from .common_types import values_with_one_type
from .duckdb_functions import OF_MOMENTS
from .value_kinds import ValueKinds, kind_of_type

_CLOCK = re.compile(r"\s*(now|today|yesterday|tomorrow)\b", re.IGNORECASE)
_MOMENTS = ("date", "timestamp")


def require_no_clock(query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
    """Raise InvalidInput if a text of a query in normal form is the present moment for Spark.

    tables: by alias of an occurrence.
    """
    kinds = ValueKinds(query, tables, schemas)
    for node in query.walk():
        for value in _read_as_moments(node, kinds):
            if _can_be_clock(value.unnest(), kinds):
                raise InvalidInput(
                    f"a view cannot have {written(value)} as a date or timestamp in {written(node)}: its value is "
                    f"another one at each run; {ADVICE['NOW']}"
                )


def _read_as_moments(node: exp.Expr, kinds: ValueKinds) -> list[exp.Expr]:
    """Return the parts of a node that Spark casts to a date or a timestamp."""
    if isinstance(node, exp.Cast):
        return [node.this] if kind_of_type(node.to) in _MOMENTS else []
    if isinstance(node, OF_MOMENTS):
        return [node.this, *([node.expression] if isinstance(node, exp.DateDiff) else [])]
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        return [node.this]
    lists = values_with_one_type(node, kinds)
    return [value for values in lists if any(kinds.of(other) in _MOMENTS for other in values) for value in values]


def _can_be_clock(value: exp.Expr, kinds: ValueKinds) -> bool:
    """Return True for a word of the clock, and for a text that Spark makes of literals before it casts it."""
    if isinstance(value, exp.Literal):
        return value.is_string and _CLOCK.match(value.name) is not None
    return kinds.of(value) == "text" and not isinstance(value, exp.Query) and not any(syntax.columns(value))
