"""A staged exchange of rows and changes of a table that is altered: between pushes, between pulls, before restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from altered_table import AlteredTable, random_alter, random_rows
from epochlog.exchange import ExchangeClient
from seeds import seeds
from staged_fixture import JOIN, TOKEN, client, served
from wait_until import WAIT_LIMIT_S

Read = Callable[[int, int], pa.RecordBatchReader]
"""Reads the changes of the table in (after, until]."""


def parts_of_log(read: Read, after: int, until: int) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a range, a batch for each epoch; after each alter that ends a reader, those that follow in
    the new columns.
    """
    while True:
        try:
            for batch in read(after, until):
                yield from by_epoch(batch)
            return
        except el.SchemaChanged as error:
            after = error.epoch - 1


def by_epoch(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    epochs = batch["_commit_version"].to_pylist()
    return [batch.slice(epochs.index(epoch), epochs.count(epoch)) for epoch in sorted(set(epochs))]


def parts_of_rows(table: pa.Table) -> list[pa.RecordBatch]:
    """Cut rows at places of their own, for those of a scan follow the files."""
    return [batch for at in range(0, len(table), 2) for batch in table.slice(at, 2).combine_chunks().to_batches()]


@dataclass
class Staged:
    """A query that joins the rows of the table at `begin` (build) with its changes through `until` (probe)."""

    location: str
    table: AlteredTable
    begin: int
    until: int
    taken: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: {"build": [], "probe": []})

    def produce(self, read: Read, rows: pa.Table, attempt: int, most: int | None = None) -> None:
        """Push both channels from their beginning, as an attempt does; `most` parts of each, or all and the ends."""
        with client(self.location) as ex:
            for stage, channel, parts in (
                (0, "probe", parts_of_log(read, self.begin, self.until)),
                (-1, "build", iter(parts_of_rows(rows))),
            ):
                count = 0
                for part in parts:
                    if count == most:
                        break
                    ex.push(channel, stage, count, part, attempt)
                    count += 1
                if most is None:
                    ex.end(channel, count - 1, attempt)

    def consume(self, ex: ExchangeClient, incarnation: int, most: int | None = None) -> None:
        """Take so many batches, or all, from what was taken before on."""
        cursor = {channel: len(batches) for channel, batches in self.taken.items()}
        with ex.consume("join", incarnation, cursor) as reader:
            while most is None or most > 0:
                delivery = reader.poll(WAIT_LIMIT_S)
                if delivery is None:
                    assert reader.done and most is None
                    return
                channel, seq, batch = delivery
                assert channel == "build" or not self.taken["probe"] or seq == len(self.taken["probe"])
                self.taken[channel].append(batch)
                most = None if most is None else most - 1

    def check(self) -> None:
        """Each part has the values of its epoch in the columns of its epoch, and defaults or nulls in later ones."""
        built = pa.Table.from_batches(self.taken["build"]).to_pylist()
        assert built == self.table.moments[self.begin].read()
        epochs = []
        for batch in self.taken["probe"]:
            (epoch,) = set(batch["_commit_version"].to_pylist())
            epochs.append(epoch)
            moment = self.table.moments[epoch]
            key = [name for id_, name, _ in sorted(moment.columns) if id_ < 3]
            for row in batch.to_pylist():
                row = {name: value for name, value in row.items() if name[0] != "_"}
                model = moment.rows[tuple(row[name] for name in key)]
                assert {name: row.pop(name) for _, name, _ in moment.columns} == {
                    name: moment.value(model, id_, type_) for id_, name, type_ in moment.columns
                }
                for name, value in row.items():
                    assert value == self.table.defaults.get(self.table.added_after(epoch, name))
        written = [epoch for epoch in sorted(self.table.moments) if self.begin < epoch <= self.until]
        assert epochs == [epoch for epoch in written if epoch not in self.table.alters]


def alter(table: AlteredTable, rng: random.Random, kind: str) -> None:
    """Make an alter of this kind, or a random one."""
    names = {id_: (name, type_) for id_, name, type_ in table.columns}
    number = len(table.alters)
    if kind == "add":
        table.alter(add={f"x{number}": pa.string()})
    elif kind == "rename":
        table.alter(rename={names[2][0]: f"g{number}"})
    elif kind == "swap":
        swap = {names[1][0]: names[2][0], names[2][0]: names[1][0]}
        table.alter(rename=swap)
    elif kind == "drop":
        table.alter(drop=[names[max(names)][0]] if max(names) > 2 else None, add={f"y{number}": pa.int32()})
    elif kind == "widen":
        table.alter(add={f"w{number}": pa.int8()})
        table.alter(widen={f"w{number}": pa.int64()})
    else:
        change = random_alter(rng, table)
        if change is not None:
            table.alter(**change)


def history(table: AlteredTable, rng: random.Random, kinds: list[str]) -> None:
    for kind in kinds:
        table.upsert(random_rows(rng, table.columns, 4, 9))
        alter(table, rng, kind)
    table.upsert(random_rows(rng, table.columns, 4, 9))


