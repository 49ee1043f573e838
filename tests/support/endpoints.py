"""Every call that a stranger can make of a server, with the headers that he likes: found by looking at the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

import epochlog as el

TOKEN = "write-Token-4711"
READ_TOKEN = "read-Token-08151"

Header = tuple[bytes, bytes]
ERRORS = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
ROWS = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]})


def bearer(token: str) -> list[Header]:
    return [(b"authorization", f"Bearer {token}".encode())]


def methods() -> set[str]:
    """List the methods of a Flight server: all of its base class that can be overridden."""
    own = {name for name in vars(flight.FlightServerBase) if not name.startswith("_")}
    return own - {"port", "run", "serve", "shutdown", "wait"}


def services(server: el.StoreServer) -> tuple[dict[bytes, Any], dict[str, Any]]:
    """Exchanges and actions by name."""
    door = server._server._flight_server
    return dict(door._exchanges), dict(door._actions)


class Stranger:
    """A plain Flight client."""

    def __init__(self, location: str, headers: Sequence[Header] = (), timeout_s: float = 300) -> None:
        self.client = flight.connect(location)
        self.options = flight.FlightCallOptions(timeout=timeout_s, headers=list(headers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, ticket: bytes = b"x") -> Any:
        return self.client.do_get(flight.Ticket(ticket), self.options).read_all()

    def info(self, about: flight.FlightDescriptor | None = None) -> Any:
        return self.client.get_flight_info(about or flight.FlightDescriptor.for_path("orders"), self.options)

    def schema(self, about: flight.FlightDescriptor | None = None) -> Any:
        return self.client.get_schema(about or flight.FlightDescriptor.for_path("orders"), self.options)

    def put(self, about: flight.FlightDescriptor | None = None, rows: pa.Table = ROWS) -> Any:
        writer, reader = self.client.do_put(
            about or flight.FlightDescriptor.for_path("orders"), rows.schema, self.options
        )
        try:
            writer.write_table(rows)
            writer.done_writing()
            return reader.read()
        finally:
            writer.close()

    def list(self, criteria: bytes = b"") -> Any:
        return list(self.client.list_flights(criteria, self.options))

    def actions(self) -> Any:
        return list(self.client.list_actions(self.options))

    def action(self, kind: str = "stop", body: bytes = b"") -> bytes:
        results = self.client.do_action(flight.Action(kind, body), self.options)
        return b"".join(result.body.to_pybytes() for result in results)

    def exchange(
        self,
        command: bytes = b"control",
        messages: Sequence[bytes | pa.RecordBatch | tuple[bytes, pa.RecordBatch]] = (),
    ) -> list[bytes]:
        """Say all of it, messages, rows or both at once; end, and hear what comes back until the other side ends."""
        writer, reader = self.client.do_exchange(flight.FlightDescriptor.for_command(command), self.options)
        heard = []
        try:
            for message in messages:
                if isinstance(message, tuple):
                    writer.begin(message[1].schema)
                    writer.write_with_metadata(message[1], message[0])
                elif not isinstance(message, bytes):
                    writer.begin(message.schema)
                    writer.write_batch(message)
                else:
                    writer.write_metadata(message)
            writer.done_writing()
            while True:
                chunk = reader.read_chunk()
                heard.append(b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes())
        except StopIteration:
            return heard
        finally:
            with suppress(*ERRORS):
                writer.close()


def every_method(stranger: Stranger) -> dict[str, Callable[[], Any]]:
    """One call of each method of Flight."""
    return {
        "do_get": stranger.get,
        "get_flight_info": stranger.info,
        "get_schema": stranger.schema,
        "do_put": stranger.put,
        "list_flights": stranger.list,
        "list_actions": stranger.actions,
        "do_action": stranger.action,
        "do_exchange": stranger.exchange,
    }


def every_service(stranger: Stranger, server: el.StoreServer) -> dict[str, Callable[[], Any]]:
    exchanges, actions = services(server)
    calls: dict[str, Callable[[], Any]] = {}
    for name in exchanges:
        calls[f"exchange {name.decode()}"] = lambda name=name: stranger.exchange(name + b":")
    for kind in actions:
        calls[f"action {kind}"] = lambda kind=kind: stranger.action(kind)
    return calls


def error_of(call: Callable[..., Any], *args: Any) -> Exception | None:
    """Return the error that the client gets; None when it is served."""
    try:
        call(*args)
    except ERRORS as error:
        return error
    return None


def check_no_internals(error: Exception | None, what: str = "") -> str:
    """Check that an error shows no internals and no secret. Return its text without gRPC's client-side addition."""
    text = str(error)
    for inside in ("Traceback", 'File "', "site-packages", ".py", TOKEN, READ_TOKEN):
        assert inside not in text, f"{what}: {text}"
    return text.partition(". gRPC client debug context")[0]
