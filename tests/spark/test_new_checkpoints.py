"""Streams whose checkpoint is new, restored or partly deleted: batches with numbers that landed with other rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq
import pytest

import epochlog as el
from spark_store import rows

pytestmark = pytest.mark.spark
DOORS = ("el.sink", "format", "a write in foreachBatch")
THREADS = ("el.sink in a thread", "a write in a thread")
CHOSEN = ("numbers of the user's", "two writes a batch")


class Loader:
    """Stream of files into `orders`, through one of the doors that number micro-batches under an application."""

    def __init__(self, lake: Any, door: str) -> None:
        self.lake, self.door = lake, door
        self.checkpoints = str(lake.scratch)
        (lake.scratch / "files").mkdir()

    def add(self, first: int) -> None:
        """Add a file of one row."""
        pq.write_table(rows(first, 1), self.lake.scratch / "files" / f"{first}.parquet")

    def run(self, checkpoint: str = "ck", *, new_checkpoint: bool = False) -> None:
        reader = self.lake.spark.readStream.schema("id long, day string, amount double")
        writer = self._into(reader.parquet(str(self.lake.scratch / "files")).writeStream, new_checkpoint)
        self.lake.drain(writer.option("checkpointLocation", f"{self.checkpoints}/{checkpoint}"))

    def _into(self, writer: Any, new_checkpoint: bool) -> Any:
        options = self.lake.options("orders", txnAppId="app", **({"newCheckpoint": "true"} if new_checkpoint else {}))
        if self.door == "format":
            return writer.format("epochlog").options(**options)
        if self.door == "format without a name":
            return writer.format("epochlog").options(**self.lake.options("orders"))
        sink = el.sink({"orders": None}, app_id="app", path=self.lake.root, new_checkpoint=new_checkpoint)

        def write(frame: Any, batch_id: int) -> None:
            numbers = {
                "numbers of the user's": [1000 + batch_id],
                "two writes a batch": [2 * batch_id, 2 * batch_id + 1],
            }
            for number in numbers.get(self.door, [batch_id]):
                frame.write.format("epochlog").mode("append").options(**options, txnVersion=number).save()

        call = sink if self.door.startswith("el.sink") else write
        if self.door not in THREADS:
            return writer.foreachBatch(call)

        def by_thread(frame: Any, batch_id: int) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._call_in_session, call, frame, batch_id).result()

        return writer.foreachBatch(by_thread)

    @staticmethod
    def _call_in_session(call: Callable[[Any, int], None], frame: Any, batch_id: int) -> None:
        session = frame.sparkSession  # Spark looks a source up in the thread's active session.
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        call(frame, batch_id)

    def ids(self) -> list[int]:
        return self.lake.orders.to_arrow()["id"].to_pylist()


@pytest.mark.medium
@pytest.mark.rule("1.25", "1.26")
@pytest.mark.parametrize("door", DOORS)
def test_no_batch_is_lost_with_a_new_checkpoint(lake, door: str) -> None:
    """The rows of the first batch were lost in silence: it counted as a replay of that of the deleted checkpoint."""
    loader = Loader(lake, door)
    loader.add(1)
    loader.run()
    shutil.rmtree(lake.scratch / "ck")
    loader.add(2)
    with pytest.raises(Exception, match=r"CheckpointMismatch.*batch 0 has landed before.*newCheckpoint"):
        loader.run()
    assert loader.ids() == [1]
    shutil.rmtree(lake.scratch / "ck")
    loader.run(new_checkpoint=True)
    assert loader.ids() == [1, 2] and lake.orders.history().num_rows == 2
    lake.forget_last_commit("ck")
    loader.run(new_checkpoint=door == "el.sink")  # the option may stay, or be taken away
    assert lake.orders.history().num_rows == 2


@pytest.mark.slow
@pytest.mark.rule("1.25", "1.26")
@pytest.mark.parametrize("door", [*DOORS, *THREADS, *CHOSEN, "format without a name"])
def test_each_door_notices_a_checkpoint_that_is_not_its_own(lake, door: str) -> None:
    """From a thread, under a number of the user's, or with a copied checkpoint, rows were lost in silence."""
    loader = Loader(lake, door)
    loader.add(1)
    loader.run()
    shutil.copytree(lake.scratch / "ck", lake.scratch / "copy")
    lake.forget_last_commit("ck")
    loader.run()  # a replay
    loader.add(2)
    loader.run()
    loader.add(3)
    with pytest.raises(Exception, match="CheckpointMismatch.*its checkpoint is older than the table"):
        loader.run("copy")
    if door != "format without a name":  # its query's id names the stream
        with pytest.raises(Exception, match="CheckpointMismatch.*has landed before.*newCheckpoint"):
            loader.run("new")
    assert loader.ids() == [1, 2]
    loader.run()
    assert loader.ids() == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.rule("1.25", "1.26")
