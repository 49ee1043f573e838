"""P12: batches pushed to a staged exchange, durable, and pulled by its consumer, beside raw Flight put and get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data import make_workload
from pairs import ReplayClock, Samples, timed, turned
from pyarrow import flight
from report import Book, Figure, Target

from epochlog.exchange import ExchangeClient

OURS, RAW = "epochlog", "raw Flight"
BATCH_ROWS, COPIES = 65_536, 2
DRIVER = Path(__file__).with_name("staged_driver.py")


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """A server in another process; where it listens."""
    command = [sys.executable, str(DRIVER), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.communicate("")


def raw(client: flight.FlightClient, name: str, batches: list[pa.RecordBatch]) -> int:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), batches[0].schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
    return sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(name.encode())))


def staged(location: str, name: str, batches: list[pa.RecordBatch]) -> int:
    with ExchangeClient(location, query=name) as ex:
        ex.declare("all", {0: ["rows"]})
        for seq, batch in enumerate(batches):
            ex.push("rows", 0, seq, batch, wait=False)
        ex.flush()
        ex.end("rows", len(batches) - 1)
        with ex.consume("all", incarnation=0) as mail:
            return sum(batch.num_rows for _, _, batch in mail)


def check(work: Callable[[str], int], name: str, rows: int) -> None:
    assert work(name) == rows


def drop(location: str, name: str) -> None:
    with ExchangeClient(location, query=name) as ex:
        ex.drop()


@pytest.fixture(scope="module")
def samples(scale: float, book: Book, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    base = make_workload(scale).base.combine_chunks()
    batches = base.to_batches(max_chunksize=BATCH_ROWS) * COPIES
    rows = base.num_rows * COPIES
    with serving("raw") as memory, serving("staged", tmp_path_factory.mktemp("staged")) as location:
        client = flight.connect(memory)
        work = {OURS: lambda name: staged(location, name, batches), RAW: lambda name: raw(client, name, batches)}
        took_by_peer: Samples = {name: [] for name in work}
        for place in range(-1, 15 if scale >= 1 else 3):
            for who in turned(list(work), place):
                took = timed(partial(check, work[who], f"q{place + 1}", rows))
                if place >= 0:
                    took_by_peer[who].append(took)
            drop(location, f"q{place + 1}")
        client.close()
    what = f"push and pull {rows:,} rows ({sum(batch.nbytes for batch in batches) / 1e6:.0f} MB), durable"
    book.add(Figure("P12", what, took_by_peer, (Target(OURS, RAW, 2.5, "≥ 0.4 of the rate"),)))
    return took_by_peer


@pytest.mark.parametrize("who", [OURS, RAW])
def test_p12_staged(who: str, clock: ReplayClock, benchmark: Any, samples: Samples) -> None:
    clock.play(benchmark, samples[who])
