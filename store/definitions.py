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
from .epoch import from_unix_ms
from .keys import Key
from .membership import GLOBAL_MAX_LAG_MS, least_global_max_lag_ms
from .records import (
    HEAD,
    STORE,
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
    """A store's identity and options: all but `global_max_lag_ms` are fixed when it is made.

    global_max_lag_ms: None: the default.
    """

    id: str
    interval_ms: int
    created_ms: int
    format: int = FORMAT_VERSION
    global_max_lag_ms: int | None = None

    @property
    def max_lag_ms(self) -> int:
        """How far a job may lag before `global` leaves its tables out, in milliseconds."""
        if self.global_max_lag_ms is not None:
            return self.global_max_lag_ms
        return max(GLOBAL_MAX_LAG_MS, least_global_max_lag_ms(self.interval_ms))

    def to_record(self) -> Record:
        """Return the record as the catalog keeps it; without the bound where it is the default."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def get_store(view: View) -> StoreRecord:
    """Return the store's record as of this state of the catalog."""
    record = view.get(STORE)
    if record is None:
        raise Corrupt("catalog record of the store", "it is missing")
    return StoreRecord(**record)


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
    """What a table is, apart from its data. `job_id` is the one job that writes it, None for a root table.

    changelog: whether new log entries store the rows that they replace ("full") or not ("upsert"). full_since: the
    commit after which all entries store them; None while new ones do not. first_changelog: what it was when the table
    was made, which tells of the entries that do not record it (version 0.1). drop_unchanged: of an output, whether
    commits leave out what changes nothing.
    created: the epoch at which it was made; 0: not known, or before all epochs of the store. adopted: of a root table
    that was an output once, the epoch from which on it is one; 0: it always was.
    """

    id: int
    schema: TableSchema
    changelog: str
    options: TableOptions
    job_id: int | None = None
    drop_unchanged: bool = True
    full_since: int | None = None
    first_changelog: str = ""
    created: int = 0
    adopted: int = 0

    def __post_init__(self) -> None:
        if not self.first_changelog:  # it is made now
            object.__setattr__(self, "first_changelog", self.changelog)
            object.__setattr__(self, "full_since", 0 if self.changelog == "full" else None)

    def stores_images_after(self, epoch: int) -> bool:
        """Whether all changes past that epoch, those to come too, are stored with the rows that they replace."""
        return self.full_since is not None and self.full_since <= epoch

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
            "drop_unchanged": self.drop_unchanged,
            "full_since": self.full_since,
            "first_changelog": self.first_changelog,
            "created": self.created,
            "adopted": self.adopted,
        }

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableDef:
        return cls(
            id=record["id"],
            schema=_schema(record["schema"]),
            changelog=record["changelog"],
            options=TableOptions.from_record(record["options"]),
            job_id=record["job_id"],
            drop_unchanged=record.get("drop_unchanged", True),
            full_since=record.get("full_since"),
            first_changelog=record.get("first_changelog", ""),
            created=record.get("created", 0),
            adopted=record.get("adopted", 0),
        )


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
class Runner:
    """Who runs a job: one step of a handle, or a query, pipeline or coordinator for as long as it goes on.

    holder: its name, used once; lease: of the open store it runs in, under `lease/`; process: as `process.identity`
    tells it. kind: step | query | pipeline | coordinator.
    """

    holder: str
    lease: str
    process: str
    host: str
    pid: int
    since_ms: int
    kind: str

    @classmethod
    @checked
    def from_record(cls, record: Record) -> Runner:
        return cls(**record)


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
    max_lag_ms: the time that max_lag was given as, None when it was given in boundaries.
    lost: why it is parked; `unread`: the first change of its upstreams that it lacked then, until it commits again.
    outside_ms: since when `global` leaves its tables out because it lags too much (Unix ms), until it has caught up;
    None: it does not. created_ms: when it was made (Unix ms; 0: not known).
    runner: who has claimed it and not left since; whether that one is alive, `runners.live_runner` tells.
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
    max_lag_ms: int | None = None
    outside_ms: int | None = None
    created_ms: int = 0
    runner: Runner | None = None

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
        None: their changes alone tell. A snapshot may have read it as complete below. Of a job without a commit: when
        it was made.
        """
        ends = None if self.state == "finished" else self.drain
        made = from_unix_ms(self.created_ms) if self.created_ms and not self.position else None
        return min((epoch for epoch in (self.unread, self.rebuild, ends, made) if epoch is not None), default=None)

    @property
    def runner_after_step(self) -> Runner | None:
        """Who runs it once the step at hand is over: nobody, if there was no more than that step."""
        return None if self.runner is None or self.runner.kind == "step" else self.runner

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
        runner = Runner.from_record(record["runner"]) if record.get("runner") else None
        return cls(**{**record, **fixed, "barrier": barrier, "cursor": cursor, "runner": runner})


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
        raise JobNotFound(
            f"job {name!r} was dropped or cancelled, or its tables were adopted; store.jobs() has those that are left"
        )
    return JobRecord.from_record(record)


def all_jobs(view: View) -> Iterator[JobRecord]:
    for _, record in view.scan(b"job/", after_prefix(b"job/")):
        yield JobRecord.from_record(record)
