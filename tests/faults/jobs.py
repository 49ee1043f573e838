"""The part of the story that jobs play: a snapshot in pieces, a rebuild, one that is parked; and what holds after it.

Every job here copies its upstream, so at the epoch of its commit its output is the upstream, whatever was killed when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import epochlog as el

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), pa.field("s", pa.string())])
COPIES = {"view": "a", "late": "d"}
"""Jobs and what they read; the output is named for the job."""
Attempt = Callable[[Callable[[], Any]], Any]


def copy(upstream: str, output: str) -> Callable[[Any], None]:
    def refresh(ctx: Any) -> None:
        changes = ctx.changes(upstream, mode="net")
        gone = changes.column("_change_type").to_pylist()
        deletes = [kind == "delete" for kind in gone]
        ctx.delete(output, changes.filter(deletes).select(["id"]))
        ctx.upsert(output, changes.filter([not is_delete for is_delete in deletes]).select(SCHEMA.names))

    return refresh


def copy_whole(ctx: Any) -> None:
    """`copy` for the view, with all rows written again and deletes of keys that are not there: little of it changes."""
    copy("a", "view")(ctx)
    ctx.upsert("view", ctx.table("a").select(SCHEMA.names))
    ctx.delete("view", pa.table({"id": pa.array([998, 999], pa.int64())}))


def run_jobs(store: el.Store, commit: Callable[[dict[str, Any]], int], attempt: Attempt) -> None:
    """`commit` is the story's: of root tables, told to the ledger."""
    make(store, "view", attempt, snapshot_rows=25)
    attempt(store.checkpoint)
    step(store, "view", attempt)
    step_all(store, "view", attempt)
    attempt(lambda: store.table("view").alter(changelog="full"))
    commit({"a": [{9: 10, 10: 10, 11: None}]})
    attempt(store.checkpoint)
    attempt(lambda: store.job("view").step_local(copy_whole))
    commit({"a": [{9: 11}]})
    attempt(lambda: store.job("view").rebuild())
    step_all(store, "view", attempt)
    make(store, "late", attempt)
    step_all(store, "late", attempt)
    commit({"d": [{9: 11}]})
    while attempt(lambda: store.job("late").info.state) != "parked":  # its log is kept for no time, and time goes by
        attempt(lambda: store.compact("d"))


def make(store: el.Store, name: str, attempt: Attempt = lambda call: call(), **options: Any) -> None:
    def create() -> None:
        if name not in {info.name for info in store.jobs()}:
            store.create_job(name, [COPIES[name]], {name: (SCHEMA, ["id"])}, **options)

    attempt(create)


def step(store: el.Store, name: str, attempt: Attempt = lambda call: call()) -> int | None:
    return attempt(lambda: store.job(name).step_local(copy(COPIES[name], name)))


def step_all(store: el.Store, name: str, attempt: Attempt = lambda call: call()) -> None:
    attempt(store.checkpoint)
    while step(store, name, attempt) is not None:
        pass


def resume_jobs(store: el.Store) -> None:
    """Recover the jobs after a crash: rebuild the parked ones and step all to the newest epoch."""
    for info in store.jobs():
        if info.state == "parked":
            store.job(info.name).rebuild()
        step_all(store, info.name)
        assert store.job(info.name).info.state == "running"
        assert rows(store, info.name) == rows(store, COPIES[info.name])


def check_jobs(store: el.Store) -> None:
    """Every output is its upstream as of its newest commit, where that can still be read; and it is there at all."""
    for info in store.jobs():
        table, upstream = store.table(info.name), store.table(COPIES[info.name])
        assert table.info.max_committed_epoch == info.committed_epoch
        if info.committed_epoch and upstream.info.safe_epoch <= info.committed_epoch:
            try:
                wanted = rows(store, upstream.name, info.committed_epoch)
            except el.EpochNotCommitted:  # the upstream was made after that boundary
                wanted = []
            assert rows(store, info.name) == wanted, info


def rows(store: el.Store, table: str, epoch: int | None = None) -> list[dict[str, Any]]:
    return store.table(table).to_arrow(epoch=epoch).to_pylist()
