"""One file of the same rows: what reading costs where there is nothing to merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from data import PLAIN, Shape

PARQUET, PARQUET_DEFAULTS = "parquet", "parquet (defaults)"
IPC, IPC_PLAIN = "IPC file, lz4", "IPC file, uncompressed"


class ParquetFile:
    """tuned: encoded as a run's parts are (packed keys, random numbers as they are, strings plain with lz4, those that
    repeat by a dictionary), the fastest known here; else as pyarrow writes by default.
    """

    def __init__(self, folder: Path, shape: Shape = PLAIN, *, tuned: bool) -> None:
        self.name = PARQUET if tuned else PARQUET_DEFAULTS
        self._path = folder / f"{'tuned' if tuned else 'defaults'}.parquet"
        self._options = _tuned(shape) if tuned else {}

    def write(self, rows: pa.Table) -> None:
        pq.write_table(rows, self._path, **self._options)

    def read(self) -> pa.Table:
        return pq.read_table(self._path)


def _tuned(shape: Shape) -> dict[str, Any]:
    numbers = [name for name in shape.primary_key if not pa.types.is_string(shape.schema.field(name).type)]
    plain = {*shape.random, *numbers}
    return {
        "compression": {name: "none" if name in plain else "lz4" for name in shape.schema.names},
        "use_dictionary": list(shape.few),
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "row_group_size": 65_536,
    }


class IpcFile:
    """An Arrow IPC file, with lz4 or as it lies in memory."""

    def __init__(self, folder: Path, *, compressed: bool) -> None:
        self.name = IPC if compressed else IPC_PLAIN
        self._path = folder / f"{'lz4' if compressed else 'plain'}.arrow"
        self._compression = "lz4" if compressed else None

    def write(self, rows: pa.Table) -> None:
        options = pa.ipc.IpcWriteOptions(compression=self._compression)
        with pa.ipc.new_file(self._path, rows.schema, options=options) as writer:
            writer.write_table(rows, max_chunksize=65_536)

    def read(self) -> pa.Table:
        """Its bytes are copied, not mapped: the rows are in memory then, as everybody's are."""
        with pa.OSFile(str(self._path)) as file:
            return pa.ipc.open_file(file).read_all()
