"""Transactions: several root tables written together, at one epoch, all or nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import TxnPair, check_pair
from epochlog.store.commit.root_commit import commit_or_delete
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import SegmentWriter, remove_segments

from .errors import InvalidInput
from .table import segment_writer


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
        edits: list[TableEdit] = []
        try:
            if kind is None:
                for table, writer in self._writers.values():
                    edits.append(TableEdit(table.id, table.name, tuple(writer.finish())))
        except BaseException:
            remove_segments(self._handle.files, [segment for edit in edits for segment in edit.segments])
            raise
        finally:
            for _, writer in self._writers.values():
                writer.discard()
        if kind is None:
            self._epoch = commit_or_delete(self._handle, edits, epoch=self._requested_epoch, txn=self._txn)

    def _writer(self, name: str) -> SegmentWriter:
        if self._state != "open":
            raise InvalidInput(f"this transaction is {self._state}: write inside its `with` block")
        if name not in self._writers:
            table = self._handle.catalog.read(lambda view: find_table(view, name))
            self._writers[name] = (table, segment_writer(self._handle, table, self._txn)[0])
        return self._writers[name][1]
