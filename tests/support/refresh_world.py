"""Random changes of every upstream of a chain of views; each view is held against DuckDB at each of its commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import epochlog as el
from lab import START_MS

Refresh = Callable[[Any], None]
Step = Callable[[el.Job, Refresh], int | None]


@dataclass(frozen=True)
class Root:
    """A root table: its key, its columns, and the values that each may have."""

    key: tuple[str, ...]
    columns: Mapping[str, tuple[pa.DataType, Sequence[Any]]]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, kind, name not in self.key) for name, (kind, _) in self.columns.items()])


@dataclass(frozen=True)
class CheckedView:
    """A view with the refresh to be tried, and its query over the root tables alone."""

    name: str
    upstreams: tuple[str, ...]
    schema: pa.Schema
    key: tuple[str, ...]
    sql: str
    refresh: Refresh


@dataclass(frozen=True)
class Story:
    """Root tables and views over them; those that others read come first. `may_raise` is tried again.

    rows: so many, more or less, that each root begins with.
    """

    roots: Mapping[str, Root]
    views: Sequence[CheckedView]
    rows: int = 6
    may_raise: tuple[type[BaseException], ...] = ()


@dataclass
class RefreshWorld:
    """A store in which a story is played; `seed` repeats it."""

    story: Story
    seed: int
    folder: Path
    step: Step
    jobs: dict[str, el.Job] = field(default_factory=dict)
    rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    commits: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        self.store = el.open(self.folder, durability="os", clock=lambda: START_MS)
        for name, root in self.story.roots.items():
            self.store.create_table(name, root.schema, list(root.key), changelog=self.chance.choice(["upsert", "full"]))
            self.rows[name] = {}

    def play(self, rounds: int) -> None:
        """Each round changes some of the roots, and steps all views until none has anything to do."""
        if self.chance.random() < 0.7:
            with self.store.transaction() as tx:
                for name in self.story.roots:
                    self._fill(tx, name)
        pieces = self.chance.choice([None, None, 1, 3])
        for view in self.story.views:
            output = {view.name: (view.schema, list(view.key))}
            self.jobs[view.name] = self.store.create_job(view.name, view.upstreams, output, snapshot_rows=pieces)
        for _ in range(rounds):
            for _ in range(self.chance.randint(1, 3)):
                self.change(most=self.chance.choice([1, 2, 6]))
            if self.chance.random() < 0.1:
                self.store.compact(full=True)
            if self.chance.random() < 0.1:
                self.jobs[self.chance.choice(sorted(self.jobs))].rebuild()
            self.store.checkpoint()
            for view in self.story.views:
                self.follow(view)
        self.store.close()

    def _fill(self, tx: el.Transaction, name: str) -> None:
        root = self.story.roots[name]
        for _ in range(self.story.rows):
            row = {column: self.chance.choice(values) for column, (_, values) in root.columns.items()}
            self.rows[name][tuple(row[column] for column in root.key)] = row
        tx.upsert(name, pa.Table.from_pylist(list(self.rows[name].values()), schema=root.schema))

    def change(self, most: int) -> None:
        """One transaction with changes of some root tables: new rows, other values in old ones, and deletes."""
        with self.store.transaction() as tx:
            for name in self.chance.sample(sorted(self.story.roots), self.chance.randint(1, len(self.story.roots))):
                for _ in range(self.chance.randint(1, most)):
                    self._change_one(tx, name)

    def _change_one(self, tx: el.Transaction, name: str) -> None:
        root, known = self.story.roots[name], self.rows[name]
        key = self.chance.choice(sorted(known)) if known and self.chance.random() < 0.6 else None
        if key is not None and self.chance.random() < 0.45:
            tx.delete(name, pa.Table.from_pylist([dict(zip(root.key, key, strict=True))], schema=self._keys(root)))
            del known[key]
            return
        row = {column: self.chance.choice(values) for column, (_, values) in root.columns.items()}
        if key is not None:
            most = min(2, len(root.columns))
            unchanged = self.chance.sample(sorted(root.columns), len(root.columns) - self.chance.randint(1, most))
            row = {
                **row,
                **{column: known[key][column] for column in unchanged},
                **dict(zip(root.key, key, strict=True)),
            }
        tx.upsert(name, pa.Table.from_pylist([row], schema=root.schema))
        known[tuple(row[column] for column in root.key)] = row

    def _keys(self, root: Root) -> pa.Schema:
        return pa.schema([root.schema.field(name) for name in root.key])

    def follow(self, view: CheckedView) -> None:
        while True:
            try:
                epoch = self.step(self.jobs[view.name], view.refresh)
            except self.story.may_raise:
                continue
            if epoch is None:
                return
            if epoch:
                self.commits += 1
                self.compare(view, epoch)

    def compare(self, view: CheckedView, epoch: int) -> None:
        """The view at the epoch of its commit is its query over the root tables at that epoch."""
        judge = duckdb.cursor()  # of the process' connection: one of its own costs a tenth of a second
        for name in self.story.roots:
            judge.register(name, self.store.table(name).to_arrow(epoch=epoch))
        names = ", ".join(view.schema.names)
        actual = self.store.table(view.name).to_arrow(epoch=epoch).select(view.schema.names)
        judge.register("found", actual)
        judge.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS SELECT {names} FROM ({view.sql})")
        many = judge.execute("FROM found EXCEPT ALL FROM wanted").fetchall()
        few = judge.execute("FROM wanted EXCEPT ALL FROM found").fetchall()
        assert not many and not few, f"seed {self.seed}, {view.name} at {epoch}: too many {many}, missing {few}"
