"""A server of the staged exchange's benchmark, in a process of its own: a served store, or raw Flight from memory."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyarrow import flight

import epochlog as el


class Memory(flight.FlightServerBase):
    """Keeps what was put under a path, and gives it out once."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._kept: dict[bytes, tuple[pa.Schema, list[pa.RecordBatch]]] = {}

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        schema, batches = reader.schema, [chunk.data for chunk in reader]
        self._kept[descriptor.path[0]] = schema, batches

    def do_get(self, context: Any, ticket: Any) -> Any:
        schema, batches = self._kept.pop(ticket.ticket)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches))


def main() -> None:
    if sys.argv[1] == "raw":
        memory = Memory()
        print(f"grpc://127.0.0.1:{memory.port}", flush=True)
        sys.stdin.read()
        memory.shutdown()
        return
    with el.open(sys.argv[2], durability="disk") as store, el.serve(store) as server:
        print(server.location, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
