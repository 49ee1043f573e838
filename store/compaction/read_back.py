"""Read-back of the files that a compaction wrote, before its inputs go: values of all columns, by the readers' code."""

from __future__ import annotations

import zlib

import numpy as np

from epochlog.errors import Corrupt, ReadBackFailed
from epochlog.store.env.files import Files
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.sorted_run import RunFile, read_blocks, row_group_rows
from epochlog.store.types.key_codec import KeyCodec, contiguous
from epochlog.store.types.null_safe_equal import same_values
from epochlog.store.types.schema import TableSchema

SMALL_GROUPS = 4
"""Row groups up to which a sample has all of a file."""
RANDOM_GROUPS = 2
"""Row groups, at most, between the first and the last one of a larger file that a sample has."""


def sampled_groups(part: RunFile, check: str) -> list[int]:
    """Return the row groups of a new file to read back, in order. check: the table's option `compaction_check`.

    The file's path, which its record has, is the seed: the sample of a file can be told later.
    """
    groups = len(part.blocks)
    if check == "off":
        return []
    if check == "all" or groups <= SMALL_GROUPS:
        return list(range(groups))
    inner = (1 + zlib.crc32(f"{part.path} {number}".encode()) % (groups - 2) for number in range(RANDOM_GROUPS))
    return sorted({0, *inner, groups - 1})


def sampled_rows(part: RunFile, check: str, columns: int) -> int:
    """Return the number of rows in these row groups of a file of a table with so many columns."""
    size = row_group_rows(columns)
    return sum(min(size, part.rows - group * size) for group in sampled_groups(part, check))


def read_back(files: Files, part: RunFile, table: TableSchema, codec: KeyCodec, rows: Rows, check: str) -> None:
    """Compare a new file with the rows that it was written from. Raises ReadBackFailed if a value differs or the file
    cannot be decoded.
    """
    groups = sampled_groups(part, check)
    if not groups:
        return
    try:
        blocks = read_blocks(files, part, table, codec, rows.data.column_names, groups)
    except FileMissing:
        raise  # vacuum has deleted it, because the write intent was revoked
    except Corrupt as error:
        raise _failed(table, f"cannot be decoded ({error.what})") from error
    size = row_group_rows(len(table.schema))
    for group, back in zip(groups, blocks, strict=True):
        _compare(table, rows, back, group * size, min(size, part.rows - group * size))


def _compare(table: TableSchema, rows: Rows, back: Rows, start: int, size: int) -> None:
    if len(back) != size:
        raise _failed(table, f"has {len(back)} rows in place of {size}")
    deleted = np.zeros(size, np.bool_) if rows.deleted is None else rows.deleted[start : start + size]
    differs = deleted != (back.deleted if back.deleted is not None else False)
    if differs.any() or not same_values(back.keys, rows.keys.slice(start, size)).all():
        raise _failed(table, "returns other keys or deletes")
    for name in rows.data.column_names:
        wanted = contiguous(rows.data.column(name).slice(start, size))
        same = same_values(contiguous(back.data.column(name)), wanted)
        if not same.all():
            row = start + int(np.flatnonzero(~same)[0])
            raise _failed(table, f"returns another value in row {row} of column {name!r}, of type {wanted.type}")


def _failed(table: TableSchema, what: str) -> ReadBackFailed:
    return ReadBackFailed(
        f"compaction of table {table.name!r}: a new file {what}. It was deleted; the files that it was made of stay, "
        "and no row is lost. This is a defect: report it with the table's columns, and give the named column another "
        "type in the meantime (add one, copy the values, drop this one)"
    )
