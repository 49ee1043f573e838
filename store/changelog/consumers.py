"""Opening, resetting and dropping of consumers: durable named positions in the logs of tables.

Opening a consumer claims a new incarnation and fences the earlier one. Rules: docs/SEMANTICS.md, 4.11 to 4.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.errors import InvalidInput, LimitExceeded, LogTruncated
from epochlog.store.catalog.keys import CONSUMER_PREFIX, consumer_key, hold_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.env.clock import FOR_EVER, seconds
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import CONSUMER_CREATED, CONSUMER_DROPPED, CONSUMER_RESET
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.consumer_record import (
    ConsumerRecord,
    check_consumer_name,
    get_consumer,
    require_tables,
)
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.epoch import as_epoch, show_epoch

from .consumer import Consumer, fenced_error
from .consumer_info import consumer_reaches, consumer_table_names
from .log_position import Reach

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

KEEP = timedelta(days=7)
"""Default time for which a consumer that no process has open holds its logs."""
MOST_CONSUMERS = 1_000
"""Largest number of consumers of a store."""
MOST_FOR_READERS = MOST_CONSUMERS * 3 // 4
"""Number of consumers, of all callers, from which a caller with read access only cannot create another."""
TOO_OLD = ("error", "snapshot")


def open_consumer(
    handle: Handle,
    name: str,
    tables: Sequence[str],
    *,
    too_old: str = "error",
    keep: float | timedelta | None = KEEP,
    states: bool = False,
    incarnation: int | None = None,
    may_write: bool = True,
) -> Consumer:
    """Open the consumer `name` under a new incarnation, which fences the earlier one; create the consumer if needed.

    too_old: the reaction when changes after its position were truncated while it was closed: "error" raises
    LogTruncated, "snapshot" begins again with the tables' rows. keep: the time (seconds or a timedelta) for which it
    holds the log after it was closed; None: without end. states: it reads pre-images, so for tables that do not store
    them the rows at its position are held too. The newest call sets these three. incarnation: resume this incarnation,
    which must be the newest. may_write: False for a caller with read access only, which cannot use the last quarter of
    MOST_CONSUMERS. Raises InvalidName, InvalidInput, LimitExceeded, TableNotFound, TableDropped, Fenced, LogTruncated.
    """
    check_consumer_name(name)
    if too_old not in TOO_OLD:
        raise InvalidInput(f"consumer {name!r}: too_old must be one of {TOO_OLD}, not {too_old!r}")
    if isinstance(tables, str) or not tables or len(set(tables)) != len(tables):
        raise InvalidInput(f"consumer {name!r}: tables is a list of one or more different table names, not {tables!r}")
    keep_ms = None if keep is None else _keep_ms(keep)
    limit = MOST_CONSUMERS if may_write else MOST_FOR_READERS
    holder = handle.new_holder("consumer")

    def claim(tx: Txn) -> ConsumerRecord:
        now_ms, stored_record = handle.clock_guard.latest_ms(tx), tx.get(consumer_key(name))
        if incarnation is not None:
            _require_newest(get_consumer(tx, name), incarnation)
        if stored_record is None:
            record, table_defs = _new_consumer(tx, name, tables, too_old, limit)
        else:
            record = ConsumerRecord.from_record(stored_record)
            table_defs = _check_tables(tx, record, tables)
        truncated = next((log_reach for log_reach in consumer_reaches(tx, record) if log_reach.lost), None)
        if truncated is not None:
            if too_old == "error":
                raise _truncated_error(record, truncated)
            record = replace(record, position=None, snapshot=None)
        claimed = replace(
            record,
            too_old=too_old,
            keep_ms=keep_ms,
            states=tuple(table.id for table in table_defs) if states else (),
            incarnation=record.incarnation + 1 if incarnation is None else incarnation,
            holder=holder,
            expires_ms=now_ms + LEASE_MS,
            last_ms=now_ms,
        )
        tx.put(consumer_key(name), claimed.to_record())
        return claimed

    return _opened(handle, handle.catalog.transact(claim), tables)


def _opened(handle: Handle, record: ConsumerRecord, tables: Sequence[str]) -> Consumer:
    hit("consumer:opened")
    handle.leases.keep(record.holder, [consumer_key(record.name)], at_end="keep")
    if record.incarnation == 1:
        handle.log(CONSUMER_CREATED, consumer=record.name, tables=tables)
    return Consumer(handle, record)


def reset_consumer(handle: Handle, name: str, to: str | int) -> None:
    """Move a consumer to "snapshot" (it begins again with the tables' rows), "earliest" (the oldest epoch from which
    all its logs can be read), "latest" (only changes from now on), or an epoch. Fences a process that has it open.

    Raises ConsumerNotFound, TableDropped, InvalidInput, and LogTruncated for an epoch that the logs do not reach.
    """
    if isinstance(to, str) and to not in ("snapshot", "earliest", "latest"):
        raise InvalidInput(f'consumer {name!r} is reset to "snapshot", "earliest", "latest" or an epoch, not {to!r}')

    def move(tx: Txn) -> None:
        record = get_consumer(tx, name)
        require_tables(record)
        now_ms = handle.clock_guard.latest_ms(tx)
        moved = replace(
            record,
            position=_reset_position(handle, tx, record, to),
            snapshot=None,
            incarnation=record.incarnation + 1,
            holder="",
            expires_ms=now_ms,
            last_ms=now_ms,
        )
        for log_reach in consumer_reaches(tx, moved):
            if log_reach.lost:
                raise log_reach.truncated(f'Reset consumer {name!r} to "earliest" or "snapshot"')
        tx.put(consumer_key(name), moved.to_record())

    handle.catalog.transact(move)
    handle.log(CONSUMER_RESET, consumer=name, to=to)


def drop_consumer(handle: Handle, name: str) -> None:
    """Delete the consumer and release its hold on the log. A process that has it open gets ConsumerNotFound."""

    def delete(tx: Txn) -> None:
        tx.delete(consumer_key(get_consumer(tx, name).name))

    handle.catalog.transact(delete)
    handle.log(CONSUMER_DROPPED, consumer=name)


def _require_newest(record: ConsumerRecord, incarnation: int) -> None:
    """Raise Fenced unless this is the newest incarnation of the consumer."""
    if record.incarnation != incarnation:
        raise fenced_error(record, incarnation)


def _new_consumer(
    tx: Txn, name: str, tables: Sequence[str], too_old: str, limit: int
) -> tuple[ConsumerRecord, list[TableDef]]:
    """Return the record of a new consumer, and its tables. Raises LimitExceeded at `limit` consumers."""
    count = sum(1 for _ in scan_prefix(tx, CONSUMER_PREFIX))
    if count >= limit:
        reserved = MOST_CONSUMERS - limit
        writers_only = f", and the last {reserved} places are for callers with write access" if reserved else ""
        raise LimitExceeded(
            f"there are {count:,} consumers already{writers_only}; drop one with store.drop_consumer(name)"
        )
    table_defs = [find_table(tx, table) for table in tables]
    position = None
    for table in table_defs:  # a store of an early version has, for a consumer, only a hold without an end
        key = hold_key(table.id, f"consumer:{name}")
        position = (tx.get(key) or {}).get("log_epoch", position)
        tx.delete(key)
    return ConsumerRecord(name, tuple(table.id for table in table_defs), too_old, None, position), table_defs


def _check_tables(view: ReadTxn, record: ConsumerRecord, tables: Sequence[str]) -> list[TableDef]:
    """Return the tables. Raises InvalidInput unless the consumer reads these, TableDropped if it lost one of them."""
    require_tables(record)
    table_defs = [find_table(view, table) for table in tables]
    if {table.id for table in table_defs} != set(record.tables):
        consumed = ", ".join(consumer_table_names(view, record))
        raise InvalidInput(
            f"consumer {record.name!r} reads {consumed}, not {', '.join(tables)}; take another name, or drop this "
            f"consumer with store.drop_consumer({record.name!r})"
        )
    return table_defs


def _truncated_error(record: ConsumerRecord, log_reach: Reach) -> LogTruncated:
    name = record.name
    return log_reach.truncated(
        f"Consumer {name!r} was closed for longer than its `keep`: begin again with store.reset_consumer({name!r}, "
        f'"snapshot"), or continue without these commits with "earliest". Opened with too_old="snapshot", a consumer '
        "begins again by itself"
    )


def _reset_position(handle: Handle, view: ReadTxn, record: ConsumerRecord, to: str | int) -> int | None:
    """Return the position after a reset to `to`; None for the tables' rows. Raises InvalidInput."""
    if to == "snapshot":
        return None
    if to == "earliest":
        return max(get_version(view, table, "of a consumer").log_start for table in record.tables)
    epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=record.tables)
    if to == "latest":
        return min(epochs.complete_through(table) for table in record.tables)
    epoch = as_epoch("to", to)
    if epoch > epochs.last_epoch:
        raise InvalidInput(
            f"consumer {record.name!r} cannot be reset to epoch {show_epoch(epoch)}: the newest epoch of the store is "
            f"{show_epoch(epochs.last_epoch)}"
        )
    return epoch


def _keep_ms(keep: float | timedelta) -> int:
    return min(round(seconds(keep, "keep") * 1000), FOR_EVER // timedelta(milliseconds=1))
