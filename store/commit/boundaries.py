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
from epochlog.store.types.epoch import boundary, from_unix_ms, newest_index, show_epoch, show_time, width

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

MAX_SKEW_MS = 10_000


def check_skew(epoch: int, now_ms: int, last_epoch: int) -> None:
    """Raise ClockSkew for an explicit epoch too far ahead of the clock, and of the newest epoch if that leads: the
    epochs that follow would lead too.
    """
    if epoch > max(from_unix_ms(now_ms + MAX_SKEW_MS), last_epoch + width(1)):
        raise ClockSkew(
            f"epoch {show_epoch(epoch)} lies more than {MAX_SKEW_MS // 1000} s ahead of the clock "
            f"({show_time(now_ms)}), and more than 1 ms past the newest epoch {show_epoch(last_epoch)}; leave epoch "
            "out to get the next one"
        )


def seal(handle: Handle) -> int:
    """Seal the boundaries that the clock has passed; return last_epoch.

    Writes nothing if no commit has landed since the newest boundary: sealing an idle store has no effect for a reader.
    A store that was opened read-only seals none. When last_epoch leads the clock by more than an interval (a clock was
    set back), a boundary is forced at last_epoch.
    """

    def sealed_epoch(view: ReadTxn) -> int | None:
        last_epoch = Counters.read(view).last_epoch
        sealed = last_epoch > 0 and is_boundary(view, last_epoch, handle.interval_ms)
        return None if may_seal(handle, last_epoch, sealed=sealed) else last_epoch

    last_epoch = handle.catalog.read(sealed_epoch)
    if last_epoch is None and handle.read_only:
        return handle.catalog.read(lambda view: Counters.read(view).last_epoch)
    return seal_now(handle) if last_epoch is None else last_epoch


def may_seal(handle: Handle, last_epoch: int, *, sealed: bool) -> bool:
    """Return True if a boundary is to be sealed above the newest epoch. sealed: that epoch is a boundary of the job."""
    now_ms = handle.catalog.now_ms()
    leads = last_epoch > from_unix_ms(now_ms + handle.interval_ms)
    return not sealed and (leads or newest_boundary_before(now_ms, handle.interval_ms) > last_epoch)


def seal_now(handle: Handle) -> int:
    """Seal the boundaries that the clock has passed; return last_epoch."""

    def body(tx: Txn) -> int:
        counters = Counters.read(tx)
        now_ms = handle.clock_guard.issuing_ms(tx, counters.last_epoch)
        target = newest_boundary_before(now_ms, handle.interval_ms)
        if target > counters.last_epoch:
            move_counters(tx, counters, target)
        elif counters.last_epoch > from_unix_ms(now_ms + handle.interval_ms):
            tx.put(bound_key(counters.last_epoch), {"at_ms": now_ms})
        return max(target, counters.last_epoch)

    return handle.catalog.transact(body)


def force_boundary(handle: Handle) -> int:
    """Seal a forced boundary now, beside the regular ones; return its epoch."""

    epoch = handle.catalog.transact(lambda tx: force_within(tx, handle))
    hit("seal:after")
    return epoch


def force_within(tx: Txn, handle: Handle, above: int = 0) -> int:
    """Seal a forced boundary above the epoch `above`; return its epoch. Call inside a transaction. Raises ClockSkew."""
    counters = Counters.read(tx)
    now_ms = handle.clock_guard.issuing_ms(tx, counters.last_epoch)
    epoch = max(from_unix_ms(now_ms), counters.last_epoch, above + 1)
    if not is_boundary(tx, epoch, handle.interval_ms):
        tx.put(bound_key(epoch), {"at_ms": now_ms})
    move_counters(tx, counters, epoch)
    return epoch


def newest_boundary_before(now_ms: int, interval_ms: int) -> int:
    """Return the newest regular boundary that a clock has passed."""
    return boundary(newest_index(from_unix_ms(now_ms) - 1, interval_ms), interval_ms)


def is_boundary(view: ReadTxn, epoch: int, interval_ms: int, every: int = 1) -> bool:
    """Return True if the epoch is a forced boundary, or a regular one of a job that uses each `every`-th one."""
    index = newest_index(epoch, interval_ms)
    regular = boundary(index, interval_ms) == epoch and index % every == 0
    return regular or view.get(bound_key(epoch)) is not None
