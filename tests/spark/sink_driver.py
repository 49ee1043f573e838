"""A Spark driver whose writes go wrong as told: `sink_driver.py '{"master": …, "a setting": …}'`.

It says {"ready": true}, then takes orders, a JSON object a line, and answers each with one. An order runs with a mood:
`task-fails` (a task raises when it has written its files), `task-dies` (its Python worker is killed then),
`executor-dies` (its JVM is), `slow` (a task that has written waits until its speculative copy has), `before` and
`after` (the driver and its JVM are killed before and after the commit), `recorded` and `tasks-done` (they are killed
when a compaction has recorded its first piece, and when its tasks have returned), `jvm-dies` (only the JVM is killed
then), `stopped` (the session is stopped then). Each attempt of a task that has written notes its files in the folder
`notes`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict

import epochlog as el
from epochlog.spark import compaction, frames
from epochlog.spark.session import EpochlogSource, register
from epochlog.spark.sink import BatchSink, Written, resolve_save
from epochlog.store.compaction import executor, subcompactions
from spark_limits import raise_connect_limit

SICK = 1
"""The partition of which something happens to the first attempt that has written; `sick` among the notes names it."""

KILLED_AT = {
    "recorded": "compact:range-recorded",
    "before": "compact:before-finish",
    "after": "compact:after-finish",
}


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def behave(notes: str, mood: str, paths: list[str]) -> None:
    """Fail the first attempt of task SICK after it has written its files, as the mood says."""
    import threading

    from pyspark import TaskContext

    context: Any = TaskContext.get()
    folder, place = Path(notes), context.partitionId()
    name = f"{place}-{context.attemptNumber()}"
    (folder / name).write_text(json.dumps(paths))
    if place != SICK:
        return
    try:
        with (folder / "sick").open("x") as marker:
            marker.write(name)
    except FileExistsError:
        return
    if mood == "task-fails":
        raise OSError("this attempt fails")
    if mood == "task-dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == "executor-dies":
        os.kill(parent_of(os.getppid()), signal.SIGKILL)
    if mood == "slow":
        pause = threading.Event()
        while len(list(folder.glob(f"{SICK}-*"))) < 2:
            pause.wait(0.02)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


class MoodySink(BatchSink):
    """The batch sink in a mood."""

    notes, mood, driver, jvm = "", "", 0, 0

    def write(self, iterator: Iterator[Any]) -> Written:
        written = super().write(iterator)
        behave(self.notes, self.mood, [segment.path for segment in written.segments])
        return written

    def commit(self, messages: Any) -> None:
        if self.mood == "before":
            self.end()
        super().commit(messages)
        if self.mood == "after":
            self.end()

    def end(self) -> None:
        kill(self.driver, self.jvm, os.getpid())


class MoodySource(EpochlogSource):
    """`format("moody")`: the data source with such a sink."""

    @classmethod
    def name(cls) -> str:
        return "moody"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        own = ("notes", "mood", "driver", "jvm")
        options = CaseInsensitiveDict({name: value for name, value in self.options.items() if name not in own})
        sink = MoodySink(resolve_save(options, schema, overwrite))
        sink.notes, sink.mood = self.options["notes"], self.options["mood"]
        sink.driver, sink.jvm = int(self.options["driver"]), int(self.options["jvm"])
        return sink


def moody_task(real: Any, notes: str, mood: str, *arguments: Any) -> Iterator[Any]:
    """Wrap the task that writes a job's output or el.sink; it fails as the mood says."""
    from epochlog.store.catalog.records import unpack
    from epochlog.store.sst.segment import Segment

    results = list(real(*arguments))
    records = [record for batch in results for record in batch.column(0).to_pylist()]
    behave(notes, mood, [Segment.from_record(unpack(b"segment", record)).path for record in records])
    yield from results


