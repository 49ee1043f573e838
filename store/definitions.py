"""The catalog's plain records of tables, jobs and the store: what commits are checked against.

What they mean is decided above.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import lru_cache

from ..errors import Corrupt, EpochlogError, InvalidInput, JobNotFound, TableDropped, TableNotFound
from .catalog import Txn, View
from .keys import Key
from .records import (
    HEAD,
    Record,
    after_prefix,
    checked,
    head_key,
    job_key,
    job_name_key,
    log_key,
    name_key,
    runs_key,
    table_key,
)
from .schema import TableSchema, is_name
from .version import LogEntry, Runs, TableVersion, runs_from_record

FORMAT_VERSION = 1
MOST_SEGMENTS = 1_000_000
FOR_EVER = timedelta(days=365_000)
"""The longest retention that is told from others: a thousand years."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Fixed when the store is made."""

    id: str
    interval_ms: int
    created_ms: int
    format: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Counters:
    """What every commit moves. `last_epoch`: the newest epoch issued or sealed, over all tables."""

    last_epoch: int = 0
    version: int = 0
    next_table: int = 1
    next_job: int = 1

    @classmethod
    def read(cls, view: View) -> Counters:
        record = view.get(HEAD)
        return cls(**record) if record else cls()

    def to_record(self) -> Record:
        return asdict(self)


def move_counters(txn: Txn, counters: Counters, last_epoch: int | None = None) -> int:
    """Part of every transaction that changes what readers may reach; returns the store's new version."""
    at = counters.last_epoch if last_epoch is None else max(counters.last_epoch, last_epoch)
    moved = replace(counters, last_epoch=at, version=counters.version + 1)
    txn.put(HEAD, moved.to_record())
    return moved.version


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How long a table keeps its past, and when it is compacted.

    history_retention: how far back reads at an epoch reach; log_retention: how far back `changes` reaches;
    compact_segments: L0 segments at which `compact()` without `full`, and maintenance, fold them into a run;
    max_segments: L0 segments at which a commit folds them itself before it returns.
    """

    history_retention: timedelta = timedelta(hours=1)
    log_retention: timedelta = timedelta(days=1)
    compact_segments: int = 8
    max_segments: int = 64

    def __post_init__(self) -> None:
        for name in ("history_retention", "log_retention"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise InvalidInput(f"{name} must be a timedelta of 0 or more, not {value!r}")
        for name in ("compact_segments", "max_segments"):
            segments = getattr(self, name)
            if not isinstance(segments, int) or isinstance(segments, bool) or not 1 <= segments <= MOST_SEGMENTS:
                raise InvalidInput(f"{name} must be an int from 1 to {MOST_SEGMENTS:,}, not {segments!r}")
        if self.max_segments < self.compact_segments:
            raise InvalidInput(
                f"max_segments ({self.max_segments}) must not lie below compact_segments ({self.compact_segments})"
            )

    def to_record(self) -> Record:
        return {
            "history_ms": _whole_ms(self.history_retention),
            "log_ms": _whole_ms(self.log_retention),
            "compact_segments": self.compact_segments,
            "max_segments": self.max_segments,
        }

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableOptions:
        return cls(
            timedelta(milliseconds=record["history_ms"]),
            timedelta(milliseconds=record["log_ms"]),
            record["compact_segments"],
            record["max_segments"],
        )


def _whole_ms(retention: timedelta) -> int:
    return min(retention, FOR_EVER) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class TableDef:
    """A table's fixed part. `job_id` is the one job that writes it, None for a root table."""

    id: int
    schema: TableSchema
    changelog: str
    options: TableOptions
    job_id: int | None = None

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def derived(self) -> bool:
        return self.job_id is not None

    def to_record(self) -> Record:
        return {
            "id": self.id,
            "schema": self.schema.to_bytes(),
            "changelog": self.changelog,
            "options": self.options.to_record(),
            "job_id": self.job_id,
        }

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableDef:
        schema, options = _schema(record["schema"]), TableOptions.from_record(record["options"])
        return cls(record["id"], schema, record["changelog"], options, record["job_id"])


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a snapshot that is taken in pieces has come: so many pieces and rows; the next piece is of the upstream
    at that place (past the last one: all is taken in), from the key `low` on (None: from its first row).
    """

    pieces: int = 0
    place: int = 0
    low: Key | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job: its lineage, how far it has committed (`position`), who runs it, and the barrier decided for it.

    state: creating | running | parked | finished. `barrier` is [prev, curr, kind] for prev == position, or None;
    `planned_version` is the store's version when it was recorded: what the job reads for it was there then or later.
    `drain`: the epoch through which the job takes its inputs in; its commit there or past it is its last. None: no end.
    `last_error` is of the newest attempt since the last commit, `failed_ms` (Unix) of the first that failed since then.
    snapshot_rows: the rows of one piece of a snapshot, None to take it whole; `cursor` is where the pieces of the
    recorded barrier stand. rebuild: its next commit, there or past it, makes the outputs anew from the upstreams' rows;
    None: it goes on from its position. progress_ms: when it committed or recorded a piece last (Unix ms; 0: not known).
    lost: why it is parked; `unread`: the first change of its upstreams that it lacked then, until it commits again.
    """

    id: int
    name: str
    upstreams: tuple[int, ...]
    outputs: tuple[int, ...]
    backfill: str
    interval: int
    max_lag: int
    state: str = "creating"
    position: int = 0
    incarnation: int = 0
    barrier: tuple[int, int, str] | None = None
    planned_version: int = 0
    last_error: str | None = field(default=None)
    drain: int | None = None
    failed_ms: int | None = None
    snapshot_rows: int | None = None
    cursor: Cursor | None = None
    rebuild: int | None = None
    progress_ms: int = 0
    lost: str | None = None
    unread: int | None = None

    @property
    def rebuilding(self) -> bool:
        return self.rebuild is not None

    @property
    def anew(self) -> bool:
        """Whether its next barrier takes in the upstreams' rows, not what changed since its last one."""
        return self.rebuilding or (not self.position and self.backfill == "snapshot")

    @property
    def replacing(self) -> bool:
        """Whether its next commit puts new rows in the place of old ones."""
        return self.rebuilding and self.position > 0

    @property
    def due(self) -> int | None:
        """The epoch from which on it may commit, whether its upstreams change or not, or lacks what it never takes in;
        None: their changes alone tell. A snapshot may have read it as complete below.
        """
        ends = None if self.state == "finished" else self.drain
        return min((epoch for epoch in (self.unread, self.rebuild, ends) if epoch is not None), default=None)

    def ends_at(self, epoch: int) -> bool:
        """Whether the job was told to end with a commit there."""
        return self.drain is not None and epoch >= self.drain

    def to_record(self) -> Record:
        return asdict(self)

    @classmethod
    @checked
    def from_record(cls, record: Record) -> JobRecord:
        fixed = {"upstreams": tuple(record["upstreams"]), "outputs": tuple(record["outputs"])}
        barrier = tuple(record["barrier"]) if record["barrier"] else None
        cursor = Cursor(**record["cursor"]) if record.get("cursor") else None
        return cls(**{**record, **fixed, "barrier": barrier, "cursor": cursor})


