"""A table that is altered among commits, beside a model of it: the rows of each epoch, by field id."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.types.widening import loses_dates

LONG = el.TableOptions(history_retention=timedelta(days=30), log_retention=timedelta(days=30))
Column = tuple[int, str, pa.DataType]
Row = dict[int, Any]

_STRUCT = pa.struct([("a", pa.int8()), ("l", pa.list_(pa.struct([("x", pa.date32())])))])
_MORE_FIELDS = pa.struct([("b", pa.string()), *_STRUCT])
_WIDE_FIELDS = pa.struct([
    ("b", pa.string()),
    ("a", pa.int32()),
    ("l", pa.list_(pa.struct([("x", pa.timestamp("ms")), ("y", pa.int8())]))),
])  # fmt: skip
WIDER: dict[pa.DataType, list[pa.DataType]] = {
    pa.int8(): [pa.int16(), pa.float32(), pa.decimal128(5, 2)],
    pa.int16(): [pa.int32(), pa.float64()],
    pa.int32(): [pa.int64(), pa.float64(), pa.decimal128(20, 2)],
    pa.int64(): [pa.decimal128(38, 4)],
    pa.uint8(): [pa.int32(), pa.decimal128(6, 2)],
    pa.float32(): [pa.float64()],
    pa.decimal128(5, 2): [pa.decimal128(6, 2), pa.decimal128(20, 5)],
    pa.decimal128(6, 2): [pa.decimal128(20, 2), pa.decimal128(7, 3)],
    pa.decimal128(20, 2): [pa.decimal256(40, 2), pa.decimal256(60, 20)],
    pa.date32(): [pa.timestamp("us"), pa.timestamp("s")],
    _STRUCT: [_MORE_FIELDS, _WIDE_FIELDS],
    _MORE_FIELDS: [_WIDE_FIELDS],
}
TYPES = [*WIDER, pa.string(), pa.list_(pa.int32())]
_NUMBERS = itertools.count()
"""Numbers of the alters that take a txn, because the table has a swap that they make again."""


@dataclass
class Moment:
    """The columns and rows of one epoch."""

    columns: list[Column]
    rows: dict[Any, Row]
    defaults: Row

    @property
    def schema(self) -> list[tuple[str, pa.DataType]]:
        return [(name, kind) for _, name, kind in self.columns]

    def read(self) -> list[dict[str, Any]]:
        """The rows as a read of this epoch returns them."""
        return self.read_as(self.columns)

    def read_as(self, columns: list[Column]) -> list[dict[str, Any]]:
        rows = sorted(self.rows.items())
        return [{name: self.value(row, id_, kind) for id_, name, kind in columns} for _, row in rows]

    def value(self, row: Row, id_: int, kind: pa.DataType) -> Any:
        """The value of a column in a row, or the column's default in one that was written without it."""
        return widened_value(row.get(id_, self.defaults.get(id_)), kind)


@dataclass
class OpenWriter:
    """A writer with rows that are not committed yet, by field id."""

    writer: el.TableWriter
    rows: list[Row]
    columns: list[Column]


