"""Spark batch source: a table at one epoch, or a range of its changes, both fixed at `load()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from epochlog.batch.policy import AsOf, Exact, Global, Policy, choose_epochs
from epochlog.batch.policy_registry import resolve_policy
from epochlog.batch.predicate import parse_predicate
from epochlog.batch.waiting import until_chosen
from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.catalog.keys import hold_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.changelog.log_plan import LogPlan, plan_changes
from epochlog.store.commit.lag_marks import mark_late
from epochlog.store.epochs.readable import require_begun
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan, require_complete
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .options import (
    FEED,
    NO_CATALOG,
    STREAM,
    WRITE,
    Options,
    StoreLocation,
    Tasks,
    given,
    names,
    place_of,
    text,
    truth,
    whole,
)
from .partitions import ReadPartition, cut
from .stream_offsets import parse_start
from .stream_source import PiecePartition
from .types import accepts, arrow_schema, spark_schema
from .worker_gc import settle

LEASE_MS = 3_600_000
"""How long the files of a planned read are kept; a read that is still running then may raise SnapshotExpired."""
_CHANGE_NAMES = tuple(field.name for field in CHANGE_FIELDS)


@dataclass(frozen=True, slots=True)
class Load:
    """Resolved options of one `load()`: the table by id, and the epoch; or for a feed the range (start, epoch] of its
    log.

    `start` is as in startingVersion (an epoch is the first to read), None when it was not given.
    """

    place: StoreLocation
    table_id: int
    table: TableSchema
    columns: tuple[str, ...]
    epoch: int
    feed: bool
    start: str | int | None
    mode: str
    pre_images: bool
    where: str | None
    tasks: Tasks

    def spark_schema(self) -> StructType:
        """Return Spark's schema of the columns; in a feed, of a table or of a stream, the change columns come after
        them.
        """
        fields = [self.table.schema.field(name) for name in self.columns]
        return spark_schema(self.table.name, pa.schema([*fields, *self.extra]), self.table.primary_key)

    @property
    def extra(self) -> tuple[pa.Field, ...]:
        return CHANGE_FIELDS if self.feed else ()

    def as_feed(self) -> Load:
        """Return this load with the change columns, for a stream whose user gave a schema."""
        return replace(self, feed=True)

    def wanted(self, schema: StructType) -> pa.Schema:
        """Return the Arrow schema for a schema that Spark asks for, the user's own perhaps. Raises SchemaMismatch when
        the table cannot be read with it.
        """
        known = pa.schema([*self.table.schema, *self.extra])
        wanted = arrow_schema(schema)
        for field in wanted:
            if field.name not in known.names:
                raise SchemaMismatch(
                    f"table {self.table.name}: there is no column {field.name!r}; there are {', '.join(known.names)}"
                )
            if not accepts(known.field(field.name).type, field.type) and not accepts(
                field.type, known.field(field.name).type
            ):
                raise SchemaMismatch(
                    f"table {self.table.name}, column {field.name!r}: {known.field(field.name).type} cannot be read "
                    f"as {field.type}"
                )
            if _may_hold_nulls(known.field(field.name), field):
                raise SchemaMismatch(
                    f"table {self.table.name}, column {field.name!r}: it may hold nulls, and Spark drops filters and "
                    "rows where it is told otherwise; declare it nullable"
                )
        return wanted

    def predicate(self) -> pc.Expression | None:
        columns = self.table.key_schema if self.feed else self.table.schema  # all images of a row must be judged alike
        return parse_predicate(self.where, columns) if self.where else None


def _may_hold_nulls(known: pa.Field, asked: pa.Field) -> bool:
    """Return True if there may be nulls where the schema asked for says that there are none, at any depth."""
    if known.nullable and not asked.nullable:
        return True
    inner = min(known.type.num_fields, asked.type.num_fields)
    return any(_may_hold_nulls(known.type.field(at), asked.type.field(at)) for at in range(inner))


def resolve_load(options: Options) -> Load:
    """Read the catalog once and fix the table and the epochs to read. Raises typed errors for a bad option, an unknown
    table or column.
    """
    settle()
    if "provider" in options:
        raise InvalidInput(
            f"CREATE TABLE … USING epochlog gives the reader no options, so it cannot work. {NO_CATALOG}"
        )
    writing = given(options, WRITE)
    if writing:
        raise InvalidInput(
            f"option {writing[0]} is for writing; every INSERT INTO a view made with it would be the same transaction, "
            "and land once. Give it to df.write"
        )
    place, policy = place_of(options), _policy(options)
    with closing(place.open()) as handle:

        def look() -> Load:
            return handle.catalog.read(lambda view: _resolve(view, handle, place, options, policy))

        if isinstance(policy, Global):
            mark_late(handle, handle.catalog.read(lambda view: _epochs(view, handle)))
        return look() if policy is None else until_chosen(handle, policy, look)


def _resolve(view: View, handle: Handle, place: StoreLocation, options: Options, policy: Policy | None) -> Load:
    table = find_table(view, place.table)
    feed = truth(options, "readChangeFeed", False) or bool(given(options, (*FEED, *STREAM)))
    mode = text(options, "changeMode") or "epochs"
    if mode not in ("epochs", "net"):
        raise InvalidInput(f"option changeMode must be epochs or net, not {mode!r}")
    columns = names(options, "columns")
    load = Load(
        place=place,
        table_id=table.id,
        table=table.schema,
        columns=tuple(ScanPlan(table.schema, 0).schema(columns).names),
        epoch=_feed_end(view, table, options) if feed else _chosen_epoch(view, handle, table, options, policy),
        feed=feed,
        start=parse_start(text(options, "startingVersion")),
        mode=mode,
        pre_images=truth(options, "preImages", False),
        where=text(options, "filter"),
        tasks=Tasks.from_options(options),
    )
    load.predicate()
    return load


def _feed_end(view: View, table: TableDef, options: Options) -> int:
    mixed = given(options, ("versionAsOf", "timestampAsOf", "consistency", "snapshot"))
    if mixed:
        raise InvalidInput(
            f"option {mixed[0]} chooses one epoch and has no meaning for a range of changes; leave it out"
        )
    end = whole(options, "endingVersion")
    return get_version(view, table.id, table.name).max_committed_epoch if end is None else end


def _chosen_epoch(view: View, handle: Handle, table: TableDef, options: Options, policy: Policy | None) -> int:
    version = whole(options, "versionAsOf")
    if version is None and policy is None:
        return get_version(view, table.id, table.name).max_committed_epoch
    epochs = _epochs(view, handle)
    if policy is not None:
        return choose_epochs(policy, epochs, [table.name])[table.name]
    assert version is not None
    require_complete(table.name, version, epochs.complete_through(table.id))
    require_begun(epochs.table(table.id), version)
    return plan_scan(view, table, version).epoch


def _epochs(view: View, handle: Handle) -> EpochView:
    return read_epoch_view(view, handle.memory, handle.catalog.now_ms(), handle.store_id)


def _policy(options: Options) -> Policy | None:
    """Return the policy that chooses the epoch; None when the epoch is given, or the newest is read. Raises
    InvalidInput for several options that choose it.
    """
    chosen = given(options, ("versionAsOf", "timestampAsOf", "consistency", "snapshot"))
    if len(chosen) > 1:
        raise InvalidInput(f"options {' and '.join(chosen)} each choose the epoch; give one of them")
    token, timestamp = text(options, "snapshot"), text(options, "timestampAsOf")
    if token is not None:
        return Exact(token)
    if timestamp is not None:
        return _as_of(timestamp)
    named = text(options, "consistency")
    return None if named is None else resolve_policy(named)


def _as_of(given: str) -> AsOf:
    """Parse an ISO 8601 time, UTC unless it says otherwise, or Unix milliseconds; 20260131 is a day."""
    try:
        return AsOf(timestamp=int(given) if given.isdecimal() and len(given) > len("20260131") else given)
    except InvalidInput as error:
        raise InvalidInput(f"option timestampAsOf: {error}") from None


# ---- the reader --------------------------------------------------------------------------------------------------


class TableReader(DataSourceReader):
    """Reader of a batch load: it plans on the driver, with a lease on the files; tasks read pieces.

    It has no pushFilters: Spark 4.3 plans a relation once and keeps what it pushed into it, so a frame that is used
    twice, under two filters or none, gets the rows of one of them for both. A filter that is an option of the load
    belongs to that load alone.
    """

    def __init__(self, load: Load, schema: StructType) -> None:
        settle()
        self._load = load
        self._wanted = load.wanted(schema)

    def partitions(self) -> Sequence[InputPartition]:
        handle = self._load.place.open()
        try:
            plan = plan_with_lease(handle, self._load)
            files = handle.files
        finally:
            handle.close()
        # no rows: one empty piece, since Spark would make one task of nothing by itself
        columns = tuple(name for name in self._wanted.names if name not in _CHANGE_NAMES)
        load = self._load
        piece = ReadPartition(
            files, plan, self._wanted, ReadOptions(columns, load.predicate()), load.mode, load.pre_images
        )
        return [PiecePartition(part) for part in cut(piece, load.tasks) or [piece]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecePartition)
        return partition.piece.read()


def make_reader(load: Load, schema: StructType) -> TableReader:
    """Make the reader for a batch load. Raises InvalidInput for a startingVersion that is for streams."""
    if load.feed and load.start in ("latest", "snapshot"):
        raise InvalidInput(
            f"startingVersion={load.start} is for streams; a batch of changes starts at an epoch or at earliest"
        )
    return TableReader(load, schema)


def plan_with_lease(handle: Handle, load: Load) -> ScanPlan | LogPlan:
    """Plan the files to read, and hold them for LEASE_MS from now; all reads of a table at an epoch share one lease."""
    holder = f"spark:{load.start}-{load.epoch}" if load.feed else f"spark:{load.epoch}"

    def kept(view: View) -> ScanPlan | LogPlan | None:
        record = view.get(hold_key(load.table_id, holder))
        fresh = record is not None and record["expires_ms"] > handle.catalog.now_ms() + LEASE_MS // 2
        return _plan(view, load) if fresh else None

    def body(tx: Txn) -> ScanPlan | LogPlan:
        plan, now_ms = _plan(tx, load), handle.catalog.now_ms()
        first = _after(tx, load) if load.feed else None
        looks_up = load.pre_images and isinstance(plan, LogPlan) and not plan.stored
        read_epoch = load.epoch if first is None else first if looks_up else None
        put_holds(tx, [Hold(holder, load.table_id, first, read_epoch, now_ms, now_ms + LEASE_MS)])
        return plan

    plan = None if load.feed else handle.catalog.read(kept)
    return handle.catalog.transact(body) if plan is None else plan


def _plan(view: View, load: Load) -> ScanPlan | LogPlan:
    table = get_table(view, load.table_id, load.table.name)
    if not load.feed:
        return plan_scan(view, table, load.epoch)
    return plan_changes(view, table, _after(view, load), load.epoch)


def _after(view: View, load: Load) -> int:
    """Return the epoch after which a feed begins: startingVersion is included, as in Delta. Raises InvalidInput without
    one.
    """
    if isinstance(load.start, int):
        return max(load.start - 1, 0)
    if load.start is None:
        raise InvalidInput("a change feed needs .option('startingVersion', …): the first epoch to read, or earliest")
    return get_version(view, load.table_id, load.table.name).log_start
