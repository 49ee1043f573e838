"""The other side of bench_flight: a plain Flight client in a process of its own, and the raw server that it is compared
with. It reads a server's endpoints to their end when told to, and says how many milliseconds and rows that were, or how
much memory it took.
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


def peak(client: flight.FlightClient, descriptor: flight.FlightDescriptor) -> tuple[float, int]:
    """MiB of anonymous pages that reading took at most, and rows."""
    from memory_driver import Watch  # not before: a client that is timed has Flight and nothing else

    with Watch() as watch:
        _, rows = read(client, descriptor)
    return watch.peak[0] - watch.start[0], rows


def main() -> None:
    clients = {location: flight.connect(location) for location in sys.argv[1:]}
    for line in sys.stdin:
        location, command, watched = json.loads(line)
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        if watched:
            print(*peak(clients[location], descriptor), flush=True)
        else:
            print(*read(clients[location], descriptor), flush=True)


if __name__ == "__main__":
    main()
