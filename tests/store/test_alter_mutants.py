"""Bugs planted in the code of altered tables: a case of `alter_cases` fails with each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from alter_cases import CASES
from altered_table import AlteredTable
from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import schema_key
from epochlog.store.changelog import log_plan
from epochlog.store.commit import transaction
from epochlog.store.compaction import subcompaction_rewriter
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.scan import point_lookup, pruning
from epochlog.store.sst import file_columns, segment, sorted_run
from epochlog.store.sst.file_columns import ColumnMap, file_schema
from epochlog.store.types import casting
from epochlog.store.types.schema import TableSchema

Patch = pytest.MonkeyPatch


def by_name(patch: Patch) -> None:
    """Columns of files are found by their names."""

    def column_map(schema: Any, file: Any) -> ColumnMap | None:
        written = file_schema(schema, file).schema
        names = schema.schema.names
        return ColumnMap(schema, {name: written.field(name) if name in written.names else None for name in names})

    patch.setattr(segment, "column_map", column_map)
    patch.setattr(sorted_run, "column_map", column_map)


def by_name_in_key_statistics(patch: Patch) -> None:
    patch.setattr(pruning, "stats_of", lambda schema, file: file.stats)


def by_name_in_row_groups(patch: Patch) -> None:
    real = sorted_run._passing_of_mapped

    def passing(metadata: Any, groups: Any, filter: Any, mapped: ColumnMap, names: set[str]) -> set[int]:
        by_name = ColumnMap(mapped.schema, {field.name: field for field in mapped.schema.schema})
        return real(metadata, groups, filter, by_name, names)

    patch.setattr(sorted_run, "_passing_of_mapped", passing)


def blocks_cached_by_name(patch: Patch) -> None:
    patch.setattr(point_lookup.PointReader, "_name", lambda self, file, *_: (self.files.place, *file.content))


def compaction_with_todays_columns(patch: Patch) -> None:
    patch.setattr(subcompaction_rewriter, "compaction_schema", lambda schema, _: schema)


def ids_used_twice(patch: Patch) -> None:
    real = SchemaChange._next
    patch.setattr(SchemaChange, "_next", lambda self, schema, _: real(self, schema, (schema,)))


def later_rows_must_fit_the_narrow_type(patch: Patch) -> None:
    real = ColumnMap.read_as
    patch.setattr(ColumnMap, "read_as", lambda self, data, names, visible=None: real(self, data, names))


def statistics_as_they_are_stored(patch: Patch) -> None:
    """Statistics of older files are taken without a cast: those of decimals are whole numbers of the last digit."""
    real = sorted_run._bounds

    def bounds(statistics: Any, kind: pa.DataType) -> Any:
        pair = real(statistics, kind)
        if pair is None or not pa.types.is_decimal(kind):
            return pair
        return tuple(pa.scalar(value.as_py().scaleb(kind.scale), kind) for value in pair)

    patch.setattr(sorted_run, "_bounds", bounds)


def statistics_cut_to_the_type(patch: Patch) -> None:
    """Statistics of later files are cast to the narrow type of an epoch, whether they fit or not."""
    real = sorted_run._bounds

    def bounds(statistics: Any, kind: pa.DataType) -> Any:
        pair = real(statistics, pa.int64() if pa.types.is_integer(kind) else kind)
        if pair is None or not pa.types.is_integer(kind):
            return pair
        return tuple(pa.array([value.as_py()], pa.int64()).cast(kind, safe=False)[0] for value in pair)

    patch.setattr(sorted_run, "_bounds", bounds)


def defaults_are_null(patch: Patch) -> None:
    patch.setattr(TableSchema, "default", lambda *_: None)


def deletes_have_defaults(patch: Patch) -> None:
    patch.setattr(file_columns, "tombstones", lambda _: None)


def dropped_columns_lose_their_defaults(patch: Patch) -> None:
    real = SchemaChange._next

    def following(self: SchemaChange, schema: Any, lineage: Any) -> TableSchema:
        after = real(self, schema, lineage)
        return replace(after, defaults=tuple(pair for pair in after.defaults if pair[0] in after.ids))

    patch.setattr(SchemaChange, "_next", following)


def fields_by_place(patch: Patch) -> None:
    def cast(values: Any, target: Any) -> Any:
        parts = (values.flatten() * 2)[: target.num_fields]
        arrays = [part.cast(field.type) for part, field in zip(parts, target, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(target), mask=values.is_null())

    patch.setattr(casting, "_cast_struct", cast)


def commits_drop_values(patch: Patch) -> None:
    patch.setattr(transaction, "require_writable_columns", lambda *_: None)


def feeds_go_on(patch: Patch) -> None:
    patch.setattr(log_plan, "first_unreadable", lambda *_: None)


@pytest.mark.damages_store
def test_verify_finds_a_part_without_the_columns_of_a_readable_epoch(tmp_path: Path, monkeypatch: Patch) -> None:
    compaction_with_todays_columns(monkeypatch)
    with el.open(tmp_path / "s", durability="os") as store:
        altered = AlteredTable(store)
        altered.upsert([{"k": 1, "g": "a", "a": 1, "b": "x"}])
        altered.alter(drop=["b"])
        altered.upsert([{"k": 1, "g": "a", "a": 2}])
        store.compact("t", full=True)
        problems = [problem.what for problem in store.verify().problems]
        assert problems
        assert all("lacks the columns [4]" in problem for problem in problems)


@pytest.mark.damages_store
def test_verify_finds_a_lost_version(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store:
        altered = AlteredTable(store)
        altered.upsert([{"k": 1, "g": "a", "a": 1, "b": "x"}])
        first = altered.alter(rename={"a": "b", "b": "a"})
        altered.upsert([{"k": 1, "g": "a", "b": 1, "a": "x"}])
        altered.alter(drop=["a"])
        store._handle.catalog.transact(lambda tx: tx.delete(schema_key(altered.table._table.id, first)))
        problems = [problem.what for problem in store.verify().problems]
        assert any("unknown version" in problem for problem in problems), problems
        with pytest.raises(EpochlogError):
            altered.table.to_arrow()
        last = altered.table._table.schema.version
        store._handle.catalog.transact(lambda tx: tx.delete(schema_key(altered.table._table.id, last)))
        with pytest.raises(el.Corrupt, match="newest is not the schema"):
            altered.table.to_arrow()


DAMAGES = pytest.mark.damages_store
MUTANTS: list[Any] = [
    (by_name, "swap_of_two_names"),
    (by_name, "drop_then_add_of_one_name"),
    (by_name_in_key_statistics, "swap_of_key_columns"),
    (by_name_in_row_groups, "swap_after_compaction"),
    (blocks_cached_by_name, "swap_after_compaction"),
    pytest.param(compaction_with_todays_columns, "compaction_keeps_what_epochs_need", marks=DAMAGES),
    pytest.param(compaction_with_todays_columns, "a_held_epoch_keeps_its_columns", marks=DAMAGES),
    (ids_used_twice, "drop_then_add_of_one_name"),
    (later_rows_must_fit_the_narrow_type, "narrow_types_at_old_epochs"),
    (statistics_as_they_are_stored, "widening_casts_statistics"),
    (statistics_cut_to_the_type, "narrow_types_at_old_epochs"),
    (commits_drop_values, "a_writer_that_races_with_a_drop"),
    (feeds_go_on, "feed_stops_at_an_alter"),
    (defaults_are_null, "defaults_of_added_columns"),
    (deletes_have_defaults, "defaults_of_added_columns"),
    (dropped_columns_lose_their_defaults, "defaults_of_added_columns"),
    (fields_by_place, "fields_inside_of_structs"),
]


@pytest.mark.planted
@pytest.mark.parametrize(("plant", "case"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, EpochlogError, KeyError, ValueError, pytest.fail.Exception)):
        CASES[case](tmp_path / "s")
