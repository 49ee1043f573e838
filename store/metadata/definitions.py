"""Catalog records of tables, jobs and the store, which commits are checked against.

Higher folders decide their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from epochlog.errors import UnsupportedFormat
from epochlog.store.catalog.keys import HEAD
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import Record, as_record, checked
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.types.epoch import from_unix_ms
from epochlog.store.types.key_codec import Key
from epochlog.store.types.schema import TableSchema

from .lag_bound import GLOBAL_MAX_LAG_MS, least_global_max_lag_ms
from .table_options import TableOptions

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Identity and options of a store. Only `global_max_lag_ms` can change after the creation; None is its default."""

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
        """Return the catalog's record, without options that have their default None."""
        return {name: value for name, value in as_record(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that every commit advances."""

    last_epoch: int = 0
    """Newest epoch issued or sealed, over all tables."""
    version: int = 0
    next_table: int = 1
    next_job: int = 1

    @classmethod
    def read(cls, view: ReadTxn) -> Counters:
        record = view.get(HEAD)
        return cls(**record) if record else cls()

    def to_record(self) -> Record:
        return as_record(self)


@dataclass(frozen=True, slots=True)
class TableDef:
    """Definition of a table, apart from its data."""

    id: int
    schema: TableSchema
    changelog: str
    """What new log entries store: "full", also the rows that they replace, or "upsert"."""
    options: TableOptions
    job_id: int | None = None
    """Job that writes it; None for a root table."""
    drop_unchanged: bool = True
    """True if the commits of an output leave out rows without a change."""
    full_since: int | None = None
    """Commit after which all entries also store the rows that they replace; None while new entries do not."""
    first_changelog: str = ""
    """Changelog at the creation of the table, which applies to entries of version 0.1 without their own."""
    created: int = 0
    """Epoch of the creation, which was issued for it or, in a store without epochs, read from the clock; 0: not known.
    """
    adopted: int = 0
    """First epoch as a root table, of one that was an output before. 0: it was never an output."""
    tagged: bool = False
    """True if epochs of the table were tagged, so that it may have rows below its safe epoch that a version without
    tags would release.
    """
    packed: bool = False
    """True if the log has had a pack, which a version without packs cannot read."""
    shares: bool = False
    """True if it reaches files that another table reaches, or did (see shared_files.py)."""
    checks: tuple[tuple[str, str], ...] = ()
    """Names and texts of the conditions that no row may break."""

    def __post_init__(self) -> None:
        if not self.first_changelog:  # the table is being created
            object.__setattr__(self, "first_changelog", self.changelog)
            object.__setattr__(self, "full_since", 0 if self.changelog == "full" else None)

    def stores_images_after(self, epoch: int) -> bool:
        """Return True if all changes after that epoch, also future ones, are stored with their pre-images."""
        return self.full_since is not None and self.full_since <= epoch

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def derived(self) -> bool:
        return self.job_id is not None

    @property
    def expiry(self) -> tuple[timedelta, int] | None:
        """Return the ttl of the rows and the field id of the column with their time; None: they do not expire."""
        if self.options.ttl is None:
            return None
        return self.options.ttl, self.schema.ids[self.schema.schema.get_field_index(self.options.ttl_column)]

    @property
    def format(self) -> int:
        """Return the format of the record: 1, which every version reads, unless the table uses what is newer."""
        if self.packed:
            return 4
        if any(version.evolved for version in (self.schema, *self.schema.lineage)):
            return 3
        newer = self.tagged or self.shares or self.checks or self.options.ttl is not None
        return 2 if newer or self.schema.sequence_by is not None or self.schema.version else 1

    def to_record(self) -> Record:
        """Return the catalog's record; only a table that uses them has the fields of format 2."""
        newer = {name: True for name in ("tagged", "packed", "shares") if getattr(self, name)}
        return {
            "id": self.id,
            "schema": self.schema.to_bytes(self.format),
            "changelog": self.changelog,
            "options": self.options.to_record(),
            "job_id": self.job_id,
            "drop_unchanged": self.drop_unchanged,
            "full_since": self.full_since,
            "first_changelog": self.first_changelog,
            "created": self.created,
            "adopted": self.adopted,
            **newer,
            **({"checks": dict(self.checks)} if self.checks else {}),
        }

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableDef:
        return cls(
            id=record["id"],
            schema=decoded_schema(record["schema"]),
            changelog=record["changelog"],
            options=TableOptions.from_record(record["options"]),
            job_id=record["job_id"],
            drop_unchanged=record.get("drop_unchanged", True),
            full_since=record.get("full_since"),
            first_changelog=record.get("first_changelog", ""),
            created=record.get("created", 0),
            adopted=record.get("adopted", 0),
            tagged=record.get("tagged", False),
            packed=record.get("packed", False),
            shares=record.get("shares", False),
            checks=tuple((str(name), str(text)) for name, text in record.get("checks", {}).items()),
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Progress of a backfill in chunks: the number of chunks (`pieces`) and `rows` so far."""

    pieces: int = 0
    place: int = 0
    """Index of the upstream of the next chunk; after the last upstream the backfill is complete."""
    low: Key | None = None
    """First key of the next chunk; None: from the first row."""
    rows: int = 0
    of_view: bool = False
    """True if the staged segments have the view's rows over these chunks alone (format 2). An earlier release computes
    the whole view in each chunk, and so cannot continue.
    """

    def to_record(self) -> Record:
        """Return the catalog's record, without fields of later releases that are empty."""
        record = as_record(self)
        if not self.of_view:
            del record["of_view"]
        return record


@dataclass(frozen=True, slots=True)
class Runner:
    """Runner of a job: one step of a handle, or a query, pipeline or coordinator while it runs."""

    holder: str
    """Unique name of the runner."""
    lease: str
    """Runner lease of its open store, under `lease/`."""
    process: str
    """Result of `process_id.identity`."""
    host: str
    pid: int
    since_ms: int
    kind: str
    """step | query | pipeline | coordinator."""

    @classmethod
    @checked
    def from_record(cls, record: Record) -> Runner:
        return cls(**record)


DERIVATION = 2
"""Version of the rules that read the text of a view and derive its refresh. The next runner of a view of a lower one
rebuilds it. It rises when a text is read otherwise than before.
"""
JOB_FORMAT = 2
"""Newest format of job records. A release that adds to them what an earlier one must not overlook gives the records
that have it the next format; what an earlier one may overlook lies in a record of its own.
"""


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """Definition of a view, from which each runner derives the same refresh."""

    sql: str
    """Query as it was given, in Spark's dialect."""
    refresh: str
    """auto | incremental | full."""
    derivation: int
    """DERIVATION by which its rows are computed."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of a job: lineage, position, recorded barrier and runner. Times are Unix ms; 0: not known."""

    id: int
    name: str
    upstreams: tuple[int, ...]
    """Ids of the tables that the job reads."""
    outputs: tuple[int, ...]
    """Ids of the tables that it writes."""
    backfill: str
    """snapshot (the first commit takes in the rows of the upstreams) | log (it begins with the first entries of their
    logs).
    """
    interval: int
    """Distance of two commits, as a number of boundaries of the store."""
    max_lag: int
    """Number of the job's own boundaries by which it may lag before it merges several into one commit."""
    state: str = "creating"
    """creating | running | parked | finished."""
    position: int = 0
    """Epoch of the newest commit: the outputs are the query over the upstreams at it. 0 before the first."""
    incarnation: int = 0
    """Number of the runner that may commit; a commit of an earlier one is refused (Fenced)."""
    barrier: tuple[int, int, str] | None = None
    """Recorded barrier, which the job has to commit next: (prev, curr, kind) with prev == position. None: it chooses
    one.
    """
    planned_version: int = 0
    """Store's version when the barrier was recorded; the job reads that version or a later one."""
    last_error: str | None = field(default=None)
    """Error of the newest attempt since the last commit."""
    drain: int | None = None
    """Epoch through which the job takes in its inputs; its first commit at or after it is its last. None: no end."""
    failed_ms: int | None = None
    """Time of the first failed attempt since the last commit."""
    snapshot_rows: int | None = None
    """Most rows of one backfill chunk; None: no chunks."""
    cursor: Cursor | None = None
    """Progress of the chunks of the recorded barrier."""
    rebuild: int | None = None
    """Epoch of a requested rebuild: the next commit, at or after it, computes all rows of the outputs again. None: the
    next commit takes in changes since `position`.
    """
    progress_ms: int = 0
    """Time of the last commit or recorded chunk."""
    lost: str | None = None
    """Reason why the job is parked, in words."""
    unread: int | None = None
    """First change of the upstreams that the job had not taken in when it was parked; until its next commit its tables
    are not valid from that epoch on.
    """
    max_lag_ms: int | None = None
    """max_lag if it was given as a time; None if it was given in boundaries."""
    outside_ms: int | None = None
    """Since when `global` leaves the outputs out because the job lags. None: not because of its lag."""
    created_ms: int = 0
    """Time of the creation."""
    runner: Runner | None = None
    """Runner that has claimed the job and not left; `job_runners.live_runner` checks that it is alive."""
    view: ViewDefinition | None = None
    """Definition of the view; None for a job with a refresh in Python."""
    superseded: tuple[int, ...] = ()
    """Epochs of requests (replacement, rebuild) that something overtook before the view had committed them: another
    request, parking, or a boundary. Between such an epoch and the view's next commit, the view has no valid epoch.
    Example: replaced at 10 and at 20, committed at 30: (10,), and 10 to 29 are not valid.
    """
    former: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Tables that earlier queries of the view read, as (until, tables), ascending: the commits below `until` were
    computed from these tables, the later ones from `upstreams`.
    """
    traced_from: int = 0
    """Epoch below which commits were computed from tables that have been dropped since; nobody can say at which epochs
    they are valid.
    """
    bound: tuple[tuple[int, int], ...] = ()
    """Version of each upstream's columns that the query reads, as (table id, version). A table without an entry is read
    in its first version.
    """
    columns: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """Columns that the job declared to read beside the key, as (table id, names). A table without an entry is read with
    all columns of its bound version.
    """

    @property
    def rebuilding(self) -> bool:
        return self.rebuild is not None

    @property
    def is_outdated(self) -> bool:
        """Return True for a view of an earlier DERIVATION, which its next runner rebuilds."""
        ended = self.state in ("finished", "parked")
        return self.view is not None and self.view.derivation < DERIVATION and not ended

    @property
    def reads_all_rows(self) -> bool:
        """Return True if the next barrier takes in all rows of the upstreams, not only their changes."""
        return self.rebuilding or (not self.position and self.backfill == "snapshot")

    @property
    def replacing(self) -> bool:
        """Return True if the next commit replaces the outputs' rows, because it is the commit of a rebuild."""
        return self.rebuilding and self.position > 0

    @property
    def due(self) -> int | None:
        """Return the epoch from which on the job may commit without a change of its upstreams, or lacks changes that it
        never takes in; None: only changes of the upstreams count.

        A snapshot may have read the outputs as complete below this epoch. For a job without a commit it is the epoch of
        its creation.
        """
        end = None if self.state == "finished" else self.drain
        created_epoch = from_unix_ms(self.created_ms) if self.created_ms and not self.position else None
        superseded = next((epoch for epoch in self.superseded if epoch > self.position), None)
        candidates = (self.unread, superseded, self.rebuild, end, created_epoch)
        return min((epoch for epoch in candidates if epoch is not None), default=None)

    @property
    def read_before(self) -> frozenset[int]:
        """Return the tables that earlier queries of the view read and whose epochs decide the validity of its rows."""
        return frozenset(table for _, tables in self.former for table in tables)

    @property
    def rows_from(self) -> tuple[int, ...]:
        """Return the tables that the newest commit was computed of: of a view that was replaced and has not committed
        since, those of the query before; else the upstreams.
        """
        return next((tables for until, tables in self.former if until > self.position), self.upstreams)

    @property
    def runner_after_step(self) -> Runner | None:
        """Return the job's runner after the current step; None if the runner is only this step."""
        return None if self.runner is None or self.runner.kind == "step" else self.runner

    def ends_at(self, epoch: int) -> bool:
        """Return True if a commit at `epoch` is the job's last, because `drain` is at or below it."""
        return self.drain is not None and epoch >= self.drain

    def without_rebuild(self) -> JobRecord:
        """Return the record without its requested rebuild, which a view remembers in `superseded`.

        Another view of the same replacement may have committed it. This one has the query before it until its next
        commit, so its epochs from the request on are not valid.
        """
        remembered = any(epoch > self.position for epoch in self.superseded)  # the older request is the bound
        if self.view is None or self.rebuild is None or not self.position or remembered:
            return replace(self, rebuild=None)
        return replace(self, rebuild=None, superseded=(*self.superseded, self.rebuild))

    def to_record(self) -> Record:
        """Return the catalog's record, without fields of later releases that are empty."""
        record = as_record(self)
        if self.view is None:
            del record["view"]
        if self.cursor is not None:
            record["cursor"] = self.cursor.to_record()
            if self.cursor.of_view:
                record["format"] = 2
        for name in ("superseded", "former", "traced_from", "bound", "columns"):
            if not record[name]:
                del record[name]
        return record

    @classmethod
    @checked
    def from_record(cls, record: Record) -> JobRecord:
        if record.get("format", 1) > JOB_FORMAT:
            raise UnsupportedFormat(
                f"job {record['name']!r} has format {record['format']}, newer than {JOB_FORMAT}: upgrade epochlog"
            )
        fixed = {"upstreams": tuple(record["upstreams"]), "outputs": tuple(record["outputs"])}
        barrier = tuple(record["barrier"]) if record["barrier"] else None
        record = {name: value for name, value in record.items() if name != "format"}
        cursor = Cursor(**record["cursor"]) if record.get("cursor") else None
        runner = Runner.from_record(record["runner"]) if record.get("runner") else None
        view = ViewDefinition(**record["view"]) if record.get("view") else None
        fixed["superseded"] = tuple(record.get("superseded", ()))
        fixed["former"] = tuple((until, tuple(tables)) for until, tables in record.get("former", ()))
        fixed["bound"] = tuple((table, version) for table, version in record.get("bound", ()))
        fixed["columns"] = tuple((table, tuple(names)) for table, names in record.get("columns", ()))
        return cls(**{**record, **fixed, "barrier": barrier, "cursor": cursor, "runner": runner, "view": view})


def decoded_schema(data: bytes) -> TableSchema:
    """Decode a schema, with a cache: views over many tables are read often."""
    entry = SCHEMAS.get((data,))
    if entry is None:
        entry = TableSchema.from_bytes(data), len(data)
        SCHEMAS.put((data,), entry)
    return entry[0]


SCHEMAS: LRUCache[tuple[TableSchema, int]] = LRUCache(128 << 20, lambda entry: 2048 + 8 * entry[1], name="schemas")
"""Decoded schemas with the length of their records; the sizes are estimates. It holds those of 20,000 small tables: one
that holds fewer than a store has is of no use to a caller that goes through all.
"""
