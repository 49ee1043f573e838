"""Listener of an HTTP port: one thread keeps connections until their requests have come, a bounded number of threads
answers. A connection whose client has gone waits for no thread, and a request beyond the bounds gets 503.
"""

from __future__ import annotations

import re
import select
import signal
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import DEFECT

REQUEST_S = 5.0
"""Seconds within which a client sends its request and reads the answer; the time in which the answer is made does not
count.
"""
ANSWER_S = 120.0
"""Seconds after which a connection ends whose answer is not made."""
MAX_ARRIVING = 32
"""Connections whose requests have not come, and as many of known hosts; a further one ends the oldest of the host that
has most.
"""
MAX_KNOWN_HOSTS = 256
"""Hosts that are remembered as known; a further one takes the place of that which has not come for longest."""
MAX_WAITING = 32
"""Requests that wait for a thread, and as many of known clients; beyond, the newest of the host that has most gets 503.
"""
MAX_HANDLERS = 16
"""Threads that answer requests."""
GRACE_S = 0.2
"""Seconds that a thread waits for its client while requests wait for a thread."""
KNOWN_HOST_GRACE_S = 1.0
"""Seconds that it waits for a client of a known host over TLS: handshake and request cross the network three times."""
MAX_PEEK = 1 << 14
"""Bytes of a request that are awaited before a thread reads it."""
BACKLOG = 1024
"""Connections that the system keeps before they are accepted; it drops the first packet of a further one, which the
client repeats a second later.
"""
_TICK_S = 0.05
_MOST_ACCEPTED = 64
"""Connections that are accepted between two looks at the others."""
_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_HANDSHAKE = 22
"""First byte of a TLS record of a handshake."""
_RECORD_HEAD = 5
"""Bytes before the content of a TLS record; the last two are its length."""
_BUSY_TEXT = b"503 Service Unavailable\n"
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
    b"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s"
) % (len(_BUSY_TEXT), _BUSY_TEXT)


