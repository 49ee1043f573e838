"""Spark batch source: a table at one epoch, or a range of its changes, both fixed at `load()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from epochlog.batch.choice import ChoiceRead, choose
from epochlog.batch.policy import Aligned, AsOf, Exact, Policy, choose_epochs
from epochlog.batch.policy_registry import resolve_policy
from epochlog.batch.tags import find_tag, is_tag_name
from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.catalog.keys import hold_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_changes, schema_changed
from epochlog.store.env.whole_number import whole_number
from epochlog.store.epochs.epoch_errors import require_begun
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.metadata.schema_change import is_extension
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan, require_complete
from epochlog.store.session.handle import Handle
from epochlog.store.types.predicate import parse_predicate
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .options import (
    EPOCH,
    FEED,
    FEED_OPTIONS,
    LOAD_OPTIONS,
    NO_CATALOG,
    POLICY,
    STREAM,
    STREAM_ADVICE,
    WRITE,
    Options,
    StoreLocation,
    Tasks,
    bool_option,
    int_option,
    names_option,
    parse_store_location,
    policy_arguments,
    present_options,
    text_option,
)
from .partitions import ReadPartition, cut
from .session_time import in_session_zone
from .stream_offsets import parse_start
from .stream_source import SplitPartition
from .types import accepts, arrow_schema, spark_schema
from .versions import ROWS_WITHOUT_COLUMNS, needs
from .worker_gc import freeze_loaded_objects

LEASE_MS = 3_600_000
"""Time for which the files of a planned read are held; a read that takes longer may raise SnapshotExpired."""
_CHANGE_NAMES = tuple(field.name for field in CHANGE_FIELDS)


@dataclass(frozen=True, slots=True)
class Load:
    """Resolved options of one `load()`: the table by id, and the epoch; for a change feed the range (start, epoch] of
    its log.

    `start` is the value of startingVersion, whose epoch is the first to read; None if it is not set. `filter` is the
    option's text, or the expression of a query in a catalog.
    """

    location: StoreLocation
    table_id: int
    table: TableSchema
    columns: tuple[str, ...]
    epoch: int
    feed: bool
    start: str | int | None
    mode: str
    pre_images: bool
    filter: str | pc.Expression | None
    tasks: Tasks

    def spark_schema(self) -> StructType:
        """Return Spark's schema of the columns, which the change columns follow in a feed."""
        fields = [self.table.schema.field(name) for name in self.columns]
        return spark_schema(self.table.name, pa.schema([*fields, *self.change_fields]), self.table.primary_key)

    @property
    def change_fields(self) -> tuple[pa.Field, ...]:
        return CHANGE_FIELDS if self.feed else ()

    def as_feed(self) -> Load:
        """Return this load as a change feed, for a stream whose user gave a schema."""
        return replace(self, feed=True)

    def read_schema(self, schema: StructType) -> pa.Schema:
        """Return the Arrow schema for Spark's schema, which may be the user's. Raises SchemaMismatch if the table
        cannot be read with it, InvalidInput for no columns in Spark 4.0, which would count no rows.
        """
        available = {field.name: field for field in (*self.table.schema, *self.change_fields)}
        requested = arrow_schema(schema)
        if not requested.names and not ROWS_WITHOUT_COLUMNS:
            raise needs("a read of no columns, whose rows are counted,", "4.1", "or read a column of the key")
        for field in requested:
            if field.name not in available:
                raise SchemaMismatch(
                    f"table {self.table.name}: there is no column {field.name!r}; the columns are "
                    f"{', '.join(available)}"
                )
            stored = available[field.name]
            if not accepts(stored.type, field.type) and not accepts(field.type, stored.type):
                raise SchemaMismatch(
                    f"table {self.table.name}, column {field.name!r}: {stored.type} cannot be read as {field.type}"
                )
            if _may_hold_nulls(stored, field):
                raise SchemaMismatch(
                    f"table {self.table.name}, column {field.name!r}: it may hold nulls, so a schema without nulls "
                    "makes Spark drop filters and rows; declare it nullable"
                )
        return requested

    def predicate(self) -> pc.Expression | None:
        """Return the filter of the rows to read; None for all rows."""
        if not isinstance(self.filter, str):
            return self.filter
        # A filter must treat all images of a row alike.
        return parse_predicate(self.filter, self.table.key_schema if self.feed else self.table.schema)


def _may_hold_nulls(available: pa.Field, requested: pa.Field) -> bool:
    """Return True if a field declared NOT NULL by the requested schema may hold nulls, at any depth."""
    if available.nullable and not requested.nullable:
        return True
    children = min(available.type.num_fields, requested.type.num_fields)
    return any(_may_hold_nulls(available.type.field(index), requested.type.field(index)) for index in range(children))


