"""Idempotent transactions: the outcomes of commits and alters, by their pair (application, id).

Rules: docs/SEMANTICS.md, 1.7. Resolving an undecided pair aborts it, so a late commit of it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlog.errors import InvalidInput, TxnAborted, TxnMismatch, TxnOutcomeForgotten
from epochlog.store.catalog.keys import TXN_APP_PREFIX, key_epoch, txn_app_key, txn_key, txn_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.metadata.lookups import all_tables
from epochlog.store.types.epoch import to_unix_ms

from .stream_batches import PAIR_MARKS, StreamBatch, pair_of_batch

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

KEPT_OUTCOMES = 1_000
UNUSED_MS = 30 * 86_400_000
"""An application's outcomes are deleted this long after its last commit."""
MAX_APP_BYTES = 200

TxnPair = tuple[str, int]
CommitTxn = TxnPair | StreamBatch
"""Transaction of a commit: a pair of its caller, or a micro-batch, whose pair the catalog decides."""


def check_pair(txn: CommitTxn | None) -> None:
    """Raise InvalidInput unless `txn` is None or a valid pair (application, id)."""
    if txn is None:
        return
    if isinstance(txn, StreamBatch):
        txn = (txn.app, txn.number)
    is_pair = isinstance(txn, tuple | list) and len(txn) == 2 and isinstance(txn[0], str)
    if not is_pair or not isinstance(txn[1], int) or isinstance(txn[1], bool) or not 0 <= txn[1] < 1 << 63:
        raise InvalidInput(f"txn must be a pair (application: str, id: int >= 0), not {txn!r}")
    if not txn[0] or "\0" in txn[0] or len(txn[0].encode(errors="replace")) > MAX_APP_BYTES or not _is_text(txn[0]):
        raise InvalidInput(
            f"the application name in txn must have 1 to {MAX_APP_BYTES} bytes and no NUL, not {txn[0]!r}"
        )


def _is_text(name: str) -> bool:
    """Return True if the name can be encoded as UTF-8, that is, contains no lone surrogate."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def find_committed_epoch(handle: Handle, txn: CommitTxn | None, table_ids: Sequence[int]) -> int | None:
    """Return the epoch at which this pair landed in these tables, or None. Raises the errors of `resolve_outcome`."""
    return None if txn is None else handle.catalog.read(lambda view: resolve_outcome(view, txn, sorted(table_ids)))


def resolve(handle: Handle, txn: TxnPair) -> int | None:
    """Decide the outcome of (application, id): return its epoch. After None, no commit under the pair can land."""
    if txn is None:
        raise InvalidInput("resolve takes the txn of a commit, a pair (application, id), not None")
    check_pair(txn)

    def body(tx: Txn) -> int | None:
        record = tx.get(txn_key(*txn))
        if record is None:
            _refuse_forgotten(tx, txn)
            record_outcome(tx, txn, [], None, handle.catalog.now_ms())
            return None
        return record["epoch"]

    return handle.catalog.transact(body)


def has_outcome(view: ReadTxn, txn: TxnPair) -> bool:
    return view.get(txn_key(*txn)) is not None


def pair_of(view: ReadTxn, txn: CommitTxn | None) -> TxnPair | None:
    """Return the pair under which a commit's outcome is recorded. Raises the errors of `pair_of_batch`."""
    return pair_of_batch(view, txn) if isinstance(txn, StreamBatch) else txn


def resolve_outcome(
    view: ReadTxn, txn: CommitTxn | None, tables: Sequence[int], alter: bytes | None = None
) -> int | None:
    """Return the epoch at which the pair landed in exactly these tables (sorted ids), or as this alter (which has no
    tables); None if it has not landed, or `txn` is None. alter: the fingerprint of the alter.

    Raises TxnAborted, TxnMismatch, TxnOutcomeForgotten, CheckpointMismatch.
    """
    batch, txn = txn, pair_of(view, txn)
    if txn is None:
        return None
    record = view.get(txn_key(*txn))
    if record is None:
        _refuse_forgotten(view, txn)
        return None
    if record["epoch"] is None:
        raise TxnAborted(
            f"transaction {tuple(txn)} was resolved as aborted and can no longer land; commit under a new id"
        )
    if record.get("alter") != alter:
        other = "a commit" if "alter" not in record else "an alter" if alter is None else "another alter"
        raise TxnMismatch(f"transaction {tuple(txn)} was used before for {other}; use a new id")
    if record["tables"] != list(tables):
        if isinstance(batch, StreamBatch):
            raise _other_tables(view, batch, record["tables"], tables)
        raise TxnMismatch(
            f"transaction {tuple(txn)} was committed before with other tables; use a new id for a new commit"
        )
    return record["epoch"]


