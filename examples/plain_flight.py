"""Plain Arrow Flight client of an epochlog server, made of pyarrow.flight and a few lines of JSON.

    python examples/plain_flight.py

This process serves a store. The part between the lines can be in any language that speaks Flight.
"""

from __future__ import annotations

import json
import tempfile

import pyarrow as pa
from pyarrow import flight

import epochlog as el

TOKEN = "of-this-example"


# ---- the client ------------------------------------------------------------------------------------------------------


def use(location: str) -> None:
    client = flight.connect(location)
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    for info in client.list_flights(options=options):
        print("table", info.descriptor.path[0].decode(), info.schema.names)

    rows = pa.table({"id": [1, 2, 3], "cents": [500, 700, 900]})
    first = put(client, {"write": "orders", "txn": ["till-4", 1], "rows": 3}, rows, options)
    retry = put(client, {"write": "orders", "txn": ["till-4", 1], "rows": 3}, rows, options)
    print("a retry returns the first epoch:", retry == first)
    put(client, {"write": "orders", "operation": "delete"}, pa.table({"id": [2]}), options)

    print("now", get(client, flight.FlightDescriptor.for_path("orders"), options).to_pylist())
    for changes in ({"changes": "orders", "after": 0}, {"changes": "orders", "after": first, "pre_images": True}):
        change_rows = get(client, flight.FlightDescriptor.for_command(json.dumps(changes)), options)
        print([(row["_change_type"], row["id"], row["cents"]) for row in change_rows.to_pylist()])
    client.close()


def put(client: flight.FlightClient, command: dict, rows: pa.Table, options: flight.FlightCallOptions) -> int:
    """Send rows to a table; return the epoch of their commit."""
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(json.dumps(command)), rows.schema, options)
    writer.write_table(rows)
    writer.done_writing()
    answer = answers.read()
    writer.close()  # raises the server's error if it refused the rows
    return json.loads(answer.to_pybytes())["epoch"]


def get(
    client: flight.FlightClient, descriptor: flight.FlightDescriptor, options: flight.FlightCallOptions
) -> pa.Table:
    """Read the rows of all endpoints, in their order."""
    info = client.get_flight_info(descriptor, options)
    return pa.concat_tables([client.do_get(endpoint.ticket, options).read_all() for endpoint in info.endpoints])


# ----------------------------------------------------------------------------------------------------------------------


def main() -> None:
    schema = pa.schema([("id", pa.int64()), ("cents", pa.int64())])
    with tempfile.TemporaryDirectory() as folder, el.open(folder) as store:
        store.create_table("orders", schema, primary_key=["id"])
        with el.serve(store, token=TOKEN) as server:
            use(server.location)


if __name__ == "__main__":
    main()
