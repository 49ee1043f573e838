"""Plain Flight client that uses no code of epochlog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight


def path(table: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_path(table)


def command(**keys: object) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(keys))


@contextmanager
def connected(
    location: str, token: str | None = None, roots: bytes | None = None
) -> Iterator[tuple[flight.FlightClient, flight.FlightCallOptions]]:
    """A client with a connection of its own, and the options of its calls."""
    tls = {} if roots is None else {"tls_root_certs": roots}
    client = flight.connect(location, generic_options=[("grpc.use_local_subchannel_pool", 1)], **tls)
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    try:
        yield client, flight.FlightCallOptions(headers=headers)
    finally:
        client.close()


def read(client: flight.FlightClient, descriptor: flight.FlightDescriptor) -> pa.Table:
    """All rows of a flight, endpoint by endpoint."""
    info = client.get_flight_info(descriptor)
    return pa.concat_tables([client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints])


def put(client: flight.FlightClient, descriptor: flight.FlightDescriptor, rows: pa.Table) -> int:
    """The epoch of these rows; raises what the server says when it takes none."""
    writer, answers = client.do_put(descriptor, rows.schema)
    writer.write_table(rows)
    writer.done_writing()
    answer = answers.read()
    writer.close()
    return json.loads(answer.to_pybytes())["epoch"]


def framed(message: bytes) -> bytes:
    """A protobuf message whose first field is this one, as the standard actions take it."""
    length, size = b"", len(message)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return b"\x0a" + length + bytes([size]) + message


def renew(client: flight.FlightClient, endpoint: flight.FlightEndpoint) -> flight.FlightEndpoint:
    (answer,) = client.do_action(("RenewFlightEndpoint", framed(endpoint.serialize())))
    return flight.FlightEndpoint.deserialize(answer.body.to_pybytes())


def cancel(client: flight.FlightClient, info: flight.FlightInfo) -> bytes:
    (answer,) = client.do_action(("CancelFlightInfo", framed(info.serialize())))
    return answer.body.to_pybytes()