class HttpConnection:
    """Accepted connection of an HTTP port. address: of the client, its host first."""

    def __init__(self, listener: HttpListener, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        self._listener = listener
        self.socket = accepted
        self.address = address
        self.has_known_host = listener.knows_host(address[0])
        self.ends_s = monotonic_s() + REQUEST_S
        self._awaited: int | None = select.POLLIN  # what a handler needs of the client to go on
        self._awaited_since_s = 0.0
        self.goes_first = False  # before those that do not
        self.keeps_thread = False  # for a known client: no other request takes its thread
        self.grace_s = GRACE_S
        self.released = False
        self.aborted = False
        self._ending = threading.Lock()  # an abort never meets a descriptor that is another socket's by then

    def has_hung_up(self) -> bool:
        """Return True if the client has closed the connection or its sending half, or the connection was aborted."""
        return self._has(_HUNG_UP)

    def await_client(self, event: int | None) -> None:
        """Note what the handler needs of the client from now on: POLLIN, a request; POLLOUT, room for the answer; None:
        nothing, so that aborting the connection would free no thread, and the time does not count as the client's.
        """
        now_s = monotonic_s()
        if self._awaited is None:
            self.ends_s += now_s - self._awaited_since_s
        self._awaited, self._awaited_since_s = event, now_s

    def is_late(self, now_s: float) -> bool:
        """Return True if the client has had its time, or has waited for its answer for ANSWER_S."""
        return now_s >= (self.ends_s if self._awaited is not None else self._awaited_since_s + ANSWER_S)

    def idle_s(self) -> float:
        """Return the seconds for which the client has kept the handler waiting."""
        if self._awaited is None or self._has(self._awaited):
            return 0.0
        return monotonic_s() - self._awaited_since_s

    def _has(self, events: int) -> bool:
        descriptor = self.socket.fileno()
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, events)
        return bool(poll.poll(0))

    def release(self) -> None:
        """Exempt the connection from the limits of number and time; its handler has limits of its own."""
        self._listener.release(self)

    def note_known(self) -> None:
        """Note that a request of this connection is a known client's: it keeps its thread, and over TLS, its host goes
        before others then.
        """
        self.keeps_thread = True
        self._listener.note_known(self.address[0])

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Wrap the socket. The handshake is part of the first read."""
        self._listener.replace_socket(
            self, lambda: context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        )

    def abort(self) -> None:
        """End the connection at once; the thread that reads or writes it fails then, and closes it."""
        self.aborted = True
        with self._ending, suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # an SSLSocket's own changes what the thread reads

    def is_ending(self) -> bool:
        """Return True if the connection was aborted while its handler waited for the client."""
        return self.aborted and self._awaited is not None

    def close(self) -> None:
        """Send what was written, and close the connection."""
        with self._ending:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
            self.socket.close()


class HttpListener:
    """Listener with a thread of its own, and at most MAX_HANDLERS threads that answer, until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        respond: Callable[[HttpConnection], None],
        purpose: str,
        *,
        tls: bool = False,
        is_known: Callable[[bytes], bool] = lambda head: False,
    ) -> None:
        """Listen. respond: answers one request in a handler's thread. purpose: for messages and names of threads. tls:
        the requests cannot be read here, so those of hosts that `note_known` names go before others. is_known: returns
        True for the head of a request that goes before others, without TLS. Raises OSError.
        """
        self._respond = respond
        self._purpose = purpose
        self._tls = tls
        self._is_known = is_known
        self._lock = threading.Lock()
        self._arriving: dict[int, HttpConnection] = {}  # by descriptor, oldest first; of the listener's thread alone
        self._waiting: dict[bool, deque[HttpConnection]] = {True: deque(), False: deque()}  # by known
        self._handled: set[HttpConnection] = set()
        self._released: set[HttpConnection] = set()
        self._known_hosts: dict[str, None] = {}  # the latest last
        self._closing = threading.Event()
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen(BACKLOG)
            self._socket.setblocking(False)
            self._poller = select.epoll()
        except BaseException:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])
        self._poller.register(self._socket, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name=f"epochlog-{purpose}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all connections; a second call does nothing."""
        self._closing.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()
        self._poller.close()
        self.abort_all()

    def abort_all(self) -> None:
        """Abort all connections that were accepted, released ones too."""
        for connection in [*self._arriving.values(), *self._all_waiting(), *self._handled, *self._released]:
            connection.abort()

    # ---- for connections -------------------------------------------------------------------------------------------

    def knows_host(self, host: str) -> bool:
        return host in self._known_hosts

    def note_known(self, host: str) -> None:
        with self._lock:
            self._known_hosts.pop(host, None)
            self._known_hosts[host] = None
            if len(self._known_hosts) > MAX_KNOWN_HOSTS:
                del self._known_hosts[next(iter(self._known_hosts))]

    def release(self, connection: HttpConnection) -> None:
        with self._lock:
            self._handled.discard(connection)
            self._released.add(connection)
            connection.released = True

    def replace_socket(self, connection: HttpConnection, wrap: Callable[[], socket.socket]) -> None:
        with self._lock:
            if connection.aborted:
                raise ConnectionAbortedError("the connection was aborted")
            connection.socket = wrap()

    # ---- the listener's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._poll()
            except Exception as error:  # noqa: BLE001 (a defect, or a refusal of the system; the thread goes on)
                DEFECT.log(what=f"the listener of {self._purpose}, which goes on", error=error)
                self._closing.wait(_TICK_S)
        for connection in [*self._arriving.values(), *self._all_waiting()]:
            connection.close()

    def _poll(self) -> None:
        """Wait for connections, requests or the end of a tick, and do what is due."""
        busy = self._arriving or self._handled or any(self._waiting.values())
        for descriptor, _ in self._poller.poll(_TICK_S if busy else None):
            if descriptor == self._socket.fileno():
                self._accept()
            elif descriptor in self._arriving:
                self._look_at(self._arriving[descriptor])
        self._end_late()
        self._start_handlers()
        self._free_handler()

    def _accept(self) -> None:
        for _ in range(_MOST_ACCEPTED):
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # no file is left; the system keeps the connection
                self._closing.wait(_TICK_S)
                return
            accepted.setblocking(False)
            self._look_at(HttpConnection(self, accepted, address))

    def _look_at(self, connection: HttpConnection) -> None:
        """Let a connection wait for a thread if its request has come, else for its request."""
        try:
            self._place(connection)
        except BaseException:
            self._forget(connection)
            connection.close()
            raise

    def _place(self, connection: HttpConnection) -> None:
        descriptor = connection.socket.fileno()
        head = _peek(connection.socket)
        if head is None:
            self._forget(connection)
            connection.close()
        elif head and (_has_come(head, self._tls) or connection.has_hung_up()):
            self._forget(connection)
            self._let_wait(connection, head)
        elif descriptor not in self._arriving:
            others = [each for each in self._arriving.values() if each.has_known_host == connection.has_known_host]
            if len(others) >= MAX_ARRIVING:
                of_host = Counter(each.address[0] for each in others)
                oldest = max(others, key=lambda each: of_host[each.address[0]])
                self._forget(oldest)
                _end_unanswered(oldest)
            self._arriving[descriptor] = connection
            self._poller.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _forget(self, connection: HttpConnection) -> None:
        if self._arriving.pop(connection.socket.fileno(), None) is not None:
            self._poller.unregister(connection.socket)

    def _let_wait(self, connection: HttpConnection, head: bytes) -> None:
        if self._tls:
            connection.goes_first = connection.has_known_host
            connection.grace_s = KNOWN_HOST_GRACE_S if connection.has_known_host else GRACE_S
        else:
            connection.goes_first = connection.keeps_thread = self._is_known(head)
        if len(self._handled) < MAX_HANDLERS and not any(self._waiting.values()):
            self._start(connection)
            return
        with self._lock:
            waiting = self._waiting[connection.goes_first]
            waiting.append(connection)
            if len(waiting) > MAX_WAITING:
                for closed in [other for other in waiting if other.has_hung_up()]:
                    waiting.remove(closed)
                    closed.close()
            refused = None
            if len(waiting) > MAX_WAITING:
                of_host = Counter(other.address[0] for other in waiting)
                refused = max(reversed(waiting), key=lambda other: of_host[other.address[0]])
                waiting.remove(refused)
        if refused is not None:
            self._refuse(refused)

    def _refuse(self, connection: HttpConnection) -> None:
        """Answer 503 without a thread. Over TLS, only end the connection: an answer takes a handshake, which takes a
        thread.
        """
        with suppress(OSError):
            connection.socket.setblocking(False)
            if not self._tls:
                connection.socket.send(_BUSY, socket.MSG_NOSIGNAL)
        _end_unanswered(connection)

    def _end_late(self) -> None:
        now_s = monotonic_s()
        for connection in [late for late in self._arriving.values() if late.is_late(now_s)]:
            self._forget(connection)
            _end_unanswered(connection)
        with self._lock:
            refused = [late for late in self._all_waiting() if late.is_late(now_s)]
            for connection in refused:
                self._waiting[connection.goes_first].remove(connection)
            aborted = [late for late in self._handled if late.is_late(now_s) and not late.aborted]
        for connection in refused:
            self._refuse(connection)
        for connection in aborted:
            connection.abort()

    def _free_handler(self) -> None:
        """Abort the connection whose client has let its thread wait for longest, if requests wait for a thread. Abort
        the next one when that thread is free.
        """
        if not any(self._waiting.values()):
            return
        with self._lock:
            handled = list(self._handled)
        idle = [(each.idle_s(), each) for each in handled if not each.keeps_thread and not each.aborted]
        overdue = [(idle_s, each) for idle_s, each in idle if idle_s >= each.grace_s]
        if overdue and not any(each.is_ending() for each in handled):
            max(overdue, key=lambda pair: pair[0])[1].abort()

    def _start_handlers(self) -> None:
        """Start threads for waiting requests, as far as handlers are free: a released connection has left its own."""
        while len(self._handled) < MAX_HANDLERS:
            with self._lock:
                connection = self._next_waiting()
            if connection is None:
                return
            self._start(connection)

    # ---- handlers --------------------------------------------------------------------------------------------------

    def _start(self, connection: HttpConnection) -> None:
        with self._lock:
            self._handled.add(connection)
        try:
            threading.Thread(
                target=self._handle, args=(connection,), name=f"epochlog-{self._purpose}-request", daemon=True
            ).start()
        except RuntimeError:  # the system gives no thread
            with self._lock:
                self._handled.discard(connection)
            self._refuse(connection)

    def _handle(self, connection: HttpConnection | None) -> None:
        """Answer the request, and then those that wait."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # the process may end by it, if it was set so
        while connection is not None:
            connection.await_client(select.POLLIN)
            try:
                self._respond(connection)
            except OSError:
                pass  # the client has gone, or was aborted
            except Exception as error:  # noqa: BLE001 (a defect; it is logged)
                DEFECT.log(what=f"a request to {self._purpose}", error=error)
            finally:
                connection.close()
            with self._lock:
                was_released = connection.released
                self._handled.discard(connection)
                self._released.discard(connection)
                connection = None if was_released or self._closing.is_set() else self._next_waiting()
                if connection is not None:
                    self._handled.add(connection)

    def _next_waiting(self) -> HttpConnection | None:
        """Remove and return the next waiting request whose client has not gone: the oldest of the host that has fewest
        threads. The caller has the lock.
        """
        of_host = Counter(handled.address[0] for handled in self._handled)
        for goes_first in (True, False):
            waiting = self._waiting[goes_first]
            while waiting:
                connection = min(waiting, key=lambda other: of_host[other.address[0]])
                waiting.remove(connection)
                if not connection.has_hung_up():
                    return connection
                connection.close()
        return None

    def _all_waiting(self) -> list[HttpConnection]:
        return [*self._waiting[True], *self._waiting[False]]


def _has_come(head: bytes, tls: bool) -> bool:
    """Return True if the head of a request has come, or the first record of a TLS handshake, or what is neither."""
    if len(head) == MAX_PEEK:
        return True
    if not tls:
        return _END_OF_HEAD.search(head) is not None
    if head[0] != _HANDSHAKE:
        return True
    return len(head) >= _RECORD_HEAD and len(head) >= _RECORD_HEAD + int.from_bytes(head[3:_RECORD_HEAD], "big")


def _end_unanswered(connection: HttpConnection) -> None:
    """Close a connection whose request has no answer, after reading what has come of it: the system resets a connection
    that is closed unread, and the client may lose what was sent to it.
    """
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.recv(1 << 16)
    connection.close()


def _peek(connection: socket.socket) -> bytes | None:
    """Return what the client has sent, without reading it; None if it has gone and sent nothing."""
    try:
        return connection.recv(MAX_PEEK, socket.MSG_PEEK) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