def resolve_load(options: Options) -> Load:
    """Read the catalog once to fix the table and the epochs to read. Raises typed errors for a bad option, an unknown
    table or column.
    """
    freeze_loaded_objects()
    if "provider" in options:
        raise InvalidInput(
            f"CREATE TABLE … USING epochlog passes no options to the reader, so it cannot work. {NO_CATALOG}"
        )
    write_options = present_options(options, WRITE)
    if write_options:
        raise InvalidInput(
            f"option {write_options[0]} is for writing; with it, every INSERT INTO a view would be one transaction, "
            "which lands once. Set it on df.write"
        )
    location = parse_store_location(options, FEED_OPTIONS if _reads_changes(options) else LOAD_OPTIONS)
    policy = _policy(options)
    with closing(location.open()) as handle:
        tag = text_option(options, "snapshot")
        if is_tag_name(tag):
            policy = Exact(find_tag(handle, tag).token)
        return choose(handle, policy, lambda asked: _resolve(asked, handle, location, options))


def _resolve(asked: ChoiceRead, handle: Handle, location: StoreLocation, options: Options) -> Load:
    view = asked.view
    table = find_table(view, location.table)
    feed = _reads_changes(options)
    mode = text_option(options, "changeMode") or "epochs"
    if mode not in ("epochs", "net"):
        raise InvalidInput(f"option changeMode must be epochs or net, not {mode!r}")
    columns = names_option(options, "columns")
    epoch = _feed_end(view, table, options) if feed else _chosen_epoch(asked, handle, table, options)
    schema = table.schema.at(epoch)
    load = Load(
        location=location,
        table_id=table.id,
        table=schema,
        columns=tuple(ScanPlan(schema, 0).schema(columns).names),
        epoch=epoch,
        feed=feed,
        start=parse_start(text_option(options, "startingVersion")),
        mode=mode,
        pre_images=bool_option(options, "preImages", False),
        filter=text_option(options, "filter") or None,
        tasks=Tasks.from_options(options),
    )
    load.predicate()
    return load


def _reads_changes(options: Options) -> bool:
    """Return True if the load is of changes: a feed, or a stream."""
    return bool_option(options, "readChangeFeed", False) or bool(present_options(options, (*FEED, *STREAM)))


def _feed_end(view: ReadTxn, table: TableDef, options: Options) -> int:
    epoch_options = present_options(options, EPOCH)
    if epoch_options:
        raise InvalidInput(
            f"option {epoch_options[0]} chooses one epoch, and a change feed or stream reads a range of epochs: leave "
            f"it out, and {STREAM_ADVICE}"
        )
    end = int_option(options, "endingVersion")
    return get_version(view, table.id, table.name).max_committed_epoch if end is None else end


def _chosen_epoch(asked: ChoiceRead, handle: Handle, table: TableDef, options: Options) -> int:
    version, view = int_option(options, "versionAsOf"), asked.view
    if version is None:
        names = names_option(options, "tables") or [table.name]
        policy = asked.policy(names)
        return choose_epochs(policy, asked.epochs(policy, names)[0], names)[table.name]
    epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), handle.store_id, above=[table.id])
    require_complete(table.name, version, epochs.complete_through(table.id))
    require_begun(epochs.table(table.id), version, zero=False)
    return plan_scan(view, table, version).epoch


def _policy(options: Options) -> Policy | None:
    """Return the policy that chooses the epoch; None for a given epoch or the default. Raises InvalidInput if
    several options choose the epoch.
    """
    chosen_options = present_options(options, EPOCH)
    if len(chosen_options) > 1:
        raise InvalidInput(f"options {' and '.join(chosen_options)} each choose the epoch; set one of them")
    policy_options = present_options(options, POLICY)
    for_default = policy_options == ["tables"] and not chosen_options and not _reads_changes(options)
    if policy_options and text_option(options, "consistency") is None and not for_default:
        raise InvalidInput(
            f"option {policy_options[0]} belongs to a policy: set .option('consistency', …) too, as bounded with "
            "maxLag, at_least with epoch, as_of with timestamp or aligned with tables"
        )
    token, timestamp = text_option(options, "snapshot"), text_option(options, "timestampAsOf")
    if token is not None:  # a tag is looked up in the store
        return None if is_tag_name(token) else Exact(token)
    if timestamp is not None and not _reads_changes(options):  # else `_feed_end` refuses it
        return _as_of(timestamp, text_option(options, "sessionTimeZone"))
    name, tables = text_option(options, "consistency"), names_option(options, "tables")
    if name == Aligned.name and tables is None:
        raise InvalidInput(
            "consistency=aligned chooses the epoch that several tables have in common, and a load knows only its own: "
            "name them in each load, .option('tables', 'orders,revenue'). Loads that must read one epoch whatever is "
            "committed between them take .option('snapshot', token) of one store.snapshot(…), or a catalog (el.catalog)"
        )
    if tables is not None and text_option(options, "table") not in tables:
        raise InvalidInput(f"option tables has no {text_option(options, 'table')!r}, the table of this load; add it")
    return None if name is None else resolve_policy(name, **policy_arguments(options, name))


