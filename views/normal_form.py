"""Normal form of a view's query (rule R0).

Theorem: the normal form has the rows of the query. In it every source of every FROM has an alias of its own in the
whole statement, each column is written `alias.column`, each output has a name, CTEs stand where they are read, joins
are INNER, LEFT, RIGHT, FULL or CROSS with ON, and an outer join whose null-extended rows a condition rejects is inner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from epochlog.errors import InvalidInput, TableNotFound
from epochlog.store.types.schema import TableSchema

from . import syntax
from .advice import ADVICE, hint_for_column, keep_text
from .clauses import (
    grouping_keys,
    kind_of_join,
    name_of_output,
    refuse_misplaced,
    rename_outputs,
    require_width,
    unnamed,
    with_totals_inside,
    with_window_definitions,
    without_ordinals,
)
from .column_history import change_of
from .null_rejection import inner_where_nulls_are_rejected
from .tie_breaks import break_ties


@dataclass(frozen=True, slots=True)
class NormalForm:
    """Query in normal form. occurrences: table of each occurrence, by alias, in the order of the text."""

    query: exp.Query
    outputs: tuple[str, ...]
    occurrences: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of a block: its name in the text, its alias in the normal form, its columns, and those of its key."""

    name: str
    alias: str
    columns: Sequence[str]
    key: Sequence[str]
    by_lower_case: dict[str, str] = field(init=False)
    """Columns by their names without case; of several, the first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_lower_case", {name.casefold(): name for name in reversed(self.columns)})


@dataclass(slots=True)
class _Scope:
    """Names that a block's expressions can use. merged: columns of USING, by name."""

    outer: _Scope | None
    sources: list[_Source] = field(default_factory=list)
    merged: dict[str, exp.Expr] = field(default_factory=dict)


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
    named = Counter(name.casefold() for name in outputs)
    if len(named) < len(outputs):
        twice = dict.fromkeys(name for name in outputs if named[name.casefold()] > 1)
        raise InvalidInput(
            f"the query has two columns of one name: {', '.join(twice)}; write … AS name for one of them"
        )
    for number, name in enumerate(outputs):
        if name == unnamed(number):
            raise InvalidInput(f"column {number + 1} of the query has no name: write … AS name")
    return NormalForm(normal, tuple(outputs), resolver.occurrences)


def _sources_in(scope: _Scope) -> dict[str, Sequence[str]]:
    """Return the columns that can be read in a scope, by the names of its sources; an inner name hides an outer one."""
    outer = {} if scope.outer is None else _sources_in(scope.outer)
    return {**outer, **{source.name: source.columns for source in scope.sources}}


