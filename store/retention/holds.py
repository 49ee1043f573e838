"""Holds: records that keep a table's log or rows, for snapshots, reads and replays. Jobs and consumers hold by their
position.

A hold keeps a table's log after `log_epoch`, its rows at and above `read_epoch`, and the files that its holder may have
planned to read, until `expires_ms` (None: until it is deleted). Holds of one open store can share a lease and live as
long as the lease: renewing all of them is one write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from epochlog.store.catalog.keys import (
    HOLD_PREFIX,
    LEASE_PREFIX,
    hold_key,
    lease_key,
    table_key,
    table_prefix,
)
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.consumer_record import ConsumerRecord, all_consumers
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import jobs_of

TAG = "tag:"
"""Kind of the holder of a tag (batch/tags.py)."""
_MOVING = ("job:", "consumer:")
"""Kinds of holders whose epoch moves on: they need the rows of all epochs from it on."""
NO_PLAN = 1 << 62
"""Version of a hold whose holder has no open read plan: the hold pins no files."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold of a table. `holder` is "<kind>:<name>"; `log_epoch` or `read_epoch` is None where it keeps no log or no
    rows; times are Unix ms.
    """

    holder: str
    table_id: int
    log_epoch: int | None
    read_epoch: int | None
    since_ms: int
    expires_ms: int | None
    version: int = NO_PLAN  # the store's version when the hold was taken; it pins files that became unreachable later
    lease: str | None = None  # the hold lives at least as long as this lease

    @property
    def is_tag(self) -> bool:
        return self.holder.startswith(TAG)

    def to_record(self) -> Record:
        return {name: getattr(self, name) for name in self.__slots__}

    def single_epoch(self, safe_epoch: int) -> int | None:
        """Return the epoch if the hold keeps the rows of one epoch, not of all epochs from it on; else None.

        A tag does, and so does the lease of a reader of an epoch below the safe epoch, which a tag kept when the reader
        began. Every other hold keeps the safe epoch from passing its epoch.
        """
        if self.is_tag or self.read_epoch is None:
            return self.read_epoch
        return self.read_epoch if self.read_epoch < safe_epoch and not self.holder.startswith(_MOVING) else None


def put_holds(txn: Txn, holds: Iterable[Hold]) -> list[bytes]:
    """Write holds as of the store's current version and return their keys. Call inside a transaction."""
    version, keys = Counters.read(txn).version, []
    for hold in holds:
        reading = hold.expires_ms is not None  # a hold without an end belongs to a cursor, which plans each read anew
        keys.append(hold_key(hold.table_id, hold.holder))
        txn.put(keys[-1], replace(hold, version=version if reading else NO_PLAN).to_record())
    return keys


def holds_of(
    view: ReadTxn,
    table_id: int,
    now_ms: int,
    alive: Collection[str] = (),
    *,
    jobs: Iterable[JobRecord] | None = None,
) -> list[Hold]:
    """List all holds of a table now, with the implied holds of jobs and consumers.

    Expired holds are left out, but for those of holders in `alive`. jobs: the table's jobs, if they were read already.
    """
    prefix = table_prefix(HOLD_PREFIX, table_id)
    holds = [hold for _, hold in _read_holds(view, prefix)]
    live = [hold for hold in holds if hold.expires_ms is None or hold.expires_ms > now_ms or hold.holder in alive]
    for job in jobs_of(view, table_id) if jobs is None else jobs:
        epoch = held_from(job, table_id)
        if epoch is not None:
            version = job.planned_version if job.barrier else NO_PLAN
            live.append(Hold(job_holder(job), table_id, epoch, epoch, now_ms, None, version))
    for consumer in all_consumers(view):
        if table_id in consumer.tables and consumer.holds(now_ms, alive):
            states, until_ms = _state_held(view, table_id, consumer), consumer.until_ms
            live.append(Hold(f"consumer:{consumer.name}", table_id, consumer.at, states, consumer.last_ms, until_ms))
    return live


def _state_held(view: ReadTxn, table_id: int, consumer: ConsumerRecord) -> int | None:
    """Return the epoch at which a consumer needs the table's rows; None if the log has all pre-images that it reads."""
    epoch, record = consumer.state_at(table_id), view.get(table_key(table_id))
    if epoch is None or consumer.position is None or record is None:
        return epoch
    return None if TableDef.from_record(record).stores_images_after(epoch) else epoch


def job_holder(job: JobRecord) -> str:
    """Return the holder name of a job."""
    return f"job:{job.name}"


def held_from(job: JobRecord, table_id: int) -> int | None:
    """Return the epoch at which a job needs this table's rows and after which it needs its log; None if it needs
    neither.

    A job continues from its position. A first backfill or a rebuild needs the upstreams' rows at its barrier, and
    nothing before a barrier is recorded.
    """
    reads = table_id in job.upstreams
    if job.state in ("parked", "finished") or not (reads or table_id in job.outputs):
        return None
    if job.reads_all_rows and (reads or not job.position):
        return job.barrier[1] if job.barrier else None
    return job.position


def all_holds(view: ReadTxn) -> Iterator[tuple[bytes, Hold]]:
    """Yield every recorded hold with its key, expired ones too. The implied holds of jobs and consumers are not
    records.
    """
    return _read_holds(view, HOLD_PREFIX)


def all_leases(view: ReadTxn) -> Iterator[tuple[bytes, int]]:
    """Yield the key and the end (Unix milliseconds) of each lease that holds share."""
    for key, record in scan_prefix(view, LEASE_PREFIX):
        yield key, record["expires_ms"]


def _read_holds(view: ReadTxn, prefix: bytes) -> Iterator[tuple[bytes, Hold]]:
    """Yield recorded holds, each extended to the end of its lease if that is later."""
    ends: dict[str, int] = {}
    for key, record in scan_prefix(view, prefix):
        hold = Hold(**record)
        if hold.lease is not None and hold.expires_ms is not None:
            if hold.lease not in ends:
                ends[hold.lease] = (view.get(lease_key(hold.lease)) or {"expires_ms": 0})["expires_ms"]
            hold = replace(hold, expires_ms=max(hold.expires_ms, ends[hold.lease]))
        yield key, hold
