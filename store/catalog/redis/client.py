"""Client of one Redis server: connections, scripts, reconnecting, and typed errors for its replies.

Rights that the user of the server needs: keys `~epochlog:*`, commands `+ping +select +eval +evalsha +time +get +set
+del +unlink +exists +hget +hmget +hset +hdel +hlen +zadd +zrem +zcard +zrange +zrangebyscore +zrangebylex
+zrevrangebylex +zremrangebyscore`; and `+config|get` for the check of durability at open, which
`volatile=True` leaves out. A store that is opened read-only needs `+ping +select +eval +evalsha +time +get +hget +hmget
+hlen +zcard +zrangebyscore +zrangebylex +zrevrangebylex`, all of which `+@read +ping +select +eval +evalsha +time` has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from epochlog.errors import (
    CatalogFull,
    CatalogUnavailable,
    Corrupt,
    EpochlogError,
    InvalidInput,
    StoreClosed,
    WriteFailed,
)
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline
from epochlog.store.env.redact import without_secrets

from .scripts import Script

RECONNECT_S = 30.0
"""Longest wait of a call for a server that does not answer."""
_BACKOFF = Backoff(first_s=0.01, limit_s=1.0)
_TIMEOUTS = {"socket_connect_timeout": 5.0, "socket_timeout": 10.0}

SCHEMES = ("redis", "rediss", "unix")
_PARAMETERS = {"db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout",
               "socket_keepalive", "health_check_interval"}  # fmt: skip
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_TRANSIENT_REPLIES = ("LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "max number of clients")
"""Error replies of a server that has executed nothing, and may accept the command soon."""

Argument = bytes | str | int


class NotSent(Exception):
    """Error: the server did not receive, or did not run, a script. Another attempt is safe."""


class Cut(Exception):
    """Error: the connection broke after the script was sent. It may have run."""


class RedisServer:
    """Redis server of a URL. Thread-safe; a forked child makes its own connections."""

    def __init__(self, url: str) -> None:
        """Prepare the connection pool; the first call connects."""
        self._url = url
        self._options = _connection_options(url)
        self._closed = threading.Event()
        self._pid = os.getpid()
        self._pool = self._connect()
        options = self._pool.connection_kwargs
        address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        self.name = f"{address}/{options.get('db', 0)}"

    def __repr__(self) -> str:
        return f"<RedisServer {self.name}>"

    def call(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> list[Any]:
        """Run a script that is safe to repeat; wait for the server if necessary."""
        return self.retry(lambda: self.run_once(script, keys, arguments))

    def retry(self, attempt: Any, deadline: Deadline | None = None) -> Any:
        """Repeat an attempt until the server answers, and return its result. Raise CatalogUnavailable after a time."""
        deadline, failures = deadline or Deadline.after(RECONNECT_S), 0
        while True:
            try:
                return attempt()
            except (NotSent, Cut) as error:
                if deadline.passed:
                    raise CatalogUnavailable(
                        f"the catalog server {self.name} has not answered for {RECONNECT_S:.0f} s ({error}); "
                        "this call wrote nothing. Bring the server back, then try again"
                    ) from error
                failures += 1
                self.pause(min(_BACKOFF.delay_s(failures), deadline.remaining_s))

    def pause(self, seconds: float) -> None:
        """Wait for some seconds; raise StoreClosed if `close` is called during the wait."""
        if self._closed.wait(seconds):
            raise StoreClosed("this store was closed while it waited for its catalog server; open it again")

    def run_once(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> list[Any]:
        """Run a script once. Raise NotSent or Cut, or the typed error for an error reply."""
        try:
            reply = self._command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except redis_errors.NoScriptError:
            reply = self._command("EVAL", script.text, len(keys), *keys, *arguments)
        if not isinstance(reply, list) or not reply:
            raise self.damaged(f"its answer to the script {script.name!r} is no list")
        return reply

    def time_ms(self) -> int:
        """Return the server's clock in Unix milliseconds."""
        reply = self.retry(lambda: self._command("TIME"))
        try:
            return int(reply[0]) * 1000 + int(reply[1]) // 1000
        except (TypeError, ValueError, IndexError) as error:
            raise self.damaged("its answer to TIME is no time") from error

    def check_durable(self) -> None:
        """Raise InvalidInput if the server's settings do not keep acknowledged commits."""
        for name, required in _DURABLE.items():
            try:
                reply = self.retry(lambda name=name: self._command("CONFIG", "GET", name))
            except CatalogUnavailable as error:
                if "may not" not in str(error):
                    raise
                raise InvalidInput(
                    f"the user of the catalog server {self.name} may not read its settings, so epochlog cannot "
                    "check that commits survive a crash; permit +config|get, or pass volatile=True to skip the check"
                ) from error
            reported = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
            if reported != required.encode():
                shown = reported.decode(errors="replace") if isinstance(reported, bytes) else ""
                raise InvalidInput(
                    f"the catalog server {self.name} has {name} {shown or '(unknown)'}, and commits need "
                    f"{name} {required} to be durable; set it, or pass volatile=True if they may be lost"
                )

    def damaged(self, damage: str) -> Corrupt:
        return Corrupt(f"catalog server {self.name}", damage)

    def close(self) -> None:
        """End the waits of all threads. Each thread closes the connection that it uses."""
        self._closed.set()
        if self._pid == os.getpid():
            self._pool.disconnect(inuse_connections=False)

    # ---- one command -------------------------------------------------------------------------------------------------

    def _connect(self) -> redis.ConnectionPool:
        retry = Retry(NoBackoff(), 0)  # redis-py must not repeat a script: it may have run
        try:
            return redis.ConnectionPool.from_url(self._url, **{"protocol": 2, "retry": retry, **self._options})
        except (ValueError, TypeError) as error:
            reason = without_secrets(error, self._url) if "Port" not in str(error) else "its port is no number"
        # raised outside of the handler: the cause may quote the URL
        raise InvalidInput(f"the catalog URL cannot be used: {reason}")

    def _command(self, *command: Argument) -> Any:
        if self._closed.is_set():
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        if self._pid != os.getpid():  # a forked child must not use its parent's sockets
            self._pool, self._pid = self._connect(), os.getpid()
        pool = self._pool
        connection = self._get_connection(pool)
        try:
            return _send_and_receive(connection, command)
        except redis_errors.NoScriptError:
            raise
        except redis_errors.BusyLoadingError as error:
            raise NotSent(self._redacted(error)) from None
        except (redis_errors.AuthenticationError, redis_errors.AuthorizationError) as error:
            raise self._typed_error(error) from None
        except redis_errors.ResponseError as error:
            if any(word in str(error) for word in _TRANSIENT_REPLIES):
                raise NotSent(self._redacted(error)) from None
            raise self._typed_error(error) from None
        except redis_errors.InvalidResponse:
            raise self.damaged("its answer is not in the Redis protocol") from None
        except (redis_errors.RedisError, OSError) as error:
            raise Cut(self._redacted(error)) from None
        finally:
            pool.release(connection)

    def _get_connection(self, pool: redis.ConnectionPool) -> Any:
        """Return a live connection; raise NotSent if none is free now. Errors have no cause: it may quote secrets."""
        try:
            return pool.get_connection()
        except (redis_errors.AuthenticationError, redis_errors.AuthorizationError) as error:
            raise self._typed_error(error) from None
        except redis_errors.ResponseError as error:
            if any(word in str(error) for word in _TRANSIENT_REPLIES):
                raise NotSent(self._redacted(error)) from None
            raise self._typed_error(error) from None
        except (redis_errors.RedisError, OSError) as error:
            raise NotSent(self._redacted(error)) from None
        except (ValueError, TypeError) as error:
            reason = without_secrets(error, self._url)
        raise InvalidInput(f"the catalog URL cannot be used: {reason}")

    def _redacted(self, error: Exception) -> str:
        return without_secrets(error, self._url)

    def _typed_error(self, error: Exception) -> EpochlogError:
        """Translate an error reply to a typed error with advice. The server has changed nothing."""
        text, server = self._redacted(error), f"the catalog server {self.name}"
        login = redis_errors.AuthenticationError, redis_errors.AuthenticationWrongNumberOfArgsError
        if isinstance(error, login) or any(code in text for code in ("NOAUTH", "WRONGPASS", "invalid username")):
            return CatalogUnavailable(f"{server} refuses the login; check user and password in its URL")
        if any(code in text for code in ("NOPERM", "has no permissions", "can't run this command", "can't access")):
            return CatalogUnavailable(f"the user of {server} may not run the commands of a catalog; give it the "
                                      "rights that docs/GUARANTEES.md lists, or read the store with "
                                      f"epochlog.open(root, catalog, read_only=True) ({text})")  # fmt: skip
        if isinstance(error, redis_errors.OutOfMemoryError) or "OOM" in text:
            return CatalogFull(f"{server} has reached its maxmemory; nothing was committed. Raise it, then retry")
        if "MISCONF" in text or "NOREPLICAS" in text:
            return WriteFailed(
                f"{server} takes no writes now; nothing was committed. Fix the cause that it names: {text}"
            )
        if isinstance(error, redis_errors.ReadOnlyError) or "READONLY" in text:
            return WriteFailed(
                f"{server} is a read-only replica; nothing was committed. Pass the URL of its primary, "
                "or read the store with epochlog.open(root, catalog, read_only=True)"
            )
        if "WRONGTYPE" in text or "user_script" in text:
            return self.damaged(f"a key of the store has the wrong type or value ({text})")
        return WriteFailed(f"{server} refused: {text}; nothing was committed")


def _send_and_receive(connection: Any, command: Sequence[Argument]) -> Any:
    """Send a command and receive its reply. Disconnect after any failure, so that the connection is not used again."""
    try:
        connection.send_command(*command)
        return connection.read_response()
    except redis_errors.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise


def _connection_options(url: str) -> dict[str, Any]:
    """Return the connection options for a URL; InvalidInput, which never quotes the URL, for an invalid one."""
    shape = "redis://[user:password@]host:port/db, rediss://… for TLS, or unix://path"
    if not isinstance(url, str) or "://" not in url or url.split("://", 1)[0].lower() not in SCHEMES:
        raise InvalidInput(f"catalog must be a URL like {shape}; leave it out for the embedded catalog")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(f"catalog must be a URL like {shape}") from None
    if "@" not in parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        raise InvalidInput("write a /, ? or # in the password of a catalog URL as %2F, %3F or %23")
    parameters = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    for name in parameters:
        if name not in _PARAMETERS and not name.startswith("ssl_"):
            raise InvalidInput(
                f"the catalog URL has the unknown parameter {name!r}; known: {sorted(_PARAMETERS)}, ssl_…"
            )
    return {name: value for name, value in _TIMEOUTS.items() if name not in parameters}
