"""Changes of states, and the values of their aggregates, of all small groups and changes: they are plain Python's."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from epochlog.views import state_changes
from epochlog.views.aggregate_state import Aggregate
from epochlog.views.state_changes import Coded, Column, Disagreement, StateChange, Values
from epochlog.views.state_tables import Layout, ValueTable, substitute
from epochlog.views.table_names import IS_NEW
from kept_states import (
    AVERAGES,
    OF_ROWS,
    OF_VALUES,
    SUMS,
    Aggregated,
    KeptState,
    Row,
    Signed,
    after,
    small_changes,
    small_groups,
)

DAY = dt.datetime(2026, 1, 2)


@dataclass(frozen=True)
class Kind:
    """Type of values, with two of them in their order, and the aggregates that take it."""

    type: pa.DataType
    values: tuple[Any, Any]
    aggregates: tuple[Aggregated, ...]


KINDS = {
    "integers": Kind(pa.int64(), (1, 2), (*OF_ROWS, *OF_VALUES, *SUMS, *AVERAGES)),
    "small integers around 0": Kind(pa.int8(), (-1, 1), (*OF_VALUES, *SUMS, *AVERAGES)),
    "decimals": Kind(pa.decimal128(9, 2), (Decimal("-0.25"), Decimal("1.50")), (*OF_VALUES, *SUMS)),
    "texts": Kind(pa.string(), ("", "a"), OF_VALUES),
    "days": Kind(pa.date32(), (dt.date(1970, 1, 1), DAY.date()), OF_VALUES),
    "times": Kind(pa.timestamp("us"), (dt.datetime(1970, 1, 1), DAY), OF_VALUES),
    "times in a zone": Kind(
        pa.timestamp("us", "UTC"),
        (dt.datetime(1969, 1, 1, tzinfo=dt.UTC), DAY.replace(tzinfo=dt.UTC)),
        OF_VALUES,
    ),
    "booleans": Kind(pa.bool_(), (False, True), OF_VALUES),
}

Case = tuple[Sequence[Row], Sequence[Row], Sequence[Row], Sequence[Row]]
"""Rows of a group, those that it loses and gains, and those that a delta join has of none."""


def all_cases(values: Sequence[Any], *, noisy: bool = False) -> list[Case]:
    """Return all small groups with all their changes. noisy: with a row that is gained and lost in one step too."""
    rows = [(value, condition) for value in values for condition in (None, False, True)]
    return [
        (group, lost, gained, noise)
        for group in small_groups(values, 2 if noisy else 3)
        for lost, gained in small_changes(group, values)
        for noise in ([[row] for row in rows] if noisy else [[]])
        if not noisy or len(lost) + len(gained) == 1
    ]


def check_cases(kind: Kind, cases: Sequence[Case], *, seed: int = 0) -> None:
    """Apply a change to each group of one state, and compare the state and the values with those of the rows."""
    state, fresh = KeptState(kind.aggregates, kind.type), KeptState(kind.aggregates, kind.type)
    before = {number: list(case[0]) for number, case in enumerate(cases)}
    state.require(state.apply(_signed(before, is_new=True)), before)
    changes: list[Signed] = []
    for number, (_, lost, gained, noise) in enumerate(cases):
        changes += _signed({number: [*gained, *noise]}, is_new=True) + _signed({number: [*lost, *noise]}, is_new=False)
    random.Random(seed).shuffle(changes)
    rows = {number: after(*case[:3]) for number, case in enumerate(cases)}
    change = state.apply(changes)
    state.require(change, rows)
    fresh.apply(_signed(rows, is_new=True))
    groups = change.keys.columns.column("g0").to_pylist()
    redone = {group for group, unknown in zip(groups, change.groups.redone.to_pylist(), strict=True) if unknown}
    assert all(cases[number][1] for number in redone), "a group that loses nothing is computed again"
    assert not any(change.groups.inexact.to_pylist())
    state.require_equal(fresh, redone)


def check_alone(kind: Kind, case: Case) -> None:
    """Apply a change to a state of all rows, and compare the values with those of the rows."""
    group, lost, gained, noise = case
    state = KeptState(kind.aggregates, kind.type, grouped=False)
    state.require(state.apply(_signed({0: group}, is_new=True)), {0: group})
    changes = _signed({0: [*gained, *noise]}, is_new=True) + _signed({0: [*lost, *noise]}, is_new=False)
    state.require(state.apply(changes), {0: after(group, lost, gained)})


def _signed(rows: dict[int, Sequence[Row]], *, is_new: bool) -> list[Signed]:
    return [(group, *row, is_new) for group, own in rows.items() for row in own]


@pytest.mark.medium
@pytest.mark.parametrize("name", KINDS)
def test_a_sample_of_small_changes(name: str) -> None:
    seed, kind = random.randrange(1 << 32), KINDS[name]
    print("seed", seed)
    cases = all_cases((None, *kind.values))
    check_cases(kind, random.Random(seed).sample(cases, 500), seed=seed)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_all_small_changes(name: str) -> None:
    check_cases(KINDS[name], all_cases((None, *KINDS[name].values)))


@pytest.mark.medium
@pytest.mark.parametrize("name", ["integers", "texts"])
def test_rows_that_neither_join_has_are_no_rows(name: str) -> None:
    """Take a row of a delta join with both signs for neither gained nor lost."""
    check_cases(KINDS[name], all_cases((None, *KINDS[name].values), noisy=True))


@pytest.mark.medium
def test_a_sample_of_changes_of_all_rows() -> None:
    seed, kind = random.randrange(1 << 32), KINDS["integers"]
    print("seed", seed)
    for case in random.Random(seed).sample(all_cases((None, *kind.values)), 15):
        check_alone(kind, case)


@pytest.mark.long
def test_all_small_changes_of_all_rows() -> None:
    kind = KINDS["integers"]
    for case in all_cases((None, *kind.values)):
        check_alone(kind, case)


def check_averages() -> None:
    """Take averages of sums around the largest exact one."""
    state = KeptState(AVERAGES[:1])
    for value, inexact in ((2**53 - 2, False), (2**53 - 1, True), (-(2**53), True), (2**62, True), (5, False)):
        change = state.apply([(0, value, None, True), (0, 1, None, True)])
        assert change.groups.inexact.to_pylist() == [inexact]
        state.require(change, {0: [(value, None), (1, None)]})
        state.apply([(0, value, None, False), (0, 1, None, False)])
    assert state.tables == [{}]


@pytest.mark.medium
def test_averages_are_taken_while_doubles_are_exact() -> None:
    check_averages()


DISAGREEMENTS = {
    "a row of no group": ("COUNT(DISTINCT v)", [], [(None, True)]),
    "a value of no row": ("COUNT(DISTINCT v)", [(1, True)], [(2, True)]),
    "a number above that of the rows": ("MIN(v)", [(1, True), (None, True)], [(None, True), (None, True)]),
    "true values of no row": ("BOOL_OR(c)", [(1, False), (1, True)], [(1, True), (1, True)]),
    "more values than rows": ("COUNT(DISTINCT v)", [(1, None), (None, None)], [(None, None)] * 2),
    "a condition of no row": ("COUNT(DISTINCT v) FILTER (WHERE c)", [(1, True), (1, False)], [(1, True)] * 2),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_changes_that_do_not_fit_the_state_are_no_changes(name: str) -> None:
    text, rows, lost = DISAGREEMENTS[name]
    state = KeptState([some for some in (*OF_ROWS, *OF_VALUES) if some.text == text])
    state.apply(_signed({0: rows}, is_new=True))
    with pytest.raises(Disagreement):
        state.apply(_signed({0: lost}, is_new=False))


# ---- planted errors ------------------------------------------------------------------------------------------------


def _rows_are_not_netted(patch: pytest.MonkeyPatch) -> None:
    original = state_changes._extremes

    def extremes(aggregate: Aggregate, prefix: str, inputs: pa.Table, groups: Coded, sign: Column) -> dict[str, Any]:
        both: dict[str, Any] = {}
        for end, is_new in (("i", True), ("d", False)):
            mask = pc.equal(inputs.column(IS_NEW), is_new)
            own = replace(groups, codes=groups.codes[np.array(mask)])
            answer = original(aggregate, prefix, inputs.filter(mask), own, sign.filter(mask))
            both[prefix + end] = answer[prefix + end]
        return both

    patch.setattr(state_changes, "_extremes", extremes)


def _lost_extremes_stay(patch: pytest.MonkeyPatch) -> None:
    original = state_changes._extreme_after

    def extreme_after(aggregate: Aggregate, prefix: str, before: Any, changes: Any, count: Any) -> Any:
        lost = changes[f"{prefix}d"]
        return original(aggregate, prefix, before, {**changes, f"{prefix}d": pa.nulls(len(lost), lost.type)}, count)

    patch.setattr(state_changes, "_extreme_after", extreme_after)


def _rows_are_counted_as_values(patch: pytest.MonkeyPatch) -> None:
    original = state_changes.values_after

    def values_after(table: ValueTable, rows: pa.Table, by_value: Coded, before: Mapping[str, pa.Array]) -> Values:
        values = original(table, rows, by_value, before)
        changes = {name: pc.subtract(values.columns.column(name), before[name]) for name in table.counts}
        return replace(values, appeared={name: pa.array(column.to_pylist()) for name, column in changes.items()})

    patch.setattr(state_changes, "values_after", values_after)


def _null_is_a_value(patch: pytest.MonkeyPatch) -> None:
    original = state_changes.value_rows

    def value_rows(layout: Layout, table: ValueTable, inputs: pa.Table, key: pa.Table) -> pa.Table:
        for name in table.inputs:
            filled = pc.fill_null(inputs.column(name), substitute(layout.types[name]))
            inputs = inputs.set_column(inputs.column_names.index(name), name, filled)
        return original(layout, table, inputs, key)

    patch.setattr(state_changes, "value_rows", value_rows)


def _filters_pass_null(patch: pytest.MonkeyPatch) -> None:
    def where(condition: Column, values: Column) -> Column:
        return pc.if_else(pc.fill_null(condition, True), values, pa.scalar(0, pa.int64()))

    patch.setattr(state_changes, "_where", where)


def _groups_stay_without_rows(patch: pytest.MonkeyPatch) -> None:
    original = StateChange.rows

    def rows(change: StateChange, layout: Layout) -> list[tuple[pa.Table, pa.Array | None]]:
        (own, _), *of_values = original(change, layout)
        return [(own, None), *of_values]

    patch.setattr(StateChange, "rows", rows)


def _values_stay_without_rows(patch: pytest.MonkeyPatch) -> None:
    original = StateChange.rows

    def rows(change: StateChange, layout: Layout) -> list[tuple[pa.Table, pa.Array | None]]:
        first, *of_values = original(change, layout)
        return [first, *((own, None) for own, _ in of_values)]

    patch.setattr(StateChange, "rows", rows)


def _lost_rows_are_ignored(patch: pytest.MonkeyPatch) -> None:
    original = state_changes.state_change

    def state_change(layout: Layout, inputs: pa.Table, finds: Sequence[state_changes.Find]) -> StateChange:
        return original(layout, inputs.filter(inputs.column(IS_NEW)), finds)

    patch.setattr(state_changes, "state_change", state_change)


def _sums_add_known_values(patch: pytest.MonkeyPatch) -> None:
    original = state_changes._distinct_changes

    def distinct_changes(
        layout: Layout, aggregate: Aggregate, prefix: str, place: int, values: tuple[Values, Any], size: int
    ) -> dict[str, pa.Array]:
        changed, codes = values
        if aggregate.kind == "sum":
            appeared = {name: pc.if_else(pc.equal(some, 0), 1, some) for name, some in changed.appeared.items()}
            changed = replace(changed, appeared=appeared)
        return original(layout, aggregate, prefix, place, (changed, codes), size)

    patch.setattr(state_changes, "_distinct_changes", distinct_changes)


def _inexact_averages_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_changes, "EXACT", 2**62)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[Plant] = [
    _lost_extremes_stay,
    _rows_are_counted_as_values,
    _null_is_a_value,
    _filters_pass_null,
    _groups_stay_without_rows,
    _values_stay_without_rows,
    _lost_rows_are_ignored,
    _sums_add_known_values,
]


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize("plant", PLANTED)
def test_planted_errors_are_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    kind = KINDS["integers"]
    with pytest.raises(AssertionError):
        check_cases(kind, random.Random(0).sample(all_cases((None, *kind.values)), 500))


@pytest.mark.planted
@pytest.mark.medium
def test_rows_that_are_not_netted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _rows_are_not_netted(monkeypatch)
    kind = KINDS["integers"]
    with pytest.raises(AssertionError):
        check_cases(kind, random.Random(0).sample(all_cases((None, *kind.values), noisy=True), 500))


@pytest.mark.planted
@pytest.mark.medium
def test_averages_that_are_not_exact_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _inexact_averages_are_taken(monkeypatch)
    with pytest.raises(AssertionError):
        check_averages()
