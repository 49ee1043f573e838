"""Conversion of errors across Flight: typed errors travel by name and message, others without details of the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from epochlog.store.env.log_events import CALL_FAILED, DEFECT
from epochlog.store.env.paths import end_of_file_path

MAX_ERROR_TEXT = 4_000
"""Characters of a message that are sent."""
_WITH_PATHS = (
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
"""Errors whose messages name files or folders of the server, which only its operator may see."""
_WORD = re.compile(r"[^\s'\"]+")


def names_paths(error_name: str) -> bool:
    """Return True if the messages of the error of this name are not for clients."""
    return any(kind.__name__ == error_name for kind in _WITH_PATHS)


def encode_error(error: EpochlogError) -> tuple[str, str]:
    """Return an error's name and its message for a client, without any path of the server. Log the omitted text."""
    name = type(error).__name__
    if isinstance(error, _WITH_PATHS):
        CALL_FAILED.log(error=error)
        cause = "the requested data is damaged" if isinstance(error, Corrupt) else "the server's store failed"
        return name, f"{cause}; the server's own log says where and why"
    return name, _WORD.sub(_without_file, str(error))[:MAX_ERROR_TEXT]


def _without_file(word: re.Match[str]) -> str:
    """Replace a data file's path in the word. Each word is searched once, because a client may send a long one."""
    end = end_of_file_path(word[0])
    return word[0] if end is None else "a file" + word[0][end:]


@contextmanager
def as_flight_errors(noted: Callable[[EpochlogError], None] = lambda error: None) -> Iterator[None]:
    """Convert every error of the block into a Flight error without a traceback, inside a server's call. noted: called
    with each error that the client gets.
    """
    try:
        yield
    except flight.FlightError:
        raise
    except EpochlogError as error:
        noted(error)
        name, text = encode_error(error)
        raise flight.FlightServerError(f"{name}: {text}", extra_info=name.encode()) from None
    except Exception as error:  # noqa: BLE001 (a defect; it is logged)
        DEFECT.log(what="a call of the server", error=error)
        raise flight.FlightInternalError("the server failed at this call; its own log says why") from None


@contextmanager
def without_traceback() -> Iterator[None]:
    """Keep tracebacks out of the errors of `get_schema`: pyarrow adds one to each error that it can format."""
    try:
        yield
    except flight.FlightError as error:
        raise _unformatted(str(error)) from None


def _unformatted(text: str) -> Exception:
    """Build an error with this text that cannot be formatted with a traceback."""

    def refuse(_: BaseException) -> bool:
        raise AttributeError("no traceback")

    def ignore(_: BaseException, value: bool) -> None:  # `raise … from None` sets the attribute
        pass

    error_class = type("FlightError", (Exception,), {"__suppress_context__": property(refuse, ignore)})
    return error_class(text)


def as_epochlog_error(error: Exception, location: str) -> EpochlogError:
    """Convert an error of a client's call into the typed error that it names, or into a general EpochlogError."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return AccessDenied(f"{location} does not accept this token; pass the token that the server was started with")
    if isinstance(error, flight.FlightServerError):
        message = str(error).partition(". gRPC client debug context")[0].removesuffix(". Detail: Failed")
        text = message.partition(f"{_error_name(error)}: ")[2]
        typed = by_name(_error_name(error), text)
        if typed is not None:
            return typed
    if isinstance(error, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)):
        return ServerUnavailable(
            f"{location} cannot be reached, or the connection was lost; is `epochlog serve` running, "
            f"{_tls_hint(location)}?"
        )
    return EpochlogError(f"the call to {location} failed: {_first_line(error)}")


def _tls_hint(location: str) -> str:
    """Return a hint on TLS for a location that cannot be reached, because gRPC gives none."""
    hint = "with a certificate that tls_roots trusts"
    return hint if location.startswith("grpc+tls") else "without TLS"


CALL_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
"""Errors that the calls of a Flight client raise."""


def _error_name(error: flight.FlightServerError) -> str:
    info = error.extra_info or b""
    return info.decode("ascii", "replace")[:100] if isinstance(info, bytes) else ""


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text, without gRPC's own additions."""
    lines = str(error).partition(". gRPC client debug context")[0].partition("Detail: ")[0].splitlines()
    return (lines or [type(error).__name__])[0][:MAX_ERROR_TEXT]
