"""Checks of a table: conditions that no row may break. A commit tests the rows that it would leave, a new check those
that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import CheckViolated
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.pruning import needed_columns
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.sst.merge import newest_wins
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS
from epochlog.store.types.predicate import parse_predicate
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .table_ddl import altered, note_altered

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

SPLIT_ROWS = 1 << 19
"""Rows that are tested, and held in memory, at a time."""
Checks = Mapping[str, str]


def check_committed(files: Files, table: TableSchema, checks: Checks, segments: Sequence[Segment]) -> None:
    """Raise CheckViolated if a row that a commit of these segments, oldest first, would leave breaks a check."""
    codec, columns = KeyCodec(table.schema, table.primary_key), _columns(table, checks)
    for key_range in key_splits(files, table, segments, cost(segments) // SPLIT_ROWS, ALL_KEYS):
        read = parallel_map(
            lambda segment, within=key_range: SegmentReader(files, segment, table, codec).read(columns, within),
            segments,
            sum(segment.rows for segment in segments),
        )
        filled = [rows for rows in read if len(rows)]
        if filled:
            newest = newest_wins(filled)
            live = newest.data if newest.deleted is None else newest.data.filter(pa.array(~newest.deleted))
            _require(table, checks, live)


def alter_with_checks(handle: Handle, table: TableDef, settings: Settings) -> TableDef:
    """Change a table's settings, of which the checks are new, after a test of all rows. Raises CheckViolated.

    If other commits land meanwhile, only the rows that they left are tested again; all rows, if the columns changed.
    """
    assert settings.checks is not None
    settings.check(table.name, derived=table.derived, schema=table.schema)
    tested: ScanPlan | None = None
    while True:
        tested = retry_stale_plan(handle, lambda before=tested: _test_rows(handle, table, settings, before))

        def body(tx: Txn, tested: int = tested.epoch) -> TableDef | None:
            if get_version(tx, table.id, table.name).max_committed_epoch != tested:
                return None
            return altered(tx, table.id, table.name, settings)

        after = handle.catalog.transact(body)
        if after is not None:
            note_altered(handle, table.name)
            return after


def _test_rows(handle: Handle, table: TableDef, settings: Settings, before: ScanPlan | None) -> ScanPlan:
    """Test the newest rows, or those of commits after the test `before`; return the plan of the newest commit."""
    plan = handle.catalog.read(lambda view: _plan(view, table, before))
    settings.check(table.name, derived=table.derived, schema=plan.table)
    checks = settings.checks or {}
    for batch in plan.batches(handle.files, ReadOptions(_columns(plan.table, checks))):
        _require(plan.table, checks, pa.Table.from_batches([batch]))
    return plan


def _plan(view: ReadTxn, table: TableDef, before: ScanPlan | None) -> ScanPlan:
    current = get_table(view, table.id, table.name)
    newest = plan_scan(view, current, None)
    log_start = get_version(view, table.id, table.name).log_start
    if before is None or before.epoch < log_start or before.table.version != current.schema.version:
        return newest
    entries = get_entries(view, table.id, before.epoch, newest.epoch)
    return ScanPlan(current.schema, newest.epoch, (), tuple(part for entry in entries for part in entry.segments))


def _columns(table: TableSchema, checks: Checks) -> list[str]:
    """Return the columns of the key, and those that the checks name."""
    names = list(table.primary_key)
    for text in checks.values():
        names = needed_columns(table.name, table.schema, names, parse_predicate(text, table.schema))
    return names


def _require(table: TableSchema, checks: Checks, rows: pa.Table) -> None:
    """Raise CheckViolated for the first row for which a check is false. Null passes."""
    for name, text in checks.items():
        condition = parse_predicate(text, table.schema)
        broken = rows.filter(~condition)
        if broken.num_rows:
            first = broken.slice(0, 1).to_pylist()[0]
            key = [first[column] for column in table.primary_key]
            named = needed_columns(table.name, table.schema, [], condition)
            raise CheckViolated(
                f"table {table.name}: check {name!r} ({text}) fails for the key "
                f"{key[0] if len(key) == 1 else tuple(key)!r}, where {_values(first, named)}; nothing was written"
            )


def _values(row: Mapping[str, object], names: Iterable[str]) -> str:
    return " and ".join(f"{name} is {row[name]!r:.100}" for name in names)
