"""A table with a sequence that is altered among late and reordered changes, beside a model of it by field id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from altered_table import WIDER, Column
from cdc import CdcEvent, expected

KEPT = el.TableOptions(
    history_retention=timedelta(days=30), log_retention=timedelta(days=30), tombstone_retention=timedelta(days=30)
)
KEY, VALUE, SEQUENCE, NUMBER = 1, 2, 3, 4
"""Field ids of the columns that each version has."""
Row = dict[int, Any]
ALTERS = ("swap key and sequence", "swap values", "rename sequence", "add", "drop", "widen")


@dataclass
class WrittenChange:
    """A change as it was written: its event, and its values by field id."""

    event: CdcEvent
    row: Row


@dataclass
class Pending:
    """Changes in segments that are not committed yet."""

    segments: Any
    changes: list[WrittenChange]


@dataclass
class AlteredSequence:
    """The table `t` of a store and its model."""

    store: el.Store
    changelog: str = "upsert"
    columns: list[Column] = field(
        default_factory=lambda: [
            (KEY, "k", pa.int64()),
            (VALUE, "v", pa.string()),
            (SEQUENCE, "at", pa.int64()),
            (NUMBER, "n", pa.int8()),
        ]
    )
    state: dict[int, WrittenChange] = field(default_factory=dict)
    arrived: list[CdcEvent] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    moments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    swaps: list[Mapping[str, Any]] = field(default_factory=list)
    next_id: int = 5

    def __post_init__(self) -> None:
        schema = pa.schema([(name, kind) for _, name, kind in self.columns])
        self.store.create_table("t", schema, ["k"], sequence_by="at", changelog=self.changelog, options=KEPT)

    @property
    def table(self) -> el.Table:
        return self.store.table("t")

    def name(self, id_: int) -> str:
        return next(name for other, name, _ in self.columns if other == id_)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def write(self, events: Sequence[CdcEvent]) -> None:
        """Commit the rows of these events, then the deletes."""
        rows, deletes = self._split(events)
        if rows:
            self._applied(self.table.upsert(self._rows(rows)), rows)
        if deletes:
            self._applied(self.table.delete(self._keys(deletes)), deletes)

    def open(self, events: Sequence[CdcEvent]) -> None:
        """Write segments in the present columns, which `commit` commits later."""
        rows, deletes = self._split(events)
        writer = self.table.writer()
        if rows:
            writer.upsert(self._rows(rows))
        if deletes:
            writer.delete(self._keys(deletes))
        self.pending.append(Pending(writer.seal(self.store.last_epoch + 1), [*rows, *deletes]))

    def commit(self) -> None:
        """Commit the newest segments that are open, so that older ones arrive late."""
        if not self.pending:
            return
        pending, present = self.pending.pop(), {id_ for id_, _, _ in self.columns}
        winners = {
            change.event.k: change for change in sorted(pending.changes, key=lambda change: _order(change.event))
        }
        written = set().union(*(change.row for change in winners.values() if not change.event.deleted))
        if written - present:
            with pytest.raises(el.SchemaChanged, match="was dropped"):
                self.store.commit({"t": pending.segments})
            return
        self._applied(self.store.commit({"t": pending.segments}), pending.changes)

    def alter(self, kind: str) -> None:
        change = self._change(kind)
        if change is None:
            return
        if kind.startswith("swap") and change in self.swaps:  # a repeated swap has no effect, or is refused
            first, second = change["rename"]
            free = f"free{self.store.last_epoch}"
            self._apply({"rename": {first: free}})
            change = {"rename": {free: second, second: first}}
        elif kind.startswith("swap"):
            self.swaps.append(change)
        self._apply(change)

    def _apply(self, change: Mapping[str, Any]) -> None:
        self.table.alter(**change)
        renamed, types = change.get("rename", {}), change.get("widen", {})
        columns = [column for column in self.columns if column[1] not in change.get("drop", [])]
        self.columns = [(id_, renamed.get(name, name), types.get(name, old)) for id_, name, old in columns]
        for added in change.get("add", []):
            self.columns.append((self.next_id, added.name, added.type))
            self.next_id += 1
        self._note(self.store.last_epoch)

    def _change(self, kind: str) -> Mapping[str, Any] | None:
        if kind.startswith("swap"):
            first, second = (self.name(id_) for id_ in ((KEY, SEQUENCE) if "key" in kind else (VALUE, NUMBER)))
            return {"rename": {first: second, second: first}}
        if kind == "rename sequence":
            return {"rename": {self.name(SEQUENCE): f"at{len(self.moments)}_{self.next_id}"}}
        if kind == "add":
            return {"add": [pa.field(f"x{self.next_id}", pa.string())]}
        if kind == "drop":
            extra = [name for id_, name, _ in self.columns if id_ > NUMBER]
            return {"drop": extra[:1]} if extra else None
        number = next(kind for id_, _, kind in self.columns if id_ == NUMBER)
        wider = WIDER.get(number)
        return {"widen": {self.name(NUMBER): wider[len(self.moments) % len(wider)]}} if wider else None

    def _split(self, events: Sequence[CdcEvent]) -> tuple[list[WrittenChange], list[WrittenChange]]:
        changes = [WrittenChange(event, self._values(event)) for event in events]
        return [c for c in changes if not c.event.deleted], [c for c in changes if c.event.deleted]

    def _values(self, event: CdcEvent) -> Row:
        extra = {id_: f"{event.v}:{id_}" for id_, _, _ in self.columns if id_ > NUMBER}
        return {KEY: event.k, VALUE: event.v, SEQUENCE: event.at, NUMBER: (event.k * 7 + event.at) % 100, **extra}

    def _rows(self, changes: Sequence[WrittenChange]) -> pa.Table:
        schema = pa.schema([(name, kind) for _, name, kind in self.columns])
        return pa.Table.from_pylist([{n: c.row[id_] for id_, n, _ in self.columns} for c in changes], schema)

    def _keys(self, changes: Sequence[WrittenChange]) -> pa.Table:
        return pa.table({self.name(id_): [c.row[id_] for c in changes] for id_ in (KEY, SEQUENCE)})

    def _applied(self, epoch: int, changes: Sequence[WrittenChange]) -> None:
        for change in changes:
            last = self.state.get(change.event.k)
            if last is None or change.event.at > last.event.at or (
                change.event.at == last.event.at and not last.event.deleted
            ):  # fmt: skip
                self.state[change.event.k] = change
            self.arrived.append(change.event)
        self._note(epoch)

    def _note(self, epoch: int) -> None:
        self.moments[epoch] = self.rows()

    # ---- checks ----------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows by the model, in the present columns: null in those that a row was written without."""
        live = sorted((k, change.row) for k, change in self.state.items() if not change.event.deleted)
        return [{name: row.get(id_) for id_, name, _ in self.columns} for _, row in live]

    def check(self) -> None:
        """The table has the rows of the model, which in the columns that stay are those of any order of arrival."""
        assert self.table.to_arrow().to_pylist() == self.rows()
        names = [self.name(id_) for id_ in (KEY, VALUE, SEQUENCE)]
        values_of = {row[names[0]]: (row[names[1]], row[names[2]]) for row in self.table.to_arrow().to_pylist()}
        assert values_of == expected(self.arrived)

    def check_all(self) -> None:
        """Every epoch reads as it did, and the store is whole."""
        self.check()
        for epoch, rows in self.moments.items():
            assert self.table.to_arrow(epoch=epoch).to_pylist() == rows, epoch
        problems = self.store.verify().problems
        assert problems == (), problems


def _order(event: CdcEvent) -> tuple[int, bool]:
    """Return the place of a change among those of its key: a writer keeps the last one alone."""
    return event.at, event.deleted
