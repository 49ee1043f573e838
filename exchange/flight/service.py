"""Standard Flight interface of a server: any Arrow Flight client lists, plans, gets and puts tables through it.

`get_flight_info` plans a read, holds its epochs and cuts it into parts; a ticket names one part. The number and the
duration of flights are bounded. A flight releases its holds when it is cancelled or expires.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import BadMessage, InvalidInput, ServerUnavailable
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits, CallSlot, Lane
from epochlog.exchange.transport.errors import CALL_ERRORS, as_flight_errors
from epochlog.exchange.transport.protobuf import first_field
from epochlog.exchange.transport.services import Action, Call, Role
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.clock import Clock, SystemClock
from epochlog.store.env.metrics import READS
from epochlog.store.metadata.lookups import all_tables, find_table, get_version
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle

from .descriptors import Read, parse_reading, parse_writing
from .leases import Caller, FlightLeases
from .planner import Choose, FlightPlanner, plan_flight_changes
from .put import put
from .tickets import Ticket, Tickets, new_flight, new_key

T = TypeVar("T")

MAX_CRITERIA = 64
"""Largest number of bytes of the table-name prefix that `list_flights` takes."""
_SWEEP_S = 5.0
_CANCELLED = b"\x08\x01"
_NOT_CANCELLABLE = b"\x08\x03"


class FlightDesk:
    """Service of the flights of one open store (`exchange.server.Flights`)."""

    def __init__(
        self, handle: Handle, choose: Choose, limits: AdmissionLimits | None = None, now_ms: Clock | None = None
    ) -> None:
        self._handle = handle
        self._planner = FlightPlanner(handle, choose)
        self._limits = limits or AdmissionLimits()
        self._now_ms = now_ms or SystemClock()
        self.leases = FlightLeases(self._limits.flights, self._now_ms, self._limits.flights_of_one)
        self.admission = AdmissionController(self._limits)
        self._tickets = Tickets(new_key(), self._now_ms)
        self._lease_ms = round(self._limits.flight_s * 1000)
        self._waits_ended = threading.Event()
        self._closed = threading.Event()
        self._sweeper: threading.Thread | None = None

    @property
    def actions(self) -> dict[str, Action]:
        """Return the standard Flight actions by name."""
        renew, cancel = "renew an endpoint of a flight before it expires", "end a flight and release its holds"
        return {
            "RenewFlightEndpoint": Action(self._renew, Role.READ, renew),
            "CancelFlightInfo": Action(self._cancel, Role.READ, cancel),
        }

    # ---- exchange.server.Flights ---------------------------------------------------------------------------------

    def list_flights(self, criteria: bytes) -> list[flight.FlightInfo]:
        """List one flight for each table whose name begins with `criteria`, without endpoints; takes no holds."""
        if len(criteria) > MAX_CRITERIA:
            raise InvalidInput(
                f"criteria are a prefix of a table's name with at most {MAX_CRITERIA} bytes, not {len(criteria)}"
            )
        prefix = criteria.decode("ascii", "replace")

        def read_tables(view: ReadTxn) -> list[tuple[str, pa.Schema, int]]:
            return [
                (table.name, table.schema.schema, get_version(view, table.id, table.name).max_committed_epoch)
                for table in all_tables(view)
                if table.name.startswith(prefix)
            ]

        return [
            flight.FlightInfo(
                schema, flight.FlightDescriptor.for_path(name), [], app_metadata=json.dumps({"epoch": epoch})
            )
            for name, schema, epoch in sorted(self._handle.catalog.read(read_tables), key=lambda row: row[0])
        ]

    def info(self, descriptor: flight.FlightDescriptor, call: Call) -> flight.FlightInfo:
        """Plan the read that the descriptor asks for and lease it; return one endpoint for each part, in order.

        A wait for an epoch ends when the client has gone or the server shuts down.
        """
        command = parse_reading(_path(descriptor), descriptor.command or b"")
        name = new_flight()
        with self.admission.admit(call) as slot:
            content, expires_ms = self.leases.add(
                name,
                lambda keep_waiting: self._planner.plan(command, self._check_of(slot, keep_waiting)),
                self._lease_ms,
                may_write=call.may_write,
                peer=call.peer,
            )
        self._start_sweeper()
        return flight.FlightInfo(
            content.schema,
            descriptor,
            [self._endpoint(Ticket(name, part, expires_ms)) for part in range(len(content.parts))],
            total_records=content.rows,
            ordered=True,
            app_metadata=json.dumps({"epoch": content.epoch}),
        )

    @contextmanager
    def waiting(self, call: Call, waits_for: str) -> Iterator[Callable[[], None]]:
        """Take a place for the wait of a call inside of the block, as a read that waits for an epoch does. Yield the
        check of the wait, which raises ServerUnavailable when the client has gone or the server shuts down, and
        LimitExceeded when another connection needs the place. Raises LimitExceeded when there is no place.
        """
        with (
            self.admission.admit(call) as slot,
            self.leases.waiting(Caller(call.peer, call.may_write), waits_for) as keep_waiting,
        ):
            yield self._check_of(slot, keep_waiting)

    def _check_of(self, slot: CallSlot, keep_waiting: Callable[[], None]) -> Callable[[], None]:
        """Return the check of a wait."""

        def check() -> None:
            if self._waits_ended.is_set():
                raise ServerUnavailable("this server is shutting down; call again when it is back")
            slot.check()
            keep_waiting()

        return check

    def schema(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
        """Return the columns of a flight; takes no holds."""
        command = parse_reading(_path(descriptor), descriptor.command or b"")

        def read_plan(view: ReadTxn) -> ScanPlan | LogPlan:
            table = find_table(view, command.table)
            if isinstance(command, Read):
                return ScanPlan(table.schema if command.epoch is None else table.schema.at(command.epoch), 0)
            return plan_flight_changes(view, table, command) if table.schema.lineage else LogPlan(table.schema, None)

        return self._handle.catalog.read(read_plan).schema(command.columns)

    def get(self, ticket: bytes, call: Call) -> flight.FlightDataStream:
        """Stream the rows of one endpoint. Raises TicketRefused, TicketExpired."""
        endpoint = self._tickets.read(ticket)
        self._handle.recorder.add(READS, "flight")
        schema = self.leases.schema(endpoint.flight)

        def stream_rows() -> Iterator[pa.RecordBatch]:
            leased_part = self.leases.read_part(endpoint.flight, endpoint.part)
            # do_get has returned, but its stream counts as a call of the connection until it ends.
            with as_flight_errors(), call.counted(), self.admission.admit(call) as slot, leased_part as part:
                yield from slot.stream_batches(part.batches(), part.footprint)

        return flight.GeneratorStream(schema, stream_rows())

    def put(self, descriptor: flight.FlightDescriptor, reader: Any, writer: Any, call: Call) -> None:
        """Write the client's rows into a table in one commit, and answer with the commit's epoch."""
        write = parse_writing(_path(descriptor), descriptor.command or b"")
        with self.admission.admit(call, Lane.PUTS) as slot:
            epoch = put(self._handle, write, reader, slot)
            # The rows are committed even if the client does not receive the answer.
            with suppress(*CALL_ERRORS), slot.waiting_for_client():
                writer.write(json.dumps({"epoch": epoch}).encode())

    def end_waits(self) -> None:
        """End every call that waits for an epoch or a stage."""
        self._waits_ended.set()

    def end(self) -> None:
        """End every call that moves rows."""
        self.admission.end()

    def close(self) -> None:
        """End all calls and release all flights; a second call does nothing."""
        self.end_waits()
        self._closed.set()
        self.admission.close()
        self.leases.close()
        if self._sweeper is not None:
            self._sweeper.join()

    # ---- endpoints and actions -----------------------------------------------------------------------------------

    def _endpoint(self, ticket: Ticket) -> flight.FlightEndpoint:
        expires_at = datetime.fromtimestamp(ticket.expires_ms / 1000, UTC)
        return flight.FlightEndpoint(
            self._tickets.signed(ticket), [], expiration_time=pa.scalar(expires_at, pa.timestamp("ms", "UTC"))
        )

    def _renew(self, body: bytes) -> bytes:
        """Renew an endpoint: take a RenewFlightEndpointRequest, return a FlightEndpoint with new ticket and expiry."""
        endpoint = _deserialize(flight.FlightEndpoint.deserialize, first_field(body))
        ticket = self._tickets.read(endpoint.ticket.ticket)
        expires_ms = self.leases.renew(ticket.flight, self._lease_ms)
        return self._endpoint(replace(ticket, expires_ms=expires_ms)).serialize()

    def _cancel(self, body: bytes) -> bytes:
        """Cancel a flight: take a CancelFlightInfoRequest, return a CancelFlightInfoResult."""
        info = _deserialize(flight.FlightInfo.deserialize, first_field(body))
        if not info.endpoints:
            return _NOT_CANCELLABLE
        ticket = self._tickets.read(info.endpoints[0].ticket.ticket)
        return _CANCELLED if self.leases.cancel(ticket.flight) else _NOT_CANCELLABLE

    def _start_sweeper(self) -> None:
        if self._sweeper is None and not self._closed.is_set():
            self._sweeper = threading.Thread(target=self._sweep, name="epochlog-flights", daemon=True)
            self._sweeper.start()

    def _sweep(self) -> None:
        while not self._closed.wait(min(_SWEEP_S, self._limits.flight_s)):
            self.leases.sweep()


def _path(descriptor: flight.FlightDescriptor) -> list[bytes]:
    return list(descriptor.path or ())


def _deserialize(kind: Callable[[bytes], T], data: bytes) -> T:
    try:
        return kind(data)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadMessage("the action's body is not the protobuf message that Arrow Flight defines for it") from error
