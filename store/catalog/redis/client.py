"""Talks to one Redis server: connections, scripts, reconnecting, and replies turned into typed errors.

The rights that a user of the server needs: keys `~epochlog:*`, commands `+ping +select +eval +evalsha +time +get +set
+del +unlink +exists +hget +hmget +hset +hdel +hlen +zadd +zrem +zcard +zrange +zrangebyscore +zrangebylex
+zrevrangebylex +zremrangebyscore`; and `+config|get` for the check of durability at open, which
`volatile=True` leaves out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import redis
from redis import exceptions as said
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
"""How long a call waits for a server that does not answer."""
_BACKOFF = Backoff(first_s=0.01, limit_s=1.0)
_TIMEOUTS = {"socket_connect_timeout": 5.0, "socket_timeout": 10.0}

SCHEMES = ("redis", "rediss", "unix")
_PARAMETERS = {"db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout",
               "socket_keepalive", "health_check_interval"}  # fmt: skip
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
_NOT_YET = ("LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "max number of clients")
"""Replies of a server that has done nothing and may well do it in a moment."""

Argument = bytes | str | int


class NotSent(Exception):
    """The server did not get, or did not run, a script. Another attempt is safe."""


class Cut(Exception):
    """The connection broke after a script may have been delivered: whether it ran is unknown."""


class RedisServer:
    """The server that a URL names. Safe for several threads; a forked child makes connections of its own."""

    def __init__(self, url: str, role: str = "catalog", timeout_s: float | None = None) -> None:
        """role: what messages call it. timeout_s: of connecting and of each answer, where the URL says nothing else."""
        self._url = url
        self._role = role
        self._options = _checked(url, role, timeout_s)
        self._closed = threading.Event()
        self._pid = os.getpid()
        self._pool = self._connect()
        made = self._pool.connection_kwargs
        where = made.get("path") or f"{made.get('host', 'localhost')}:{made.get('port', 6379)}"
        self.name = f"{where}/{made.get('db', 0)}"

    def __repr__(self) -> str:
        return f"<RedisServer {self.name}>"

    def call(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> list[Any]:
        """Run a script that may run twice; waits for the server if need be."""
        return self.again(lambda: self.once(script, keys, arguments))

    def again(self, attempt: Any, deadline: Deadline | None = None) -> Any:
        """Return the result of an attempt, repeated until the server answers; CatalogUnavailable when it stays away."""
        deadline, failures = deadline or Deadline.after(RECONNECT_S), 0
        while True:
            try:
                return attempt()
            except (NotSent, Cut) as error:
                if deadline.passed:
                    raise CatalogUnavailable(
                        f"the {self._role} server {self.name} has not answered for {RECONNECT_S:.0f} s ({error}); "
                        "nothing was written by this call. Bring the server back, then try again"
                    ) from error
                failures += 1
                self.pause(min(_BACKOFF.delay_s(failures), deadline.left_s))

    def pause(self, seconds: float) -> None:
        """Wait for some seconds; raise StoreClosed if `close` ends the wait."""
        if self._closed.wait(seconds):
            raise StoreClosed(f"this store was closed while it waited for its {self._role} server; open it again")

    def once(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Argument]) -> list[Any]:
        """Run a script once. Raise NotSent or Cut, or the typed error that the reply stands for."""
        try:
            reply = self._command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except said.NoScriptError:
            reply = self._command("EVAL", script.text, len(keys), *keys, *arguments)
        if not isinstance(reply, list) or not reply:
            raise self.damaged(f"the script {script.name!r} was answered with no list")
        return reply

    def time_ms(self) -> int:
        """Return the server's clock in Unix milliseconds."""
        reply = self.again(lambda: self._command("TIME"))
        try:
            return int(reply[0]) * 1000 + int(reply[1]) // 1000
        except (TypeError, ValueError, IndexError) as error:
            raise self.damaged("TIME was answered with no time") from error

    def check_durable(self) -> None:
        """Raise InvalidInput unless the server keeps what it has acknowledged."""
        for name, needed in _DURABLE.items():
            try:
                reply = self.again(lambda name=name: self._command("CONFIG", "GET", name))
            except CatalogUnavailable as error:
                if "may not" not in str(error):
                    raise
                raise InvalidInput(
                    f"the user of the {self._role} server {self.name} may not read its settings, so nobody knows "
                    "whether commits would survive a crash; permit +config|get, or pass volatile=True to go without"
                ) from error
            found = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
            if found != needed.encode():
                shown = found.decode(errors="replace") if isinstance(found, bytes) else ""
                raise InvalidInput(
                    f"the {self._role} server {self.name} has {name} {shown or '(unknown)'}, and commits need "
                    f"{name} {needed} to be durable; set it, or pass volatile=True if they may be lost"
                )

    def damaged(self, what: str) -> Corrupt:
        return Corrupt(f"{self._role} server {self.name}", what)

    def close(self) -> None:
        """End the waits of all threads. A connection in use is closed by its thread."""
        self._closed.set()
        if self._pid == os.getpid():
            self._pool.disconnect(inuse_connections=False)

    # ---- one command -------------------------------------------------------------------------------------------------

    def _connect(self) -> redis.ConnectionPool:
        retry = Retry(NoBackoff(), 0)  # a script is never sent again before its outcome is known
        try:
            return redis.ConnectionPool.from_url(self._url, **{"protocol": 2, "retry": retry, **self._options})
        except (ValueError, TypeError) as error:
            reason = without_secrets(error, self._url) if "Port" not in str(error) else "its port is no number"
        # without its cause, which may quote the URL
        raise InvalidInput(f"the {self._role} URL cannot be used: {reason}")

    def _command(self, *command: Argument) -> Any:
        if self._closed.is_set():
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        if self._pid != os.getpid():  # a forked child must not use its parent's sockets
            self._pool, self._pid = self._connect(), os.getpid()
        pool = self._pool
        connection = self._borrow(pool)
        try:
            return _exchange(connection, command)
        except said.NoScriptError:
            raise
        except said.BusyLoadingError as error:
            raise NotSent(self._shown(error)) from None
        except (said.AuthenticationError, said.AuthorizationError) as error:
            raise self._refused(error) from None
        except said.ResponseError as error:
            if any(word in str(error) for word in _NOT_YET):
                raise NotSent(self._shown(error)) from None
            raise self._refused(error) from None
        except said.InvalidResponse:
            raise self.damaged("its answer is no Redis answer") from None
        except (said.RedisError, OSError) as error:
            raise Cut(self._shown(error)) from None
        finally:
            pool.release(connection)

    def _borrow(self, pool: redis.ConnectionPool) -> Any:
        """Return a live connection; NotSent if there is none now. No cause is kept: it may quote the password."""
        try:
            return pool.get_connection()
        except (said.AuthenticationError, said.AuthorizationError) as error:
            raise self._refused(error) from None
        except said.ResponseError as error:
            if any(word in str(error) for word in _NOT_YET):
                raise NotSent(self._shown(error)) from None
            raise self._refused(error) from None
        except (said.RedisError, OSError) as error:
            raise NotSent(self._shown(error)) from None
        except (ValueError, TypeError) as error:
            reason = without_secrets(error, self._url)
        raise InvalidInput(f"the {self._role} URL cannot be used: {reason}")

    def _shown(self, error: Exception) -> str:
        return without_secrets(error, self._url)

    def _refused(self, error: Exception) -> EpochlogError:
        """Translate an error reply into a typed error that says what to do. The server has changed nothing."""
        text, server = self._shown(error), f"the {self._role} server {self.name}"
        login = said.AuthenticationError, said.AuthenticationWrongNumberOfArgsError
        if isinstance(error, login) or any(code in text for code in ("NOAUTH", "WRONGPASS", "invalid username")):
            return CatalogUnavailable(f"{server} refuses the login; check user and password in its URL")
        if any(code in text for code in ("NOPERM", "has no permissions", "can't run this command", "can't access")):
            return CatalogUnavailable(f"the user of {server} may not do what a {self._role} needs; give it the rights "
                                      f"that docs/GUARANTEES.md lists ({text})")  # fmt: skip
        if isinstance(error, said.OutOfMemoryError) or "OOM" in text:
            return CatalogFull(f"{server} has reached its maxmemory; nothing was committed. Raise it, then retry")
        if "MISCONF" in text or "NOREPLICAS" in text:
            return WriteFailed(f"{server} takes no writes now; nothing was committed. Mend what it says: {text}")
        if isinstance(error, said.ReadOnlyError) or "READONLY" in text:
            return WriteFailed(f"{server} is a read-only replica; nothing was committed. Name its primary")
        if "WRONGTYPE" in text or "user_script" in text:
            return self.damaged(f"a key of the store is not what it should be ({text})")
        return WriteFailed(f"{server} refused: {text}; nothing was committed")


def _exchange(connection: Any, command: Sequence[Argument]) -> Any:
    """Send and receive; a connection on which anything went wrong is not used again."""
    try:
        connection.send_command(*command)
        return connection.read_response()
    except said.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise


def _checked(url: str, role: str, timeout_s: float | None) -> dict[str, Any]:
    """Return the connection options for a URL; InvalidInput, which never quotes the URL, for an invalid one."""
    shape = "redis://[user:password@]host:port/db, rediss://… for TLS, or unix://path"
    if not isinstance(url, str) or "://" not in url or url.split("://", 1)[0].lower() not in SCHEMES:
        raise InvalidInput(f"{role} must be a URL like {shape}; leave it out for the embedded catalog")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(f"{role} must be a URL like {shape}") from None
    if "@" not in parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        raise InvalidInput(f"a /, ? or # in the password of a {role} URL is written %2F, %3F or %23")
    given = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    for name in given:
        if name not in _PARAMETERS and not name.startswith("ssl_"):
            raise InvalidInput(
                f"the {role} URL has the unknown parameter {name!r}; known: {sorted(_PARAMETERS)}, ssl_…"
            )
    return {name: timeout_s or value for name, value in _TIMEOUTS.items() if name not in given}
