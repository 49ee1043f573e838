"""The catalog's plain records of tables, jobs and the store: what commits are checked against.

What they mean is decided above.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import lru_cache

from epochlog.errors import InvalidInput
from epochlog.store.catalog.keys import HEAD
from epochlog.store.catalog.protocol import View
from epochlog.store.catalog.records import Record, checked
from epochlog.store.env.clock import FOR_EVER
from epochlog.store.types.epoch import from_unix_ms
from epochlog.store.types.key_codec import Key
from epochlog.store.types.schema import TableSchema

from .lag_bound import GLOBAL_MAX_LAG_MS, least_global_max_lag_ms

FORMAT_VERSION = 1
MOST_SEGMENTS = 1_000_000


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
        """Return the lag in milliseconds above which `global` leaves a job's tables out."""
        if self.global_max_lag_ms is not None:
            return self.global_max_lag_ms
        return max(GLOBAL_MAX_LAG_MS, least_global_max_lag_ms(self.interval_ms))

    def to_record(self) -> Record:
        """Return the record as the catalog keeps it; without the bound where it is the default."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that every commit advances. `last_epoch`: the newest epoch issued or sealed, over all tables."""

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


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a table for its retention and its compaction.

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
    """Definition of a table, apart from its data. `job_id` is the one job that writes it, None for a root table.

    changelog: whether new log entries store the rows that they replace ("full") or not ("upsert"). full_since: the
    commit after which all entries store them; None while new ones do not. first_changelog: what it was when the table
    was made, which tells of the entries that do not record it (version 0.1). drop_unchanged: of an output, whether
    commits leave out what changes nothing.
    created: the epoch at which it was made, issued for it or, in a store that
    has none yet, of the clock; 0: not known. adopted: of a root table
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
        """Return True if all changes past that epoch, future ones too, are stored with their pre-images."""
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
    """Progress of a backfill in chunks: the `pieces` and `rows` taken in so far. The next chunk is of the upstream at
    index `place` (past the last one: all is taken in), from the key `low` on (None: from its first row).
    """

    pieces: int = 0
    place: int = 0
    low: Key | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Runner:
    """Runner of a job: one step of a handle, or a query, pipeline or coordinator for as long as it runs.

    holder: its name, used once; lease: of the open store it runs in, under `lease/`; process: as `process_id.identity`
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
        """Return True if the next barrier takes in all rows of the upstreams, not just their changes."""
        return self.rebuilding or (not self.position and self.backfill == "snapshot")

    @property
    def replacing(self) -> bool:
        """Return True if the next commit replaces the outputs' rows, as that of a rebuild does."""
        return self.rebuilding and self.position > 0

    @property
    def due(self) -> int | None:
        """Return the epoch from which on the job may commit without a change of its upstreams, or lacks changes that it
        never takes in; None: only their changes count. A snapshot may have read it as complete below. For a job without
        a commit it is the epoch when it was made.
        """
        ends = None if self.state == "finished" else self.drain
        made = from_unix_ms(self.created_ms) if self.created_ms and not self.position else None
        return min((epoch for epoch in (self.unread, self.rebuild, ends, made) if epoch is not None), default=None)

    @property
    def runner_after_step(self) -> Runner | None:
        """Return the job's runner after the present step: None if the runner is that one step."""
        return None if self.runner is None or self.runner.kind == "step" else self.runner

    def ends_at(self, epoch: int) -> bool:
        """Return True if a commit at `epoch` is the job's last, because `drain` is at or below it."""
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
    """Decode a schema, once for each distinct encoding: views over many tables are read all the time."""
    return TableSchema.from_bytes(data)
