"""What a job has made of a snapshot that it takes in pieces: segments that the catalog reaches and no reader sees.

They are recorded piece by piece (job_pieces.py), and become one log entry at the commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from .catalog import Txn, View
from .garbage import let_go
from .records import after_prefix, made_key
from .segment import Segment


def made_of(view: View, table_id: int) -> tuple[Segment, ...]:
    """The segments made of an output so far, in the order in which later wins."""
    prefix = b"made/%08x/" % table_id
    found = view.scan(prefix, after_prefix(prefix))
    return tuple(Segment.from_record(segment) for _, record in found for segment in record["segments"])


def put_made(tx: Txn, table_id: int, number: int, segments: Iterable[Segment]) -> None:
    """Part of a transaction: what the piece of that number has made of an output."""
    tx.put(made_key(table_id, number), {"segments": [segment.to_record() for segment in segments]})


def forget_made(tx: Txn, table_id: int) -> None:
    """Part of a transaction that has put what was made to use, or lets go of it."""
    prefix = b"made/%08x/" % table_id
    for key, _ in list(tx.scan(prefix, after_prefix(prefix))):
        tx.delete(key)


def discard_made(tx: Txn, tables: Iterable[int], now_ms: int) -> None:
    """Part of a transaction that moves the counters: what was made of these outputs is nobody's any more."""
    for table_id in tables:
        let_go(tx, table_id, ((segment.path, segment.bytes) for segment in made_of(tx, table_id)), now_ms)
        forget_made(tx, table_id)
