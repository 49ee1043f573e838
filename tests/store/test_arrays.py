"""Arrays of plain values are those of pyarrow, whatever their length, offset and memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.store.types.arrays import from_bytes, from_numpy, to_numpy

TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "?"]
LAYOUTS = {
    "whole": lambda values: values,
    "sliced": lambda values: values[3:-2],
    "every third": lambda values: values[::3],
    "backwards": lambda values: values[::-1],
    "of columns": lambda values: np.stack([values, values]).T[:, 1],
    "none": lambda values: values[:0],
    "empty": lambda values: np.empty(0, values.dtype),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", TYPES)
def test_arrays_are_those_of_pyarrow(kind: str, layout: str) -> None:
    values = LAYOUTS[layout]((np.arange(-37, 64) % 7).astype(kind))
    expected = pa.array(values)
    actual = from_numpy(values)
    actual.validate(full=True)
    assert actual.type == expected.type and actual.equals(expected) and actual.null_count == 0
    for column in (expected, expected[1:], expected[9:23], pa.chunked_array([expected, expected[:5], expected[7:]])):
        back = to_numpy(column)
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, column.to_numpy(zero_copy_only=False))
    assert to_numpy(pa.chunked_array([], expected.type)).tolist() == []


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 70), st.integers(0, 70))
def test_any_slice_of_bools_comes_back(values: list[bool], start: int, length: int) -> None:
    array = from_numpy(np.array(values, np.bool_)).slice(start, length)
    assert to_numpy(array).tolist() == values[start : start + length] == array.to_pylist()


@pytest.mark.parametrize("values", [[True, None], [1, None], [None, 1.5]])
def test_a_null_has_no_number(values: list[object]) -> None:
    with pytest.raises(pa.ArrowInvalid, match="with nulls"):
        to_numpy(pa.array(values))


def test_numbers_are_shared_and_cannot_be_written_through_the_view() -> None:
    values = np.arange(5)
    array = from_numpy(values)
    assert array.buffers()[1].address == values.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        to_numpy(array)[0] = 9


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.booleans()), max_size=40))
def test_missing_numbers_are_null(values: list[tuple[int, bool]]) -> None:
    numbers, missing = (np.array([pair[place] for pair in values], kind) for place, kind in enumerate(("i8", "?")))
    array = from_numpy(numbers, missing)
    array.validate(full=True)
    assert array.to_pylist() == [None if gone else number for number, gone in values]
    assert from_numpy(missing, ~missing).to_pylist() == [gone or None for _, gone in values]


@given(st.lists(st.text(max_size=5), max_size=40))
def test_texts_and_bytes_are_those_of_pyarrow(texts: list[str]) -> None:
    raw = [text.encode() for text in texts]
    for kind, values in ((pa.string(), texts), (pa.binary(), raw)):
        array = from_bytes(raw, kind)
        array.validate(full=True)
        assert array.equals(pa.array(values, kind))
