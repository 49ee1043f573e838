"""Client's side of a duplex stream that is opened again after each loss, with backoff.

The four clients that have one differ in their hello, in the messages, and in the losses after which they end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from epochlog.errors import EpochlogError, ServerUnavailable
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import monotonic_s

from .duplex import ClientStream, Frame


class ReconnectingStream:
    """Thread that opens a stream, reads it to its end, and opens the next one, until `close` or a final loss."""

    def __init__(
        self,
        name: str,
        backoff: Backoff,
        connect: Callable[[], ClientStream],
        handle: Callable[[ClientStream, Frame], bool],
        lost: Callable[[EpochlogError], bool],
        *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare the thread; `start` starts it.

        connect: opens a stream and sends the hello. handle: handles one message, and returns True for one by which the
        server has accepted the client; the backoff then begins anew. lost: called under the lock with the error that
        ended or refused a stream; returns True to end the thread. wanted: called under the lock before a stream is
        opened, which waits until it returns True.
        """
        self.changed = threading.Condition()
        """Lock of the state, which the client may share."""
        self.stream: ClientStream | None = None
        """The open stream."""
        self.heard_s = monotonic_s()
        """Time of the last message, or of the opening."""
        self.closed = False
        self._backoff = backoff
        self._connect, self._handle, self._lost, self._wanted = connect, handle, lost, wanted
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float | None = None) -> None:
        """Abort the stream, and wait for the end of the thread. A second call does nothing."""
        with self.changed:
            self.closed = True
            stream = self.stream
            self.changed.notify_all()
        if stream is not None:
            stream.abort()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def abort_if_silent(self, limit_s: float) -> None:
        """Abort a stream whose server has sent nothing for so long; the caller holds the lock."""
        if self.stream is not None and monotonic_s() - self.heard_s > limit_s:
            self.stream.abort()

    def _run(self) -> None:
        failures = 0
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self._wanted())
                if self.closed:
                    return
            accepted, reason = self._read_stream()
            failures = 1 if accepted else failures + 1
            with self.changed:
                over = self._lost(reason)
                self.changed.notify_all()
                if over or self.changed.wait_for(lambda: self.closed, self._backoff.delay_s(failures)):
                    return

    def _read_stream(self) -> tuple[bool, EpochlogError]:
        """Open a stream and read it to its end; return True if the server has accepted the client, and the error that
        ended the stream.
        """
        accepted, stream = False, None
        try:
            stream = self._connect()
            with self.changed:
                self.stream, self.heard_s = stream, monotonic_s()
                if self.closed:
                    stream.abort()
                self.changed.notify_all()
            while (frame := stream.read_frame()) is not None:
                with self.changed:
                    self.heard_s = monotonic_s()
                accepted = self._handle(stream, frame) or accepted
            reason = stream.reason or ServerUnavailable(
                f"{stream.peer} has ended the stream; is `epochlog serve` running?"
            )
        except EpochlogError as error:
            reason = error
        except Exception as error:  # noqa: BLE001 (a defect; the waiting caller must get it)
            reason = EpochlogError(f"a message of the server could not be handled: {error!r}")
            reason.__cause__ = error
        with self.changed:
            self.stream = None
        if stream is not None:
            stream.close()
        return accepted, reason
