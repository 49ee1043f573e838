"""`epochlog serve` as strangers meet it: its token is in nobody's sight, and however long they talk nonsense it lives,
its memory stays bounded, and the next honest call is answered.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import READ_TOKEN, ROWS, TOKEN, Stranger, bearer, check_no_internals, error_of
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged import messages
from epochlog.exchange.staged.batch_file import encode_batch
from security.test_hostile import NOISE, random_message

pytestmark = pytest.mark.local_only

COMMON_MB = 96
"""How much a server may grow while it is talked to: buffers of gRPC and Arrow's pool, not what was said."""


class Served:
    """A server process."""

    def __init__(self, root: Path) -> None:
        secret, other = root.parent / "secret", root.parent / "other"
        for file, token in ((secret, TOKEN + "\n"), (other, READ_TOKEN)):
            file.touch(0o600)
            file.write_text(token)
        tokens = ["--token-file", str(secret), "--read-token-file", str(other)]
        command = [sys.executable, "-m", "epochlog", "serve", str(root), "--bind", "127.0.0.1:0"]
        self.log = root.parent / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*command, *tokens], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.location = self.process.stdout.readline().split()[-1].rstrip(",")

    @property
    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    def stranger(self, *, location: str | None = None, timeout_s: float = 300) -> Stranger:
        return Stranger(location or self.location, bearer(TOKEN), timeout_s)

    def honest(self) -> None:
        with self.stranger() as stranger:
            assert len(stranger.actions()) > 2
        assert self.process.poll() is None

    def stop(self) -> str:
        """Stop the process and return its standard error."""
        self.process.terminate()
        self.process.communicate(timeout=300)
        return self.log.read_text(errors="replace")  # gRPC logs bytes of its clients as they are


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"]).upsert(ROWS)
    server = Served(tmp_path / "s")
    try:
        yield server
        assert server.process.poll() in (None, 0), "it died"
        stderr = server.stop()
        assert "Traceback" not in stderr and TOKEN not in stderr and READ_TOKEN not in stderr, stderr
        assert server.process.returncode == 0
    finally:
        server.process.kill()


def test_a_served_store_shows_no_token_and_its_files_to_nobody_else(served: Served, tmp_path: Path) -> None:
    with ExchangeClient(served.location, token=TOKEN, query="q") as ex:
        ex.declare("c", {0: ["only"]})
        ex.push("only", 0, 0, pa.record_batch({"a": [1]}))
    for name in ("cmdline", "environ"):
        shown = Path(f"/proc/{served.process.pid}/{name}").read_bytes()
        assert TOKEN.encode() not in shown and READ_TOKEN.encode() not in shown
    files = list((tmp_path / "s").rglob("*"))
    assert {path.suffix for path in files} >= {".arrow", ".mdb"}
    for path in [tmp_path / "s", *files]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.medium
def test_a_signal_that_another_thread_gets_ends_it_too(served: Served) -> None:
    """The system prefers the thread whose id it is given, and may choose any."""
    main = served.process.pid
    others = [int(path.name) for path in Path(f"/proc/{main}/task").iterdir() if int(path.name) != main]
    os.kill(max(others), signal.SIGTERM)
    assert served.process.wait(timeout=60) == 0


@pytest.mark.medium
def test_of_two_tokens_one_may_only_read(served: Served) -> None:
    for token, denied in ((READ_TOKEN, True), (TOKEN, False)):
        with Stranger(served.location, bearer(token)) as stranger:
            assert stranger.actions()
            assert ("AccessDenied" in check_no_internals(error_of(stranger.put))) == denied
    with Stranger(served.location, bearer("another")) as stranger:
        assert isinstance(error_of(stranger.actions), flight.FlightUnauthenticatedError)


