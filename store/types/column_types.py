"""Column types: the Arrow types of columns, their stored types, and the lossless casts between them (pure)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

_T = pa.types
_PYARROW = int(pa.__version__.partition(".")[0])
SMALL_DECIMALS_IN_PARQUET = _PYARROW >= 22
"""True if pyarrow writes decimals of 32 and 64 bits to Parquet."""
FIXED_SIZES_FROM_PARQUET = _PYARROW >= 26
"""True if pyarrow returns lists of a fixed size from Parquet where some are null."""


def _is_string(kind: pa.DataType) -> bool:
    return _T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_binary_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return _T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind)


def is_key_type(kind: pa.DataType) -> bool:
    """Return True if a column of this stored type may be part of a primary key."""
    return (
        _T.is_integer(kind)
        or _T.is_floating(kind)
        or _T.is_string(kind)
        or _T.is_large_string(kind)
        or _T.is_binary(kind)
        or _T.is_large_binary(kind)
        or _T.is_fixed_size_binary(kind)
        or _T.is_date(kind)
        or _T.is_timestamp(kind)
        or _T.is_time(kind)
        or _T.is_duration(kind)
        or _T.is_boolean(kind)
        or _T.is_decimal(kind)
    )


def refusal(kind: pa.DataType) -> str | None:
    """Return the reason to refuse this type for a column; None for a supported type."""
    if isinstance(kind, pa.BaseExtensionType):
        return f"it is an extension type; use its storage type {kind.storage_type}"
    if _T.is_null(kind):
        return "it holds no values; give the column another type (in SQL, CAST(NULL AS STRING))"
    if _T.is_list_view(kind) or _T.is_large_list_view(kind):
        return "Arrow has no kernels for list views; use list"
    if _T.is_run_end_encoded(kind):
        return f"use its value type {kind.value_type}"
    if _T.is_union(kind):
        return "Parquet has no unions; use a struct"
    if _T.is_interval(kind):
        return "Parquet has no such interval; use a duration or a struct"
    if _T.is_struct(kind) and kind.num_fields == 0:
        return "a struct needs a field"
    if _T.is_decimal(kind) and kind.scale < 0:
        return "Parquet has no negative scale; use scale 0"
    if _T.is_dictionary(kind):
        return refusal(kind.value_type)
    for child in children(kind):
        reason = refusal(child.type)
        if reason:
            return f"inside it, {child.type}: {reason}"
    return None


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a nested type."""
    if _T.is_map(kind):
        return [kind.key_field, kind.item_field]
    if _is_list(kind):
        return [kind.value_field]
    if _T.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    return []


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the stored type of a column of type `kind`: dictionaries and views become plain, at any depth."""
    if _T.is_dictionary(kind):
        return stored_type(kind.value_type)
    if _T.is_string_view(kind):
        return pa.string()
    if _T.is_binary_view(kind):
        return pa.binary()
    return map_inner_types(kind, stored_type)


def map_inner_types(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return `kind` with `change` applied to the types directly inside it."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if _T.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field), keys_sorted=kind.keys_sorted)
    if _T.is_struct(kind):
        return pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)])
    if _T.is_list(kind):
        return pa.list_(inner(kind.value_field))
    if _T.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if _T.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    return kind


def has_required_children(kind: pa.DataType) -> bool:
    """Return True if a field inside the type, at any depth, is not nullable (map keys do not count)."""
    return any(
        (not child.nullable and not (_T.is_map(kind) and i == 0)) or has_required_children(child.type)
        for i, child in enumerate(children(kind))
    )


def has_fixed_size_lists(kind: pa.DataType) -> bool:
    """Return True if the type, or a type inside it, is a fixed-size list."""
    return _T.is_fixed_size_list(kind) or any(has_fixed_size_lists(child.type) for child in children(kind))


def has_size_zero(kind: pa.DataType) -> bool:
    """Return True if the type, or a type inside it, is a list or bytes of the fixed size 0."""
    size = kind.list_size if _T.is_fixed_size_list(kind) else kind.byte_width if _T.is_fixed_size_binary(kind) else 1
    return size == 0 or any(has_size_zero(child.type) for child in children(kind))


def same_layout(kind: pa.DataType, other: pa.DataType) -> bool:
    """Return True if arrays of the two types have the same buffers: the types differ in names and nullability only."""
    if kind.equals(other):
        return True
    inside, other_inside = children(kind), children(other)
    return (
        kind.id == other.id
        and len(inside) == len(other_inside) > 0
        and (not _T.is_fixed_size_list(kind) or kind.list_size == other.list_size)
        and all(same_layout(field.type, part.type) for field, part in zip(inside, other_inside, strict=True))
    )


def parquet_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which run files keep a column: where Parquet's reader cannot return fixed sizes, varying ones.

    It fails for a size of 0, and for a list of a fixed size that a struct requires if the struct is null in a row.
    Older versions of pyarrow cannot return other types either; each version reads the files of all others.
    """
    if _T.is_fixed_size_binary(kind) and kind.byte_width == 0:
        return pa.binary()
    if not SMALL_DECIMALS_IN_PARQUET and (_T.is_decimal32(kind) or _T.is_decimal64(kind)):
        return pa.decimal128(kind.precision, kind.scale)
    kind = map_inner_types(kind, parquet_type)
    if _T.is_struct(kind):
        return pa.struct([field if field.nullable else field.with_type(_of_any_size(field.type)) for field in kind])
    kept = not _T.is_fixed_size_list(kind) or (FIXED_SIZES_FROM_PARQUET and kind.list_size)
    return kind if kept else _of_any_size(kind)


