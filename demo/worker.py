"""A view's driver in a process of its own, so that it can be killed: talks JSON lines on its standard streams.

It says {"event": "ready"}, {"event": "barrier", "prev", "curr"} at the begin of each refresh, {"event": "holding",
"prev", "curr"} when it was told "hold" and now stands in the middle of a barrier, its rows written and not committed,
until it is killed. It ends when its standard input does.
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

from .session import session, start_job
from .views import VIEWS


def say(event: str, **values: Any) -> None:
    """Print an event as one line. Threads print beside each other: the end of a line goes with it, in one write."""
    print(json.dumps({"event": event, **values}) + "\n", end="", flush=True)


def held(refresh: Callable[[Any], None], hold: threading.Event, end: threading.Event) -> Callable[[Any], None]:
    """The refresh, which once `hold` is set does all its work and then stands still; it commits nothing any more."""

    def run(ctx: Any) -> None:
        barrier = {"prev": ctx.barrier.prev, "curr": ctx.barrier.curr}
        say("barrier", **barrier)
        refresh(ctx)
        if hold.is_set():
            say("holding", **barrier)
            end.wait()
            raise EpochlogError("the driver was told to stand still and has ended before it was killed")

    return run


def main(argv: list[str]) -> int:
    """`root job log`: runs the job of that view until standard input ends, or the job's query fails."""
    root, name, log = argv
    hold, end = threading.Event(), threading.Event()
    spark = session(f"epochlog demo: {name}", Path(log))
    with open_store(root, create=False) as store:
        query = start_job(store.job(name), spark, held(VIEWS[name].refresh, hold, end))
        say("ready")

        def obey() -> None:
            for line in sys.stdin:
                if line.strip() == "hold":
                    hold.set()
            end.set()
            query.stop()

        threading.Thread(target=obey, daemon=True).start()
        query.awaitTermination()
    spark.stop()
    return 0


class Driver:
    """The parent's end of a worker: starts it, hears it, kills it with everything it started."""

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
        self._hearing = threading.Thread(target=self._hear, args=(self._process.stdout,), daemon=True)
        self._hearing.start()

    def _hear(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith("{"):
                self.events.put(json.loads(line))
        self.events.put({"event": "gone"})

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self) -> None:
        """Ask it to stand still in the middle of its next barrier."""
        self._commands.write("hold\n")
        self._commands.flush()

    def kill(self) -> None:
        """SIGKILL for the driver and, at once, for the JVM and the Python workers it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it gently; the pipe's end is the sign."""
        if self._process.poll() is None:
            self._commands.close()
            self._process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
