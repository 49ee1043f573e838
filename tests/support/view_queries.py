"""Random queries in Spark's dialect, biased towards the shapes on which an incremental refresh goes wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from view_types import BIGINT, INT, TypedTexts, family

Tables = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
TABLES: Tables = {
    "t": (("id", "a", "b", "v"), ("id",)),
    "u": (("id", "a", "c", "v"), ("id",)),
    "r": (("a", "c"), ("a",)),
    "e": (("a", "b", "v"), ("a", "b")),
    "cfg": (("id", "v"), ("id",)),
}
"""Columns and primary key of each table. Those outside of the key have nulls. All are integers without other types."""
WEIGHTS = {"cfg": 1, "t": 5, "u": 4}
"""How often a query takes a table; 3 for others."""

NAMES = {name for columns, _ in TABLES.values() for name in columns}
AGGREGATES = ("COUNT(*)", "COUNT({0})", "SUM({0})", "MIN({0})", "MAX({0})", "COUNT(DISTINCT {0})", "SUM(DISTINCT {0})")
JOINS = ("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
ADDED = ("SUM({0})", "SUM({0})", "COUNT({0})", "SUM({0} * {1})", "SUM({0} - 1)", "SUM({0} + {1})", "COUNT({0} + {1})")
"""Sums and counts of exact numbers, which a refresh keeps by adding changes."""
SET_OPERATIONS = ("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT")


@dataclass(frozen=True)
class Query:
    """Query text with the names of its columns, and those of them that are unique together (None: not known).

    types: SQL types of the columns.
    """

    sql: str
    columns: tuple[str, ...]
    unique: tuple[str, ...] | None
    types: tuple[str, ...] = ()


@dataclass(frozen=True)
class FromClause:
    """Clause FROM of a query: its text, columns that can be referred to, and a set of them that is unique together."""

    sql: str
    columns: tuple[str, ...]
    unique: tuple[str, ...] | None


@dataclass
class Queries(TypedTexts):
    """Generator of queries; `chance` alone decides. column_types: SQL types of columns by table, INT for others."""

    tables: Tables = field(default_factory=lambda: TABLES)
    column_types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    aliases: int = 0
    ctes: dict[str, Query] = field(default_factory=dict)

    def query(self, depth: int = 2) -> Query:
        """Return a whole statement, sometimes with CTEs, of which some are named like a table."""
        self.aliases, self.ctes, self.types, texts = 0, {}, {}, []
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            body = self.body(1)
            name = self.chance.choice(["t", "c1", "c2"])
            if name not in self.ctes:
                texts.append(f"{name} AS ({body.sql})")
                self.ctes[name] = body
        body = self.body(depth)
        return Query(
            f"WITH {', '.join(texts)} {body.sql}" if texts else body.sql, body.columns, body.unique, body.types
        )

    def body(self, depth: int) -> Query:
        if depth and self.chance.random() < 0.15:
            return self.set_operation(depth - 1)
        return self.block(depth)

    def sums(self) -> Query:
        """Return sums and counts over an inner join of tables, each of its groups with its whole key."""
        self.aliases, self.ctes, self.types = 0, {}, {}
        source = self.item(0)
        for _ in range(self.chance.choice([0, 1, 1, 1, 2, 2, 3])):
            right = self.item(0)
            conjuncts = [self.equality(source, right) for _ in range(self.chance.choice([1, 1, 1, 2]))]
            if self.chance.random() < 0.3:
                conjuncts.append(self.predicate((*source.columns, *right.columns), 0))
            crosses = right.sql.startswith("cfg") and self.chance.random() < 0.5
            text = f"CROSS JOIN {right.sql}" if crosses else f"JOIN {right.sql} ON {' AND '.join(conjuncts)}"
            source = FromClause(f"{source.sql} {text}", (*source.columns, *right.columns), None)
        columns = self.some(source.columns, 2, 3)
        groups = [
            self.chance.choice([column, column, self.filled(column, 7), self.sum_of(column, columns[0])])
            for column in map(self.groupable, self.chance.choice([[], columns[1:2], columns[1:2], columns[1:]]))
        ]
        values = [self.chance.choice(ADDED) for _ in range(self.chance.choice([1, 1, 2]))]
        values = [self.added(value, *(self.chance.choice(source.columns) for _ in range(2))) for value in values]
        values += ["COUNT(*)"] if self.chance.random() < 0.5 else []
        outputs = [(text, f"k{number}") for number, text in enumerate(groups)] or [("1", "k0")]
        outputs += [(text, f"n{number}") for number, text in enumerate(dict.fromkeys(values))]
        if self.chance.random() < 0.3 and all(family(self.type_of(value)) == "integer" for value in values):
            outputs.append((" + ".join(values), "y"))
        self.chance.shuffle(outputs)
        conditions = [self.predicate(source.columns, 0) for _ in range(self.chance.choice([0, 0, 1, 1, 2]))]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        having = self.chance.choice(["", "", " HAVING COUNT(*) > 0"])
        keys = tuple(name for _, name in outputs if name.startswith("k"))
        return self.select("", outputs, f" FROM {source.sql}{where}{by}{having}", keys)

    def alias(self) -> str:
        self.aliases += 1
        return f"x{self.aliases}"

    def some(self, columns: tuple[str, ...], least: int = 1, most: int = 3) -> list[str]:
        size = self.chance.randint(min(least, len(columns)), min(most, len(columns)))
        return self.chance.sample(columns, size)

    # FROM

    def item(self, depth: int) -> FromClause:
        alias = self.alias()
        if depth and self.chance.random() < 0.35:
            inner = self.body(depth - 1)
            return self.named(alias, f"({inner.sql})", inner)
        if self.ctes and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.ctes))
            return self.named(alias, name, self.ctes[name])
        names = sorted(self.tables)
        name = self.chance.choices(names, [WEIGHTS.get(name, 3) for name in names])[0]
        return self.named(alias, name, self.ctes[name] if name in self.ctes else self.table(name))

    def table(self, name: str) -> Query:
        columns, key = self.tables[name]
        types = self.column_types.get(name, {})
        return Query(name, columns, key, tuple(types.get(column, INT) for column in columns))

    def named(self, alias: str, text: str, query: Query) -> FromClause:
        columns, unique = query.columns, query.unique
        for column, kind in zip(columns, query.types, strict=True):
            self.typed(f"{alias}.{column}", kind)
        return FromClause(
            f"{text} {alias}",
            tuple(f"{alias}.{column}" for column in columns),
            None if unique is None else tuple(f"{alias}.{column}" for column in unique),
        )

    def source(self, depth: int, outer: tuple[str, ...]) -> FromClause:
        left = self.item(depth)
        for _ in range(self.chance.choice([0, 0, 1, 1, 1, 2, 2])):
            if " USING " not in left.sql:
                left = self.joined(left, self.item(depth), depth, outer)
        return left

    def joined(self, left: FromClause, right: FromClause, depth: int, outer: tuple[str, ...]) -> FromClause:
        both = (*left.columns, *right.columns)
        unique = None if left.unique is None or right.unique is None else (*left.unique, *right.unique)
        if self.chance.random() < 0.08 and right.sql.startswith("cfg"):
            return FromClause(f"{left.sql} CROSS JOIN {right.sql}", both, unique)
        extends = " SEMI " not in left.sql and " ANTI " not in left.sql  # a view cannot have them before these joins
        kind = self.chance.choice([join for join in JOINS if extends or join not in ("RIGHT JOIN", "FULL JOIN")])
        of_left = [column.split(".")[1] for column in left.columns]
        of_right = {c.split(".")[1]: c for c in right.columns if self.alike(c, [x for x in left.columns if same(x, c)])}
        shared = sorted({c for c in of_left if of_left.count(c) == 1} & set(of_right))
        if shared and " ON " not in left.sql and self.chance.random() < 0.12:
            return self.using(left, right, kind, self.chance.choice(shared))
        conjuncts = [self.equality(left, right)] if self.chance.random() < 0.95 else []
        if self.chance.random() < 0.2:
            conjuncts.append(self.equality(left, right))
        if self.chance.random() < 0.35 or not conjuncts:
            of = self.chance.choice([left.columns, right.columns, both])
            conjuncts.append(self.predicate(of, 0 if "FULL" in kind or "RIGHT" in kind else depth, outer))
        text = f"{left.sql} {kind} {right.sql} ON {' AND '.join(conjuncts)}"
        if "SEMI" in kind or "ANTI" in kind:
            return FromClause(text, left.columns, left.unique)
        return FromClause(text, both, unique)

    def using(self, left: FromClause, right: FromClause, kind: str, name: str) -> FromClause:
        self.typed(name, next(self.type_of(column) for column in left.columns if column.endswith(f".{name}")))
        text = f"{left.sql} {kind} {right.sql} USING ({name})"
        if "SEMI" in kind or "ANTI" in kind:
            return FromClause(text, left.columns, left.unique)
        columns = (*left.columns, *right.columns)
        return FromClause(text, (name, *(column for column in columns if not column.endswith(f".{name}"))), None)

    def equality(self, left: FromClause, right: FromClause) -> str:
        pair = self.chance.choice(left.columns), self.chance.choice(right.columns)
        if self.chance.random() < 0.6:  # of columns with one name, which agree more often
            pairs = [(x, y) for x in left.columns for y in right.columns if same(x, y)]
            pair = self.chance.choice(pairs) if pairs else pair
        if not self.alike(pair[0], [pair[1]]):
            pairs = [(x, y) for x in left.columns for y in self.alike(x, right.columns)]
            pair = self.chance.choice(pairs) if pairs else (f"({pair[0]} IS NULL)", f"({pair[1]} IS NULL)")
        return f"{pair[0]} {'<=>' if self.chance.random() < 0.15 else '='} {pair[1]}"

    # predicates

    def predicate(self, columns: tuple[str, ...], depth: int, outer: tuple[str, ...] = ()) -> str:
        c = self.chance.choice(columns)
        d, number = self.chance.choice(self.alike(c, columns)), self.chance.randint(0, 3)
        kind = self.chance.random()
        if kind < 0.3 and depth and any("." in column for column in columns):
            return self.with_subquery(columns, outer)
        zero, low, k, more = (self.literal(c, value) for value in (0, 1, number, number + 1))
        simple = (
            f"{c} {self.chance.choice(['=', '<', '>', '<>', '<=', '>='])} {k}",
            f"{c} IS NULL",
            f"{c} IS NOT NULL",
            f"{c} {self.chance.choice(['=', '<', '<>', '<=>'])} {d}",
            f"{c} IN ({k}, {more})",
            f"COALESCE({c}, {zero}) < {more}",
            f"{c} BETWEEN {low} AND {k}",
            f"{self.sum_of(c, d)} > {k}",
            f"NOT ({c} = {k} AND {d} > {low})",
            f"({c} = {k} OR {d} IS NULL)",
            f"CASE WHEN {c} IS NULL THEN {d} > {low} ELSE {c} < {k} END",
        )
        return self.chance.choice(simple)

    def with_subquery(self, columns: tuple[str, ...], outer: tuple[str, ...]) -> str:
        columns = tuple(column for column in columns if "." in column)  # others are ambiguous in a subquery
        scope = (*columns, *outer) if self.chance.random() < 0.3 else columns
        c, number = self.chance.choice(columns), self.chance.randint(0, 3)
        exists = f"EXISTS ({self.subquery('1', scope)})"
        inside = self.subquery("{0}", scope, c)
        aggregate = self.chance.choice(["MAX({0})", "COUNT(*)", "SUM({0})", "MIN({0})", "COUNT({0})"])
        if family(self.type_of(c)) != "integer":
            aggregate = "MIN({0})" if aggregate == "MIN({0})" else "MAX({0})"
        k, low = self.literal(c, number), self.literal(c, 1)
        forms = (
            exists,
            f"NOT {exists}",
            f"({c} > {k} OR {exists})",
            f"{c} IN ({inside})",
            f"{c} NOT IN ({inside})",
            f"{c} NOT IN ({inside})",
            f"(NOT {c} IN ({inside}) OR {c} IS NULL)",
            f"({c} IN ({inside})) IS NULL",
            f"COALESCE({c} IN ({inside}), {c} = {k})",
            f"{c} {self.chance.choice(['<', '>=', '<>'])} ({self.subquery(aggregate, scope, c)})",
            f"({self.subquery(aggregate, scope, c)}) IS NULL",
            f"COALESCE(({self.subquery(aggregate, scope, c)}), {self.literal(c, 0)}) < {k}",
            f"CASE WHEN {exists} THEN {c} = {k} ELSE {c} > {low} END",
        )
        return self.chance.choice(forms)

    def subquery(self, select: str, outer: tuple[str, ...], like: str | None = None) -> str:
        """Return a SELECT of one column, mostly correlated. {0} stands for a column, if possible like another."""
        inner, outer = self.item(self.chance.choice([0, 0, 1])), tuple(c for c in outer if "." in c)
        if self.chance.random() < 0.25:
            inner = self.joined(inner, self.item(0), 0, ())
        c = self.chance.choice((like and self.alike(like, inner.columns)) or inner.columns)
        aggregates = select not in ("1", "{0}")
        selected = self.aggregate(select, c) if aggregates else select.format(c)
        parts = []
        if self.chance.random() < 0.75:
            parts.append(self.compared(self.chance.choice(inner.columns), "=", outer))
        if self.chance.random() < 0.1 and not aggregates:
            parts.append(self.compared(self.chance.choice(inner.columns), "<", outer))
        if self.chance.random() < 0.3:
            parts.append(self.predicate(inner.columns, 0))
        if self.chance.random() < 0.12 and not aggregates:
            self.named("r", "r", self.table("r"))
            both = f"{self.compared('r.a', '=', [c])} AND {self.compared('r.c', '=', outer)}"
            parts.append(f"EXISTS (SELECT 1 FROM r WHERE {both})")
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        text = self.typed(f"SELECT {selected} FROM {inner.sql}{where}", self.type_of(selected))
        rest = self.chance.random()
        if aggregates or any(column in where for column in outer):
            return text
        order = ", ".join(inner.columns)
        if rest < 0.2:
            return f"{text} ORDER BY {order} LIMIT {self.chance.randint(1, 3)}"
        if rest < 0.4:
            d = self.chance.choice(inner.columns)
            over = f"ROW_NUMBER() OVER (PARTITION BY {d} ORDER BY {order})"
            return f"SELECT q.w FROM (SELECT {selected} AS w, {over} AS n FROM {inner.sql}{where}) q WHERE q.n = 1"
        if rest < 0.5 and select == "{0}":
            return f"SELECT MAX({c}) FROM {inner.sql}{where} GROUP BY {self.chance.choice(inner.columns)}"
        return text

    # SELECT

    def block(self, depth: int, outer: tuple[str, ...] = ()) -> Query:
        source = self.source(depth, outer)
        count = self.chance.choice([0, 0, 1, 1, 2])
        conjuncts = [self.predicate(source.columns, depth, outer) for _ in range(count)]
        where = f" WHERE {' AND '.join(conjuncts)}" if conjuncts else ""
        kind = self.chance.random()
        if kind < 0.42:
            return self.grouped(source, where, depth)
        if kind < 0.5:
            return self.global_aggregate(source, where)
        if kind < 0.65:
            return self.windowed(source, where)
        if kind < 0.72:
            columns = [self.groupable(column) for column in self.some(source.columns)]
            return self.select("DISTINCT ", self.outputs(columns), f" FROM {source.sql}{where}", "all")
        return self.plain(source, where, depth)

    def outputs(self, columns: list[str], prefix: str = "k") -> list[tuple[str, str]]:
        outputs = []
        for number, column in enumerate(columns):
            text = self.filled(column) if self.chance.random() < 0.5 else column
            name = column.split(".")[-1]
            taken = name in [n for _, n in outputs] or name not in NAMES
            if text != column or self.chance.random() < 0.3 or taken:
                name = f"{prefix}{number}"
            outputs.append((text, name))
        return outputs

    def select(
        self, distinct: str, outputs: list[tuple[str, str]], rest: str, unique: str | tuple[str, ...] | None
    ) -> Query:
        names = tuple(name for _, name in outputs)
        types = tuple(self.type_of(expression) for expression, _ in outputs)
        text = f"SELECT {distinct}{', '.join(f'{expression} AS {name}' for expression, name in outputs)}{rest}"
        return Query(text, names, names if isinstance(unique, str) else unique, types)

    def aggregates(self, source: FromClause) -> list[tuple[str, str]]:
        count = self.chance.randint(1, 2)
        texts = [
            self.aggregate(self.chance.choice(AGGREGATES), self.chance.choice(source.columns)) for _ in range(count)
        ]
        if self.chance.random() < 0.1 and not texts[0].startswith("CAST"):
            filtered = f"{texts[0]} FILTER (WHERE {self.predicate(source.columns, 0)})"
            texts[0] = self.typed(filtered, self.type_of(texts[0]))
        return [(text, f"g{number}") for number, text in enumerate(texts)]

    def grouped(self, source: FromClause, where: str, depth: int) -> Query:
        columns = [self.groupable(column) for column in self.some(source.columns)]
        aggregates = self.aggregates(source)
        having, largest = "", aggregates[0][0]
        if self.chance.random() < 0.3:
            having = f" HAVING {largest} > {self.literal(largest, self.chance.randint(0, 3))}"
        elif depth and self.chance.random() < 0.35:
            column = self.chance.choice(columns)
            name = "x" + str(self.alias())
            self.named(name, "u", self.table("u"))
            value = self.aggregate(f"{self.chance.choice(['MAX', 'COUNT'])}({{0}})", f"{name}.v")
            by_column = self.chance.random() < 0.6 and "." in column  # DuckDB takes another name for an output's
            correlated = f" WHERE {self.compared(f'{name}.a', '=', [column])}" if by_column else ""
            if self.alike(largest, [value]):
                having = f" HAVING {largest} >= (SELECT {value} FROM u {name}{correlated})"
        style = self.chance.random()
        if style < 0.1:
            outputs = [(column, f"k{number}") for number, column in enumerate(columns)]
            kind = self.chance.choice(["ROLLUP", "CUBE"])
            rest = f" FROM {source.sql}{where} GROUP BY {kind} ({', '.join(columns)}){having}"
            return self.select("", [*outputs, *aggregates], rest, None)
        if style < 0.16:
            outputs = [(column, f"k{number}") for number, column in enumerate(columns)]
            sets = f"({', '.join(columns)}), ({columns[0]})"
            rest = f" FROM {source.sql}{where} GROUP BY GROUPING SETS ({sets}){having}"
            return self.select("", [*outputs, *aggregates], rest, None)
        outputs = self.outputs(columns)
        by = ", ".join(columns) if self.chance.random() < 0.7 else ", ".join(text for text, _ in outputs)
        if self.chance.random() < 0.1:
            by = ", ".join(str(number + 1) for number in range(len(outputs)))
        if by[0].isdigit() or "COALESCE" in by:
            having = having if "SELECT" not in having else ""
        whole = by == ", ".join(columns) or by[0].isdigit() or "COALESCE" in by
        rest = f" FROM {source.sql}{where} GROUP BY {by}{having}"
        if outputs and self.chance.random() < 0.15 and "GROUP BY 1" not in rest:
            dropped = self.chance.randrange(len(outputs))
            outputs, whole = [o for n, o in enumerate(outputs) if n != dropped], False
        return self.select(
            "", [*outputs, *aggregates], rest, tuple(n for _, n in outputs) if whole and outputs else None
        )

    def global_aggregate(self, source: FromClause, where: str) -> Query:
        outputs = [("1", "k0")] if self.chance.random() < 0.3 else []
        return self.select("", [*outputs, *self.aggregates(source)], f" FROM {source.sql}{where}", "all")

    def windowed(self, source: FromClause, where: str) -> Query:
        partition = self.some(source.columns, 0, 2)
        total = ", ".join(self.chance.sample(source.columns, len(source.columns)))
        c = self.chance.choice(source.columns)
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        order = f"ORDER BY {total}"
        kind = self.type_of(c)
        total = self.aggregate("SUM({0})" if family(kind) != "decimal" else "MAX({0})", c)
        forms = (
            f"ROW_NUMBER() OVER ({by}{order})",
            f"ROW_NUMBER() OVER ({by}{order})",
            self.typed(f"{total} OVER ({by.strip()})", self.type_of(total)),
            self.typed(f"COUNT(*) OVER ({by}{order} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", BIGINT),
            self.typed(f"LAG({c}) OVER ({by}{order})", kind),
            f"RANK() OVER ({by}ORDER BY {c})",
            self.typed(f"MAX({c}) OVER ({by}ORDER BY {c})", kind),
        )
        outputs = [(column, f"k{number}") for number, column in enumerate(source.columns)]
        windows = [(self.chance.choice(forms), "w")]
        if self.chance.random() < 0.25:
            counted = f"COUNT(*) OVER (PARTITION BY {self.chance.choice(source.columns)})"
            windows.append((self.typed(counted, BIGINT), "w2"))
        unique = None if source.unique is None else tuple(f"k{source.columns.index(c)}" for c in source.unique)
        inner = self.select("", [*outputs, *windows], f" FROM {source.sql}{where}", unique)
        if self.chance.random() < 0.5:
            return inner
        name = self.alias()
        self.named(name, "", inner)
        kept = f"{name}.w {self.chance.choice(['=', '<=', '>'])} {self.literal(f'{name}.w', self.chance.randint(1, 2))}"
        rest = f" FROM ({inner.sql}) {name} WHERE {kept}"
        return self.select("", [(f"{name}.{column}", column) for column in inner.columns], rest, unique)

    def plain(self, source: FromClause, where: str, depth: int) -> Query:
        if source.unique is not None and self.chance.random() < 0.7:
            columns = list(source.unique)
            columns += [c for c in self.some(source.columns) if c not in columns]
            outputs, unique = self.outputs(columns), len(source.unique)
        else:
            columns = self.some(source.columns, 1, 4)
            outputs, unique = self.outputs(columns), 0
        depth = depth if any("." in column for column in source.columns) else 0  # others are ambiguous in a subquery
        if depth and self.chance.random() < 0.15:
            largest = self.subquery("MAX({0})", source.columns)
            outputs.append((self.typed(f"({largest})", self.type_of(largest)), "sq"))
        if depth and self.chance.random() < 0.1:
            outputs.append((f"CAST({self.with_subquery(source.columns, ())} AS INT)", "p"))
        keys = tuple(name for _, name in outputs[:unique]) or None
        rest = f" FROM {source.sql}{where}"
        if self.chance.random() < 0.08:
            plain = ", ".join(str(n + 1) for n in range(len(outputs)))
            rest += f" ORDER BY {plain} LIMIT {self.chance.randint(1, 5)}"
        return self.select("", outputs, rest, keys)

    def set_operation(self, depth: int) -> Query:
        left, right = self.block(depth), self.block(depth)
        kind = self.chance.choice(SET_OPERATIONS)
        sides = []
        tag = kind == "UNION ALL" and self.chance.random() < 0.6
        names = self.alias(), self.alias()
        pairs = self.pairs(*(self.named(name, "", side) for name, side in zip(names, (left, right), strict=True)))[:3]
        if not pairs:
            return left
        for number, (name, side) in enumerate(zip(names, (left, right), strict=True)):
            columns = [pair[number] if kind == "UNION ALL" else self.groupable(pair[number]) for pair in pairs]
            outputs = [(c, f"k{n}") for n, c in enumerate(columns)]
            outputs = [(str(number), "tag"), *outputs] if tag else outputs
            sides.append(self.select("", outputs, f" FROM ({side.sql}) {name}", None))
        columns = sides[0].columns
        unique = None
        keys = [{f"{name}.{c}" for c in side.unique or ["?"]} for name, side in zip(names, (left, right), strict=True)]
        if kind in ("UNION", "EXCEPT", "INTERSECT") or (
            tag and all(key <= {pair[number] for pair in pairs} for number, key in enumerate(keys))
        ):
            unique = columns
        return Query(f"{sides[0].sql} {kind} {sides[1].sql}", columns, unique, sides[0].types)

    def pairs(self, left: FromClause, right: FromClause) -> list[tuple[str, str]]:
        """Return pairs of columns that can be compared, those of the keys first."""
        of_left, of_right = (
            [*(s.unique or ()), *(c for c in s.columns if c not in (s.unique or ()))] for s in (left, right)
        )
        pairs = []
        for column in of_left:
            other = next(iter(self.alike(column, of_right)), None)
            if other is not None:
                of_right.remove(other)
                pairs.append((column, other))
        return pairs


def same(left: str, right: str) -> bool:
    """Return True for columns of one name."""
    return left.rpartition(".")[2] == right.rpartition(".")[2]


def seeded_query(seed: int) -> tuple[random.Random, Query]:
    """Return the random query of a seed, and the chance that has made it."""
    chance = random.Random(f"query {seed}")
    return chance, Queries(chance).query(chance.choice([1, 1, 2]))


def seeded_sums(seed: int) -> tuple[random.Random, Query]:
    """Return the random sums and counts of a seed over an inner join, and the chance that has made them."""
    chance = random.Random(f"sums {seed}")
    return chance, Queries(chance).sums()


def random_query(seed: int) -> Query:
    """Return the random query of a seed."""
    return seeded_query(seed)[1]


def random_sums(seed: int) -> Query:
    """Return the random sums and counts of a seed, over an inner join."""
    return seeded_sums(seed)[1]
