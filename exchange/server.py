"""Flight server of a store: its tokens, its services, and a shutdown in bounded time.

A service is a function under a name: of an exchange (named by the first bytes of the descriptor's command, up to a
colon), or of an action (named by its type); `Flights` serves the other calls of Flight. Each asks for a role, and every
call carries a token, which gives one; tokens are compared in constant time and appear in no log. An error of a service
reaches the client as a Flight error without a traceback.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import AccessDenied, InsecureServer, InvalidInput, WriteFailed
from epochlog.store.env.clock import Deadline

from .transport.connections import Callers, Keeper, Patience
from .transport.duplex import DuplexStream, check_token, is_loopback, parse_location
from .transport.errors import as_flight_errors, without_traceback
from .transport.services import Action, Call, Exchange, Role
from .transport.sockets import abort_connections, peer_address
from .transport.tokens import check_strength

MAX_ACTION = 1 << 20
"""Bytes of an action's body."""
MAX_COMMAND = 1 << 16
"""Bytes of a descriptor's command."""
SHUTDOWN_S = 5.0


class Flights(Protocol):
    """Services for plain Flight clients. All but `put` need to read only."""

    def listed(self, criteria: bytes) -> Iterable[flight.FlightInfo]: ...
    def info(self, descriptor: flight.FlightDescriptor, *, may_write: bool) -> flight.FlightInfo: ...
    def schema(self, descriptor: flight.FlightDescriptor) -> pa.Schema: ...
    def get(self, ticket: bytes, call: Call) -> flight.FlightDataStream: ...
    def put(self, descriptor: flight.FlightDescriptor, reader: Any, writer: Any, call: Call) -> None: ...
    def end(self) -> None:
        """End every call that moves rows: the server is being shut down, and they have had their time."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate of a TLS server: its chain and its key, both PEM."""

    chain: bytes
    key: bytes


class Server:
    """Running Flight server. Its services are fixed when it starts."""

    def __init__(
        self,
        location: str,
        *,
        token: str | None,
        read_token: str | None = None,
        certificate: Certificate | None = None,
        exchanges: Mapping[bytes, Exchange] | None = None,
        actions: Mapping[str, Action] | None = None,
        flights: Flights | None = None,
        patience: Patience | None = None,
    ) -> None:
        """patience: with connections.

        Raises InsecureServer for an address others can reach without TLS and a token, InvalidInput, WriteFailed.
        """
        host, port = checked_address(location, token, certificate, read_token)
        guard = {} if token is None else {"token": _Guards(token, read_token)}
        if read_token is not None and token in (None, read_token):
            raise InvalidInput("a read_token needs a token beside it, another one: without, anybody may write")
        scheme = "grpc" if certificate is None else "grpc+tls"
        shown = f"[{host}]" if ":" in host else host
        self._flights = flights
        self._lines: set[DuplexStream] = set()
        self._lock = threading.Lock()
        self._ending = False
        patience = patience or Patience()
        self.callers = Callers(patience)
        tls = {} if certificate is None else {"tls_certificates": [(certificate.chain, certificate.key)]}
        try:
            self._door = _Door(
                f"{scheme}://{shown}:{port}",
                self,
                dict(exchanges or {}),
                dict(actions or {}),
                flights,
                middleware=guard,
                **tls,
            )
        except (OSError, pa.ArrowException, ValueError) as error:
            pem = "" if certificate is None else ", and see that certificate and key are PEM and belong together"
            raise WriteFailed(f"no server can listen at {location}: {error}; choose another port{pem}") from None
        self.location = f"{scheme}://{shown}:{self._door.port}"
        self._keeper = Keeper(self._door.port, self.callers, patience)

    def __repr__(self) -> str:
        return f"<epochlog server at {self.location}>"

    def shutdown(self, timeout: float = SHUTDOWN_S) -> None:
        """Stop listening and end every call within `timeout` seconds: lines at once, others at half of it.

        A second call does nothing.
        """
        with self._lock:
            again, self._ending = self._ending, True
            lines = list(self._lines)
        if again:
            return
        self._keeper.close()
        deadline = Deadline.after(timeout)
        ending = threading.Thread(target=self._door.shutdown, name="epochlog-shutdown", daemon=True)
        ending.start()
        for line in lines:
            line.abort()
        ending.join(deadline.left_s / 2)
        if ending.is_alive():  # large gets and puts, calls that wait for a silent client, or were let in meanwhile
            if self._flights is not None:
                self._flights.end()
            abort_connections(self._door.port)
            ending.join(deadline.left_s)

    def open_line(self, line: DuplexStream) -> None:
        """Register an opened line; from now on `shutdown` cuts it."""
        with self._lock:
            self._lines.add(line)
            ending = self._ending
        if ending:
            line.abort()

    def close_line(self, line: DuplexStream) -> None:
        with self._lock:
            self._lines.discard(line)


