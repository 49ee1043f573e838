"""Looking at connections and cutting them off touches nothing but the server's own connections, whatever other code
has set for the whole process.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.cli.signals import stop_signals
from epochlog.exchange.server import Server
from epochlog.exchange.transport import sockets
from epochlog.exchange.transport.connections import Callers, ConnectionLimiter, ConnectionLimits
from epochlog.exchange.transport.sockets import abort_connections, accepted_connections, peer_address
from epochlog.store.env import process_id
from epochlog.testing.tcp_proxy import TcpProxy
from wait_until import wait_until

pytestmark = pytest.mark.local_only

TAKE_OVER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
"""


def test_an_open_store_keeps_its_locks_when_a_server_hangs_up(tmp_path: Path) -> None:
    """Found by D11: a process that came later took the lock file for that of the dead, and pages were overwritten that
    were being read.
    """
    with el.open(tmp_path / "s") as store, el.serve(store) as server:
        assert abort_connections(int(server.location.rpartition(":")[2])) == 0
        command = [sys.executable, "-c", TAKE_OVER, str(tmp_path / "s" / "catalog" / "lock.mdb")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in done.stderr, done.stderr or "the lock could be taken"
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("ipv4:127.0.0.1:5005", "127.0.0.1:5005"),
        ("ipv6:%5B::1%5D:5005", "::1:5005"),
        ("ipv6:[2001:db8::7]:5005", "2001:db8::7:5005"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:5005", "10.0.0.7:5005"),
        ("ipv6:%5Bfe80::1%252%5D:5005", "fe80::1:5005"),
    ],
)
def test_a_peer_has_one_name_whoever_tells_it(address: str, peer: str) -> None:
    """As gRPC tells it, with the zone of a link-local address, and as the socket does."""
    assert peer_address(address) == peer


# ---- descriptors of others -----------------------------------------------------------------------------------------


@pytest.fixture
def default_timeout() -> Iterator[Callable[[float | None], None]]:
    before = socket.getdefaulttimeout()
    yield socket.setdefaulttimeout
    socket.setdefaulttimeout(before)


def test_a_server_leaves_sockets_of_others_blocking(default_timeout: Callable[[float | None], None]) -> None:
    """After `socket.setdefaulttimeout` it made each socket of its process non-blocking, by a look at it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        default_timeout(5.0)
        server = Server("grpc://127.0.0.1:0", token=None, actions={}, limits=ConnectionLimits(hello_s=0.04))
        silent = socket.create_connection(("127.0.0.1", int(server.location.rpartition(":")[2])))
        assert silent.recv(1 << 16) is not None, "the server has looked at it"
        wait_until(lambda: silent.recv(1 << 16) == b"")
        server.shutdown(5)
        silent.close()
        assert os.get_blocking(ours.fileno()) and os.get_blocking(theirs.fileno())


class Foreign:
    """Descriptors of other code: of all kinds, and with any flags. `port` is that of the server beside them."""

    def __init__(self, port: int, rng: random.Random, stack: ExitStack) -> None:
        self.pairs: list[tuple[int, int]] = []  # what is written to the one can be read from the other
        self.all: list[int] = []
        makers = [self._pipe, self._local_sockets, self._datagrams, self._at_another_address, self._of_others]
        for make in rng.choices(makers, k=8) + makers:
            self.pairs.append(make(port, stack))
        for kind in (os.eventfd(0), select.epoll().fileno(), os.open(os.devnull, os.O_RDWR)):
            self._keep(os.dup(kind), stack)
        self._keep(stack.enter_context(socket.create_server(("127.0.0.1", 0))).detach(), stack)
        for descriptor in self.all:
            os.set_blocking(descriptor, rng.random() < 0.5)

    def _keep(self, descriptor: int, stack: ExitStack) -> int:
        stack.callback(os.close, descriptor)
        self.all.append(descriptor)
        return descriptor

    def _pipe(self, port: int, stack: ExitStack) -> tuple[int, int]:
        reading, writing = os.pipe()
        return self._keep(writing, stack), self._keep(reading, stack)

    def _local_sockets(self, port: int, stack: ExitStack) -> tuple[int, int]:
        left, right = socket.socketpair()
        return self._keep(left.detach(), stack), self._keep(right.detach(), stack)

    def _datagrams(self, port: int, stack: ExitStack) -> tuple[int, int]:
        """Connected, and at the number of the server's port, which is another one for UDP."""
        near, far = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        near.bind(("127.0.0.1", port))
        far.bind(("127.0.0.1", 0))
        near.connect(far.getsockname())
        return self._keep(near.detach(), stack), self._keep(far.detach(), stack)

    def _at_another_address(self, port: int, stack: ExitStack) -> tuple[int, int]:
        """A connection that a listener at the number of the server's port has accepted at another address."""
        host = f"127.0.0.{2 + len(self.all)}"
        with socket.create_server((host, port)) as listener:
            far = socket.create_connection((host, port), timeout=30)
            near, _ = listener.accept()
        return self._keep(near.detach(), stack), self._keep(far.detach(), stack)

    def _of_others(self, port: int, stack: ExitStack) -> tuple[int, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname(), timeout=30)
            near, _ = listener.accept()
        return self._keep(far.detach(), stack), self._keep(near.detach(), stack)

    def state(self) -> list[tuple[int, int]]:
        return [(fcntl.fcntl(each, fcntl.F_GETFL), fcntl.fcntl(each, fcntl.F_GETFD)) for each in self.all]

    def check_works(self) -> None:
        for writing, reading in self.pairs:
            assert os.write(writing, b"x") == 1
            assert select.select([reading], [], [], 30)[0] and os.read(reading, 1) == b"x"


