"""Loads: named groups of workers that write root tables together; their catalog records and the edits of these.

A load commits by root commits under txn ("load:<name>", checkpoint). Each commit checks the coordinator's incarnation
and advances the load's checkpoint and its parts' states, so a restarted part continues after the committed rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from epochlog.errors import BarrierChanged, Fenced, InvalidInput, LoadNotFound
from epochlog.store.catalog.keys import LOAD_PREFIX, load_key, load_part_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record, checked
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.schema import check_name

from .idempotency import TxnPair

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

MOST_PARTS = 1_024
"""Most parts of one load or job."""
MAX_STATE = 64 << 10
"""Most bytes of the state that a part reports with a commit."""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """Catalog record of a load."""

    name: str
    tables: tuple[int, ...]
    parts: int
    finish_tables: bool
    incarnation: int = 0
    """Incarnation of the coordinator that may commit."""
    checkpoint: int = 0
    """Number of its newest commit."""
    state: str = "running"
    """running | finished."""

    def to_record(self) -> Record:
        return {**asdict(self), "tables": list(self.tables)}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> LoadRecord:
        return cls(**{**record, "tables": tuple(record["tables"])})


@dataclass(frozen=True, slots=True)
class PartRecord:
    """State that a part of a load reported with its newest commit; None if it has finished."""

    state: bytes | None = None
    finished: bool = False
    """True if the part's data has ended."""

    def to_record(self) -> Record:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """Requirements and effects of a load's checkpoint.

    It requires its coordinator's incarnation and the checkpoint `before`. `checkpoint` is higher than `before`; numbers
    of abandoned commits are skipped.
    """

    name: str
    incarnation: int
    before: int
    checkpoint: int
    states: Mapping[int, bytes] = field(default_factory=dict)
    """New states by part index."""
    finished: frozenset[int] = frozenset()
    """Indexes of the parts whose data ended."""
    final: bool = False
    """True if the load ends with this commit."""


def declare_load(handle: Handle, name: str, tables: Sequence[str], parts: int, *, finish_tables: bool) -> LoadRecord:
    """Return the load of that name; create it if there is none.

    Raises InvalidInput when it was declared with other arguments before, TableNotFound, NotWritable.
    """
    check_name("load", name)
    if not 1 <= parts <= MOST_PARTS:
        raise InvalidInput(f"load {name!r}: `of` must be a number of parts from 1 to {MOST_PARTS}, not {parts!r}")
    if not tables or len(set(tables)) != len(tables):
        raise InvalidInput(f"load {name!r}: tables must be a list of one or more different root tables, not {tables!r}")

    def body(tx: Txn) -> LoadRecord:
        existing = tx.get(load_key(name))
        if existing is not None:
            return _require_same(tx, LoadRecord.from_record(existing), tables, parts, finish_tables)
        targets = [find_table(tx, table) for table in sorted(tables)]
        for table in targets:
            if table.derived:
                raise InvalidInput(
                    f"load {name!r}: table {table.name!r} is the output of a job; only that job writes it"
                )
        load = LoadRecord(name, tuple(table.id for table in targets), parts, finish_tables)
        tx.put(load_key(name), load.to_record())
        return load

    return handle.catalog.transact(body)


def load_txn(name: str, checkpoint: int) -> TxnPair:
    """Return the transaction pair under which a load's checkpoint commits."""
    return f"load:{name}", checkpoint


def claim_load(handle: Handle, name: str) -> LoadRecord:
    """Fence every earlier coordinator of the load; return it with its new incarnation."""

    def body(tx: Txn) -> LoadRecord:
        load = get_load(tx, name)
        claimed = replace(load, incarnation=load.incarnation + 1)
        tx.put(load_key(name), claimed.to_record())
        return claimed

    return handle.catalog.transact(body)


def drop_load(handle: Handle, name: str) -> None:
    """Delete a load and its states; its committed rows stay. Its coordinator is fenced."""

    def body(tx: Txn) -> None:
        load = get_load(tx, name)
        for index, _ in load_parts(tx, name):
            tx.delete(load_part_key(name, index))
        tx.delete(load_key(load.name))

    handle.catalog.transact(body)