class _Door(flight.FlightServerBase):
    """Flight side of the server. Every method of the base is overridden: its own defaults tell clients a traceback."""

    def __init__(
        self,
        location: str,
        server: Server,
        exchanges: Mapping[bytes, Exchange],
        actions: Mapping[str, Action],
        flights: Flights | None,
        **options: Any,
    ) -> None:
        self._server = server
        self._exchanges = exchanges
        self._actions = actions
        self._flights = flights
        super().__init__(location, **options)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with as_flight_errors():
            command = descriptor.command or b""
            name, _, rest = command[:MAX_COMMAND].partition(b":")
            service = self._exchanges.get(name)
            if service is None or len(command) > MAX_COMMAND:
                raise InvalidInput(
                    f"this server has no exchange {name[:40]!r}; if the client is one of epochlog, its version is "
                    "another than the server's: bring both to the same"
                )
            _require(context, service.role)
            call = self._call(context)
            line = DuplexStream(
                reader, writer, call.abort_connection, call.peer, service.limit, may_write=call.may_write
            )
            with self._calling(context):
                self._server.open_line(line)
                try:
                    service.serve(line, rest)
                finally:
                    line.closed.set()
                    self._server.close_line(line)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        with as_flight_errors():
            service = self._actions.get(action.type)
            if service is None:
                raise InvalidInput(f"this server has no action {action.type[:40]!r}")
            _require(context, service.role)
            if action.body is not None and action.body.size > MAX_ACTION:
                raise InvalidInput(f"an action takes at most {MAX_ACTION} bytes")
            with self._calling(context):
                answer = service.serve(action.body.to_pybytes() if action.body is not None else b"")
        yield flight.Result(answer)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        with as_flight_errors(), self._calling(context):
            return [(name, self._actions[name].about) for name in sorted(self._actions)]

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        with as_flight_errors(), self._calling(context):
            found = [] if self._flights is None else list(self._flights.listed(criteria or b""))
        return iter(found)

    def do_get(self, context: Any, ticket: Any) -> Any:
        with as_flight_errors(), self._calling(context):
            if self._flights is None:
                raise InvalidInput("this server gives no data by ticket")
            return self._flights.get(ticket.ticket, self._call(context))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with as_flight_errors():
            _require(context, Role.WRITE)
            if self._flights is None:
                raise InvalidInput("this server takes no data by put")
            with self._calling(context):
                self._flights.put(descriptor, reader, writer, self._call(context))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with as_flight_errors(), self._calling(context):
            if self._flights is None:
                raise InvalidInput("this server has no flight of that name")
            return self._flights.info(descriptor, may_write=_role(context) >= Role.WRITE)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with without_traceback(), as_flight_errors(), self._calling(context):
            if self._flights is None:
                raise InvalidInput("this server has no flight of that name")
            return flight.SchemaResult(self._flights.schema(descriptor))

    def _calling(self, context: Any) -> AbstractContextManager[None]:
        """Count the call as one of its connection's, inside of the block."""
        return self._server.callers.calling(peer_address(context.peer()), _role(context) >= Role.WRITE)

    def _call(self, context: Any) -> Call:
        peer = peer_address(context.peer())

        def cut() -> None:
            with suppress(OSError):
                abort_connections(self.port, [peer])

        may_write = _role(context) >= Role.WRITE
        counted = partial(self._server.callers.calling, peer, may_write)
        return Call(peer, context.is_cancelled, cut, may_write, counted)


class _Caller(flight.ServerMiddleware):
    """Role that the token of one call gives."""

    def __init__(self, role: Role) -> None:
        self.role = role


class _Guards(flight.ServerMiddlewareFactory):
    """Middleware that lets in the calls that carry a known token."""

    def __init__(self, token: str, read_token: str | None) -> None:
        check_token(read_token)
        known = {Role.WRITE: token, Role.READ: read_token}
        self._wanted = {role: f"Bearer {text}".encode() for role, text in known.items() if text is not None}

    def start_call(self, info: Any, headers: Any) -> _Caller:
        given = [
            _bytes(value) for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        if len(given) == 1:
            roles = [role for role, wanted in self._wanted.items() if hmac.compare_digest(given[0], wanted)]
            if roles:
                return _Caller(max(roles))
        raise flight.FlightUnauthenticatedError("a token that this server knows is needed")


def _require(context: Any, role: Role) -> None:
    """Raise AccessDenied when the call's token gives a lesser role."""
    if _role(context) < role:
        raise AccessDenied("this needs the token that may write; the one given may only read")


def _role(context: Any) -> Role:
    """Return the role that the call's token gives; WRITE at a server without tokens."""
    caller = context.get_middleware("token")
    return Role.WRITE if caller is None else caller.role


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def checked_address(
    location: str, token: str | None, certificate: Certificate | None, read_token: str | None = None
) -> tuple[str, int]:
    """Return host and port of grpc://host:port (port 0: any free one) if a server may be bound there. Raises
    InvalidInput, InsecureServer.
    """
    scheme, host, port = parse_location(location)
    if scheme == "grpc+tls" and certificate is None:
        raise InvalidInput(f"{location} needs tls=(certificate, key)")
    check_token(token)
    if not is_loopback(host):
        if token is None or certificate is None:
            raise InsecureServer(
                f"others can reach {host}: give the server tls=(certificate, key) and a token, or bind it to 127.0.0.1"
            )
        check_strength(token, f"others can reach {host}, and the token")
        if read_token is not None:
            check_strength(read_token, f"others can reach {host}, and the read token")
    return host, port