def exchange_around_alters(folder: Path, seed: int, before: list[str], after: list[str], read_by: list[str]) -> None:
    """An attempt dies among its pushes, the table is altered and compacted, and the next attempt repeats the pushes."""
    rng = random.Random(seed)
    with served(folder, f"s{seed}") as (store, server), ExitStack() as stack:
        remote = stack.enter_context(el.connect(server.location, token=TOKEN))
        table = AlteredTable(store)
        table.upsert(random_rows(rng, table.columns, 6, 9))
        begin = max(table.moments)
        history(table, rng, before)
        staged = Staged(server.location, table, begin, max(table.moments))
        reads: dict[str, Read] = {
            "table": table.table.changes,
            "flight": lambda after, until: remote.changes("t", after, until),
        }
        ex = stack.enter_context(client(server))
        ex.declare("join", JOIN)
        dies_after = rng.randrange(1, 4)
        staged.produce(reads[read_by[0]], table.table.to_arrow(epoch=begin), 0, dies_after)
        staged.consume(ex, 0, 1)  # its build batches come before those of the probe side
        history(table, rng, after)
        store.compact(full=True)
        staged.produce(reads[read_by[1]], table.table.to_arrow(epoch=begin), 1)
        staged.consume(ex, 1, rng.randrange(3))
        history(table, rng, after[::-1])
        staged.consume(ex, 2)
        staged.check()
        again = Staged(server.location, table, begin, staged.until)
        again.consume(ex, 3)  # a consumer that lost everything
        assert again.taken == staged.taken


KINDS = ["add", "rename", "drop", "widen", "swap"]


@pytest.mark.rule("6.3", "6.4", "7.8")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["in the stage", "after it", "both"])
def test_an_attempt_repeats_its_batches_whatever_was_altered(tmp_path: Path, kind: str, where: str) -> None:
    before, after = ([kind] if where in names else [] for names in (("in the stage", "both"), ("after it", "both")))
    exchange_around_alters(tmp_path, 1, before, after, ["table", "flight"])


@pytest.mark.medium
@pytest.mark.rule("6.3", "6.4", "7.8")
@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_random_alters_around_a_staged_exchange(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    before, after = (rng.choices([*KINDS, "any"], k=rng.randrange(4)) for _ in range(2))
    exchange_around_alters(tmp_path, seed, before, after, rng.choices(["table", "flight"], k=2))


@pytest.mark.rule("6.3", "7.8")
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_before_an_alter_is_delivered_in_its_columns_and_then_schema_changed(
    tmp_path: Path, kind: str
) -> None:
    """The alter falls between two pushes of a producer whose reader is open."""
    rng = random.Random(2)
    with served(tmp_path) as (store, server), client(server) as ex:
        table = AlteredTable(store)
        begin = table.upsert(random_rows(rng, table.columns, 6, 9))
        ex.declare("join", JOIN)
        ex.end("build", -1)
        first = [table.upsert(random_rows(rng, table.columns, 4, 9)) for _ in range(3)]
        columns = [name for _, name, _ in table.columns]
        reader = (part for batch in table.table.changes(begin) for part in by_epoch(batch))
        ex.push("probe", 0, 0, next(reader))
        alter(table, rng, kind)
        last = table.upsert(random_rows(rng, table.columns, 4, 9))
        for seq, batch in enumerate(reader, start=1):  # its range ends before the alter
            ex.push("probe", 0, seq, batch)
        if kind == "add":
            rest = list(table.table.changes(first[-1]))
        else:
            late = table.table.changes(first[1])
            assert next(late)["_commit_version"].to_pylist()[-1] == first[2]
            with pytest.raises(el.SchemaChanged) as changed:
                next(late)
            assert changed.value.epoch in table.alters
            rest = list(parts_of_log(table.table.changes, first[-1], last))
        for seq, batch in enumerate(rest, start=3):
            ex.push("probe", 0, seq, batch)
        ex.end("probe", 2 + len(rest))
        staged = Staged(server.location, table, begin, last)
        staged.consume(ex, 0)
        names: list[Any] = [[name for name in b.schema.names if name[0] != "_"] for b in staged.taken["probe"]]
        assert names == [columns] * 3 + [[name for _, name, _ in table.columns]]


# ---- planted bugs ----------------------------------------------------------------------------------------------------


@pytest.mark.planted
def test_an_attempt_that_reads_in_other_columns_is_refused(tmp_path: Path) -> None:
    """A range without its end takes in columns that were added after the first attempt: its batches are others."""
    rng = random.Random(3)
    with served(tmp_path) as (store, server), client(server) as ex:
        table = AlteredTable(store)
        begin = table.upsert(random_rows(rng, table.columns, 6, 9))
        until = table.upsert(random_rows(rng, table.columns, 6, 9))
        ex.declare("join", JOIN)
        ex.push("probe", 0, 0, next(table.table.changes(begin)))
        alter(table, rng, "add")
        with pytest.raises(el.ContentMismatch):
            ex.push("probe", 0, 0, next(table.table.changes(begin)), 1)
        ex.push("probe", 0, 0, next(table.table.changes(begin, until)), 1)
