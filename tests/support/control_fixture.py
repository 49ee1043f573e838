"""Fixtures for tests of the control stream: a served store with short times, workers, and rows to write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.checkpoint import JobSettings
from ports import fixed_location
from wait_until import WAIT_LIMIT_S

TOKEN = "write-Token-4711"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def settings(
    *, timeout_ms: int = 30_000, attempt_ms: int = 60_000, interval_ms: int | None = 20
) -> el.CoordinatorSettings:
    checkpoints = JobSettings(interval_ms=interval_ms, timeout_ms=attempt_ms)
    return el.CoordinatorSettings(heartbeat_ms=50, timeout_ms=timeout_ms, checkpoints=checkpoints)


def rows(*ids: int, v: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


@contextmanager
def served(folder: Path, times: el.CoordinatorSettings | None = None) -> Iterator[tuple[el.Store, el.StoreServer]]:
    """A new store with the table `clicks`, and its server."""
    with el.open(folder / "store", durability="os") as store:
        store.create_table("clicks", SCHEMA, ["id"])
        with el.serve(store, fixed_location(), token=TOKEN, control=times or settings()) as server:
            yield store, server


def open_worker(server: el.StoreServer | str, store: el.Store) -> el.Worker:
    return el.Worker(server if isinstance(server, str) else server.location, store, token=TOKEN)


def attach(worker: el.Worker, index: int = 0, of: int = 1, name: str = "ld", **options: Any) -> Any:
    return worker.attach(name, index=index, of=of, tables=["clicks"], timeout=WAIT_LIMIT_S, **options)


def ids(store: el.Store, table: str = "clicks") -> list[int]:
    return store.table(table).to_arrow(columns=["id"])["id"].to_pylist()