def _of_any_size(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_field) if _T.is_fixed_size_list(kind) else kind


def parquet_is_narrower(kind: pa.DataType) -> bool:
    """Return True if Parquet has a smaller range for the type or a type inside it: timestamp[s] and date64."""
    seconds = _T.is_timestamp(kind) and kind.unit == "s"
    return seconds or _T.is_date64(kind) or any(parquet_is_narrower(child.type) for child in children(kind))


def fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if values of type `source` may be cast to the stored type `target` without a change of meaning.

    For some types that depends on the values: numbers of another width, coarser time units, lengths of fixed-size
    values. `casting.cast_values` checks these values.
    """
    if _T.is_dictionary(source):
        return fits(source.value_type, target)
    return fits_always(source, target) or _fits_by_value(source, target) or _fits_nested(source, target, fits)


def fits_always(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if `fits` holds for every number: Arrow's own cast is then exact, or fails."""
    if source.equals(target) or _T.is_null(source):
        return True
    if _T.is_dictionary(source):
        return fits_always(source.value_type, target)
    return (
        (_is_string(source) and _is_string(target))
        or _fits_binary(source, target)
        or _fits_number(source, target)
        or _fits_time(source, target)
        or _fits_nested(source, target, fits_always)
    )


def _fits_binary(source: pa.DataType, target: pa.DataType) -> bool:
    # Two fixed widths differ in meaning (padding). The cast checks the lengths of varying width.
    if _T.is_fixed_size_binary(source):
        return _is_binary(target)
    return _is_binary(source) and (_is_binary(target) or _T.is_fixed_size_binary(target))


def _fits_number(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if every value of the numeric type `source` fits `target`."""
    if _T.is_decimal(source) and _T.is_decimal(target):
        return target.scale >= source.scale and target.precision - target.scale >= source.precision - source.scale
    if _T.is_floating(source):
        return _T.is_floating(target) and source.bit_width <= target.bit_width
    if not _T.is_integer(source):
        return False
    if _T.is_floating(target):
        return source.bit_width <= {16: 8, 32: 16, 64: 32}[target.bit_width]
    if not _T.is_integer(target):
        return False
    if _T.is_signed_integer(source) == _T.is_signed_integer(target):
        return source.bit_width <= target.bit_width
    return _T.is_signed_integer(target) and source.bit_width < target.bit_width


def _fits_by_value(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True for numeric types of which some values fit. `casting.cast_values` checks each value."""
    if _T.is_float16(source) or _T.is_float16(target):
        return False
    if _T.is_decimal(source):
        return _T.is_decimal(target) or _T.is_integer(target)
    if _T.is_floating(source):
        return _T.is_floating(target) or _T.is_integer(target) or _T.is_decimal(target)
    return _T.is_integer(source) and (_T.is_integer(target) or _T.is_floating(target) or _T.is_decimal(target))


def _fits_time(source: pa.DataType, target: pa.DataType) -> bool:
    if _T.is_timestamp(source) and _T.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)  # only timestamps with a zone are instants
    return any(is_family(source) and is_family(target) for is_family in (_T.is_date, _T.is_time, _T.is_duration))


def _fits_nested(
    source: pa.DataType, target: pa.DataType, fits_part: Callable[[pa.DataType, pa.DataType], bool]
) -> bool:
    """Return True for nested types of one shape whose parts fit by `fits_part`."""
    if _T.is_map(source) or _T.is_map(target):
        if not (_T.is_map(source) and _T.is_map(target)):
            return False
    elif _T.is_struct(source) and _T.is_struct(target):
        if [field.name for field in children(source)] != [field.name for field in children(target)]:
            return False
    elif not (_is_list(source) and _is_list(target)):
        return False
    return all(
        fits_part(source_part.type, target_part.type)
        for source_part, target_part in zip(children(source), children(target), strict=True)
    )
