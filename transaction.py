"""Transactions: several root tables written together, at one epoch, all or nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import TxnPair, check_pair
from epochlog.store.commit.root_commit import RootCommit, open_writer
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import SegmentWriter, remove_segments

from .errors import InvalidInput


class Transaction(OneProcess):
    """Upserts and deletes of several root tables that land together at one epoch when the `with` block ends without
    error.
    """

    def __init__(self, handle: Handle, txn: TxnPair | None, epoch: int | None) -> None:
        handle.require_writable()
        check_pair(txn)
        self._handle = handle
        self._txn = txn
        self._requested_epoch = epoch
        self._writers: dict[str, tuple[TableDef, SegmentWriter]] = {}
        self._epoch: int | None = None
        self._state = "new"

    @property
    def epoch(self) -> int:
        """Return the commit's epoch, which is known after the `with` block."""
        if self._epoch is None:
            raise InvalidInput("the transaction has not committed; read its epoch after the `with` block")
        return self._epoch

    def upsert(self, table: str, data: object) -> None:
        self._writer(table).upsert(data)

    def update(self, table: str, data: object, *, ignore_nulls: bool = False) -> None:
        self._writer(table).update(data, ignore_nulls=ignore_nulls)

    def delete(self, table: str, keys: object) -> None:
        self._writer(table).delete(keys)

    def __enter__(self) -> Self:
        if self._state != "new":
            raise InvalidInput(f"this transaction is {self._state}; begin another with store.transaction()")
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "over"
        changes: list[TableChange] = []
        try:
            if kind is None:
                for table, writer in self._writers.values():
                    changes.append(TableChange(table, tuple(writer.finish())))
        except BaseException:
            remove_segments(self._handle.files, [segment for change in changes for segment in change.segments])
            raise
        finally:
            for _, writer in self._writers.values():
                writer.discard()
        if kind is None:
            target = RootCommit(self._requested_epoch, self._txn)
            self._epoch = commit_changes(self._handle, changes, target, delete_refused=True).epoch

    def _writer(self, name: str) -> SegmentWriter:
        if self._state != "open":
            raise InvalidInput(f"this transaction is {self._state}: write inside its `with` block")
        if name not in self._writers:
            table = self._handle.catalog.read(lambda view: find_table(view, name))
            writer, table = open_writer(self._handle, table, self._txn)
            self._writers[name] = (table, writer)
        return self._writers[name][1]
