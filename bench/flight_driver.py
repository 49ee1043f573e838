"""The other side of bench_flight: a plain Flight client in a process of its own, and the raw server that it is compared
with. It reads a server's endpoints to their end when told to, and says how many milliseconds and rows that were.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

from pyarrow import flight


def read(client: flight.FlightClient, descriptor: flight.FlightDescriptor) -> tuple[float, int]:
    """One stream after another, each record batch let go of when it is there."""
    info = client.get_flight_info(descriptor)
    start, rows = perf_counter(), 0
    for endpoint in info.endpoints:
        for chunk in client.do_get(endpoint.ticket):
            rows += chunk.data.num_rows
    return (perf_counter() - start) * 1000, rows


def main() -> None:
    clients = {location: flight.connect(location) for location in sys.argv[1:]}
    for line in sys.stdin:
        location, command = json.loads(line)
        print(*read(clients[location], flight.FlightDescriptor.for_command(json.dumps(command))), flush=True)


if __name__ == "__main__":
    main()