def get_load(view: ReadTxn, name: str) -> LoadRecord:
    """Return the load of that name, or raise LoadNotFound."""
    record = view.get(load_key(name))
    if record is None:
        raise LoadNotFound(f"there is no load {name!r}; attach a worker to declare it")
    return LoadRecord.from_record(record)


def require_incarnation(load: LoadRecord, incarnation: int) -> None:
    """Raise Fenced unless the coordinator's incarnation is the newest."""
    if load.incarnation != incarnation:
        raise Fenced(
            f"load {load.name!r} was taken over by the coordinator of incarnation {load.incarnation}; this one is "
            f"{incarnation} and has no effect any more. Connect all workers of a load to one coordinator"
        )


def all_loads(view: ReadTxn) -> Iterator[LoadRecord]:
    for key, record in scan_prefix(view, LOAD_PREFIX):
        if key.count(b"/") == 1:
            yield LoadRecord.from_record(record)


def load_parts(view: ReadTxn, name: str) -> list[tuple[int, PartRecord]]:
    """Return the parts that have committed a state or finished, by index."""
    prefix = load_key(name) + b"/"
    return [(int(key[len(prefix) :], 16), PartRecord(**record)) for key, record in scan_prefix(view, prefix)]


def advance_load(tx: Txn, commit: LoadCommit) -> None:
    """Write a load's part of a commit. Raises Fenced, BarrierChanged, LoadNotFound, which abort the transaction."""
    load = get_load(tx, commit.name)
    require_incarnation(load, commit.incarnation)
    if load.checkpoint != commit.before or commit.checkpoint <= commit.before or load.state == "finished":
        raise BarrierChanged(
            f"load {load.name!r} is {load.state} at checkpoint {load.checkpoint}; checkpoint {commit.checkpoint} after "
            f"{commit.before} does not follow it"
        )
    for index in sorted({*commit.states, *commit.finished}):
        key = load_part_key(load.name, index)
        before = PartRecord(**(tx.get(key) or {}))
        finished = before.finished or index in commit.finished
        # Nobody resumes a finished part, so its flag is enough.
        after = PartRecord(None if finished else commit.states.get(index, before.state), finished)
        if after != before:
            tx.put(key, after.to_record())
    state = "finished" if commit.final else "running"
    tx.put(load_key(load.name), replace(load, checkpoint=commit.checkpoint, state=state).to_record())


def _require_same(
    view: ReadTxn, load: LoadRecord, tables: Sequence[str], parts: int, finish_tables: bool
) -> LoadRecord:
    """Return the load, or raise InvalidInput if it was declared with other arguments. The tables of a finished load may
    be dropped.
    """
    if (parts, finish_tables) != (load.parts, load.finish_tables):
        raise InvalidInput(
            f"load {load.name!r} was declared with of={load.parts}, finish_tables={load.finish_tables}, not "
            f"of={parts}, finish_tables={finish_tables}; attach with the declared values, or drop it with drop_load"
        )
    if load.state != "finished" and tuple(find_table(view, table).id for table in sorted(tables)) != load.tables:
        raise InvalidInput(
            f"load {load.name!r} was declared with other tables; attach with those, or drop it with drop_load"
        )
    return load


def broken_load(view: ReadTxn, load: LoadRecord, tables: Mapping[int, TableDef]) -> Iterator[str]:
    """Yield the inconsistencies of a load's records, each as a predicate of the load."""
    if view.get(load_key(load.name)) is None:
        yield "is stored under another name"
    missing = [table for table in load.tables if table not in tables]
    if missing and load.state == "running":
        yield f"refers to missing tables: {missing}"
    parts = load_parts(view, load.name)
    if any(index >= load.parts for index, _ in parts):
        yield f"has states of more parts than its {load.parts}"
    if any(part.state is not None and len(part.state) > MAX_STATE for _, part in parts):
        yield f"has a state of more than {MAX_STATE} bytes"
    ended = sum(part.finished for _, part in parts)
    if (ended == load.parts) != (load.state == "finished"):
        yield f"is {load.state}, and {ended} of its {load.parts} parts have finished"
    if parts and not load.checkpoint:
        yield "has states and no checkpoint"
