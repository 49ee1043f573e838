"""Random changes of a few small tables, and a view's plan held against its query at each of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from confirmed import RawJudge, kept
from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import syntax
from epochlog.views.aggregate_state import StatePlan
from epochlog.views.delta_join import TERM
from epochlog.views.derivation import TOUCHED, ViewPlan, derive, render
from epochlog.views.normal_form import normal_form
from epochlog.views.parsing import parse
from epochlog.views.row_changes import gained_and_lost
from epochlog.views.table_names import CHANGED, EITHER, EMPTY, IS_NEW, NOW, OLD, SIGNED, prefix_of, table_of
from view_cases import CASES
from view_queries import TABLES, seeded_query, seeded_sums

Row = tuple[int | None, ...]
Rows = dict[tuple[int | None, ...], Row]
Judge = Callable[[str, Mapping[str, Rows]], list[Row]]
"""Returns the rows of a query over these tables."""

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
    tables: Sequence[str]
    before: dict[str, Rows] = field(default_factory=dict)
    now: dict[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.tables:
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

    def rows_of(self, prefix: str, name: str) -> list[Row]:
        """Return the rows that a plan's queries read of a table under a prefix."""
        if prefix == SIGNED:
            return [*((*row, True) for row in self.new_images(name)), *((*row, False) for row in self.old_images(name))]
        if prefix in (NOW, OLD):
            return list((self.now if prefix == NOW else self.before)[name].values())
        return {CHANGED: self.changed_images, EITHER: self.either_rows}[prefix](name) if prefix != EMPTY else []

    def contents(self, query: exp.Expr | None = None) -> dict[str, list[Row]]:
        """Return the rows of the tables that a query of a plan reads, by their names; None: each query of groups."""
        prefixes = (NOW, CHANGED, EITHER, EMPTY)
        names = [prefix + name for name in self.tables for prefix in prefixes]
        if query is not None:
            names = [node.name for node in query.find_all(exp.Table)]
        return {name: self.rows_of(prefix_of(name), table_of(name)) for name in names}


class Engine(Protocol):
    """Engine that runs the queries of plans over small tables."""

    def load(self, contents: Mapping[str, list[Row]]) -> None:
        """Fill the tables of a plan's queries, by their names."""
        ...

    def touched(self, query: exp.Expr) -> list[Row]:
        """Return the touched values, and keep them as the table that refresh queries read."""
        ...

    def rows(self, query: exp.Expr) -> list[Row]: ...

    def arrow(self, query: exp.Expr) -> pa.Table:
        """Return the rows of a query with their types."""
        ...

    def put(self, name: str, rows: pa.Table) -> None:
        """Keep rows as a table that queries of the plan read."""
        ...


class DuckDBEngine:
    """DuckDB as the engine of plans, and another one that judges them by the raw text of the query.

    fresh: further texts to which Spark has given the answers of that DuckDB.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, fresh: Collection[str] = ()) -> None:
        self._connection = connection
        self._loaded: dict[str, list[Row]] = {}
        self._raw = RawJudge()
        self._fresh = fresh

    def restart(self) -> None:
        """Begin with a database anew: an internal error of DuckDB has ended it."""
        self._connection = duckdb.connect()
        self._connection.execute("SET threads = 1")
        self._raw.restart()
        self._loaded.clear()

    def load(self, contents: Mapping[str, list[Row]]) -> None:
        for name, rows in contents.items():
            self._fill(name, rows)

    def touched(self, query: exp.Expr) -> list[Row]:
        values = self._connection.sql(render(query, "duckdb")).to_arrow_table()
        self.put(TOUCHED, values)
        return list(zip(*(column.to_pylist() for column in values.columns), strict=True))

    def rows(self, query: exp.Expr) -> list[Row]:
        return self._connection.execute(render(query, "duckdb")).fetchall()

    def arrow(self, query: exp.Expr) -> pa.Table:
        return self._connection.sql(render(query, "duckdb")).to_arrow_table()

    def put(self, name: str, rows: pa.Table) -> None:
        self._connection.register(name, rows)

    def judge(self, sql: str, tables: Mapping[str, Rows]) -> list[Row]:
        """Return the rows of a text, as it was given. Raises NotConfirmed for one that Spark has not answered."""
        if sql not in self._fresh:
            kept("integers").reply(sql)
        given = {name: _as_table(name, list(rows.values())) for name, rows in tables.items()}
        answer = self._raw.rows(sql, given)
        return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))

    def _fill(self, name: str, rows: list[Row]) -> None:
        if self._loaded.get(name) == rows:
            return
        self._connection.register(name, _as_table(name, rows))
        self._loaded[name] = rows


def _as_table(name: str, rows: Sequence[Row]) -> pa.Table:
    columns = columns_of(name)
    values = [[row[place] for row in rows] for place in range(len(columns))]
    kinds = [pa.bool_() if column == IS_NEW else pa.int32() for column in columns]
    arrays = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(columns))


def columns_of(name: str) -> tuple[str, ...]:
    """Return the columns of a table, or of a table in a query of a plan."""
    if name in TABLES:
        return TABLES[name][0]
    columns = TABLES[table_of(name)][0]
    return (*columns, IS_NEW) if prefix_of(name) == SIGNED else columns


@dataclass
class Outcome:
    """Counts of steps: incremental and full ones, touched groups and those of them that differ.

    joined: steps whose changes of a join were those of its rows. by_changes: steps whose rows were computed of the
    changes alone.
    """

    incremental: int = 0
    full: int = 0
    touched: int = 0
    needed: int = 0
    joined: int = 0
    by_changes: int = 0

    def plus(self, other: Outcome) -> Outcome:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Outcome(*(mine + theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class Answers:
    """Rows of a view's query before and after a step, by the judge."""

    was: list[Row]
    wanted: list[Row]


