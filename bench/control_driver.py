"""A worker process of the control benchmark: actors that report at once, over one line or answering one-shot calls."""

from __future__ import annotations

import sys
import threading

from epochlog.checkpoint import control_messages as wire
from epochlog.exchange.server import Server
from epochlog.exchange.transport.duplex import ClientStream
from epochlog.exchange.transport.services import Action
from epochlog.store.sst.segment import Segment

SEGMENT = Segment(
    f"{'a' * 32}/t00000001/{'b' * 32}-{'c' * 32}.arrow",
    1,
    1000,
    0,
    20_000,
    7,
    1,
    999_999,
    {"id": (1, 999_999)},
    None,
    (1,),
)


def report(inject: wire.Injected) -> wire.Reported:
    return wire.Reported(inject.part, inject.incarnation, inject.barrier_id, {"t": (SEGMENT,)}, bytes(64), False)


def over_a_line(location: str, first: int, jobs: int, actors: int, workers: int) -> None:
    """Be every `workers`-th actor of each job."""
    line = ClientStream(location, b"control", token=None, tls_roots=None)
    mine = [wire.PartName("job", f"job{job}", actor) for job in range(jobs) for actor in range(first, actors, workers)]
    line.send(wire.encode([wire.Hello(wire.VERSION, f"worker-{first}")]))
    line.send(wire.encode([wire.Attach(part, actors, (), False, 0, True) for part in mine]))
    print("ready", flush=True)
    while (frame := line.read()) is not None:
        injected = [message for message in wire.decode(frame) if isinstance(message, wire.Injected)]
        if injected:
            line.send(wire.encode([report(inject) for inject in injected]))


def answering_calls() -> None:
    """An inject is noted, and its report handed out when it is collected."""
    noted: dict[wire.PartName, wire.Reported] = {}

    def inject(body: bytes) -> bytes:
        (message,) = wire.decode(body)
        assert isinstance(message, wire.Injected)
        noted[message.part] = report(message)
        return b""

    def collect(body: bytes) -> bytes:
        (message,) = wire.decode(body)
        assert isinstance(message, wire.Progress)
        return wire.encode([noted[message.part]])

    server = Server("grpc://127.0.0.1:0", token=None, actions={"inject": Action(inject), "collect": Action(collect)})
    print(server.location, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "line":
        threading.Thread(target=over_a_line, args=(sys.argv[2], *map(int, sys.argv[3:])), daemon=True).start()
        sys.stdin.read()
    else:
        answering_calls()
