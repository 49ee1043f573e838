"""Part of the story that altered tables play: random alters, clones, restores and commits, in an order from a seed.

The operations, and the tables that each leaves, follow from the seed alone. The ledger has the number of operations
that were acknowledged and the one under way, so a store that was opened after a fault has the tables of one of the two.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

import epochlog as el

PREFIX = "evolved"
"""Beginning of the names of its tables."""
KEY, SEQUENCE = 1, 2
KEYS = range(8)
WIDER = {pa.int8(): pa.int32(), pa.int32(): pa.decimal128(20, 2)}
LENGTH = 14


class Steps(Protocol):
    """The part of the ledger that evolution uses. evolution: by number of an acknowledged operation its epoch."""

    evolution: dict[int, int]

    def evolving(self, number: int) -> None: ...
    def evolved(self, number: int, epoch: int) -> None: ...


@dataclass
class Model:
    """A table: its columns by field id, and its rows. gone: keys of deletes that are kept."""

    columns: dict[int, tuple[str, pa.DataType]]
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    ids: int = 3

    def name(self, id_: int) -> str:
        return self.columns[id_][0]

    def shown(self) -> list[dict[str, Any]]:
        return [{name: row.get(id_) for id_, (name, _) in self.columns.items()} for _, row in sorted(self.rows.items())]


Models = dict[str, Model]
Call = Callable[[el.Store, dict[int, int]], int]
"""Does an operation to a store, given the epochs of those before; it may be repeated. Returns its epoch, or 0."""


class Plan:
    """Operations of a seed. states: the tables after so many operations; calls: the operations."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.sequence = bool(seed % 2)
        self.states: list[Models] = [{}]
        self.calls: list[Call] = []
        self.commits: dict[str, list[int]] = {}  # by table, the numbers of its commits
        self.changed = False
        self._create()
        while len(self.calls) < LENGTH:
            models = deepcopy(self.states[-1])
            actions = [self._write, self._write, self._alter, self._alter, self._clone, self._restore, self._compact]
            call = self.dice.choice([*actions, self._drop])(models, self.dice.choice(sorted(models)))
            if call is not None:
                self._add(call, models)

    def _add(self, call: Call, models: Models) -> None:
        self.calls.append(call)
        self.states.append(models)

    def _create(self) -> None:
        columns = {KEY: ("k", pa.int64()), SEQUENCE: ("at", pa.int64()), 3: ("n", pa.int8())}
        schema = pa.schema(list(columns.values()))
        options = el.TableOptions(history_retention=timedelta(days=1), log_retention=timedelta(days=1))
        by = "at" if self.sequence else None

        def create(store: el.Store, _: dict[int, int]) -> int:
            store.create_table(PREFIX, schema, ["k"], sequence_by=by, options=options, exist_ok=True)
            return 0

        self._add(create, {PREFIX: Model(columns)})
        models = deepcopy(self.states[-1])
        self._add(self._write(models, PREFIX), models)

    def _write(self, models: Models, name: str) -> Call:
        """Upsert some rows and delete others, with a sequence that is the number of the operation."""
        model, number = models[name], len(self.calls)
        keys = self.dice.sample(KEYS, 5)
        rows = [
            {id_: {KEY: key, SEQUENCE: number}.get(id_, number) for id_ in model.columns} for key in sorted(keys[:3])
        ]
        model.rows |= {row[KEY]: row for row in rows}
        model.rows = {key: row for key, row in model.rows.items() if key not in keys[3:]}
        model.gone = model.gone.difference(keys[:3]).union(keys[3:])
        fields = pa.schema(list(model.columns.values()))
        upserts = pa.Table.from_pylist([{model.name(id_): v for id_, v in row.items()} for row in rows], fields)
        wanted = [KEY, SEQUENCE] if self.sequence else [KEY]
        values = {KEY: keys[3:], SEQUENCE: [number] * 2}
        deletes = pa.table({model.name(id_): values[id_] for id_ in wanted})
        self.commits.setdefault(name, []).append(number)

        def write(store: el.Store, _: dict[int, int]) -> int:
            with store.transaction((PREFIX, number)) as tx:
                tx.upsert(name, upserts)
                tx.delete(name, deletes)
            return tx.epoch

        return write

    def _alter(self, models: Models, name: str) -> Call:
        model, number = models[name], len(self.calls)
        others = [id_ for id_ in model.columns if id_ not in (KEY, SEQUENCE)]
        narrow = [id_ for id_ in others if model.columns[id_][1] in WIDER]
        kind = self.dice.choice(["add", "rename", "drop", "widen", "rename"])
        change: dict[str, Any] = {"add": [pa.field(f"c{number}", pa.int8())]}
        if kind == "rename":
            id_ = self.dice.choice(list(model.columns))
            change = {"rename": {model.name(id_): f"r{number}"}}
            model.columns[id_] = (f"r{number}", model.columns[id_][1])
        elif kind == "drop" and others:
            id_ = self.dice.choice(others)
            change = {"drop": [model.name(id_)]}
            del model.columns[id_]
            for row in model.rows.values():
                row.pop(id_, None)
        elif kind == "widen" and narrow:
            id_ = self.dice.choice(narrow)
            column, type_ = model.columns[id_]
            change = {"widen": {column: WIDER[type_]}}
            model.columns[id_] = (column, WIDER[type_])
        else:
            model.ids += 1
            model.columns[model.ids] = (f"c{number}", pa.int8())

        def alter(store: el.Store, _: dict[int, int]) -> int:
            store.table(name).alter(**change)
            return 0

        return alter

    def _clone(self, models: Models, name: str) -> Call | None:
        """Clone a table as it is, or as of one of its commits."""
        clone, as_of = f"{PREFIX}{len(self.calls)}", self.dice.choice([None, *self.commits.get(name, [])])
        if len(models) > 3:
            return None
        source = models[name] if as_of is None else self.states[as_of + 1][name]
        models[clone] = replace_ids(deepcopy(source), models[name].ids)

        def make(store: el.Store, epochs: dict[int, int]) -> int:
            if clone not in {info.name for info in store.tables()}:
                store.clone(name, clone, as_of=None if as_of is None else epochs[as_of])
            return 0

        return make

    def _restore(self, models: Models, name: str) -> Call | None:
        """Give a table the rows, and the kept deletes, that it had after one of its commits."""
        if not self.commits.get(name):
            return None
        number, to, now = len(self.calls), self.dice.choice(self.commits[name]), models[name]
        before = deepcopy(self.states[to + 1][name])
        now.rows = {key: {id_: row.get(id_) for id_ in now.columns} for key, row in before.rows.items()}
        now.gone = before.gone
        self.commits[name].append(number)

        def restore(store: el.Store, epochs: dict[int, int]) -> int:
            return store.table(name).restore(epochs[to], txn=(PREFIX, number))

        return restore

    def _compact(self, models: Models, name: str) -> Call:
        full = self.dice.random() < 0.5

        def compact(store: el.Store, _: dict[int, int]) -> int:
            store.compact(name, full=full)
            return 0

        return compact

    def _drop(self, models: Models, name: str) -> Call | None:
        if len(models) < 2:
            return None
        del models[name]
        self.commits.pop(name, None)

        def drop(store: el.Store, _: dict[int, int]) -> int:
            if name in {info.name for info in store.tables()}:
                store.drop_table(name)
            return 0

        return drop


