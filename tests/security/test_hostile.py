"""Hostile calls with a valid token to every service: each gets a typed refusal or an answer, no traceback, and the next
honest call is served. The tests list the server's services themselves, so they cover new ones too."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import TOKEN, Stranger, bearer, check_no_internals, error_of, every_method, services

pytestmark = pytest.mark.local_only

NOISE: list[bytes] = [
    *(b"", b"\0", b"\xff" * 40, b"{}", b"[]", b"null", b"5", b'"x"', b"[" * 60_000, b'{"a":' * 9_000),
    *(b'{"table": "orders"', b'{"table": "../../etc/passwd"}', b'{"table": "orders", "after": -1}'),
    *(b'{"table": "orders", "after": 1e999}', b'{"table": "orders", "table": "other"}', b'{"table": {"x": []}}'),
    *(b'{"table": "orders", "columns": ["\\u0000"]}', b'{"read": "orders", "epoch": 99999999999999999999999}'),
    *(b'{"changes": "orders", "after": NaN}', b"\xc1", b"\x91" * 5_000, b"\x81\xa1a" * 5_000, b"\xdd\xff\xff\xff\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x80", b"\x90", b"\xa0"),
]
NAMES = [
    "..",
    "../x",
    "/etc/passwd",
    "a/../../b",
    "orders\0",
    "ORDERS",
    "orders ",
    "\u2025",
    "x" * 64,
    "",
    "a/b",
    "a\nb",
]
VALUES: list[Any] = [None, True, -1, 0, 1 << 63, 1.5, "", "x", b"x", [], {}, [[]], {"a": {"b": []}}, "x" * 5000]
FIELDS = [
    "table",
    "consumer",
    "after",
    "columns",
    "query",
    "channel",
    "seq",
    "attempt",
    "cursor",
    "stages",
    "kind",
    "id",
    "last",
    "rows",
    "incarnation",
    "window",
    "mail",
    "line",
    "bytes",
    "crc32",
    "read",
    "changes",
    "write",
    "txn",
    "epoch",
    "operation",
    "mode",
    "until",
    "options",
    "consistency",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.StoreServer]:
    with el.open(tmp_path_factory.mktemp("hostile"), durability="os") as store:
        table = store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"])
        table.upsert(pa.table({"id": [1, 2], "v": ["a", "b"]}))
        with el.serve(store, token=TOKEN) as server:
            yield server


@pytest.fixture
def stranger(server: el.StoreServer, caplog: pytest.LogCaptureFixture) -> Iterator[Stranger]:
    """One whose every call is answered on purpose: nothing that he says is a defect in the server's log."""
    caplog.set_level(logging.WARNING)
    with Stranger(server.location, bearer(TOKEN)) as stranger:
        yield stranger
        assert stranger.actions(), "the next honest call is served"
    defects = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not defects, "\n".join(logging.Formatter().format(record) for record in defects)


def check_refused(error: Exception | None, what: str) -> None:
    text = check_no_internals(error, what)
    assert "own log" not in text, f"{what}: a defect, not a refusal"


def honest(server: el.StoreServer) -> None:
    assert server._handle.catalog.read(lambda view: sum(1 for _ in view.scan(b"table/", b"table0"))) == 1, "one table"


@pytest.mark.medium
def test_noise_for_every_service(server: el.StoreServer, stranger: Stranger) -> None:
    exchanges, actions = services(server)
    for noise in NOISE:
        for kind in actions:
            check_refused(error_of(stranger.action, kind, noise), f"{kind} {noise[:20]}")
        for name in exchanges:
            for rest in (noise, b""):
                messages = [noise] if noise else []
                check_refused(error_of(stranger.exchange, name + b":" + rest, messages), f"{name} {noise[:20]}")
    honest(server)


def test_noise_for_every_method(server: el.StoreServer, stranger: Stranger) -> None:
    for noise in NOISE:
        about, text = flight.FlightDescriptor.for_command(noise), noise.decode("latin-1")[:2_000]
        for call, args in (
            (stranger.get, [noise]),
            (stranger.info, [about]),
            (stranger.schema, [about]),
            (stranger.put, [about]),
            (stranger.list, [noise]),
            (stranger.action, [text, noise]),
            (stranger.exchange, [noise, [noise]]),
        ):
            check_refused(error_of(call, *args), f"{call.__name__} {noise[:20]}")
    assert len(every_method(stranger)) == 8, "list_actions takes nothing"
    honest(server)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_store(server: el.StoreServer, stranger: Stranger, name: str) -> None:
    abouts = [flight.FlightDescriptor.for_path(*parts) for parts in ([name], name.split("/"), ["orders", name])]
    asked = [{"read": name}, {"changes": name, "after": 0}, {"write": name}]
    abouts += [flight.FlightDescriptor.for_command(el_json(command)) for command in asked]
    for about in abouts:
        for call in (stranger.info, stranger.schema, stranger.put):
            error = error_of(call, about)
            assert error is not None, f"{call.__name__} {about}"
            check_refused(error, f"{call.__name__} {about}")
    exchanges, actions = services(server)
    for what in exchanges:
        check_refused(error_of(stranger.exchange, what + b":" + el_json({"table": name, "query": name})), name)
    for kind in actions:
        for body in (el_json({"query": name}), msgpack.packb(["load", name, False]), msgpack.packb({"query": name})):
            check_refused(error_of(stranger.action, kind, body), f"{kind} {name}")
    honest(server)


