"""Boundaries: the epochs at which jobs may commit. Nothing lands at or below a sealed one.

Rules: docs/SEMANTICS.md, 1.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.errors import ClockSkew
from epochlog.store.catalog.keys import bound_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.types.epoch import boundary, from_unix_ms, newest_index, show_epoch, show_time

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

MAX_SKEW_MS = 10_000


def check_skew(epoch: int, now_ms: int) -> None:
    """Raise ClockSkew for an epoch too far ahead of the clock: one wrong clock must not hide the data of others."""
    if epoch > from_unix_ms(now_ms + MAX_SKEW_MS):
        raise ClockSkew(
            f"epoch {show_epoch(epoch)} lies more than {MAX_SKEW_MS // 1000} s ahead of the clock "
            f"({show_time(now_ms)}), or the clock was set back since the newest commit; set the clocks right, or wait "
            "until the clock has caught up"
        )


def seal(handle: Handle, every: int = 1) -> int:
    """Seal the boundaries that the clock has passed, for a job that uses each `every`-th one; return last_epoch.

    Writes nothing if no commit has landed since a boundary that the job can use: sealing an idle store has no effect
    for a reader. When last_epoch leads the clock by more than an interval (a clock was set back), a boundary is forced
    at last_epoch.
    """

    def sealed_epoch(view: ReadTxn) -> int | None:
        last_epoch = Counters.read(view).last_epoch
        sealed = last_epoch > 0 and is_boundary(view, last_epoch, handle.interval_ms, every)
        leads = last_epoch > from_unix_ms(handle.catalog.now_ms() + handle.interval_ms)
        return last_epoch if sealed or (not leads and newest_passed_boundary(handle) <= last_epoch) else None

    def body(tx: Txn) -> int:
        counters, target = Counters.read(tx), newest_passed_boundary(handle)
        if target > counters.last_epoch:
            move_counters(tx, counters, target)
        elif counters.last_epoch > from_unix_ms(handle.catalog.now_ms() + handle.interval_ms):
            tx.put(bound_key(counters.last_epoch), {"at_ms": handle.catalog.now_ms()})
        return max(target, counters.last_epoch)

    last_epoch = handle.catalog.read(sealed_epoch)
    return handle.catalog.transact(body) if last_epoch is None else last_epoch


def force_boundary(handle: Handle) -> int:
    """Seal a forced boundary now, beside the regular ones; return its epoch."""

    epoch = handle.catalog.transact(lambda tx: force_within(tx, handle))
    hit("seal:after")
    return epoch


def force_within(tx: Txn, handle: Handle, above: int = 0) -> int:
    """Seal a forced boundary above the epoch `above`; return its epoch. Call inside a transaction. Raises ClockSkew."""
    counters, now_ms = Counters.read(tx), handle.catalog.now_ms()
    epoch = max(from_unix_ms(now_ms), counters.last_epoch, above + 1)
    check_skew(epoch, now_ms)
    if not is_boundary(tx, epoch, handle.interval_ms):
        tx.put(bound_key(epoch), {"at_ms": now_ms})
    move_counters(tx, counters, epoch)
    return epoch


def newest_passed_boundary(handle: Handle) -> int:
    """Return the newest regular boundary that the clock has passed."""
    now = from_unix_ms(handle.catalog.now_ms())
    return boundary(newest_index(now - 1, handle.interval_ms), handle.interval_ms)


def is_boundary(view: ReadTxn, epoch: int, interval_ms: int, every: int = 1) -> bool:
    """Return True if the epoch is a forced boundary, or a regular one of a job that uses each `every`-th one."""
    index = newest_index(epoch, interval_ms)
    regular = boundary(index, interval_ms) == epoch and index % every == 0
    return regular or view.get(bound_key(epoch)) is not None
