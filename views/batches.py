"""Occurrences of a table whose touched values one query gives: those in different sides of set operations (rule R6).

Theorem: a query of touched values is monotone, and the changed rows of an occurrence in one side of a set operation
change no other side. So the query that reads the changed rows of several sides in place of one has the touched values
of each of them. A table in n sides then takes one query of n sides in place of n queries, each with all the sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from sqlglot import exp

from . import syntax

Batch = tuple[str, ...]
"""Aliases of occurrences of one table."""


def batches_of(query: exp.Query, tables: Mapping[str, str]) -> tuple[Batch, ...]:
    """Return each occurrence of a query in one batch. tables: by alias of an occurrence."""
    return tuple(batch for of_table in _batches(query, tables).values() for batch in of_table)


def _batches(query: exp.Expr, tables: Mapping[str, str]) -> dict[str, list[Batch]]:
    """Return the batches of a query by table."""
    query = syntax.unwrapped(query)
    batches: dict[str, list[Batch]] = {}
    if isinstance(query, exp.SetOperation):
        left, right = _batches(query.this, tables), _batches(query.expression, tables)
        for table in dict.fromkeys((*left, *right)):
            pairs = zip_longest(left.get(table, ()), right.get(table, ()), fillvalue=())
            batches[table] = [(*of_left, *of_right) for of_left, of_right in pairs]
        return batches
    assert isinstance(query, exp.Select)
    in_sources = set[str]()
    for source in syntax.sources_of(query):
        is_table = isinstance(source, exp.Table)
        own = {tables[source.alias]: [(source.alias,)]} if is_table else _batches(source.this, tables)
        for table, of_source in own.items():
            batches.setdefault(table, []).extend(of_source)
            in_sources.update(alias for batch in of_source for alias in batch)
    for node in query.find_all(exp.Table):
        if node.alias in tables and node.alias not in in_sources:  # in a subquery of an expression
            batches.setdefault(tables[node.alias], []).append((node.alias,))
    return batches
