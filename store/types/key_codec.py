"""Codec between primary keys and one sortable Arrow column in key order. Equal keys have equal encodings."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput

from .arrays import from_bytes, from_numpy, to_numpy

Key = Any
"""One encoded key: an int if `KeyCodec.key_type` is an integer type, else bytes. A table never mixes the two."""

_T = pa.types
_TERMINATOR, _ABOVE_TERMINATOR, _NOTHING = from_bytes([b"\0\0", b"\0\1", b""], pa.binary())


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Codec of the primary-key columns of a table. Immutable, picklable.

    Key order is column by column: numbers by value (-0.0 equals 0.0, NaN last), strings and binary by bytes, false
    before true. Encodings, always without nulls:

    - one integer, date, time, timestamp or duration column: its physical integers, without a copy;
    - one float column: a signed integer of its width, in the order of the floats (so NaN compares as a number does);
    - one boolean column: uint8; one string or binary column: its bytes;
    - one decimal column, or several columns: binary. Numbers big-endian with the sign bit flipped; strings and binary
      with 0x00 written as 0x00 0xFF and 0x00 0x00 at the end, so that a prefix sorts before the longer strings.
    """

    schema: pa.Schema
    primary_key: tuple[str, ...]
    key_type: pa.DataType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "primary_key", tuple(self.primary_key))
        kinds = [self.schema.field(name).type for name in self.primary_key]
        object.__setattr__(self, "key_type", _single_key_type(kinds[0]) if len(kinds) == 1 else pa.binary())

    def __reduce__(self) -> tuple[type[KeyCodec], tuple[pa.Schema, tuple[str, ...]]]:
        return type(self), (self.schema, self.primary_key)

    @property
    def hidden(self) -> bool:
        """Return True if files store the encoded key in a column `_key`. They do so for composite keys."""
        return len(self.primary_key) > 1

    @property
    def binary(self) -> bool:
        """Return True if encoded keys are bytes; False if they are integers."""
        return _T.is_binary(self.key_type)

    def encode(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        """Encode the key of each row as one contiguous array of `key_type`. The key columns must have no null."""
        columns = [contiguous(table.column(name)) for name in self.primary_key]
        if len(columns) == 1:
            return _encode_single(columns[0])
        if all(map(_is_fixed, columns)):
            return _as_binary(np.concatenate([_fixed_bytes(column) for column in columns], axis=1))
        return pc.binary_join_element_wise(*_terminated([_encode_part(column) for column in columns]), _NOTHING)

    def decode(self, keys: pa.Array) -> pa.Array:
        """Decode a single key that is not a decimal to its column, in the stored type (see `encode`)."""
        assert not self.hidden
        kind = self.schema.field(self.primary_key[0]).type
        if _T.is_boolean(kind):
            return keys.cast(pa.bool_())
        if _T.is_float16(kind):
            return pa.array(_float_bits(keys).view(np.float16), kind)
        if _T.is_floating(kind):
            return pa.array(_float_bits(keys).view(kind.to_pandas_dtype()), kind)
        return keys.cast(kind) if self.binary else keys.view(kind)

    def leading(self, keys: Sequence[Key]) -> pa.Array | None:
        """Decode the first key column of these encoded keys; None for decimals and halves, which have no statistics."""
        field = self.schema.field(self.primary_key[0])
        if _T.is_decimal(field.type) or _T.is_float16(field.type):
            return None
        if not self.hidden:
            return self.decode(self.array(keys))
        if _T.is_fixed_size_binary(field.type):
            return pa.array([key[: field.type.byte_width] for key in keys], field.type)
        first = KeyCodec(pa.schema([field]), (field.name,))
        if first.binary:
            ends = [key.index(b"\0\0") for key in keys]
            return pa.array(
                [key[:end].replace(b"\0\xff", b"\0") for key, end in zip(keys, ends, strict=True)], pa.binary()
            ).cast(field.type)
        dtype = np.dtype(first.key_type.to_pandas_dtype())
        raw = np.frombuffer(b"".join(key[: dtype.itemsize] for key in keys), f">u{dtype.itemsize}")
        return first.decode(from_numpy((raw ^ _sign_mask(dtype)).astype(f"u{dtype.itemsize}").view(dtype)))

    def prefix(self, values: Sequence[object]) -> Key:
        """Return the least encoded key whose first columns are `values` (one value for a single key).

        Values are Python values or Arrow scalars of the columns' types. Raises InvalidInput for a value that does not
        convert.
        """
        kinds = [self.schema.field(name) for name in self.primary_key[: len(values)]]
        if not values or len(values) > len(self.primary_key):
            raise InvalidInput(
                f"{len(values)} values for a key of {len(self.primary_key)} columns; "
                f"pass one for each of the first columns of ({', '.join(self.primary_key)})"
            )
        columns = [_key_array(field, value) for field, value in zip(kinds, values, strict=True)]
        if not self.hidden:
            return _encode_single(columns[0])[0].as_py()
        encoded = b""
        for column in columns:
            part, open_ended = _encode_part(column)
            encoded += part[0].as_py() + (b"\0\0" if open_ended else b"")
        return encoded

    def after(self, values: Sequence[object]) -> Key | None:
        """Return the least bound above every key whose first columns are `values`; None if there is none."""
        return self.above(self.prefix(values)) if not self.hidden else _next_prefix(self.prefix(values))

    def spans(self, values: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return bounds [low, high) of the keys whose first columns have each of these values; null for a high bound
        above all keys.

        values: no null, of the first columns of a key of several, in their order and types.
        """
        parts = [_encode_part(contiguous(values.column(name))) for name in self.primary_key[: values.num_columns]]
        above = parts[:-1]
        last, open_ended = parts[-1]
        joined = pc.binary_join_element_wise(*_terminated(parts), _NOTHING)
        if open_ended:
            return joined, pc.binary_join_element_wise(*_terminated(above), last, _ABOVE_TERMINATOR, _NOTHING)
        following, is_greatest = _incremented(last)
        highs = pc.binary_join_element_wise(*_terminated(above), following, _NOTHING)
        if is_greatest.any():
            others = [_next_prefix(key) for key in joined.filter(from_numpy(is_greatest)).to_pylist()]
            highs = pc.replace_with_mask(highs, from_numpy(is_greatest), pa.array(others, pa.binary()))
        return joined, highs

    def above(self, key: Key) -> Key | None:
        """Return the next encoding after `key`: [key, above(key)) has this key only. None after the last integer."""
        if isinstance(key, bytes):
            return key + b"\0"
        top = np.iinfo(self.key_type.to_pandas_dtype()).max
        return None if key >= top else key + 1

    def array(self, keys: Sequence[Key]) -> pa.Array:
        """Return encoded keys as an array of `key_type`."""
        if self.binary:
            return from_bytes(keys, self.key_type)
        return from_numpy(np.array(keys, self.key_type.to_pandas_dtype()))


def contiguous(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Concatenate the chunks of a column into one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _key_array(field: pa.Field, value: object) -> pa.Array:
    """Convert `value` to an array of length 1. Raise InvalidInput if the column's type cannot represent it exactly."""
    try:
        inferred = _inferred(value)
        if inferred.null_count:
            raise InvalidInput(f"key column {field.name!r}: a key cannot be null")
        if _family(inferred.type) != _family(field.type):
            raise InvalidInput(f"key column {field.name!r}: {value!r} is no {field.type}")
        array = inferred.cast(field.type, safe=True)
        round_trip = array.cast(inferred.type, safe=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"key column {field.name!r}: {value!r} is no {field.type}: {error}") from error
    if not (round_trip.equals(inferred) or (_T.is_floating(inferred.type) and pc.all(pc.is_nan(inferred)).as_py())):
        raise InvalidInput(f"key column {field.name!r}: {value!r} is not exactly a {field.type}")
    return array


def _inferred(value: Any) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type)
    unsigned = isinstance(value, int) and value > np.iinfo(np.int64).max
    return pa.array([value], pa.uint64() if unsigned else None)


def _family(kind: pa.DataType) -> str:
    """Return the family of a type. Values of one family are comparable; a text with digits is no number."""
    if _T.is_integer(kind) or _T.is_floating(kind) or _T.is_decimal(kind):
        return "number"
    if _T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind):
        return "string"
    if _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_fixed_size_binary(kind) or _T.is_binary_view(kind):
        return "binary"
    if _T.is_timestamp(kind):
        return "instant" if kind.tz else "timestamp"
    for name, is_family in (("date", _T.is_date), ("time", _T.is_time), ("duration", _T.is_duration)):
        if is_family(kind):
            return name
    return str(kind)