def talk(served: Served, rng: random.Random, rounds: int) -> None:
    exchanges = [b"control", b"subscribe", messages.PUSH, messages.PULL]
    with served.stranger() as stranger:
        kinds = [kind.type for kind in stranger.actions()]
        for _ in range(rounds):
            noise = rng.choice(NOISE) if rng.random() < 0.2 else random_message(rng)
            about = flight.FlightDescriptor.for_command(noise)
            for call, args in (
                (stranger.action, [rng.choice(kinds), noise]),
                (stranger.exchange, [rng.choice(exchanges) + b":" + noise, [noise, noise]]),
                (stranger.exchange, [messages.PUSH + b":" + messages.pack(query="q"), spoilt_push(rng)]),
                (stranger.info, [about]),
                (stranger.put, [about]),
                (stranger.get, [noise]),
            ):
                check_no_internals(error_of(call, *args), call.__name__)


BATCH = encode_batch(pa.record_batch({"id": np.arange(2_000), "v": [f"word {i}" for i in range(2_000)]})).to_pybytes()


def spoilt_push(rng: random.Random) -> list[bytes | tuple[bytes, pa.RecordBatch]]:
    """A line with a batch for a channel that there is, with a right checksum and wrong bytes."""
    data = bytearray(BATCH)
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(data) // 8) * 8
        number = rng.choice((0, 1, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, rng.getrandbits(64)))
        data[place : place + 8] = number.to_bytes(8, "little")
    fields: dict[str, Any] = {
        "id": 1,
        "channel": "only",
        "stage": 0,
        "seq": rng.randrange(9),
        "attempt": 0,
        "wait_ms": 10,
    }
    rows = messages.rows_from_file(pa.py_buffer(bytes(data)))
    return [messages.pack(query="q"), (messages.pack(**fields, crc32=zlib.crc32(data)), rows)]


@pytest.mark.slow
def test_nonsense_for_long(served: Served) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with ExchangeClient(served.location, token=TOKEN, query="q") as ex:
        ex.declare("c", {0: ["only"]})
    talk(served, rng, 40)
    served.honest()
    before = served.rss_mb
    talk(served, rng, 250)
    served.honest()
    assert served.rss_mb < before + COMMON_MB, f"from {before:.0f} MB to {served.rss_mb:.0f} MB"


# ---- bytes that change on their way ------------------------------------------------------------------------------


@contextmanager
def spoiling(port: int, rng: random.Random) -> Iterator[int]:
    """A proxy that changes a few bytes of what clients send, now and then."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []

    def pump(source: socket.socket, target: socket.socket, *, spoil: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if spoil and passed > 200 and rng.random() < 0.5:
                    for _ in range(rng.randint(1, 4)):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                passed += len(data)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                sockets.extend((client, server))
                for source, target, spoil in ((client, server, True), (server, client, False)):
                    threading.Thread(target=pump, args=(source, target), kwargs={"spoil": spoil}, daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)
        for each in sockets:
            each.close()


def change_bytes(served: Served, rounds: int) -> None:
    """Frames of HTTP/2, headers, descriptors, rows: whatever they hit."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = pa.table({"id": np.arange(5_000), "v": [f"word {i}" for i in range(5_000)]})
    port = int(served.location.rsplit(":", 1)[1])
    before = served.rss_mb
    with spoiling(port, rng) as changed:
        for _ in range(rounds):
            with served.stranger(location=f"grpc://127.0.0.1:{changed}", timeout_s=0.5) as stranger:
                error_of(stranger.put, None, rows)
                error_of(stranger.exchange, messages.PUSH + b":" + messages.pack(query="q"), spoilt_push(rng))
                error_of(stranger.exchange, b'subscribe:{"table": "orders"}', [b'{"kind": "took", "number": 5}'])
                error_of(stranger.action, "stop", random_message(rng))
            assert served.process.poll() is None, f"seed {seed}: it died"
    served.honest()
    assert served.rss_mb < before + 2 * COMMON_MB, f"from {before:.0f} MB to {served.rss_mb:.0f} MB"


@pytest.mark.slow
def test_bytes_that_change_on_their_way(served: Served) -> None:
    change_bytes(served, 8)


@pytest.mark.campaign
def test_many_bytes_that_change_on_their_way(served: Served) -> None:
    change_bytes(served, 200)
