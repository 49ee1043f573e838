"""Helpers over sqlglot's expressions: blocks without their subqueries, conjuncts, aliases and names (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.errors import UnsupportedError

from epochlog.errors import InvalidInput

from .spark_dialect import SparkText

DIALECT = SparkText
"""Dialect of the text of views, on each engine."""


def text_of(query: exp.Expr, dialect: DialectType, *, identify: bool) -> str:
    """Return the text of a query. Raises InvalidInput for what the dialect cannot say."""
    try:
        return query.sql(dialect, identify=identify, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise InvalidInput(f"a view cannot have this in its query: {error}") from error


def walk(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the node and all below it, but nothing inside of a subquery; the subquery's own node is yielded."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        if not isinstance(current, exp.Query) or current is node:
            pending.extend(reversed(list(current.iter_expressions())))


def unwrapped(query: exp.Expr) -> exp.Query:
    """Return a query without the parentheses around it."""
    while isinstance(query, exp.Subquery) and isinstance(query.this, exp.Query):
        query = query.this
    assert isinstance(query, exp.Query)
    return query


def columns(node: exp.Expr) -> Iterator[exp.Column]:
    """Yield the columns that an expression reads outside of its subqueries."""
    return (child for child in walk(node) if isinstance(child, exp.Column))


def has_query(node: exp.Expr) -> bool:
    """Return True if the expression contains a subquery."""
    return any(isinstance(child, exp.Query) for child in walk(node))


def has_aggregate(node: exp.Expr) -> bool:
    """Return True if the expression contains an aggregate of its own block. A window's function is none."""
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, exp.Query):
            continue
        if isinstance(current, exp.Window):
            inside = function_of(current)
            pending.extend(child for child in inside.iter_expressions())
            pending.extend(child for child in current.iter_expressions() if child is not current.this)
            continue
        if isinstance(current, exp.AggFunc):
            return True
        pending.extend(current.iter_expressions())
    return False


def function_of(window: exp.Window) -> exp.Expr:
    """Return the function of a window, without IGNORE NULLS and FILTER."""
    inside = window.this
    while isinstance(inside, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        inside = inside.this
    return inside


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the conjuncts of a condition; none for no condition."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def conjunction(parts: Iterable[exp.Expr]) -> exp.Expr | None:
    """Return the AND of the parts, copied; None for no parts."""
    copies = [part.copy() for part in parts]
    return exp.and_(*copies) if copies else None


def column(alias: str, name: str) -> exp.Column:
    """Return the column `name` of the source `alias`."""
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))


def named(expression: exp.Expr, name: str) -> exp.Alias:
    """Return the expression under a name."""
    return exp.Alias(this=expression.copy(), alias=exp.to_identifier(name, quoted=True))


def derived(query: exp.Expr, alias: str) -> exp.Subquery:
    """Return a query as a source of FROM."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def table(name: str, alias: str) -> exp.Table:
    """Return a table as a source of FROM."""
    return exp.Table(
        this=exp.to_identifier(name, quoted=True), alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
    )


def with_names(query: exp.Expr, name_of: Callable[[str], str]) -> exp.Expr:
    """Return a copy of a query with other names of its tables."""
    query = query.copy()
    for node in query.find_all(exp.Table):
        node.set("this", exp.to_identifier(name_of(node.name), quoted=True))
    return query


def select(outputs: Iterable[exp.Expr]) -> exp.Select:
    """Return a SELECT of these named expressions."""
    return exp.Select(expressions=list(outputs))


def union(queries: Sequence[exp.Query], *, distinct: bool = True) -> exp.Query:
    """Return the UNION of queries, at least one; not distinct: UNION ALL."""
    first, *others = queries
    for query in others:
        first = exp.Union(this=first, expression=query, distinct=distinct)
    return first


def put_from(query: exp.Select, source: exp.Expr) -> None:
    """Set the first source of FROM."""
    query.set("from_", exp.From(this=source))


def is_limited(query: exp.Expr) -> bool:
    """Return True if the query has LIMIT or OFFSET."""
    return bool(query.args.get("limit") or query.args.get("offset"))


def joins_of(query: exp.Select) -> list[exp.Join]:
    """Return the joins of a block, in order."""
    return query.args.get("joins") or []


def sources_of(query: exp.Select) -> list[exp.Expr]:
    """Return the sources of a block's FROM, in order."""
    first = query.args.get("from_")
    return ([first.this] if first else []) + [join.this for join in joins_of(query)]


def condition_of(query: exp.Select, clause: str) -> exp.Expr | None:
    """Return the condition of WHERE or HAVING."""
    clause_node = query.args.get(clause)
    return clause_node.this if clause_node else None


def replaced(node: exp.Expr, change: Callable[[exp.Column], exp.Expr | None]) -> exp.Expr:
    """Return a copy in which `change` has replaced columns, those in subqueries too; None keeps a column."""

    def visit(current: exp.Expr) -> exp.Expr:
        if isinstance(current, exp.Column):
            return change(current) or current
        return current

    return node.copy().transform(visit, copy=False)


def lookup(names: Mapping[str, str], name: str) -> str | None:
    """Return the spelling of a name that is compared without case."""
    return names.get(name.lower())


def has_join(query: exp.Expr) -> bool:
    """Return True if a query joins tables: by JOIN, EXISTS, or IN of a query."""
    is_in = any(node.args.get("query") is not None for node in query.find_all(exp.In))
    return is_in or query.find(exp.Join, exp.Exists) is not None