def check_strangers(seed: int, set_default_timeout: Callable[[float | None], None]) -> None:
    """Look at the connections of a port, and abort first some and then all, beside descriptors of all kinds: each of
    them keeps its state and works, and the port's own connections are seen and end.
    """
    rng = random.Random(seed)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(3)]
        for _ in clients:
            stack.enter_context(listener.accept()[0])
        foreign = Foreign(port, rng, stack)
        set_default_timeout(rng.choice((0.0, 0.5, 30.0)))
        before = foreign.state()
        peers = {f"127.0.0.1:{client.getsockname()[1]}" for client in clients}
        assert {connection.peer for connection in accepted_connections(port, "127.0.0.1")} == peers
        some = rng.sample(sorted(peers), 1)
        assert abort_connections(port, some, "127.0.0.1") == 1
        limiter = ConnectionLimiter(port, Callers(ConnectionLimits()), ConnectionLimits(hello_s=0.0), host="127.0.0.1")
        limiter.enforce()
        limiter.close()
        abort_connections(port, host="127.0.0.1")
        set_default_timeout(None)
        assert foreign.state() == before
        foreign.check_works()
        for client in clients:
            assert client.recv(1) == b""


@pytest.mark.parametrize("seed", range(4))
def test_descriptors_of_others_keep_their_state(seed: int, default_timeout: Callable[[float | None], None]) -> None:
    check_strangers(seed, default_timeout)


def python_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = sockets._address

    def address(ask: Any, descriptor: int) -> tuple[str, int]:
        with suppress(OSError):
            socket.socket(fileno=descriptor).detach()
        return plainly(ask, descriptor)

    monkeypatch.setattr(sockets, "_address", address)


def any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_is_at", lambda own_host, host: True)


def any_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_is_tcp", lambda descriptor: True)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [python_sockets, any_address, any_protocol])
def test_planted_bugs_are_found(
    plant: Any, monkeypatch: pytest.MonkeyPatch, default_timeout: Callable[[float | None], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, OSError)):
        check_strangers(0, default_timeout)


def test_a_listener_at_every_address_has_all_connections_of_its_port() -> None:
    for family, host, target in (
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"), (socket.AF_INET6, "0:0:0:0:0:0:0:1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ):  # fmt: skip
        with ExitStack() as stack:
            dual = host == "::"
            listener = stack.enter_context(socket.create_server((host, 0), family=family, dualstack_ipv6=dual))
            port = listener.getsockname()[1]
            client = stack.enter_context(socket.create_connection((target, port), timeout=30))
            stack.enter_context(listener.accept()[0])
            peer = f"{target}:{client.getsockname()[1]}"
            assert [connection.peer for connection in accepted_connections(port, host)] == [peer]
            assert [connection.peer for connection in accepted_connections(port, "localhost")] == [peer]
            assert accepted_connections(port, "10.0.0.7") == []


# ---- other settings of the whole process ---------------------------------------------------------------------------


def test_a_command_waits_for_its_signal_whatever_the_default_timeout(
    default_timeout: Callable[[float | None], None],
) -> None:
    default_timeout(0.01)
    with stop_signals() as stopped:
        assert stopped.gettimeout() is None


def test_a_proxy_stays_open_whatever_the_default_timeout(default_timeout: Callable[[float | None], None]) -> None:
    default_timeout(0.05)
    with socket.create_server(("127.0.0.1", 0)) as target:
        target.settimeout(30)
        proxy = TcpProxy(target.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
            served, _ = target.accept()
            with served:
                assert select.select([client], [], [], 0.2)[0] == [], "it ends no silent connection"
                served.sendall(b"x")
                assert client.recv(1) == b"x"
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30):
            target.accept()[0].close()
        proxy.stop()


def test_a_process_of_any_name_has_an_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system cuts a name off after 15 bytes, in the middle of a character too."""
    stat = Path(f"/proc/{os.getpid()}/stat").read_bytes()
    odd = b"(" + ("é" * 8).encode()[:15] + b")" + stat.rpartition(b")")[2]
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "stat").write_bytes(b"1 " + odd)
    expected = process_id._read_start_ticks(os.getpid())
    monkeypatch.setattr(process_id, "_PROC", tmp_path)
    assert process_id._read_start_ticks(os.getpid()) == expected != ""


SIGPIPE_ENDS_IT = """
import signal
from http_flood import ask_and_go, get, opened, rest_of
from epochlog.exchange.transport.metrics_http import MetricsPort

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
port = MetricsPort("127.0.0.1:0", lambda: ["x 1"])
for _ in range(20):
    ask_and_go(port.location, get("/metrics"))
assert rest_of(opened(port.location, get("/metrics"))).endswith(b"x 1\\n")
port.close()
"""


@pytest.mark.medium
def test_a_client_who_goes_ends_no_process_that_sigpipe_ends() -> None:
    """Commands set SIGPIPE so, for output to a closed pipe; it meets each thread that writes to a closed socket."""
    done = subprocess.run([sys.executable, "-c", SIGPIPE_ENDS_IT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done
