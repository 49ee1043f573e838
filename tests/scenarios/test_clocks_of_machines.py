"""A week of three machines on one store: one's clock goes a day ahead, one's a day back; on Redis the server's too.
Machines that have never committed join while it is wrong, as new pods do, and maintain the store.
"""

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
from redis_time import KEY, served_time
from stores import servers
from virtual_machines import DAY_MS, HOUR_MS, Machine, TrueTime

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
OUT = pa.schema([("id", pa.int64())])
KEEP_MS = 2 * DAY_MS
TESTS = Path(__file__).parents[1]


class Host:
    """A machine and its process."""

    def __init__(self, machine: Machine, root: Path, catalog: str, plant: str = "") -> None:
        self.machine = machine
        paths = os.pathsep.join([str(TESTS / "support"), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("clock_machine.py")), str(root), catalog, plant],
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


class Week:
    """The machines of one store, the rows that they put, and the check of each hour."""

    def __init__(self, root: Path, kind: str, plant: str = "") -> None:
        self.world, self.local = TrueTime(), kind == "lmdb"
        self.served = Machine(self.world, "server")
        self.catalog = "" if self.local else servers.redis.url()
        self.tell_server()
        keep = timedelta(milliseconds=KEEP_MS)
        options = el.TableOptions(history_retention=keep, log_retention=keep, ttl=keep, ttl_column="at")
        maker = Machine(self.world, "maker")
        with served_time(), el.open(root, self.catalog or None, volatile=not self.local, clock=maker) as store:
            store.create_table("t", SCHEMA, ["id"], options=options)
            store.create_job("j", ["t"], {"out": (OUT, ["id"])})
        errors = (0, DAY_MS, -DAY_MS) if self.local else (0, 0, 0)
        machines = [Machine(self.world, f"m{number}", error) for number, error in enumerate(errors)]
        self.hosts = [Host(machine, root, self.catalog) for machine in machines]
        self.pod = Host(Machine(self.world, "pod"), root, self.catalog, plant)
        self.pods = 0
        self.jumping = machines[0] if self.local else self.served
        self.newest, self.refusals = 0, 0
        self.born: dict[int, int] = {}
        self.epochs: list[tuple[int, int]] = []

    def tell_server(self) -> None:
        if not self.local:
            with servers.redis.client() as connection:
                connection.set(KEY, self.served())

    def pass_hour(self) -> None:
        """Let an hour pass; every process renews its leases."""
        self.world.now_ms += HOUR_MS
        self.tell_server()
        for host in self.hosts:
            host.ask("nothing")

    def jump(self, ms: int, *, joins: bool = False) -> None:
        """Let the clock jump. A new machine joins before any other has seen it; snapshots of the others are held."""
        held = self.hosts[2].ask("hold")
        self.jumping.jump(ms)
        self.tell_server()
        if joins:
            self.join()
        assert ms < 0 or self.hosts[2].ask("held") == held, "a lease of a live process was ended"
        for host in self.hosts:
            host.ask("nothing")

    def join(self) -> None:
        """Let a machine join that has never committed, and maintain the store."""
        self.pods += 1
        self.pod.ask("leave")
        self.pod.machine = Machine(self.world, f"pod{self.pods}")
        self.keep_up(self.pod)
        self.pod.ask("leave")

    def end(self) -> None:
        for host in (*self.hosts, self.pod):
            host.end()

    def put(self, host: Host, key: int, *, jumped: bool) -> None:
        answer = host.ask("put", key, self.world.now_ms)
        if refused(answer):
            assert jumped and (not self.local or host is self.hosts[0]), answer
            self.refusals += 1
            return
        assert isinstance(answer, int) and answer > self.newest, answer
        self.newest, self.born[key] = answer, self.world.now_ms
        self.epochs.append((self.world.now_ms, answer))

    def keep_up(self, host: Host) -> None:
        """Maintain the store from one machine; nothing has been deleted early."""
        answer = host.ask("upkeep")
        assert answer is None or refused(answer), answer
        rows = set(self.hosts[2].ask("rows"))
        early = {key for key, at_ms in self.born.items() if at_ms > self.world.now_ms - KEEP_MS} - rows
        assert not early, f"{early} have expired early"

    def look_back(self, rng: random.Random) -> None:
        """Run the job, and read epochs that no clock allows to delete."""
        answer = self.hosts[2].ask("step")
        assert answer is None or isinstance(answer, int), answer
        for at_ms, epoch in rng.sample(self.epochs, 3):
            if at_ms > self.world.now_ms - KEEP_MS:
                assert isinstance(self.hosts[0].ask("rows", epoch), list), "history was deleted early"

    def recover(self) -> None:
        """Do what the doctor says: set the clocks right."""
        if self.local:
            assert any("leads" in symptom["what"] for symptom in self.hosts[1].doctor()[1]["symptoms"])
            for host in self.hosts:
                host.machine.error_ms = 0
        for _ in range(30):
            self.pass_hour()
            for number, host in enumerate(self.hosts):
                self.put(host, -1 - number, jumped=False)
        for host in self.hosts:
            code, facts = host.doctor()
            assert code == 0, facts
        self.keep_up(self.hosts[0])
        late = {key for key, at_ms in self.born.items() if at_ms < self.world.now_ms - KEEP_MS - HOUR_MS}
        assert not late & set(self.hosts[0].ask("rows")), "the ttl has caught up"


