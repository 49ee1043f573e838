"""pypaimon in a process of its own: it pins an older pyarrow than epochlog takes, so it lives in its own environment.

`PYTHON pypaimon_driver.py FOLDER KEY…` answers each line on standard input with a line on standard output, {"ms": …}
of the library's own calls: {"load": FILE} makes the table with those rows (an Arrow IPC file), {"commit": FILE}
upserts, {"read": null} reads all rows, {"keep": FILE} writes what was read last into an Arrow IPC file.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from time import perf_counter
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema  # pyright: ignore[reportMissingImports]  # in its own environment alone


class Paimon:
    """A table with a primary key, at the library's defaults."""

    def __init__(self, folder: str, primary_key: list[str]) -> None:
        self._catalog = CatalogFactory.create({"warehouse": folder})
        self._catalog.create_database("bench", True)
        self._primary_key = primary_key
        self._table: Any = None
        self._read: pa.Table | None = None

    def load(self, path: str) -> float:
        rows = rows_of(path)
        schema = Schema.from_pyarrow_schema(rows.schema, primary_keys=self._primary_key)
        self._catalog.create_table("bench.rows", schema, False)
        self._table = self._catalog.get_table("bench.rows")
        return self.commit(path)

    def commit(self, path: str) -> float:
        rows = rows_of(path)
        gc.collect()
        start = perf_counter()
        builder = self._table.new_batch_write_builder()
        writer, committer = builder.new_write(), builder.new_commit()
        writer.write_arrow(rows)
        committer.commit(writer.prepare_commit())
        writer.close()
        committer.close()
        return (perf_counter() - start) * 1000

    def read(self, _: None) -> float:
        self._read = None
        gc.collect()
        start = perf_counter()
        builder = self._table.new_read_builder()
        self._read = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        return (perf_counter() - start) * 1000

    def keep(self, path: str) -> float:
        assert self._read is not None
        with pa.ipc.new_file(path, self._read.schema) as writer:
            writer.write_table(self._read)
        return 0.0


def rows_of(path: str) -> pa.Table:
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes to standard error
    folder, *primary_key = sys.argv[1:]
    paimon = Paimon(folder, primary_key)
    for line in sys.stdin:
        [(work, given)] = json.loads(line).items()
        print(json.dumps({"ms": getattr(paimon, work)(given)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
