"""With the read token all is filled that a reader can fill, at a real server process: its memory is what is stated, and
who may write is served as if nobody else were there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import ERRORS, READ_TOKEN, TOKEN, bearer, error_of
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.worker.worker import CONTROL
from epochlog.exchange import ExchangeClient
from epochlog.exchange.transport.admission import AdmissionLimits
from epochlog.exchange.transport.duplex import ClientStream
from security.test_served_process import Served

pytestmark = [pytest.mark.local_only, pytest.mark.slow]

BLOCK_ROWS, WIDE = 65_536, 600
READERS = 24
"""Of each kind: gets of the log, gets of the rows, subscriptions. Each would hold 40 MB: the log's tail keeps less."""
BESIDE_MB = 224
"""What a server takes beside the room of its readers: Python, Arrow's and gRPC's pools, the tail of the log."""
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Crowd:
    """Readers that take the first message, and nothing more."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.begun = 0
        self.most = 0.0  # MB of the process, as each kind had settled
        self._clients: list[flight.FlightClient] = []
        self._streams: list[Any] = []
        self._options = flight.FlightCallOptions(headers=bearer(READ_TOKEN))

    def client(self) -> flight.FlightClient:
        own = [("grpc.use_local_subchannel_pool", 1)]
        self._clients.append(flight.connect(self.served.location, generic_options=own))
        return self._clients[-1]

    def get(self, command: dict[str, Any]) -> None:
        client = self.client()
        info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)), self._options)
        self._streams.append(client.do_get(info.endpoints[0].ticket, self._options))
        self.begun += 1
        with suppress(*ERRORS):
            self._streams[-1].read_chunk()

    def subscribe(self) -> None:
        command = flight.FlightDescriptor.for_command(b'subscribe:{"table": "t", "after": 0}')
        self._streams.append(self.client().do_exchange(command, self._options))
        self.begun += 1

    def pin(self) -> int:
        """Flights that are never read, over connections each with its share, until no more are let in."""
        client, about, own = self.client(), flight.FlightDescriptor.for_path("t"), 0
        for count in range(AdmissionLimits().flights):
            error = error_of(client.get_flight_info, about, self._options)
            if error is not None:
                assert "LimitExceeded" in str(error)
                client, own = self.client(), 0
                error = error_of(client.get_flight_info, about, self._options)
            if error is not None:
                return count
            own += 1
            assert own <= AdmissionLimits().flights_of_one
        raise AssertionError("readers take all flights")

    def close(self) -> None:
        for client in self._clients:
            client.close()


def anonymous_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def most_mb(served: Served) -> float:
    """The most that the process has, once it grows no more."""
    pause, most, still = threading.Event(), 0.0, 0
    while still < 20:
        pause.wait(0.05)
        now = anonymous_mb(served.process.pid)
        still = still + 1 if now < most + 1 else 0
        most = max(most, now)
    return most


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    root = tmp_path_factory.mktemp("crowded") / "s"
    with el.open(root, durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for part in range(2):
            ids = np.arange(part * BLOCK_ROWS, (part + 1) * BLOCK_ROWS)
            table.upsert(pa.table([ids, [f"{key:08d}" * (WIDE // 8) for key in ids.tolist()]], schema=SCHEMA))
        table.upsert(pa.table([[1], ["merged"]], schema=SCHEMA))  # a first batch of few rows, of a whole piece
        store.create_table("small", SCHEMA, ["id"])
    served = Served(root)
    readers = Crowd(served)
    try:
        kinds = [
            lambda: readers.get({"read": "t"}),
            lambda: readers.get({"changes": "t", "after": 0}),
            readers.subscribe,
        ]
        for number, kind in enumerate(kinds, start=1):
            for _ in range(READERS):
                threading.Thread(target=kind, daemon=True).start()
            while readers.begun < number * READERS:
                assert served.process.poll() is None
            readers.most = max(readers.most, most_mb(served))
        yield readers
        served.process.kill()
    finally:
        served.process.kill()
        readers.close()


def test_slow_readers_and_silent_subscribers_hold_what_is_stated(crowd: Crowd) -> None:
    assert crowd.most < AdmissionLimits().in_flight_bytes / 1e6 + BESIDE_MB, f"{crowd.most:.0f} MB"


def test_who_may_write_is_served_meanwhile(crowd: Crowd) -> None:
    """A put, a control stream, a push, and reads of their own."""
    assert crowd.pin() < AdmissionLimits().flights
    location = crowd.served.location
    with crowd.served.stranger() as owner:
        rows = pa.table([[1, 2], ["a", "b"]], schema=SCHEMA)
        assert json.loads(owner.put(flight.FlightDescriptor.for_path("small"), rows).to_pybytes())["epoch"]
        info = owner.info(flight.FlightDescriptor.for_command(json.dumps({"changes": "small", "after": 0})))
        assert owner.get(info.endpoints[0].ticket.ticket).num_rows == 2
    line = ClientStream(location, CONTROL, token=TOKEN, tls_roots=None)
    line.send(wire.encode([wire.Hello(wire.VERSION, "w")]))
    message = line.read()
    assert message is not None and isinstance(wire.decode(message)[0], wire.Welcome)
    line.close()
    with ExchangeClient(location, token=TOKEN, query="q") as ex:
        ex.declare("c", {0: ["only"]})
        ex.push("only", 0, 0, pa.record_batch({"a": [1]}))
        ex.end("only", 0)
    with el.connect(location, token=TOKEN) as client:
        assert client.changes("small", after=0).read_all().num_rows == 2
