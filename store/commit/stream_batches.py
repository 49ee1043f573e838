"""Micro-batches of streams as transactions: the pair (application, number) under which a batch lands, and a check of
the checkpoint that gave it the number.

A stream takes the numbers of its batches from its checkpoint. A deleted or restored checkpoint gives a number again, to
other rows. So the outcome of a batch keeps a hash of the query's id, and the time at which the batch was planned: both
are in the checkpoint, and a replay has them again. Rules: docs/SEMANTICS.md, 1.25 and 1.26.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from epochlog.errors import CheckpointMismatch, TxnOutcomeForgotten
from epochlog.store.catalog.keys import key_epoch, txn_app_key, txn_key, txn_prefix
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix

_ADVICE = (
    "Start it with the checkpoint that it had. If the stream was started anew on purpose, with another checkpoint, say "
    "so: new_checkpoint=True of el.sink, or .option('newCheckpoint', 'true'). A further stream takes an application "
    "name of its own"
)
_THREAD_ADVICE = (
    "Spark does not tell here which query writes, so its rows cannot be told from those that landed: call el.sink with "
    "the DataFrame that foreachBatch passes, while its query runs, and write within foreachBatch in its own thread or "
    "in a pyspark.InheritableThread. A write that is no batch of this stream takes an application name of its own"
)

_QUERY_HASH = re.compile(rb"[0-9a-f]{16}")
NO_QUERY = ""
"""Stands in outcomes for the query of a write whose query Spark does not tell, or that has none."""
NO_BATCH = -1
"""Stands for the batch of a write outside of any, and so of each pair that a caller of Python chose."""
PAIR_MARKS: dict[str, str | int] = {"query": NO_QUERY, "batch": NO_BATCH}
"""Fields of the outcome of a pair that is no batch of a stream: an outcome of an earlier release does not tell."""


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Micro-batch of a stream as the transaction of a commit."""

    app: str
    number: int
    query: str | None
    """Id of the stream's query."""
    planned_ms: int | None = None
    """Time at which Spark planned the batch; None if Spark does not tell it."""
    new_checkpoint: bool = False
    """True if the user says that the stream was started anew: a known number under another query is no replay."""
    batch: int | None = None
    """Id of the micro-batch if the user chose a `number` other than that for the write; NO_BATCH outside of any."""

    @property
    def query_hash(self) -> str:
        """Return the hash of the query's id that the outcome keeps."""
        return NO_QUERY if self.query is None else hashlib.sha256(self.query.encode()).hexdigest()[:16]

    def marks(self) -> dict[str, str | int]:
        """Return the fields of the outcome that tell a replay from other rows with the batch's number."""
        marks = {"query": self.query_hash, "planned_ms": self.planned_ms, "batch": self.batch}
        return {name: mark for name, mark in marks.items() if mark is not None}


@dataclass(frozen=True, slots=True)
class _Landed:
    """Outcome of a commit that landed."""

    number: int
    query: str | None
    """Hash of the id of the stream's query; None if an earlier release wrote the record."""
    planned_ms: int | None
    batch: int | None
    """See `StreamBatch.batch`."""

    @classmethod
    def of(cls, number: int, record: Any) -> _Landed | None:
        """Return the outcome; None if `resolve` has aborted it, or it is of an alter."""
        if record is None or record["epoch"] is None or "alter" in record:
            return None
        return cls(number, record.get("query"), record.get("planned_ms"), record.get("batch"))

    def is_as_planned(self, batch: StreamBatch) -> bool:
        """Return True unless the batch is known to have been planned at another time."""
        return None in (self.planned_ms, batch.planned_ms) or self.planned_ms == batch.planned_ms


def pair_of_batch(view: ReadTxn, batch: StreamBatch) -> tuple[str, int]:
    """Return the pair of a batch: a new one, or one that has landed with the batch's rows, which is a replay then.

    A stream that was started anew has an application of its own, named by the hash of its query. Raises
    CheckpointMismatch if the batch has the number of other rows; TxnOutcomeForgotten if that is unknown.
    """
    own = f"{batch.app}#{batch.query_hash}"
    if batch.query is not None and view.get(txn_app_key(own)) is not None:
        _require_batch(view, own, batch)
        before = _landed(view, batch.app, batch.number)  # by this query, before a number of its own was taken
        if before is None or before.query != batch.query_hash:
            return own, batch.number
    if batch.new_checkpoint and batch.query is not None and _is_of_another(view, batch.app, batch):
        return own, batch.number
    _require_batch(view, batch.app, batch)
    if batch.new_checkpoint and batch.query is None and _landed(view, batch.app, batch.number) is not None:
        raise CheckpointMismatch(
            f"stream {batch.app!r}: Spark gives no query id here, so a new checkpoint cannot be told from the old one; "
            "give the stream that was started anew another application name"
        )
    return batch.app, batch.number


