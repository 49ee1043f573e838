"""Handle of an open consumer: acknowledgements, and fencing by incarnation (docs/SEMANTICS.md, 4.11 to 4.17)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import Fenced, InvalidInput
from epochlog.store.catalog.keys import consumer_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.closeable import Closeable
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.consumer_record import ConsumerRecord, get_consumer, require_tables
from epochlog.store.metadata.definitions import Counters
from epochlog.store.types.epoch import as_epoch, show_epoch

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


class Consumer(Closeable):
    """Handle of a consumer that this process has open, under one incarnation. Thread-safe.

    Close it, or use it in a `with` block. If its process dies, the consumer stays open until its lease ends.
    """

    def __init__(self, handle: Handle, record: ConsumerRecord) -> None:
        self._handle = handle
        self._record = record
        self._position = record.position
        self._closed = False

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def incarnation(self) -> int:
        return self._record.incarnation

    @property
    def position(self) -> int | None:
        """Return the newest acknowledged epoch known to this handle; None: nothing is acknowledged, so the reader
        begins with the tables' rows.
        """
        return self._position

    def check(self) -> None:
        """Raise Fenced, ConsumerNotFound or TableDropped unless this incarnation is the newest of the consumer."""
        self._handle.catalog.read(self.read_record)

    def read_record(self, view: ReadTxn) -> ConsumerRecord:
        """Read the consumer's record within a read or transaction. Raises Fenced, ConsumerNotFound or TableDropped."""
        record = get_consumer(view, self.name)
        require_tables(record)
        if record.holder != self._record.holder:
            raise fenced_error(record, self.incarnation)
        return record

    def ack(self, epoch: int) -> None:
        """Acknowledge all changes through `epoch`: the caller has made their effects durable and no longer needs them.

        The acknowledgement is durable when the call returns. An epoch at or below the position changes nothing. Raises
        Fenced, ConsumerNotFound, TableDropped, and InvalidInput for an epoch that the store has not issued yet, or
        after `close`.
        """
        epoch = as_epoch("epoch", epoch)
        if self._closed:
            raise InvalidInput(
                f"consumer {self.name!r} was closed by this process; open it again to continue at "
                f"{show_epoch(self.position)}"
            )
        last = self._handle.catalog.read(lambda view: Counters.read(view).last_epoch)
        if epoch > last:
            raise InvalidInput(
                f"consumer {self.name!r} cannot acknowledge epoch {show_epoch(epoch)}: the newest epoch of the store "
                f"is {show_epoch(last)}"
            )

        def acknowledge(tx: Txn) -> int:
            record = self.read_record(tx)
            if record.position is not None and epoch <= record.position:
                return record.position
            now_ms = self._handle.catalog.now_ms()
            acknowledged = replace(record, position=epoch, snapshot=None, last_ms=now_ms, acked_ms=now_ms)
            tx.put(consumer_key(self.name), acknowledged.to_record())
            return epoch

        self._position = self._handle.catalog.transact(acknowledge)
        hit("consumer:acked")

    def begin(self, epoch: int, *, snapshot: bool = False) -> None:
        """Move the consumer, also backwards, to the epoch from which a reader with its own durable position continues,
        and hold the log after it. snapshot: the reader reads the tables' rows at that epoch and has acknowledged
        nothing.
        """

        def move(tx: Txn) -> int | None:
            position = {"position": None, "snapshot": epoch} if snapshot else {"position": epoch, "snapshot": None}
            moved = replace(self.read_record(tx), last_ms=self._handle.catalog.now_ms(), **position)
            tx.put(consumer_key(self.name), moved.to_record())
            return moved.position

        self._position = self._handle.catalog.transact(move)

    def close(self) -> None:
        """Release the consumer's lease; a second call does nothing."""
        self._closed = True
        self._handle.leases.release(self._record.holder)

    def __repr__(self) -> str:
        return f"<epochlog consumer {self.name} incarnation {self.incarnation} at {self.position}>"


def fenced_error(record: ConsumerRecord, incarnation: int) -> Fenced:
    """Return the error for an incarnation that is not the newest of the consumer."""
    return Fenced(
        f"consumer {record.name!r} was reset or taken over: it is at incarnation {record.incarnation}, so incarnation "
        f"{incarnation} can neither read nor acknowledge; open the consumer again"
    )
