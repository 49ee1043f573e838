"""Rows that a barrier adds to an inner join and takes from it (a part of rule R9, pure).

Theorem: let J(T1, …, Tn) be the rows of an inner join of n occurrences of tables, with their numbers, and let the old
rows of an occurrence have become new ones by a change of signed images: new = old + change. An inner join is linear in
each occurrence: J(…, A + B, …) = J(…, A, …) + J(…, B, …), for signed numbers of rows too. So

    J(new1, …, newn) - J(old1, …, oldn) = sum over i of J(new1, …, new(i-1), change(i), old(i+1), …, oldn)

for the terms between neighbours cancel each other. The term of an occurrence without changes is empty. Two occurrences
of one table are two of the n. An outer join is not linear: a row that is added to one side takes a null-extended row of
the other side away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlglot import exp

from . import syntax
from .opening import aliases_of
from .table_names import IS_NEW, NOW, OLD, SIGNED, numbered

TERM = "epochlog_term"
"""Column with the number of a row's term. Terms are in the order of their changes."""


def is_inner_join(block: exp.Select) -> bool:
    """Return True if the block's FROM is one table, or an inner join of tables."""
    sources = syntax.sources_of(block)
    return (
        bool(sources)
        and all(isinstance(source, exp.Table) for source in sources)
        and not any(join.side for join in syntax.joins_of(block))
    )


def delta_join(
    block: exp.Select, outputs: Mapping[str, exp.Expr], tables: Mapping[str, str], changed: Collection[str]
) -> exp.Query:
    """Return the query of the rows that a block's join gains and loses: outputs of them by name, IS_NEW and TERM.

    tables: by alias of an occurrence. changed: the tables with changes, at least one of them.
    """
    aliases = [source.alias for source in syntax.sources_of(block)]
    queries: list[exp.Query] = []
    for place in _changed_places(aliases, tables, changed):
        names = {}
        for number, alias in enumerate(aliases):
            prefix = OLD if number > place and tables[alias] in changed else NOW
            kind = SIGNED if number == place else prefix
            names[alias] = numbered(kind, len(queries) * len(aliases) + number, tables[alias])
        queries.append(_term(block, outputs, aliases[place], names, len(queries)))
    return syntax.union(queries, distinct=False)


def _changed_places(aliases: Sequence[str], tables: Mapping[str, str], changed: Collection[str]) -> list[int]:
    """Return the places of the occurrences with changes."""
    return [place for place, alias in enumerate(aliases) if tables[alias] in changed]


def _term(
    block: exp.Select, outputs: Mapping[str, exp.Expr], changed: str, names: Mapping[str, str], number: int
) -> exp.Select:
    """Return the join of an occurrence's changes with the rows of the others. names: of the tables, by alias."""
    conditions = syntax.conjuncts(syntax.condition_of(block, "where"))
    for join in syntax.joins_of(block):
        conditions += syntax.conjuncts(join.args.get("on"))
    named = [syntax.named(expression, name) for name, expression in outputs.items()]
    term = syntax.named(exp.Literal.number(number), TERM)
    query = syntax.select([*named, syntax.named(syntax.column(changed, IS_NEW), IS_NEW), term])
    first, *others = _in_order(changed, list(names), conditions)
    syntax.put_from(query, syntax.table(names[first], first))
    query.set("joins", [exp.Join(this=syntax.table(names[alias], alias), kind="CROSS") for alias in others])
    if conditions:
        where = exp.and_(*(exp.paren(condition.copy()) for condition in conditions), copy=False)
        query.set("where", exp.Where(this=where))
    return query


def _in_order(first: str, aliases: Sequence[str], conditions: Sequence[exp.Expr]) -> list[str]:
    """Return the sources from the changed one on, each connected to those before it where a condition does so."""
    edges = [aliases_of(condition) for condition in conditions]
    order, pending = [first], [alias for alias in aliases if alias != first]
    while pending:
        following = (a for a in pending if any(a in edge and edge <= {a, *order} and len(edge) > 1 for edge in edges))
        order.append(next(following, pending[0]))
        pending.remove(order[-1])
    return order