@pytest.mark.parametrize("door", DOORS[:2])
def test_checkpoints_of_another_file_system_tell_their_query(lake, door: str) -> None:
    """One of Hadoop's, which Python reads nothing of, as s3a: and hdfs:."""
    loader, place = Loader(lake, door), lake.scratch.name.replace("_", "-")
    settings = lake.spark.sparkContext._jsc.hadoopConfiguration()
    settings.set(f"fs.viewfs.mounttable.{place}.link./cks", lake.scratch.as_uri())
    loader.checkpoints = f"viewfs://{place}/cks"
    loader.add(1)
    loader.run()
    shutil.copytree(lake.scratch / "ck", lake.scratch / "backup")
    lake.forget_last_commit("ck")
    loader.run()  # a replay
    assert loader.ids() == [1] and lake.orders.history().num_rows == 1
    loader.add(2)
    with pytest.raises(Exception, match=r"CheckpointMismatch.*batch 0 has landed before.*newCheckpoint"):
        loader.run("new")
    loader.run()
    loader.add(3)
    if door != "format":  # which cannot read there when its newest batch was planned
        with pytest.raises(Exception, match="CheckpointMismatch.*its checkpoint is older than the table"):
            loader.run("backup")
    loader.run()
    with pytest.raises(Exception, match="CheckpointMismatch.*its checkpoint is older than the table"):
        loader.run("backup")
    assert loader.ids() == [1, 2, 3]


@pytest.mark.rule("1.26")
def test_deleted_offsets_lose_no_batch(lake) -> None:
    """Spark counts the batches from 0 again, under the id that the query had."""
    loader = Loader(lake, "format")
    for number in range(2):
        loader.add(number)
        loader.run()
    for folder in ("offsets", "commits"):
        shutil.rmtree(lake.scratch / "ck" / folder)
    loader.add(4)
    with pytest.raises(Exception, match="CheckpointMismatch.*its checkpoint is older than the table"):
        loader.run()
    assert loader.ids() == [0, 1]


@pytest.mark.rule("1.26")
def test_a_checkpoint_of_last_night_repeats_no_number_with_other_rows(lake) -> None:
    """Its newest batch has the number of one that has landed, and the rows of a further file."""
    loader = Loader(lake, "el.sink")
    loader.add(1)
    loader.run()
    shutil.copytree(lake.scratch / "ck", lake.scratch / "backup")
    loader.add(2)
    loader.run()
    loader.add(3)
    with pytest.raises(Exception, match="CheckpointMismatch.*its checkpoint is older than the table"):
        loader.run("backup")
    assert loader.ids() == [1, 2]


@pytest.mark.rule("1.25")
def test_a_stream_that_was_started_anew_loses_no_batch_without_the_option(lake) -> None:
    """The number of its second batch has landed from the longer stream before it: its rows were left out in silence."""
    loader = Loader(lake, "a write in foreachBatch")
    for number in (1, 2, 3):
        loader.add(number)
        loader.run()
    loader.add(4)
    shutil.rmtree(lake.scratch / "ck")
    loader.run(new_checkpoint=True)
    loader.add(5)
    with pytest.raises(Exception, match="CheckpointMismatch.*rows of this one were not written.*newCheckpoint"):
        loader.run()
    loader.run(new_checkpoint=True)
    assert 5 in loader.ids()


def test_the_option_is_for_streams(lake, tmp_path) -> None:
    write: Callable[..., None] = lake.write
    frame = lake.spark.createDataFrame(rows(0, 1))
    with pytest.raises(Exception, match="InvalidInput: newCheckpoint is for streams"):
        write(frame, txnAppId="app", txnVersion=1, newCheckpoint="true")
    assert lake.orders.count() == 0
