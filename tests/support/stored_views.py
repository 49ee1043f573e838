"""A real store under random commits, with views of random queries that must equal their queries at each valid epoch.

Views read tables of columns of every type, and other views. The judge is the engine, which runs the text of a view's
query over the rows that the store has of its tables at an epoch; it knows nothing of plans. DuckDB judges texts of the
list of worlds, which Spark has answered as it does; Spark judges fresh ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
from altered_table import WIDER
from confirmed import RawJudge, confirmed
from epochlog.store.types.schema import TableSchema
from epochlog.views.derivation import derive, tables_of
from lab import Lab, epochs_of
from view_queries import TABLES
from view_types import ARROW, random_value
from view_worlds import NAMES, ViewText, WorldOfViews, has_key, random_types, random_view, replacement, worlds


class NoAnswer(Exception):
    """An engine cannot run a query."""


Judge = Callable[[str, Mapping[str, pa.Table]], pa.Table]
"""Returns the rows of a query in Spark's dialect over tables. Raises NoAnswer."""


class Differs(AssertionError):
    """A view does not have the rows of its query."""


@cache
def _raw_judge() -> RawJudge:
    return RawJudge()


def judged_by_duckdb(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of a text that Spark has answered, as it was given."""
    try:
        return _raw_judge().rows(sql, tables)
    except duckdb.Error as error:
        if isinstance(error, duckdb.InternalException):
            _raw_judge().restart()  # the error has ended the database
        raise NoAnswer(sql) from error


@cache
def confirmed_world(number: int) -> WorldOfViews:
    """Return the texts of a world of the list that Spark has answered as DuckDB does; views of others need Spark."""
    world, same = worlds()[number], confirmed(worlds()[number].texts, f"world {number}")
    assert len(same) > 0.75 * len(world.texts)
    views = {
        name: tuple(
            ViewText(view.sql, view.key, tuple(sql for sql in view.replacements if sql in same))
            for view in of
            if view.sql in same
        )
        for name, of in world.views.items()
    }
    return WorldOfViews(world.types, {name: of for name, of in views.items() if of})


class StoredViews:
    """Store with the tables of `view_queries`, whose columns have random types, and random views. `seed` repeats it.

    world: its number in the list of worlds; chance decides otherwise.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        judge: Judge = judged_by_duckdb,
        spark: Any = None,
        *,
        alters: int = 2,
        world: int | None = None,
    ) -> None:
        self.alters = alters  # their weight among the actions
        self.seed, self.chance, self.judge, self.spark = seed, random.Random(seed), judge, spark
        self.lab = Lab(folder)
        self.seen: Counter[str] = Counter()
        number = self.chance.randrange(len(worlds())) if world is None else world
        self.world = confirmed_world(number) if spark is None else None
        self.types = self.world.types if self.world else random_types(self.chance)
        self.definitions: list[tuple[int, dict[str, str]]] = [(0, {})]
        self.made: list[tuple[int, dict[str, int]]] = [(0, {})]  # epochs at which the definitions were made
        # columns that were dropped and added again, with their defaults
        self.remade: dict[str, list[tuple[int, str, Any]]] = {name: [] for name in TABLES}
        self.first: dict[str, str] = {}  # queries as the views were created
        self.checked: dict[str, int] = {}
        self.tables_read: dict[str, tuple[str, ...]] = {}
        self.answers: dict[tuple[str, int, tuple[int, ...]], Counter[str]] = {}  # by query and commits of its tables
        self.ids = self.chance.choice([10, 10, 60])
        for name, (columns, key) in TABLES.items():
            fields = [
                pa.field(column, ARROW[self.types[name][column]], column not in key and self.chance.random() < 0.8)
                for column in columns
            ]
            options = el.TableOptions(compact_segments=self.chance.choice([2, 8]))
            self.lab.store.create_table(name, pa.schema(fields), key, options=options)
            self._put(name, self.chance.choice([0, self.ids, self.ids, 2 * self.ids]) if name != "cfg" else 1)
        for name in self.world.views if self.world else NAMES[: self.chance.randint(3, 4)]:
            self._create(name)

    @property
    def store(self) -> el.Store:
        return self.lab.store

    @property
    def views(self) -> dict[str, str]:
        """The present queries by view."""
        return self.definitions[-1][1]

    # ---- tables ----------------------------------------------------------------------------------------------------

    def _row(self, table: str) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for column, kind in self.types[table].items():
            numbers = 1 if table == "cfg" and column == "id" else self.ids if column == "id" else 4
            nullable = self.store.table(table).schema.field(column).nullable
            is_null = nullable and self.chance.random() < 0.2
            row[column] = None if is_null else random_value(self.chance, kind, numbers)
        return row

    def _upsert(self) -> None:
        self._put(self.chance.choice(sorted(TABLES)), self.chance.choice([1, 1, 2, 5]))

    def _put(self, table: str, rows: int, tx: el.Transaction | None = None) -> None:
        if not rows:
            return
        key = TABLES[table][1]
        distinct = {tuple(map(repr, (row[c] for c in key))): row for row in (self._row(table) for _ in range(rows))}
        data = pa.Table.from_pylist(list(distinct.values()), schema=self.store.table(table).schema)
        if tx is None:
            self.store.table(table).upsert(data)
        else:
            tx.upsert(table, data)

    def _delete(self, table: str | None = None, tx: el.Transaction | None = None) -> None:
        table = table or self.chance.choice(sorted(TABLES))
        key = list(TABLES[table][1])
        keys = self.store.table(table).to_arrow().select(key)
        if keys.num_rows:
            some = keys.take(self.chance.sample(range(keys.num_rows), self.chance.randint(1, min(3, keys.num_rows))))
            self.store.table(table).delete(some) if tx is None else tx.delete(table, some)

    def _move(self) -> None:
        """Give rows other keys: rows go and others come in one commit, perhaps of several tables."""
        with self.store.transaction() as tx:
            for table in self.chance.sample(sorted(TABLES), self.chance.choice([1, 1, 2])):
                self._delete(table, tx)
                self._put(table, self.chance.choice([1, 2]), tx)

    def _restore(self) -> None:
        table = self.store.table(self.chance.choice(sorted(TABLES)))
        epochs = [epoch for epoch in table.history()["epoch"].to_pylist() if epoch >= table.info.safe_epoch]
        if epochs:
            table.restore(self.chance.choice(epochs))

    # ---- views -----------------------------------------------------------------------------------------------------

    def _create(self, name: str) -> None:
        """Create a view of a random query that the engine takes, and whose rows have a key at present if any has."""
        for sql, key, needs_key in self._candidates(name):
            try:
                rows = self.judge(sql, {table: self._rows(table) for table in tables_of(sql)})
                is_empty = not rows.num_rows and self.world is None and self.chance.random() < 0.9
                if is_empty or (needs_key and not has_key(rows, key)):
                    self.seen["no rows"] += 1
                    continue
                refresh = self.chance.choice(["auto", "auto", "auto", "incremental", "full"])
                self.store.create_view(name, sql, list(key), refresh=refresh, spark=self.spark)
            except (el.EpochlogError, NoAnswer) as error:
                self.seen["refused"] += 1
                self.last_refusal = error
                continue
            break
        else:
            return
        self.seen["views"] += 1
        self.first[name] = sql
        self.checked.pop(name, None)
        self.tables_read[sql] = self._tables_read(name, sql)
        # At all its epochs: no valid epoch of another view is of a dropped one of this name.
        self.definitions = [(begin, {**queries, name: sql}) for begin, queries in self.definitions]
        self.made = [(begin, {**made, name: self.store.last_epoch}) for begin, made in self.made]

    def _candidates(self, name: str) -> Iterator[tuple[str, tuple[str, ...], bool]]:
        """Yield queries for a view, and True if its rows must have keys: those of the world in a random order, or
        random ones without end.
        """
        if self.world is not None:
            views = self.chance.sample(self.world.views[name], len(self.world.views[name]))
            yield from ((view.sql, view.key, needs_key) for needs_key in (True, False) for view in views)
            return
        while True:
            schemas = {}
            for view in self.views:
                table = self.store.table(view)
                schemas[view] = TableSchema(view, table.schema, tuple(table.primary_key))
            sql, key = random_view(self.chance, self.types, schemas)
            if key is not None:
                yield sql, key, True

    def _rows(self, table: str) -> pa.Table:
        """Return the present rows of a table; none of a view that has not been stepped."""
        try:
            return self.store.table(table).to_arrow()
        except el.EpochNotCommitted:
            return self.store.table(table).schema.empty_table()

    def _tables_read(self, name: str, sql: str) -> tuple[str, ...]:
        """Return the tables that a query reads, without those of CTEs that it does not use."""
        tables = {table: self.store.table(table) for table in tables_of(sql)}
        schemas = {table: TableSchema(table, t.schema, tuple(t.primary_key)) for table, t in tables.items()}
        return tuple(derive(sql, schemas, self.store.table(name).primary_key).tables)

    def _replace(self) -> None:
        """Replace some views: each has some rows of its first query from then on, or all of them."""
        chance, new = self.chance, {}
        for name in chance.sample(sorted(self.views), min(len(self.views), chance.randint(1, 2))):
            sqls = self._replacements(name)
            new[name] = chance.choice([*sqls, *sqls, self.first[name]])
        made = dict.fromkeys(new, self.store.last_epoch)
        try:
            epoch = self.store.replace_views(new, spark=self.spark)
        except (el.InvalidInput, el.SchemaMismatch) as error:
            self.seen["replacement refused"] += 1
            self.last_refusal = error
            return
        self.seen["replaced"] += 1
        self.tables_read.update((sql, self._tables_read(name, sql)) for name, sql in new.items())
        self.definitions.append((epoch, {**self.views, **new}))
        self.made.append((epoch, {**self.made[-1][1], **made}))

    def _replacements(self, name: str) -> Sequence[str]:
        """Return queries of some rows of a view's first query."""
        if self.world is None:
            return [replacement(self.chance, self.first[name], self.store.table(name).schema)]
        return next(view.replacements for view in self.world.views[name] if view.sql == self.first[name])

    def _drop(self) -> None:
        """Drop a view that no other reads, and create another of its name."""
        name = self.chance.choice(sorted(self.views))
        try:
            self.store.drop_view(name)
        except el.TableInUse:
            return
        self.definitions = [
            (begin, {n: q for n, q in queries.items() if n != name}) for begin, queries in self.definitions
        ]
        self._create(name)

    # ---- alters ----------------------------------------------------------------------------------------------------

    def _alter(self) -> None:
        """Change a column that no query names, which always succeeds, or make one anew that no view may read."""
        chance, name = self.chance, self.chance.choice(sorted(TABLES))
        table, (columns, key) = self.store.table(name), TABLES[name]
        extra = [column for column in table.schema.names if column not in columns]
        if not extra:
            table.alter(add=[pa.field("extra", pa.int8())])
        elif chance.random() < 0.5:
            wider = WIDER.get(table.schema.field(extra[0]).type, [table.schema.field(extra[0]).type])[-1]
            new = f"extra{len(table.history())}"
            table.alter(**chance.choice([{"drop": extra}, {"widen": {extra[0]: wider}}, {"rename": {extra[0]: new}}]))
            self.seen["extra columns changed"] += 1
        else:
            column = chance.choice([column for column in columns if column not in key])
            try:
                table.alter(drop=[column])
            except el.SchemaInUse:
                self.seen["columns in use"] += 1
                return
            kind = self.types[name][column]
            default = random_value(chance, kind) if chance.random() < 0.5 else None
            defaults = None if default is None else {column: default}
            table.alter(add=[pa.field(column, ARROW[kind])], defaults=defaults)
            self.remade[name].append((self.store.last_epoch, column, default))
            self.seen["columns made anew"] += 1

    def _columns_at(self, name: str, rows: pa.Table, epoch: int, made: int) -> pa.Table:
        """Return the rows of a table at an epoch in the columns that a query made at another epoch reads: its default
        or null before a column was added.
        """
        if name not in TABLES:
            return rows
        later = {column: default for added, column, default in self.remade[name] if epoch < added <= made}
        for column in TABLES[name][0]:
            if column in rows.column_names and column in later:
                rows = rows.drop_columns([column])
            if column not in rows.column_names:
                values = [later.get(column)] * rows.num_rows
                rows = rows.append_column(column, pa.array(values, ARROW[self.types[name][column]]))
        return rows

    # ---- steps -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Make one random change of the store, or step views and check them."""
        actions: dict[Callable[[], object], int] = {
            self._upsert: 12, self._step_some: 12, self._tick: 3, self._delete: 3, self._move: 2, self._compact: 2,
            self._retain: 1, self._restore: 1, self._replace: 1, self._drop: 1, self.lab.reopen: 1,
            self._alter: self.alters,
        }  # fmt: skip
        self.chance.choices(list(actions), list(actions.values()))[0]()

    def _step_some(self) -> None:
        for name in self.chance.sample(sorted(self.views), self.chance.randint(1, len(self.views))):
            self.step(name)

    def _tick(self) -> None:
        self.lab.tick(self.chance.choice([0.3, 1, 2.5]))

    def _compact(self) -> None:
        self.store.compact(self.chance.choice([*TABLES, *self.views, None]), full=self.chance.random() < 0.5)

    def _retain(self) -> None:
        """Let time pass, so that history, and sometimes the log, has expired."""
        self.lab.tick(self.chance.choice([4_000, 100_000]))  # seconds: an hour of history and a day of log are kept
        self.store.compact(full=True)
        self.store.vacuum(grace=0)

    def step(self, name: str) -> int | None:
        """Step a view to the newest boundary and check it at the epochs that are new."""
        self.store.checkpoint()
        self.lab.tick()
        epoch = None
        view = self.store.view(name)
        if view.info.state == "parked":
            self.seen["parked"] += 1
            view.job.rebuild()
        try:
            while (stepped := view.step(self.spark)) is not None:
                epoch = stepped
                self.seen["steps"] += 1
        except el.InvalidInput as error:
            self.seen["failed steps"] += 1
            self._require_no_key(name, error)
        self.check(name)
        return epoch

    def _require_no_key(self, name: str, error: el.InvalidInput) -> None:
        """A step fails where the query has two rows with one key, or none for a row, or the engine refuses it."""
        position = self.store.view(name).info.committed_epoch or 0
        valid = epochs_of(self.store).valid
        for epoch in self._marks():
            sql = self._query_at(name, epoch)
            if epoch > position and all(valid(table, epoch) for table in self.tables_read[sql]):
                try:
                    if not has_key(
                        self.expected(sql, epoch, self._made_at(name, epoch)), self.store.table(name).primary_key
                    ):
                        return
                except NoAnswer:
                    return
        raise Differs(f"seed {self.seed}: {name} failed for no reason: {error}\n{self.views[name]}") from error

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _marks(self) -> list[int]:
        """Return the epochs at which something changed, and those beside them, newest first."""
        marks = {self.store.last_epoch, *(begin for begin, _ in self.definitions)}
        for name in (*TABLES, *self.views):
            marks.update(self.store.table(name).history()["epoch"].to_pylist())
        near = {mark + distance for mark in marks for distance in (-1, 0, 1)}
        return sorted((mark for mark in near if 0 < mark <= self.store.last_epoch), reverse=True)

    def _query_at(self, name: str, epoch: int) -> str:
        return next(queries[name] for begin, queries in reversed(self.definitions) if begin <= epoch)

    def _made_at(self, name: str, epoch: int) -> int:
        return next(made[name] for begin, made in reversed(self.made) if begin <= epoch)

    def expected(self, sql: str, epoch: int, made: int) -> pa.Table:
        """Return the rows of a query over its tables at an epoch. made: epoch at which the query was given."""
        used = self.tables_read[sql]
        tables = {table: self.store.table(table) for table in tables_of(sql)}
        return self.judge(
            sql,
            {
                name: self._columns_at(name, t.to_arrow(epoch=epoch), epoch, made)
                if name in used
                else t.schema.empty_table()
                for name, t in tables.items()
            },
        )

    def check(self, name: str, everywhere: bool = False) -> None:
        """Compare a view with its query at valid epochs: at the newest ones since the last check, or at all."""
        view, table = epochs_of(self.store), self.store.table(name)
        since = 0 if everywhere else self.checked.get(name, 0)
        self.checked[name] = self.store.last_epoch
        valid = [epoch for epoch in self._marks() if epoch > since and view.valid(name, epoch)]
        for epoch in valid if everywhere else valid[:3]:
            sql, made = self._query_at(name, epoch), self._made_at(name, epoch)
            reads = {read: self.store.table(read) for read in self.tables_read[sql]}
            if any(epoch < read.info.safe_epoch for read in (table, *reads.values())):
                continue
            commits = tuple(newest_commit(read, epoch) for read in reads.values())
            rows = table.to_arrow(epoch=epoch)
            if (sql, made, commits) not in self.answers:
                wanted = self.expected(sql, epoch, made).select(rows.column_names).cast(rows.schema)
                self.answers[sql, made, commits] = counted(wanted, sql)
                self.seen["checks"] += 1
                self.seen["rows"] += rows.num_rows
            many, few = counted(rows, sql), self.answers[sql, made, commits]
            if many != few:
                raise Differs(
                    f"seed {self.seed}: {name} at {epoch}: too many {list((many - few).elements())[:4]}, missing "
                    f"{list((few - many).elements())[:4]}\n{sql}\n{self._explained(name)}"
                )

    def _explained(self, name: str) -> str:
        history = self.store.table(name).history().select(["epoch", "operation"]).to_pylist()[:3]
        return f"{history}\n{self.store.view(name).explain()}"

    def come_to_rest(self) -> None:
        """Step all views until none has anything to do, and check them at every valid epoch."""
        for _ in range(len(self.views) + 1):
            for name in self.views:
                self.step(name)
        for name in self.views:
            self.check(name, everywhere=True)
            operations = self.store.table(name).history()["operation"].to_pylist()
            self.seen.update(operation for operation in operations if operation)

    def play(self, actions: int) -> Counter[str]:
        try:
            for _ in range(actions):
                self.act()
            self.come_to_rest()
            problems = self.store.verify().problems
            assert problems == (), (self.seed, problems)
        except Differs:
            raise
        except Exception as error:
            raise AssertionError(f"seed {self.seed}: {error!r}\n{self.views}") from error
        finally:
            self.store.close()
        return self.seen


def newest_commit(table: el.Table, epoch: int) -> int:
    """Return the epoch of the newest commit that a read at an epoch sees; 0 without one."""
    return max((commit for commit in table.history()["epoch"].to_pylist() if commit <= epoch), default=0)


def counted(rows: pa.Table, sql: str) -> Counter[str]:
    """Count the rows by their text, which tells -0.0 from 0.0 unless the query has MIN or MAX: those are either."""
    if "MIN(" in sql or "MAX(" in sql:
        floats = [(i, f) for i, f in enumerate(rows.schema) if pa.types.is_floating(f.type)]
        for place, field in floats:
            rows = rows.set_column(place, field, pc.add(rows.column(place), pa.scalar(0, field.type)))
    return Counter(map(repr, rows.to_pylist()))