@lru_cache(maxsize=4096)
def _schema(data: bytes) -> TableSchema:
    """Decoded once for each different schema: views over many tables are read all the time."""
    return TableSchema.from_bytes(data)


def find_table(view: View, name: str) -> TableDef:
    """The table of that name, or TableNotFound."""
    entry = view.get(name_key(name)) if is_name(name) else None
    record = view.get(table_key(entry["id"])) if entry else None
    if record is not None:
        return TableDef.from_record(record)
    known = sorted(table.name for table in all_tables(view))
    if entry is not None or name in known:  # one of the two records without the other: its key was damaged
        raise Corrupt(f"catalog record of table {name!r}", "it is missing")
    raise TableNotFound(f"there is no table {name!r}; the store's tables: {', '.join(known) or 'none'}")


def get_table(view: View, table_id: int, name: str) -> TableDef:
    """The table of that id; TableDropped if it has gone, even when a new one took its name."""
    record = view.get(table_key(table_id))
    if record is None:
        raise _gone(view, table_id, name)
    return TableDef.from_record(record)


def get_version(view: View, table_id: int, name: str) -> TableVersion:
    record = view.get(head_key(table_id))
    if record is None:
        raise _gone(view, table_id, name)
    return TableVersion.from_record(record)


def get_runs(view: View, table_id: int) -> Runs:
    """The table's sorted runs, oldest first."""
    return runs_from_record(view.get(runs_key(table_id)))


def get_entries(view: View, table_id: int, after: int, until: int) -> list[LogEntry]:
    """The log entries with epochs in (after, until], oldest first."""
    found = view.scan(log_key(table_id, after + 1), log_key(table_id, until + 1))
    return [LogEntry.from_record(record) for _, record in found]


def _gone(view: View, table_id: int, name: str) -> EpochlogError:
    """Dropped, if nothing of the table is left; else a key was damaged."""
    entry = view.get(name_key(name)) if is_name(name) else None
    if (entry is not None and entry["id"] == table_id) or view.get(table_key(table_id)) is not None:
        return Corrupt(f"catalog record of table {name!r}", "it is missing")
    return TableDropped(
        f"table {name!r} was dropped; get the one that may now bear the name with store.table({name!r})"
    )


def all_tables(view: View) -> Iterator[TableDef]:
    for _, record in view.scan(b"table/", after_prefix(b"table/")):
        yield TableDef.from_record(record)


def find_job(view: View, name: str) -> JobRecord:
    """The job of that name, or JobNotFound."""
    entry = view.get(job_name_key(name)) if is_name(name) else None
    record = view.get(job_key(entry["id"])) if entry else None
    if record is None:
        known = ", ".join(sorted(job.name for job in all_jobs(view))) or "none"
        raise JobNotFound(f"there is no job {name!r}; the store's jobs: {known}")
    return JobRecord.from_record(record)


def get_job(view: View, job_id: int, name: str) -> JobRecord:
    record = view.get(job_key(job_id))
    if record is None:
        raise JobNotFound(f"job {name!r} was dropped or cancelled, and its tables with it")
    return JobRecord.from_record(record)


def all_jobs(view: View) -> Iterator[JobRecord]:
    for _, record in view.scan(b"job/", after_prefix(b"job/")):
        yield JobRecord.from_record(record)
