"""Guard of the clock: no epoch is issued by a clock that has jumped ahead, and none deletes by its time.

Rules: docs/SEMANTICS.md, 1.60 to 1.68.
"""

from __future__ import annotations

import os

from epochlog.errors import ClockSkew
from epochlog.store.catalog.keys import CLOCKS
from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn
from epochlog.store.env.clock import BootTime, HasBootTime
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.known_clocks import NOTE_MS, ClockReading, KnownClock, KnownClocks, read_clocks
from epochlog.store.types.epoch import show_span, show_time, to_unix_ms

from .leases import LEASE_MS

_MOST_WATCHED = 1000
"""Leases of other processes, above which all are forgotten and watched anew."""


class ClockGuard:
    """Comparison of the catalog's clock with the machine's clocks (None: not compared). name: that of the catalog's
    clock, for messages. trust_command: the command that notes it as right.
    """

    def __init__(self, catalog: Catalog, boot_clock: HasBootTime | None, name: str, trust_command: str) -> None:
        self.name = name
        self.trust_command = trust_command
        self.host = os.uname().nodename
        self._catalog = catalog
        self._boot_clock = boot_clock
        self._note: KnownClock | None = None  # as it was read from the catalog
        self._seen: ClockReading | None = None
        self._put_forward = (0, 0)
        """By how much the clock was put forward when this process looked last, and until when that counts, by the boot
        clock.
        """
        self._watched: dict[str, tuple[int, BootTime, int]] = {}
        """Ends of leases of other processes, each with the boot times at which it was first and last seen."""

    def reading(self) -> ClockReading | None:
        """Return the clock's reading now; None without a boot clock."""
        boot = None if self._boot_clock is None else self._boot_clock.boot_time()
        wall_ms = self._catalog.now_ms()
        return None if boot is None else ClockReading(self.host, boot.boot, boot.ms, wall_ms)

    def issuing_ms(self, tx: Txn, last_epoch: int) -> int:
        """Return the time of a transaction that issues an epoch above `last_epoch`, and note the clock if its note is
        old. Raises ClockSkew if the clock has jumped ahead. Call inside the transaction.
        """
        now = self.reading()
        if now is None:
            return self._catalog.now_ms()
        if self._note is not None and self._note.boot == now.boot and self._note.is_fresh(now):
            return now.wall_ms
        known = read_clocks(tx)
        before = known.of(now.boot)
        if before is not None and (jump_ms := before.jumped_ms(now, last_epoch)):
            raise ClockSkew(
                f"{self.name} shows {show_time(now.wall_ms)}, {show_span(jump_ms)} more than the time since the last "
                f"commit of {now.host} allows; nothing was written. Set the clock right. If it is right now, run "
                f"`{self.trust_command}` on {now.host}"
            )
        if before is not None and before.is_fresh(now):
            self._note = before
        else:
            tx.put(CLOCKS, known.noted(now).to_record())
        return now.wall_ms

    def slowest_ms(self, view: ReadTxn) -> int:
        """Return the time by which to delete, and by which leases end: that of the slowest clock that the catalog
        knows, or of this machine if that is earlier. After a jump it is counted by the boot clock.
        """
        now = self.reading()
        if now is None:
            known_ms = self._catalog.now_ms()
        else:
            known_ms = min(read_clocks(view).slowest_ms(now), now.wall_ms - self._put_forward_ms(now))
        return known_ms - self.lead_ms(known_ms)

    def latest_ms(self, view: ReadTxn) -> int:
        """Return the latest time that it can be, as far as the catalog knows: what must last for a given time counts
        from it. It is not before the newest epoch; after a jump the boot clock counts it.
        """
        now = self.reading()
        known_ms = self._catalog.now_ms() if now is None else read_clocks(view).latest_ms(now)
        return max(known_ms, to_unix_ms(Counters.read(view).last_epoch))

    def _put_forward_ms(self, now: ClockReading) -> int:
        """Return by how much the clock was put forward in the last LEASE_MS, so that leases which were renewed before
        that seem to have ended; 0 if it was not, or if this process has not looked before.
        """
        seen, self._seen = self._seen, now
        if seen is not None and seen.boot == now.boot and (jump_ms := now.jump_ms(seen)) > NOTE_MS:
            self._put_forward = jump_ms, now.boot_ms + LEASE_MS
        jump_ms, until_ms = self._put_forward
        return jump_ms if now.boot_ms < until_ms else 0

    def outlived(self, lease: str, ends_ms: int, length_ms: int) -> bool:
        """Return True if this process has known the end of another process's lease for the length of the lease, by the
        boot clock: nothing renews it, whatever the wall clock says. It looks again within LEASE_MS, in which a wall
        clock that was set back cannot have given another renewal an equal end.
        """
        now = None if self._boot_clock is None else self._boot_clock.boot_time()
        if now is None:
            return False
        if len(self._watched) > _MOST_WATCHED:
            self._watched.clear()
        known_ms, since, last_ms = self._watched.get(lease, (ends_ms, now, now.ms))
        if known_ms != ends_ms or since.boot != now.boot or now.ms - last_ms > LEASE_MS:
            since = now
        self._watched[lease] = ends_ms, since, now.ms
        return now.ms - since.ms >= length_ms

    def lead_ms(self, wall_ms: int) -> int:
        """Return by how much a time of the catalog's clock leads the clock of this machine; 0 where they are one."""
        return 0 if self._boot_clock is None else max(0, wall_ms - self._boot_clock())

    def trust(self) -> ClockReading | None:
        """Note the clock as right, whatever it showed before; return its reading, None without a boot clock."""

        def body(tx: Txn) -> ClockReading | None:
            now = self.reading()
            if now is not None:
                others = tuple(clock for clock in read_clocks(tx).clocks if clock.boot != now.boot)
                tx.put(CLOCKS, KnownClocks(others).noted(now).to_record())
            return now

        return self._catalog.transact(body)
