"""P5: a log of 5 M rows replayed over Flight in one stream, beside raw Flight that has the same batches in memory.

The client is one process and reads both; each of the two servers is in this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest
from data import PLAIN, Shape
from pairs import ReplayClock, Samples, turned
from pyarrow import flight
from report import Book, Figure, Target

import epochlog as el

ROWS, COMMITS = 5_000_000, 10
OURS, RAW = "epochlog", "raw Flight"
RATE = (Target(OURS, RAW, 1 / 0.7, "≤ 1.43 (0.7 of its rate)"),)
MESSAGE_ROWS = 1 << 16
DRIVER = Path(__file__).with_name("flight_driver.py")


class Raw(flight.FlightServerBase):
    """Gives one table that it has in memory."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = pa.Table.from_batches(table.to_batches(max_chunksize=MESSAGE_ROWS))

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        return flight.FlightInfo(self._table.schema, descriptor, [flight.FlightEndpoint(b"all", [])])

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._table)


def replayed(folder: Path, shape: Shape, rows: int, rounds: int) -> Figure:
    """A log of so many rows, each key once, in commits that each spread over all keys."""
    with el.open(folder, durability="os") as store:
        table = store.create_table("t", shape.schema, primary_key=list(shape.primary_key))
        chance = np.random.default_rng(5)
        for keys in np.array_split(chance.permutation(rows) * 64, COMMITS):
            table.upsert(shape.make(keys, chance))
        log = table.changes(0).read_all()
        samples = beside_raw(store, "t", log, rounds)
    what = f"Flight replay of a log of {rows / 1e6:g} M rows ({log.nbytes / 1e6:.0f} MB), one stream"
    return Figure("P5", what, samples, RATE, shape=shape.name)


def beside_raw(store: el.Store, table: str, log: pa.Table, rounds: int) -> Samples:
    """Milliseconds of the table's whole log over Flight, and of the same rows by a server that has them in memory."""
    raw = Raw(log)
    with (
        el.serve(store) as server,
        LogReaderProcess(log.num_rows, server.location, f"grpc://127.0.0.1:{raw.port}") as client,
    ):
        samples: Samples = {OURS: [], RAW: []}
        places = {OURS: server.location, RAW: f"grpc://127.0.0.1:{raw.port}"}
        for place in range(-2, rounds):
            for name in turned([OURS, RAW], place):
                took_ms = client.read(places[name], table)
                if place >= 0:
                    samples[name].append(took_ms)
    raw.shutdown()
    return samples


class LogReaderProcess:
    """A Flight client in a process of its own, which reads a table's log to its end."""

    def __init__(self, rows: int, *locations: str) -> None:
        self._rows, command = rows, [sys.executable, str(DRIVER), *locations]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def read(self, location: str, table: str, *, watched: bool = False) -> float:
        """Milliseconds, or MiB where its memory is watched."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = [location, {"changes": table, "after": 0}, watched]
        print(json.dumps(order), file=self._process.stdin, flush=True)
        took_ms, row_count = self._process.stdout.readline().split()
        assert int(row_count) == self._rows
        return float(took_ms)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    rows = max(10_000, round(ROWS * scale))
    flight_figure = replayed(tmp_path_factory.mktemp("flight"), PLAIN, rows, 21 if scale >= 1 else 3)
    book.add(flight_figure)
    return flight_figure


@pytest.mark.parametrize("who", [OURS, RAW])
def test_p5_replay(who: str, clock: ReplayClock, benchmark: Any, figure: Figure) -> None:
    clock.play(benchmark, figure.samples[who])
