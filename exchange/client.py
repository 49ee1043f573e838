"""`connect`: a store that another process serves, as its readers see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import InvalidInput, StoreClosed
from ..store.clock import seconds
from ..store.consumers import KEEP
from .line import ClientLine, check_token, parsed
from .subscriber import Subscription
from .subscription_messages import MAX_REQUEST, Request, encode

TIMEOUT_S = 30.0
RECONNECT_S = 60.0


def connect(
    location: str,
    *,
    token: str | None = None,
    tls_roots: bytes | str | Path | None = None,
    timeout: float | timedelta = TIMEOUT_S,
) -> Client:
    """A client of a store that is served at `location`, grpc://host:port or grpc+tls://host:port. It connects when it
    is first used.

    token: what the server asks for. tls_roots: PEM of the certificates to trust, or where it lies. timeout: how long
    (seconds or a timedelta) any call waits for an answer, or for more of one. Raises InvalidInput.
    """
    parsed(location)
    check_token(token)
    roots = tls_roots if tls_roots is None or isinstance(tls_roots, bytes) else Path(tls_roots).read_bytes()
    return Client(location, token, roots, seconds(timeout, "timeout"))


class Client:
    """Reads a served store. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, location: str, token: str | None, roots: bytes | None, timeout_s: float) -> None:
        self._location = location
        self._token = token
        self._roots = roots
        self._timeout_s = timeout_s
        self._closed = False

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
        dial: Any = partial(_dial, self._location, self._token, self._roots)
        return Subscription(dial, self._location, request, self._timeout_s, seconds(reconnect, "reconnect"))

    def close(self) -> None:
        """Give the connection back; subscriptions and readers have their own. A second call does nothing."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<epochlog client of {self._location}>"

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed("this client was closed; connect again with epochlog.connect")


def _dial(location: str, token: str | None, roots: bytes | None, command: bytes) -> ClientLine:
    return ClientLine(location, command, token=token, tls_roots=roots)


def _names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidInput(f"columns is a list of column names, not {columns!r}")
    return columns
