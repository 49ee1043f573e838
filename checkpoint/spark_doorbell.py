"""The stream under `job.start`: its rows mean nothing, its micro-batches are rings: "look whether there is a barrier to
run".
"""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..exchange.spark_options import Place, text, truth
from ..exchange.worker import settle
from ..store.catalog import View
from ..store.definitions import JobRecord, get_job, get_table, get_version
from ..store.epoch import from_unix_ms, newest_index
from ..store.handle import Handle
from ..store.records import after_prefix, bound_key, key_epoch

DOORBELL = "epochlog_doorbell"


class Doorbell(DataSource):
    """Options: path and catalog of the store, id and name of the job."""

    @classmethod
    def name(cls) -> str:
        return DOORBELL

    def schema(self) -> str:
        return "ring bigint"

    def streamReader(self, schema: object) -> DoorbellReader:
        place = Place(self.options["path"], text(self.options, "catalog"), "", truth(self.options, "volatile", False))
        return DoorbellReader(place, int(self.options["job"]), self.options["name"])


class DoorbellReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rings at its first poll, and from then on when an upstream has a change that the job lacks and something new may
    let the job take it: a boundary has passed, one was forced, an upstream's job has committed, or the job is to end.
    """

    def __init__(self, place: Place, job_id: int, name: str) -> None:
        self._place = place
        self._job_id = job_id
        self._name = name
        self._once = False
        self._opened: Handle | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:
        return {"seen": []}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        settle()
        seen = start["seen"] if start else []
        if seen and self._once:
            return {"seen": seen}
        handle = self._handle()
        sight = handle.catalog.read(lambda view: self._sight(view, handle))
        return {"seen": seen if seen and sight is None else sight or [0]}

    def prepareForTriggerAvailableNow(self) -> None:
        self._once = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _handle(self) -> Handle:
        if self._opened is None:
            self._opened = self._place.open()
        return self._opened

    def _sight(self, view: View, handle: Handle) -> list[int] | None:
        """What decides whether the job may find a barrier, as numbers; None while no upstream has news for it."""
        job = get_job(view, self._job_id, self._name)
        if job.state == "finished":
            return None
        news, commits = False, []
        for table_id in job.upstreams:
            table = get_table(view, table_id, f"upstream of {job.name}")
            version = get_version(view, table_id, table.name)
            newest = version.max_committed_epoch
            changes = handle.memory.of(view, table_id, version.known_from, newest).changes
            news |= bool(len(changes)) and int(changes[-1]) > job.position
            if table.derived:  # a root's commits wait for a boundary anyway
                commits.append(newest)
        waits = job.state == "creating" or job.drain is not None  # it runs once its upstreams do, or it is to end
        if not news and job.position and not waits:
            return None
        passed = newest_index(from_unix_ms(handle.catalog.now_ms()) - 1, handle.interval_ms * job.interval)
        return [job.position, passed, _newest_forced(view, job), job.drain or 0, *commits]


def _newest_forced(view: View, job: JobRecord) -> int:
    found = next(iter(view.scan(bound_key(job.position + 1), after_prefix(b"bound/"), reverse=True)), None)
    return key_epoch(found[0]) if found else 0
