"""States of views in memory, held against plain Python answers to the rows that they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement
from typing import Any

import pyarrow as pa
from sqlglot import exp

from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema
from epochlog.views import state_changes
from epochlog.views.derivation import derive
from epochlog.views.state_changes import StateChange
from epochlog.views.state_tables import Layout, layout_of
from epochlog.views.table_names import IS_NEW

ROWS = {name: pa.field(name, kind) for name, kind in (("v", pa.int64()), ("c", pa.bool_()))}
Row = tuple[Any, bool | None]
"""Value, and condition."""
Signed = tuple[int, Any, bool | None, bool]
"""Group, value, condition, and True for a row that the join gains."""


@dataclass(frozen=True)
class Aggregated:
    """Aggregate of a view, and the answer of plain Python to it. answer: of the rows of a group."""

    text: str
    answer: Callable[[Sequence[Row]], Any]


def _values(rows: Sequence[Row]) -> list[Any]:
    return [value for value, _ in rows if value is not None]


def _passed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row[1] is True]


def _known(rows: Sequence[Row]) -> list[bool]:
    return [condition for _, condition in rows if condition is not None]


def _total(values: Sequence[Any]) -> Any:
    return sum(values) if values else None


def _mean(values: Sequence[Any]) -> float | None:
    return sum(values) / len(values) if values else None


OF_ROWS = (
    Aggregated("COUNT(*)", len),
    Aggregated("COUNT(*) FILTER (WHERE c)", lambda rows: len(_passed(rows))),
    Aggregated("COUNT_IF(c)", lambda rows: len(_passed(rows))),
    Aggregated("BOOL_AND(c)", lambda rows: all(_known(rows)) if _known(rows) else None),
    Aggregated("BOOL_OR(c)", lambda rows: any(_known(rows)) if _known(rows) else None),
)
OF_VALUES = (
    Aggregated("COUNT(v)", lambda rows: len(_values(rows))),
    Aggregated("MIN(v)", lambda rows: min(_values(rows), default=None)),
    Aggregated("MAX(v)", lambda rows: max(_values(rows), default=None)),
    Aggregated("COUNT(DISTINCT v)", lambda rows: len(set(_values(rows)))),
    Aggregated("COUNT(v) FILTER (WHERE c)", lambda rows: len(_values(_passed(rows)))),
    Aggregated("MIN(v) FILTER (WHERE c)", lambda rows: min(_values(_passed(rows)), default=None)),
    Aggregated("MAX(v) FILTER (WHERE c)", lambda rows: max(_values(_passed(rows)), default=None)),
    Aggregated("COUNT(DISTINCT v) FILTER (WHERE c)", lambda rows: len(set(_values(_passed(rows))))),
    Aggregated("COUNT(DISTINCT v, c)", lambda rows: len({row for row in rows if None not in row})),
)
SUMS = (
    Aggregated("SUM(v)", lambda rows: _total(_values(rows))),
    Aggregated("SUM(DISTINCT v)", lambda rows: _total(list(set(_values(rows))))),
    Aggregated("SUM(v) FILTER (WHERE c)", lambda rows: _total(_values(_passed(rows)))),
    Aggregated("SUM(DISTINCT v) FILTER (WHERE c)", lambda rows: _total(list(set(_values(_passed(rows)))))),
)
AVERAGES = (
    Aggregated("AVG(v)", lambda rows: _mean(_values(rows))),
    Aggregated("AVG(v) FILTER (WHERE c)", lambda rows: _mean(_values(_passed(rows)))),
)


@dataclass
class KeptState:
    """State of a view `SELECT g, …` over rows with a value `v` and a condition `c`. kind: the type of the values."""

    aggregates: Sequence[Aggregated]
    kind: pa.DataType = field(default_factory=pa.int64)
    grouped: bool = True
    tables: list[dict[bytes, dict[str, Any]]] = field(init=False)
    """Rows of each state table by encoded key."""

    def __post_init__(self) -> None:
        fields = [pa.field("id", pa.int64(), nullable=False), ("g", pa.int64()), ("v", self.kind), ("c", pa.bool_())]
        schemas = {"t": TableSchema("t", pa.schema(fields), ("id",))}
        outputs = ", ".join(f"{aggregate.text} AS x{place}" for place, aggregate in enumerate(self.aggregates))
        group = ("g", " GROUP BY g") if self.grouped else ("1 AS g", "")
        plan = derive(f"SELECT {group[0]}, {outputs} FROM t{group[1]}", schemas, ["g"]).state
        assert plan is not None
        (self.plan,) = plan.blocks
        kinds = {"g": pa.int64(), "v": self.kind, "c": pa.bool_()}
        types = {name: _type_of(value, kinds) for name, value in self.plan.outputs.items()}
        self.types = pa.schema([*types.items(), (IS_NEW, pa.bool_())])
        layout = layout_of(self.plan.kept, self.types)
        assert layout is not None
        self.layout: Layout = layout
        self.tables = [{} for _ in layout.schemas]

    def apply(self, changes: Sequence[Signed]) -> StateChange:
        """Add changes to the state. Raises Disagreement."""
        inputs = pa.Table.from_pylist([self._input(*change) for change in changes], schema=self.types)
        change = state_changes.state_change(self.layout, inputs, [self._find(n) for n in range(len(self.tables))])
        for number, (rows, gone) in enumerate(change.rows(self.layout)):
            keys = self._encoded(number, rows)
            ends = [False] * len(rows) if gone is None else gone.to_pylist()
            for key, row, ended in zip(keys, rows.to_pylist(), ends, strict=True):
                if ended:
                    self.tables[number].pop(key, None)
                else:
                    self.tables[number][key] = row
        return change

    def require(self, change: StateChange, rows: Mapping[int, Sequence[Row]]) -> None:
        """Compare the values of the groups of a change with the answers. rows: of each group, after the change."""
        values = state_changes.aggregate_values(self.layout, change.groups.columns)
        groups = change.keys.columns.column("g0").to_pylist()
        for place, aggregate in enumerate(self.aggregates):
            own = self.plan.kept.aggregates[self._number(place)]
            skipped = change.groups.redone if own.is_extreme else None
            skipped = change.groups.inexact if own.kind == "average" else skipped
            skips = [False] * len(groups) if skipped is None else skipped.to_pylist()
            for group, value, skip in zip(groups, values[own.name].to_pylist(), skips, strict=True):
                wanted = aggregate.answer(rows[group])
                assert skip or value == wanted, f"{aggregate.text} of {rows[group]}: {value}, not {wanted}"

    def require_equal(self, other: KeptState, redone: set[int]) -> None:
        """Compare the tables with those of another state. redone: groups whose extremes are unknown."""
        for number, (mine, theirs) in enumerate(zip(self.tables, other.tables, strict=True)):
            assert mine.keys() == theirs.keys(), f"keys of table {number}"
            for key, row in mine.items():
                for name, value in row.items():
                    skip = number == 0 and name.endswith("m") and row["g0"] in redone
                    assert skip or value == theirs[key][name], f"{name} of {row}, not {theirs[key]}"

    def _number(self, place: int) -> int:
        """Return the place of an output's aggregate in the plan, which has equal ones once."""
        name = self.plan.rows.expressions[place + 1].this.name
        return [aggregate.name for aggregate in self.plan.kept.aggregates].index(name)

    def _input(self, group: int, value: Any, condition: bool | None, is_new: bool) -> dict[str, Any]:
        row = {"g": group, "v": value, "c": condition}
        return {IS_NEW: is_new, **{name: _evaluated(part, row) for name, part in self.plan.outputs.items()}}

    def _find(self, number: int) -> state_changes.Find:
        schema = self.layout.schemas[number].schema

        def find(keys: pa.Array, columns: Sequence[str]) -> dict[str, pa.Array]:
            rows = [self.tables[number].get(key, {}) for key in keys.to_pylist()]
            return {name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in columns}

        return find

    def _encoded(self, number: int, rows: pa.Table) -> list[bytes]:
        schema = self.layout.schemas[number]
        key = rows.select(list(schema.primary_key))
        return KeyCodec(schema.schema, schema.primary_key).encode(key).to_pylist()


