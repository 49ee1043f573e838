"""Holds: who keeps what. One kind of record for snapshots, consumers, reads and replays; jobs hold by their position.

A hold of a table keeps its log after `log_epoch` and its states at and above `read_epoch` until `expires_ms` (None:
for good).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .catalog import Txn, View
from .definitions import all_jobs
from .records import Record, after_prefix, hold_key


@dataclass(frozen=True, slots=True)
class Hold:
    """`holder` is "<kind>:<name>"; epochs are None where that side is not held; times are Unix milliseconds."""

    holder: str
    table_id: int
    log_epoch: int | None
    read_epoch: int | None
    since_ms: int
    expires_ms: int | None

    def to_record(self) -> Record:
        return {name: getattr(self, name) for name in self.__slots__}


def put_holds(txn: Txn, holds: Iterable[Hold]) -> None:
    for hold in holds:
        txn.put(hold_key(hold.table_id, hold.holder), hold.to_record())


def release_holds(txn: Txn, holder: str, table_ids: Iterable[int]) -> None:
    for table_id in table_ids:
        txn.delete(hold_key(table_id, holder))


def holds_of(view: View, table_id: int, now_ms: int, alive: Collection[str] = ()) -> list[Hold]:
    """All that holds a table back now, the holds that jobs imply among them.

    Leases that have run out are left out, but for those of `live` holders.
    """
    prefix = b"hold/%08x/" % table_id
    found = [Hold(**record) for _, record in view.scan(prefix, after_prefix(prefix))]
    live = [hold for hold in found if hold.expires_ms is None or hold.expires_ms > now_ms or hold.holder in alive]
    for job in all_jobs(view):
        if job.state in ("parked", "finished"):
            continue
        if table_id in job.outputs or table_id in job.upstreams:
            at = job.position if job.position or job.backfill == "log" else job.barrier[1] if job.barrier else None
            if at is not None:
                live.append(Hold(f"job:{job.name}", table_id, at, at, now_ms, None))
    return live
