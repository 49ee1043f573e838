"""Core operations as single calls: the gate of `make check` takes their CPU time, `make microbench` their time."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from table_epochs import lineage, sharing_one

import epochlog as el
from epochlog.batch.policy_registry import BUILT_IN, resolve_policy
from epochlog.store.env.filesystem import open_files
from epochlog.store.epochs.view import EpochView
from epochlog.store.scan.result_cache import set_result_cache_bytes
from epochlog.store.sst.merge import sorted_unique
from epochlog.store.sst.segment import SegmentReader, write_segment
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

ROWS, CHANGED, KEYS = 100_000, 100, 1_000
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the library on prepared input."""

    call: Callable[[], object]
    prepare: Callable[[], None] | None = None
    """Work before each call, which is not measured."""


def rows(first: int, count: int) -> pa.Table:
    """Return rows of the measured tables with ids from `first` on."""
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "day": pc.bit_wise_and(ids, 63), "cents": pc.multiply(ids, 7)})


class CoreOperations:
    """Store with tables, a view and two jobs, a segment, and the epochs of 100 tables, on which the operations run."""

    def __init__(self, folder: str) -> None:
        self._store = store = el.open(f"{folder}/lake")
        self.orders, self.kept = (self._table_of_some_commits(name) for name in ("orders", "kept"))
        self.copied, self.idle, self.changed = (
            store.create_table(name, SCHEMA, ["id"]) for name in ("copied", "idle", "changed")
        )
        self._next, first = ROWS, self.changed.upsert(rows(0, CHANGED))
        self.one_commit = first, self.changed.upsert(rows(CHANGED, CHANGED))
        query = "SELECT day, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY day"
        self.view = store.create_view("revenue", query, primary_key=["day"])
        output = el.Output(SCHEMA, ["id"])
        self._copy_job = store.create_job("copy", upstreams=["copied"], outputs={"copy": output})
        self._idle_job = store.create_job("nothing", upstreams=["idle"], outputs={"nothing": output})
        self.keys = pa.table({"id": pa.array(range(0, ROWS, ROWS // KEYS), pa.int64())})
        self.epochs = sharing_one(lineage(1_000), 900_000)
        schema, files = TableSchema("segment", SCHEMA, ("id",)), open_files(folder)
        codec, data = KeyCodec(schema.schema, schema.primary_key), schema.conform(rows(0, ROWS))
        segment = write_segment(files, "segment", 1, schema, codec, sorted_unique(codec.encode(data), data))
        self.reader = SegmentReader(files, segment, schema, codec)
        for upstream, step in (
            (self.orders, self.view.step), (self.copied, self.copy_step), (self.idle, self.empty_step)
        ):  # fmt: skip
            self.change(upstream)
            assert step() is not None

    def _table_of_some_commits(self, name: str) -> el.Table:
        table = self._store.create_table(name, SCHEMA, ["id"])
        table.upsert(rows(0, ROWS))
        self._store.compact(name, full=True)
        for number in range(5):
            table.upsert(rows(number * 50, CHANGED))
        return table

    def close(self) -> None:
        self._store.close()

    def commit(self) -> None:
        self._next += CHANGED
        self.changed.upsert(rows(self._next, CHANGED))

    def change(self, upstream: el.Table) -> None:
        """Change 100 rows of the upstream of a job, and seal a boundary."""
        self._next += CHANGED
        upstream.upsert(rows(self._next % ROWS, CHANGED))
        self._store.checkpoint()

    def copy_step(self) -> int | None:
        return self._copy_job.step_local(lambda ctx: ctx.upsert("copy", ctx.changes("copied").select(SCHEMA.names)))

    def empty_step(self) -> int | None:
        return self._idle_job.step_local(lambda ctx: None)


def choice(policy_name: str, core: CoreOperations) -> Operation:
    """Return the choice of a policy over 100 tables. Each call has a new view of their epochs, as each read of the
    catalog makes one: a view keeps what it has computed.
    """
    view, kind = core.epochs, BUILT_IN[policy_name]
    names, shared = list(view.ids), view.largest_valid_at_most(view.ids)
    options = kind.asked_at(view, names, shared) if hasattr(kind, "asked_at") else {}
    policy = resolve_policy(policy_name, **options)
    return Operation(lambda: policy.choose(EpochView(view.last_epoch, view.clock_ms, view.tables), names))


OPERATIONS: Mapping[str, Callable[[CoreOperations], Operation]] = {
    "commit": lambda core: Operation(core.commit),
    "step": lambda core: Operation(core.view.step, prepare=partial(core.change, core.orders)),
    "copy": lambda core: Operation(core.copy_step, prepare=partial(core.change, core.copied)),
    "barrier": lambda core: Operation(core.empty_step, prepare=partial(core.change, core.idle)),
    "read": lambda core: Operation(core.kept.to_arrow),
    "get": lambda core: Operation(lambda: core.kept.get([{"id": 77}])),
    "get_1000": lambda core: Operation(lambda: core.kept.get(core.keys)),
    "changes": lambda core: Operation(lambda: core.changed.changes(*core.one_commit).read_all()),
    "decode": lambda core: Operation(core.reader.read),
    **{f"choice_{name}": partial(choice, name) for name in BUILT_IN},
}
"""Commit of 100 rows; step of a view, step that copies 100 rows, barrier without work; read of 100,000 rows; look-up of
one and of 1,000 keys; changes of one commit; decode of a segment of 100,000 rows; choice of an epoch under each policy.
"""


@contextlib.contextmanager
def prepared() -> Iterator[Mapping[str, Operation]]:
    """Yield the operations, over a new store, without the result cache and the collector of cyclic garbage.

    Operations that run in turns allocate alike in each round, so a collection would fall on one of them every time.
    """
    before = set_result_cache_bytes(0)
    gc.disable()
    try:
        folder = tempfile.TemporaryDirectory(prefix="epochlog-core-")
        with folder, contextlib.closing(CoreOperations(folder.name)) as core:
            yield {name: operation(core) for name, operation in OPERATIONS.items()}
    finally:
        gc.enable()
        set_result_cache_bytes(before)
