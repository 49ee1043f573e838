"""A table takes a type only if rows of it come back, tried when the table is created or altered."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.commit import type_trial
from epochlog.store.env import memory_files
from epochlog.store.sst import file_columns, sorted_run
from epochlog.store.sst.merge import Rows
from epochlog.store.types.column_types import stored_type
from epochlog.store.types.sample_values import paths_of, sample_column, shape_of
from random_types import LEAVES, random_type

ID = pa.field("id", pa.int64())
VECTOR = pa.struct([pa.field("p", pa.list_(pa.float32(), 2), nullable=False)])
REFUSED = r"table t, column 'v': rows of type struct<p: fixed_size_list<item: float>\[2\] not null> do not come back"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as opened:
        yield opened


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files keep vectors as Arrow does, and Arrow's reader fails for the required ones below a null struct."""
    monkeypatch.setattr(sorted_run, "parquet_type", lambda kind: kind)
    monkeypatch.setattr(type_trial, "_returned", set())


@pytest.mark.rule("1.28")
@pytest.mark.planted
@pytest.mark.usefixtures("broken")
def test_a_type_that_would_not_come_back_is_refused_at_every_door(store: el.Store) -> None:
    fields = [ID, pa.field("good", pa.list_(pa.int8())), pa.field("v", VECTOR)]
    with pytest.raises(el.InvalidSchema, match=REFUSED):
        store.create_table("t", pa.schema(fields), ["id"])
    store.create_table("u", pa.schema([ID]), ["id"])
    with pytest.raises(el.InvalidSchema, match=r"table u, column 'v': rows of type .*Write its fields nullable"):
        store.table("u").alter(add=fields[1:])
    with pytest.raises(el.InvalidSchema, match=REFUSED):
        store.create_job("j", ["u"], {"t": el.Output(pa.schema(fields), ["id"])})
    assert [table.name for table in store.tables()] == ["u"]
    assert store.table("u").schema.names == ["id"]


