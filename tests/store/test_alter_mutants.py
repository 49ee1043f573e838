"""Bugs planted in the code of altered tables: a case of `alter_cases` fails with each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alter_cases import CASES
from epochlog.errors import EpochlogError
from epochlog.store.changelog import log_plan
from epochlog.store.commit import edits
from epochlog.store.compaction import piece_rewriter
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.scan import point_lookup, pruning
from epochlog.store.sst import segment, sorted_run
from epochlog.store.sst.file_columns import ColumnMap, file_schema

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

    def passing(metadata: Any, filter: Any, mapped: ColumnMap, names: set[str]) -> set[int]:
        return real(metadata, filter, ColumnMap(mapped.schema, {f.name: f for f in mapped.schema.schema}), names)

    patch.setattr(sorted_run, "_passing_of_mapped", passing)


def blocks_cached_by_name(patch: Patch) -> None:
    patch.setattr(point_lookup, "signature", lambda *_: ())


def compaction_with_todays_columns(patch: Patch) -> None:
    patch.setattr(piece_rewriter, "compaction_schema", lambda schema, _: schema)


def ids_used_twice(patch: Patch) -> None:
    real = SchemaChange._next
    patch.setattr(SchemaChange, "_next", lambda self, schema, _: real(self, schema, (schema,)))


def later_rows_must_fit_the_narrow_type(patch: Patch) -> None:
    real = ColumnMap.read_as
    patch.setattr(ColumnMap, "read_as", lambda self, data, names, visible=None: real(self, data, names))


def commits_drop_values(patch: Patch) -> None:
    patch.setattr(edits, "require_writable_columns", lambda *_: None)


def feeds_go_on(patch: Patch) -> None:
    patch.setattr(log_plan, "first_unreadable", lambda *_: None)


MUTANTS: list[tuple[Callable[[Patch], None], str]] = [
    (by_name, "swap_of_two_names"),
    (by_name, "drop_then_add_of_one_name"),
    (by_name_in_key_statistics, "swap_of_key_columns"),
    (by_name_in_row_groups, "swap_after_compaction"),
    (blocks_cached_by_name, "swap_after_compaction"),
    (compaction_with_todays_columns, "compaction_keeps_what_epochs_need"),
    (compaction_with_todays_columns, "a_held_epoch_keeps_its_columns"),
    (ids_used_twice, "drop_then_add_of_one_name"),
    (later_rows_must_fit_the_narrow_type, "narrow_types_at_old_epochs"),
    (commits_drop_values, "a_writer_that_races_with_a_drop"),
    (feeds_go_on, "feed_stops_at_an_alter"),
]


@pytest.mark.parametrize(("plant", "case"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, EpochlogError, KeyError, ValueError, pytest.fail.Exception)):
        CASES[case](tmp_path / "s")
