"""Command doctor: clocks that lead or jumped, and what it says to do, done by the letter."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.__main__ import main
from epochlog.store.env.clock import BootTime, SystemClock
from redis_time import KEY, served_time
from stores import servers
from virtual_machines import DAY_MS, HOUR_MS, Machine, TrueTime

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of this process: what SystemClock reads."""
    made = Machine(TrueTime(), "here")

    def boot_time(self: SystemClock) -> BootTime:
        return made.boot_time()

    monkeypatch.setattr(SystemClock, "__call__", lambda self: made())
    monkeypatch.setattr(SystemClock, "boot_time", boot_time)
    return made


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    def run(*options: str) -> tuple[int, Any]:
        code = main(["doctor", str(tmp_path / "s"), "--json", *options])
        captured = capsys.readouterr()
        assert not captured.err
        return code, json.loads(captured.out)

    return run


@pytest.mark.local_only
@pytest.mark.rule("1.60")
def test_a_jump_is_told_and_the_advice_works(
    machine: Machine, tmp_path: Path, doctor: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert([{"id": 1}])
        assert doctor()[0] == 0
        for advised in ("set", "trust"):
            machine.jump(DAY_MS)
            with pytest.raises(el.ClockSkew, match="1 d more"):
                table.upsert([{"id": 2}])
            code, facts = doctor()
            (symptom,) = facts["symptoms"]
            assert code == 1 and "jumped 1 d ahead" in symptom["what"]
            assert symptom["advice"].startswith("set the clock right")
            if advised == "set":
                machine.jump(-DAY_MS)
            else:
                command = re.search(r"`epochlog (.*)`", symptom["advice"])
                assert command is not None and main(shlex.split(command[1])) == 0
                assert "nothing to do: ok" in capsys.readouterr().out
            table.upsert([{"id": 3}])
            assert doctor()[0] == 0


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.rule("1.60", "1.61")
def test_a_server_that_leads_is_told_and_the_command_names_the_catalog(
    machine: Machine, tmp_path: Path, doctor: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = Machine(machine.world, "server"), servers.redis.url()

    def show() -> None:
        with servers.redis.client() as connection:
            connection.set(KEY, server())

    show()
    with served_time(), el.open(tmp_path / "s", url, volatile=True) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert([{"id": 1}])
        server.jump(DAY_MS)
        show()
        with pytest.raises(el.ClockSkew, match="1 d more") as refusal:
            table.upsert([{"id": 2}])
        command = re.search(r"`epochlog (.*)`", str(refusal.value))
        assert command is not None
        assert main(shlex.split(command[1])) == 1, "the clocks still differ"
        assert "redis server leads the clock of" in " ".join(capsys.readouterr().out.split())
        table.upsert([{"id": 2}])
        machine.jump(DAY_MS)  # the server's clock is right
        assert doctor("--catalog", url, "--volatile")[1]["symptoms"] == []
        machine.reboot()
        machine.jump(-DAY_MS)  # the advice on a machine that has not committed yet
        code, facts = doctor("--catalog", url, "--volatile")
        assert code == 1 and [symptom["advice"] for symptom in facts["symptoms"]] == [
            "set the wrong one of both clocks right"
        ]


@pytest.mark.local_only
@pytest.mark.rule("1.62", "1.64")
def test_a_store_that_leads_is_told_and_catches_up(
    machine: Machine, tmp_path: Path, doctor: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        with el.open(tmp_path / "s", clock=Machine(machine.world, "other", DAY_MS)) as other:
            other.table("t").upsert([{"id": 1}])
        machine.world.now_ms += HOUR_MS
        code, facts = doctor()
        assert code == 1 and facts["leads_ms"] == 23 * HOUR_MS
        assert "leads the clock by 23 h" in facts["symptoms"][0]["what"]
        assert "set the clock of every machine right" in facts["symptoms"][0]["advice"]
        table.upsert([{"id": 2}])
        assert main(["status", str(tmp_path / "s")]) == 0
        assert "which leads the clock by 23 h" in " ".join(capsys.readouterr().out.split())
        machine.world.now_ms += DAY_MS
        table.upsert([{"id": 3}])
        assert doctor()[0] == 0