def touched_query(plan: ViewPlan, changed: Collection[str], scope: Sequence[str]) -> exp.Query:
    """Return the query of the touched values of all occurrences of the changed tables. Raises NotCovered."""
    parts = [plan.touched_by(batch, scope) for batch in plan.coverage.changed_batches(changed)]
    return syntax.union(parts)


def check_step(
    world: ViewWorld, plan: ViewPlan, engine: Engine, answers: Answers, changed: set[str], outcome: Outcome
) -> None:
    """Compare the plan's touched values and refreshed rows with the query before and after. Raises Differs."""
    if not changed:
        return
    scope = _some_of(world.chance, plan, changed)
    engine.load(world.contents())
    touched = None
    with suppress(InvalidInput):  # as in a refresh: an engine that refuses these values recomputes all rows
        touched = engine.touched(touched_query(plan, changed, scope)) if scope else None
    if touched is None:
        outcome.full += 1
        _require_equal(engine.rows(plan.query()), answers.wanted, plan, "all rows")
        return
    outcome.incremental += 1
    places, groups = [plan.form.outputs.index(name) for name in scope], set(touched)

    def parts(rows: list[Row]) -> tuple[list[Row], list[Row]]:
        rest: list[Row] = []
        part: list[Row] = []
        for row in rows:
            (part if tuple(row[place] for place in places) in groups else rest).append(row)
        return part, rest

    (was_part, was_rest), (wanted_part, wanted_rest) = parts(answers.was), parts(answers.wanted)
    _require_equal(was_rest, wanted_rest, plan, f"untouched rows by {scope}")
    _require_equal(engine.rows(plan.refresh_query(scope)), wanted_part, plan, f"refreshed rows by {scope}")
    outcome.touched += len(groups)
    differing = (Counter(was_part) - Counter(wanted_part)) + (Counter(wanted_part) - Counter(was_part))
    outcome.needed += len({tuple(row[place] for place in places) for row in differing})


def check_inputs(
    world: ViewWorld, plan: ViewPlan, state: StatePlan, engine: Engine, before: Counter[Row], changed: set[str]
) -> Counter[Row]:
    """Compare the rows that the join of a state's first block had, and those that it gains and loses, with those that
    it has; return these. changed: none at the beginning. Raises Differs.
    """
    query = plan.state_rows(())
    engine.load(world.contents(query))
    after = _counted(engine.arrow(query), is_new=True)
    if changed:
        deltas = state.changes(changed)
        engine.load(world.contents(deltas))
        rows = engine.arrow(deltas)
        gained, lost = _counted(rows, is_new=True), _counted(rows, is_new=False)
        expected = Counter(before)
        expected.update(gained)
        expected.subtract(lost)
        wanted, given = sorted(after.elements(), key=repr), sorted((+expected).elements(), key=repr)
        if wanted != given or -expected:
            raise Differs(f"changes of the join of a state: {given}, less {-expected}, not {wanted}")
    return after


