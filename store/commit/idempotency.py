"""Idempotent transactions: the outcomes of commits, by their pair (application, id).

Rules: docs/SEMANTICS.md, 1.7. To ask for an outcome is to decide it: a late commit meets the abort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlog.errors import InvalidInput, TxnAborted, TxnMismatch, TxnOutcomeForgotten
from epochlog.store.catalog.keys import after_prefix, key_epoch, txn_app_key, txn_key
from epochlog.store.catalog.protocol import Txn, View

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

KEPT_OUTCOMES = 1_000
UNUSED_MS = 30 * 86_400_000
"""The outcomes of an application are forgotten so long after its last commit."""
MAX_APP_BYTES = 200

TxnPair = tuple[str, int]


def check_pair(txn: TxnPair | None) -> None:
    """Raise InvalidInput unless it is None or a pair (application, id) that the catalog can keep."""
    if txn is None:
        return
    good = isinstance(txn, tuple | list) and len(txn) == 2 and isinstance(txn[0], str)
    if not good or not isinstance(txn[1], int) or isinstance(txn[1], bool) or not 0 <= txn[1] < 1 << 63:
        raise InvalidInput(f"txn must be a pair (application: str, id: int >= 0), not {txn!r}")
    if not txn[0] or "\0" in txn[0] or len(txn[0].encode(errors="replace")) > MAX_APP_BYTES or not _is_text(txn[0]):
        raise InvalidInput(
            f"the application name in txn must have 1 to {MAX_APP_BYTES} bytes and no NUL, not {txn[0]!r}"
        )


def _is_text(name: str) -> bool:
    """Return True if the name can be encoded as UTF-8: it contains no half of a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def find_committed_epoch(handle: Handle, txn: TxnPair | None, table_ids: Sequence[int]) -> int | None:
    """Return the epoch at which this pair has landed in these tables, or None; raise the errors that its commit would
    raise.
    """
    return None if txn is None else handle.catalog.read(lambda view: resolve_outcome(view, txn, sorted(table_ids)))


def resolve(handle: Handle, txn: TxnPair) -> int | None:
    """Decide the fate of (application, id): return its epoch, or None; no commit under it can land after None."""
    if txn is None:
        raise InvalidInput("resolve takes the txn of a commit, its pair (application, id), not None")
    check_pair(txn)

    def body(tx: Txn) -> int | None:
        record = tx.get(txn_key(*txn))
        if record is None:
            _refuse_forgotten(tx, txn)
            record_outcome(tx, txn, [], None, handle.catalog.now_ms())
            return None
        return record["epoch"]

    return handle.catalog.transact(body)


def has_outcome(view: View, txn: TxnPair) -> bool:
    return view.get(txn_key(*txn)) is not None


def resolve_outcome(view: View, txn: TxnPair | None, tables: Sequence[int]) -> int | None:
    """Return the epoch at which the pair landed in just these tables (sorted ids); None when it has not, or there is
    none.
    """
    if txn is None:
        return None
    record = view.get(txn_key(*txn))
    if record is None:
        _refuse_forgotten(view, txn)
        return None
    if record["epoch"] is None:
        raise TxnAborted(
            f"transaction {tuple(txn)} was resolved as aborted and can land no more; commit under a new id"
        )
    if record["tables"] != list(tables):
        raise TxnMismatch(
            f"transaction {tuple(txn)} was committed before with other tables; use a new id for a new commit"
        )
    return record["epoch"]


def _refuse_forgotten(view: View, txn: TxnPair) -> None:
    app = view.get(txn_app_key(txn[0]))
    if app is not None and txn[1] <= app["forgotten"]:
        raise TxnOutcomeForgotten(
            f"transaction {tuple(txn)}: outcomes of {txn[0]!r} are kept above id {app['forgotten']} only; "
            "whether this one landed is not known any more, read the table to find out"
        )


def record_outcome(tx: Txn, txn: TxnPair, tables: Sequence[int], epoch: int | None, now_ms: int) -> None:
    """Record an outcome, and keep the newest KEPT_OUTCOMES of its application."""
    app, txn_id = txn
    record = tx.get(txn_app_key(app)) or {"forgotten": -1, "count": 0, "used_ms": now_ms}
    tx.put(txn_key(app, txn_id), {"tables": list(tables), "epoch": epoch, "at_ms": now_ms})
    count, forgotten = record["count"] + 1, record["forgotten"]
    if count > KEPT_OUTCOMES:
        prefix = b"txn/" + app.encode() + b"\0"
        oldest = next(key for key, _ in tx.scan(prefix, after_prefix(prefix)))
        tx.delete(oldest)
        count, forgotten = count - 1, key_epoch(oldest)
    tx.put(txn_app_key(app), {"forgotten": forgotten, "count": count, "used_ms": now_ms})


def forget_unused(handle: Handle) -> int:
    """Delete the outcomes of applications unused for UNUSED_MS; return the number of applications.

    Their high-water marks stay: a commit of theirs that is made again is refused, and lands no second time.
    """

    def unused(view: View) -> list[str]:
        before_ms = handle.catalog.now_ms() - UNUSED_MS
        prefix = b"txnapp/"
        found = view.scan(prefix, after_prefix(prefix))
        return [key[len(prefix) :].decode() for key, app in found if app["count"] and app["used_ms"] < before_ms]

    def forget(tx: Txn, app: str) -> None:
        record, prefix = tx.get(txn_app_key(app)), b"txn/" + app.encode() + b"\0"
        if record is None or record["used_ms"] >= handle.catalog.now_ms() - UNUSED_MS:
            return
        keys = [key for key, _ in tx.scan(prefix, after_prefix(prefix))]
        for key in keys:
            tx.delete(key)
        newest = max([record["forgotten"], *map(key_epoch, keys)])
        tx.put(txn_app_key(app), {**record, "forgotten": newest, "count": 0})

    apps = handle.catalog.read(unused)
    for app in apps:
        handle.catalog.transact(lambda tx, app=app: forget(tx, app))
    return len(apps)