def _require_batch(view: ReadTxn, app: str, batch: StreamBatch) -> None:
    """Raise CheckpointMismatch or TxnOutcomeForgotten if the batch's pair may stand for other rows."""
    if _is_of_another(view, app, batch):
        _refuse_another(view, app, batch)
    later = _later(view, app, batch)
    if later is not None:
        raise CheckpointMismatch(
            f"stream {batch.app!r}: its batch {batch.number} comes after another batch {later.number} has landed, so "
            "its checkpoint is older than the table, as after a restored backup or a deleted folder of it. Its batches "
            "could have other rows than those that landed: start the stream with a new, empty checkpoint, and if it "
            "has an application name, with new_checkpoint=True of el.sink or .option('newCheckpoint', 'true')"
        )


def _is_of_another(view: ReadTxn, app: str, batch: StreamBatch) -> bool:
    """Return True if the pair has landed from another query, or may have: its outcome is no longer known, or the batch
    comes before those of another query.
    """
    landed = _landed(view, app, batch.number)
    if batch.query is None and batch.batch is None and _was_started_anew(view, app):
        return True  # A query of this application may have counted on elsewhere.
    if landed is None:
        if batch.batch is not None:
            return False
        newest = _newest(view, app, unknown=False)
        if newest is not None and newest.number > batch.number:
            return newest.query != batch.query_hash
        return batch.number <= _forgotten(view, app)
    if landed.query is not None:
        is_stream = landed.batch != NO_BATCH or batch.batch == NO_BATCH
        return landed.query != batch.query_hash or not is_stream
    # An outcome of an earlier release: of whichever query asks, as long as no query is known.
    if batch.query is None or batch.batch is not None:
        return False
    if batch.new_checkpoint or _was_started_anew(view, app):
        return True
    known = _newest(view, app, unknown=False)
    return known is not None and not (known.query == batch.query_hash and known.number > batch.number)


def _later(view: ReadTxn, app: str, batch: StreamBatch) -> _Landed | None:
    """Return the outcome which shows that the batch's checkpoint went back: a restart repeats the newest batch alone,
    as it was planned.
    """
    landed = _landed(view, app, batch.number)
    if batch.batch is not None or (landed is not None and landed.batch is not None):
        # The user chose the number: of the micro-batch that has landed with it, or of another, whose write it repeats.
        is_replanned = landed is not None and landed.batch == batch.batch and not landed.is_as_planned(batch)
        return landed if is_replanned else None
    newest = _newest(view, app, unknown=landed is not None and landed.query is None)
    if newest is None or newest.number < batch.number:
        return None
    return newest if newest.number > batch.number or not newest.is_as_planned(batch) else None


def _refuse_another(view: ReadTxn, app: str, batch: StreamBatch) -> None:
    landed = _landed(view, app, batch.number)
    if landed is None and batch.number <= _forgotten(view, app) and _newest(view, app, unknown=True) is None:
        raise TxnOutcomeForgotten(
            f"stream {batch.app!r}: the outcomes of its batches up to {batch.number} are no longer known. {_ADVICE}"
        )
    name = f"batch {batch.number}" if batch.batch is None else f"transaction {(batch.app, batch.number)}"
    raise CheckpointMismatch(
        f"stream {batch.app!r}: its {name} has landed before, from another checkpoint, so the rows of this one were "
        f"not written. {_ADVICE if batch.query is not None else _THREAD_ADVICE}"
    )


def _landed(view: ReadTxn, app: str, number: int) -> _Landed | None:
    return _Landed.of(number, view.get(txn_key(app, number)))


def _newest(view: ReadTxn, app: str, *, unknown: bool) -> _Landed | None:
    """Return the landed batch with the highest number, of those that their streams have numbered. unknown: outcomes of
    earlier releases count too, whose writes may have been no batches.
    """
    for key, record in scan_prefix(view, txn_prefix(app), reverse=True):
        landed = _Landed.of(key_epoch(key), record)
        if landed is not None and landed.batch is None and (unknown or landed.query is not None):
            return landed
    return None


def _was_started_anew(view: ReadTxn, app: str) -> bool:
    """Return True if a query has said that the application's stream was started anew, and has landed a batch."""
    own = scan_prefix(view, txn_app_key(f"{app}#"))
    return any(_QUERY_HASH.fullmatch(key.rpartition(b"#")[2]) for key, _ in own)


def _forgotten(view: ReadTxn, app: str) -> int:
    record = view.get(txn_app_key(app))
    return -1 if record is None else record["forgotten"]
