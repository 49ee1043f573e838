"""Serves a store until its standard input ends: a process of its own, for tests that kill it. Prints the location."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import epochlog as el
from ports import fixed_location

TOKEN = "the-token"


class ServerProcess:
    """A server that can be killed, and started again on the same port."""

    def __init__(self, root: Path | str, catalog: str = "") -> None:
        self._store = [str(root), catalog]
        self.location = fixed_location()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, __file__, self.location, *self._store]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.location = self._process.stdout.readline().strip()
        assert self.location, "the server did not start"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: nothing is said to anyone."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """A shutdown in good order."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.communicate("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def main() -> None:
    location, root, catalog = sys.argv[1:]
    with (
        el.open(root, catalog or None, durability="os") as store,
        el.serve(store, location, token=TOKEN) as server,
    ):
        print(server.location, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
