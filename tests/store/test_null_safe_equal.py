"""Equality of two values of a column, by which commits and changes leave out unchanged rows."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochlog.store.types.null_safe_equal import same_values

NAN = math.nan
OTHER_NAN = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
PAIR = pa.struct([("x", pa.float64()), ("y", pa.string())])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [None, 0, -1]),
    "bool": (pa.bool_(), [None, False, True]),
    "half": (pa.float16(), [None, *map(np.float16, (0.0, -0.0, NAN, 1.5))]),
    "float": (pa.float32(), [None, 0.0, -0.0, NAN, math.inf]),
    "double": (pa.float64(), [None, 0.0, -0.0, NAN, 5e-324]),
    "text": (pa.string(), [None, "", "a", "a "]),
    "large_text": (pa.large_string(), [None, "", "a"]),
    "bytes": (pa.binary(), [None, b"", b"\0"]),
    "fixed": (pa.binary(2), [None, b"ab", b"ac"]),
    "decimal": (pa.decimal128(20, 2), [None, Decimal("0.00"), Decimal("1.10")]),
    "date": (pa.date32(), [None, dt.date(2025, 1, 1), dt.date(2025, 1, 2)]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [None, dt.datetime(2025, 1, 1, tzinfo=dt.UTC)]),
    "list": (pa.list_(pa.float64()), [None, [], [None], [0.0], [-0.0], [NAN], [0.0, 1.0]]),
    "large_list": (pa.large_list(pa.string()), [None, [], ["a"], ["b"], [None]]),
    "fixed_list": (pa.list_(pa.int64(), 2), [None, [1, 2], [1, None], [2, 1]]),
    "struct": (PAIR, [None, {"x": None, "y": None}, {"x": 0.0, "y": "a"}, {"x": -0.0, "y": "a"}, {"x": NAN, "y": "a"}]),
    "map": (pa.map_(pa.string(), pa.float64()), [None, [], [("a", 0.0)], [("a", -0.0)], [("a", NAN)], [("b", 0.0)]]),
    "nested": (pa.list_(PAIR), [None, [], [None], [{"x": 0.0, "y": None}], [{"x": -0.0, "y": None}]]),
}


@pytest.mark.rule("5.13")
@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_the_same_as_itself_alone(name: str) -> None:
    """All pairs of values that differ in as little as the type allows; null is a value, NaN one, -0.0 is not 0.0."""
    kind, values = VALUES[name]
    places = [(a, b) for a in range(len(values)) for b in range(len(values))]
    left = pa.array([values[a] for a, _ in places], kind)
    right = pa.array([values[b] for _, b in places], kind)
    assert same_values(left, right).tolist() == [a == b for a, b in places]
    rest = [place for place, (a, b) in enumerate(places) if values[a] is not None and values[b] is not None]
    taken = same_values(left.take(pa.array(rest)), right.take(pa.array(rest)))
    assert taken.tolist() == [places[place][0] == places[place][1] for place in rest]
    assert same_values(left.slice(1), right.slice(1)).tolist() == [a == b for a, b in places[1:]]


@pytest.mark.rule("5.13")
def test_all_nans_are_one() -> None:
    left, right = pa.array([NAN, OTHER_NAN]), pa.array([OTHER_NAN, NAN])
    assert same_values(left, right).all()
    assert same_values(pa.array([*left.to_pylist(), None]), pa.array([*right.to_pylist(), None])).all()
