"""Flight server of a store: its tokens, its services, and a shutdown in bounded time.

A service is a named function. The name of an exchange is the descriptor's command up to the first colon; the name of
an action is its type. `Flights` serves all other Flight calls. Each service requires a role, which the token of the
call gives. Tokens are compared in constant time and appear in no log. An error of a service reaches the client as a
Flight error without a traceback.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import AccessDenied, InsecureServer, InvalidInput, WriteFailed
from epochlog.store.env.clock import Deadline

from .transport.connections import Callers, ConnectionLimiter, ConnectionLimits
from .transport.duplex import DuplexStream, check_token, is_loopback, parse_location
from .transport.errors import as_flight_errors, without_traceback
from .transport.refusals import UNKNOWN_HOST, Refusals
from .transport.services import Action, Call, Exchange, Role, WaitingAction
from .transport.sockets import abort_connections, peer_address
from .transport.tokens import check_strength

MAX_ACTION = 1 << 20
"""Largest number of bytes of an action's body."""
MAX_COMMAND = 1 << 16
"""Largest number of bytes of a descriptor's command."""
SHUTDOWN_S = 5.0


class Flights(Protocol):
    """Services for standard Flight clients. `put` requires Role.WRITE, all others Role.READ."""

    def list_flights(self, criteria: bytes) -> Iterable[flight.FlightInfo]: ...
    def info(self, descriptor: flight.FlightDescriptor, call: Call) -> flight.FlightInfo: ...
    def schema(self, descriptor: flight.FlightDescriptor) -> pa.Schema: ...
    def get(self, ticket: bytes, call: Call) -> flight.FlightDataStream: ...
    def put(self, descriptor: flight.FlightDescriptor, reader: Any, writer: Any, call: Call) -> None: ...
    def end_waits(self) -> None:
        """End every call that waits for an epoch or a stage. Called when the shutdown begins."""

    def end(self) -> None:
        """End every call that moves rows. Called during shutdown, after half of its time."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate of a TLS server: chain and private key, both PEM."""

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
        actions: Mapping[str, Action | WaitingAction] | None = None,
        flights: Flights | None = None,
        limits: ConnectionLimits | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Bind to `location` and start serving. limits: of connections. refusals: the record of refused calls.

        Raises InsecureServer for an address that other hosts can reach without TLS and a token, InvalidInput, and
        WriteFailed when the port cannot be bound.
        """
        host, port = check_address(location, token, certificate, read_token)
        middleware = {} if token is None else {"token": _TokenMiddlewareFactory(token, read_token, refusals)}
        if read_token is not None and token in (None, read_token):
            raise InvalidInput(
                "read_token needs a different token beside it: without one, every client of the server may write"
            )
        scheme = "grpc" if certificate is None else "grpc+tls"
        bracketed_host = f"[{host}]" if ":" in host else host
        self._flights = flights
        self.refusals = refusals
        self._streams: set[DuplexStream] = set()
        self._lock = threading.Lock()
        self._ending = False
        limits = limits or ConnectionLimits()
        self.callers = Callers(limits)
        tls = {} if certificate is None else {"tls_certificates": [(certificate.chain, certificate.key)]}
        try:
            self._flight_server = _FlightServer(
                f"{scheme}://{bracketed_host}:{port}",
                self,
                dict(exchanges or {}),
                dict(actions or {}),
                flights,
                middleware=middleware,
                **tls,
            )
        except (OSError, pa.ArrowException, ValueError) as error:
            pem = "" if certificate is None else ", and check that certificate and key are PEM and belong together"
            raise WriteFailed(f"the server cannot listen at {location}: {error}; choose another port{pem}") from None
        self.location = f"{scheme}://{bracketed_host}:{self._flight_server.port}"
        self._host = host
        self._connection_limiter = ConnectionLimiter(self._flight_server.port, self.callers, limits, host=host)

    def __repr__(self) -> str:
        return f"<epochlog server at {self.location}>"

    def shutdown(self, timeout: float = SHUTDOWN_S) -> None:
        """Stop listening and end every call within `timeout` seconds: streams and waits at once, other calls
        at half of the time. A second call does nothing.

        A call that does not end, as one that waits for the catalog, keeps the process until it does: the interpreter
        aborts a process that ends while a call of gRPC runs Python.
        """
        with self._lock:
            already_ending, self._ending = self._ending, True
            streams = list(self._streams)
        if already_ending:
            return
        self._connection_limiter.close()
        deadline = Deadline.after(timeout)
        shutdown_thread = threading.Thread(target=self._flight_server.shutdown, name="epochlog-shutdown", daemon=False)
        shutdown_thread.start()
        if self._flights is not None:
            self._flights.end_waits()
        for stream in streams:
            stream.abort()
        shutdown_thread.join(deadline.remaining_s / 2)
        if shutdown_thread.is_alive():  # Some calls still move rows, wait for silent clients, or began after the list.
            if self._flights is not None:
                self._flights.end()
            self.abort_connections()
            shutdown_thread.join(deadline.remaining_s)

    def abort_connections(self, peers: Collection[str] | None = None) -> None:
        """Abort the connections of these peers (`host:port`), or all."""
        abort_connections(self._flight_server.port, peers, self._host)

    def add_stream(self, stream: DuplexStream) -> None:
        """Register an open stream, which `shutdown` aborts; abort it now if the shutdown has begun."""
        with self._lock:
            self._streams.add(stream)
            ending = self._ending
        if ending:
            stream.abort()

    def remove_stream(self, stream: DuplexStream) -> None:
        with self._lock:
            self._streams.discard(stream)


class _FlightServer(flight.FlightServerBase):
    """Flight server that checks roles and dispatches calls to the services. It overrides every method of the base,
    whose defaults send tracebacks to clients.
    """

    def __init__(
        self,
        location: str,
        server: Server,
        exchanges: Mapping[bytes, Exchange],
        actions: Mapping[str, Action | WaitingAction],
        flights: Flights | None,
        **options: Any,
    ) -> None:
        self._server = server
        self._exchanges = exchanges
        self._actions = actions
        self._flights = flights
        super().__init__(location, **options)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._answering(context):
            command = descriptor.command or b""
            name, _, request = command[:MAX_COMMAND].partition(b":")
            service = self._exchanges.get(name)
            if service is None or len(command) > MAX_COMMAND:
                raise InvalidInput(
                    f"this server has no exchange {name[:40]!r}; use one version of epochlog for client and server"
                )
            _require(context, service.role)
            call = self._call(context)
            stream = DuplexStream(
                reader, writer, call.abort_connection, call.peer, service.limit, may_write=call.may_write
            )
            with self._counting(context):
                self._server.add_stream(stream)
                try:
                    service.serve(stream, request)
                finally:
                    stream.closed.set()
                    self._server.remove_stream(stream)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        with self._answering(context):
            service = self._actions.get(action.type)
            if service is None:
                raise InvalidInput(f"this server has no action {action.type[:40]!r}; list_actions names those it has")
            _require(context, service.role)
            if action.body is not None and action.body.size > MAX_ACTION:
                raise InvalidInput(
                    f"the body of action {action.type!r} has {action.body.size} bytes; it may have at most {MAX_ACTION}"
                )
            with self._counting(context):
                body = action.body.to_pybytes() if action.body is not None else b""
                waits = isinstance(service, WaitingAction)
                answer = service.serve(body, self._call(context)) if waits else service.serve(body)
        yield flight.Result(answer)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        with self._answering(context), self._counting(context):
            return [(name, self._actions[name].about) for name in sorted(self._actions)]

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        with self._answering(context), self._counting(context):
            infos = [] if self._flights is None else list(self._flights.list_flights(criteria or b""))
        return iter(infos)

    def do_get(self, context: Any, ticket: Any) -> Any:
        with self._answering(context), self._counting(context):
            if self._flights is None:
                raise InvalidInput("this server serves no flights, so it takes no tickets")
            return self._flights.get(ticket.ticket, self._call(context))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._answering(context):
            _require(context, Role.WRITE)
            if self._flights is None:
                raise InvalidInput("this server serves no flights, so it takes no puts")
            with self._counting(context):
                self._flights.put(descriptor, reader, writer, self._call(context))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with self._answering(context), self._counting(context):
            if self._flights is None:
                raise InvalidInput("this server has no flight of that name")
            return self._flights.info(descriptor, self._call(context))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with without_traceback(), self._answering(context), self._counting(context):
            if self._flights is None:
                raise InvalidInput("this server has no flight of that name")
            return flight.SchemaResult(self._flights.schema(descriptor))

    def _answering(self, context: Any) -> AbstractContextManager[None]:
        """Enter a context whose errors are sent to the client, and noted if they refuse the call."""
        refusals = self._server.refusals
        if refusals is None:
            return as_flight_errors()
        host = peer_address(context.peer()).rpartition(":")[0]
        return as_flight_errors(partial(refusals.note_error, host=host))

    def _counting(self, context: Any) -> AbstractContextManager[None]:
        """Enter a context in which the call counts as one of its connection."""
        return self._server.callers.calling(peer_address(context.peer()), _role(context) >= Role.WRITE)

    def _call(self, context: Any) -> Call:
        peer = peer_address(context.peer())

        def abort() -> None:
            with suppress(OSError):
                self._server.abort_connections([peer])

        may_write = _role(context) >= Role.WRITE
        count_call = partial(self._server.callers.calling, peer, may_write)
        return Call(peer, context.is_cancelled, abort, may_write, count_call)


class _TokenMiddleware(flight.ServerMiddleware):
    """Middleware of one call, with the role that its token gives."""

    def __init__(self, role: Role) -> None:
        self.role = role


class _TokenMiddlewareFactory(flight.ServerMiddlewareFactory):
    """Middleware factory that admits only calls with a known token."""

    def __init__(self, token: str, read_token: str | None, refusals: Refusals | None) -> None:
        check_token(read_token)
        self._refusals = refusals
        tokens = {Role.WRITE: token, Role.READ: read_token}
        self._headers = {role: f"Bearer {text}".encode() for role, text in tokens.items() if text is not None}

    def start_call(self, info: Any, headers: Any) -> _TokenMiddleware:
        headers_sent = [
            _bytes(value) for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        if len(headers_sent) == 1:
            roles = [role for role, header in self._headers.items() if hmac.compare_digest(headers_sent[0], header)]
            if roles:
                return _TokenMiddleware(max(roles))
        if self._refusals is not None:
            self._refusals.note("flight", "token", UNKNOWN_HOST)
        raise flight.FlightUnauthenticatedError("the call needs a token that this server accepts")


def _require(context: Any, role: Role) -> None:
    """Raise AccessDenied when the call's token gives a lesser role."""
    if _role(context) < role:
        raise AccessDenied("this call needs the token that may write; the token sent may only read")


def _role(context: Any) -> Role:
    """Return the role that the call's token gives; Role.WRITE on a server without tokens."""
    middleware = context.get_middleware("token")
    return Role.WRITE if middleware is None else middleware.role


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def check_address(
    location: str, token: str | None, certificate: Certificate | None, read_token: str | None = None
) -> tuple[str, int]:
    """Return host and port of grpc://host:port (port 0: any free one). Raises InvalidInput, InsecureServer."""
    scheme, host, port = parse_location(location)
    if scheme == "grpc+tls" and certificate is None:
        raise InvalidInput(f"{location} needs tls=(certificate, key)")
    check_token(token)
    if not is_loopback(host):
        if token is None or certificate is None:
            raise InsecureServer(
                f"other hosts can reach {host}: give the server tls=(certificate, key) and a token, or bind it to "
                "127.0.0.1"
            )
        check_strength(token, f"other hosts can reach {host}, and the token")
        if read_token is not None:
            check_strength(read_token, f"other hosts can reach {host}, and the read token")
    return host, port
