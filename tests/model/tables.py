"""Tables as a store must show them, written out plainly: a dict per commit, a list of log groups, no files.

Shapes of tables (key and value columns of several types), rows as tuples, and the expected answer to every question
that a table is asked. NaN equals NaN; -0.0 equals 0.0 in keys, which show as 0.0, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Change = tuple[str, int, Row]
"""Change type, log epoch, row."""


@dataclass(frozen=True)
class Shape:
    """A table's columns and key, and a few values of each column to draw from."""

    schema: pa.Schema
    key: tuple[str, ...]
    values: Mapping[str, Sequence[Any]]

    @property
    def names(self) -> list[str]:
        return self.schema.names

    def stored(self, row: Row) -> Row:
        """The row as it is shown."""
        return tuple(
            plain(value) if name in self.key else exact(value) for name, value in zip(self.names, row, strict=True)
        )

    def key_of(self, row: Row) -> Key:
        return tuple(plain(row[self.names.index(name)]) for name in self.key)

    def bare(self, row: Row) -> Row:
        """Return the row of a delete without pre-images: key columns, null elsewhere."""
        return tuple(value if name in self.key else None for name, value in zip(self.names, row, strict=True))

    def table(self, rows: Sequence[Row]) -> pa.Table:
        columns = [pa.array([row[i] for row in rows], kind.type) for i, kind in enumerate(self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def keys(self, rows: Sequence[Row]) -> pa.Table:
        return self.table(rows).select(list(self.key)) if not self._required() else self._keys(rows)

    def _required(self) -> bool:
        return any(not kind.nullable and kind.name not in self.key for kind in self.schema)

    def _keys(self, rows: Sequence[Row]) -> pa.Table:
        return pa.table(
            {
                name: pa.array([r[self.names.index(name)] for r in rows], self.schema.field(name).type)
                for name in self.key
            }
        )


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


NAN = math.nan
FLOATS = (None, NAN, 0.0, -0.0, 1.5, -2.25, math.inf)

SHAPES = {
    "numbers": Shape(
        pa.schema([required("id", pa.int64()), required("n", pa.int32()), pa.field("v", pa.float64())]),
        ("id",),
        {"id": (-(1 << 63), -1, 0, 1, 2, 3, 5, 8, 13, (1 << 63) - 1), "n": (0, 1, 2), "v": FLOATS},
    ),
    "texts": Shape(
        pa.schema([pa.field("v", pa.float64()), required("k", pa.string()), pa.field("l", pa.list_(pa.int32()))]),
        ("k",),
        {"k": ("", "\0", "a", "a\0", "a\0b", "ab", "é", "z" * 20), "v": FLOATS, "l": (None, [], [1], [None, 1])},
    ),
    "pairs": Shape(
        pa.schema([
            required("day", pa.date32()), pa.field("s", pa.string()),
            required("f", pa.float64()), required("name", pa.string()),
        ]),
        ("name", "f"),
        {"day": (0, 1, 20_000), "s": (None, "", "x"), "f": (NAN, -0.0, 0.0, 1.0, -math.inf), "name": ("", "a", "a\0")},
    ),
}  # fmt: skip


def plain(value: Any) -> Any:
    """A part of a key by which equal ones are equal: one NaN, no negative zero."""
    return value + 0.0 if value == 0 and isinstance(value, float) else exact(value)


def exact(value: Any) -> Any:
    """A value of a row, by which those are equal that are no change of one another: one NaN, two zeros."""
    if isinstance(value, float):
        if value == 0 and math.copysign(1, value) < 0:
            return "-0.0"
        return "NaN" if math.isnan(value) else value
    if isinstance(value, list):
        return tuple(exact(item) for item in value)
    return value


def key_order(key: Key) -> tuple[Any, ...]:
    """Sorts keys as the store does: numbers by value with NaN last, strings by bytes."""
    return tuple(
        (1, 0.0) if part == "NaN" else (0, part.encode()) if isinstance(part, str) else (0, part) for part in key
    )


def rows_of(table: pa.Table) -> list[Row]:
    """A table's rows as plain tuples; dates and times as their integers."""
    columns = []
    for column in table.columns:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        columns.append(column.to_pylist())
    return [tuple(exact(value) for value in row) for row in zip(*columns, strict=True)] if columns else []


@dataclass(frozen=True)
class Op:
    """One upsert (rows) or delete (rows of which the keys count)."""

    delete: bool
    rows: tuple[Row, ...]


@dataclass
class Group:
    label: int
    entry: int  # the commit's epoch
    changes: dict[Key, tuple[bool, Row]]  # deleted, row
    stored: bool = False  # with the rows that it replaced


@dataclass
class TableEntry:
    epoch: int
    operation: str
    upserted: int
    deleted: int
    segments: int
    end: bool = False


@dataclass
class ModelTable:
    """One table: its commits, its log, and its state after each commit."""

    name: str
    shape: Shape
    retention_ms: int = 0
    compact_segments: int = 8
    flush_rows: int = 1 << 20
    full: bool = False  # old rows are stored with the log
    log_retention_ms: int = 86_400_000
    created: int = 0  # the epoch that was issued for its making; it cannot be read before
    safe_epoch: int = 0
    kept: set[int] = field(default_factory=set)  # epochs below it that tags, or readers of tags, keep
    log_start: int = 0
    memory: int = 0  # commits from this one on are remembered
    compacted: int = 0
    base: dict[Key, Row] = field(default_factory=dict)  # the rows with which a clone begins
    ttl: bool = False  # its rows of the days 0 and 1 have expired
    inherited: int = 0  # segments in L0 of a clone from before its beginning
    finished: bool = False
    groups: list[Group] = field(default_factory=list)
    entries: list[TableEntry] = field(default_factory=list)
    states: list[tuple[int, dict[Key, Row]]] = field(default_factory=lambda: [(0, {})])

    def keeps(self, epoch: int) -> bool:
        return epoch >= self.safe_epoch or epoch in self.kept

    @property
    def newest(self) -> int:
        return self.states[-1][0]

    def state(self, epoch: int) -> dict[Key, Row]:
        """Rows by key as of the newest commit at or below the epoch."""
        return next(state for at, state in reversed(self.states) if at <= epoch)

    def rows(self, epoch: int) -> list[Row]:
        state = self.state(epoch)
        return [state[key] for key in sorted(state, key=key_order)]

    def folded(self, ops: Sequence[Op]) -> dict[Key, tuple[bool, Row]]:
        changes: dict[Key, tuple[bool, Row]] = {}
        for op in ops:
            for row in op.rows:
                changes[self.shape.key_of(row)] = (
                    op.delete,
                    self.shape.stored(self.shape.bare(row) if op.delete else row),
                )
        return changes

    def commit(self, epoch: int, sealed: Sequence[tuple[int, Sequence[Sequence[Op]]]], operation: str) -> None:
        """Add an entry: (label, the calls of each writer) in the order in which later wins."""
        state = dict(self.state(epoch))
        counts = [0, 0, 0]
        for label in sorted({label for label, _ in sealed}):
            writers = [ops for at, batches in sealed if at == label for ops in batches]
            changes: dict[Key, tuple[bool, Row]] = {}
            for piece in (piece for ops in writers for piece in self.flushed(ops)):
                folded = self.folded(piece)
                deleted = sum(gone for gone, _ in folded.values())
                counts = [counts[0] + len(folded) - deleted, counts[1] + deleted, counts[2] + 1]
                changes.update(folded)
            if changes:
                self.groups.append(Group(label, epoch, changes, self.full))
            for key, (gone, row) in changes.items():
                state.pop(key, None) if gone else state.update({key: row})
        self.states.append((epoch, state))
        self.entries.append(TableEntry(epoch, operation, *counts))

    def expired(self) -> list[Row]:
        """Return the rows that an expiry deletes."""
        if not self.ttl or self.finished:
            return []
        rows = [self.state(self.newest)[key] for key in sorted(self.state(self.newest), key=key_order)]
        return [row for row in rows if row[self.shape.names.index("day")] in (0, 1)]

    def restore(self, epoch: int, target: int, segments: int) -> None:
        """Add the entry that gives the table its rows at `target`."""
        now, then = self.state(epoch), self.state(target)
        gone = {key: (True, self.shape.bare(row)) for key, row in now.items() if key not in then}
        changes = gone | {key: (False, row) for key, row in then.items() if now.get(key) != row}
        if changes:
            self.groups.append(Group(epoch, epoch, changes, self.full))
        self.states.append((epoch, dict(then)))
        self.entries.append(TableEntry(epoch, "restore", len(changes) - len(gone), len(gone), segments))

    def flushed(self, ops: Sequence[Op]) -> list[list[Op]]:
        """The calls of one writer, cut where its memory was full: one segment each."""
        pieces: list[list[Op]] = []
        pending: list[Op] = []
        for op in ops:
            if op.rows:
                pending.append(op)
                if sum(len(op.rows) for op in pending) >= self.flush_rows:
                    pieces.append(pending)
                    pending = []
        return [*pieces, pending] if pending else pieces

    def finish(self, epoch: int) -> None:
        self.commit(epoch, [], "finish")
        self.entries[-1].end = self.finished = True

    def waiting(self, until: int) -> int:
        """Return the number of segments in L0 through an epoch."""
        entries = [entry for entry in self.entries if self.compacted < entry.epoch <= until]
        return self.inherited + sum(entry.segments for entry in entries)

    def clone(self, at: int, begin: int) -> ModelTable:
        """Return a clone of the table as of one epoch that begins at another one."""
        return replace(
            self,
            created=begin,
            safe_epoch=begin,
            kept=set(),
            log_start=begin,
            memory=begin,
            compacted=0,
            base=dict(self.state(at)),
            inherited=self.waiting(at),
            finished=False,
            groups=[],
            entries=[TableEntry(begin, "clone", 0, 0, 0)],
            states=[(0, {}), (begin, dict(self.state(at)))],
        )

    # ---- the log -------------------------------------------------------------------------------------------------

    def before(self, after: int) -> dict[Key, Row]:
        """The state that all log epochs at or below `after` make."""
        state = dict(self.base)
        for group in self.groups:
            if group.label <= after:
                _apply(state, group)
        return state

    def stores(self, after: int, until: int | None) -> bool:
        """Return True if the log stores the old rows of that range, even when its states are no longer readable."""
        end = max(self.newest, after) if until is None else until
        groups = [group for group in self.groups if after < group.label <= end]
        return all(group.stored for group in groups) if groups else self.full

    def changes(
        self, after: int, until: int | None, mode: str, images: bool, keep: Callable[[Key], bool]
    ) -> list[Change]:
        """Return the rows that `changes` must yield for the keys that `keep` accepts."""
        end = max(self.newest, after) if until is None else until
        groups = [group for group in self.groups if after < group.label <= end]
        if mode == "net":
            net: dict[Key, tuple[int, bool, Row]] = {}
            for group in groups:
                net.update({key: (group.label, *change) for key, change in group.changes.items()})
            return self._shown(self.before(after), net, images, keep)
        changes: list[Change] = []
        state = self.before(after)
        for group in groups:
            changes += self._shown(
                state, {key: (group.label, *change) for key, change in group.changes.items()}, images, keep
            )
            _apply(state, group)
        return changes

    def _shown(
        self,
        state: dict[Key, Row],
        changes: dict[Key, tuple[int, bool, Row]],
        images: bool,
        keep: Callable[[Key], bool],
    ) -> list[Change]:
        shown: list[Change] = []
        for key in sorted(filter(keep, changes), key=key_order):
            label, gone, row = changes[key]
            old = state.get(key)
            if not images:
                shown.append(("delete" if gone else "upsert", label, row))
            elif gone:
                shown += [("delete", label, old)] if old is not None else []
            elif old is None:
                shown.append(("insert", label, row))
            elif old != row:
                shown += [("update_preimage", label, old), ("update_postimage", label, row)]
        return shown

    def next_epoch(self, after: int) -> int | None:
        labels = [group.label for group in self.groups] + [entry.epoch for entry in self.entries]
        return min((label for label in labels if label > after), default=None)

    def log_segments(self) -> int:
        return sum(entry.segments for entry in self.entries if entry.epoch >= self.log_start)

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def compact(self, target: int, held: Sequence[int], tagged: Sequence[int], *, least: int | None) -> None:
        """Raises the safe epoch; folds L0 if it has at least `least` segments (None: nobody says whether).

        held: the epochs of open snapshots; those below the safe epoch, and the tagged ones, are kept one by one.
        """
        past = [epoch for epoch in held if epoch < self.safe_epoch]
        safe = max(self.safe_epoch, min([target, self.newest, *(epoch for epoch in held if epoch not in past)]))
        self.kept = {epoch for epoch in (*past, *tagged) if epoch < safe and self.keeps(epoch)}
        self.safe_epoch = safe
        if least is not None and self.waiting(self.newest) >= max(1, least):
            self.compacted, self.inherited = self.newest, 0

    def retain(self, past: Callable[[int], int], held: Sequence[int], tagged: Sequence[int]) -> None:
        """Lets go of what is older than its retention. past: the epoch of so many milliseconds ago."""
        self.compact(past(self.retention_ms), held, tagged, least=None)
        limit = past(self.log_retention_ms)
        self.log_start = max([self.log_start, *(entry.epoch for entry in self.entries if entry.epoch <= limit)])
        bound = min(past(max(self.retention_ms, self.log_retention_ms)), self.safe_epoch, self.log_start)
        self.memory = max([self.memory, *(entry.epoch for entry in self.entries if entry.epoch <= bound)])


def _apply(state: dict[Key, Row], group: Group) -> None:
    for key, (gone, row) in group.changes.items():
        if gone:
            state.pop(key, None)
        else:
            state[key] = row
