"""Passwords in URLs are in no error, its causes, `repr`, log or complaint: neither as they are written there nor as
they are meant. Libraries and servers quote what they were given, decoded.
"""

from __future__ import annotations

import logging
import random
import re
import socket
import string
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.__main__ import main
from epochlog.store.catalog.redis import client as redis_client
from epochlog.store.catalog.redis.client import RedisServer
from epochlog.store.env import redact
from epochlog.store.env.redact import redact_url, without_secrets
from epochlog.store.session.handle import as_place, open_handle

pytestmark = pytest.mark.local_only
LETTERS = string.ascii_letters + string.digits + string.punctuation + " äß€"
passwords = st.text(LETTERS, min_size=4, max_size=30).filter(lambda word: word.strip("*") and "***" not in word)


def encodings(password: str) -> list[str]:
    """Ways to write it in a URL."""
    return [quote(password, safe=""), quote(password, safe="!$'()*,;="), quote(password[0], safe="") + "".join(
        f"%{byte:02x}" for byte in password[1:].encode()
    )]  # fmt: skip


@given(password=passwords)
def test_every_spelling_of_a_password_is_masked(password: str) -> None:
    for written in encodings(password):
        for url in (f"redis://user:{written}@redis.test:1/0", f"s3://bucket/x?secret_key={written}"):
            for spelled in (password, written, repr(password), quote(password, safe=""), quote_plus(password)):
                text = without_secrets(f"it said <<{spelled}>> of {url}", url)
                inside = text.partition("<<")[2].partition(">>")[0].strip("\"'")
                assert password not in inside and written not in inside, text
                assert written not in text.partition(" of ")[2] or written in "redis://user:***@redis.test:1/0"


NAMES = [
    "pass",
    "pwd",
    "sig",
    "auth",
    "session",
    "X-Amz-Signature",
    "Authorization",
    "access_key",
    "SessionId",
    "Passwd",
    "sas",
    "code",
    "se",
    "X-Goog-Credential",
    "zugang",
    "endpoint_override_2",
    "",
]


URLS = [
    *(f"s3://bucket/x?region=eu&{name}=hunter2hunter2" for name in NAMES),
    *(f"redis:/{slashes}user:hunter2hunter2@redis.test:1/0" for slashes in ("", "/", "//")),
    "s3:/access:hunter2hunter2@bucket/lake",
    "s3://bucket/x?p%61ss=hunter2hunter2",
    "s3://bucket/x?a=1;pwd=hunter2hunter2",
    "s3://bucket/x#session=hunter2hunter2",
    "s3://bucket/x?endpoint_override=user:hunter2hunter2@host:9000",
    "s3://bucket/x?endpoint_override=http%3A%2F%2Fuser%3Ahunter2hunter2%40host",
    "s3://bucket/x?endpoint_override=http://host/?sas=hunter2hunter2",
    "abfss://container@account.dfs.core.windows.net/lake?sv=2022-11-02&sig=hunter2hunter2",
    "redis://redis.test:1/0?db=1&kennwort=hunter2hunter2",
]


@pytest.mark.parametrize("url", URLS)
def test_secrets_under_any_name_and_in_mistyped_urls_are_masked(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "RECONNECT_S", 0.05)
    check_masked(url, tmp_path)


def names_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_names_with(monkeypatch, "secret", "token", "password", "key", "cred")


def a_longer_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_names_with(monkeypatch, "secret", "token", "pass", "pwd", "key", "sig", "auth", "session", "cred", "jwt")


def hide_names_with(monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    def is_secret(parameter: re.Match[str]) -> bool:
        return any(part in redact.unquote_plus(parameter["name"]).lower() for part in parts)

    monkeypatch.setattr(redact, "_is_secret", is_secret)


def names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_NESTED", re.compile(r"$^"))


def urls_with_two_slashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = redact._PASSWORD.pattern.replace(":/{1,3}", "://")
    monkeypatch.setattr(redact, "_PASSWORD", re.compile(pattern, re.IGNORECASE | re.DOTALL))


def names_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "unquote_plus", lambda text: text)