def _single_key_type(kind: pa.DataType) -> pa.DataType:
    if _T.is_integer(kind):
        return kind
    if _T.is_boolean(kind):
        return pa.uint8()
    if _T.is_floating(kind) or _T.is_temporal(kind):
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
    return pa.binary()


def _encode_single(column: pa.Array) -> pa.Array:
    kind = column.type
    if _T.is_integer(kind):
        return column
    if _T.is_boolean(kind):
        return column.cast(pa.uint8())
    if _T.is_floating(kind):
        return from_numpy(_sortable_bits(column))
    if _T.is_temporal(kind):
        return column.view(_single_key_type(kind))
    if _T.is_decimal(kind):
        return _encode_fixed(column)
    return column.cast(pa.binary())


def _encode_part(column: pa.Array) -> tuple[pa.Array, bool]:
    """Encode one column of a composite key as binary. The flag is True if it has a varying length and needs a
    terminator.
    """
    if _is_fixed(column):
        return _encode_fixed(column), False
    plain = column.cast(pa.binary())
    if _T.is_fixed_size_binary(column.type):
        return plain, False
    return pc.replace_substring(plain, pattern=b"\0", replacement=b"\0\xff"), True


def _is_fixed(column: pa.Array) -> bool:
    """Return True for a column of numbers, times or booleans, whose parts of a composite key have one width."""
    kind = column.type
    texts = (_T.is_string, _T.is_large_string, _T.is_binary, _T.is_large_binary, _T.is_fixed_size_binary)
    return not any(is_text(kind) for is_text in texts)


