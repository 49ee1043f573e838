"""Subscribers and servers in processes of their own, killed at any moment."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog as el
from ports import fixed_location
from subscription_fixture import SCHEMA, TOKEN, Replica, rows
from wait_until import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.local_only]

SERVER = """
import sys, epochlog as el
from epochlog.store.changelog import log_reader
log_reader.SLICE_ROWS = 50
with el.open(sys.argv[1]) as store, el.serve(store, sys.argv[2], token="the-token"):
    print("up", flush=True)
    sys.stdin.read()
"""
SUBSCRIBER = """
import json, os, sys, epochlog as el
location, name, through = sys.argv[1], sys.argv[2], int(sys.argv[3])
with el.connect(location, token="the-token") as client, client.subscribe("t", consumer="dash") as sub:
    began = sub.epoch
    state = {} if began is None else {int(k): v for k, v in json.load(open(name))["state"].items()}
    log = open(name + ".log", "a")
    print(json.dumps(["began", began]), file=log, flush=True)
    while sub.epoch is None or sub.epoch < through:
        batch = sub.poll(1)
        if batch is None:
            continue
        for row in batch.to_pylist():
            kind, epoch = row["_change_type"], row["_commit_version"]
            print(json.dumps(["given", epoch, row["id"]]), file=log)
            if kind == "delete":
                state.pop(row["id"], None)
            else:
                state[row["id"]] = row["v"]
        log.flush()
        if sub.epoch == epoch:
            with open(name + ".new", "w") as f:
                json.dump({"state": state, "epoch": epoch}, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(name + ".new", name)
            sub.ack(epoch)
            print(json.dumps(["acked", epoch]), file=log, flush=True)
    print("done", flush=True)
"""


class ChildProcess:
    def __init__(self, program: str, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, word: str) -> None:
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == f"{word}\n"

    def lives_until(self, log: Path, lines: int) -> None:
        """Killed when it has written so many lines more, or has ended."""
        before = _count(log)
        wait_until(lambda: _count(log) > before + lines or self.child.poll() is not None)
        self.kill()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        for end in (self.child.stdin, self.child.stdout):
            assert end is not None
            end.close()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tuple[el.Table, str]]:
    location = fixed_location()
    with el.open(tmp_path / "store") as store:
        yield store.create_table("t", SCHEMA, ["id"]), location


def serve(tmp_path: Path, location: str) -> ChildProcess:
    server = ChildProcess(SERVER, str(tmp_path / "store"), location)
    server.says("up")
    return server


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_subscriber_killed_at_any_moment_ends_with_the_table(
    tmp_path: Path, lake: tuple[el.Table, str], seed: int
) -> None:
    """Acknowledged rows never come again, no row is missing, and batches that were taken in part come again whole."""
    print("seed", seed)
    chance = random.Random(seed)
    table, location = lake
    server = serve(tmp_path, location)
    table.upsert(rows(*range(2_000)))
    name, log, last = str(tmp_path / "state"), tmp_path / "state.log", 0
    for round_ in range(3):
        for step in range(5):
            keys = chance.sample(range(3_000), 200)
            last = table.upsert(rows(*keys, v=step + 10 * round_))
            last = table.delete(rows(*chance.sample(range(3_000), 50)).select(["id"]))
        victim = ChildProcess(SUBSCRIBER, location, name, str(last))
        victim.lives_until(log, chance.randrange(0, 4_000))
    final = ChildProcess(SUBSCRIBER, location, name, str(last))
    final.says("done")
    final.kill()
    server.kill()
    subscriber_state = {int(key): v for key, v in json.loads(Path(name).read_text())["state"].items()}
    state = table.to_arrow()
    assert subscriber_state == dict(zip(state["id"].to_pylist(), state["v"].to_pylist(), strict=True))
    _nothing_acknowledged_comes_again(log)


def _count(log: Path) -> int:
    return log.read_text().count("\n") if log.exists() else 0


def _nothing_acknowledged_comes_again(log: Path) -> None:
    acked, given, begins = 0, set(), 0
    for line in log.read_text().splitlines():
        try:
            kind, *values = json.loads(line)
        except ValueError:
            continue  # the last words of a victim
        if kind == "began":
            given.clear()
            begins += 1
            assert values[0] is not None or acked == 0
        elif kind == "acked":
            acked = values[0]
        else:
            assert values[0] > acked, "what was acknowledged came again"
            assert tuple(values) not in given, "a change came twice"
            given.add(tuple(values))
    assert begins >= 2


def test_a_server_killed_and_started_again_is_found_again(tmp_path: Path, lake: tuple[el.Table, str]) -> None:
    """At any moment: within the rows, within an epoch, while nothing happens. No gap and no repeat."""
    table, location = lake
    table.upsert(rows(*range(4_000)))
    server = serve(tmp_path, location)
    replica, last = Replica(), 0
    with el.connect(location, token=TOKEN) as client, client.subscribe("t") as sub:
        for step in range(4):
            for _ in range(step * 9):
                batch = sub.poll(0.02)
                if batch is not None:
                    replica.apply(batch)
            server.kill()
            last = table.upsert(rows(*range(step, 4_000, 5), v=step))
            server = serve(tmp_path, location)
            if step % 2:
                replica.follow(sub, last)
        assert replica.follow(sub, last).same_as(table)
    server.kill()


def test_a_subscriber_that_stands_still_and_goes_on_misses_nothing(tmp_path: Path, lake: tuple[el.Table, str]) -> None:
    table, location = lake
    table.upsert(rows(*range(500)))
    server = serve(tmp_path, location)
    name = str(tmp_path / "state")
    child = ChildProcess(SUBSCRIBER, location, name, str(table.upsert(rows(1, v=9)) + (1 << 40)))
    wait_until(lambda: Path(name).exists())
    child.child.send_signal(signal.SIGSTOP)
    table.upsert(rows(*range(300), v=4))
    server.kill()
    server = serve(tmp_path, location)
    last = table.upsert(rows(*range(100), v=5))
    child.child.send_signal(signal.SIGCONT)
    wait_until(lambda: json.loads(Path(name).read_text())["epoch"] >= last)
    subscriber_state = {int(key): v for key, v in json.loads(Path(name).read_text())["state"].items()}
    child.kill()
    server.kill()
    state = table.to_arrow()
    assert subscriber_state == dict(zip(state["id"].to_pylist(), state["v"].to_pylist(), strict=True))
