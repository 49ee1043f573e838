"""Three views over two Spark drivers, whose processes are killed at random: nothing is lost, nothing counts twice.

    python examples/chaos.py --minutes 10

A writer commits payments, several times a second, and writes down each commit that the store has acknowledged. Three
views in SQL follow them: the large payments, the balances of accounts, and the join of both. Two drivers, each with
executors of its own (Spark's local-cluster), keep the views under a coordinator. The catalog is in Redis, the files are
on S3: this process starts both servers, on loopback. Spark runs with dynamic allocation. A driver whose process has an
odd number leaves all steps to Spark; the others run small ones themselves, by DuckDB, and need no executor for them.

Speculation is turned on too, but does not happen: Spark starts a second attempt on another host alone, and all
executors are on this one (`tests/spark/test_sink_deaths.py` has two attempts of a task). The steps are short, so many
kills of executors and Python workers meet no running task: the line of Spark at the end counts the tasks that failed,
and the last line the epochs that were judged, fewer than the moments if no view has committed between two of them.

Once the views have rows, SIGKILL ends drivers, JVMs of drivers, executors, Python workers and the coordinator. A round
kills one of each kind, in random order and at random times. The next round begins when all views have taken in what was
committed before the last kill. A driver or a coordinator that has ended is started again; all else is up to Spark.
Again and again the newest epoch at which all three views are valid is tagged, and each view is compared with DuckDB's
answer over the payments of that epoch, and over those of the writer's ledger. At the end the views take in everything,
and all tags are read and compared once more.

The first line comes at once, the next when the views have rows, a minute later on a slow machine. It runs on the Spark
of its interpreter: for the oldest one `scripts/setup_spark.sh 4.0` makes .venv-spark/4.0/bin/python.

    --minutes 10    time after which the killing ends, but not before each kind of process was killed
    --seed 7        seed of the kills and of the payments; printed. When exactly a process dies is left to chance
    --folder DIR    keep the logs of all processes, the ledger and Spark's event logs there
    --json FILE     write what was counted

Ctrl-C ends it at any time, with all processes. Needs the packages of the tests, a redis-server, and Java for Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_judge import PAYMENTS, TABLES, VIEWS, Writer, judge, read_ledger
from chaos_processes import COORDINATOR, DRIVER, KINDS, Service, processes, victims

import epochlog as el
from epochlog.spark import local_steps

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from ports import free_port
from redis_server import RedisProcess
from s3_server import S3Server

CREWS = (("large", "shares"), ("balances",))
"""Views of each driver."""
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": 2,
    "spark.speculation": True,
    "spark.dynamicAllocation.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.timeout": "3s",
    "spark.dynamicAllocation.minExecutors": 1,
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.eventLog.enabled": True,
    "spark.eventLog.compress": False,
    "spark.eventLog.rolling.enabled": False,
}
"""Settings of both sessions. local-cluster honours dynamic allocation: idle executors end, and come back with the work.
Speculation is on, but starts no second attempt: Spark starts it on another host, and these executors are all on one.
"""
COMMIT_EVERY_S = 0.3
LONGEST_PAUSE_S = 15.0
"""Longest time between two kills of a round."""
COORDINATOR_AWAY_S = 3.0
"""Time without a coordinator, in which drivers run their jobs alone."""
MOMENTS = 20
PATIENCE_S = 600.0
"""Time in which the views must have taken in everything after the last kill."""


def drive(root: str, location: str, events: str, names: list[str]) -> None:
    """Keep views under the coordinator at `location`; return when none of them can be kept here any more."""
    if os.getpid() % 2:
        local_steps.BUDGET_ROWS = 0
    settings = {**SETTINGS, "spark.eventLog.dir": events}
    spark = el.spark("chaos", master="local-cluster[2,1,1024]", **settings)
    with el.open(root, os.environ["EPOCHLOG_CATALOG"], create=False) as store:
        worker = el.Worker(location, store, token=os.environ["CHAOS_TOKEN"])
        pipe = el.Pipeline(store, spark, coordinator=worker)
        for name in names:
            pipe.add(store.view(name))
        pipe.run()
        print(*pipe.status(), sep="\n", file=sys.stderr, flush=True)
        os._exit(1)  # at once: without its JVM, Spark cannot be stopped


def write(root: str, ledger: str, seed: str) -> None:
    """Commit payments until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with el.open(root, os.environ["EPOCHLOG_CATALOG"], create=False) as store:
        writer = Writer(store, Path(ledger), int(seed))
        while not ended.wait(COMMIT_EVERY_S):
            writer.commit()


@dataclass
class Kill:
    """Kill of one process."""

    kind: str
    at_s: float
    epoch: int
    """Newest commit of payments at that time."""
    recovered_s: float | None = None
    """Time until all views had taken that commit in; None before."""