def el_json(value: object) -> bytes:
    return json.dumps(value).encode()


POLICIES: list[dict[str, Any]] = [
    {"consistency": "at_least", "options": {"epoch": 1 << 52, "timeout": 1e9}},
    {"consistency": "at_least", "options": {"epoch": 1, "timeout": "x"}},
    {"consistency": "at_least", "options": {"epoch": [], "timeout": -1}},
    {"consistency": "bounded", "options": {"max_lag": None, "timeout": 1e308}},
    {"consistency": "bounded", "options": {"max_lag": {}, "timeout": []}},
    {"consistency": "exact", "options": {"epochs_or_token": "gASVAAAA"}},
    {"consistency": "exact", "options": {"epochs_or_token": {"orders": -1}}},
    {"consistency": "exact", "options": {"epochs_or_token": {"../x": 1, "orders": True}}},
    {"consistency": "as_of", "options": {"timestamp": [1]}},
    {"consistency": "as_of", "options": {"timestamp": "9999999999-01-01"}},
    {"consistency": "latest", "options": {"self": 1}},
    {"consistency": "__class__"},
    {"consistency": "../policy"},
    {"consistency": "x" * 60_000},
]


@pytest.mark.parametrize("asked", POLICIES, ids=lambda asked: asked["consistency"][:20])
def test_options_of_policies(stranger: Stranger, asked: dict[str, Any]) -> None:
    """They reach code that is meant for the store's own users; nothing of it waits for ever."""
    about = flight.FlightDescriptor.for_command(el_json({"read": "orders", **asked}))
    error = error_of(stranger.info, about)
    assert error is not None
    check_refused(error, str(asked)[:200])


def test_rows_where_none_belong(server: el.StoreServer, stranger: Stranger) -> None:
    exchanges, _ = services(server)
    batch = pa.record_batch({"a": np.zeros(1000)})
    for name in exchanges:
        check_refused(error_of(stranger.exchange, name + b":", [batch]), str(name))
        check_refused(error_of(stranger.exchange, name + b":", [batch, b"x", batch]), str(name))


def test_messages_at_and_past_the_limit(server: el.StoreServer, stranger: Stranger) -> None:
    exchanges, actions = services(server)
    for kind in actions:
        error = error_of(stranger.action, kind, bytes((1 << 20) + 1))
        assert "at most" in check_no_internals(error), kind
    for name in exchanges:
        error = error_of(stranger.exchange, name + b":" + bytes(1 << 16))
        assert "no exchange" in check_no_internals(error), name


def random_message(rng: random.Random) -> bytes:
    """Structures of the shapes that services take, with wrong things in them."""
    made: Any = {rng.choice(FIELDS): rng.choice([*VALUES, *NAMES]) for _ in range(rng.randint(0, 8))}
    if rng.random() < 0.5:
        lists = [[rng.randrange(12), *rng.choices(VALUES, k=rng.randint(0, 6))] for _ in range(rng.randint(0, 3))]
        made = lists
    if rng.random() < 0.4:
        return json.dumps(made, default=str).encode()
    packed = msgpack.packb(made)
    assert isinstance(packed, bytes)
    return packed


def talk(server: el.StoreServer, stranger: Stranger, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    exchanges, actions = services(server)
    for _ in range(rounds):
        message = random_message(rng)
        about = flight.FlightDescriptor.for_command(message)
        for call, args in (
            (stranger.action, [rng.choice(list(actions)), message]),
            (stranger.exchange, [rng.choice(list(exchanges)) + b":" + message, [message, message]]),
            (stranger.info, [about]),
            (stranger.put, [about]),
            (stranger.get, [message]),
        ):
            check_refused(error_of(call, *args), f"seed {seed}, {call.__name__} {args}"[:300])
    honest(server)


@pytest.mark.medium
def test_random_messages_for_every_service(server: el.StoreServer, stranger: Stranger) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"repeat with talk(server, stranger, {seed}, 60)")
    talk(server, stranger, seed, 60)