def test_verify_names_the_columns_of_tables_that_have_such_types(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_table("t", pa.schema([ID, pa.field("v", VECTOR)]), ["id"])
    assert store.verify().ok
    monkeypatch.setattr(sorted_run, "parquet_type", lambda kind: kind)
    monkeypatch.setattr(type_trial, "_returned", set())
    (problem,) = store.verify().problems
    assert problem.where == "table t"
    assert problem.what.startswith("column 'v': rows of type struct")


def test_types_that_pass_each_by_itself_are_tried_once(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of all of them together that fails was repeated by each later table."""
    trials, reason_of = [], type_trial._reason

    def reason(kinds: list[pa.DataType]) -> str | None:
        trials.append(kinds)
        return "together they are too many" if len(kinds) > 1 else reason_of(kinds)

    monkeypatch.setattr(type_trial, "_returned", set())
    monkeypatch.setattr(type_trial, "_reason", reason)
    fields = [ID, pa.field("a", pa.list_(pa.int8())), pa.field("b", pa.struct([("x", pa.list_(pa.string()))]))]
    store.create_table("t", pa.schema(fields), ["id"])
    assert [len(kinds) for kinds in trials] == [2, 1, 1]
    trials.clear()
    store.create_table("u", pa.schema(fields[:2]), ["id"])
    store.create_table("v", pa.schema(fields), ["id"])
    assert not trials
    wider = pa.field("c", pa.struct([("x", pa.list_(pa.string())), ("y", pa.list_(pa.int16()))]))
    store.create_table("w", pa.schema([*fields, wider]), ["id"])
    assert trials == [[pa.struct([("f0", pa.list_(pa.int16()))])]], "the part that no other type has"


def _without_first(rows: Rows) -> Rows:
    return Rows(rows.keys.slice(1), rows.data.slice(1), rows.deleted)


def _lost(table: pa.Table) -> pa.Table:
    """The table without the values of its last nested column."""
    at = max(place for place, kind in enumerate(table.schema.types) if pa.types.is_nested(kind))
    field = table.schema.field(at)
    return table.set_column(at, field, pa.nulls(len(table), field.type))


def _lost_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from _lost(pa.Table.from_batches([batch])).to_batches()


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "segment": (type_trial, "write_segment", lambda real, *args: real(*args[:5], _without_first(args[5]))),
    "run file": (sorted_run, "_in_parquet_types", lambda real, table: _lost(real(table))),
    "added column": (
        file_columns.ColumnMap,
        "_column",
        lambda real, self, data, field, visible: (
            real(self, data, field, visible)
            if self.sources[field.name] is not None
            else (pa.array([[]] * data.num_rows, field.type), True)
        ),
    ),
    "update": (type_trial.UpdateMerge, "merge", lambda real, *args: [[]]),
    "feed of changes": (type_trial.LogPlan, "batches", lambda real, *args, **how: _lost_batches(real(*args, **how))),
}


@pytest.mark.rule("1.28")
@pytest.mark.planted
@pytest.mark.parametrize("place", PLANTED)
def test_a_bug_on_each_way_of_the_rows_is_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, lossy = PLANTED[place]
    real = getattr(holder, name)
    monkeypatch.setattr(holder, name, lambda *args, **how: lossy(real, *args, **how))
    monkeypatch.setattr(type_trial, "_returned", set())
    kind = pa.list_(pa.field("item", pa.int8(), nullable=False))
    ((column, reason),) = type_trial.unreturned([pa.field("v", kind)])
    assert column == "v"
    assert place in reason


def test_a_shape_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = memory_files.InMemoryFiles
    monkeypatch.setattr(type_trial, "InMemoryFiles", lambda: made.append(1) or real())
    monkeypatch.setattr(type_trial, "_returned", set())
    plain = [pa.field("a", pa.int64()), pa.field("b", pa.timestamp("us", "UTC"))]
    assert not list(type_trial.unreturned(plain))
    assert not made
    for name in ("x", "y"):
        kind = pa.struct([(name, pa.int8()), ("z", pa.int8())])
        wide = pa.list_(pa.float32(), 8 if name == "x" else 768)
        assert not list(type_trial.unreturned([pa.field(name, kind), pa.field("w", wide)]))
    assert made == [1]


def test_many_types_of_the_same_parts_are_tried_by_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many structs of different fields took a few milliseconds, though they have few kinds of fields."""
    tried: list[int] = []
    real = type_trial._reason
    monkeypatch.setattr(type_trial, "_reason", lambda kinds: tried.append(len(kinds)) or real(kinds))
    monkeypatch.setattr(type_trial, "_returned", set())
    leaves, rng = list(LEAVES)[:14], random.Random(3)
    shapes = [
        pa.struct([pa.field(f"f{at}", kind) for at, kind in enumerate(rng.sample(leaves, 7))]) for _ in range(200)
    ]
    assert len({shape_of(shape) for shape in shapes}) > 190
    assert not list(type_trial.unreturned([pa.field(f"c{at}", shape) for at, shape in enumerate(shapes)]))
    assert len(tried) == 1 and tried[0] <= len(leaves)


@pytest.mark.medium
@given(seed=st.integers(0, 2**32 - 1))
def test_a_type_comes_back_if_its_ways_do(seed: int) -> None:
    shape = shape_of(stored_type(random_type(random.Random(seed), 3)))
    ways = list(paths_of(shape))
    assert (type_trial._reason([shape]) is None) == (type_trial._reason(ways) is None)
    for way in ways:
        assert list(paths_of(way)) == [way] and shape_of(way) == way


def test_samples_have_nulls_at_every_level() -> None:
    inner = pa.struct([("c", pa.int8()), pa.field("d", pa.list_(pa.string()), nullable=False)])
    values = sample_column(pa.list_(inner)).to_pylist()
    assert values[-1] is None
    assert [] in values
    assert [None] in values
    flat = [item for value in values if value for item in value if item]
    assert {item["c"] for item in flat} == {1, None}
    assert [] in [item["d"] for item in flat]
    assert [None] in [item["d"] for item in flat]
    for kind in LEAVES:
        assert sample_column(stored_type(kind)).null_count == 1


@given(seed=st.integers(0, 2**32 - 1))
def test_a_shape_has_the_structure_of_its_type(seed: int) -> None:
    kind = stored_type(random_type(random.Random(seed), 3))
    shape = shape_of(kind)
    assert shape_of(shape) == shape
    assert shape.id == kind.id
    sample_column(kind).validate(full=True)
    sample_column(shape).validate(full=True)