def moody_rewrite(real: Any, notes: str, mood: str, rewriter: Any, target: Any, *rest: Any) -> Iterator[Any]:
    """Wrap the task that rewrites a piece of a compaction; it fails as the mood says."""
    from epochlog.store.catalog.records import unpack
    from epochlog.store.compaction.task_record import parts_from_record

    for batch in real(rewriter, target, *rest):
        live, history = parts_from_record(unpack(b"parts", batch.column(1)[0].as_py()))
        behave(notes, mood, [part.path for part in (*live, *history)])
        yield batch


def two_hosts() -> str:
    """The address of a cluster in this driver's JVM, with executor JVMs of its own on two hosts that are this machine:
    Spark starts no speculative copy of a task on the host that the task runs on, and `local-cluster` has but one.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf())
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    conf, option = jvm.org.apache.spark.SparkConf(), jvm.scala.Option
    deploy = jvm.org.apache.spark.deploy
    masters = deploy.LocalSparkCluster.apply(1, 1, 1024, conf).start()
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = masters[0]
    deploy.worker.Worker.startRpcEnvAndEndpoint(
        "127.0.0.2", 0, 0, 1, 1024, urls, None, option.apply(2), conf, option.apply(None)
    )
    return masters[0]


def frame_of(spark: Any, order: dict[str, Any]) -> Any:
    """Rows id, amount = 2 id, in as many partitions as asked for."""
    first, count, parts = order["rows"]
    return spark.range(first, first + count, 1, parts).selectExpr("id", "cast(id * 2 as double) amount")


def write(spark: Any, jvm: int, order: dict[str, Any]) -> None:
    marks = {"notes": order["notes"], "mood": order["mood"], "driver": str(os.getpid()), "jvm": str(jvm)}
    options = {**order["place"], **marks}
    writer = frame_of(spark, order).write.format("moody").mode(order.get("mode", "append")).options(**options)
    writer.options(**order.get("txn", {})).save()


def step(spark: Any, order: dict[str, Any]) -> None:
    place = order["place"]
    with el.open(place["path"], place.get("catalog"), create=False) as store:
        store.job(order["job"]).step(spark, lambda ctx: ctx.upsert(place["table"], frame_of(spark, order)))


def sink(spark: Any, order: dict[str, Any]) -> None:
    place = order["place"]
    function = el.sink({place["table"]: None}, app_id="sink", path=place["path"], catalog=place.get("catalog"))
    function(frame_of(spark, order), order["batch"])


def compact(spark: Any, jvm: int, order: dict[str, Any]) -> None:
    place, mood = order["place"], order["mood"]
    rewrite, run, hit = compaction._rewrite_task, compaction._run_tasks, executor.hit

    def run_tasks(*arguments: Any) -> Any:
        results = run(*arguments)
        if mood == "tasks-done":
            kill(jvm, os.getpid())
        if mood == "jvm-dies":
            kill(jvm)
        if mood == "stopped":
            spark.stop()
        return results

    def moody_hit(point: str) -> None:
        if point == KILLED_AT.get(mood):
            kill(jvm, os.getpid())
        hit(point)

    compaction._rewrite_task = partial(moody_rewrite, rewrite, order["notes"], mood)
    compaction._run_tasks, executor.hit = run_tasks, moody_hit
    subcompactions.SUBCOMPACTION_ROWS = order["piece_rows"]
    try:
        with el.open(place["path"], place.get("catalog"), create=False) as store:
            store.compact(place["table"], full=True, spark=spark)
    finally:
        compaction._rewrite_task, compaction._run_tasks, executor.hit = rewrite, run, hit


def main(settings: dict[str, str]) -> None:
    if settings["master"] == "two hosts":
        settings = {**settings, "master": two_hosts()}
    spark = el.spark("sink driver", **settings)
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(MoodySource)
    register(spark)
    gateway: Any = spark.sparkContext._gateway
    real = frames._write_task
    say(ready=True)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        frames._write_task = partial(moody_task, real, order["notes"], order["mood"])
        try:
            if order["do"] in ("write", "compact"):
                {"write": write, "compact": compact}[order["do"]](spark, gateway.proc.pid, order)
            else:
                {"step": step, "sink": sink}[order["do"]](spark, order)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")
        else:
            say(done=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