@dataclass
class AlteredTable:
    """A table of the store and its model. Columns 1 and 2 are its key."""

    store: el.Store
    name: str = "t"
    changelog: str = "upsert"
    options: el.TableOptions = LONG
    columns: list[Column] = field(
        default_factory=lambda: [
            (1, "k", pa.int64()),
            (2, "g", pa.string()),
            (3, "a", pa.int32()),
            (4, "b", pa.string()),
        ]
    )
    rows: dict[Any, Row] = field(default_factory=dict)
    moments: dict[int, Moment] = field(default_factory=dict)
    alters: list[int] = field(default_factory=list)
    last_change: Mapping[str, Any] | None = None
    changes: list[tuple[Mapping[str, Any], dict[str, int]]] = field(default_factory=list)
    defaults: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = pa.schema([(name, kind) for _, name, kind in self.columns])
        self.table = self.store.create_table(
            self.name, schema, ["k", "g"], changelog=self.changelog, options=self.options
        )
        self.next_id = 1 + max(id_ for id_, _, _ in self.columns)

    # ---- changes of the table and of its model -------------------------------------------------------------------

    def upsert(self, rows: list[Mapping[str, Any]]) -> int:
        """Upsert rows by the present names."""
        schema = pa.schema([(name, kind) for _, name, kind in self.columns])
        epoch = self.table.upsert(pa.Table.from_pylist([dict(row) for row in rows], schema=schema))
        for row in rows:
            by_id = {id_: row.get(name) for id_, name, _ in self.columns}
            self.rows[by_id[1], by_id[2]] = by_id
        return self._note(epoch)

    def delete(self, keys: list[tuple[int, str]]) -> int:
        names = [name for id_, name, _ in sorted(self.columns)[:2]]
        epoch = self.table.delete(key_table(names, keys))
        for key in keys:
            self.rows.pop(key, None)
        return self._note(epoch)

    def alter(
        self,
        add: Mapping[str, pa.DataType] | None = None,
        drop: list[str] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, pa.DataType] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> int:
        given = {"add": add, "drop": drop, "rename": rename, "widen": widen, "defaults": defaults}
        self.last_change = {name: value for name, value in given.items() if value is not None}
        fields = [pa.field(name, kind) for name, kind in (add or {}).items()]
        txn = ("alters", next(_NUMBERS)) if self.repeats(self.last_change) else None
        self.table.alter(add=fields, drop=drop, rename=rename, widen=widen, defaults=defaults, txn=txn)
        columns = [column for column in self.columns if column[1] not in (drop or [])]
        columns = [(id_, (rename or {}).get(name, name), (widen or {}).get(name, kind)) for id_, name, kind in columns]
        for name, kind in (add or {}).items():
            columns.append((self.next_id, name, kind))
            if name in (defaults or {}):
                self.defaults[self.next_id] = defaults[name]
            self.next_id += 1
        self.columns = columns
        self.changes.append((self.last_change, self._ids_of(self.last_change)))
        ids = {id_ for id_, _, _ in columns}
        self.rows = {key: {id_: v for id_, v in row.items() if id_ in ids} for key, row in self.rows.items()}
        epoch = self._note(self.table.history(1)["epoch"][0].as_py())
        self.alters.append(epoch)
        return epoch

    def _ids_of(self, change: Mapping[str, Any]) -> dict[str, int]:
        """Return the ids of the columns that have the new names of a change's renames."""
        ids = {name: id_ for id_, name, _ in self.columns}
        return {name: ids[name] for name in (change.get("rename") or {}).values() if name in ids}

    def repeats(self, change: Mapping[str, Any]) -> bool:
        """Return True for a swap that the table has already."""
        renamed = change.get("rename") or {}
        return bool(renamed.keys() & set(renamed.values())) and (change, self._ids_of(change)) in self.changes

    def restore(self, epoch: int) -> int:
        """Restore the rows of an epoch: the present columns keep their values of then, by field id."""
        ids = [id_ for id_, _, _ in self.columns]
        rows = self.moments[epoch].rows
        restored = self.table.restore(epoch)
        self.rows = {key: {id_: row[id_] for id_ in ids if id_ in row} for key, row in rows.items()}
        return self._note(restored)

    def clone(self, name: str, epoch: int) -> AlteredTable:
        """Clone the table as of an epoch; return the clone with a model of its own."""
        clone, moment = copy(self), self.moments[epoch]
        clone.name, clone.table = name, self.store.clone(self.name, name, as_of=epoch)
        clone.columns, clone.rows = list(moment.columns), {key: dict(row) for key, row in moment.rows.items()}
        clone.moments, clone.alters, clone.last_change = {}, [], None
        clone.changes, clone.defaults = [], dict(self.defaults)
        clone._note(clone.table.info.safe_epoch)
        return clone

    def open_writer(self, rows: list[Mapping[str, Any]]) -> OpenWriter:
        """Write rows by the present names, to be committed later."""
        writer = self.table.writer()
        schema = pa.schema([(name, kind) for _, name, kind in self.columns])
        writer.upsert(pa.Table.from_pylist([dict(row) for row in rows], schema=schema))
        by_id = [{id_: row.get(name) for id_, name, _ in self.columns} for row in rows]
        return OpenWriter(writer, by_id, list(self.columns))

    def commit_writer(self, opened: OpenWriter) -> bool:
        """Commit rows that were written earlier; return False if a column of theirs was dropped since, or widened to
        timestamps that hold fewer years than dates.
        """
        present = {id_: kind for id_, _, kind in self.columns}
        dates = any(id_ in present and loses_dates(kind, present[id_]) for id_, _, kind in opened.columns)
        segments = opened.writer.seal(self.store.last_epoch + 1)
        if dates or any(row.keys() - present.keys() for row in opened.rows):
            with pytest.raises(el.SchemaChanged):
                self.store.commit({self.name: segments})
            return False
        epoch = self.store.commit({self.name: segments})
        for row in opened.rows:
            self.rows[row[1], row[2]] = row
        self._note(epoch)
        return True

    def _note(self, epoch: int) -> int:
        rows = {key: dict(row) for key, row in self.rows.items()}
        self.moments[epoch] = Moment(list(self.columns), rows, self.defaults)
        return epoch

    # ---- checks --------------------------------------------------------------------------------------------------

    def readable(self) -> Iterator[tuple[int, Moment]]:
        safe = self.table.info.safe_epoch
        for epoch, moment in self.moments.items():
            if epoch >= safe:
                yield epoch, moment

    def check(self, epoch: int | None = None) -> None:
        """Every readable epoch reads as the model says: whole, by batches, by key and by a filter."""
        epochs = list(self.readable()) if epoch is None else [(epoch, self.moments[epoch])]
        assert epochs
        for at, moment in epochs:
            schema = self.table.schema_at(at)
            assert [(f.name, f.type) for f in schema] == moment.schema
            whole = self.table.to_arrow(epoch=at)
            assert whole.schema == schema
            assert whole.to_pylist() == moment.read(), at
            assert self.table.scan(epoch=at).read_all() == whole
            self._check_keys(at, moment)
            self._check_filters(at, whole)
        assert self.store.verify().ok

    def _check_keys(self, at: int, moment: Moment) -> None:
        names = [name for _, name, _ in sorted(moment.columns)[:2]]
        keys = [*[*moment.rows][:3], (-1, "none")]
        table = key_table(names, keys)
        expected = [
            {name: moment.value(moment.rows[key], id_, kind) for id_, name, kind in moment.columns}
            for key in keys
            if key in moment.rows
        ]
        assert self.table.get(table, epoch=at).to_pylist() == expected, at

    def _check_filters(self, at: int, whole: pa.Table) -> None:
        """Filter by each column: by its first or last value, and for rows equal to it or above it."""
        for column in whole.schema:
            values = whole.column(column.name).drop_null()
            if len(values) and not pa.types.is_nested(column.type):
                chance = random.Random(f"{at} {column.name}")
                value = values[chance.choice([0, len(values) - 1])]
                condition = chance.choice([pc.field(column.name) == value, pc.field(column.name) > value])
                passing = self.table.to_arrow(epoch=at, filter=condition)
                assert passing == whole.filter(condition), (at, column.name, value)

    def check_changes(self, after: int, until: int) -> None:
        """A net range has the columns of its end, and leads from the one state to the other."""
        moments, end = self.moments, self.moments[until]
        changes = self.table.changes(after, until, mode="net", pre_images=True).read_all()
        names = [name for _, name, _ in end.columns]
        assert changes.schema.names[: len(names)] == names
        before = moments[after].read_as(end.columns) if after else []
        key = [name for _, name, _ in sorted(end.columns)[:2]]
        state = {(row[key[0]], row[key[1]]): row for row in before}
        for change in changes.to_pylist():
            row, kind = {name: change[name] for name in names}, change["_change_type"]
            at = row[key[0]], row[key[1]]
            if kind in ("update_preimage", "delete"):
                assert state.pop(at) == row
            else:
                assert at not in state
                state[at] = row
        assert [row for _, row in sorted(state.items())] == end.read()

    def check_feed(self, after: int) -> list[int]:
        """A feed that begins again after each alter passes every change once, each in the columns of its epoch."""
        seen: list[int] = []
        breaks: list[int] = []
        position = after
        while True:
            reader = self.table.changes(position, pre_images=False)
            changed: int | None = None
            columns = pa.schema(list(reader.schema)[:-3])
            try:
                for batch in reader:
                    for row in batch.to_pylist():
                        self._check_change(row, columns)
                        position = row["_commit_version"]
                        seen.append(position)
            except el.SchemaChanged as error:
                changed = error.epoch
            if changed is None:
                return breaks
            assert changed in self.alters
            assert changed > position
            breaks.append(changed)
            position = changed - 1

    def _check_change(self, row: dict[str, Any], columns: pa.Schema) -> None:
        moment = self.moments[row["_commit_version"]]
        known = {name: id_ for id_, name, _ in moment.columns}
        assert set(known) <= set(columns.names), "a change is read without one of its columns"
        key = tuple(row[name] for _, name, _ in sorted(moment.columns)[:2])
        if row["_change_type"] == "delete":
            assert key not in moment.rows
            return
        for column in columns:
            name = column.name
            id_ = known[name] if name in known else self.added_after(row["_commit_version"], name)
            assert row[name] == moment.value(moment.rows[key], id_, column.type), (name, row)

    def added_after(self, epoch: int, name: str) -> int:
        """The id of the column that has the name first after an epoch."""
        later = (moment.columns for at, moment in sorted(self.moments.items()) if at > epoch)
        return next(id_ for columns in later for id_, other, _ in columns if other == name)


