"""Real worker processes: killed, frozen and replaced; and the example with four of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

import epochlog as el
from control_fixture import SCHEMA, TOKEN, attach, ids, open_worker, rows, served, settings
from epochlog.checkpoint import JobSettings
from epochlog.store.env.clock import SystemClock
from ports import free_port
from wait_until import WAIT_LIMIT_S, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.local_only]
EXAMPLE = ROOT / "examples" / "parallel_load.py"


def run(arguments: Sequence[str]) -> subprocess.Popen[str]:
    paths = [str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, text=True, env=environment)


def loader(store: el.Store, server: el.StoreServer, index: int, of: int) -> subprocess.Popen[str]:
    child = run([str(HERE / "loader.py"), store.root, server.location, str(index), str(of)])
    assert child.stdout is not None and child.stdout.readline() == "attached\n"
    return child


def tell(child: subprocess.Popen[str], number: int) -> str:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{number}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def end(*children: subprocess.Popen[str]) -> None:
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.rule("5.31")
def test_a_frozen_worker_is_replaced_and_has_no_effect_when_it_goes_on(tmp_path: Path) -> None:
    with served(tmp_path, settings(timeout_ms=1_500)) as (store, server):
        frozen = loader(store, server, 0, 1)
        wait_until(lambda: tell(frozen, 1) == "polled" and ids(store) == [1])
        assert tell(frozen, 2) == "polled"  # reported perhaps, and perhaps not
        frozen.send_signal(signal.SIGSTOP)
        with open_worker(server, store) as worker:
            part = attach(worker)
            before = ids(store)
            assert before in ([1], [1, 2]) and part.state in (b"1", b"2")
            frozen.send_signal(signal.SIGCONT)
            wait_until(lambda: tell(frozen, 99) == "Fenced", part)
            part.writer("clicks").upsert(rows(3))
            part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [*before, 3]
        end(frozen)


def test_what_a_killed_worker_left_is_garbage(tmp_path: Path) -> None:
    """Its sealed segments that no commit took go with vacuum, once its lease has run out."""
    machine, ahead_ms = SystemClock(), [0]
    with el.open(tmp_path / "store", durability="os", clock=lambda: machine() + ahead_ms[0]) as store:
        store.create_table("clicks", SCHEMA, ["id"])
        times = el.CoordinatorSettings(50, 30_000, JobSettings(interval_ms=None))
        with el.serve(store, token=TOKEN, control=times) as server, open_worker(server, store) as worker:
            killed, part = loader(store, server, 0, 2), attach(worker, 1, 2)
            assert tell(killed, 1) == "polled"
            server.coordinator.checkpoint("load", "ld")  # waits for the other part
            wait_until(lambda: tell(killed, 2) == "polled" and len(list((tmp_path / "store").rglob("*.arrow"))) == 1)
            end(killed)
            again = attach(worker, 0, 2)
            again.writer("clicks").upsert(rows(3))
            wait_until(lambda: 3 in ids(store), again, part)
            assert ids(store) == [3]
            ahead_ms[0] = 3_600_000
            store.vacuum(grace=timedelta(0))
            store.vacuum(grace=timedelta(0))
            assert len(list((tmp_path / "store").rglob("*.arrow"))) == 1 and ids(store) == [3]


def test_the_example_runs_as_printed() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "40000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "each row is in the table exactly once" in done.stdout and "was killed when" in done.stdout


def serving(store: el.Store, folder: Path, bind: str) -> tuple[subprocess.Popen[str], str]:
    (folder / "token").touch(0o600)
    (folder / "token").write_text(TOKEN)
    options = ["--bind", bind, "--token-file", str(folder / "token"), "--json"]
    child = run(["-m", "epochlog", "serve", store.root, *options])
    assert child.stdout is not None
    return child, json.loads(child.stdout.readline())["location"]


def test_a_coordinator_that_is_killed_and_comes_back_on_its_port(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        store.create_table("clicks", SCHEMA, ["id"])
        killed, location = serving(store, tmp_path, f"127.0.0.1:{free_port()}")
        with open_worker(location, store) as worker:
            part = attach(worker)
            part.writer("clicks").upsert(rows(1))
            part.poll(state=b"1")
            wait_until(lambda: part.epoch, part)
            end(killed)
            part.writer("clicks").upsert(rows(2))
            part.poll(state=b"2")
            again, _ = serving(store, tmp_path, location.removeprefix("grpc://"))
            with pytest.raises(el.RolledBack):
                wait_until(lambda: False, part)
            assert part.state == b"1"
            part.writer("clicks").upsert(rows(3))
            part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 3]
        end(again)


def test_epochlog_serve(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        store.create_table("clicks", SCHEMA, ["id"])
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(TOKEN + "\n")
        command = ["-m", "epochlog", "serve", store.root, "--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--json"]
        child = run([*command, "--token-file", str(tmp_path / "token")])
        assert child.stdout is not None
        locations = json.loads(child.stdout.readline())
        with open_worker(locations["location"], store) as worker:
            part = attach(worker)
            part.writer("clicks").upsert(rows(1))
            part.finish(timeout=WAIT_LIMIT_S)
            page = urllib.request.urlopen(locations["metrics"]).read().decode()
        assert 'epochlog_job_commits_total{job_name="load:ld"} 1' in page and "epochlog_workers_connected 1" in page
        assert 'epochlog_table_committed_epoch{table="clicks"}' in page and TOKEN not in page
        child.send_signal(signal.SIGTERM)
        child.communicate()
        assert child.returncode == 0
        assert ids(store) == [1]
