"""`connect` and the client of a store that another process serves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from epochlog.errors import InvalidInput, StoreClosed
from epochlog.store.changelog.consumers import KEEP
from epochlog.store.env.clock import seconds
from epochlog.store.types.epoch import as_epoch

from .flight.reader import FlightReader
from .subscription.client import Subscription
from .subscription.messages import MAX_REQUEST, Request, encode
from .transport.duplex import ClientLine, Pem, call_options, check_destination, read_pem
from .transport.duplex import connect as dial
from .transport.errors import CALL_ERRORS, as_epochlog_error

TIMEOUT_S = 30.0
RECONNECT_S = 60.0


def connect(
    location: str,
    *,
    token: str | None = None,
    tls_roots: Pem | None = None,
    timeout: float | timedelta = TIMEOUT_S,
    insecure: bool = False,
) -> Client:
    """Return a client of a store that is served at `location`, grpc://host:port or grpc+tls://host:port. The client
    connects when it is first used.

    token: the server's access token. tls_roots: PEM of the certificates to trust, or the path of a file with it.
    timeout: the longest wait (seconds or a timedelta) of any call for an answer, or for more of one. insecure: send the
    token to another host without TLS. Raises InvalidInput, InsecureServer.
    """
    check_destination(location, token, insecure=insecure)
    roots = None if tls_roots is None else read_pem(tls_roots)
    return Client(location, token, roots, seconds(timeout, "timeout"))


@dataclass(frozen=True, slots=True)
class ServedTable:
    """Table as its server lists it. epoch: of its newest commit, 0 before the first."""

    name: str
    schema: pa.Schema
    epoch: int


class Client:
    """Reads a served store. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, location: str, token: str | None, roots: bytes | None, timeout_s: float) -> None:
        self._location = location
        self._token = token
        self._roots = roots
        self._timeout_s = timeout_s
        self._closed = False

    def tables(self) -> list[ServedTable]:
        """Return the tables that the server serves, sorted by name. Raises AccessDenied, ServerUnavailable."""
        self._require_open()
        client: Any = dial(self._location, self._roots)
        with closing(client):
            try:
                listed = list(client.list_flights(b"", call_options(self._token, self._timeout_s)))
            except CALL_ERRORS as error:
                raise as_epochlog_error(error, self._location) from None
        return [
            ServedTable(info.descriptor.path[0].decode(), info.schema, json.loads(info.app_metadata)["epoch"])
            for info in listed
        ]

    def snapshot(
        self,
        table: str,
        *,
        consistency: str = "latest",
        epoch: int | None = None,
        columns: Sequence[str] | None = None,
        **policy_options: Any,
    ) -> pa.RecordBatchReader:
        """Return a reader of a table's rows at one epoch, in key order. Batches are given as they arrive: nothing is
        collected, and the server holds the table's files until the end, or until the reader is released.

        consistency: a policy by its name, with its options (seconds or a timedelta for times): "latest", "aligned",
        "global", "as_of", "at_least", "bounded". epoch: exactly that one, unless the policy is one that takes an epoch.
        Raises at once, or while reading: TableNotFound, InvalidInput, EpochExpired, EpochNotCommitted,
        NoConsistentEpoch, SnapshotExpired, CallTimedOut for a reader that takes nothing for too long, AccessDenied, and
        ServerUnavailable: nothing of that looks like an end.
        """
        wanted: dict[str, Any] = {"read": table, **_columns(columns)}
        at = {} if epoch is None else {"epoch": as_epoch("epoch", epoch)}
        if at and consistency == "latest":
            wanted |= at
        else:
            options = {name: _plain(value) for name, value in policy_options.items()}
            wanted |= {"consistency": consistency, "options": options | at}
        waits_s = policy_options.get("timeout", 0)
        return self._flight(wanted, seconds(waits_s, "timeout"))

    def changes(
        self,
        table: str,
        after: int,
        until: int | None = None,
        *,
        mode: str = "epochs",
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of a table's changes in (after, until] (None: up to the newest commit), in the form of
        `Table.changes`. Batches are given as they arrive.

        Raises LogTruncated, EpochExpired, TableNotFound, InvalidInput, AccessDenied, ServerUnavailable.
        """
        wanted: dict[str, Any] = {"changes": table, "after": as_epoch("after", after), **_columns(columns)}
        if until is not None:
            wanted["until"] = as_epoch("until", until)
        return self._flight(wanted | {"mode": mode, "pre_images": pre_images})

    def subscribe(
        self,
        table: str,
        consumer: str | None = None,
        after: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        too_old: str = "error",
        keep: float | timedelta | None = KEEP,
        reconnect: float | timedelta = RECONNECT_S,
    ) -> Subscription:
        """Follow a table live: its rows first, then every change.

        consumer: a durable name under which `ack` remembers what is done with: a subscription that begins under it
        later goes on there, and fences this one. Without, nothing outlasts the subscription. after: an epoch, to begin
        with the changes past it instead of the rows. columns: of the table, None for all. too_old: what a consumer
        whose log was truncated does: "error" raises LogTruncated, "snapshot" begins with the rows again. keep: how long
        (seconds or a timedelta) a consumer that is away holds the log, None for good. reconnect: for how long (seconds
        or a timedelta) a server that has gone is waited for.

        Raises TableNotFound, InvalidInput, LogTruncated, EpochNotCommitted (`after` is not there yet), AccessDenied,
        ServerUnavailable.
        """
        self._require_open()
        keep_s = None if keep is None else seconds(keep, "keep")
        names = None if columns is None else tuple(_names(columns))
        request = Request(table, consumer, after, names, too_old, keep_s)
        if len(encode(request)) > MAX_REQUEST // 2:
            raise InvalidInput("these names are too long to be those of a table and its columns")
        opening: Any = partial(_line, self._location, self._token, self._roots)
        return Subscription(opening, self._location, request, self._timeout_s, seconds(reconnect, "reconnect"))

    def close(self) -> None:
        """Close the client: every later call raises StoreClosed. Subscriptions and readers have connections of their
        own and go on.
        """
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<epochlog client of {self._location}>"

    def _flight(self, wanted: dict[str, Any], waits_s: float = 0.0) -> pa.RecordBatchReader:
        """Send the command to the server and return its rows as one stream."""
        self._require_open()
        try:
            command = json.dumps(wanted, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"this cannot be asked of a server: {error}") from None
        found = FlightReader(
            self._location,
            command,
            token=self._token,
            tls_roots=self._roots,
            timeout_s=self._timeout_s,
            waits_s=waits_s,
        )
        return pa.RecordBatchReader.from_batches(found.schema, found.batches())

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("this client was closed; connect again with epochlog.connect")


def _line(location: str, token: str | None, roots: bytes | None, command: bytes) -> ClientLine:
    return ClientLine(location, command, token=token, tls_roots=roots)


def _columns(columns: Sequence[str] | None) -> dict[str, Any]:
    return {} if columns is None else {"columns": list(_names(columns))}


def _plain(value: Any) -> Any:
    """Return a policy's option as a value that JSON can hold: seconds of a timedelta, ISO 8601 of a datetime."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value


def _names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidInput(f"columns is a list of column names, not {columns!r}")
    return columns
