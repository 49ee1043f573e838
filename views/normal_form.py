"""Normal form of a view's query (rule R0).

Theorem: the normal form has the rows of the query. In it every source of every FROM has an alias of its own in the
whole statement, each column is written `alias.column`, each output has a name, CTEs stand where they are read, joins
are INNER, LEFT, RIGHT, FULL or CROSS with ON, and an outer join whose null-extended rows a condition rejects is inner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlglot import exp

from epochlog.errors import InvalidInput, TableNotFound
from epochlog.store.types.schema import TableSchema

from . import syntax
from .advice import ADVICE, hint_for_column, keep_text
from .clauses import (
    all_outputs_in_order,
    grouping_keys,
    kind_of_join,
    name_of_output,
    refuse_earlier_outputs,
    refuse_misplaced,
    rename_outputs,
    require_width,
    unnamed,
    with_constants,
    with_totals_inside,
    with_window_definitions,
    without_ordinals,
)
from .column_history import change_of
from .null_rejection import inner_where_nulls_are_rejected
from .scope import FromSource, Scope, sources_in
from .tie_breaks import break_ties

NO_OUTPUTS: Mapping[str, exp.Expr] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NormalForm:
    """Query in normal form."""

    query: exp.Query
    outputs: tuple[str, ...]
    occurrences: Mapping[str, str]
    """Table of each occurrence, by alias, in the order of the text."""


@dataclass(frozen=True, slots=True)
class _Cte:
    query: exp.Expr
    columns: Sequence[str]
    ctes: Mapping[str, _Cte]


def normal_form(query: exp.Query, tables: Mapping[str, TableSchema]) -> NormalForm:
    """Return the normal form of a parsed query over these tables.

    Raises InvalidInput for a name that is unknown or ambiguous, and for clauses that views do not have; TableNotFound.
    """
    resolver = _Resolver(tables)
    normal, outputs = resolver.query(query, {}, None, for_expression=False)
    for test in normal.find_all(exp.In):
        require_width(test)
    named = Counter(name.lower() for name in outputs)
    if len(named) < len(outputs):
        twice = dict.fromkeys(name for name in outputs if named[name.lower()] > 1)
        raise InvalidInput(
            f"the query has two columns of one name: {', '.join(twice)}; write … AS name for one of them. Columns of "
            "one table whose names differ by case alone are renamed there: store.table('…').alter(rename={…})"
        )
    for number, name in enumerate(outputs):
        if name == unnamed(number):
            raise InvalidInput(f"column {number + 1} of the query has no name: write … AS name")
    return NormalForm(normal, tuple(outputs), resolver.occurrences)


class _Resolver:
    def __init__(self, tables: Mapping[str, TableSchema]) -> None:
        self._tables = {name.lower(): (name, table) for name, table in tables.items()}
        self._aliases = 0
        self.occurrences: dict[str, str] = {}

    def _alias(self) -> str:
        self._aliases += 1
        return f"s{self._aliases}"

    def _past(self, column: str) -> str:
        return change_of(column, (table for _, table in self._tables.values()))

    # queries

    def query(
        self, query: exp.Expr, ctes: Mapping[str, _Cte], outer: Scope | None, *, for_expression: bool
    ) -> tuple[exp.Query, list[str]]:
        """Return the normal form of a query, and the names of its outputs.

        for_expression: the query is a part of an expression, which reads its outputs by position.
        """
        ctes = _with_ctes(query, ctes)
        if isinstance(query, exp.Subquery):
            if not isinstance(query.this, exp.Query):
                raise InvalidInput(f"a view cannot join in parentheses: {query.sql(syntax.DIALECT)}")
            if syntax.is_limited(query):
                return self._limited(query, query.this, ctes, outer)
            return self.query(query.this, ctes, outer, for_expression=for_expression)
        if isinstance(query, exp.SetOperation):
            if syntax.is_limited(query):
                return self._limited(query, query, ctes, outer)
            return self._set_operation(query, ctes, outer, for_expression)
        assert isinstance(query, exp.Select)
        return self._select(query, ctes, outer, for_expression)

    def _limited(
        self, modified: exp.Expr, query: exp.Expr, ctes: Mapping[str, _Cte], outer: Scope | None
    ) -> tuple[exp.Query, list[str]]:
        """Return SELECT * FROM (query) with the ORDER BY and LIMIT that stand behind a query in parentheses."""
        inner = query.copy()
        if modified is query:
            for clause in ("order", "limit", "offset", "with_"):
                inner.set(clause, None)
        wrapper = syntax.select([exp.Star()])
        syntax.put_from(wrapper, syntax.derived(inner, "q"))
        for clause in ("order", "limit", "offset"):
            wrapper.set(clause, modified.args.get(clause))
        return self._select(wrapper, ctes, outer, for_expression=False)

    def _set_operation(
        self, query: exp.SetOperation, ctes: Mapping[str, _Cte], outer: Scope | None, for_expression: bool
    ) -> tuple[exp.Query, list[str]]:
        if query.args.get("by_name") or query.args.get("side") or query.args.get("on"):
            raise InvalidInput("a view cannot have UNION BY NAME: list the columns of both sides in one order")
        left, outputs = self.query(query.this, ctes, outer, for_expression=for_expression)
        right, others = self.query(query.expression, ctes, outer, for_expression=for_expression)
        if len(outputs) != len(others):
            raise InvalidInput(f"the sides of {query.key.upper()} have {len(outputs)} and {len(others)} columns")
        rename_outputs(right, outputs)
        sides = [exp.Subquery(this=side) if isinstance(side, exp.SetOperation) else side for side in (left, right)]
        sides = [exp.Subquery(this=side) if syntax.is_limited(side) else side for side in sides]
        distinct = bool(query.args.get("distinct"))
        return type(query)(this=sides[0], expression=sides[1], distinct=distinct), outputs

    def _select(
        self, query: exp.Select, ctes: Mapping[str, _Cte], outer: Scope | None, for_expression: bool
    ) -> tuple[exp.Query, list[str]]:
        scope, normal = Scope(outer), exp.Select()
        semi_joins = self._from(query, normal, ctes, scope)
        normal.set("expressions", self._outputs(query, ctes, scope))
        names = [output.alias for output in normal.expressions]
        if query.args.get("distinct"):
            if query.args["distinct"].args.get("on"):
                raise InvalidInput("a view cannot have DISTINCT ON: number the rows with ROW_NUMBER and take the first")
            normal.set("distinct", exp.Distinct())
        where = query.args.get("where")
        conditions = ([self._expression(where.this, ctes, scope)] if where else []) + semi_joins
        if conditions:
            normal.set("where", exp.Where(this=exp.and_(*(exp.paren(part) for part in conditions), copy=False)))
        self._group(query, normal, ctes, scope)
        self._order(query, normal, ctes, scope)
        if for_expression:
            names = [f"c{number + 1}" for number in range(len(names))]
            rename_outputs(normal, names)
        refuse_misplaced(normal)
        break_ties(normal, [(source.alias, source.key) for source in scope.sources])
        inner_where_nulls_are_rejected(normal)
        return normal, names

    # FROM

    def _from(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: Scope) -> list[exp.Expr]:
        """Add the sources to the scope and the normal form; return the conditions that SEMI and ANTI joins become."""
        if query.args.get("from_") is None:
            return []
        first, source = self._source(query.args["from_"].this, ctes)
        scope.add(source)
        syntax.put_from(normal, first)
        conditions: list[exp.Expr] = []
        for join in query.args.get("joins") or []:
            kind = kind_of_join(join)
            if conditions and kind in ("RIGHT", "FULL"):
                raise InvalidInput(
                    f"a view cannot have a SEMI or ANTI JOIN before a {kind} JOIN: put it into a subquery"
                )
            right, source = self._source(join.this, ctes)
            if kind in ("SEMI", "ANTI"):
                conditions.append(self._semi_join(join, kind, right, source, ctes, scope))
                continue
            on = self._joined(join, kind, source, ctes, scope)
            if kind == "CROSS" and on is not None:
                kind = "INNER"
            sided = {"side": kind} if kind in ("LEFT", "RIGHT", "FULL") else {}
            if on is None:
                if sided:
                    on = exp.true()
                else:
                    kind = "CROSS"
            crossed = {"kind": "CROSS"} if kind == "CROSS" else {}
            normal.append("joins", exp.Join(this=right, on=on, **sided, **crossed))
        return conditions

    def _source(self, node: exp.Expr, ctes: Mapping[str, _Cte]) -> tuple[exp.Expr, FromSource]:
        alias, renamed = self._alias(), list(node.alias_column_names)
        if isinstance(node, exp.Subquery):
            if not isinstance(node.this, exp.Query):
                raise InvalidInput(f"a view cannot join in parentheses: {node.sql(syntax.DIALECT)}")
            bare = node.copy()
            bare.set("alias", None)
            inner, columns = self.query(bare, ctes, None, for_expression=False)
            name = node.alias
        elif isinstance(node, exp.Table) and not node.db and node.name.lower() in ctes:
            cte = ctes[node.name.lower()]
            inner, columns = self.query(cte.query, cte.ctes, None, for_expression=False)
            if cte.columns:
                columns = _renamed(inner, columns, cte.columns)
            name = node.alias or node.name
        elif isinstance(node, exp.Table):
            return self._base(node, alias, renamed)
        else:
            raise InvalidInput(f"a view cannot read {node.key.upper()}: {node.sql(syntax.DIALECT)}")
        if renamed:
            columns = _renamed(inner, columns, renamed)
        if len({column.lower() for column in columns}) < len(columns):
            raise InvalidInput(f"the subquery {name!r} has two columns of one name: {', '.join(columns)}")
        return syntax.derived(inner, alias), FromSource(name, alias, columns, columns)

    def _base(self, node: exp.Table, alias: str, renamed: Sequence[str]) -> tuple[exp.Expr, FromSource]:
        extra = [clause for clause, value in node.args.items() if value and clause not in ("this", "alias")]
        if extra or not isinstance(node.this, exp.Identifier):
            raise InvalidInput(f"a view reads tables of its store by name alone, not {node.sql(syntax.DIALECT)!r}")
        if node.name.lower() not in self._tables:
            raise TableNotFound(f"the query reads the table {node.name!r}, which the store does not have")
        name, table = self._tables[node.name.lower()]
        columns = list(table.schema.names)
        self.occurrences[alias] = name
        if not renamed:
            return syntax.table(name, alias), FromSource(node.alias or node.name, alias, columns, table.primary_key)
        of_table = FromSource(name, alias, columns, table.primary_key)
        named = [(of_table.column(column), column) for column in columns]
        inner = syntax.select(syntax.named(value, column) for value, column in named if value is not None)
        syntax.put_from(inner, syntax.table(name, alias))
        outer, columns = self._alias(), _renamed(inner, columns, renamed)
        return syntax.derived(inner, outer), FromSource(node.alias or node.name, outer, columns, columns)

    def _semi_join(
        self, join: exp.Join, kind: str, right: exp.Expr, source: FromSource, ctes: Mapping[str, _Cte], scope: Scope
    ) -> exp.Expr:
        on = self._joined(join, kind, source, ctes, scope.copy())
        scope.put_first([identifier.name for identifier in join.args.get("using") or []])
        query = syntax.select([syntax.named(exp.Literal.number(1), "c1")])
        syntax.put_from(query, right)
        if on is not None:
            query.set("where", exp.Where(this=on))
        exists = exp.Exists(this=query)
        return exists if kind == "SEMI" else exp.Not(this=exists)

    def _joined(
        self, join: exp.Join, kind: str, source: FromSource, ctes: Mapping[str, _Cte], scope: Scope
    ) -> exp.Expr | None:
        """Add the right source of a join to the scope; return the condition of ON or USING."""
        names = [identifier.name for identifier in join.args.get("using") or []]
        if names:
            return exp.and_(*scope.merge(source, names, kind, self._past), copy=False)
        scope.add(source)
        return self._expression(join.args["on"], ctes, scope) if join.args.get("on") else None

    # names

    def _column(self, node: exp.Column, scope: Scope, outputs: Mapping[str, exp.Expr]) -> exp.Expr | None:
        """Return what a column means: one of FROM, else an output, else a column of a block around."""
        if node.args.get("db"):
            raise InvalidInput(f"a view cannot read {node.sql(syntax.DIALECT)}, which is no column: {ADVICE['DOT']}")
        if isinstance(node.this, exp.Star):
            raise InvalidInput(f"a view cannot read {node.sql(syntax.DIALECT)!r} here")
        if node.table:
            is_source, match = scope.find_in(node.table, node.name)
        else:
            column = scope.find(node.name)
            is_source, match = False, column.value if column else outputs.get(node.name.lower())
        if match is not None or is_source or scope.outer is None:
            return match
        return self._column(node, scope.outer, {})

    def _expression(
        self,
        node: exp.Expr,
        ctes: Mapping[str, _Cte],
        scope: Scope,
        outputs: Mapping[str, exp.Expr] = NO_OUTPUTS,
    ) -> exp.Expr:
        """Return a scalar expression with its columns resolved. outputs: by name, for those that no source has."""

        def visit(current: exp.Expr) -> exp.Expr:
            if isinstance(current, exp.Query):
                inner, _ = self.query(current, ctes, scope, for_expression=True)
                return exp.Subquery(this=inner) if isinstance(current, exp.Subquery) else inner
            if isinstance(current, exp.Column):
                match = self._column(current, scope, outputs)
                if match is None:
                    text = current.sql(syntax.DIALECT)
                    if current.table and scope.find(current.table) is not None:
                        raise InvalidInput(f"a view cannot read {text}, a field of a struct: {ADVICE['DOT']}")
                    hint = self._past(current.name) or hint_for_column(current, sources_in(scope))
                    raise InvalidInput(f"the query reads the column {text}, which is unknown{hint}")
                return keep_text(match.copy(), current)
            for name, value in list(current.args.items()):
                if isinstance(value, exp.Expr):
                    current.set(name, visit(value))
                elif isinstance(value, list):
                    current.set(name, [visit(part) if isinstance(part, exp.Expr) else part for part in value])
            return current

        return visit(node.copy())

    def _with_outputs(
        self,
        node: exp.Expr,
        ctes: Mapping[str, _Cte],
        scope: Scope,
        outputs: Mapping[str, exp.Expr],
        keys: Sequence[exp.Expr] = (),
    ) -> exp.Expr:
        """Return an expression of HAVING or ORDER BY, in which a name means an output before a column of FROM, but not
        in aggregates, subqueries and the keys of GROUP BY.
        """

        def visit(current: exp.Expr) -> exp.Expr:
            if isinstance(current, exp.AggFunc | exp.Window | exp.Query):
                return self._expression(current, ctes, scope, outputs)
            if not syntax.has_query(current):  # each subquery is resolved once
                plain = self._expression(current, ctes, scope, outputs)
                if plain in keys or (isinstance(current, exp.Column) and current.table):
                    return plain
                if isinstance(current, exp.Column):
                    return outputs.get(current.name.lower(), plain).copy()
            for child in list(current.iter_expressions()):
                child.replace(visit(child))
            return current

        return visit(node.copy())

    # SELECT, GROUP BY, ORDER BY

    def _outputs(self, query: exp.Select, ctes: Mapping[str, _Cte], scope: Scope) -> list[exp.Expr]:
        windows = {window.name.lower(): window for window in query.args.get("windows") or []}
        outputs: list[exp.Expr] = []
        earlier: set[str] = set()
        for node in query.expressions:
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                outputs += scope.star(node)
                continue
            inside = node.this if isinstance(node, exp.Alias) else node
            name = name_of_output(node) or unnamed(len(outputs))
            inside = with_window_definitions(inside, windows)
            refuse_earlier_outputs(inside, earlier, scope)
            if isinstance(node, exp.Alias):
                earlier.add(name.lower())
            outputs.append(syntax.named(self._expression(inside, ctes, scope), name))
        return outputs

    def _group(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: Scope) -> None:
        outputs = {output.alias.lower(): output.this for output in reversed(normal.expressions)}
        group = query.args.get("group")
        if group is not None:
            if group.args.get("totals"):
                raise InvalidInput("a view cannot have GROUP BY … WITH TOTALS")
            if group.args.get("all"):
                keys = [output.this.copy() for output in normal.expressions if not syntax.has_aggregate(output.this)]
                resolved = exp.Group(expressions=keys)
            else:
                resolved = without_ordinals(with_totals_inside(group), query)
                resolved = self._expression(resolved, ctes, scope, outputs)
            if not group.args.get("all") or resolved.expressions:  # else it is one group, also of no rows
                normal.set("group", with_constants(resolved))
        if query.args.get("having"):
            keys = grouping_keys(normal.args.get("group"))
            having = self._with_outputs(query.args["having"].this, ctes, scope, outputs, keys)
            normal.set("having", exp.Having(this=having))

    def _order(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: Scope) -> None:
        """Keep ORDER BY, LIMIT and OFFSET of a limited block. ORDER BY alone says nothing about a view's rows."""
        if not syntax.is_limited(query):
            return
        if not query.args.get("order"):
            raise InvalidInput("a view cannot have LIMIT without ORDER BY: its rows would be arbitrary")
        for clause in ("limit", "offset"):
            node = query.args.get(clause)
            if node is not None:
                if not (isinstance(node.expression, exp.Literal) and node.expression.is_int):
                    raise InvalidInput(f"{clause.upper()} of a view takes a number")
                normal.set(clause, node.copy())
        outputs = {output.alias.lower(): output.this for output in reversed(normal.expressions)}
        terms = []
        for ordered in all_outputs_in_order(query.args["order"], len(normal.expressions)):
            term, inside = ordered.copy(), ordered.this
            if isinstance(inside, exp.Literal) and inside.is_int:
                term.set("this", exp.Literal.number(inside.name))
            elif isinstance(inside, exp.Column) and not inside.table and inside.name.lower() in outputs:
                names = [output.alias.lower() for output in normal.expressions]
                term.set("this", exp.Literal.number(names.index(inside.name.lower()) + 1))
            else:
                for column in syntax.columns(inside) if query.args.get("distinct") else ():
                    if self._with_outputs(column, ctes, scope, outputs) != outputs.get(column.name.lower()):
                        raise InvalidInput(
                            f"a view cannot order SELECT DISTINCT by {column.sql(syntax.DIALECT)}, which is no output "
                            "of this name: add it to the SELECT, or write its alias"
                        )
                term.set("this", self._with_outputs(inside, ctes, scope, outputs))
            terms.append(term)
        normal.set("order", exp.Order(expressions=terms))


def _with_ctes(query: exp.Expr, ctes: Mapping[str, _Cte]) -> Mapping[str, _Cte]:
    clause = query.args.get("with_")
    if clause is None:
        return ctes
    known, own = dict(ctes), set[str]()
    for cte in clause.expressions:
        if not isinstance(cte.this, exp.Query):
            raise InvalidInput(f"a view's WITH takes queries, not {cte.this.key.upper()}")
        renamed = [column.name for column in cte.args["alias"].columns]
        if cte.alias.lower() in own:
            raise InvalidInput(f"WITH has two queries of one name, {cte.alias}: give one of them another name")
        own.add(cte.alias.lower())
        known[cte.alias.lower()] = _Cte(cte.this, renamed, dict(known))
    return known


def _renamed(query: exp.Query, columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Give the outputs of a query in normal form other names, by position; return these."""
    if len(columns) != len(names):
        raise InvalidInput(f"{len(names)} column names are given to a query with {len(columns)} columns")
    rename_outputs(query, names)
    return list(names)
