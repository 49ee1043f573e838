"""Trial of column types: rows of a type go through files in memory and the readers' code before a table takes it.

The rows have values, nulls at every level and empty lists. They go through a segment, a run file, a partial update, a
feed of changes and a read by a later version of the columns. A process tries each way from the root of a type to a leaf
once, so that many types of the same parts cost no more than their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import EpochlogError, InvalidSchema
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.memory_files import InMemoryFiles
from epochlog.store.metadata.schema_change import next_version
from epochlog.store.metadata.version import LabelGroup
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, sorted_unique
from epochlog.store.sst.segment import Segment, write_segment
from epochlog.store.sst.sorted_run import EPOCH, SortedRun, write_part
from epochlog.store.types.column_types import has_size_zero, is_key_type, refusal, stored_type
from epochlog.store.types.key_codec import KeyCodec, contiguous
from epochlog.store.types.null_safe_equal import same_values
from epochlog.store.types.sample_values import paths_of, sample_column, shape_of
from epochlog.store.types.schema import TableSchema
from epochlog.store.types.time_zones import unknown_zone

from .merged_updates import UpdateMerge

_KEY = pa.field("id", pa.int64(), nullable=False)
_MOST_KNOWN = 10_000
_returned: set[pa.DataType] = set()
"""Shapes of types whose rows came back in this process."""


def require_returnable(table: str, fields: Iterable[pa.Field]) -> None:
    """Raise InvalidSchema, which names the column, if rows of a column's type would not come back as they were."""
    fields = list(fields)
    for field in fields:
        if (zone := unknown_zone(stored_type(field.type))) is not None:
            raise InvalidSchema(
                f"table {table}, column {field.name!r}: {zone!r} is no time zone; write a name such as "
                "'Europe/Berlin', 'UTC', or an offset such as '+05:30'"
            )
    for name, reason in unreturned(fields):
        raise InvalidSchema(f"table {table}, column {name!r}: {reason}")


def unreturned(fields: Iterable[pa.Field]) -> Iterator[tuple[str, str]]:
    """Yield the columns whose rows would not come back, each with the reason and what to write. Types that no schema of
    a table has are left out.
    """
    kinds = {field.name: stored_type(field.type) for field in fields if refusal(field.type) is None}
    for name in [name for name, kind in kinds.items() if has_size_zero(kind)]:
        what = f"type {kinds.pop(name)} has a size of 0, so it holds no values, and DuckDB and polars fail at it"
        yield name, f"{what}. Write a list, or a size of 1 or more"
    shapes = {name: shape_of(kind) for name, kind in kinds.items()}
    ways = {path for shape in set(shapes.values()) - _returned for path in paths_of(shape)}
    untried = {path for path in ways if not is_key_type(path) and path not in _returned}
    if not untried:
        return
    if len(_returned) > _MOST_KNOWN:
        _returned.clear()
    if _reason([*untried]) is None:
        _returned.update(untried)
        return
    for name, shape in shapes.items():  # each by itself
        if shape in _returned or untried.isdisjoint(paths_of(shape)):
            continue
        if (reason := _reason([shape])) is None:
            _returned.add(shape)
        else:
            what = f"rows of type {kinds[name]} do not come back as they were ({reason})"
            yield name, f"{what}. Write its fields nullable and its lists of any size, or its parts as columns"