class ChaosRun:
    """Run of the writer, the drivers and the coordinator, of which processes are killed."""

    def __init__(self, store: el.Store, folder: Path, seed: int) -> None:
        self._store, self._folder, self._chance = store, folder, random.Random(seed)
        self._ledger = folder / "ledger"
        self._began_s, self._pause = time.monotonic(), threading.Event()
        self.kills: list[Kill] = []
        self.tags: list[el.Tag] = []
        self.wrong: dict[str, Any] = {}
        (events := folder / "events").mkdir()
        (token := folder / "token").write_text(secrets.token_urlsafe(32))
        token.chmod(0o600)
        address = f"127.0.0.1:{free_port()}"
        environment = {"CHAOS_TOKEN": token.read_text(), "SPARK_LOCAL_IP": "127.0.0.1"}
        serve = [sys.executable, "-m", "epochlog", "serve", store.root, "--bind", address, "--token-file", str(token)]
        self.services = [Service(COORDINATOR, serve, {}, folder / "coordinator.log", away_s=COORDINATOR_AWAY_S)]
        for names in CREWS:
            command = [sys.executable, __file__, "drive", store.root, f"grpc://{address}", events.as_uri(), *names]
            self.services.append(Service(DRIVER, command, environment, folder / f"driver-{names[0]}.log"))
        self._writer = subprocess.Popen(
            [sys.executable, __file__, "write", store.root, str(self._ledger), str(seed)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, minutes: float) -> None:
        """Kill for some minutes, and until each kind was killed; then let the views take in everything and judge."""
        deck: list[str] = []
        kill_s = moment_s = 0.0
        while self._passed_s() < 60 * minutes or len({kill.kind for kill in self.kills}) < len(KINDS):
            if self._passed_s() >= moment_s and self._tag():
                moment_s = self._passed_s() + max(60 * minutes / MOMENTS, 5.0)
            if self.tags and not deck and all(kill.recovered_s is not None for kill in self.kills):
                deck = self._chance.sample(KINDS, len(KINDS))
            if deck and self._passed_s() >= kill_s and self._kill(deck[-1]):
                deck.pop()
                kill_s = self._passed_s() + self._chance.uniform(0, LONGEST_PAUSE_S)
            self._look()
        self._writer.communicate()  # its standard input ends
        self._store.checkpoint()
        newest, deadline_s = self._newest(), self._passed_s() + PATIENCE_S
        while self._look() < newest and self._passed_s() < deadline_s:
            pass
        if self._taken_in() < newest:
            self.wrong["late"] = {name: self._store.job(name).info.last_error for name in VIEWS}
        self._tag()
        for tag in self.tags:
            self._judge(tag)
        if damage := self._store.verify().problems:
            self.wrong["damage"] = [str(problem) for problem in damage]

    def _look(self) -> int:
        """Start again what has ended, note which kills the views have recovered from, and wait a moment. Return the
        epoch through which all views have taken in the payments.
        """
        for service in self.services:
            service.look()
        if self._writer.poll():
            raise RuntimeError("the writer has failed")
        taken_in, now_s = self._taken_in(), self._passed_s()
        for kill in self.kills:
            if kill.recovered_s is None and taken_in >= kill.epoch:
                kill.recovered_s = now_s - kill.at_s
        self._pause.wait(0.1)
        return taken_in

    def _kill(self, kind: str) -> bool:
        """Kill a process of this kind; return False if there is none now."""
        sessions = {service.sessions[-1]: service.kind for service in self.services}
        candidates = sorted(victims(kind, sessions, processes()), key=lambda process: process.pid)
        if not candidates:
            return False
        victim, epoch = self._chance.choice(candidates), self._newest()
        with suppress(ProcessLookupError):  # it ended by itself meanwhile
            os.kill(victim.pid, signal.SIGKILL)
            self.kills.append(Kill(kind, self._passed_s(), epoch))
            self._say(f"killed: {kind} {victim.pid}")
            return True
        return False

    def _tag(self) -> bool:
        """Tag the newest epoch that is valid for all tables, and judge it; return False if they have none yet."""
        with suppress(el.NoConsistentEpoch):
            tag = self._store.tag(f"moment-{len(self.tags)}", list(TABLES), consistency="aligned")
            self.tags.append(tag)
            self._say(f"epoch {tag.epochs['payments']}: {self._judge(tag) or 'equal to DuckDB and to the ledger'}")
            return True
        return False

    def _judge(self, tag: el.Tag) -> dict[str, int]:
        newest = self._newest()
        while not (ledger := read_ledger(self._ledger)) or ledger[-1].epoch < newest:
            self._look()  # the writer has committed, and has not written it down yet
        counts = judge(self._store, tag.token, ledger)
        if counts:
            self.wrong[tag.name] = counts
        return counts

    def _newest(self) -> int:
        return self._store.table("payments").info.max_committed_epoch

    def _taken_in(self) -> int:
        """Return the epoch through which all views have taken in the payments."""
        return min(self._store.job(name).info.committed_epoch for name in VIEWS)

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _say(self, what: str) -> None:
        print(f"{self._passed_s():6.1f} s  {what}", flush=True)

    def close(self) -> None:
        """End all processes."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for service in self.services:
            service.end()
        self._writer.kill()
        self._writer.communicate()

    def counted(self) -> dict[str, Any]:
        """Return all that was counted."""
        ledger = read_ledger(self._ledger)
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for kill in self.kills:
            took[kill.kind].append(PATIENCE_S if kill.recovered_s is None else kill.recovered_s)
        return {
            "kills": {
                kind: {"times": len(each), "median_s": statistics.median(each), "slowest_s": max(each)}
                for kind, each in took.items()
            },
            "commits": len(ledger),
            "changes": sum(len(commit.upserts) + len(commit.deletes) for commit in ledger),
            "rows": {name: self._store.table(name).count() for name in TABLES},
            "view_commits": {name: self._store.table(name).history().num_rows for name in VIEWS},
            "moments": len(self.tags),
            "epochs": len({tag.epochs["payments"] for tag in self.tags}),
            "spark": count_events(self._folder / "events"),
            "wrong": self.wrong,
        }


def count_events(folder: Path) -> dict[str, int]:
    """Count tasks and executors in Spark's event logs."""
    counts = Counter[str]()
    for log in folder.iterdir():
        for line in log.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # of a driver that was killed while it wrote the line
                event = json.loads(line)
                match event["Event"]:
                    case "SparkListenerTaskEnd":
                        counts["tasks"] += 1
                        counts["speculative tasks"] += event["Task Info"]["Speculative"]
                        counts["failed tasks"] += event["Task Info"]["Failed"]
                    case "SparkListenerExecutorAdded":
                        counts["executors added"] += 1
                    case "SparkListenerExecutorRemoved":
                        is_idle = event["Removed Reason"].startswith("Executor killed by driver")
                        counts["executors removed as idle" if is_idle else "executors lost"] += 1
    return dict(counts)


def show(counted: dict[str, Any]) -> None:
    """Print what was counted as a table for people."""
    print(f"\n{'killed':16}  times  median recovery  slowest")
    for kind, kills in counted["kills"].items():
        print(f"{kind:16}  {kills['times']:5}  {kills['median_s']:13.1f} s  {kills['slowest_s']:5.1f} s")
    print(f"\n{counted['commits']:,} commits of {counted['changes']:,} changes were acknowledged")
    print(*(f"{name}: {rows:,} rows" for name, rows in counted["rows"].items()), sep=", ")
    print("commits of views:", ", ".join(f"{name} {commits:,}" for name, commits in counted["view_commits"].items()))
    print("Spark:", ", ".join(f"{what} {count:,}" for what, count in counted["spark"].items()))
    moments = f"at {counted['moments']} moments, of {counted['epochs']} epochs"
    if counted["wrong"]:
        print(f"LOST OR DOUBLED: {json.dumps(counted['wrong'])}")
    else:
        print(f"nothing was lost or doubled: {moments}, all views were equal to DuckDB's answers and to the ledger")


def main(minutes: float, seed: int, folder: Path | None, out: Path | None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print("seed", seed, flush=True)
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epochlog-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        redis = RedisProcess(folder / "redis")  # its append-only file is always synced
        stack.callback(redis.stop)
        s3 = S3Server()
        stack.callback(s3.stop)
        os.environ["EPOCHLOG_CATALOG"] = redis.url()
        root = s3.uri(f"{s3.new_bucket()}/lake")
        store = stack.enter_context(el.open(root, redis.url(), checkpoint_interval_ms=500, maintenance=True))
        store.create_table("payments", PAYMENTS, ["id"])
        for name, (sql, key) in VIEWS.items():
            store.create_view(name, sql, key)
        run = ChaosRun(store, folder, seed)
        stack.callback(run.close)
        run.run(minutes)
        counted = run.counted()
    if out is not None:
        out.write_text(json.dumps({"seed": seed, **counted}, indent=1) + "\n")
    show(counted)
    return int(bool(counted["wrong"]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        drive(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    elif sys.argv[1:2] == ["write"]:
        write(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--minutes", type=float, default=10.0)
        parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
        parser.add_argument("--folder", type=Path)
        parser.add_argument("--json", type=Path)
        chosen = parser.parse_args()
        try:
            sys.exit(main(chosen.minutes, chosen.seed, chosen.folder, chosen.json))
        except KeyboardInterrupt:
            print("ended by Ctrl-C", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
