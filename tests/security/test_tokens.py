"""Authorization of every method and service: without a token, with a wrong one, and with each role's token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import (
    READ_TOKEN,
    TOKEN,
    Header,
    Stranger,
    bearer,
    check_no_internals,
    error_of,
    every_method,
    every_service,
    methods,
    services,
)
from epochlog.exchange.transport.services import Role

pytestmark = pytest.mark.local_only

ROLES = {
    "exchange control": Role.WRITE,
    "exchange subscribe": Role.READ,
    "exchange staged.push.2": Role.WRITE,
    "exchange staged.mail.2": Role.WRITE,
    "action checkpoint": Role.WRITE,
    "action stop": Role.WRITE,
    "action staged.declare": Role.WRITE,
    "action staged.end": Role.WRITE,
    "action staged.drop": Role.WRITE,
    "action RenewFlightEndpoint": Role.READ,
    "action CancelFlightInfo": Role.READ,
    "action staged.stage": Role.READ,
    "action staged.wait": Role.READ,
    "action staged.progress": Role.READ,
    "action staged.claim": Role.WRITE,
    "action staged.ack": Role.WRITE,
    "do_put": Role.WRITE,
}
"""Of every service that there is, and of the methods that need more than reading."""

NOBODY: dict[str, list[Header]] = {
    "nothing": [],
    "empty": [(b"authorization", b"")],
    "no token": [(b"authorization", b"Bearer ")],
    "no scheme": [(b"authorization", TOKEN.encode())],
    "another scheme": [(b"authorization", f"Basic {TOKEN}".encode())],
    "another": bearer("another"),
    "shorter": bearer(TOKEN[:-1]),
    "longer": bearer(TOKEN + "x"),
    "upper case": bearer(TOKEN.upper()),
    "lower case": bearer(TOKEN.lower()),
    "two blanks": [(b"authorization", f"Bearer  {TOKEN}".encode())],
    "no blank": [(b"authorization", f"Bearer{TOKEN}".encode())],
    "twice": [*bearer(TOKEN), *bearer(TOKEN)],
    "a wrong one first": [*bearer("another"), *bearer(TOKEN)],
    "a wrong one behind": [*bearer(TOKEN), *bearer("another")],
    "both tokens": [*bearer(READ_TOKEN), *bearer(TOKEN)],
    "joined": [(b"authorization", f"Bearer {TOKEN}, Bearer {TOKEN}".encode())],
    "another header": [(b"x-authorization", f"Bearer {TOKEN}".encode())],
    "a binary header": [(b"authorization-bin", f"Bearer {TOKEN}".encode())],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.StoreServer]:
    with el.open(tmp_path_factory.mktemp("tokens"), durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"])
        with el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server:
            yield server


def is_unauthenticated(error: Exception | None) -> bool:
    """Of get_schema pyarrow keeps the text alone."""
    return isinstance(error, (flight.FlightUnauthenticatedError, OSError)) and "a token that this" in str(error)


def test_every_method_and_service_is_known_here(server: el.StoreServer) -> None:
    """ROLES lists every method and service; a new one must be added there."""
    with Stranger(server.location) as stranger:
        assert set(every_method(stranger)) == methods()
        known = {name for name in ROLES if " " in name}
        assert set(every_service(stranger, server)) == known
    door = type(server._server._flight_server)
    assert methods() <= set(vars(door)), "a method of Flight's base class tells its tracebacks"
    exchanges, actions = services(server)
    roles = {f"exchange {name.decode()}": service.role for name, service in exchanges.items()}
    roles |= {f"action {kind}": service.role for kind, service in actions.items()}
    assert roles == {name: role for name, role in ROLES.items() if " " in name}


@pytest.mark.parametrize("headers", NOBODY.values(), ids=NOBODY)
def test_nobody_without_a_token(
    server: el.StoreServer, headers: list[Header], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Stranger(server.location, headers) as stranger:
        for name, call in {**every_method(stranger), **every_service(stranger, server)}.items():
            error = error_of(call)
            assert is_unauthenticated(error), f"{name}: {error!r}"
            check_no_internals(error, name)
    assert TOKEN not in caplog.text and READ_TOKEN not in caplog.text


def test_who_may_read_may_not_write(server: el.StoreServer) -> None:
    with Stranger(server.location, bearer(READ_TOKEN)) as stranger:
        for name, call in {**every_method(stranger), **every_service(stranger, server)}.items():
            error = error_of(call)
            assert not is_unauthenticated(error), name
            denied = "AccessDenied" in check_no_internals(error, name)
            if name in ("do_action", "do_exchange"):
                assert denied, f"{name} of a service that writes"
            else:
                assert denied == (ROLES.get(name, Role.READ) is Role.WRITE), f"{name}: {error!r}"


def test_who_may_write_is_denied_nothing(server: el.StoreServer) -> None:
    with Stranger(server.location, bearer(TOKEN)) as stranger:
        for name, call in {**every_method(stranger), **every_service(stranger, server)}.items():
            error = error_of(call)
            assert not is_unauthenticated(error), name
            assert "AccessDenied" not in check_no_internals(error, name), name


def test_tokens_are_in_no_repr_and_no_error(server: el.StoreServer, tmp_path: Path) -> None:
    shown = [repr(server), repr(server._server), repr(server._server._flight_server), str(vars(server))]
    with el.open(tmp_path / "s", durability="os") as store:
        for wrong in ({"token": TOKEN + "\n"}, {"token": TOKEN, "read_token": READ_TOKEN + "é"}):
            with pytest.raises(el.InvalidInput) as error:
                el.serve(store, **wrong)
            shown.append(str(error.value))
        for token, read_token in ((TOKEN, TOKEN), (None, READ_TOKEN)):
            with pytest.raises(el.InvalidInput) as error:
                el.serve(store, token=token, read_token=read_token)
            shown.append(str(error.value))
        with pytest.raises(el.InsecureServer) as insecure:
            el.serve(store, "grpc://0.0.0.0:0", token=TOKEN)
        shown.append(str(insecure.value))
    for text in shown:
        assert TOKEN not in text and READ_TOKEN not in text
