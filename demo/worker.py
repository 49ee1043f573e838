"""Driver of one view in its own process, which the demo can kill. It speaks JSON lines on its standard streams.

It prints {"event": "ready"} at the start, {"event": "barrier", "prev", "curr"} at the beginning of each refresh, and
{"event": "holding", "prev", "curr"} when it stops after the command "hold" in the middle of a barrier, with rows
written and not committed. It ends when its standard input ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from epochlog.api import open as open_store
from epochlog.errors import EpochlogError

from .session import session, start_view


def say(event: str, **values: Any) -> None:
    """Print an event as one line, in one write, because several threads print."""
    print(json.dumps({"event": event, **values}) + "\n", end="", flush=True)


def holding(refresh: Callable[[Any], None], hold: threading.Event, end: threading.Event) -> Callable[[Any], None]:
    """Wrap a refresh. Once `hold` is set, it writes its rows, waits for `end`, and raises instead of committing."""

    def run(ctx: Any) -> None:
        barrier = {"prev": ctx.barrier.prev, "curr": ctx.barrier.curr}
        say("barrier", **barrier)
        refresh(ctx)
        if hold.is_set():
            say("holding", **barrier)
            end.wait()
            raise EpochlogError("the driver has ended while it held its barrier, before the kill")

    return run


def main(argv: list[str]) -> int:
    """Run a job until standard input ends or the job's query fails. argv: root, job, log file."""
    root, name, log = argv
    hold, end = threading.Event(), threading.Event()
    spark = session(f"epochlog demo: {name}", Path(log))
    with open_store(root, create=False) as store:
        view = store.view(name)
        query = start_view(view, spark, holding(view.refresh, hold, end))
        say("ready")

        def read_commands() -> None:
            for line in sys.stdin:
                if line.strip() == "hold":
                    hold.set()
            end.set()
            query.stop()

        threading.Thread(target=read_commands, daemon=True).start()
        query.awaitTermination()
    spark.stop()
    return 0


class ViewProcess:
    """Handle of a worker process in the parent: starts it, reads its events, kills it with its children."""

    def __init__(self, root: str, name: str, log: Path) -> None:
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "epochlog.demo.worker", root, name, str(log)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands: IO[str] = self._process.stdin
        self._reader = threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read_events(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith("{"):
                self.events.put(json.loads(line))
        self.events.put({"event": "gone"})

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self) -> None:
        """Ask the worker to stop in the middle of its next barrier."""
        self._commands.write("hold\n")
        self._commands.flush()

    def kill(self) -> None:
        """Kill the driver, its JVM and its Python workers with one SIGKILL to the process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the worker gracefully by closing its standard input."""
        if self._process.poll() is None:
            self._commands.close()
            self._process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
