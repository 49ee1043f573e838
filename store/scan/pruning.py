"""Pruning: the columns that a filter needs, and the files and key ranges whose rows cannot pass it.

Only statistics of key columns may rule out an L0 file: a row that fails a filter on other columns must still be read,
for it may replace an older row that would pass.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput
from epochlog.store.sst.file_columns import Described, stats_of
from epochlog.store.sst.guarantees import passing_guarantees
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.schema import TableSchema

Stats = Mapping[str, tuple[Any, Any]]
_FAN = 32
UNFIT = (pa.ArrowException, KeyError, TypeError)


def filter_columns(table: TableSchema, columns: Sequence[str], filter: pc.Expression | None) -> list[str]:
    """Return `columns` and after them the other columns that the filter names."""
    return list(columns) if filter is None else needed_columns(table.name, table.schema, columns, filter)


def needed_columns(table: str, schema: pa.Schema, columns: Sequence[str], filter: pc.Expression) -> list[str]:
    """Return `columns` and after them the other columns of the schema that the filter needs. Raise InvalidInput for a
    filter that does not fit the table.
    """
    check_filter(filter)
    wanted = list(columns)
    if binds(pa.schema([schema.field(name) for name in wanted]), filter):
        return wanted
    try:
        bind(schema, filter)
    except UNFIT as error:
        raise InvalidInput(f"the filter does not fit table {table!r}: {error}") from error
    given = set(wanted)
    return wanted + _needed(schema, [name for name in schema.names if name not in given], filter)


def _needed(schema: pa.Schema, names: list[str], filter: pc.Expression) -> list[str]:
    """Return those of these columns without which the filter cannot be evaluated, in few tries: half by half."""
    if not names or binds(_without(schema, names), filter):
        return []
    half = len(names) // 2
    return [*_needed(schema, names[:half], filter), *_needed(schema, names[half:], filter)] if half else names


MOST_DEPTH = 2_000
"""Largest depth of nested calls in an expression: Arrow evaluates them by recursion, and a stack has an end."""
MOST_CALLS = 40_000
_STACK = 256 << 20
_stack_size = threading.Lock()
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def check_filter(filter: object) -> None:
    """Raise InvalidInput for a filter that is no expression, or so deep or large that its evaluation would end the
    process or never end.
    """
    if not isinstance(filter, pc.Expression):
        raise InvalidInput(f"filter must be a pyarrow.compute.Expression, such as pc.field('x') > 1, not {filter!r}")
    text = _QUOTED.sub("", _described(filter))
    depth = deepest = 0
    for step in re.findall(r"[()]", text):
        depth += 1 if step == "(" else -1
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH or text.count("(") > MOST_CALLS:
        raise InvalidInput(
            f"the filter is {deepest} levels deep and has {text.count('(')} calls; at most {MOST_DEPTH} and "
            f"{MOST_CALLS} are taken. For a long list of values use isin; join many terms pairwise, not in a row"
        )


def _described(filter: pc.Expression) -> str:
    """Return the expression as text. A thread with a large stack makes it, for Arrow prints it by recursion too."""
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(str(filter)), name="epochlog-filter")
    with _stack_size:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return texts[0]


def binds(schema: pa.Schema, filter: pc.Expression) -> bool:
    """Return True if these columns are enough to evaluate the filter."""
    try:
        bind(schema, filter)
    except UNFIT:
        return False
    return True


def bind(schema: pa.Schema, filter: pc.Expression) -> None:
    """Raise one of UNFIT for a filter that these columns are not enough to evaluate."""
    pa.Table.from_batches([], schema).filter(filter)


def _without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    left_out = set(names)
    return pa.schema([field for field in schema if field.name not in left_out])


def passed(table: str, rows: pa.Table, filter: pc.Expression | None) -> pa.Table:
    """Return the rows that pass the filter; InvalidInput if it cannot be computed for one of them, as 1 / 0 cannot."""
    if filter is None:
        return rows
    try:
        return rows.filter(filter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInput(
            f"the filter cannot be computed for the rows of table {table!r}: {error}. Where a value "
            "is of another type than its column, give it in the column's: pa.scalar(value, type)"
        ) from error


def conjunction(*filters: pc.Expression | None) -> pc.Expression | None:
    """Join filters with `and`, without those that are None; None if all are."""
    present = [term for term in filters if term is not None]
    return reduce(and_, present) if present else None


def key_prunes(table: TableSchema, filter: pc.Expression | None) -> Callable[[Described], bool]:
    """Return a test of a file by its key statistics: True when no row of the file can pass the filter."""
    if filter is None:
        return lambda _: False
    schema = table.schema

    def ruled_out(file: Described) -> bool:
        guarantee = key_guarantee(schema, stats_of(table, file))
        return guarantee is not None and not passing_guarantees(schema, filter, [guarantee])

    return ruled_out


def key_ranges(
    table: TableSchema, filter: pc.Expression, starts: Sequence[Key], last: Key, within: KeyRange
) -> list[KeyRange]:
    """Return the ranges of `within`, ascending, outside of which no row passes the filter.

    starts: keys at which blocks of the files begin, sorted, each once; no key lies below the first or above `last`.
    Only what the filter says of the first key column counts. It holds for every version of a row, so that newer ones
    are left out together with those that they replace.
    """
    codec = KeyCodec(table.schema, table.primary_key)
    first = table.primary_key[0]
    values = None if binds(_without(table.schema, [first]), filter) else codec.leading([*starts, last])
    if values is None:
        return [within]
    spans = [(0, len(starts))]
    while any(end - low > 1 for low, end in spans):
        spans = [part for span in spans for part in _cut(span)]
        spans = [
            spans[place]
            for place in passing_guarantees(
                table.schema, filter, [_between(codec, first, values, span) for span in spans]
            )
        ]
    edges: list[Key | None] = [*starts, None]
    return [
        keys
        for low, end in _touching(spans)
        if (keys := within.intersection(KeyRange(edges[low] if low else None, edges[end]))) is not None
    ]


def _cut(span: tuple[int, int]) -> list[tuple[int, int]]:
    low, end = span
    step = max(1, -(-(end - low) // _FAN))
    return list(pairwise([*range(low, end, step), end]))


def _between(codec: KeyCodec, first: str, values: pa.Array, span: tuple[int, int]) -> pc.Expression:
    """Return an expression that holds for the first key column in a span of `values`. NaN, the greatest key, is in no
    bounds.
    """
    low, high = values[span[0]], values[span[1]]
    if pa.types.is_floating(values.type) and low.as_py() != low.as_py():
        return pc.scalar(True)
    above = pc.field(first) >= low
    if pa.types.is_floating(values.type) and high.as_py() != high.as_py():
        return above if span[1] < len(values) - 1 and not codec.hidden else pc.scalar(True)
    if span[1] < len(values) - 1 and not codec.hidden:
        return above & (pc.field(first) < high)
    return above & (pc.field(first) <= high)


def _touching(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge the spans that touch."""
    merged: list[tuple[int, int]] = []
    for low, end in spans:
        if merged and low == merged[-1][1]:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((low, end))
    return merged


def key_guarantee(schema: pa.Schema, stats: Stats) -> pc.Expression | None:
    """Return an expression that holds for every row, by the statistics of key columns; None without statistics."""
    guarantee = None
    for name, (low, high) in stats.items():
        kind = schema.field(name).type
        bounds = (pc.field(name) >= _scalar(low, kind)) & (pc.field(name) <= _scalar(high, kind))
        guarantee = bounds if guarantee is None else guarantee & bounds
    return guarantee


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Convert a statistic's plain value (an int for times and dates) to a scalar of its column's type."""
    if pa.types.is_temporal(kind) and isinstance(value, int):
        storage = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([value], storage).view(kind)[0]
    return pa.scalar(value, kind)
