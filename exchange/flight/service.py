"""Standard Flight interface of a server: flights that a plain Flight client lists, plans, gets and puts, without
knowing epochlog.

`get_flight_info` decides what is read and holds it, in parts; a ticket names one of them. What flights hold is bounded
by time and number, and given back when a flight is cancelled or has expired.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import BadMessage, InvalidInput
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits, Lane
from epochlog.exchange.transport.errors import CALL_ERRORS, as_flight_errors
from epochlog.exchange.transport.protobuf import first_field
from epochlog.exchange.transport.services import Action, Call, Role
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.clock import Clock, SystemClock
from epochlog.store.metadata.lookups import all_tables, find_table, get_version
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle

from .descriptors import Read, parse_reading, parse_writing
from .leases import FlightLeases
from .planner import Choose, FlightPlanner
from .put import put
from .tickets import Ticket, Tickets, new_flight, new_key

T = TypeVar("T")

MAX_CRITERIA = 64
"""Bytes of a table name's beginning, by which flights are listed."""
_SWEEP_S = 5.0
_CANCELLED = b"\x08\x01"
_NOT_CANCELLABLE = b"\x08\x03"


class FlightDesk:
    """Service of the flights of one open store (`exchange.server.Flights`)."""

    def __init__(
        self, handle: Handle, choose: Choose, limits: AdmissionLimits | None = None, now_ms: Clock | None = None
    ) -> None:
        self._handle = handle
        self._readings = FlightPlanner(handle, choose)
        self._limits = limits or AdmissionLimits()
        self._now_ms = now_ms or SystemClock()
        self.pins = FlightLeases(self._limits.flights, self._now_ms)
        self.admission = AdmissionController(self._limits)
        self._tickets = Tickets(new_key(), self._now_ms)
        self._lasting_ms = round(self._limits.flight_s * 1000)
        self._closed = threading.Event()
        self._sweeper: threading.Thread | None = None

    @property
    def actions(self) -> dict[str, Action]:
        """Return the standard Flight actions by their names."""
        renew, cancel = "renew an endpoint of a flight before it expires", "end a flight and what it holds"
        return {
            "RenewFlightEndpoint": Action(self._renew, Role.READ, renew),
            "CancelFlightInfo": Action(self._cancel, Role.READ, cancel),
        }

    # ---- exchange.server.Flights ---------------------------------------------------------------------------------

    def listed(self, criteria: bytes) -> list[flight.FlightInfo]:
        """List one flight for each table whose name begins with `criteria`; nothing is held, and no endpoint given."""
        if len(criteria) > MAX_CRITERIA:
            raise InvalidInput(f"criteria are the beginning of a table's name, of at most {MAX_CRITERIA} bytes")
        start = criteria.decode("ascii", "replace")

        def body(view: View) -> list[tuple[str, pa.Schema, int]]:
            return [
                (table.name, table.schema.schema, get_version(view, table.id, table.name).max_committed_epoch)
                for table in all_tables(view)
                if table.name.startswith(start)
            ]

        return [
            flight.FlightInfo(
                schema, flight.FlightDescriptor.for_path(name), [], app_metadata=json.dumps({"epoch": epoch})
            )
            for name, schema, epoch in sorted(self._handle.catalog.read(body), key=lambda found: found[0])
        ]

    def info(self, descriptor: flight.FlightDescriptor, *, may_write: bool = True) -> flight.FlightInfo:
        """Plan the read of the descriptor and hold it; return one endpoint for each part, in order."""
        wanted = parse_reading(_path(descriptor), descriptor.command or b"")
        name = new_flight()
        held, ends_ms = self.pins.add(name, lambda: self._readings.hold(wanted), self._lasting_ms, may_write=may_write)
        self._sweep_from_now_on()
        return flight.FlightInfo(
            held.schema,
            descriptor,
            [self._endpoint(Ticket(name, part, ends_ms)) for part in range(len(held.parts))],
            total_records=held.rows,
            ordered=True,
            app_metadata=json.dumps({"epoch": held.epoch}),
        )

    def schema(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
        """Return the columns of a flight; nothing is held."""
        wanted = parse_reading(_path(descriptor), descriptor.command or b"")
        table = self._handle.catalog.read(lambda view: find_table(view, wanted.table)).schema
        plan = ScanPlan(table, 0) if isinstance(wanted, Read) else LogPlan(table, None)
        return plan.schema(wanted.columns)

    def get(self, ticket: bytes, call: Call) -> flight.FlightDataStream:
        """Stream the rows of one endpoint. Raises TicketRefused, TicketExpired."""
        asked = self._tickets.read(ticket)
        schema = self.pins.schema(asked.flight)

        def rows() -> Iterator[pa.RecordBatch]:
            reading = self.pins.reading(asked.flight, asked.part)
            # do_get has returned by now: what it gives counts as a call until it ends
            with as_flight_errors(), call.counted(), self.admission.admit(call) as slot, reading as part:
                yield from slot.stream_batches(part.batches(), part.footprint)

        return flight.GeneratorStream(schema, rows())

    def put(self, descriptor: flight.FlightDescriptor, reader: Any, writer: Any, call: Call) -> None:
        """Write the client's rows into a table in one commit, and answer with its epoch."""
        write = parse_writing(_path(descriptor), descriptor.command or b"")
        with self.admission.admit(call, Lane.PUTS) as slot:
            epoch = put(self._handle, write, reader, slot)
            with (
                suppress(*CALL_ERRORS),
                slot.waiting_for_client(),
            ):  # who does not take the answer has its rows written still
                writer.write(json.dumps({"epoch": epoch}).encode())

    def end(self) -> None:
        """End every call that moves rows."""
        self.admission.end()

    def close(self) -> None:
        """End all calls and release all flights; a second call does nothing."""
        self._closed.set()
        self.admission.close()
        self.pins.close()
        if self._sweeper is not None:
            self._sweeper.join()

    # ---- endpoints and actions -----------------------------------------------------------------------------------

    def _endpoint(self, ticket: Ticket) -> flight.FlightEndpoint:
        ends = datetime.fromtimestamp(ticket.expires_ms / 1000, UTC)
        return flight.FlightEndpoint(
            self._tickets.signed(ticket), [], expiration_time=pa.scalar(ends, pa.timestamp("ms", "UTC"))
        )

    def _renew(self, body: bytes) -> bytes:
        """Renew an endpoint: RenewFlightEndpointRequest in, FlightEndpoint with another ticket and a later end out."""
        endpoint = _deserialized(flight.FlightEndpoint.deserialize, first_field(body))
        asked = self._tickets.read(endpoint.ticket.ticket)
        ends_ms = self.pins.renew(asked.flight, self._lasting_ms)
        return self._endpoint(replace(asked, expires_ms=ends_ms)).serialize()

    def _cancel(self, body: bytes) -> bytes:
        """Cancel a flight: CancelFlightInfoRequest in, CancelFlightInfoResult out."""
        info = _deserialized(flight.FlightInfo.deserialize, first_field(body))
        if not info.endpoints:
            return _NOT_CANCELLABLE
        asked = self._tickets.read(info.endpoints[0].ticket.ticket)
        return _CANCELLED if self.pins.cancel(asked.flight) else _NOT_CANCELLABLE

    def _sweep_from_now_on(self) -> None:
        if self._sweeper is None and not self._closed.is_set():
            self._sweeper = threading.Thread(target=self._sweep, name="epochlog-flights", daemon=True)
            self._sweeper.start()

    def _sweep(self) -> None:
        while not self._closed.wait(min(_SWEEP_S, self._limits.flight_s)):
            self.pins.sweep()


def _path(descriptor: flight.FlightDescriptor) -> list[bytes]:
    return list(descriptor.path or ())


def _deserialized(kind: Callable[[bytes], T], data: bytes) -> T:
    try:
        return kind(data)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadMessage("this is not the protobuf message that the action takes in Arrow Flight") from error
