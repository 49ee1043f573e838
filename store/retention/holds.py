"""Holds: records that keep a table's log or rows, for snapshots, reads and replays. Jobs and consumers hold by their
position.

A hold of a table keeps its log after `log_epoch` and its states at and above `read_epoch` until `expires_ms` (None:
for good), and the files that its holder may have planned to read. Many holds of one open store may share a lease: they
live for as long as that does, and renewing it is one write, however many they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from epochlog.store.catalog.keys import after_prefix, hold_key, lease_key, table_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.consumer_record import ConsumerRecord, all_consumers
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs

NO_PLAN = 1 << 62
"""The version of a hold whose holder reads no files now."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold of a table. `holder` is "<kind>:<name>"; epochs are None where that side is not held; times are Unix ms."""

    holder: str
    table_id: int
    log_epoch: int | None
    read_epoch: int | None
    since_ms: int
    expires_ms: int | None
    version: int = NO_PLAN  # the store's when the hold was taken: files let go of later may be among those it reads
    lease: str | None = None  # it lives on while this lease does

    def to_record(self) -> Record:
        return {name: getattr(self, name) for name in self.__slots__}


def put_holds(txn: Txn, holds: Iterable[Hold]) -> list[bytes]:
    """Write holds as of the store's present version and return their keys. Part of a transaction."""
    version, keys = Counters.read(txn).version, []
    for hold in holds:
        reading = hold.expires_ms is not None  # a lease is somebody's who reads now; a cursor plans anew at each read
        keys.append(hold_key(hold.table_id, hold.holder))
        txn.put(keys[-1], replace(hold, version=version if reading else NO_PLAN).to_record())
    return keys


def holds_of(view: View, table_id: int, now_ms: int, alive: Collection[str] = ()) -> list[Hold]:
    """List all holds of a table now, those that jobs and consumers imply among them.

    Leases that have run out are left out, but for those of `live` holders.
    """
    prefix = b"hold/%08x/" % table_id
    found = [hold for _, hold in _read(view, prefix)]
    live = [hold for hold in found if hold.expires_ms is None or hold.expires_ms > now_ms or hold.holder in alive]
    for job in all_jobs(view):
        at = held_from(job, table_id)
        if at is not None:
            version = job.planned_version if job.barrier else NO_PLAN
            live.append(Hold(job_holder(job), table_id, at, at, now_ms, None, version))
    for one in all_consumers(view):
        if table_id in one.tables and one.holds(now_ms, alive):
            states, until_ms = _state_held(view, table_id, one), one.until_ms
            live.append(Hold(f"consumer:{one.name}", table_id, one.at, states, one.last_ms, until_ms))
    return live


def _state_held(view: View, table_id: int, one: ConsumerRecord) -> int | None:
    """Return the epoch at which a consumer needs the table's rows; None if the log has all old rows that it reads."""
    epoch, record = one.state_at(table_id), view.get(table_key(table_id))
    if epoch is None or one.position is None or record is None:
        return epoch
    return None if TableDef.from_record(record).stores_images_after(epoch) else epoch


def job_holder(job: JobRecord) -> str:
    """Return the holder name of a job."""
    return f"job:{job.name}"


def held_from(job: JobRecord, table_id: int) -> int | None:
    """Return the epoch at which a job needs this table's rows and after which it needs its log; None: it needs neither.

    It goes on from its position. One that takes in the upstreams' rows, at first or once more, needs them at its
    barrier, and nothing while it has none.
    """
    reads = table_id in job.upstreams
    if job.state in ("parked", "finished") or not (reads or table_id in job.outputs):
        return None
    if job.anew and (reads or not job.position):
        return job.barrier[1] if job.barrier else None
    return job.position


def all_holds(view: View) -> Iterator[tuple[bytes, Hold]]:
    """Yield every record of a hold with its key, expired ones too, but not the holds that jobs and consumers imply."""
    return _read(view, b"hold/")


def all_leases(view: View) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of the leases that holds share, and when each ends (Unix milliseconds)."""
    for key, record in view.scan(b"lease/", after_prefix(b"lease/")):
        yield key, record["expires_ms"]


def _read(view: View, prefix: bytes) -> Iterator[tuple[bytes, Hold]]:
    """Yield holds as recorded, each extended to the end of its lease if that is later."""
    ends: dict[str, int] = {}
    for key, record in view.scan(prefix, after_prefix(prefix)):
        hold = Hold(**record)
        if hold.lease is not None and hold.expires_ms is not None:
            if hold.lease not in ends:
                ends[hold.lease] = (view.get(lease_key(hold.lease)) or {"expires_ms": 0})["expires_ms"]
            hold = replace(hold, expires_ms=max(hold.expires_ms, ends[hold.lease]))
        yield key, hold
