"""Random changes of a few small tables, and a view's plan held against its query at each of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import duckdb
import pyarrow as pa
import sqlglot

from epochlog.store.types.schema import TableSchema
from epochlog.views.derivation import ViewPlan, render
from view_queries import TABLES

Row = tuple[int | None, ...]
Rows = dict[tuple[int | None, ...], Row]

SCHEMAS = {
    name: TableSchema(name, pa.schema([pa.field(c, pa.int32(), c not in key) for c in columns]), key)
    for name, (columns, key) in TABLES.items()
}


class Differs(AssertionError):
    """The refresh does not give the rows of the query."""


@dataclass
class ViewWorld:
    """Tables before and after a step; `chance` alone decides."""

    chance: random.Random
    connection: duckdb.DuckDBPyConnection
    tables: Sequence[str]
    before: dict[str, Rows] = field(default_factory=dict)
    now: dict[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.tables:
            types = ", ".join(f"{column} INT" for column in TABLES[name][0])
            for prefix in ("", "old_", "epochlog_now_", "epochlog_changed_", "epochlog_either_", "epochlog_empty_"):
                self.connection.execute(f"CREATE OR REPLACE TABLE {prefix}{name} ({types})")
            self.now[name] = {}
            for _ in range(self.chance.choice([0, 5, 9, 9]) if name != "cfg" else self.chance.choice([0, 1, 1])):
                self.put(name)

    def put(self, name: str) -> None:
        columns, key = TABLES[name]
        row = tuple(self.value(name, column, column in key) for column in columns)
        self.now[name][tuple(row[columns.index(column)] for column in key)] = row

    def value(self, table: str, column: str, of_key: bool) -> int | None:
        if table == "cfg" and column == "id":
            return 0
        if column == "id":
            return self.chance.randrange(10)
        if not of_key and self.chance.random() < 0.2:
            return None
        return self.chance.randrange(4)

    def change(self) -> set[str]:
        """Change some tables; return their names."""
        self.before = {name: dict(rows) for name, rows in self.now.items()}
        some = min(len(self.tables), self.chance.choice([1, 1, 1, 2, 2, 5]))
        for name in self.chance.sample(self.tables, some):
            for _ in range(self.chance.choice([1, 2, 3])):
                if self.now[name] and self.chance.random() < 0.45:
                    del self.now[name][self.chance.choice(sorted(self.now[name]))]
                else:
                    self.put(name)
        return {name for name in self.tables if self.before[name] != self.now[name]}

    def old_images(self, name: str) -> list[Row]:
        return [row for key, row in self.before[name].items() if self.now[name].get(key) != row]

    def new_images(self, name: str) -> list[Row]:
        return [row for key, row in self.now[name].items() if self.before[name].get(key) != row]

    def changed_images(self, name: str) -> list[Row]:
        return [*self.old_images(name), *self.new_images(name)]

    def either_rows(self, name: str) -> list[Row]:
        return [*self.now[name].values(), *self.old_images(name)]

    def load(self) -> None:
        for name in self.tables:
            self._fill(f"old_{name}", list(self.before[name].values()))
            self._fill(name, list(self.now[name].values()))
            self._fill(f"epochlog_now_{name}", list(self.now[name].values()))
            self._fill(f"epochlog_changed_{name}", self.changed_images(name))
            self._fill(f"epochlog_either_{name}", self.either_rows(name))

    def _fill(self, table: str, rows: Sequence[Row]) -> None:
        values = ", ".join(f"({', '.join('NULL' if value is None else str(value) for value in row)})" for row in rows)
        self.connection.execute(f"DELETE FROM {table}")
        if values:
            self.connection.execute(f"INSERT INTO {table} VALUES {values}")


def in_duckdb(sql: str, prefix: str = "") -> str:
    """Return the query as the judge runs it, independently of the derivation. prefix: of the tables."""
    tree = sqlglot.parse_one(sql, read="spark")
    if prefix:
        _prefixed(tree, prefix, frozenset())
    return tree.sql("duckdb")


def _prefixed(node: sqlglot.exp.Expr, prefix: str, ctes: frozenset[str]) -> None:
    clause = node.args.get("with_")
    if isinstance(clause, sqlglot.exp.With):
        for cte in clause.expressions:
            _prefixed(cte.this, prefix, ctes)
            ctes |= {cte.alias}
    if isinstance(node, sqlglot.exp.Table) and node.name not in ctes:
        if not node.alias:
            node.set("alias", sqlglot.exp.TableAlias(this=sqlglot.exp.to_identifier(node.name)))
        node.set("this", sqlglot.exp.to_identifier(prefix + node.name))
    for child in list(node.iter_expressions()):
        if child is not clause:
            _prefixed(child, prefix, ctes)


@dataclass
class Outcome:
    """Counts of steps: incremental and full ones, touched groups and those of them that differ."""

    incremental: int = 0
    full: int = 0
    touched: int = 0
    needed: int = 0

    def plus(self, other: Outcome) -> Outcome:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Outcome(*(mine + theirs for mine, theirs in pairs))


def check_step(world: ViewWorld, plan: ViewPlan, sql: str, changed: set[str], outcome: Outcome) -> None:
    """Compare the plan's touched values and refreshed rows with the query before and after. Raises Differs."""
    connection = world.connection
    if not changed:
        return
    scope = _some_of(world.chance, plan, changed)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE was AS {in_duckdb(sql, 'old_')}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS {in_duckdb(sql)}")
    names = list(plan.form.outputs)
    if not scope:
        outcome.full += 1
        connection.execute(f"CREATE OR REPLACE TEMP TABLE fresh AS {render(plan.query(), 'duckdb')}")
        _require_equal(connection, "fresh", "wanted", names, "all rows")
        return
    outcome.incremental += 1
    text = render(plan.touched_query(changed, scope), "duckdb")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE epochlog_touched AS {text}")
    pairs = " AND ".join(f'k."{name}" IS NOT DISTINCT FROM r."{name}"' for name in scope)
    for table in ("was", "wanted"):
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table}_rest AS SELECT * FROM {table} r "
            f"WHERE NOT EXISTS (SELECT 1 FROM epochlog_touched k WHERE {pairs})"
        )
    _require_equal(connection, "was_rest", "wanted_rest", names, f"untouched rows by {scope}: {text}")
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE wanted_part AS SELECT * FROM wanted r "
        f"WHERE EXISTS (SELECT 1 FROM epochlog_touched k WHERE {pairs})"
    )
    text = render(plan.refresh_query(scope), "duckdb")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE fresh AS {text}")
    _require_equal(connection, "fresh", "wanted_part", names, f"refreshed rows by {scope}: {text}")
    listed = ", ".join(f'"{name}"' for name in scope)
    outcome.touched += _one(connection, "SELECT COUNT(*) FROM epochlog_touched")
    outcome.needed += _one(
        connection,
        f"SELECT COUNT(*) FROM (SELECT DISTINCT {listed} FROM ((FROM was EXCEPT ALL FROM wanted) UNION ALL "
        "(FROM wanted EXCEPT ALL FROM was)))",
    )


def _some_of(chance: random.Random, plan: ViewPlan, changed: set[str]) -> tuple[str, ...]:
    """Return the plan's scope, or some other columns whose touched values all changed tables give."""
    sets = [set(occurrence.covered) for occurrence in plan.occurrences if occurrence.table in changed]
    common = [name for name in plan.form.outputs if all(name in names for names in sets)]
    if not common or chance.random() < 0.4:
        return plan.scope_of(changed)
    return tuple(chance.sample(common, chance.randint(1, min(3, len(common)))))


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]


def _require_equal(
    connection: duckdb.DuckDBPyConnection, actual: str, wanted: str, names: Sequence[str], what: str
) -> None:
    many = connection.execute(f"FROM {actual} EXCEPT ALL FROM {wanted}").fetchall()
    few = connection.execute(f"FROM {wanted} EXCEPT ALL FROM {actual}").fetchall()
    if many or few:
        raise Differs(f"columns {names}: too many {many[:4]}, missing {few[:4]}; {what}")
