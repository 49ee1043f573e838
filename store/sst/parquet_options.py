"""Options of Parquet for the columns of a run file, chosen from a sample of the rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.types.column_types import children
from epochlog.store.types.key_codec import KeyCodec, contiguous

from .data_file import EPOCH, UNTIL

_SAMPLE_ROWS = 8_192
_WORTH_COMPRESSING = 0.85
_T = pa.types


def column_options(table: pa.Table, codec: KeyCodec, codec_name: str) -> dict[str, Any]:
    """Return dictionaries, encodings, compression and statistics, by column.

    Parquet names its columns by paths, so `a.b` may be a column or a field of the column `a`: then it has no option.
    """
    nested = {field.name for field in table.schema if _T.is_nested(field.type)}
    fields = [field for field in table.schema if not _is_below(field.name, nested)]
    encodings = {field.name: _choose_encoding(table, codec, field, packed=codec_name == "zstd") for field in fields}
    return {
        "use_dictionary": [field.name for field in fields if _has_few_values(table, field)],
        "column_encoding": {name: encoding for name, encoding in encodings.items() if encoding},
        "compression": codec_name if nested else _choose_compression(table, codec, codec_name),
        "write_statistics": [field.name for field in fields if not _may_hold_nan(field.type)],
    }


def _is_below(name: str, columns: Collection[str]) -> bool:
    """Return True if the name is that of one of the columns, a dot, and more."""
    return any(mark == "." and name[:place] in columns for place, mark in enumerate(name))


def flat_columns(schema: pa.Schema) -> dict[str, int]:
    """Return the number of the Parquet column of each column that is not nested, by name."""
    places, place = {}, 0
    for field in schema:
        if not _T.is_nested(field.type):
            places[field.name] = place
        place += _leaves(field.type)
    return places


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(child.type) for child in children(kind)) or 1


def _choose_encoding(table: pa.Table, codec: KeyCodec, field: pa.Field, *, packed: bool) -> str | None:
    """Return the Parquet encoding of a column; None for the default (plain, or a dictionary).

    packed: store the lengths of strings apart from their bytes. The file is smaller by a tenth, and slower to read.
    """
    if _has_few_values(table, field):
        return None
    if field.name in (EPOCH, UNTIL):
        return "DELTA_BINARY_PACKED"
    if field.name in codec.primary_key and (_T.is_integer(field.type) or _T.is_temporal(field.type)):
        return "DELTA_BINARY_PACKED"
    return "DELTA_LENGTH_BYTE_ARRAY" if packed and is_text(field.type) else None


def _has_few_values(table: pa.Table, field: pa.Field) -> bool:
    """Return True if a dictionary pays: the column has texts or epochs, and a sample has few distinct values."""
    if not (is_text(field.type) or field.name in (EPOCH, UNTIL)):
        return False
    sample = _sample(table, field)
    return pc.count_distinct(sample).as_py() * 8 < len(sample)


def _choose_compression(table: pa.Table, codec: KeyCodec, codec_name: str) -> dict[str, str]:
    """Return the compression of each column; some are better uncompressed: delta-encoded keys, random numbers.

    Only without nested columns: Parquet sets compression by leaf columns, which have other names.
    """
    return {
        field.name: "none"
        if _choose_encoding(table, codec, field, packed=False) == "DELTA_BINARY_PACKED"
        or _is_incompressible(table, field, codec_name)
        else codec_name
        for field in table.schema
    }


def _is_incompressible(table: pa.Table, field: pa.Field, codec_name: str) -> bool:
    """Return True if a sample of a column of numbers hardly shrinks under the compression."""
    if not (_T.is_floating(field.type) or _T.is_integer(field.type)):
        return False
    values = contiguous(_sample(table, field).drop_null())
    raw = values.to_numpy(zero_copy_only=False).tobytes()
    return len(pa.compress(raw, codec_name, asbytes=True)) > _WORTH_COMPRESSING * len(raw)


def _sample(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    return table.column(field.name).slice(table.num_rows // 2, _SAMPLE_ROWS)


def is_text(kind: pa.DataType) -> bool:
    return _T.is_string(kind) or _T.is_large_string(kind)


def _may_hold_nan(kind: pa.DataType) -> bool:
    """Return True if a column may have NaN. Statistics ignore NaN, so a reader would wrongly prune `not (x > 5)`."""
    return _T.is_floating(kind) or _T.is_nested(kind)
