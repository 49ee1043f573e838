"""Column types: Arrow types that a column may have, their stored types, and the lossless casts between them (pure)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

_T = pa.types


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
    """Return the reason why no column may have this type; None if a column may."""
    if isinstance(kind, pa.BaseExtensionType):
        return f"it is an extension type; use its storage type {kind.storage_type}"
    if _T.is_null(kind):
        return "it holds no values"
    if _T.is_list_view(kind) or _T.is_large_list_view(kind):
        return "list views have no kernels; use list"
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
    """Return the stored type of a column given as `kind`: dictionaries and views become plain, at any depth."""
    if _T.is_dictionary(kind):
        return stored_type(kind.value_type)
    if _T.is_string_view(kind):
        return pa.string()
    if _T.is_binary_view(kind):
        return pa.binary()
    return rebuilt(kind, stored_type)


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
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


def parquet_is_narrower(kind: pa.DataType) -> bool:
    """Return True if Parquet has a smaller range for the type, or one inside it: timestamps in seconds, and date64."""
    seconds = _T.is_timestamp(kind) and kind.unit == "s"
    return seconds or _T.is_date64(kind) or any(parquet_is_narrower(child.type) for child in children(kind))


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if values of type `given` may be cast to the stored type `wanted`.

    True only if no value changes its meaning. Where that depends on the values (numbers of another width, finer to
    coarser time units, lengths of fixed-size values), it is left to `casting.cast_values`, which loses nothing.
    """
    if _T.is_dictionary(given):
        return fits(given.value_type, wanted)
    return fits_whatever(given, wanted) or _fits_by_value(given, wanted) or _fits_nested(given, wanted, fits)


def fits_whatever(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if `fits` holds, and no number needs a look: Arrow's own cast is exact then, or fails."""
    if given.equals(wanted) or _T.is_null(given):
        return True
    if _T.is_dictionary(given):
        return fits_whatever(given.value_type, wanted)
    return (
        (_is_string(given) and _is_string(wanted))
        or _fits_binary(given, wanted)
        or _fits_number(given, wanted)
        or _fits_time(given, wanted)
        or _fits_nested(given, wanted, fits_whatever)
    )


def _fits_binary(given: pa.DataType, wanted: pa.DataType) -> bool:
    # Two fixed widths differ in meaning (padding); a fixed width out of a free one is checked by the cast.
    if _T.is_fixed_size_binary(given):
        return _is_binary(wanted)
    return _is_binary(given) and (_is_binary(wanted) or _T.is_fixed_size_binary(wanted))


def _fits_number(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True if every value of the numeric type `given` fits `wanted`."""
    if _T.is_decimal(given) and _T.is_decimal(wanted):
        return wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale
    if _T.is_floating(given):
        return _T.is_floating(wanted) and given.bit_width <= wanted.bit_width
    if not _T.is_integer(given):
        return False
    if _T.is_floating(wanted):
        return given.bit_width <= {16: 8, 32: 16, 64: 32}[wanted.bit_width]
    if not _T.is_integer(wanted):
        return False
    if _T.is_signed_integer(given) == _T.is_signed_integer(wanted):
        return given.bit_width <= wanted.bit_width
    return _T.is_signed_integer(wanted) and given.bit_width < wanted.bit_width


def _fits_by_value(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return True for numeric types of which some values fit: `casting.cast_values` checks each."""
    if _T.is_float16(given) or _T.is_float16(wanted):
        return False
    if _T.is_decimal(given):
        return _T.is_decimal(wanted) or _T.is_integer(wanted)
    if _T.is_floating(given):
        return _T.is_floating(wanted) or _T.is_integer(wanted) or _T.is_decimal(wanted)
    return _T.is_integer(given) and (_T.is_integer(wanted) or _T.is_floating(wanted) or _T.is_decimal(wanted))


def _fits_time(given: pa.DataType, wanted: pa.DataType) -> bool:
    if _T.is_timestamp(given) and _T.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)  # a zone says how instants are shown; none says they are not
    return any(same(given) and same(wanted) for same in (_T.is_date, _T.is_time, _T.is_duration))


def _fits_nested(given: pa.DataType, wanted: pa.DataType, inside: Callable[[pa.DataType, pa.DataType], bool]) -> bool:
    """Return True for nested types of one shape whose parts fit by `inside`."""
    if _T.is_map(given) or _T.is_map(wanted):
        if not (_T.is_map(given) and _T.is_map(wanted)):
            return False
    elif _T.is_struct(given) and _T.is_struct(wanted):
        if [f.name for f in children(given)] != [f.name for f in children(wanted)]:
            return False
    elif not (_is_list(given) and _is_list(wanted)):
        return False
    return all(inside(a.type, b.type) for a, b in zip(children(given), children(wanted), strict=True))
