"""A store on virtual time with tables of the columns (k, g, v), and short ways to drive its jobs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import epochlog as el
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS
from law_queries import KEY, SCHEMA, State, keys_of, state_of, table_of
from stores import STORE, servers

__all__ = ["KEY", "SCHEMA", "Lab", "epochs_of", "keys_of", "mirror", "refuse", "state_of", "sums", "table_of"]

INTERVAL_MS = 1000
PAGE, TXN_AT = 4096, 144
START_MS = EPOCH_ORIGIN_MS + 100 * INTERVAL_MS


class Lab:
    """A store whose clock stands still until `tick`."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.options = {"durability": "os", **options}
        self.now_ms = START_MS
        self.pieces: int | None = None  # rows of a snapshot's piece, for tests that run with pieces and without
        self.store = self.open()

    def open(self) -> el.Store:
        """Another handle of the same store."""
        return el.open(self.root, clock=lambda: self.now_ms, **self.options)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def tick(self, intervals: float = 1) -> None:
        self.now_ms += round(intervals * INTERVAL_MS)

    def root_table(self, name: str = "r", **options: Any) -> el.Table:
        return self.store.create_table(name, SCHEMA, KEY, **options)

    def put(self, rows: State | None = None, table: str = "r") -> int:
        return self.store.table(table).upsert(table_of(rows or {}))

    def job(self, name: str, upstreams: Sequence[str], outputs: Sequence[str] = (), **options: Any) -> el.Job:
        """A job whose outputs default to one of its name with `_out`."""
        return self.store.create_job(
            name, upstreams, dict.fromkeys(outputs or [f"{name}_out"], (SCHEMA, KEY)), **options
        )

    def rows(self, table: str, epoch: int | None = None) -> State:
        return state_of(self.store.table(table).to_arrow(epoch=epoch))

    def state(self, job: str) -> str:
        return self.store.job(job).info.state

    def entries(self, table: str) -> list[tuple[int, int]]:
        """(epoch, rows) of each commit, oldest first."""
        history = self.store.table(table).history().to_pylist()
        return [(row["epoch"], row["rows_upserted"] + row["rows_deleted"]) for row in history[::-1]]

    def txn_id(self) -> int:
        """Return the catalog's last transaction: LMDB keeps it in one of its two meta pages; Redis counts changes."""
        if STORE != "lmdb":
            with servers.redis.client() as client:
                return client.info("persistence")["rdb_changes_since_last_save"]
        head = (self.root / "catalog" / "data.mdb").read_bytes()[: 2 * PAGE]
        return max(struct.unpack_from("<Q", head, page * PAGE + TXN_AT)[0] for page in range(2))


def epochs_of(store: el.Store) -> EpochView:
    handle = store._handle
    return handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, handle.catalog.now_ms()))


def mirror(source: str, output: str, keep: Callable[[int], bool] = lambda v: True) -> Callable[[Any], None]:
    """A refresh that copies what changed, of the rows whose v is to be kept."""

    def refresh(ctx: Any) -> None:
        changes = ctx.changes(source, mode="net").select(["k", "g", "v", "_change_type"]).to_pylist()
        upserts = {
            row["k"]: (row["g"], row["v"]) for row in changes if row["_change_type"] != "delete" and keep(row["v"])
        }
        deletes = {row["k"] for row in changes} - set(upserts)
        if upserts:
            ctx.upsert(output, table_of(upserts))
        if deletes & set(state_of(ctx.output(output))):
            ctx.delete(output, keys_of(deletes))

    return refresh


def sums(source: str, output: str) -> Callable[[Any], None]:
    """A refresh with one row: how many rows there are, and the sum of v."""

    def refresh(ctx: Any) -> None:
        rows = state_of(ctx.table(source))
        ctx.upsert(output, table_of({0: (len(rows), sum(v for _, v in rows.values()))}))

    return refresh


def refuse(ctx: Any) -> None:
    """A refresh that must not be called."""
    raise AssertionError(f"refreshed for {ctx.barrier}")


def commits(steps: Mapping[str, Callable[[], int | None]]) -> dict[str, list[int]]:
    """Steps all jobs until none has anything to do; the epochs that each committed."""
    done: dict[str, list[int]] = {name: [] for name in steps}
    while True:
        committed = {name: step() for name, step in steps.items()}
        for name, epoch in committed.items():
            if epoch is not None:
                done[name].append(epoch)
        if not any(epoch is not None for epoch in committed.values()):
            return done
