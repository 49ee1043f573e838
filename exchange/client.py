"""Client of a store that another process serves, and `connect`, which makes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, StoreClosed
from epochlog.store.changelog.consumers import KEEP
from epochlog.store.env.clock import seconds
from epochlog.store.env.closeable import Closeable
from epochlog.store.types.epoch import as_epoch
from epochlog.store.types.time_zones import reader_in_common_zones

from .flight.client import FlightReader
from .subscription.client import Subscription
from .subscription.messages import MAX_REQUEST, Request, encode
from .transport.duplex import ClientStream, Pem, call_options, check_destination, read_pem
from .transport.duplex import connect as connect_flight
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
    """Return a client of the store that is served at `location`, grpc://host:port or grpc+tls://host:port. The client
    connects when it is first used.

    token: the server's access token. tls_roots: PEM of the certificates to trust, or the path of a PEM file.
    timeout: the longest wait (seconds or a timedelta) of any call for the next message of the server. insecure: permits
    sending the token to another host without TLS. Raises InvalidInput, InsecureServer.
    """
    check_destination(location, token, insecure=insecure)
    roots = None if tls_roots is None else read_pem(tls_roots)
    return Client(location, token, roots, seconds(timeout, "timeout"))


@dataclass(frozen=True, slots=True)
class ServedTable:
    """Table of a served store."""

    name: str
    schema: pa.Schema
    epoch: int
    """Epoch of its newest commit, 0 before the first."""


class Client(Closeable):
    """Client that reads a served store. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, location: str, token: str | None, roots: bytes | None, timeout_s: float) -> None:
        self._location = location
        self._token = token
        self._roots = roots
        self._timeout_s = timeout_s
        self._closed = False

    def tables(self) -> list[ServedTable]:
        """Return the tables that the server serves, sorted by name. Raises AccessDenied, ServerUnavailable."""
        self._require_open()
        client: Any = connect_flight(self._location, self._roots)
        with closing(client):
            try:
                infos = list(client.list_flights(b"", call_options(self._token, self._timeout_s)))
            except CALL_ERRORS as error:
                raise as_epochlog_error(error, self._location) from None
        return [
            ServedTable(info.descriptor.path[0].decode(), info.schema, json.loads(info.app_metadata)["epoch"])
            for info in infos
        ]

    def snapshot(
        self,
        table: str,
        *,
        consistency: str | None = None,
        epoch: int | None = None,
        columns: Sequence[str] | None = None,
        **policy_options: Any,
    ) -> pa.RecordBatchReader:
        """Return a reader of a table's rows at one epoch, in key order. The reader returns batches as they arrive and
        collects nothing. The server holds the table's files until the end of the rows, or until the reader is released.

        consistency: the name of a policy, with its options (seconds or a timedelta for times): "latest", "aligned",
        "global", "as_of", "at_least", "bounded". None: the newest valid epoch of the table, or the default of the
        store. epoch: the exact epoch, or the policy's option if it takes an epoch.
        Raises at once, or while reading: TableNotFound, InvalidInput, EpochExpired, EpochNotCommitted,
        NoConsistentEpoch, SnapshotExpired, CallTimedOut for a reader that takes nothing for too long, AccessDenied, and
        ServerUnavailable. An interrupted read never looks like the end of the rows.
        """
        command: dict[str, Any] = {"read": table, **_columns_member(columns)}
        epoch_option = {} if epoch is None else {"epoch": as_epoch("epoch", epoch)}
        options = {name: _as_json_value(value) for name, value in policy_options.items()}
        if epoch_option and consistency in (None, "latest"):
            command |= epoch_option | ({"options": options} if options else {})
        else:
            named = {} if consistency is None else {"consistency": consistency}
            command |= {**named, "options": options | epoch_option}
        extra_wait_s = policy_options.get("timeout", 0)
        return self._flight(command, seconds(extra_wait_s, "timeout"))

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
        """Return a reader, as `Table.changes` does, of the changes in (after, until] (None: the newest commit).

        Raises LogTruncated, EpochExpired, TableNotFound, InvalidInput, AccessDenied, ServerUnavailable.
        """
        command: dict[str, Any] = {"changes": table, "after": as_epoch("after", after), **_columns_member(columns)}
        if until is not None:
            command["until"] = as_epoch("until", until)
        return self._flight(command | {"mode": mode, "pre_images": pre_images})

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

        consumer: a durable name under which `ack` records a position. A later subscription under this name resumes at
        the position and fences this one. Without a name the position ends with the subscription. after: an epoch; the
        subscription begins with the changes past it instead of the rows. columns: of the table, None for all. too_old:
        the reaction of a consumer whose log was truncated: "error" raises LogTruncated, "snapshot" begins with the rows
        again. keep: the time (seconds or a timedelta) for which a disconnected consumer holds the log, None without
        end. reconnect: the time (seconds or a timedelta) to wait for a server that does not answer.

        Raises TableNotFound, InvalidInput, LogTruncated, EpochNotCommitted (the table is not complete through `after`
        yet), AccessDenied, ServerUnavailable.
        """
        self._require_open()
        keep_s = None if keep is None else seconds(keep, "keep")
        names = None if columns is None else tuple(_checked_names(columns))
        request = Request(table, consumer, after, names, too_old, keep_s, together=True)
        if len(encode(request)) > MAX_REQUEST // 2:
            raise InvalidInput(
                "the names of the table, the consumer and the columns are too long for a request of "
                f"{MAX_REQUEST // 2} bytes; subscribe to fewer columns"
            )
        open_stream: Any = partial(_open_stream, self._location, self._token, self._roots)
        return Subscription(open_stream, self._location, request, self._timeout_s, seconds(reconnect, "reconnect"))

    def close(self) -> None:
        """Close the client: every later call raises StoreClosed. Open subscriptions and readers go on over their own
        connections.
        """
        self._closed = True

    def __repr__(self) -> str:
        return f"<epochlog client of {self._location}>"

    def _flight(self, command: dict[str, Any], extra_wait_s: float = 0.0) -> pa.RecordBatchReader:
        """Plan the flight of a command on the server and return its rows as one stream."""
        self._require_open()
        try:
            encoded_command = json.dumps(command, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"a policy's option cannot be sent to the server as JSON: {error}") from None
        reader = FlightReader(
            self._location,
            encoded_command,
            token=self._token,
            tls_roots=self._roots,
            timeout_s=self._timeout_s,
            extra_wait_s=extra_wait_s,
        )
        return reader_in_common_zones(reader.schema, reader.batches())

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the client of {self._location} is closed; connect again with epochlog.connect")


def _open_stream(location: str, token: str | None, roots: bytes | None, command: bytes) -> ClientStream:
    return ClientStream(location, command, token=token, tls_roots=roots)


def _columns_member(columns: Sequence[str] | None) -> dict[str, Any]:
    return {} if columns is None else {"columns": list(_checked_names(columns))}


def _as_json_value(value: Any) -> Any:
    """Convert a policy's option for JSON: a timedelta to seconds, a datetime to ISO 8601."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value


def _checked_names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidInput(f"columns is a list of column names, not {columns!r}")
    return columns