def _terminated(parts: Sequence[tuple[pa.Array, bool]]) -> list[pa.Array | pa.Scalar]:
    """Return encoded parts of keys, those of varying length each with a terminator."""
    return [value for part, open_ended in parts for value in ((part, _TERMINATOR) if open_ended else (part,))]


def _incremented(part: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the next values of an encoded part of fixed width, and bool[values]: True where there is none, for all
    bytes of the value are 255.
    """
    width = len(part[0].as_py()) if len(part) else 0
    offsets, data = part.buffers()[1:]
    first = np.frombuffer(offsets, np.int32)[part.offset] if width else 0
    values = np.frombuffer(data or b"", np.uint8)[first : first + len(part) * width]
    matrix = values.reshape(len(part), width).copy()
    carry = np.ones(len(part), np.bool_)
    for place in range(width - 1, -1, -1):
        matrix[:, place] += carry
        carry &= matrix[:, place] == 0
    return _as_binary(matrix), carry


def _encode_fixed(column: pa.Array) -> pa.Array:
    return _as_binary(_fixed_bytes(column))


def _as_binary(matrix: np.ndarray) -> pa.Array:
    """Return each row of bytes as one value."""
    count, width = matrix.shape
    if count * width < 1 << 31:
        offsets = (
            np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, dtype=np.int32)
        )
        return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(matrix)])
    return fixed.cast(pa.binary())  # raises for more bytes than one array has


def _fixed_bytes(column: pa.Array) -> np.ndarray:
    """Return uint8[rows, width], the encoded values."""
    kind = column.type
    if _T.is_decimal(kind):
        width = kind.bit_width // 8
        raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, width)
        matrix = raw[column.offset : column.offset + len(column), ::-1].copy()  # little-endian two's complement
        matrix[:, 0] ^= 0x80
        return matrix
    keys = to_numpy(_encode_single(column))
    keys = keys.view(f"u{keys.dtype.itemsize}") ^ _sign_mask(keys.dtype)
    big_endian = np.ascontiguousarray(keys.astype(keys.dtype.newbyteorder(">")))
    return big_endian.view(np.uint8).reshape(len(keys), keys.dtype.itemsize)


def _sign_mask(kind: np.dtype) -> np.unsignedinteger:
    """Return the mask that flips the sign bit of signed integers, for an unsigned sort order; 0 for unsigned ones."""
    bits = 8 * kind.itemsize
    return np.dtype(f"u{kind.itemsize}").type(1 << (bits - 1) if kind.kind == "i" else 0)


def _sortable_bits(column: pa.Array) -> np.ndarray:
    """Map floats to signed integers in the order of the floats, NaN last: negative ones have all bits but the sign
    flipped.
    """
    values = to_numpy(column)
    kind = values.dtype.type
    values = np.where(np.isnan(values), kind(np.nan), values + kind(0))  # + 0 turns -0.0 into 0.0
    bits = values.view(f"i{values.dtype.itemsize}")
    return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def _float_bits(keys: pa.Array) -> np.ndarray:
    bits = to_numpy(keys)
    return bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def _next_prefix(prefix: Key) -> bytes | None:
    assert isinstance(prefix, bytes)
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


# ---- kernels on encoded keys ---------------------------------------------------------------------------------------


def search(sorted_keys: pa.Array, needles: pa.Array, side: Literal["left", "right"] = "left") -> np.ndarray:
    """Return the int64 positions of `needles` in `sorted_keys`: before (left) or after (right) equal keys."""
    if _T.is_binary(sorted_keys.type):
        return _search_binary(sorted_keys, needles, side)
    return to_numpy(sorted_keys).searchsorted(to_numpy(needles), side=side)


def _search_by_halves(sorted_keys: pa.Array, needles: pa.Array, side: Literal["left", "right"]) -> np.ndarray:
    """Search all needles at once, in as many steps as the number of keys has bits."""
    if len(needles) == 1:
        place = bisect.bisect_left if side == "left" else bisect.bisect_right
        return np.array([place(sorted_keys, needles[0].as_py(), key=pa.BinaryScalar.as_py)], np.int64)
    below = pc.less if side == "left" else pc.less_equal
    positions = np.zeros(len(needles), np.int64)
    for bit in reversed(range(len(sorted_keys).bit_length())):
        last = positions + ((1 << bit) - 1)  # of the keys that this step may pass over
        probes = sorted_keys.take(from_numpy(np.minimum(last, len(sorted_keys) - 1)))
        passed = to_numpy(below(probes, needles)) & (last < len(sorted_keys))
        positions += passed.astype(np.int64) << bit
    return positions


def _search_by_kernel(sorted_keys: pa.Array, needles: pa.Array, side: Literal["left", "right"]) -> np.ndarray:
    return to_numpy(pc.search_sorted(sorted_keys, needles, side=side)).astype(np.int64)


_search_binary = _search_by_kernel if hasattr(pc, "search_sorted") else _search_by_halves  # pyarrow has it since 26


def sort_indices(keys: pa.Array) -> np.ndarray:
    """Return the int64 indices that sort `keys`, stably."""
    if _T.is_binary(keys.type):
        return to_numpy(pc.array_sort_indices(keys)).astype(np.int64)
    return np.argsort(to_numpy(keys), kind="stable")


def is_sorted_unique(keys: pa.Array) -> bool:
    """Return True if every key is greater than the one before it."""
    if len(keys) < 2:
        return True
    if _T.is_binary(keys.type):
        return bool(pc.all(pc.greater(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py())
    values = to_numpy(keys)
    return bool(np.all(values[1:] > values[:-1]))


def last_of_each(sorted_keys: pa.Array) -> np.ndarray:
    """Return bool[len]: True at the last of each run of equal keys."""
    mask = np.ones(len(sorted_keys), np.bool_)
    if len(sorted_keys) < 2:
        return mask
    if _T.is_binary(sorted_keys.type):
        differs = pc.not_equal(sorted_keys.slice(1), sorted_keys.slice(0, len(sorted_keys) - 1))
        mask[:-1] = to_numpy(differs)
    else:
        values = to_numpy(sorted_keys)
        np.not_equal(values[1:], values[:-1], out=mask[:-1])
    return mask