def _other_tables(view: ReadTxn, batch: StreamBatch, before: Sequence[int], now: Sequence[int]) -> TxnMismatch:
    """Build the error of a batch that has landed in other tables. Its user did not choose its number."""
    known = {table.id: table.name for table in all_tables(view)}
    landed, asked = (sorted(known.get(table_id, "a dropped table") for table_id in ids) for ids in (before, now))
    return TxnMismatch(
        f"stream {batch.app!r}: its transaction {batch.number} has landed in the tables {landed}, and comes again for "
        f"the tables {asked}. If the tables of the stream were changed, run it with {landed} until a batch has ended, "
        "and change them then; different writes of one batch take different application names or numbers"
    )


def _refuse_forgotten(view: ReadTxn, txn: TxnPair) -> None:
    app = view.get(txn_app_key(txn[0]))
    if app is not None and txn[1] <= app["forgotten"]:
        raise TxnOutcomeForgotten(
            f"transaction {tuple(txn)}: outcomes of {txn[0]!r} are kept only above id {app['forgotten']}, so the "
            "outcome of this one is no longer known; read the table to find out"
        )


def record_outcome(
    tx: Txn,
    txn: TxnPair,
    tables: Sequence[int],
    epoch: int | None,
    now_ms: int,
    *,
    alter: bytes | None = None,
    batch: StreamBatch | None = None,
) -> None:
    """Record an outcome, and keep the newest KEPT_OUTCOMES of its application. batch: of which it is. An alter has no
    tables, so that earlier releases refuse a commit under its pair.
    """
    app, txn_id = txn
    record = tx.get(txn_app_key(app)) or {"forgotten": -1, "count": 0, "used_ms": now_ms}
    outcome = {"tables": list(tables), "epoch": epoch, "at_ms": now_ms}
    if alter is not None:
        outcome["alter"] = alter
    elif epoch is not None:
        outcome |= PAIR_MARKS if batch is None else batch.marks()
    tx.put(txn_key(app, txn_id), outcome)
    count, forgotten = record["count"] + 1, record["forgotten"]
    if count > KEPT_OUTCOMES:
        oldest = next(key for key, _ in scan_prefix(tx, txn_prefix(app)))
        tx.delete(oldest)
        count, forgotten = count - 1, key_epoch(oldest)
    used_ms = max(now_ms, to_unix_ms(epoch or 0))  # the clock may have been set back
    tx.put(txn_app_key(app), {"forgotten": forgotten, "count": count, "used_ms": used_ms})


def forget_unused(handle: Handle) -> int:
    """Delete the outcomes of applications unused for UNUSED_MS; return the number of applications.

    Their highest id stays recorded, so a repeated old commit fails instead of landing twice.
    """

    def unused(view: ReadTxn) -> list[str]:
        before_ms = handle.clock_guard.slowest_ms(view) - UNUSED_MS
        prefix = TXN_APP_PREFIX
        records = scan_prefix(view, prefix)
        return [key[len(prefix) :].decode() for key, app in records if app["count"] and app["used_ms"] < before_ms]

    def forget(tx: Txn, app: str) -> None:
        record = tx.get(txn_app_key(app))
        if record is None or record["used_ms"] >= handle.clock_guard.slowest_ms(tx) - UNUSED_MS:
            return
        keys = [key for key, _ in scan_prefix(tx, txn_prefix(app))]
        for key in keys:
            tx.delete(key)
        newest = max([record["forgotten"], *map(key_epoch, keys)])
        tx.put(txn_app_key(app), {**record, "forgotten": newest, "count": 0})

    apps = handle.catalog.read(unused)
    for app in apps:
        handle.catalog.transact(lambda tx, app=app: forget(tx, app))
    return len(apps)