def replace_ids(model: Model, ids: int) -> Model:
    """Return a clone's model: its next column gets an id above all of its source."""
    model.ids = ids
    return model


def planned() -> Plan:
    """Return the plan of the seed in FAULT_EVOLUTION, by default 5."""
    return Plan(int(os.environ.get("FAULT_EVOLUTION", "5")))


def run_evolution(store: el.Store, ledger: Steps, attempt: Callable[[Callable[[], Any]], Any], first: int = 0) -> None:
    """Do the operations from a number on."""
    calls = planned().calls
    for number in range(first, len(calls)):
        ledger.evolving(number)
        epoch = attempt(lambda call=calls[number]: call(store, ledger.evolution))
        ledger.evolved(number, epoch)


def resume_evolution(store: el.Store, ledger: Steps) -> None:
    """Recover after a crash: repeat the operation without an answer, and do the rest. Then send late changes, all older
    than the deletes of their keys.
    """
    run_evolution(store, ledger, lambda call: call(), len(ledger.evolution))
    plan = planned()
    for name, model in plan.states[-1].items():
        if plan.sequence and model.gone:
            rows = [{model.name(KEY): key, model.name(SEQUENCE): -1} for key in sorted(model.gone)]
            fields = pa.schema(list(model.columns.values()))
            store.table(name).upsert(pa.Table.from_pylist(rows, fields))


def check_evolution(store: el.Store, acknowledged: dict[int, int], under_way: int | None) -> None:
    """The tables are those after the acknowledged operations, or those after the one under way; commits read so too."""
    plan, count = planned(), len(acknowledged)
    wanted = [plan.states[count], *([plan.states[under_way + 1]] if under_way is not None else [])]
    tables = {info.name: store.table(info.name) for info in store.tables() if info.name.startswith(PREFIX)}
    seen = {name: columns_and_rows(table) for name, table in tables.items()}
    expected = [{name: (list(m.columns.values()), m.shown()) for name, m in models.items()} for models in wanted]
    assert seen in expected, (count, under_way, seen, expected)
    for name, numbers in plan.commits.items():
        for number in numbers:
            epoch = acknowledged.get(number, 0)
            if name in tables and epoch >= max(tables[name].info.safe_epoch, 1):
                rows = tables[name].to_arrow(epoch=epoch).to_pylist()
                assert rows == plan.states[number + 1][name].shown(), (name, number)


def columns_and_rows(table: el.Table) -> tuple[list[tuple[str, pa.DataType]], list[dict[str, Any]]]:
    rows = table.to_arrow()
    return [(column.name, column.type) for column in rows.schema], rows.to_pylist()
