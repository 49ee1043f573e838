"""Canonical form of Arrow arrays: bytes that depend on an array's values and nulls alone (pure).

Bytes beneath nulls, outside of a slice and behind the last bit of a bitmap are set to zeros, at every level. The types
are those that `validation.check_schema` accepts.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_T = pa.types


def canonical(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in its canonical form; the batch itself if it has that form already."""
    before = batch.columns
    columns = [canonical_array(column) for column in before]
    if all(new is old for new, old in zip(columns, before, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def canonical_array(array: pa.Array, *, nullable: bool = True) -> pa.Array:
    """Return the array in its canonical form. nullable=False: its nulls lie beneath those of a parent, and become
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
        return _made(array, [validity, _bits(filled)], nullable)
    if _T.is_struct(kind):
        return _made(array, [validity], nullable, _fields(array))
    if _T.is_fixed_size_list(kind):
        return _made(array, [validity], nullable, [_slots(array)])
    if _T.is_list(kind) or _T.is_large_list(kind) or _T.is_map(kind):
        return _list(array, validity, nullable)
    if _T.is_string_view(kind) or _T.is_binary_view(kind):
        plain = pa.large_string() if _T.is_string_view(kind) else pa.large_binary()
        return canonical_array(array.cast(plain), nullable=nullable).cast(kind)
    if _is_exact(array):
        return array
    if kind.num_buffers == 3:
        return _made(array, [validity, *_bytes(array)], nullable)
    return _made(array, [validity, _fixed(array)], nullable)


def _is_exact(array: pa.Array) -> bool:
    """Return True if a flat array has no nulls and its buffers hold nothing but its values; the padding of longer
    buffers would be written too.
    """
    if array.null_count or array.offset:
        return False
    *_, values = buffers = array.buffers()
    if len(buffers) == 2:
        return values is not None and values.size == len(array) * array.type.bit_width // 8
    offsets = _offsets(array)
    exact = buffers[1] is not None and buffers[1].size == offsets.nbytes
    return exact and offsets[0] == 0 and (0 if values is None else values.size) == offsets[-1]


def _made(
    array: pa.Array, buffers: list[pa.Buffer | None], nullable: bool, inside: list[pa.Array] | None = None
) -> pa.Array:
    """Build an array of this array's type and length out of new buffers."""
    nulls = array.null_count if nullable else 0
    return pa.Array.from_buffers(array.type, len(array), buffers, null_count=nulls, children=inside)


def _fixed(array: pa.Array) -> pa.Buffer:
    """Return the values of a type of whole bytes, with zeros for nulls."""
    width, values = array.type.bit_width // 8, array.buffers()[1]
    assert values is not None
    exact = values.slice(array.offset * width, len(array) * width)
    if not array.null_count:
        return exact
    found = np.frombuffer(exact, np.uint8).copy()
    found.reshape(len(array), width)[_nulls(array)] = 0
    return pa.py_buffer(found)


def _bytes(array: pa.Array) -> list[pa.Buffer]:
    """Return offsets and data of strings or binary, with empty values for nulls."""
    if array.null_count:
        array = pc.fill_null(array, pa.scalar("" if _is_text(array.type) else b"", array.type))
    offsets, data = _offsets(array), array.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    found = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    return [pa.py_buffer(offsets - offsets[0]), found]


def _offsets(array: pa.Array) -> np.ndarray:
    """Return the offsets of strings or binary, one more than there are values."""
    kind = array.type
    wide = np.int64 if _T.is_large_string(kind) or _T.is_large_binary(kind) else np.int32
    found = array.buffers()[1]
    if found is None or not found.size:
        return np.zeros(1, wide)
    return np.frombuffer(found, wide)[array.offset : array.offset + len(array) + 1]


def _fields(array: pa.StructArray) -> list[pa.Array]:
    fields = [array.type.field(place) for place in range(array.type.num_fields)]
    return [
        canonical_array(child, nullable=field.nullable) for child, field in zip(array.flatten(), fields, strict=True)
    ]


def _slots(array: pa.FixedSizeListArray) -> pa.Array:
    """Return the values of all slots; those of null slots are null, or zeros where the field is not nullable."""
    size, field = array.type.list_size, array.type.value_field
    values = array.values.slice(array.offset * size, len(array) * size)
    if array.null_count:
        places = np.arange(len(values))
        values = values.take(pa.array(places, mask=np.repeat(_nulls(array), size)))
    return canonical_array(values, nullable=field.nullable)


def _list(array: pa.Array, validity: pa.Buffer | None, nullable: bool) -> pa.Array:
    """Return a list, large list or map in its canonical form: null lists are empty, and the offsets begin with 0."""
    kind = array.type
    wide = np.int64 if _T.is_large_list(kind) else np.int32
    offsets = array.offsets.to_numpy()
    nulls, lengths = _nulls(array), np.diff(offsets)
    kept = ~np.repeat(nulls, lengths)
    lengths = np.where(nulls, 0, lengths)
    first, last = int(offsets[0]), int(offsets[-1])
    if _T.is_map(kind):
        inner: pa.Array = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        field_nullable = False
    else:
        inner, field_nullable = array.values, kind.value_field.nullable
    inner = inner.slice(first, last - first)
    if not kept.all():
        inner = inner.filter(pa.array(kept))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(wide)
    return _made(array, [validity, pa.py_buffer(starts)], nullable, [canonical_array(inner, nullable=field_nullable)])


def _is_text(kind: pa.DataType) -> bool:
    return _T.is_string(kind) or _T.is_large_string(kind)


def _nulls(array: pa.Array) -> np.ndarray:
    return array.is_null().to_numpy(zero_copy_only=False)


def _validity(array: pa.Array) -> pa.Buffer | None:
    return _bits(array.is_valid()) if array.null_count else None


def _bits(values: pa.BooleanArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values.to_numpy(zero_copy_only=False), bitorder="little"))
