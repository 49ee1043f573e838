"""Input from peers and rows stays text: in the log, on a terminal, in JSON, and in messages to strangers."""

from __future__ import annotations

import http.client
import io
import json
import logging
import socket
import struct
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import TOKEN, Stranger, bearer, error_of
from epochlog.__main__ import main
from epochlog.store.env.log_events import DEFECT, WORKER_SILENT

pytestmark = pytest.mark.local_only
EVIL = "x\nERROR root: all is lost\r\x1b[2J\x9b31m\u202egnp.exe\u2066\u2028end"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"])
        yield store


def steers(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"]


def test_a_record_of_the_log_is_one_line() -> None:
    log, out = logging.getLogger("epochlog"), io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("LINE %(message)s"))
    log.addHandler(handler)
    try:
        WORKER_SILENT.log(worker=EVIL, silent_s=1.5)
        assert len(out.getvalue().splitlines()) == 1
        try:
            raise ValueError(EVIL)
        except ValueError as error:
            DEFECT.log(what=f"a call of {EVIL}", error=error)
    finally:
        log.removeHandler(handler)
    lines = out.getvalue().split("\n")
    assert all(line.startswith(("LINE ", "    ")) for line in lines if line)
    assert any(line.startswith("    Traceback") for line in lines)
    assert not steers(out.getvalue()) and "all is lost" in out.getvalue()


def test_rows_steer_no_terminal_and_are_whole_in_json(store: el.Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.table("t").upsert(pa.table({"id": [1], "v": [EVIL]}))
    store.close()
    assert main(["read", store.root, "t", "--json"]) == 0
    output = capsys.readouterr().out
    assert not steers(output) and len(output.splitlines()) == 1
    assert json.loads(output)["v"] == EVIL
    assert main(["read", store.root, "t"]) == 0
    assert not steers(capsys.readouterr().out)


def test_the_metrics_answer_to_names_of_this_machine_alone(store: el.Store) -> None:
    """A page in a browser of this machine whose site's name is made to lead to 127.0.0.1 reads nothing."""
    with el.serve(store, token=TOKEN, metrics="127.0.0.1:0") as server:
        assert server.metrics_location is not None
        port = int(server.metrics_location.rpartition(":")[2].partition("/")[0])
        for host, status in (
            ("127.0.0.1", 200), (f"127.0.0.1:{port}", 200), ("localhost", 200),
            (f"LOCALHOST:{port}", 200), ("[::1]:9", 200),
            ("evil.example", 421), (f"evil.example:{port}", 421), ("127.0.0.1.evil.example", 421), ("", 421),
            ("localhost.evil.example", 421), ("0.0.0.0", 421), ("[", 421), ("user@evil.example", 421),
        ):  # fmt: skip
            asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            asking.putrequest("GET", "/metrics", skip_host=True)
            asking.putheader("Host", host)
            asking.endheaders()
            assert asking.getresponse().status == status, host
            asking.close()


def test_an_option_that_no_policy_has_is_told_as_one(store: el.Store) -> None:
    with el.serve(store, token=TOKEN) as server, Stranger(server.location, bearer(TOKEN)) as stranger:
        for name in ("zzz", "self", "consistency", "policy", "options", "name", "", "a b"):
            for policy in ("latest", "aligned", "as_of", "bounded", "global"):
                command = json.dumps({"read": "t", "consistency": policy, "options": {name: 1}}).encode()
                about = flight.FlightDescriptor.for_command(command)
                for call in (stranger.info, stranger.schema):
                    text = str(error_of(call, about))
                    assert "Traceback" not in text and "own log" not in text, (name, policy, text)


# ---- headers that no honest client can send ----------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def answered(port: int, method: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the server's HTTP/2 answer to a call with unchecked headers."""
    whole = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/arrow.flight.protocol.FlightService/" + method),
    ]
    whole += [(b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"), *headers]
    packed = b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in whole)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        line.sendall(frame(1, 4, 1, packed) + frame(0, 1, 1, bytes(5)))
        heard = b""
        while b"grpc-status" not in heard and (data := line.recv(1 << 16)):
            heard += data
    return heard


def test_headers_that_are_no_ascii_let_nobody_in_and_tell_nothing_of_ours(store: el.Store) -> None:
    """pyarrow decodes headers before anybody else sees them, and tells of its own lines where it fails: no others."""
    with el.serve(store, token=TOKEN) as server:
        port = int(server.location.rpartition(":")[2])
        for headers in (
            [(b"authorization", b"Bearer \xff\xfe")],
            [(b"authorization", b"Bearer " + TOKEN.encode()), (b"x-odd", b"\xe4")],
        ):
            for method in (b"ListActions", b"ListFlights"):
                text = answered(port, method, headers)
                assert b"orders" not in text and b"epochlog" not in text and str(store.root).encode() not in text
                assert text.count(b'File "') == text.count(b'File "pyarrow/_flight.pyx"')
        with Stranger(server.location, bearer(TOKEN)) as stranger:
            assert stranger.actions()
