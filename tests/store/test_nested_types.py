"""Types that the store takes return every value: nulls at each level, empty lists, required fields below nulls."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.commit import table_ddl
from epochlog.store.commit.type_trial import require_returnable
from epochlog.store.sst import sorted_run
from epochlog.store.types import column_types
from epochlog.store.types.column_types import has_size_zero, parquet_type
from nested_values import LITERAL, SIZE_ZERO
from random_types import random_type, random_value


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as opened:
        yield opened


def check(store: el.Store, name: str, wanted: list[Any]) -> None:
    """All doors return the values of column `v`, in the order of the ids, and Arrow can use what they return."""
    table = store.table(name)
    rows = table.to_arrow()
    assert rows.column("v").to_pylist() == wanted
    rows.validate(full=True)
    assert rows.schema.equals(table.schema, check_metadata=True)
    for foreign in (
        rows,
        table.changes(0, pre_images=True).read_all(),
    ):  # Arrow's own code can use them
        kind = foreign.schema.field("v").type
        if kind.equals(parquet_type(kind)):  # of the others Arrow has no Parquet
            pq.write_table(foreign, pa.BufferOutputStream())
        assert foreign.cast(foreign.schema).equals(foreign)
    assert table.get(pa.table({"id": [2]})).column("v").to_pylist() == wanted[2:3]
    assert pa.Table.from_batches(table.scan(columns=["v"])).column("v").to_pylist() == wanted
    changes = table.changes(0, mode="net").read_all().sort_by("id")
    assert changes.column("v").to_pylist() == wanted


@pytest.mark.rule("1.28")
@pytest.mark.parametrize("kind, values", LITERAL.values(), ids=list(LITERAL))
def test_a_type_returns_its_values(store: el.Store, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    table = store.create_table("t", schema, ["id"])
    table.upsert(pa.table([pa.array([0, 1, 2]), pa.array(values, kind)], schema=schema))
    check(store, "t", values)
    store.compact("t", full=True)
    check(store, "t", values)
    table.update(pa.table([pa.array([0, 1]), pa.array(values[1::-1], kind)], schema=schema))
    check(store, "t", [values[1], values[0], values[2]])
    store.compact("t", full=True)
    check(store, "t", [values[1], values[0], values[2]])


@pytest.mark.rule("1.28")
@pytest.mark.parametrize("kind, values", LITERAL.values(), ids=list(LITERAL))
def test_an_added_column_returns_its_values(store: el.Store, kind: pa.DataType, values: list[Any]) -> None:
    table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    table.upsert(pa.table({"id": [0, 1, 2]}))
    table.alter(add=[pa.field("v", kind)])
    check(store, "t", [None] * 3)
    table.update(pa.table([pa.array([0]), pa.array(values[:1], kind)], names=["id", "v"]))
    check(store, "t", [values[0], None, None])
    store.compact("t", full=True)
    check(store, "t", [values[0], None, None])


@pytest.mark.rule("1.28")
@pytest.mark.parametrize("kind, values", SIZE_ZERO.values(), ids=list(SIZE_ZERO))
def test_a_size_of_zero_is_refused_by_name(store: el.Store, kind: pa.DataType, values: list[Any]) -> None:
    message = r"table t, column 'v': type .* has a size of 0.*Write a list, or a size of 1 or more"
    for column in (kind, pa.struct([("a", pa.list_(kind))])):
        schema = pa.schema([("id", pa.int64()), ("v", column)])
        with pytest.raises(el.InvalidSchema, match=message):
            store.create_table("t", schema, ["id"])
    table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    with pytest.raises(el.InvalidSchema, match=message):
        table.alter(add=[pa.field("v", kind)])
    assert table.schema.names == ["id"]


@pytest.mark.damages_store
@pytest.mark.parametrize("kind, values", SIZE_ZERO.values(), ids=list(SIZE_ZERO))
def test_a_table_of_version_0_2_with_a_size_of_zero_goes_on(
    store: el.Store, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, values: list[Any]
) -> None:
    monkeypatch.setattr(table_ddl, "require_returnable", lambda table, fields: None)
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    store.create_table("t", schema, ["id"]).upsert(
        pa.table([pa.array([0, 1, 2]), pa.array(values, kind)], schema=schema)
    )
    check(store, "t", values)
    store.compact("t", full=True)
    check(store, "t", values)
    (problem,) = store.verify().problems
    assert problem.where == "table t"
    assert "column 'v'" in problem.what and "Write a list" in problem.what


@pytest.mark.parametrize(
    "name",
    ["a required vector in a null struct", pytest.param("a vector of length 0", marks=pytest.mark.damages_store)],
)
def test_run_files_of_version_0_2_return_their_values(
    store: el.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Version 0.2 wrote these columns with Arrow's types, by which Arrow's reader fails. The values are in the file."""
    monkeypatch.setattr(table_ddl, "require_returnable", lambda table, fields: None)
    kind, values = {**LITERAL, **SIZE_ZERO}[name]
    others = {
        "large": (pa.large_string(), "x"),
        "span": (pa.duration("s"), dt.timedelta(1)),
        "at": (pa.timestamp("s", "Asia/Tokyo"), 3),
        "day": (pa.date64(), dt.date(2024, 1, 1)),
        "wide": (pa.decimal256(50, 1), Decimal("1.5")),
        "half": (pa.float16(), 0.5),
        "sizes": (pa.large_list(pa.uint16()), [1]),
    }
    fields = [("id", pa.int64()), ("v", kind), *((name, kind) for name, (kind, _) in others.items())]
    table = store.create_table("t", pa.schema(fields), ["id"], options=el.TableOptions(compaction_check="off"))
    columns = [pa.array([0, 1, 2]), pa.array(values, kind), *(pa.array([v, None, v], k) for k, v in others.values())]
    table.upsert(pa.table(columns, schema=pa.schema(fields)))
    rows = table.to_arrow()
    with monkeypatch.context() as patch:
        patch.setattr(sorted_run, "_in_parquet_types", lambda table: table)
        if name == "a required vector in a null struct" and not column_types.FIXED_SIZES_FROM_PARQUET:
            with pytest.raises(el.WriteFailed, match="non-zero length null"):  # an older pyarrow writes no such file
                store.compact("t", full=True)
            return
        store.compact("t", full=True)
    check(store, "t", values)
    assert table.to_arrow().equals(rows)
    table.alter(rename={"half": "small"})
    check(store, "t", values)


