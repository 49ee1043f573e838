"""Restriction of a query to touched values (rule R8).

Theorem: the rows of the restricted query are those rows of the query whose values of the scope's outputs are among the
touched ones. NULL is a value. The condition stands at the top, and again further down where it removes no row that the
top keeps: in a block's WHERE if the outputs are stable in it, and at a table if no outer join can extend its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .opening import output_names
from .stability import is_aggregated, stable_outputs, windows_of

TOUCHED = "epochlog_touched"
"""Name of the table of touched values; its columns are those of the scope."""
_ALIAS = "touched"

Key = tuple[str, str]
"""Column of a source: alias and name."""


def restricted(
    query: exp.Query, scope: Sequence[str], tables: Mapping[str, str], schemas: Mapping[str, TableSchema]
) -> exp.Select:
    """Return the query for the rows whose outputs `scope` have touched values."""
    inner = query.copy()
    _Restriction(tables, schemas).push(inner, {name: name for name in scope})
    names = output_names(query)
    outer = syntax.select(syntax.named(syntax.column("q", name), name) for name in names)
    syntax.put_from(outer, syntax.derived(inner, "q"))
    outer.set("where", exp.Where(this=is_touched({name: syntax.column("q", name) for name in scope})))
    return outer


def is_touched(values: Mapping[str, exp.Expr]) -> exp.Exists:
    """Return the condition that these values are touched. values: by column of the table of touched values."""
    query = syntax.select([syntax.named(exp.Literal.number(1), "c1")])
    syntax.put_from(query, syntax.table(TOUCHED, _ALIAS))
    parts = [
        exp.NullSafeEQ(this=syntax.column(_ALIAS, name), expression=exp.paren(value.copy()))
        for name, value in values.items()
    ]
    query.set("where", exp.Where(this=exp.and_(*parts, copy=False)))
    return exp.Exists(this=query)


class _Restriction:
    def __init__(self, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
        self._tables, self._schemas = tables, schemas

    def push(self, query: exp.Query, outputs: Mapping[str, str]) -> None:
        """Restrict a query in place. outputs: column of touched values by output."""
        query = syntax.unwrapped(query)
        if isinstance(query, exp.SetOperation):
            sides = (query.this, query.expression)
            same = {name: column for name, column in outputs.items() if self._type(query, name) is not None}
            for side in sides:
                self.push(side, same)
            return
        assert isinstance(query, exp.Select)
        expressions = {output.alias: output.this for output in query.expressions}
        is_stable = stable_outputs(query, lambda _: True, changes=True)
        pushed = {column: expressions[name] for name, column in outputs.items() if is_stable(expressions[name])}
        if not pushed:
            return
        whole = False
        for alias, columns in self._by_source(query, pushed).items():
            whole |= set(columns.values()) == set(pushed)
            self._restrict_source(query, alias, columns)
        if not whole and (is_aggregated(query) or windows_of(query)):
            condition = syntax.condition_of(query, "where")
            parts = [exp.paren(condition.copy())] if condition else []
            query.set("where", exp.Where(this=exp.and_(*parts, is_touched(pushed), copy=False)))

    def _by_source(self, query: exp.Select, pushed: Mapping[str, exp.Expr]) -> dict[str, dict[str, str]]:
        """Return the columns of sources that must be touched, with the column of touched values, by source."""
        extended = _extended(query)
        edges = self._equalities(query)
        by_source: dict[str, dict[str, str]] = {}
        for touched_column, expression in pushed.items():
            if not isinstance(expression, exp.Column) or expression.table in extended:
                continue
            start = (expression.table, expression.name)
            reached, pending = {start}, [start]
            while pending:
                current = pending.pop()
                following = [target for source, target in edges if source == current and target not in reached]
                reached.update(following)
                pending += following
            for alias, name in sorted(reached):
                by_source.setdefault(alias, {})[name] = touched_column
        return by_source

    def _equalities(self, query: exp.Select) -> list[tuple[Key, Key]]:
        """Return the pairs of columns of which the second is equal to the first in each row that the query keeps."""
        edges: list[tuple[Key, Key]] = []
        parts = [(part, "", "") for part in syntax.conjuncts(syntax.condition_of(query, "where"))]
        for join in syntax.joins_of(query):
            parts += [(part, join.side or "", join.this.alias) for part in syntax.conjuncts(join.args.get("on"))]
        for part, side, right in parts:
            if not isinstance(part, exp.EQ) or side == "FULL":
                continue
            left_column, right_column = part.this, part.expression
            if not (isinstance(left_column, exp.Column) and isinstance(right_column, exp.Column)):
                continue
            for a, b in ((left_column, right_column), (right_column, left_column)):
                if side == "LEFT" and (b.table != right or a.table == right):
                    continue
                if side == "RIGHT" and (a.table != right or b.table == right):
                    continue
                kind = self._type_of_column(query, a)
                if kind is not None and kind == self._type_of_column(query, b):
                    edges.append(((a.table, a.name), (b.table, b.name)))
        return edges

    def _restrict_source(self, query: exp.Select, alias: str, columns: Mapping[str, str]) -> None:
        node = _source(query, alias)
        if node is None:
            return
        if not isinstance(node, exp.Table):
            self.push(node.this, columns)
            return
        inner = syntax.select([exp.Star()])
        syntax.put_from(inner, node.copy())
        inner.set(
            "where",
            exp.Where(this=is_touched({touched: syntax.column(alias, name) for name, touched in columns.items()})),
        )
        node.replace(syntax.derived(inner, alias))

    def _type(self, query: exp.Query, name: str) -> object | None:
        """Return the type of an output that is a table's column on each side of all set operations; None for others."""
        query = syntax.unwrapped(query)
        if isinstance(query, exp.SetOperation):
            left, right = self._type(query.this, name), self._type(query.expression, name)
            return left if left is not None and left == right else None
        expression = next(output.this for output in query.expressions if output.alias == name)
        return self._type_of_column(query, expression) if isinstance(expression, exp.Column) else None

    def _type_of_column(self, query: exp.Query, column: exp.Column) -> object | None:
        assert isinstance(query, exp.Select)
        node = _source(query, column.table)
        if node is None:
            return None
        if isinstance(node, exp.Table):
            return self._schemas[self._tables[node.alias]].schema.field(column.name).type
        return self._type(node.this, column.name) if isinstance(node.this, exp.Query) else None


def _source(query: exp.Select, alias: str) -> exp.Expr | None:
    return next((source for source in syntax.sources_of(query) if source.alias == alias), None)


def _extended(query: exp.Select) -> set[str]:
    """Return the sources that an outer join can extend by NULLs."""
    extended: set[str] = set()
    before = {source.alias for source in syntax.sources_of(query)[:1]}
    for join in syntax.joins_of(query):
        if join.side in ("RIGHT", "FULL"):
            extended |= before
        before.add(join.this.alias)
        if join.side in ("LEFT", "FULL"):
            extended.add(join.this.alias)
    return extended
