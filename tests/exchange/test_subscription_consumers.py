"""Subscriptions under a durable name: what was acknowledged never comes again, what was not comes whole."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.exchange.subscription import client
from epochlog.exchange.subscription.messages import Answer, encode
from epochlog.exchange.subscription.server import SubscriptionLimits
from epochlog.exchange.transport.duplex import ClientStream
from epochlog.store.changelog import consumers, log_reader
from epochlog.store.changelog.consumer_info import list_consumers
from epochlog.store.changelog.consumers import reset_consumer
from epochlog.store.env.backoff import Backoff
from subscription_fixture import TOKEN, BreakingConnections, Replica, rows, served
from wait_until import WAIT_LIMIT_S, wait_until


@pytest.fixture(autouse=True)
def quick_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(first_s=0.005, limit_s=1.0))


@pytest.mark.rule("4.11")
def test_it_goes_on_after_what_was_acknowledged(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(1, 2))
        with serving.subscribe(consumer="dash") as sub:
            assert next(sub).num_rows == 2
            sub.ack(first)
            second = table.upsert(rows(3))
            third = table.upsert(rows(4))
            assert next(sub)["id"].to_pylist() == [3] and next(sub)["id"].to_pylist() == [4]
            sub.ack(second)
            sub.ack(first)  # says nothing new
        with serving.subscribe(consumer="dash") as sub:
            assert sub.epoch == second
            assert next(sub)["id"].to_pylist() == [4] and sub.epoch == third
            sub.ack(third)
        with serving.subscribe(consumer="dash") as sub:
            assert sub.poll(0.05) is None
            sub.ack(third)
        with serving.subscribe(consumer="other") as sub:
            assert next(sub).num_rows == 4


def test_rows_that_were_not_acknowledged_whole_come_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 2)
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(*range(10)))
        with serving.subscribe(consumer="dash") as sub:
            next(sub)
            sub.ack()  # nothing is complete, so it says nothing
            for epoch in (first, first - 1, 0):
                with pytest.raises(el.InvalidInput, match="not (returned|delivered) completely"):
                    sub.ack(epoch)
        last = table.upsert(rows(3, 10, v=1))
        with serving.subscribe(consumer="dash") as sub:
            replica = Replica().follow(sub, last)
            assert replica.same_as(table) and len(replica.received) == 11
            sub.ack(last)


def test_an_epoch_is_acknowledged_when_all_of_it_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 2)
    with served(tmp_path) as (_, table, serving):
        with serving.subscribe(consumer="dash") as sub:
            epoch = table.upsert(rows(*range(6)))
            next(sub)
            with pytest.raises(el.InvalidInput, match="not (returned|delivered) completely"):
                sub.ack(epoch)
        line = ClientStream(serving.location, b'subscribe:{"table":"t","consumer":"dash"}', token=TOKEN, tls_roots=None)
        line.send(encode(Answer("ack", epoch + (1 << 30))))  # the server does not take a client's word for it
        while line.read_frame() is not None:
            pass
        line.close()
        assert isinstance(line.reason, el.InvalidInput) and "not delivered completely" in str(line.reason)
        with serving.subscribe() as sub, pytest.raises(el.InvalidInput, match="consumer="):
            sub.ack(0)


def test_the_newer_of_two_under_one_name_fences_the_older(tmp_path: Path) -> None:
    with served(tmp_path, SubscriptionLimits(beat_s=0.05)) as (_, table, serving):
        epoch = table.upsert(rows(1))
        with ExitStack() as stack:
            older = stack.enter_context(serving.subscribe(consumer="dash"))
            assert next(older).num_rows == 1
            newer = stack.enter_context(serving.subscribe(consumer="dash"))
            with pytest.raises(el.Fenced):
                older.ack(epoch)
            with pytest.raises(el.Fenced):
                next(older)
            assert next(newer).num_rows == 1
            (info,) = list_consumers(serving.store._handle)
            assert info.position is None
            newer.ack(epoch)
        with serving.subscribe(consumer="dash") as third:
            reset_consumer(serving.store._handle, "dash", "snapshot")
            with pytest.raises(el.Fenced):
                third.poll(WAIT_LIMIT_S)  # it learns of it though nothing happens


def test_one_that_was_fenced_while_it_was_cut_off_does_not_come_back(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1))
        with serving.subscribe(consumer="dash") as older:
            next(older)
            serving.stop()
            consumers.open_consumer(serving.store._handle, "dash", ["t"])
            serving.start()
            with pytest.raises(el.Fenced):
                next(older)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_one_that_was_cut_off_is_still_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 2)
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(*range(5)))
        with BreakingConnections(serving, [cut, cut]).subscribe(consumer="dash") as sub:
            for step in range(3):
                epoch = table.upsert(rows(*range(step, step + 5), v=step))
                Replica().follow(sub, epoch)
                sub.ack(epoch)
            (info,) = list_consumers(serving.store._handle)
            assert (info.position, info.incarnation) == (table.info.max_committed_epoch, 1)


def test_an_acknowledgement_waits_for_a_server_that_comes_back(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        epoch = table.upsert(rows(1))
        with serving.subscribe(consumer="dash") as sub:
            next(sub)
            serving.stop()
            with pytest.raises(el.ServerUnavailable, match="acknowledge it again"):
                sub.ack(epoch, timeout=0.05)
            starting = threading.Timer(0.05, serving.start)
            starting.start()
            sub.ack(epoch)
            starting.join()
            (info,) = list_consumers(serving.store._handle)
            assert info.position == epoch


def test_rows_are_acknowledged_over_another_connection_than_brought_them(tmp_path: Path) -> None:
    """It was cut after the last of the rows, before the word that they are the last."""
    with served(tmp_path) as (_, table, serving):
        epoch = table.upsert(rows(1))
        with BreakingConnections(serving, [2]).subscribe(consumer="dash") as sub:
            next(sub)
            sub.ack(epoch)
            (info,) = list_consumers(serving.store._handle)
            assert info.position == epoch


def test_one_that_is_too_old_is_told_or_begins_anew(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(1))
        with serving.subscribe(consumer="dash", keep=0) as sub:
            next(sub)
            sub.ack(first)
        wait_until(lambda: serving.service._open_count == 0)
        table.upsert(rows(2))
        table.truncate_log(table.upsert(rows(3)))
        with pytest.raises(el.LogTruncated, match="dash"):
            serving.subscribe(consumer="dash")
        with serving.subscribe(consumer="dash", too_old="snapshot") as sub:
            batch = next(sub)
            assert batch["id"].to_pylist() == [1, 2, 3] and set(batch["_change_type"].to_pylist()) == {"insert"}


def test_what_is_asked_wrongly_of_a_consumer_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (store, table, serving):
        epoch = table.upsert(rows(1))
        store.create_table("u", table.schema, ["id"])
        serving.subscribe(consumer="dash").close()
        wrong: list[dict[str, Any]] = [
            {"consumer": "a b"},
            {"consumer": ""},
            {"consumer": "dash", "after": epoch},
            {"consumer": "dash", "too_old": "never"},
            {"consumer": "dash", "keep": -1},
            {"consumer": "dash", "name": "u"},
        ]
        for wanted in wrong:
            with pytest.raises(el.InvalidInput):
                serving.subscribe(**wanted)


def test_the_end_of_the_data_is_acknowledged_too(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1))
        end = table.finish()
        with serving.subscribe(consumer="dash") as sub:
            assert [batch.num_rows for batch in sub] == [1]
            sub.ack()
        with serving.subscribe(consumer="dash") as sub:
            assert list(sub) == [] and sub.epoch == end


def test_it_holds_the_log_while_it_is_away(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(1))
        with serving.subscribe(consumer="dash") as sub:
            next(sub)
            sub.ack(first)
        wait_until(lambda: serving.service._open_count == 0)
        second = table.upsert(rows(2))
        with pytest.raises(el.LogHeld):
            table.truncate_log(second)
        with serving.subscribe(consumer="dash") as sub:
            assert next(sub)["id"].to_pylist() == [2]
            sub.ack(second)
            assert sub.poll(0) is None
        wait_until(lambda: serving.service._open_count == 0)
        table.truncate_log(second)