JUMPS = {50: 3 * DAY_MS, 53: -3 * DAY_MS, 100: 3 * DAY_MS, 103: -3 * DAY_MS}
"""Hours at which the clock jumps, and comes right again."""
JUMPS_BEFORE_NEW_MACHINES = {110: 3 * DAY_MS, 113: -3 * DAY_MS, 130: -DAY_MS, 133: DAY_MS}
"""Those that a machine meets that has never committed. Its first commit is taken, so the store leads after them."""


def live(week: Week, rng: random.Random, hours: range) -> None:
    hosts = week.hosts
    for hour in hours:
        week.pass_hour()
        if hour in JUMPS:
            week.jump(JUMPS[hour])
        if hour in JUMPS_BEFORE_NEW_MACHINES:
            week.jump(JUMPS_BEFORE_NEW_MACHINES[hour], joins=True)
        if hour in (52, 102):
            code, facts = hosts[0].doctor()
            assert code == 1 and any("jumped 3 d" in symptom["what"] for symptom in facts["symptoms"]), facts
        jumped = hour in (50, 51, 52, 100, 101, 102, 110, 111, 112)
        for number, host in enumerate(hosts):
            if hour % 6 == 0 or hour % 3 == number:
                week.put(host, 1000 * hour + number, jumped=jumped)
        if hour % 4 == 0:
            week.keep_up(rng.choice(hosts))
        if hour in (51, 111, 131, 140) and (week.local or hour > 51):
            week.join()
        if hour % 24 == 23:
            week.look_back(rng)


@pytest.mark.rule("1.60", "1.61", "1.62", "1.65", "1.66")
@pytest.mark.local_only
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_a_week_of_wrong_clocks(tmp_path: Path, kind: str) -> None:
    """Machine 1 boots a day ahead, machine 2 a day back; machine 0's clock, or the server's, jumps ahead in between."""
    week = Week(tmp_path / "s", kind)
    try:
        live(week, random.Random(7), range(7 * 24))
        assert week.refusals and week.pods > 6
        week.recover()
    finally:
        week.end()


@pytest.mark.local_only
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.planted
def test_a_machine_that_deletes_by_the_clock_of_the_server_alone_is_found(tmp_path: Path) -> None:
    """A new pod deleted live rows while Redis's clock was ahead: it had no commit by which to know that it was."""
    week = Week(tmp_path / "s", "redis", "foreign")
    try:
        with pytest.raises(AssertionError, match="have expired early|was ended|history was deleted early"):
            live(week, random.Random(7), range(96, 114))
    finally:
        week.end()
