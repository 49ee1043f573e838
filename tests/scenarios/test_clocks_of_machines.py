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

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def error_of(answer: Any) -> str | None:
    return answer["error"] if isinstance(answer, dict) else None


def refused(answer: Any) -> bool:
    return error_of(answer) == "ClockSkew"


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
        tagger = plant if plant == "short" else ""
        self.hosts = [
            Host(machine, root, self.catalog, "" if number else tagger) for number, machine in enumerate(machines)
        ]
        self.pod = Host(Machine(self.world, "pod"), root, self.catalog, plant)
        self.pods = 0
        self.jumping = machines[0] if self.local else self.served
        self.newest, self.refusals = 0, 0
        self.born: dict[int, int] = {}
        self.epochs: list[tuple[int, int]] = []
        self.tags: dict[str, tuple[int, list[int]]] = {}
        """True time until which each tag must last, and the rows that it keeps."""

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
        self.look_at_tags()

    def tag(self, hour: int) -> None:
        """Tag the rows for a day, by the machine whose clock jumps."""
        rows = self.hosts[0].ask("tag", f"h{hour}", DAY_MS)
        self.tags[f"h{hour}"] = self.world.now_ms + DAY_MS, rows

    def look_at_tags(self) -> None:
        """Each tag lives for its time, and keeps its rows."""
        answer = self.hosts[2].ask("tags")
        assert error_of(answer) is None, answer
        kept = dict(answer)
        for name, (until_ms, rows) in self.tags.items():
            assert until_ms <= self.world.now_ms or kept.get(name) == rows, f"the tag {name} ended early"

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
TAGGED = (20, 51, 60, 101, 111, 120, 131, 132, 140)
"""Hours at which a tag is made: while a clock is ahead, behind and right."""
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
        if hour in TAGGED:
            week.tag(hour)
        if hour % 4 == 0:
            week.keep_up(rng.choice(hosts))
        if hour in (51, 111, 131, 140) and (week.local or hour > 51):
            week.join()
        if hour % 24 == 23:
            week.look_back(rng)


@pytest.mark.rule("1.60", "1.61", "1.62", "1.65", "1.66", "1.68")
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


@pytest.mark.local_only
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_a_tag_that_counts_from_the_wall_clock_is_found(tmp_path: Path, kind: str) -> None:
    """A tag that was made while the clock was a day back ended when the clock came right."""
    week = Week(tmp_path / "s", kind, "short")
    try:
        with pytest.raises(AssertionError, match="ended early"):
            live(week, random.Random(7), range(120, 141))
    finally:
        week.end()


class SetBack:
    """Processes of one store over a jump of its clock back: one that lives, one that is killed, and one that looks at
    their leases. On LMDB they share the machine whose clock jumps; on Redis its server's does.
    """

    def __init__(self, root: Path, kind: str, plant: str = "") -> None:
        self.world, self.local = TrueTime(), kind == "lmdb"
        self.jumping = Machine(self.world, "server")
        self.catalog = "" if self.local else servers.redis.url()
        self.tell_server()
        none = timedelta(0)
        options = el.TableOptions(history_retention=none, log_retention=none)
        with served_time(), el.open(root, self.catalog or None, volatile=not self.local, clock=self.jumping) as store:
            store.create_table("t", SCHEMA, ["id"], options=options)
            for name in ("j", "k", "m"):
                store.create_job(name, ["t"], {f"{name}_out": (OUT, ["id"])})
        self.live, self.dead, self.new, self.other = (
            Host(
                self.jumping if self.local and name != "dead" else Machine(self.world, name),
                root,
                self.catalog,
                plant if name == "other" else "",
            )
            for name in ("live", "dead", "new", "other")
        )
        self.keys = 0

    def tell_server(self) -> None:
        if not self.local:
            with servers.redis.client() as connection:
                connection.set(KEY, self.jumping())

    def pass_time(self, ms: int) -> None:
        """Let time pass; the live process renews its leases."""
        self.world.now_ms += ms
        self.tell_server()
        self.live.ask("nothing")

    def jump(self, ms: int) -> None:
        """Let the clock jump, before any process has seen it."""
        self.jumping.jump(ms)
        self.tell_server()

    def put(self) -> None:
        self.keys += 1
        assert isinstance(self.other.ask("put", self.keys, self.world.now_ms), int)

    def look(self, held: object) -> None:
        """Maintain the store and try to take the live process's job: none of its leases is ended."""
        assert self.other.ask("upkeep") is None
        assert error_of(self.other.ask("step", "j")) == "JobRunning", "the runner of a live process was fenced"
        assert self.live.ask("running") is True
        assert self.live.ask("held") == held, "a hold of a live process was ended"

    def be_back(self, held: object, back_ms: int) -> None:
        """Let the clock jump back, without a commit until it is right again."""
        self.jump(-back_ms)
        self.look(held)
        self.come_right(held, back_ms)

    def come_right(self, held: object, back_ms: int) -> None:
        for _ in range(3):
            self.pass_time(HOUR_MS)
            self.look(held)
        self.jump(back_ms)
        self.look(held)
        for _ in range(3):
            self.pass_time(60_000)
            self.look(held)

    def end(self) -> None:
        for host in (self.live, self.other, self.new):
            host.end()
        self.dead.kill()


def set_back(leases: SetBack, back_ms: int) -> None:
    """Let the clock jump back and come right again after three hours, of an idle store and of one with commits."""
    try:
        for _ in range(3):
            leases.put()
            leases.pass_time(60_000)
        held = leases.live.ask("hold")
        assert leases.live.ask("run", "j") is None
        leases.be_back(held, back_ms)
        for job in ("k", "m"):
            assert leases.dead.ask("run", job) is None
        leases.dead.kill()
        leases.jump(-back_ms)
        leases.look(held)
        assert error_of(leases.other.ask("step", "k")) == "JobRunning", "nobody knows yet that it is dead"
        code, facts = leases.new.doctor()
        symptoms = [symptom for symptom in facts["symptoms"] if "'m'" in symptom["what"]]
        assert code == 1 and symptoms and "take_over" in symptoms[0]["advice"], facts
        assert error_of(leases.new.ask("take over", "m")) is None, "the advice of the doctor helps"
        for _ in range(3):
            leases.pass_time(4_000)
            leases.look(held)
            leases.other.ask("step", "k")
        assert error_of(leases.other.ask("step", "k")) is None, "a dead runner holds its job"
        leases.come_right(held, back_ms)
        leases.live.kill()
        answer = None
        for _ in range(4):
            leases.world.now_ms += 4_000
            leases.tell_server()
            answer = leases.other.ask("step", "j")
        assert error_of(answer) is None, answer
    finally:
        leases.end()


@pytest.mark.rule("1.67", "5.3")
@pytest.mark.local_only
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("back_ms", [HOUR_MS, DAY_MS], ids=["hour", "day"])
@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_leases_over_a_clock_that_is_set_back(tmp_path: Path, kind: str, back_ms: int) -> None:
    """A live process keeps its leases, also when the clock comes right again. A dead one loses its job."""
    set_back(SetBack(tmp_path / "s", kind), back_ms)


@pytest.mark.local_only
@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "message"),
    [("unwatched", "a dead runner holds its job"), ("forgetful", "of a live process was")],
    ids=["unwatched", "forgetful"],
)
def test_a_lease_that_goes_by_the_wall_clock_alone_is_found(tmp_path: Path, plant: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        set_back(SetBack(tmp_path / "s", "lmdb", plant), DAY_MS)
