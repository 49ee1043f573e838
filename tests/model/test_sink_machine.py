"""The Spark sinks against a dict: random writes, several under way at once, whose attempts fail, are repeated or come
too late, whose drivers die, and beside which others write, compact and vacuum.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import epochlog as el
from epochlog.spark import overwrite
from epochlog.store.catalog.lmdb import kind
from epochlog.store.session import handle
from model.test_store_machine import TINY
from sink_simulation import CHANGES, DAY_MS, GRACE_MS, Later, SinkWrite, files_of, spark_intents

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64())])
KEYS = [f"k{number:02}" for number in range(12)]
Change = tuple[str, int | None]
"""A key, and its new value; None deletes it."""

changes = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 99)), max_size=9)


def as_table(changes: list[Change]) -> pa.Table:
    keys, values = [key for key, _ in changes], [value for _, value in changes]
    kinds = ["delete" if value is None else "insert" for value in values]
    fields = [*SCHEMA, pa.field(CHANGES, pa.string())]
    return pa.table([keys, pa.array(values, pa.int64()), pa.array(kinds, pa.string())], schema=pa.schema(fields))


@dataclass
class PendingWrite:
    """A write that is under way. messages: what of each partition the driver knows, and which rows that stands for."""

    play: SinkWrite
    overwrite: bool
    txn: tuple[str, int] | None
    landed: bool  # as it was planned
    rows: list[list[Change]]
    messages: list[Any] = field(default_factory=list)
    ended: bool = False  # its intent has gone


class SinkMachine(RuleBasedStateMachine):
    """One store with one table, and the dict that it must equal."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, size in TINY.items():
            self.patch.setattr(name, size)
        self.patch.setattr(overwrite, "BATCH_ROWS", 4)
        self.clock = Later()
        for reader in (kind, handle):
            self.patch.setattr(reader, "SystemClock", lambda: self.clock)
        self.root = tempfile.mkdtemp(prefix="sink-machine-")
        self.store = el.open(self.root)
        self.rows: dict[str, int | None] = {}
        self.landed: set[tuple[str, int]] = set()
        self.writes: list[PendingWrite] = []

    @initialize(full=st.booleans())
    def make(self, full: bool) -> None:
        options = el.TableOptions(compact_segments=2)
        self.store.create_table("t", SCHEMA, ["k"], changelog="full" if full else "upsert", options=options)

    @rule(
        parts=st.lists(changes, min_size=1, max_size=3),
        overwrite=st.booleans(),
        number=st.none() | st.integers(0, 2),
        stream=st.booleans(),
    )
    def plan(self, parts: list[list[Change]], overwrite: bool, number: int | None, stream: bool) -> None:
        txn, options = None, {}
        if stream:
            txn = ("s", number or 0)
            options: dict[str, Any] = {"stream": txn[1], "txnAppId": "s"}
        elif number is not None:
            txn = ("b", number)
            options = {"txnAppId": "b", "txnVersion": number}
        schema = as_table([]).schema
        play = SinkWrite(self.store, "t", schema, "overwrite" if overwrite else "append", **options)
        known = txn in self.landed and not stream  # whose batch it is, a stream's plan does not know
        self.writes.append(PendingWrite(play, overwrite, txn, known, parts, [None] * len(parts)))

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), lost=st.booleans())
    def attempt(self, data: st.DataObject, lost: bool) -> None:
        """A task runs; what a lost attempt has written nobody hears of."""
        write = self.pick(data)
        place = data.draw(st.integers(0, len(write.rows) - 1))
        message = write.play.attempt(as_table(write.rows[place]).to_batches(max_chunksize=2))
        if not lost:
            write.messages[place] = message

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """The tasks that nobody has heard of run once more, then the driver commits."""
        write = self.pick(data)
        for place, message in enumerate(write.messages):
            if message is None:
                write.messages[place] = write.play.attempt(as_table(write.rows[place]).to_batches(max_chunksize=2))
        again = data.draw(st.integers(1, 2)) if write.txn else 1  # the answer was lost: the commit is repeated
        for _ in range(again):
            self.land(write)
        self.writes.remove(write)

    def land(self, write: PendingWrite) -> None:
        done = write.txn in self.landed
        empty = not any(write.rows) and not write.overwrite
        if write.play._stream is not None and not empty and write.play._stream < self.newest_batch:
            with pytest.raises(el.CheckpointMismatch):
                write.play.commit(write.messages)
            return
        if write.ended and any(write.rows) and not done:
            with pytest.raises(el.SegmentUnknown):
                write.play.commit(write.messages)
            return
        write.play.commit(write.messages)
        if done or write.landed or (empty and write.play._stream is not None):
            return
        new: dict[str, int | None] = {} if write.overwrite else dict(self.rows)
        new.update(change for part in write.rows for change in part)
        self.rows = {key: value for key, value in new.items() if value is not None}
        if write.txn:
            self.landed.add(write.txn)

    @property
    def newest_batch(self) -> int:
        """The number of the stream's newest batch that has landed; -1 without one."""
        return max((number for app, number in self.landed if app == "s"), default=-1)

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Without any message a stream's committer does not know the intent, which runs out by itself."""
        write = self.pick(data)
        write.play.abort(write.messages)
        write.ended = write.ended or write.play._stream is None or any(write.messages)

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.writes.remove(self.pick(data))

    @rule(written=changes)
    def others_write(self, written: list[Change]) -> None:
        table = self.store.table("t")
        with self.store.transaction() as tx:
            for key, value in written:
                if value is None:
                    tx.delete(table.name, pa.table({"k": [key]}))
                else:
                    tx.upsert(table.name, pa.table({"k": [key], "v": [value]}, schema=SCHEMA))
        self.rows.update(written)
        self.rows = {key: value for key, value in self.rows.items() if value is not None}

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.store.compact("t", full=full)

    @rule(grace_ms=st.sampled_from([0, GRACE_MS]))
    def vacuum(self, grace_ms: int) -> None:
        self.store.vacuum(grace=grace_ms / 1000)

    @rule()
    def a_day_goes_by(self) -> None:
        self.clock.added_ms += DAY_MS + GRACE_MS
        self.store.vacuum()
        for write in self.writes:
            write.ended = True

    def pick(self, data: st.DataObject) -> PendingWrite:
        return self.writes[data.draw(st.integers(0, len(self.writes) - 1))]

    @invariant()
    def the_table_is_the_dict(self) -> None:
        if self.store.tables():
            rows = self.store.table("t").to_arrow()
            assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == self.rows

    def teardown(self) -> None:
        """In the end no write leaves a trace but its rows."""
        try:
            self.a_day_goes_by()
            self.clock.added_ms += GRACE_MS
            self.store.vacuum()
            report = self.store.verify()
            assert report.ok and not report.unreachable and spark_intents(self.store) == 0
            assert files_of(self.store) == self.store.vacuum().data_files
        finally:
            self.store.close()
            self.patch.undo()
            shutil.rmtree(self.root, ignore_errors=True)


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(SinkMachine, settings=settings(max_examples=examples, stateful_step_count=steps))


@pytest.mark.local_only
def test_sinks_equal_a_dict_briefly() -> None:
    run(8, 25)


@pytest.mark.local_only
@pytest.mark.long
def test_sinks_equal_a_dict() -> None:
    run(30, 40)
