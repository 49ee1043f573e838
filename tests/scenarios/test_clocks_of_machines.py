"""A week of three machines on one store: one's clock goes a day ahead, one's a day back; on Redis the server's too."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from redis_server import RedisProcess
from redis_time import KEY, served_time
from virtual_machines import DAY_MS, HOUR_MS, Machine, World

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
OUT = pa.schema([("id", pa.int64())])
KEEP_MS = 2 * DAY_MS
TESTS = Path(__file__).parents[1]


class Host:
    """A machine and its process."""

    def __init__(self, machine: Machine, root: Path, catalog: str) -> None:
        self.machine = machine
        paths = os.pathsep.join([str(TESTS / "support"), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("clock_machine.py")), str(root), catalog],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip

    def _send(self, *command: Any) -> tuple[Any, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line.startswith("="):
                return json.loads(line[1:]), printed
            printed += line
        raise AssertionError("the process has ended")

    def ask(self, *command: Any) -> Any:
        boot = self.machine.boot_time()
        self._send("time", self.machine(), boot.boot, boot.ms)
        return self._send(*command)[0]

    def doctor(self, *options: str) -> tuple[int, Any]:
        boot = self.machine.boot_time()
        self._send("time", self.machine(), boot.boot, boot.ms)
        code, printed = self._send("doctor", *options)
        return code, json.loads(printed)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def refused(answer: Any) -> bool:
    return isinstance(answer, dict) and answer["error"] == "ClockSkew"


@pytest.mark.rule("1.60", "1.61", "1.62", "1.65", "1.66")
@pytest.mark.local_only
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_a_week_of_wrong_clocks(tmp_path: Path, kind: str) -> None:
    """Machine 1 boots a day ahead, machine 2 a day back; machine 0's clock, or the server's, jumps ahead in between."""
    world, root = World(), tmp_path / "s"
    server = RedisProcess(tmp_path) if kind == "redis" else None
    catalog = "" if server is None else server.url()
    served = Machine(world, "server")

    def tell_server() -> None:
        if server is not None:
            with server.client() as connection:
                connection.set(KEY, served())

    tell_server()
    options = el.TableOptions(
        history_retention=timedelta(days=2), log_retention=timedelta(days=2), ttl=timedelta(days=2), ttl_column="at"
    )
    with served_time(), el.open(root, catalog or None, volatile=bool(catalog), clock=world_clock(world)) as store:
        store.create_table("t", SCHEMA, ["id"], options=options)
        store.create_job("j", ["t"], {"out": (OUT, ["id"])})
    local = kind == "lmdb"
    hosts = [
        Host(Machine(world, f"m{n}", error if local else 0), root, catalog)
        for n, error in enumerate((0, DAY_MS, -DAY_MS))
    ]
    jumping = hosts[0].machine if local else served
    rng, newest, born, epochs, refusals = random.Random(7), 0, dict[int, int](), list[tuple[int, int]](), 0
    try:
        for hour in range(7 * 24):
            world.now_ms += HOUR_MS
            if hour in (50, 100):
                jumping.jump(DAY_MS)
            tell_server()
            if hour in (53, 103):
                code, facts = hosts[0].doctor()
                assert code == 1 and any("jumped 1 d" in symptom["what"] for symptom in facts["symptoms"]), facts
                jumping.jump(-DAY_MS)
                tell_server()
            for host in hosts if hour % 6 == 0 else [hosts[hour % 3]]:
                key = 1000 * hour + hosts.index(host)
                answer = host.ask("put", key, world.now_ms)
                jumped = hour in range(50, 53) or hour in range(100, 103)
                if refused(answer):
                    refusals += 1
                    assert jumped and (not local or host is hosts[0]), answer
                    continue
                assert isinstance(answer, int) and answer > newest, (hour, answer)
                newest, born[key] = answer, world.now_ms
                epochs.append((world.now_ms, answer))
            host = rng.choice(hosts)
            if hour % 4 == 0:
                answer = host.ask("upkeep")
                assert answer is None or refused(answer), answer
                rows = set(hosts[2].ask("rows"))
                for key, at_ms in born.items():
                    assert key in rows or at_ms <= world.now_ms - KEEP_MS, f"hour {hour}: {key} has expired early"
            if hour % 24 == 23:
                answer = hosts[2].ask("step")
                assert answer is None or isinstance(answer, int), answer
                for at_ms, epoch in rng.sample(epochs, min(3, len(epochs))):
                    if at_ms > world.now_ms - KEEP_MS:
                        assert isinstance(hosts[0].ask("rows", epoch), list), "history was deleted early"
        assert refusals
        if local:  # what the doctor says: set the clocks right
            assert any("leads" in symptom["what"] for symptom in hosts[1].doctor()[1]["symptoms"])
            for host in hosts:
                host.machine.error_ms = 0
        for _ in range(30):
            world.now_ms += HOUR_MS
            tell_server()
            for host in hosts:
                host.ask("put", 1, world.now_ms)
        for host in hosts:
            assert host.doctor()[0] == 0, host.doctor()
        hosts[0].ask("upkeep")
        rows = set(hosts[0].ask("rows"))
        assert not {key for key, at_ms in born.items() if at_ms < world.now_ms - KEEP_MS - HOUR_MS} & rows
    finally:
        for host in hosts:
            host.end()
        if server is not None:
            server.stop()


def world_clock(world: World) -> Machine:
    """A clock that is right."""
    return Machine(world, "maker")