def _as_of(text: str, zone: str | None) -> AsOf:
    """Parse an ISO 8601 time, without an offset in the session's zone, or Unix milliseconds; eight digits, as 20260131,
    are a day.
    """
    try:
        number = whole_number(text) if len(text) > len("20260131") else None
        return AsOf(timestamp=in_session_zone("timestampAsOf", text, zone) if number is None else number)
    except InvalidInput as error:
        named = str(error).removeprefix("option timestampAsOf: ")
        raise InvalidInput(f"option timestampAsOf: {named}") from None


# ---- the reader --------------------------------------------------------------------------------------------------


class TableReader(DataSourceReader):
    """Reader of a batch load. It plans on the driver, with a lease on the files; tasks read partitions.

    It has no pushFilters: Spark 4.3 plans a relation once and keeps the filters pushed into it, so a frame that is used
    twice, with two filters or without, would return the rows of one filter for both. The load's own option `filter`
    applies to that load only.
    """

    def __init__(self, load: Load, schema: StructType) -> None:
        freeze_loaded_objects()
        self._load = load
        self._schema = load.read_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        handle = self._load.location.open()
        try:
            return plan_partitions(handle, self._load, self._schema)
        finally:
            handle.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitPartition)
        return partition.read_partition.read()


def make_reader(load: Load, schema: StructType, options: Options) -> TableReader:
    """Make the reader of a batch load. Raises InvalidInput for an option, or a startingVersion, of streams."""
    of_streams = present_options(options, STREAM)
    if of_streams:
        raise InvalidInput(f"option {of_streams[0]} is for streams, and a batch reads all at once; leave it out")
    if load.feed and load.start in ("latest", "snapshot"):
        raise InvalidInput(
            f"startingVersion={load.start} is for streams; a batch read of changes starts at an epoch or at earliest"
        )
    return TableReader(load, schema)


def plan_partitions(handle: Handle, load: Load, schema: pa.Schema) -> list[InputPartition]:
    """Plan the read of the columns of `schema` with a lease on its files, cut into Spark's partitions; at least one."""
    partitions = cut_partitions(handle, load, plan_with_lease(handle, load), schema)
    return [SplitPartition(partition) for partition in partitions]


def cut_partitions(handle: Handle, load: Load, plan: ScanPlan | LogPlan, schema: pa.Schema) -> list[ReadPartition]:
    """Cut a planned read of the columns of `schema` into partitions; at least one."""
    columns = tuple(name for name in schema.names if name not in _CHANGE_NAMES)
    options = ReadOptions(columns, load.predicate())
    partition = ReadPartition(handle.files, plan, schema, options, load.mode, load.pre_images)
    # Return one empty partition for a plan without rows: Spark starts one task in any case.
    return cut(partition, load.tasks) or [partition]


def plan_with_lease(handle: Handle, load: Load) -> ScanPlan | LogPlan:
    """Plan the files to read and hold them for LEASE_MS; all reads of a table at one epoch share one lease."""
    holder = f"spark:{load.start}-{load.epoch}" if load.feed else f"spark:{load.epoch}"

    def read_leased(view: ReadTxn) -> ScanPlan | LogPlan | None:
        record = view.get(hold_key(load.table_id, holder))
        fresh = record is not None and record["expires_ms"] > handle.catalog.now_ms() + LEASE_MS // 2
        return _plan(view, load) if fresh else None

    def plan_and_hold(tx: Txn) -> ScanPlan | LogPlan:
        plan, now_ms = _plan(tx, load), handle.catalog.now_ms()
        feed_start = _feed_start(tx, load) if load.feed else None
        looks_up = load.pre_images and isinstance(plan, LogPlan) and not plan.stored
        read_epoch = load.epoch if feed_start is None else feed_start if looks_up else None
        put_holds(tx, [Hold(holder, load.table_id, feed_start, read_epoch, now_ms, now_ms + LEASE_MS)])
        return plan

    plan = None if load.feed else handle.catalog.read(read_leased)
    return handle.pin(plan_and_hold) if plan is None else plan


def _plan(view: ReadTxn, load: Load) -> ScanPlan | LogPlan:
    table = get_table(view, load.table_id, load.table.name)
    schema = load.table.with_lineage(table.schema.lineage)
    in_force = table.schema.at(load.epoch)
    if not is_extension(schema, in_force):  # Spark analysed the query at another epoch than it reads
        raise schema_changed(table.name, in_force.version)
    if not load.feed:
        return plan_scan(view, table, load.epoch, schema)
    start = _feed_start(view, load)
    if load.mode == "epochs" and table.schema.lineage:
        plan_changes(view, table, start, load.epoch)  # raises SchemaChanged for a range that an alter divides
    return plan_changes(view, table, start, load.epoch, columns=Columns(schema, whole=True))


def _feed_start(view: ReadTxn, load: Load) -> int:
    """Return the epoch after which a feed begins; startingVersion is included, as in Delta. Raises InvalidInput without
    startingVersion.
    """
    if isinstance(load.start, int):
        return max(load.start - 1, 0)
    if load.start is None:
        raise InvalidInput("a change feed needs .option('startingVersion', …): the first epoch to read, or earliest")
    return get_version(view, load.table_id, load.table.name).log_start
