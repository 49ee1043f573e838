"""Cutting connections off touches nothing but connections."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import epochlog as el
from epochlog.exchange.transport.sockets import abort_connections, peer_address

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