def widened_value(value: Any, kind: pa.DataType | None) -> Any:
    """Return a value as a column of this wider type has it. Python's numbers are equal, whatever their types."""
    if value is None or kind is None:
        return value
    if pa.types.is_timestamp(kind) and not isinstance(value, dt.datetime):
        return dt.datetime.combine(value, dt.time())
    if pa.types.is_struct(kind):
        return {field.name: widened_value(value.get(field.name), field.type) for field in kind}
    return [widened_value(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value


def key_table(names: list[str], keys: list[tuple[int, str]]) -> pa.Table:
    schema = pa.schema([(names[0], pa.int64()), (names[1], pa.string())])
    return pa.Table.from_pylist([dict(zip(names, key, strict=True)) for key in keys], schema=schema)


def random_value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_integer(kind):
        top = (1 << (kind.bit_width - 1)) - 1 if kind.bit_width < 64 else 1 << 50
        return rng.choice([0, 1, top, -top if pa.types.is_signed_integer(kind) else 7])
    if pa.types.is_floating(kind):
        return rng.choice([0.5, -3.25, 2.0**60 if kind == pa.float64() else 8.0])
    if pa.types.is_decimal(kind):
        return Decimal((rng.randrange(2), rng.choice([(1,), (9,) * kind.precision]), -kind.scale))
    if pa.types.is_date(kind):
        return rng.choice([dt.date.min, dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date.max])
    if pa.types.is_timestamp(kind):
        return rng.choice([dt.datetime(1969, 12, 31, 23, 59, 59), dt.datetime(2024, 2, 29)])
    if pa.types.is_struct(kind):
        return {field.name: random_value(rng, field.type) for field in kind}
    if pa.types.is_list(kind):
        return [random_value(rng, kind.value_type), None]
    return rng.choice(["", "x", "yy", "z" * 20])


def random_rows(rng: random.Random, columns: list[Column], count: int, keys: int) -> list[dict[str, Any]]:
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for _ in range(count):
        key = (rng.randrange(keys), rng.choice("ab"))
        row = {name: random_value(rng, kind) for _, name, kind in columns}
        for (_, name, _), value in zip(sorted(columns)[:2], key, strict=True):
            row[name] = value
        rows[key] = row
    return list(rows.values())


def random_alter(rng: random.Random, altered: AlteredTable) -> dict[str, Any] | None:
    """A change that the table takes; None if there is none of the chosen kind."""
    change = _random_change(rng, altered)
    no_effect = change == altered.last_change and change is not None and not altered.repeats(change)
    return None if no_effect else change


def _random_change(rng: random.Random, altered: AlteredTable) -> dict[str, Any] | None:
    names = [name for _, name, _ in altered.columns]
    values = [(name, kind) for id_, name, kind in altered.columns if id_ > 2]
    kind = rng.choice(["add", "drop", "rename", "swap", "widen", "swap_keys"])
    free = [name for name in ("a", "b", "c", "d", "e") if name not in names]
    if kind == "add" and free:
        name, added = rng.choice(free), rng.choice(TYPES)
        value = random_value(rng, added) if rng.random() < 0.5 else None
        return {"add": {name: added}, **({} if value is None else {"defaults": {name: value}})}
    if kind == "drop" and values:
        return {"drop": [rng.choice(values)[0]]}
    if kind == "rename" and free:
        return {"rename": {rng.choice(names): rng.choice(free)}}
    if kind == "swap" and len(values) > 1:
        (first, _), (second, _) = rng.sample(values, 2)
        return {"rename": {first: second, second: first}}
    if kind == "swap_keys":
        first, second = (name for _, name, _ in sorted(altered.columns)[:2])
        return {"rename": {first: second, second: first}}
    wide = [(name, rng.choice(WIDER[kind])) for name, kind in values if kind in WIDER]
    if kind == "widen" and wide:
        name, wider = rng.choice(wide)
        return {"widen": {name: wider}}
    return None
