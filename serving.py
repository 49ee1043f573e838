"""`serve`: one Flight server for a store, with the coordinator of its loads and jobs, and its metrics over HTTP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from epochlog.batch.default_policy import named_policy
from epochlog.batch.policy import timeout_of
from epochlog.batch.snapshot import default_of, take_snapshot
from epochlog.checkpoint.control_messages import decode_request
from epochlog.checkpoint.coordinator.coordinator import Coordinator
from epochlog.checkpoint.coordinator.metrics import as_text
from epochlog.checkpoint.coordinator.state import CoordinatorSettings
from epochlog.checkpoint.worker.worker import CONTROL
from epochlog.exchange.flight.planner import Chosen
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.server import SHUTDOWN_S, Certificate, Server
from epochlog.exchange.staged.service import StagedExchange
from epochlog.exchange.subscription.messages import SUBSCRIBE
from epochlog.exchange.subscription.server import Subscriptions
from epochlog.exchange.transport.duplex import Pem, read_pem
from epochlog.exchange.transport.metrics_http import MetricsPort
from epochlog.exchange.transport.refusals import Refusals
from epochlog.exchange.transport.services import Action, Exchange, Role
from epochlog.store.env.clock import Deadline, SystemClock
from epochlog.store.env.log_events import SERVER_OPEN, SERVER_STARTED, SERVER_STOPPED

from .errors import InvalidInput
from .page.port import PagePort

if TYPE_CHECKING:
    from .api import Store


NO_STAGE_COUNTER = (
    "a Redis server for stage counters has no effect any more: the store's catalog counts, in Redis if it is "
    'there (el.open(root, catalog="redis://…"))'
)
MAX_WAIT_S = 30.0
"""Longest time that a read may wait on the server for the epoch of its policy."""


def serve(
    store: Store,
    location: str = "grpc://127.0.0.1:0",
    *,
    token: str | None = None,
    read_token: str | None = None,
    tls: tuple[Pem, Pem] | None = None,
    stage_counter: str | None = None,
    control: CoordinatorSettings | None = None,
    metrics: str | None = None,
    ui: str | None = None,
    coordinator: str | None = None,
) -> StoreServer:
    """Serve a store to other processes until `shutdown`, or the end of a `with` block. Keep the store open meanwhile.

    location: grpc://host:port, port 0 for a free one. An address that other hosts can reach needs tls=(certificate
    chain, key) and a token that is hard to guess. token: the access token that clients must send with every call;
    without one, every user of this machine may read and write, and a warning is logged. read_token: a second token,
    whose clients may only read. control: times of heartbeats and checkpoints. metrics: an address such as "127.0.0.1:0"
    that serves Prometheus text over HTTP at /metrics, one text for all requests within a second; only this machine can
    reach it. ui: an address such as "127.0.0.1:8321" that shows the store on a page for browsers, which sign in with
    one of the tokens; an address that other hosts can reach needs tls= and a token. stage_counter, coordinator:
    deprecated, without an effect: end marks and stage counters are in the store's catalog. Raises InsecureServer,
    InvalidInput, WriteFailed (the port is taken).
    """
    if control is not None and not isinstance(control, CoordinatorSettings):
        raise InvalidInput(f"control= takes epochlog.CoordinatorSettings, not {control!r}")
    if isinstance(stage_counter or coordinator, CoordinatorSettings):
        raise InvalidInput("give times of heartbeats and checkpoints as control=")
    for argument, value in (("stage_counter", stage_counter), ("coordinator", coordinator)):
        if value is not None:
            if not isinstance(value, str) or not value:
                raise InvalidInput(f"{argument}= takes the URL of a Redis server, not {value!r}: leave it out")
            warnings.warn(f"{NO_STAGE_COUNTER}: leave {argument}= out", DeprecationWarning, stacklevel=2)
    certificate = None if tls is None else Certificate(read_pem(tls[0]), read_pem(tls[1]))
    server = StoreServer(store, location, token, read_token, certificate, control, metrics, ui)
    store._handle.log(SERVER_STARTED, location=server.location)
    if token is None:
        store._handle.log(SERVER_OPEN, location=server.location)
    return server


class StoreServer:
    """Server of one open store."""

    def __init__(
        self,
        store: Store,
        location: str,
        token: str | None,
        read_token: str | None,
        certificate: Certificate | None,
        settings: CoordinatorSettings | None,
        metrics: str | None,
        ui: str | None = None,
    ) -> None:
        self.coordinator = Coordinator(store._handle, settings)
        self._flights = FlightDesk(store._handle, self._choose)
        self._staged = StagedExchange(store._handle, self._flights.waiting)
        self._handle = store._handle
        self._stopped = False
        self._metrics: MetricsPort | None = None
        self._page: PagePort | None = None
        refusals = Refusals(store._handle)
        subscriptions = Subscriptions(store._handle, self._flights.admission)
        try:
            if metrics is not None:
                self._metrics = MetricsPort(metrics, self._metrics_lines)
            if ui is not None:
                self._page = PagePort(
                    store._handle,
                    ui,
                    tokens=[access_token for access_token in (token, read_token) if access_token is not None],
                    certificate=None if certificate is None else (certificate.chain, certificate.key),
                    server=self._server_facts,
                    refusals=refusals,
                )
            self._server = Server(
                location,
                token=token,
                read_token=read_token,
                certificate=certificate,
                exchanges={
                    CONTROL: Exchange(self.coordinator.serve),
                    SUBSCRIBE: Exchange(subscriptions.serve, Role.READ),
                    **self._staged.exchanges,
                },
                actions={
                    "checkpoint": Action(self._checkpoint, about="a barrier of a load or a job, now"),
                    "stop": Action(self._stop, about="end a load or a job"),
                    **self._staged.actions,
                    **self._flights.actions,
                },
                flights=self._flights,
                refusals=refusals,
            )
        except BaseException:
            self._flights.close()
            self.coordinator.close()
            self._staged.close()
            self._close_ports()
            raise

    @property
    def location(self) -> str:
        """Return the URI that clients connect to, with the actual port."""
        return self._server.location

    @property
    def metrics_location(self) -> str | None:
        """Return the URL of the metrics; None if they are not served."""
        return None if self._metrics is None else self._metrics.location

    @property
    def ui_location(self) -> str | None:
        """Return the URL of the page; None if it is not served."""
        return None if self._page is None else self._page.location

    def metrics(self) -> str:
        """Return the Prometheus text of the server and of the store's tables."""
        return as_text(self._metrics_lines())

    def _metrics_lines(self) -> Iterator[str]:
        coordinator = self.coordinator
        return coordinator.metrics.lines(self._handle, coordinator.status(), coordinator.workers, SystemClock()())

    def shutdown(self, timeout: float = SHUTDOWN_S) -> None:
        """End all calls and threads within about `timeout` seconds, streams and waits for epochs and stages at once; a
        second call does nothing. A call that does not end in time, as one that waits for the catalog, keeps the process
        until it does.
        """
        deadline = Deadline.after(timeout)
        self.coordinator.close(timeout)
        self._staged.stop()
        self._server.shutdown(max(deadline.remaining_s, 0.1))
        self._staged.close()
        self._flights.close()
        self._close_ports()
        if not self._stopped:
            self._handle.log(SERVER_STOPPED, location=self.location)
        self._stopped = True

    def _close_ports(self) -> None:
        for port in (self._metrics, self._page):
            if port is not None:
                port.close()

    def _server_facts(self) -> dict[str, Any]:
        """Describe the coordinator for the page: its workers, and the loads and jobs that run on it."""
        statuses = self.coordinator.status()
        return {
            "workers": self.coordinator.workers,
            "running": [
                {
                    "name": status.job,
                    "state": status.state,
                    "phase": status.phase,
                    "actors": len(status.actors),
                    "waiting_for": len(status.waiting_for),
                    "failures": status.failures,
                    "commits": status.commits,
                }
                for status in statuses
            ],
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<epochlog server of {self._handle.files.place} at {self.location}>"

    def _choose(
        self, table: str, consistency: str | None, options: Mapping[str, Any], check: Callable[[], None]
    ) -> Chosen:
        policy = named_policy(consistency, lambda: default_of(self._handle, [table]), **options)
        if timeout_of(policy) > MAX_WAIT_S:
            raise InvalidInput(
                f"the server waits at most {MAX_WAIT_S:g} s for an epoch of {table!r}; read with a shorter timeout"
            )
        snapshot = take_snapshot(self._handle, policy, [table], check=check)
        return Chosen(snapshot[table].plan, snapshot.close)

    def _checkpoint(self, body: bytes) -> bytes:
        kind, name, _ = decode_request(body)
        self.coordinator.checkpoint(kind, name)
        return b""

    def _stop(self, body: bytes) -> bytes:
        kind, name, drain = decode_request(body)
        self.coordinator.stop(kind, name, drain=drain)
        return b""