def test_a_column_may_have_the_name_of_another_ones_field(store: el.Store) -> None:
    """Parquet has one path for both, and options by path: such a key's encoding is not for a text."""
    schema = pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.string())])), ("c.d", pa.string())])
    table = store.create_table("t", schema, ["a.b"])
    table.upsert(pa.table([[1, 2], pa.array([{"b": "x"}, None], schema.field("a").type), ["p", "q"]], schema=schema))
    rows = table.to_arrow()
    store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    table.alter(add=[pa.field("n", pa.int8())])
    for number in (1, 2):
        assert table.to_arrow(filter=pc.field("a.b") == number).column("a.b").to_pylist() == [number]
    assert table.to_arrow(columns=["a"]).equals(rows.select(["a"]))


class NestedRows:
    """A table of columns of random types, some of them added later, beside its rows as Python values."""

    def __init__(self, store: el.Store, rng: random.Random) -> None:
        self.store, self.rng = store, rng
        self.fields = [self._field(f"v{i}", 3) for i in range(5)]
        self.added = [self._field(f"w{i}", 3, nullable=True) for i in range(2)]
        self.rows: dict[int, dict[str, Any]] = {}
        schema = pa.schema([("id", pa.int64()), *self.fields])
        self.table = store.create_table("t", schema, ["id"], changelog=rng.choice(["upsert", "full"]))
        self.past: list[tuple[int, dict[int, dict[str, Any]]]] = []

    def _field(self, name: str, depth: int, *, nullable: bool | None = None) -> pa.Field:
        nullable = self.rng.random() < 0.7 if nullable is None else nullable
        kind = random_type(self.rng, depth)
        while has_size_zero(kind):
            with pytest.raises(el.InvalidSchema, match=f"column {name!r}.*size of 0"):
                require_returnable("t", [pa.field(name, kind)])
            kind = random_type(self.rng, depth)
        return pa.field(name, kind, nullable=nullable)

    def step(self) -> None:
        choice = self.rng.random()
        ids = self.rng.sample(range(8), 4)
        if choice < 0.4:
            self._write(self.table.upsert, ids, self.fields)
        elif choice < 0.6:
            known = [i for i in ids if i in self.rows]
            some = self.rng.sample(self.fields, 3)
            self._write(self.table.update, known, some)
        elif choice < 0.7:
            self._delete(ids[:1])
        elif choice < 0.85:
            self.store.compact("t", full=self.rng.random() < 0.5)
        elif self.added:
            field = self.added.pop()
            self.table.alter(add=[field])
            self.fields.append(field)
            self.rows = {id_: {**row, field.name: None} for id_, row in self.rows.items()}

    def _write(self, write: Any, ids: list[int], fields: list[pa.Field]) -> None:
        if not ids:
            return
        values = {f.name: [random_value(self.rng, f.type, f.nullable) for _ in ids] for f in fields}
        columns = [pa.array(ids), *(pa.array(values[f.name], f.type) for f in fields)]
        data = pa.table(columns, names=["id", *values])
        epoch = write(data)
        for id_, row in zip(ids, data.drop_columns(["id"]).to_pylist(), strict=True):
            self.rows = {**self.rows, id_: {**self.rows.get(id_, {}), **row}}
        self.past.append((epoch, self.rows))

    def _delete(self, ids: list[int]) -> None:
        epoch = self.table.delete(pa.table({"id": ids}))
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in ids}
        self.past.append((epoch, self.rows))

    def check(self) -> None:
        for epoch, rows in self.past[-3:]:
            assert self._as_rows(self.table.to_arrow(epoch=epoch)) == rows
        if self.past:
            self._check_doors()

    def _check_doors(self) -> None:
        newest = self.table.to_arrow()
        newest.validate(full=True)
        assert newest.schema.equals(self.table.schema, check_metadata=True)
        assert self._as_rows(newest) == self.rows
        some = self.table.get(pa.table({"id": [0, 5, 7]}))
        some.validate(full=True)
        assert self._as_rows(some) == {id_: self.rows[id_] for id_ in (0, 5, 7) if id_ in self.rows}
        assert self._as_rows(self._fed(0)) == self.rows

    def _fed(self, after: int) -> pa.Table:
        changes = self.table.changes(after, mode="net").read_all()
        live = changes.filter(pc.not_equal(changes["_change_type"], "delete"))
        return live.select(self.table.schema.names)

    @staticmethod
    def _as_rows(rows: pa.Table) -> dict[int, dict[str, Any]]:
        return {row.pop("id"): row for row in rows.to_pylist()}


@pytest.mark.medium
@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_types_return_random_rows(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    with el.open(tmp_path_factory.mktemp("random"), durability="os") as store:
        rows = NestedRows(store, rng)
        for _ in range(8):
            rows.step()
        rows.check()
        store.compact("t", full=True)
        rows.check()
