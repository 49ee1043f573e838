"""Catalog record of a consumer: its whole state is one record.

Its position holds the logs after it (store/retention/holds.py) while a process has it open, and for `keep_ms` after
that. A consumer that was dropped, or was closed for longer, holds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from epochlog.errors import ConsumerNotFound, InvalidName, TableDropped
from epochlog.store.catalog.keys import CONSUMER_PREFIX, consumer_key, table_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.types.epoch import show_epoch

from .definitions import Counters, TableDef

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """Record of a consumer. Times are Unix milliseconds."""

    name: str
    tables: tuple[int, ...]
    too_old: str
    keep_ms: int | None
    """Time for which it holds after it was closed; None: without end."""
    position: int | None = None
    """All changes of its tables through that epoch are acknowledged; None: none is, it begins with the tables' rows."""
    incarnation: int = 0
    states: tuple[int, ...] = ()
    """Tables of which it reads pre-images; if the log does not store them, the rows at the position are held too."""
    holder: str = ""
    """Lease of the process that has it open; the lease ends at expires_ms, and the consumer counts as closed from then
    on.
    """
    expires_ms: int = 0
    last_ms: int = 0
    acked_ms: int = 0
    """Time of the newest acknowledgement, 0 before the first."""
    dropped: str | None = None
    """Name of one of its tables that was dropped."""
    snapshot: int | None = None
    """Epoch of the rows that it is reading, which are held until it has a position; None: not yet known."""

    def to_record(self) -> Record:
        return {**asdict(self), "tables": list(self.tables), "states": list(self.states)}

    @classmethod
    def from_record(cls, record: Record) -> ConsumerRecord:
        return cls(**{**record, "tables": tuple(record["tables"]), "states": tuple(record["states"])})

    @property
    def at(self) -> int | None:
        """Return the epoch after which the consumer needs the logs; None if it needs none yet."""
        return self.snapshot if self.position is None else self.position

    def state_at(self, table_id: int) -> int | None:
        """Return the epoch at which the consumer needs the table's rows; None if it needs none."""
        return self.at if self.position is None or table_id in self.states else None

    @property
    def until_ms(self) -> int | None:
        """Return the Unix ms at which the holds of the consumer end unless it is opened again; None: never."""
        return None if self.keep_ms is None else self.expires_ms + self.keep_ms

    def open(self, now_ms: int, alive: Collection[str] = ()) -> bool:
        return bool(self.holder) and (self.expires_ms > now_ms or self.holder in alive)

    def holds(self, now_ms: int, alive: Collection[str] = ()) -> bool:
        """Return True if the consumer holds the logs and rows that it has not read yet."""
        if self.at is None or self.dropped is not None:
            return False
        return self.until_ms is None or now_ms < self.until_ms or self.open(now_ms, alive)


def all_consumers(view: ReadTxn) -> Iterator[ConsumerRecord]:
    for _, record in scan_prefix(view, CONSUMER_PREFIX):
        yield ConsumerRecord.from_record(record)


def get_consumer(view: ReadTxn, name: str) -> ConsumerRecord:
    """Return the consumer of that name; raise ConsumerNotFound if there is none."""
    check_consumer_name(name)
    record = view.get(consumer_key(name))
    if record is None:
        names = ", ".join(consumer.name for consumer in all_consumers(view)) or "none"
        raise ConsumerNotFound(f"there is no consumer {name!r}; the store's consumers: {names}")
    return ConsumerRecord.from_record(record)


def mark_table_dropped(tx: Txn, table_id: int, now_ms: int) -> None:
    """Record in all consumers of a table that it is dropped: they cannot go on, and hold nothing. Call it inside the
    transaction that drops the table.
    """
    for record in list(all_consumers(tx)):
        if table_id in record.tables and record.dropped is None:
            table_record = tx.get(table_key(table_id))
            name = TableDef.from_record(table_record).name if table_record is not None else f"{table_id}"
            tx.put(consumer_key(record.name), replace(record, dropped=name, last_ms=now_ms).to_record())


def broken_consumers(view: ReadTxn, tables: Mapping[int, TableDef]) -> Iterator[tuple[str, str]]:
    """List (where, problem) for broken consumer records, for verify."""
    last = Counters.read(view).last_epoch
    for key, fields in scan_prefix(view, CONSUMER_PREFIX):
        record = ConsumerRecord.from_record(fields)
        label = f"consumer {record.name}"
        if key != consumer_key(record.name):
            yield label, f"has the key of another name, {key!r}"
        missing = [table for table in record.tables if table not in tables]
        if not record.tables or (missing and record.dropped is None):
            yield label, f"refers to missing tables: {missing}"
        if record.at is not None and record.at > last:
            yield label, f"is at epoch {show_epoch(record.at)}, above last_epoch {show_epoch(last)}"
        if not set(record.states) <= set(record.tables):
            yield label, "holds rows of tables that it does not read"


def require_tables(record: ConsumerRecord) -> None:
    if record.dropped is not None:
        raise TableDropped(
            f"table {record.dropped!r} was dropped, and consumer {record.name!r} cannot go on without it; delete the "
            f"consumer with store.drop_consumer({record.name!r})"
        )


def check_consumer_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"consumer name {name!r} cannot be used: use 1 to 128 of a-z, A-Z, 0-9, _, . and -, beginning with "
            "a letter, a digit or _"
        )