def parameters_behind_one_sign_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_PARAMETER", re.compile(redact._PARAMETER.pattern.replace("[?&;#](?P", "[?&](?P")))


@pytest.mark.planted
@pytest.mark.parametrize(
    "plant",
    [
        names_of_before,
        a_longer_list_of_names,
        names_alone,
        urls_with_two_slashes_alone,
        names_as_they_are_written,
        parameters_behind_one_sign_alone,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_secret_that_is_shown_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "RECONNECT_S", 0.05)
    plant(monkeypatch)
    shown = list[str]()
    for url in URLS:
        try:
            check_masked(url, tmp_path)
        except AssertionError:
            shown.append(url)
    assert 0 < len(shown) < len(URLS)


def check_masked(url: str, tmp_path: Path) -> None:
    assert "hunter2" not in redact_url(url) and "***" in redact_url(url)
    assert "hunter2" not in without_secrets(f"no route for hunter2hunter2 of {url}", url)
    for opens in (lambda: el.open(url), lambda: el.open(tmp_path, url)):
        with pytest.raises(el.EpochlogError) as raised:
            opens()
        assert "hunter2" not in str(raised.value)


@given(name=st.sampled_from(NAMES), password=passwords, data=st.data())
def test_a_secret_is_masked_however_its_name_is_written(name: str, password: str, data: st.DataObject) -> None:
    ways = (lambda letter: letter, str.upper, lambda letter: f"%{ord(letter):02x}")
    written = "".join(data.draw(st.sampled_from(ways))(letter) for letter in name)
    secret = quote(password, safe="")
    separator, other = data.draw(st.sampled_from("&;#")), data.draw(st.sampled_from(["", "region=eu&", "db=2;"]))
    url = f"s3://bucket/x?{other}timeout=1{separator}{written}={secret}"
    assert redact_url(url) == f"s3://bucket/x?{other}timeout=1{separator}{written}=***"


@given(name=st.text(LETTERS, max_size=12), password=passwords)
def test_a_value_is_masked_unless_its_name_is_known_to_give_no_rights(name: str, password: str) -> None:
    written, secret = quote(name, safe=""), quote(password, safe="")
    if name.lower() not in redact._HARMLESS:
        assert redact_url(f"s3://b/x?region=eu&{written}={secret}") == f"s3://b/x?region=eu&{written}=***"


@pytest.mark.parametrize("root", ["redis:/user:not-shown@h/0", "s3:/user:not-shown@bucket/lake", "s3:/b?pwd=not-shown"])
def test_a_root_of_one_slash_is_refused_without_its_password(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(el.InvalidInput, match="a URI has two") as refused:
        el.open(root)
    assert "not-shown" not in str(refused.value) and not list(tmp_path.iterdir())
    assert main(["ls", root]) == 1
    assert "not-shown" not in capsys.readouterr().err
    el.open(f"./{root}").close()


@pytest.mark.parametrize("url", ["s3://bucket/x?region=eu-1&scheme=http", "redis://redis.test:1/0", "/srv/a:b@c"])
def test_what_is_no_secret_is_shown(url: str) -> None:
    assert redact_url(url) == url


SHORT = st.text(LETTERS, min_size=1, max_size=2).filter(lambda word: not set(word) & set("* '(),"))


@given(password=SHORT)
def test_a_short_password_is_masked_where_it_stands_as_one(password: str) -> None:
    written = quote(password, safe="")
    for url in (f"redis://user:{written}@redis.test:1/0", f"s3://bucket/x?secret_key={written}&region=eu"):
        for text in (f"ERR args: '{password}'", f"AUTH {password}", f"\r\n{password}\r\n", repr(("default", password))):
            masks = without_secrets(text, url)
            assert masks.count("***") == 1, f"{masks} of {password!r}"
        for decoded in (f"redis://user:{password}@redis.test:1/0", f"s3://bucket/x?secret_key={password}&region=eu"):
            assert f":{password}@" not in without_secrets(decoded, url), decoded
            assert f"={password}&" not in without_secrets(decoded, url), decoded


@pytest.mark.parametrize("password", ["e", "1", "er", "10", "O"])
def test_a_short_password_takes_no_letters_out_of_words(password: str) -> None:
    text = f"Error 111 connecting to redis.test:6310 (10.0.0.1): OOM refused, reserved 10100; AUTH '{password}'"
    shown = without_secrets(text, f"redis://user:{password}@redis.test:6310/0")
    assert shown == text.replace(f"'{password}'", "'***'")


# ---- a server that quotes what it was told -----------------------------------------------------------------------


class Parrot:
    """Answers every command with an error that has all its words, as Redis does of a command that was renamed."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        outcome_of = b""
        with suppress(OSError), client:
            while data := client.recv(1 << 16):
                outcome_of += data.replace(b"\r\n", b" ")
                client.sendall(b"-" + self._answer + b" with args beginning with: " + outcome_of + b"\r\n")

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(
    params=[b"ERR unknown command", b"WRONGPASS no such pair", b"LOADING not yet", b"NOPERM not you", b"MISCONF disk"]
)
def parrot(request: pytest.FixtureRequest) -> Iterator[Parrot]:
    server = Parrot(request.param)
    yield server
    server.stop()


def traceback_text(error: BaseException | None) -> str:
    """All that a traceback of it would show of errors."""
    seen: list[str] = []
    while error is not None and len(seen) < 40:
        seen += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(seen)


def outcome_of(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return traceback_text(error)


def random_password(seed: int) -> str:
    rng = random.Random(seed)
    return "pw" + "".join(rng.choices(LETTERS, k=14))


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_no_error_repr_or_log_has_a_password(
    parrot: Parrot, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(redis_client, "RECONNECT_S", 0.05)
    caplog.set_level(logging.DEBUG)
    password = random_password(seed)
    with el.open(tmp_path / "embedded", durability="os"):
        pass
    for written in [encodings(password)[seed]]:
        place = f"127.0.0.1:{parrot.port}/0"
        urls = [f"redis://user:{written}@{place}", f"redis://:{written}@{place}", f"redis://:{written}@127.0.0.1:1/0"]
        urls += [f"redis://:{written}@127.0.0.1:port/0", f"redis://:{written}@{place}?odd=1"]
        urls += [f"redis://{place}?password={written}", f"rediss://:{written}@{place}?ssl_ca_certs=/none"]
        for url in urls:
            root = str(tmp_path / "far")
            heard = [
                outcome_of(lambda url=url: RedisServer(url)),
                outcome_of(lambda url=url: RedisServer(url).time_ms()),
                outcome_of(lambda url=url, root=root: el.open(root, catalog=url, volatile=True)),
                outcome_of(lambda url=url: el.open(tmp_path / "embedded", catalog=url)),
                outcome_of(lambda url=url, root=root: el.restore_catalog(root, catalog=url)),
            ]
            if url == urls[seed]:
                for argv in (["ls", root, "--catalog", url], ["ls", root, url], [url], ["ls", url, "--odd", url]):
                    main(argv)
            heard += [*capsys.readouterr(), caplog.text]
            check(heard, password, written)
        far = f"s3://key:{written}@bucket/x?region=nowhere&odd=1"
        heard = [
            outcome_of(lambda far=far: open_handle(far, None, create=False)),
            outcome_of(lambda far=far: el.open(far)),
            outcome_of(lambda far=far: as_place(far)),
            redact_url(f"{far}&secret={written}"),
        ]
        main(["ls", far])
        heard += [*capsys.readouterr(), caplog.text]
        check(heard, password, written)


def check(heard: list[str], password: str, written: str) -> None:
    for text in heard:
        for form in {password, written, repr(password)[1:-1]}:
            assert form not in text, f"{form!r} is in {text}"
