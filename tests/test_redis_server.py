"""The tests' own Redis server: found where it is, and noticed in tests that do not say that they use it."""

from __future__ import annotations

from pathlib import Path

import pytest

import redis_server
from redis_server import RedisProcess, Touched

pytestmark = pytest.mark.local_only


def program(folder: Path) -> str:
    folder.mkdir()
    path = folder / "redis-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.redis
def test_the_executable_is_the_named_one_then_that_of_the_path_then_redislites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, on_path = program(tmp_path / "named"), program(tmp_path / "path")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("EPOCHLOG_TEST_REDIS_SERVER", named)
    assert redis_server.redis_executable() == named
    monkeypatch.delenv("EPOCHLOG_TEST_REDIS_SERVER")
    assert redis_server.redis_executable() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.redis_executable() not in (named, on_path)
    monkeypatch.setenv("EPOCHLOG_TEST_REDIS_SERVER", str(tmp_path / "none"))
    with pytest.raises(AssertionError, match="cannot be run"):
        redis_server.redis_executable()


def test_a_test_that_uses_redis_without_the_marker_is_told() -> None:
    touched = Touched()
    assert touched.complaint(marked=False) == ""
    touched.note()
    assert "mark it with @pytest.mark.redis" in touched.complaint(marked=False)
    assert touched.complaint(marked=False) == ""  # the next test is another
    touched.note()
    assert touched.complaint(marked=True) == ""


@pytest.mark.redis
@pytest.mark.parametrize("use", [RedisProcess.url, RedisProcess.client], ids=["url", "client"])
def test_every_use_of_a_server_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: object) -> None:
    server = RedisProcess(tmp_path / "redis")
    try:
        monkeypatch.setattr(redis_server, "touched", touched := Touched())
        use(server)  # pyright: ignore[reportCallIssue]
        assert touched.complaint(marked=False)
    finally:
        server.stop()


@pytest.mark.redis
def test_data_is_lost_copied_and_put_back_whatever_the_version(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path / "redis")
    try:
        for number in range(3):
            with server.client() as client:
                client.set("n", number)
            server.kill()
            if number == 0:
                server.copy_data(tmp_path / "copy")
            elif number == 1:
                server.lose_data()
            server.start()
            with server.client() as client:
                assert client.get("n") == (None if number == 1 else b"%d" % number)
        server.kill()
        server.put_data_back(tmp_path / "copy")
        server.start()
        with server.client() as client:
            assert client.get("n") == b"0"
    finally:
        server.stop()