def _type_of(value: exp.Expr, kinds: Mapping[str, pa.DataType]) -> pa.DataType:
    return _type_of(value.args["ifs"][0].args["true"], kinds) if isinstance(value, exp.Case) else kinds[value.name]


def _evaluated(value: exp.Expr, row: Mapping[str, Any]) -> Any:
    """Return an argument of an aggregate of a row."""
    if isinstance(value, exp.Case):
        (branch,) = value.args["ifs"]
        return _evaluated(branch.args["true"], row) if _evaluated(branch.this, row) is True else None
    assert isinstance(value, exp.Column)
    return row[value.name]


def small_groups(values: Sequence[Any], most: int = 3) -> Iterator[tuple[Row, ...]]:
    """Yield all multisets of rows with these values and any condition."""
    rows = [(value, condition) for value in values for condition in (None, False, True)]
    for size in range(most + 1):
        yield from combinations_with_replacement(rows, size)


def small_changes(group: Sequence[Row], values: Sequence[Any]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield all changes of one row or two of a group: the lost and the gained ones."""
    rows = [(value, condition) for value in values for condition in (None, False, True)]
    places = range(len(group))
    for lost_places in (set(some) for size in range(3) for some in combinations(places, size)):
        lost = [group[place] for place in sorted(lost_places)]
        for size in range(3 - len(lost)):
            for gained in combinations_with_replacement(rows, size):
                if lost or gained:
                    yield lost, list(gained)


def after(group: Sequence[Row], lost: Sequence[Row], gained: Sequence[Row]) -> list[Row]:
    """Return the rows of a group after a change."""
    rows = list(group)
    for row in lost:
        rows.remove(row)
    return [*rows, *gained]
