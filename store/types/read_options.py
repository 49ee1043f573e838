"""Options of a read: the columns, the filter and the key range that scans, log plans and files of a table take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from .key_range import ALL_KEYS, KeyRange
from .schema import TableSchema


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Columns to read (None: all of the table), the filter that rows must pass, and the range of their keys."""

    columns: Sequence[str] | None = None
    filter: pc.Expression | None = None
    key_range: KeyRange = ALL_KEYS

    def column_names(self, table: TableSchema) -> list[str]:
        """Return the columns to read of this table."""
        return list(table.schema.names if self.columns is None else self.columns)


ALL_ROWS = ReadOptions()