def _reason(kinds: list[pa.DataType]) -> str | None:
    """Return the reason for which rows of these types do not come back together; None if they do."""
    try:
        columns = [sample_column(kind) for kind in kinds]
        _Trial(kinds, columns).run()
    except _Differs as error:
        return str(error)
    except (pa.ArrowException, EpochlogError, OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


class _Differs(Exception):
    """Error: rows came back with other values."""


class _Trial:
    """Rows of columns of some types, and the ways that they go."""

    def __init__(self, kinds: list[pa.DataType], columns: list[pa.Array]) -> None:
        self._files, self._numbers = InMemoryFiles(), count()
        fields = [pa.field(f"c{place}", kind) for place, kind in enumerate(kinds)]
        bare = TableSchema("trial", pa.schema([_KEY]), ("id",))
        wide = TableSchema("trial", pa.schema([_KEY, *fields]), ("id",))
        self._schema = next_version(wide, (bare,), 1)
        self._bare = bare.with_lineage(self._schema.lineage)
        self._codec = KeyCodec(self._schema.schema, ("id",))
        self._rows = max(2, *(len(column) for column in columns))
        # Columns with fewer values repeat theirs.
        self._columns = [column.take(pa.array(np.arange(self._rows) % len(column))) for column in columns]

    def run(self) -> None:
        ids = np.arange(self._rows)
        given = self._schema.conform(self._table(ids, ids))
        self._compare("a segment", given, ScanPlan(self._schema, 2, (), (self._segment(self._schema, given),)))
        run = self._run(given)
        before = ScanPlan(self._schema, 2, (run,))
        self._compare("a run file", given, before)
        bare = self._segment(self._bare, given.select(["id"]))
        self._compare("an added column", _without_values(given), ScanPlan(self._schema, 2, (), (bare,)))
        merged = self._updated(before, updated := np.append(ids[::2], self._rows))
        after = np.append(ids, self._rows)  # the other rows keep their values; the last one is new
        wanted = self._table(after, (after + np.isin(after, updated)) % self._rows)
        self._compare("an update", wanted, ScanPlan(self._schema, 3, (run,), merged))
        feed = LogPlan(self._schema, before, (LabelGroup(3, merged),))
        images = pa.Table.from_batches(feed.batches(self._files, "net", pre_images=True), feed.schema())
        new = pc.field("_change_type").isin(["insert", "update_postimage"])
        changed = wanted.filter(pc.field("id").isin(images.column("id").unique()))
        _require_same("a feed of changes", changed, images.filter(new).select(wanted.column_names))

    def _updated(self, before: ScanPlan, ids: np.ndarray) -> tuple[Segment, ...]:
        """Return the segments of a commit that updates all columns of these rows to the next values."""
        update = self._schema.conform_update(self._table(ids, (ids + 1) % self._rows))
        names = tuple(update.column_names[1:])
        segment = replace(self._segment(self._schema.of_update(names), update), updates=names)
        return tuple(UpdateMerge(self._files, 1, before, self._new_path).merge([[segment]])[0])

    def _table(self, ids: np.ndarray, places: np.ndarray) -> pa.Table:
        columns = [column.take(pa.array(places)) for column in self._columns]
        return pa.Table.from_arrays([pa.array(ids), *columns], schema=self._schema.schema)

    def _new_path(self) -> str:
        return str(next(self._numbers))

    def _segment(self, schema: TableSchema, data: pa.Table) -> Segment:
        codec = KeyCodec(schema.schema, ("id",))
        rows = sorted_unique(codec.encode(data), data)
        return write_segment(self._files, self._new_path(), 1, schema, codec, rows)

    def _run(self, data: pa.Table) -> SortedRun:
        rows = Rows(self._codec.encode(data), data.append_column(EPOCH, pa.array(np.full(len(data), 2))))
        return SortedRun(0, 2, (write_part(self._files, self._new_path(), self._schema, self._codec, rows),))

    def _compare(self, place: str, wanted: pa.Table, plan: ScanPlan) -> None:
        _require_same(place, wanted, pa.Table.from_batches(plan.batches(self._files), self._schema.schema))


def _without_values(data: pa.Table) -> pa.Table:
    columns = [data.column(0), *(pa.nulls(len(data), kind) for kind in data.schema.types[1:])]
    return pa.Table.from_arrays(columns, schema=data.schema)


def _require_same(place: str, wanted: pa.Table, rows: pa.Table) -> None:
    if rows.num_rows != wanted.num_rows:
        raise _Differs(f"{place} returns {rows.num_rows} rows in place of {wanted.num_rows}")
    for name in wanted.column_names:
        given, back = contiguous(wanted.column(name)), contiguous(rows.column(name))
        back.validate(full=True)
        if not back.equals(given) and not (same := same_values(back, given)).all():
            at = int(np.flatnonzero(~same)[0])
            raise _Differs(f"{place} returns {back[at]} in place of {given[at]}")
