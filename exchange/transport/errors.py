"""Errors across Flight: typed ones travel by name and message; others tell nothing of the server's inside."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import (
    AccessDenied,
    CatalogFull,
    CatalogInUse,
    CatalogLost,
    CatalogUnavailable,
    Corrupt,
    EpochlogError,
    ForeignRoot,
    ReadFailed,
    ServerUnavailable,
    StoreNotFound,
    UnsupportedFormat,
    WriteFailed,
    by_name,
)
from epochlog.store.env.paths import end_of_file_path

_log = logging.getLogger("epochlog")

MOST_TEXT = 4_000
"""Characters of a message that travel."""
_PLACES = (
    CatalogFull,
    CatalogInUse,
    CatalogLost,
    CatalogUnavailable,
    Corrupt,
    ForeignRoot,
    ReadFailed,
    StoreNotFound,
    UnsupportedFormat,
    WriteFailed,
)
"""Errors whose messages say where something lies at the server: that is for who runs it."""
_WORD = re.compile(r"[^\s'\"]+")


def encode_error(error: EpochlogError) -> tuple[str, str]:
    """Return an error's name and its message for a client, without any path of the server. The omitted text is
    logged.
    """
    name = type(error).__name__
    if isinstance(error, _PLACES):
        _log.error("a call failed: %s: %s", name, error)
        damaged = "what was asked for is damaged" if isinstance(error, Corrupt) else "the server's store failed"
        return name, f"{damaged}; the server's own log says where and why"
    return name, _WORD.sub(_without_file, str(error))[:MOST_TEXT]


def _without_file(word: re.Match[str]) -> str:
    """Replace a path in the word that ends in a data file. One search a word: a stranger may send a long one."""
    end = end_of_file_path(word[0])
    return word[0] if end is None else "a file" + word[0][end:]


@contextmanager
def as_flight_errors() -> Iterator[None]:
    """Turn every error of the block into a Flight error without a traceback, inside a server's call."""
    try:
        yield
    except flight.FlightError:
        raise
    except EpochlogError as error:
        name, text = encode_error(error)
        raise flight.FlightServerError(f"{name}: {text}", extra_info=name.encode()) from None
    except Exception:  # noqa: BLE001 (a defect; it is logged)
        _log.exception("a call of the server failed")
        raise flight.FlightInternalError("the server failed at this call; its own log says why") from None


@contextmanager
def without_traceback() -> Iterator[None]:
    """Keep tracebacks out of the errors of `get_schema`: pyarrow adds them to errors of every type that it can
    format.
    """
    try:
        yield
    except flight.FlightError as error:
        raise _unformatted(str(error)) from None


def _unformatted(text: str) -> Exception:
    """Make an error with this text that cannot be formatted with a traceback."""

    def resist(_: BaseException) -> bool:
        raise AttributeError("no traceback")

    def take(_: BaseException, value: bool) -> None:  # `raise … from None` sets it
        pass

    kind = type("FlightError", (Exception,), {"__suppress_context__": property(resist, take)})
    return kind(text)


def as_epochlog_error(error: Exception, location: str) -> EpochlogError:
    """Convert an error of a client's call into the typed error that it names, or into a general one."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return AccessDenied(f"{location} does not take this token; pass the token that the server was started with")
    if isinstance(error, flight.FlightServerError):
        message = str(error).partition(". gRPC client debug context")[0].removesuffix(". Detail: Failed")
        text = message.partition(f"{_name_of(error)}: ")[2]
        found = by_name(_name_of(error), text)
        if found is not None:
            return found
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)):
        return ServerUnavailable(
            f"{location} cannot be reached, or the connection was cut; is `epochlog serve` running, {_tls(location)}?"
        )
    return EpochlogError(f"the call of {location} failed: {_short(error)}")


def _tls(location: str) -> str:
    """Return a hint on TLS for a location that cannot be reached; gRPC tells nothing of it."""
    roots = "with a certificate that tls_roots trusts"
    return roots if location.startswith("grpc+tls") else "without TLS"


CALL_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
"""What calls of a Flight client raise."""


def _name_of(error: flight.FlightServerError) -> str:
    info = error.extra_info or b""
    return info.decode("ascii", "replace")[:100] if isinstance(info, bytes) else ""


def _short(error: Exception) -> str:
    """Return the first line of an error's text, without gRPC's own additions."""
    lines = str(error).partition(". gRPC client debug context")[0].partition("Detail: ")[0].splitlines()
    return (lines or [type(error).__name__])[0][:MOST_TEXT]
