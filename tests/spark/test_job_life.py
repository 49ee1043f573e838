"""Pieces, rebuilds and cancelling on Spark: the same life of a job with step and with start."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import epochlog as el
from spark_store import rows

pytestmark = pytest.mark.spark


def copy(ctx) -> None:
    """The orders with the rows that earlier pieces made counted beside them."""
    changes = ctx.changes("orders")
    ctx.upsert("copied", changes.where("_change_type != 'delete'").select("id", "amount"))
    ctx.delete("copied", changes.where("_change_type = 'delete'").select("id"))


def made(lake, **options) -> el.Job:
    schema = pa.schema([lake.orders.schema.field("id"), lake.orders.schema.field("amount")])
    return lake.store.create_job("copy", ["orders"], {"copied": (schema, ["id"])}, **options)


def is_copied(lake) -> None:
    wanted = lake.orders.to_arrow(columns=["id", "amount"])
    assert lake.store.table("copied").to_arrow().to_pylist() == wanted.to_pylist()


def test_pieces_one_by_one_and_then_by_a_query(lake) -> None:
    lake.orders.upsert(rows(0, 25))
    lake.store.checkpoint()
    job, seen = made(lake, snapshot_rows=10), []

    def look(ctx) -> None:
        seen.append((ctx.changes("orders").count(), ctx.output("copied").count(), ctx.table("orders").count()))
        copy(ctx)

    assert job.step(lake.spark, look) == 0
    assert job.info.snapshot_rows == 10 and lake.store.table("copied").info.max_committed_epoch == 0
    lake.orders.upsert(rows(100, 1))  # not of the snapshot's epoch
    query = job.start(lake.spark, look, trigger="available_now")
    query.awaitTermination(120)
    assert seen[:3] == [(10, 0, 25), (10, 10, 25), (5, 20, 25)]
    lake.store.checkpoint()
    while job.step(lake.spark, copy) is not None:
        pass
    is_copied(lake)


def test_a_rebuild_is_one_difference(lake) -> None:
    lake.orders.upsert(rows(0, 20))
    lake.store.checkpoint()
    job = made(lake)
    first = job.step(lake.spark, copy)
    assert first is not None
    lake.orders.upsert(rows(3, 2, amount=9.0))
    job.rebuild()
    assert job.step(lake.spark, copy) is not None
    is_copied(lake)
    assert lake.store.table("copied").changes(first).read_all().column("id").to_pylist() == [3, 4]


def test_cancelled_under_a_live_query(lake) -> None:
    lake.orders.upsert(rows(0, 20))
    lake.store.checkpoint()
    job, at_work, cancelled = made(lake, snapshot_rows=1), threading.Event(), threading.Event()

    def slowly(ctx) -> None:
        copy(ctx)
        at_work.set()
        assert cancelled.wait(60)

    query = job.start(lake.spark, slowly)
    assert at_work.wait(60)
    stopper = threading.Thread(target=job.cancel)
    stopper.start()
    cancelled.set()
    stopper.join()
    assert not query.isActive and lake.store.jobs() == []
    with pytest.raises(el.JobNotFound):
        job.step(lake.spark, copy)
