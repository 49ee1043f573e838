"""Random queries in Spark's dialect, biased towards the shapes on which an incremental refresh goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

TABLES = {
    "t": (("id", "a", "b", "v"), ("id",)),
    "u": (("id", "a", "c", "v"), ("id",)),
    "r": (("a", "c"), ("a",)),
    "e": (("a", "b", "v"), ("a", "b")),
    "cfg": (("id", "v"), ("id",)),
}
"""Columns and primary key of each table. All are integers; those outside of the key have nulls."""

NAMES = {name for columns, _ in TABLES.values() for name in columns}
AGGREGATES = ("COUNT(*)", "COUNT({0})", "SUM({0})", "MIN({0})", "MAX({0})", "COUNT(DISTINCT {0})", "SUM(DISTINCT {0})")
JOINS = ("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
ADDED = ("SUM({0})", "SUM({0})", "COUNT({0})", "SUM({0} * {1})", "SUM({0} - 1)", "SUM({0} + {1})", "COUNT({0} + {1})")
"""Sums and counts of exact numbers, which a refresh keeps by adding changes."""
SET_OPERATIONS = ("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT")


@dataclass(frozen=True)
class Query:
    """Query text with the names of its columns, and those of them that are unique together (None: not known)."""

    sql: str
    columns: tuple[str, ...]
    unique: tuple[str, ...] | None


@dataclass(frozen=True)
class FromClause:
    """Clause FROM of a query: its text, columns that can be referred to, and a set of them that is unique together."""

    sql: str
    columns: tuple[str, ...]
    unique: tuple[str, ...] | None


@dataclass
class Queries:
    """Generator of queries; `chance` alone decides."""

    chance: random.Random
    aliases: int = 0
    ctes: dict[str, Query] = field(default_factory=dict)

    def query(self, depth: int = 2) -> Query:
        """Return a whole statement, sometimes with CTEs, of which some are named like a table."""
        self.aliases, self.ctes, texts = 0, {}, []
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            body = self.body(1)
            name = self.chance.choice(["t", "c1", "c2"])
            if name not in self.ctes:
                texts.append(f"{name} AS ({body.sql})")
                self.ctes[name] = body
        body = self.body(depth)
        return Query(f"WITH {', '.join(texts)} {body.sql}" if texts else body.sql, body.columns, body.unique)

    def body(self, depth: int) -> Query:
        if depth and self.chance.random() < 0.15:
            return self.set_operation(depth - 1)
        return self.block(depth)

    def sums(self) -> Query:
        """Return sums and counts over an inner join of tables, each of its groups with its whole key."""
        self.aliases, self.ctes = 0, {}
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
            self.chance.choice([column, column, f"COALESCE({column}, 7)", f"{column} + {columns[0]}"])
            for column in self.chance.choice([[], columns[1:2], columns[1:2], columns[1:]])
        ]
        values = [self.chance.choice(ADDED) for _ in range(self.chance.choice([1, 1, 2]))]
        values = [value.format(*(self.chance.choice(source.columns) for _ in range(2))) for value in values]
        values += ["COUNT(*)"] if self.chance.random() < 0.5 else []
        outputs = [(text, f"k{number}") for number, text in enumerate(groups)] or [("1", "k0")]
        outputs += [(text, f"x{number}") for number, text in enumerate(dict.fromkeys(values))]
        if self.chance.random() < 0.3:
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
            return self.named(alias, f"({inner.sql})", inner.columns, inner.unique)
        if self.ctes and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.ctes))
            return self.named(alias, name, self.ctes[name].columns, self.ctes[name].unique)
        name = self.chance.choices(sorted(TABLES), [1, 3, 3, 5, 4])[0]
        if name in self.ctes:
            return self.named(alias, name, self.ctes[name].columns, self.ctes[name].unique)
        return self.named(alias, name, *TABLES[name])

    @staticmethod
    def named(alias: str, text: str, columns: tuple[str, ...], unique: tuple[str, ...] | None) -> FromClause:
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
        shared = sorted({c for c in of_left if of_left.count(c) == 1} & {c.split(".")[1] for c in right.columns})
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

    @staticmethod
    def using(left: FromClause, right: FromClause, kind: str, name: str) -> FromClause:
        text = f"{left.sql} {kind} {right.sql} USING ({name})"
        if "SEMI" in kind or "ANTI" in kind:
            return FromClause(text, left.columns, left.unique)
        columns = (*left.columns, *right.columns)
        return FromClause(text, (name, *(column for column in columns if not column.endswith(f".{name}"))), None)

    def equality(self, left: FromClause, right: FromClause) -> str:
        pair = self.chance.choice(left.columns), self.chance.choice(right.columns)
        if self.chance.random() < 0.6:  # of columns with one name, which agree more often
            pairs = [(x, y) for x in left.columns for y in right.columns if x.split(".")[-1] == y.split(".")[-1]]
            pair = self.chance.choice(pairs) if pairs else pair
        return f"{pair[0]} {'<=>' if self.chance.random() < 0.15 else '='} {pair[1]}"

    # predicates

    def predicate(self, columns: tuple[str, ...], depth: int, outer: tuple[str, ...] = ()) -> str:
        c, d, k = self.chance.choice(columns), self.chance.choice(columns), self.chance.randint(0, 3)
        kind = self.chance.random()
        if kind < 0.3 and depth and any("." in column for column in columns):
            return self.with_subquery(columns, outer)
        simple = (
            f"{c} {self.chance.choice(['=', '<', '>', '<>', '<=', '>='])} {k}",
            f"{c} IS NULL",
            f"{c} IS NOT NULL",
            f"{c} {self.chance.choice(['=', '<', '<>', '<=>'])} {d}",
            f"{c} IN ({k}, {k + 1})",
            f"COALESCE({c}, 0) < {k + 1}",
            f"{c} BETWEEN 1 AND {k}",
            f"{c} + {d} > {k}",
            f"NOT ({c} = {k} AND {d} > 1)",
            f"({c} = {k} OR {d} IS NULL)",
            f"CASE WHEN {c} IS NULL THEN {d} > 1 ELSE {c} < {k} END",
        )
        return self.chance.choice(simple)

    def with_subquery(self, columns: tuple[str, ...], outer: tuple[str, ...]) -> str:
        columns = tuple(column for column in columns if "." in column)  # others are ambiguous in a subquery
        scope = (*columns, *outer) if self.chance.random() < 0.3 else columns
        c, k = self.chance.choice(columns), self.chance.randint(0, 3)
        exists = f"EXISTS ({self.subquery('1', scope)})"
        inside = self.subquery("{0}", scope)
        aggregate = self.chance.choice(["MAX({0})", "COUNT(*)", "SUM({0})", "MIN({0})", "COUNT({0})"])
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
            f"{c} {self.chance.choice(['<', '>=', '<>'])} ({self.subquery(aggregate, scope)})",
            f"({self.subquery(aggregate, scope)}) IS NULL",
            f"COALESCE(({self.subquery(aggregate, scope)}), 0) < {k}",
            f"CASE WHEN {exists} THEN {c} = {k} ELSE {c} > 1 END",
        )
        return self.chance.choice(forms)

    def subquery(self, select: str, outer: tuple[str, ...]) -> str:
        """Return a SELECT of one column, mostly correlated. {0} stands for a column."""
        inner, outer = self.item(self.chance.choice([0, 0, 1])), tuple(c for c in outer if "." in c)
        if self.chance.random() < 0.25:
            inner = self.joined(inner, self.item(0), 0, ())
        c = self.chance.choice(inner.columns)
        aggregates = select not in ("1", "{0}")
        parts = []
        if self.chance.random() < 0.75:
            parts.append(f"{self.chance.choice(inner.columns)} = {self.chance.choice(outer)}")
        if self.chance.random() < 0.1 and not aggregates:
            parts.append(f"{self.chance.choice(inner.columns)} < {self.chance.choice(outer)}")
        if self.chance.random() < 0.3:
            parts.append(self.predicate(inner.columns, 0))
        if self.chance.random() < 0.12 and not aggregates:
            parts.append(f"EXISTS (SELECT 1 FROM r WHERE r.a = {c} AND r.c = {self.chance.choice(outer)})")
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        text = f"SELECT {select.format(c)} FROM {inner.sql}{where}"
        rest = self.chance.random()
        if aggregates or any(column in where for column in outer):
            return text
        order = ", ".join(inner.columns)
        if rest < 0.2:
            return f"{text} ORDER BY {order} LIMIT {self.chance.randint(1, 3)}"
        if rest < 0.4:
            d = self.chance.choice(inner.columns)
            over = f"ROW_NUMBER() OVER (PARTITION BY {d} ORDER BY {order})"
            return (
                f"SELECT q.w FROM (SELECT {select.format(c)} AS w, {over} AS n FROM {inner.sql}{where}) q WHERE q.n = 1"
            )
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
            columns = self.some(source.columns)
            return self.select("DISTINCT ", self.outputs(columns), f" FROM {source.sql}{where}", "all")
        return self.plain(source, where, depth)

    def outputs(self, columns: list[str], prefix: str = "k") -> list[tuple[str, str]]:
        outputs = []
        for number, column in enumerate(columns):
            text = f"COALESCE({column}, -1)" if self.chance.random() < 0.5 else column
            name = column.split(".")[-1]
            taken = name in [n for _, n in outputs] or name not in NAMES
            if text != column or self.chance.random() < 0.3 or taken:
                name = f"{prefix}{number}"
            outputs.append((text, name))
        return outputs

    @staticmethod
    def select(distinct: str, outputs: list[tuple[str, str]], rest: str, unique: str | tuple[str, ...] | None) -> Query:
        names = tuple(name for _, name in outputs)
        text = f"SELECT {distinct}{', '.join(f'{expression} AS {name}' for expression, name in outputs)}{rest}"
        return Query(text, names, names if isinstance(unique, str) else unique)

    def aggregates(self, source: FromClause) -> list[tuple[str, str]]:
        count = self.chance.randint(1, 2)
        texts = [self.chance.choice(AGGREGATES).format(self.chance.choice(source.columns)) for _ in range(count)]
        if self.chance.random() < 0.1:
            texts[0] = f"{texts[0]} FILTER (WHERE {self.predicate(source.columns, 0)})"
        return [(text, f"g{number}") for number, text in enumerate(texts)]

    def grouped(self, source: FromClause, where: str, depth: int) -> Query:
        columns = self.some(source.columns)
        aggregates = self.aggregates(source)
        having = ""
        if self.chance.random() < 0.3:
            having = f" HAVING {aggregates[0][0]} > {self.chance.randint(0, 3)}"
        elif depth and self.chance.random() < 0.35:
            column = self.chance.choice(columns)
            name = "x" + str(self.alias())
            inner = f"SELECT {self.chance.choice(['MAX', 'COUNT'])}({name}.v) FROM u {name}"
            by_column = self.chance.random() < 0.6 and "." in column  # DuckDB takes another name for an output's
            correlated = f" WHERE {name}.a = {column}" if by_column else ""
            having = f" HAVING {aggregates[0][0]} >= ({inner}{correlated})"
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
        forms = (
            f"ROW_NUMBER() OVER ({by}{order})",
            f"ROW_NUMBER() OVER ({by}{order})",
            f"SUM({c}) OVER ({by.strip()})",
            f"COUNT(*) OVER ({by}{order} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
            f"LAG({c}) OVER ({by}{order})",
            f"RANK() OVER ({by}ORDER BY {c})",
            f"MAX({c}) OVER ({by}ORDER BY {c})",
        )
        outputs = [(column, f"k{number}") for number, column in enumerate(source.columns)]
        windows = [(self.chance.choice(forms), "w")]
        if self.chance.random() < 0.25:
            windows.append((f"COUNT(*) OVER (PARTITION BY {self.chance.choice(source.columns)})", "w2"))
        unique = None if source.unique is None else tuple(f"k{source.columns.index(c)}" for c in source.unique)
        inner = self.select("", [*outputs, *windows], f" FROM {source.sql}{where}", unique)
        if self.chance.random() < 0.5:
            return inner
        name = self.alias()
        kept = f"{name}.w {self.chance.choice(['=', '<=', '>'])} {self.chance.randint(1, 2)}"
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
        if depth and self.chance.random() < 0.15:
            outputs.append((f"({self.subquery('MAX({0})', source.columns)})", "sq"))
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
        width = min(len(left.columns), len(right.columns), 3)
        kind = self.chance.choice(SET_OPERATIONS)
        sides = []
        tag = kind == "UNION ALL" and self.chance.random() < 0.6
        for number, side in enumerate((left, right)):
            name = self.alias()
            unique = list(side.unique or ())
            columns = (unique + [c for c in side.columns if c not in unique])[:width]
            outputs = [(f"{name}.{c}", f"k{n}") for n, c in enumerate(columns)]
            outputs = [(str(number), "tag"), *outputs] if tag else outputs
            sides.append(self.select("", outputs, f" FROM ({side.sql}) {name}", None))
        columns = sides[0].columns
        unique = None
        if kind in ("UNION", "EXCEPT", "INTERSECT") or (
            tag and all(len(side.unique or "xxxx") <= width for side in (left, right))
        ):
            unique = columns
        return Query(f"{sides[0].sql} {kind} {sides[1].sql}", columns, unique)