class _Resolver:
    def __init__(self, tables: Mapping[str, TableSchema]) -> None:
        self._tables = {name.casefold(): (name, table) for name, table in tables.items()}
        self._aliases = 0
        self.occurrences: dict[str, str] = {}

    def _alias(self) -> str:
        self._aliases += 1
        return f"s{self._aliases}"

    def _past(self, column: str) -> str:
        return change_of(column, (table for _, table in self._tables.values()))

    # queries

    def query(
        self, query: exp.Expr, ctes: Mapping[str, _Cte], outer: _Scope | None, *, for_expression: bool
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
        self, modified: exp.Expr, query: exp.Expr, ctes: Mapping[str, _Cte], outer: _Scope | None
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
        self, query: exp.SetOperation, ctes: Mapping[str, _Cte], outer: _Scope | None, for_expression: bool
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
        self, query: exp.Select, ctes: Mapping[str, _Cte], outer: _Scope | None, for_expression: bool
    ) -> tuple[exp.Query, list[str]]:
        scope, normal = _Scope(outer), exp.Select()
        semi_joins = self._from(query, normal, ctes, scope)
        outputs = self._outputs(query, ctes, scope, for_expression)
        normal.set("expressions", outputs)
        names = [output.alias for output in outputs]
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
        refuse_misplaced(normal)
        break_ties(normal, [(source.alias, source.key) for source in scope.sources])
        inner_where_nulls_are_rejected(normal)
        return normal, names

    # FROM

    def _from(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: _Scope) -> list[exp.Expr]:
        """Add the sources to the scope and the normal form; return the conditions that SEMI and ANTI joins become."""
        if query.args.get("from_") is None:
            return []
        first, source = self._source(query.args["from_"].this, ctes)
        scope.sources.append(source)
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

    def _source(self, node: exp.Expr, ctes: Mapping[str, _Cte]) -> tuple[exp.Expr, _Source]:
        alias, renamed = self._alias(), list(node.alias_column_names)
        if isinstance(node, exp.Subquery):
            if not isinstance(node.this, exp.Query):
                raise InvalidInput(f"a view cannot join in parentheses: {node.sql(syntax.DIALECT)}")
            bare = node.copy()
            bare.set("alias", None)
            inner, columns = self.query(bare, ctes, None, for_expression=False)
            name = node.alias
        elif isinstance(node, exp.Table) and not node.db and node.name.casefold() in ctes:
            cte = ctes[node.name.casefold()]
            inner, columns = self.query(cte.query, cte.ctes, None, for_expression=False)
            if cte.columns:
                inner, columns = self._renamed(inner, columns, cte.columns)
            name = node.alias or node.name
        elif isinstance(node, exp.Table):
            return self._base(node, alias, renamed)
        else:
            raise InvalidInput(f"a view cannot read {node.key.upper()}: {node.sql(syntax.DIALECT)}")
        if renamed:
            inner, columns = self._renamed(inner, columns, renamed)
        if len({column.casefold() for column in columns}) < len(columns):
            raise InvalidInput(f"the subquery {name!r} has two columns of one name: {', '.join(columns)}")
        return syntax.derived(inner, alias), _Source(name, alias, columns, columns)

    def _base(self, node: exp.Table, alias: str, renamed: Sequence[str]) -> tuple[exp.Expr, _Source]:
        extra = [clause for clause, value in node.args.items() if value and clause not in ("this", "alias")]
        if extra or not isinstance(node.this, exp.Identifier):
            raise InvalidInput(f"a view reads tables of its store by name alone, not {node.sql(syntax.DIALECT)!r}")
        if node.name.casefold() not in self._tables:
            raise TableNotFound(f"the query reads the table {node.name!r}, which the store does not have")
        name, table = self._tables[node.name.casefold()]
        columns = list(table.schema.names)
        self.occurrences[alias] = name
        if not renamed:
            return syntax.table(name, alias), _Source(node.alias or node.name, alias, columns, table.primary_key)
        outer = self._alias()
        inner = syntax.select(syntax.named(syntax.column(alias, column), column) for column in columns)
        syntax.put_from(inner, syntax.table(name, alias))
        query, columns = self._renamed(inner, columns, renamed)
        return syntax.derived(query, outer), _Source(node.alias or node.name, outer, columns, columns)

    def _renamed(self, query: exp.Query, columns: Sequence[str], names: Sequence[str]) -> tuple[exp.Query, list[str]]:
        if len(columns) != len(names):
            raise InvalidInput(f"{len(names)} column names are given to a query with {len(columns)} columns")
        alias = self._alias()
        pairs = zip(columns, names, strict=True)
        wrapper = syntax.select(syntax.named(syntax.column(alias, column), name) for column, name in pairs)
        syntax.put_from(wrapper, syntax.derived(query, alias))
        return wrapper, list(names)

    def _semi_join(
        self, join: exp.Join, kind: str, right: exp.Expr, source: _Source, ctes: Mapping[str, _Cte], scope: _Scope
    ) -> exp.Expr:
        inner = _Scope(scope.outer, list(scope.sources), dict(scope.merged))
        on = self._joined(join, kind, source, ctes, inner)
        query = syntax.select([syntax.named(exp.Literal.number(1), "c1")])
        syntax.put_from(query, right)
        if on is not None:
            query.set("where", exp.Where(this=on))
        exists = exp.Exists(this=query)
        return exists if kind == "SEMI" else exp.Not(this=exists)

    def _joined(
        self, join: exp.Join, kind: str, source: _Source, ctes: Mapping[str, _Cte], scope: _Scope
    ) -> exp.Expr | None:
        """Add the right source of a join to the scope; return the condition of ON or USING."""
        if not join.args.get("using"):
            scope.sources.append(source)
            return self._expression(join.args["on"], ctes, scope) if join.args.get("on") else None
        parts: list[exp.Expr] = []
        merged: dict[str, exp.Expr] = {}
        for identifier in join.args["using"]:
            name = identifier.name
            left = self._unqualified(name, scope)
            right = _column_of(source, name)
            if left is None or right is None:
                raise InvalidInput(f"USING ({name}): both sides of the join must have the column{self._past(name)}")
            parts.append(exp.EQ(this=left.copy(), expression=right.copy()))
            both = exp.Coalesce(this=left.copy(), expressions=[right.copy()])
            merged[name.casefold()] = {"RIGHT": right, "FULL": both}.get(kind, left)
        scope.sources.append(source)
        scope.merged.update(merged)
        return exp.and_(*parts, copy=False)

    # names

    def _unqualified(self, name: str, scope: _Scope) -> exp.Expr | None:
        if name.casefold() in scope.merged:
            return scope.merged[name.casefold()].copy()
        matches = [match for source in scope.sources if (match := _column_of(source, name)) is not None]
        if len(matches) > 1:
            raise InvalidInput(f"the column {name!r} is ambiguous: write the table's name before it")
        return matches[0] if matches else None

    def _column(self, node: exp.Column, scope: _Scope | None) -> exp.Expr | None:
        if node.args.get("db"):
            raise InvalidInput(f"a view cannot read {node.sql(syntax.DIALECT)}, which is no column: {ADVICE['DOT']}")
        if isinstance(node.this, exp.Star):
            raise InvalidInput(f"a view cannot read {node.sql(syntax.DIALECT)!r} here")
        while scope is not None:
            if not node.table:
                match = self._unqualified(node.name, scope)
                if match is not None:
                    return match
            else:
                sources = [source for source in scope.sources if source.name.casefold() == node.table.casefold()]
                if len(sources) > 1:
                    raise InvalidInput(f"the table name {node.table!r} is ambiguous: give each occurrence an alias")
                match = _column_of(sources[0], node.name) if sources else None
                if match is not None:
                    return match
                if sources:
                    break
            scope = scope.outer
        return None

    def _expression(
        self,
        node: exp.Expr,
        ctes: Mapping[str, _Cte],
        scope: _Scope,
        outputs: Mapping[str, exp.Expr] | None = None,
    ) -> exp.Expr:
        """Return a scalar expression with its columns resolved. outputs: by name, for those that no source has."""

        def visit(current: exp.Expr) -> exp.Expr:
            if isinstance(current, exp.Query):
                inner, _ = self.query(current, ctes, scope, for_expression=True)
                return exp.Subquery(this=inner) if isinstance(current, exp.Subquery) else inner
            if isinstance(current, exp.Column):
                match = self._column(current, scope)
                if match is None and not current.table and outputs:
                    match = outputs.get(current.name.casefold())
                if match is None:
                    text = current.sql(syntax.DIALECT)
                    if current.table and self._unqualified(current.table, scope) is not None:
                        raise InvalidInput(f"a view cannot read {text}, a field of a struct: {ADVICE['DOT']}")
                    hint = self._past(current.name) or hint_for_column(current, _sources_in(scope))
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
        scope: _Scope,
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
                    return outputs.get(current.name.casefold(), plain).copy()
            for child in list(current.iter_expressions()):
                child.replace(visit(child))
            return current

        return visit(node.copy())

    # SELECT, GROUP BY, ORDER BY

    def _outputs(
        self, query: exp.Select, ctes: Mapping[str, _Cte], scope: _Scope, for_expression: bool
    ) -> list[exp.Expr]:
        windows = {window.name.casefold(): window for window in query.args.get("windows") or []}
        outputs: list[exp.Expr] = []
        for node in query.expressions:
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                outputs += _expand_star(node, scope)
                continue
            inside = node.this if isinstance(node, exp.Alias) else node
            name = name_of_output(node) or unnamed(len(outputs))
            inside = with_window_definitions(inside, windows)
            outputs.append(syntax.named(self._expression(inside, ctes, scope), name))
        if for_expression:
            return [syntax.named(output.this, f"c{number + 1}") for number, output in enumerate(outputs)]
        return outputs

    def _group(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: _Scope) -> None:
        outputs = {output.alias.casefold(): output.this for output in reversed(normal.expressions)}
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
            normal.set("group", resolved)
        if query.args.get("having"):
            keys = grouping_keys(normal.args.get("group"))
            having = self._with_outputs(query.args["having"].this, ctes, scope, outputs, keys)
            normal.set("having", exp.Having(this=having))

    def _order(self, query: exp.Select, normal: exp.Select, ctes: Mapping[str, _Cte], scope: _Scope) -> None:
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
        outputs = {output.alias.casefold(): output.this for output in reversed(normal.expressions)}
        terms = []
        for ordered in query.args["order"].expressions:
            term, inside = ordered.copy(), ordered.this
            if isinstance(inside, exp.Literal) and inside.is_int:
                term.set("this", exp.Literal.number(inside.name))
            elif isinstance(inside, exp.Column) and not inside.table and inside.name.casefold() in outputs:
                names = [output.alias.casefold() for output in normal.expressions]
                term.set("this", exp.Literal.number(names.index(inside.name.casefold()) + 1))
            else:
                term.set("this", self._with_outputs(inside, ctes, scope, outputs))
            terms.append(term)
        normal.set("order", exp.Order(expressions=terms))


