"""Fixtures of the staged exchange: a served store, batches that name their channel and sequence, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged.pull_client import StageReader
from wait_until import WAIT_LIMIT_S

TOKEN = "the-token"
JOIN: Mapping[int, list[str]] = {-1: ["build"], 0: ["probe"]}
Given = tuple[str, int]


def batch(channel: str, seq: int, rows: int = 3) -> pa.RecordBatch:
    """Make a batch that names its channel and sequence, so that a test detects a wrong one."""
    return pa.record_batch({"channel": [channel] * rows, "seq": pa.array([seq] * rows, pa.int64()), "n": range(rows)})


@contextmanager
def served(folder: Path, name: str = "store") -> Iterator[tuple[el.Store, el.StoreServer]]:
    with el.open(folder / name, durability="os") as store, el.serve(store, token=TOKEN) as server:
        yield store, server


def client(server: el.StoreServer | str, query: str = "q1", timeout: float = WAIT_LIMIT_S) -> ExchangeClient:
    location = server if isinstance(server, str) else server.location
    return ExchangeClient(location, token=TOKEN, query=query, timeout=timeout)


def fill(
    ex: ExchangeClient, channel: str, stage: int, seqs: Iterable[int], *, end: bool = True, attempt: int = 0
) -> None:
    """Push these sequences, and the end mark behind them."""
    last = -1
    for seq in seqs:
        ex.push(channel, stage, seq, batch(channel, seq), attempt)
        last = seq
    if end:
        ex.end(channel, last, attempt)


def taken(mail: StageReader, count: int | None = None) -> list[Given]:
    """The next deliveries, all of them or so many; each must be what it says."""
    batches: list[Given] = []
    while len(batches) != count:
        delivery = mail.poll(WAIT_LIMIT_S)
        if delivery is None:
            assert count is None and mail.done, f"{batches}, and no more came"
            return batches
        channel, seq, data = delivery
        assert data.equals(batch(channel, seq, data.num_rows)), f"another batch came as {channel} {seq}"
        batches.append((channel, seq))
    return batches


def run_of(channel: str, seqs: Iterable[int]) -> list[Given]:
    return [(channel, seq) for seq in seqs]


def files_of(store: el.Store) -> set[str]:
    """The files of exchanges that lie in the store, relative to its root."""
    handle = store._handle
    return {info.path for info in handle.files.list(handle.table_folder(0))}
