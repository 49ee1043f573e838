"""Micro-batches of streams as transactions: the pair (application, number) under which a batch lands, and a check of
the checkpoint that gave it the number.

A stream takes the numbers of its batches from its checkpoint. A deleted or restored checkpoint gives a number again, to
other rows. So the outcome of a batch keeps a hash of the query's id, and the time at which the batch was planned: both
are in the checkpoint, and a replay has them again. Rules: docs/SEMANTICS.md, 1.25 and 1.26.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

from epochlog.errors import CheckpointMismatch, TxnOutcomeForgotten
from epochlog.store.catalog.keys import key_epoch, txn_app_key, txn_prefix
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix

_ADVICE = (
    "Start it with the checkpoint that it had. If the stream was started anew on purpose, with another checkpoint, say "
    "so: new_checkpoint=True of el.sink, or .option('newCheckpoint', 'true'). A further stream takes an application "
    "name of its own"
)

_QUERY_HASH = re.compile(rb"[0-9a-f]{16}")
_BEFORE_QUERIES = ""
"""Hash that stands for the query of outcomes of earlier releases, once the stream was started anew."""


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Micro-batch of a stream as the transaction of a commit.

    query: id of the stream's query; planned_ms: when the batch was planned; None if Spark does not tell it.
    new_checkpoint: the user says that the stream was started anew, so a known number under another query is no replay.
    """

    app: str
    number: int
    query: str | None
    planned_ms: int | None = None
    new_checkpoint: bool = False

    @property
    def query_hash(self) -> str | None:
        """Return the hash of the query's id that the outcome keeps."""
        return None if self.query is None else hashlib.sha256(self.query.encode()).hexdigest()[:16]

    def marks(self) -> dict[str, str | int]:
        """Return the fields of the outcome that tell a replay from other rows with the batch's number."""
        marks = {"query": self.query_hash, "planned_ms": self.planned_ms}
        return {name: mark for name, mark in marks.items() if mark is not None}


@dataclass(frozen=True, slots=True)
class _Newest:
    """Landed batch of an application with the highest number; -1 without one. None stands for an unknown mark."""

    number: int = -1
    query: str | None = None
    planned_ms: int | None = None

    def is_of(self, batch: StreamBatch) -> bool:
        """Return True if this may be a batch of the other one's query."""
        return None in (self.query, batch.query) or self.query == batch.query_hash

    def is_behind(self, batch: StreamBatch) -> bool:
        """Return True if this is the batch itself, or comes before it."""
        if batch.number == self.number:
            return None in (self.planned_ms, batch.planned_ms) or self.planned_ms == batch.planned_ms
        return batch.number > self.number


def pair_of_batch(view: ReadTxn, batch: StreamBatch) -> tuple[str, int]:
    """Return the pair of a batch: a new one, or that of the newest batch, which is a replay then.

    A stream that was started anew has an application of its own, named by the hash of its query. Raises
    CheckpointMismatch if the batch has the number of other rows; TxnOutcomeForgotten if that is unknown.
    """
    own = f"{batch.app}#{batch.query_hash}"
    if batch.query is not None and view.get(txn_app_key(own)) is not None:
        _require_newest(_newest(view, own), batch)
        return own, batch.number
    newest = _newest(view, batch.app)
    if newest.number >= 0 and newest.query is None and _was_started_anew(view, batch.app):
        newest = replace(newest, query=_BEFORE_QUERIES)
    if _continues(view, newest, batch):
        return batch.app, batch.number
    if batch.new_checkpoint and batch.query is not None and newest.query != batch.query_hash:
        return own, batch.number
    _require_newest(newest, batch)
    if batch.new_checkpoint and batch.query is None:
        raise CheckpointMismatch(
            f"stream {batch.app!r}: Spark gives no query id here, so a new checkpoint cannot be told from the old one; "
            "give the stream that was started anew another application name"
        )
    if newest.number < 0:
        raise TxnOutcomeForgotten(
            f"stream {batch.app!r}: the outcomes of its batches up to {batch.number} are no longer known. {_ADVICE}"
        )
    raise CheckpointMismatch(
        f"stream {batch.app!r}: its batch {batch.number} has landed before, from another checkpoint, so the rows of "
        f"this one were not written. {_ADVICE}"
    )


def _continues(view: ReadTxn, newest: _Newest, batch: StreamBatch) -> bool:
    """Return True if the batch is the next of the application's stream, or a replay of the newest."""
    if batch.number > newest.number:
        return batch.number > _forgotten(view, batch.app)
    is_known = newest.query is not None and batch.query is not None
    return newest.is_of(batch) and newest.is_behind(batch) and (is_known or not batch.new_checkpoint)


def _require_newest(newest: _Newest, batch: StreamBatch) -> None:
    """Raise CheckpointMismatch if the newest batch, of this query or an unknown one, is a later one, or was planned at
    another time: a restart repeats the newest batch alone, as it was planned.
    """
    if newest.is_behind(batch) or not newest.is_of(batch):
        return
    raise CheckpointMismatch(
        f"stream {batch.app!r}: its batch {batch.number} comes after another batch {newest.number} has landed, so its "
        "checkpoint is older than the table, as after a restored backup or a deleted folder of it. Its batches could "
        "have other rows than those that landed: start the stream with a new, empty checkpoint, and if it has an "
        "application name, with new_checkpoint=True of el.sink or .option('newCheckpoint', 'true')"
    )


def _newest(view: ReadTxn, app: str) -> _Newest:
    for key, record in scan_prefix(view, txn_prefix(app), reverse=True):
        if record["epoch"] is not None and "alter" not in record:  # else `resolve` has aborted it, or it is no batch
            return _Newest(key_epoch(key), record.get("query"), record.get("planned_ms"))
    return _Newest()


def _was_started_anew(view: ReadTxn, app: str) -> bool:
    """Return True if a query has said that the application's stream was started anew, and has landed a batch."""
    own = scan_prefix(view, txn_app_key(f"{app}#"))
    return any(_QUERY_HASH.fullmatch(key.rpartition(b"#")[2]) for key, _ in own)


def _forgotten(view: ReadTxn, app: str) -> int:
    record = view.get(txn_app_key(app))
    return -1 if record is None else record["forgotten"]
