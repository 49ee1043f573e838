"""Canonical form of Arrow arrays: bytes that depend only on an array's values and nulls (pure).

At every level, bytes of null slots and padding bits of bitmaps become zeros, and bytes outside of a slice are removed.
The supported types are those that `validation.check_schema` accepts.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_T = pa.types


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in its canonical form; the batch itself if it has that form already."""
    originals = batch.columns
    columns = [canonical_array(column) for column in originals]
    if all(new is old for new, old in zip(columns, originals, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def canonical_array(array: pa.Array, *, nullable: bool = True) -> pa.Array:
    """Return the array in its canonical form. nullable=False: its nulls are also nulls of its parent, and become
    zeros.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, canonical_array(array.storage, nullable=nullable))
    if _T.is_dictionary(kind):
        indices = canonical_array(array.indices, nullable=nullable)
        return pa.DictionaryArray.from_arrays(indices, canonical_array(array.dictionary), ordered=kind.ordered)
    if _T.is_null(kind):
        return array
    validity = _validity(array) if nullable else None
    if _T.is_boolean(kind):
        filled = pc.fill_null(array, False) if array.null_count else array
        return _build(array, [validity, _pack_bits(filled)], nullable)
    if _T.is_struct(kind):
        return _build(array, [validity], nullable, _struct_children(array))
    if _T.is_fixed_size_list(kind):
        return _build(array, [validity], nullable, [_list_slots(array)])
    if _T.is_list(kind) or _T.is_large_list(kind) or _T.is_map(kind):
        return _canonical_list(array, validity, nullable)
    if _T.is_string_view(kind) or _T.is_binary_view(kind):
        plain = pa.large_string() if _T.is_string_view(kind) else pa.large_binary()
        return canonical_array(array.cast(plain), nullable=nullable).cast(kind)
    if _is_exact(array):
        return array
    if kind.num_buffers == 3:
        return _build(array, [validity, *_variable_width(array)], nullable)
    return _build(array, [validity, _fixed_width(array)], nullable)


def _is_exact(array: pa.Array) -> bool:
    """Return True if a flat array has no nulls and no bytes in its buffers besides its values. Arrow also writes the
    padding of longer buffers.
    """
    if array.null_count or array.offset:
        return False
    *_, values = buffers = array.buffers()
    if len(buffers) == 2:
        return values is not None and values.size == len(array) * array.type.bit_width // 8
    offsets = _offsets(array)
    exact = buffers[1] is not None and buffers[1].size == offsets.nbytes
    return exact and offsets[0] == 0 and (0 if values is None else values.size) == offsets[-1]


def _build(
    array: pa.Array, buffers: list[pa.Buffer | None], nullable: bool, children: list[pa.Array] | None = None
) -> pa.Array:
    """Build an array of this array's type and length from new buffers."""
    nulls = array.null_count if nullable else 0
    return pa.Array.from_buffers(array.type, len(array), buffers, null_count=nulls, children=children)


def _fixed_width(array: pa.Array) -> pa.Buffer:
    """Return the values of a fixed-width type, with zeros for nulls."""
    width, values = array.type.bit_width // 8, array.buffers()[1]
    assert values is not None
    exact = values.slice(array.offset * width, len(array) * width)
    if not array.null_count:
        return exact
    zeroed = np.frombuffer(exact, np.uint8).copy()
    zeroed.reshape(len(array), width)[_null_mask(array)] = 0
    return pa.py_buffer(zeroed)


def _variable_width(array: pa.Array) -> list[pa.Buffer]:
    """Return offsets and data of strings or binary, with empty values for nulls."""
    if array.null_count:
        array = pc.fill_null(array, pa.scalar("" if _is_text(array.type) else b"", array.type))
    offsets, data = _offsets(array), array.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    exact = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    return [pa.py_buffer(offsets - offsets[0]), exact]


def _offsets(array: pa.Array) -> np.ndarray:
    """Return the offsets of strings or binary: one more than the number of values."""
    kind = array.type
    integer = np.int64 if _T.is_large_string(kind) or _T.is_large_binary(kind) else np.int32
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, integer)
    return np.frombuffer(buffer, integer)[array.offset : array.offset + len(array) + 1]


def _struct_children(array: pa.StructArray) -> list[pa.Array]:
    fields = [array.type.field(index) for index in range(array.type.num_fields)]
    return [
        canonical_array(child, nullable=field.nullable) for child, field in zip(array.flatten(), fields, strict=True)
    ]


def _list_slots(array: pa.FixedSizeListArray) -> pa.Array:
    """Return the values of all slots of a fixed-size list. Those of null slots become null or zeros, by nullability."""
    size, field = array.type.list_size, array.type.value_field
    values = array.values.slice(array.offset * size, len(array) * size)
    if array.null_count:
        indices = np.arange(len(values))
        values = values.take(pa.array(indices, mask=np.repeat(_null_mask(array), size)))
    return canonical_array(values, nullable=field.nullable)


def _canonical_list(array: pa.Array, validity: pa.Buffer | None, nullable: bool) -> pa.Array:
    """Return a list, large list or map in its canonical form: null lists are empty, and the offsets begin with 0."""
    kind = array.type
    integer = np.int64 if _T.is_large_list(kind) else np.int32
    offsets = array.offsets.to_numpy()
    nulls, lengths = _null_mask(array), np.diff(offsets)
    is_valid = ~np.repeat(nulls, lengths)
    lengths = np.where(nulls, 0, lengths)
    first, last = int(offsets[0]), int(offsets[-1])
    if _T.is_map(kind):
        values: pa.Array = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        field_nullable = False
    else:
        values, field_nullable = array.values, kind.value_field.nullable
    values = values.slice(first, last - first)
    if not is_valid.all():
        values = values.filter(pa.array(is_valid))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(integer)
    children = [canonical_array(values, nullable=field_nullable)]
    return _build(array, [validity, pa.py_buffer(starts)], nullable, children)


def _is_text(kind: pa.DataType) -> bool:
    return _T.is_string(kind) or _T.is_large_string(kind)


def _null_mask(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def _validity(array: pa.Array) -> pa.Buffer | None:
    return _pack_bits(array.is_valid()) if array.null_count else None


def _pack_bits(values: pa.BooleanArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values.to_numpy(zero_copy_only=False), bitorder="little"))
