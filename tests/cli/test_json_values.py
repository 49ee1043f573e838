"""JSON values of each Arrow type, from complete columns and from slices."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from epochlog.cli.render import json_values

CASES = [
    (pa.array([1, None, -(2**63)]), [1, None, -(2**63)]),
    (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    (pa.array([1.5, float("nan"), None, float("inf"), -float("inf")]), [1.5, "NaN", None, "Infinity", "-Infinity"]),
    (pa.array([1.5, float("nan")], pa.float32()), [1.5, "NaN"]),
    (pa.array([1.5, None], pa.float16()), [1.5, None]),
    (pa.array([True, None]), [True, None]),
    (pa.array(["é", ""]), ["é", ""]),
    (pa.array(["é"], pa.large_string()), ["é"]),
    (pa.array([b"\x00\xff", None]), ["AP8=", None]),
    (pa.array([b"ab"], pa.binary(2)), ["YWI="]),
    (pa.array([b"ab"], pa.large_binary()), ["YWI="]),
    (pa.array([Decimal("1.50"), None]), ["1.50", None]),
    (pa.array([Decimal("1.5")], pa.decimal256(50, 3)), ["1.500"]),
    (pa.array([1], pa.date32()), ["1970-01-02"]),
    (pa.array([86_400_000], pa.date64()), ["1970-01-02"]),
    (pa.array([1], pa.time32("s")), ["00:00:01"]),
    (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
    (pa.array([7, None], pa.duration("us")), [7, None]),
    (pa.array([1], pa.timestamp("s")), ["1970-01-01T00:00:01"]),
    (pa.array([1, None], pa.timestamp("ns", "UTC")), ["1970-01-01T00:00:00.000000001Z", None]),
    (pa.array([0], pa.timestamp("ms", "+02:00")), ["1970-01-01T00:00:00.000Z"]),
    (pa.array([[1.0, float("nan")], None, [], [2.0]]), [[1.0, "NaN"], None, [], [2.0]]),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
    (pa.array([[{"x": b"1"}], None], pa.large_list(pa.struct([("x", pa.binary())]))), [[{"x": "MQ=="}], None]),
    (
        pa.array([{"a": 1, "b": datetime(2025, 1, 1)}, None, {"a": None, "b": None}]),
        [{"a": 1, "b": "2025-01-01T00:00:00.000000"}, None, {"a": None, "b": None}],
    ),
    (
        pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int32())),
        [[{"key": "k", "value": 1}, {"key": "l", "value": None}], None, []],
    ),
    (
        pa.array([[("k", 1)]], pa.map_(pa.field("name", pa.string(), nullable=False), pa.field("name", pa.int32()))),
        [[{"key": "k", "value": 1}]],
    ),
]


@pytest.mark.parametrize("array, values", CASES, ids=lambda case: str(getattr(case, "type", "")))
def test_every_type_has_its_form(array: pa.Array, values: list) -> None:
    assert json_values.plain_values(array) == values
    assert [type(value) for value in json_values.plain_values(array)] == [type(value) for value in values]
    json.dumps(json_values.plain_values(array), allow_nan=False)
    for start in range(len(values)):
        assert json_values.plain_values(array.slice(start)) == values[start:]
        assert json_values.plain_values(array.slice(start, 1)) == values[start : start + 1]


def test_a_time_beyond_the_calendar_is_still_text() -> None:
    (text,) = json_values.plain_values(pa.array([-(2**62)], pa.timestamp("s")))
    assert str(-(2**62)) in text


def test_rows_cross_the_borders_of_slices() -> None:
    count = 2 * json_values.SLICE_ROWS + 1
    batch = pa.record_batch({"a": list(range(count)), "b": [[i] for i in range(count)]})
    assert list(json_values.plain_rows(batch)) == [{"a": i, "b": [i]} for i in range(count)]
    assert list(json_values.plain_rows(batch.slice(0, 0))) == []