def _counted(rows: pa.Table, *, is_new: bool) -> Counter[Row]:
    """Count the rows of a join that it has, or gains, or that it loses."""
    names = [name for name in rows.column_names if name not in (IS_NEW, TERM)]
    some = rows.filter(pc.equal(rows.column(IS_NEW), is_new)).select(names)
    return Counter(tuple(row.values()) for row in some.to_pylist())


def check_row_changes(
    world: ViewWorld, plan: ViewPlan, engine: Engine, answers: Answers, changed: set[str], outcome: Outcome
) -> None:
    """Compare the view before, with the rows of the changes in place, with the query after. Raises Differs."""
    if not changed or plan.row_changes is None:
        return
    query = plan.row_changes.deltas(changed)
    engine.load(world.contents(query))
    rows, key = engine.arrow(query), plan.coverage.primary_key
    fields = [rows.schema.field(name).with_nullable(name not in key) for name in plan.form.outputs]
    output = TableSchema("v", pa.schema(fields), key)
    if any(rows.column(name).null_count for name in key):
        return
    gained, lost = gained_and_lost(output, rows)
    places = [plan.form.outputs.index(name) for name in key]
    keys = [tuple(row.values()) for part in (gained, lost) for row in part.select(list(key)).to_pylist()]
    kept = [row for row in answers.was if tuple(row[place] for place in places) not in set(keys)]
    after = [*kept, *(tuple(row.values()) for row in gained.to_pylist())]
    _require_equal(after, answers.wanted, plan, "rows of the changes")
    assert len(set(keys)) == len(keys)
    outcome.by_changes += 1


def play(
    plan: ViewPlan, seed: object, steps: int, engine: Engine, judge: Judge, world: type[ViewWorld] = ViewWorld
) -> Outcome:
    """Check a plan over random changes; a difference names the seed and the query."""
    outcome = Outcome()
    tables = world(random.Random(f"world {seed}"), plan.tables)
    was, inputs = judge(plan.sql, tables.now), Counter[Row]()
    if plan.state is not None:
        inputs = check_inputs(tables, plan, plan.state, engine, inputs, set())
    for _ in range(steps):
        changed = tables.change()
        wanted = judge(plan.sql, tables.now)
        try:
            check_step(tables, plan, engine, Answers(was, wanted), changed, outcome)
            check_row_changes(tables, plan, engine, Answers(was, wanted), changed, outcome)
            if plan.state is not None:
                inputs = check_inputs(tables, plan, plan.state, engine, inputs, changed)
                outcome.joined += bool(changed)
        except Differs as error:
            raise Differs(f"seed {seed}, key {plan.coverage.primary_key}: {error}\n{plan.sql}") from error
        was = wanted
    return outcome


def random_plan(seed: int) -> ViewPlan:
    """Return the plan of a random query with a random key."""
    chance, query = seeded_query(seed)
    names = query.unique if query.unique and chance.random() < 0.7 else query.columns
    return derive(query.sql, SCHEMAS, chance.sample(names, chance.randint(1, min(3, len(names)))))


def random_sums(seed: int) -> ViewPlan:
    """Return the plan of random sums and counts over an inner join, to which changes are added."""
    chance, query = seeded_sums(seed)
    return derive(query.sql, SCHEMAS, chance.sample(query.unique or (), len(query.unique or ())))


def plan_of_case(name: str) -> ViewPlan:
    """Return the plan of a named case; its key is the scope, or the query's first column."""
    sql, scope, _ = CASES[name]
    first = normal_form(parse(sql), SCHEMAS).outputs[0]
    return derive(sql, SCHEMAS, scope or [first])


def _some_of(chance: random.Random, plan: ViewPlan, changed: set[str]) -> tuple[str, ...]:
    """Return the plan's scope, or some other columns whose touched values all changed tables give."""
    sets = [set(occurrence.covered) for occurrence in plan.coverage.occurrences if occurrence.table in changed]
    common = [name for name in plan.form.outputs if all(name in names for names in sets)]
    if not common or chance.random() < 0.4:
        return plan.coverage.scope_of(changed)
    return tuple(chance.sample(common, chance.randint(1, min(3, len(common)))))


def _require_equal(actual: list[Row], wanted: list[Row], plan: ViewPlan, what: str) -> None:
    many, few = Counter(actual) - Counter(wanted), Counter(wanted) - Counter(actual)
    if many or few:
        some = [list(islice(rows.elements(), 4)) for rows in (many, few)]
        raise Differs(f"columns {plan.form.outputs}: too many {some[0]}, missing {some[1]}; {what}")