def _with_ctes(query: exp.Expr, ctes: Mapping[str, _Cte]) -> Mapping[str, _Cte]:
    clause = query.args.get("with_")
    if clause is None:
        return ctes
    known = dict(ctes)
    for cte in clause.expressions:
        if not isinstance(cte.this, exp.Query):
            raise InvalidInput(f"a view's WITH takes queries, not {cte.this.key.upper()}")
        renamed = [column.name for column in cte.args["alias"].columns]
        known[cte.alias.casefold()] = _Cte(cte.this, renamed, dict(known))
    return known


def _column_of(source: _Source, name: str) -> exp.Column | None:
    match = source.by_lower_case.get(name.casefold())
    return None if match is None else syntax.column(source.alias, match)


def _expand_star(node: exp.Expr, scope: _Scope) -> list[exp.Expr]:
    star = node if isinstance(node, exp.Star) else node.this
    extra = [clause for clause, value in star.args.items() if value and clause != "except_"]
    if extra:
        raise InvalidInput(f"a view cannot have {star.sql(syntax.DIALECT)}")
    left_out = {column.name.casefold() for column in star.args.get("except_") or []}
    sources, merged = scope.sources, scope.merged
    if isinstance(node, exp.Column):
        sources = [source for source in scope.sources if source.name.casefold() == node.table.casefold()]
        merged = {}
        if len(sources) != 1:
            raise InvalidInput(f"{node.sql(syntax.DIALECT)} names no source of its block")
    outputs = []
    for name, expression in merged.items():
        spelled = next(c for source in sources for c in source.columns if c.casefold() == name)
        outputs.append(syntax.named(expression, spelled))
    for source in sources:
        names = [name for name in source.columns if name.casefold() not in merged]
        outputs += [syntax.named(syntax.column(source.alias, name), name) for name in names]
    return [output for output in outputs if output.alias.casefold() not in left_out]
