"""Subscriptions: a table's rows whole, then each change once, then what is new, however often the connection breaks."""

from __future__ import annotations

import json
import random
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.errors import BadMessage
from epochlog.exchange.subscription import client, table_feed
from epochlog.exchange.subscription.messages import Mark, Request
from epochlog.exchange.subscription.server import SubscriptionLimits, _Subscription
from epochlog.exchange.transport import message_fields
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits
from epochlog.exchange.transport.duplex import ClientStream
from epochlog.exchange.transport.message_fields import checks_of
from epochlog.store.catalog.keys import head_key
from epochlog.store.changelog import log_reader
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.backoff import Backoff
from row_sets import WIDE, wide_rows
from subscription_fixture import SCHEMA, TOKEN, BreakingConnections, Replica, rows, served
from wait_until import WAIT_LIMIT_S, wait_until


@pytest.fixture(autouse=True)
def quick_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BACKOFF", Backoff(first_s=0.005, limit_s=1.0))


def test_the_rows_come_first_then_each_change_then_what_is_new(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1, 2, 3))
        table.delete(rows(2).select(["id"]))
        with serving.subscribe() as sub:
            assert sub.epoch is None
            first = next(sub)
            assert first.column("id").to_pylist() == [1, 3]
            assert first.column("_change_type").to_pylist() == ["insert", "insert"]
            assert first.schema.names == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
            assert sub.epoch == table.info.max_committed_epoch
            assert sub.poll(0) is None
            for change in (lambda: table.upsert(rows(7, v=1)), lambda: table.delete(rows(1).select(["id"]))):
                epoch = change()
                batch = next(sub)
                assert batch["_commit_version"].to_pylist() == [epoch] == [sub.epoch]
            assert batch.to_pylist()[0] | {"_commit_timestamp": 0} == {
                "id": 1, "v": None, "_change_type": "delete", "_commit_version": epoch, "_commit_timestamp": 0,
            }  # fmt: skip


def test_it_begins_after_an_epoch_and_gives_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        first, second = table.upsert(rows(1, v=5)), table.upsert(rows(1, 2, v=6))
        with serving.subscribe(after=first, columns=["v"]) as sub:
            assert sub.epoch == first
            batch = next(sub)
            assert batch.schema.names[:2] == ["v", "_change_type"] and batch["v"].to_pylist() == [6, 6]
            assert sub.epoch == second
        with serving.subscribe(after=0) as sub:
            assert [next(sub)["_commit_version"][0].as_py() for _ in range(2)] == [first, second]


def test_a_large_epoch_comes_in_slices_and_is_complete_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(*range(25)))
        with serving.subscribe() as sub:
            second = table.upsert(rows(*range(25), v=1))
            sizes, through = [], []
            while sub.epoch != second:
                sizes.append(next(sub).num_rows)
                through.append(sub.epoch)
        assert max(sizes) <= 10 and sum(sizes) == 50
        assert through == [None] * (len(through) // 2 - 1) + [first] * (len(through) // 2) + [second]


def sent_marks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the list to which the server adds the kind of each mark with rows, and the number of the rows."""
    sent: list[tuple[str, int]] = []
    plainly = _Subscription._send

    def noted(self: _Subscription, message: bytes, rows: pa.RecordBatch | None = None) -> None:
        if rows is not None:
            sent.append((json.loads(message)["kind"], rows.num_rows))
        plainly(self, message, rows)

    monkeypatch.setattr(_Subscription, "_send", noted)
    return sent


def test_small_epochs_come_in_one_message_and_are_returned_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sent_marks(monkeypatch)
    with served(tmp_path) as (_, table, serving):
        epochs = [table.upsert(rows(number, number + 1)) for number in range(20)]
        with serving.subscribe(after=0) as sub:
            taken = [(next(sub)["_commit_version"].to_pylist(), sub.epoch) for _ in epochs]
        assert taken == [([epoch] * 2, epoch) for epoch in epochs]
        assert sent == [("epochs", 40)]


def test_a_large_epoch_among_small_ones_comes_in_slices_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    sent = sent_marks(monkeypatch)
    with served(tmp_path) as (_, table, serving):
        sizes = [3, 3, 25, 4, 4, 4, 10, 2, *[1] * 12]  # more than the tail cache has: it decodes each epoch by itself
        epochs = [table.upsert(rows(*range(size), v=place)) for place, size in enumerate(sizes)]
        with serving.subscribe(after=0) as sub:
            replica = Replica()
            seen: list[int] = []
            while sub.epoch != epochs[-1]:
                batch = next(sub)
                assert len(set(batch["_commit_version"].to_pylist())) == 1
                seen += batch["_commit_version"].to_pylist()
                replica.apply(batch)
        assert seen == [epoch for epoch, size in zip(epochs, sizes, strict=True) for _ in range(size)]
        assert max(count for _, count in sent) <= 10 and len(sent) < len(sizes) // 2


def alone(kind: type[Request], *arguments: Any, together: bool) -> Request:
    assert together
    return kind(*arguments)


def test_a_reader_that_does_not_say_so_gets_each_epoch_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscribe as an earlier client does."""
    monkeypatch.setattr("epochlog.exchange.client.Request", partial(alone, Request))
    sent = sent_marks(monkeypatch)
    with served(tmp_path) as (_, table, serving):
        epochs = [table.upsert(rows(number)) for number in range(5)]
        with serving.subscribe(after=0) as sub:
            assert [next(sub)["_commit_version"][0].as_py() for _ in epochs] == epochs
        assert sent == [("rows", 1)] * 5


@pytest.mark.parametrize(("epochs", "mark"), [([], 7), ([5, 6], 7), ([5, 7, 8], 7)])
def test_rows_that_do_not_fit_their_mark_are_a_bad_message(epochs: list[int], mark: int) -> None:
    rows_of = pa.record_batch({"_commit_version": pa.array(epochs, pa.int64())})
    with pytest.raises(BadMessage):
        client._items(Mark("epochs", "changes", 0, mark, last=True, size=9), rows_of)


def test_a_server_that_does_not_know_of_it_is_asked_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a field that it does not know, as an earlier server does."""
    known = {name: check for name, check in checks_of(Request).items() if name != "together"}
    plainly = message_fields.checks_of
    monkeypatch.setattr(message_fields, "checks_of", lambda kind: known if kind is Request else plainly(kind))
    sent = sent_marks(monkeypatch)
    with served(tmp_path) as (_, table, serving):
        epochs = [table.upsert(rows(number)) for number in range(3)]
        with serving.subscribe(after=0) as sub:
            assert [next(sub)["_commit_version"][0].as_py() for _ in epochs] == epochs
        assert sent == [("rows", 1)] * 3
        with pytest.raises(el.InvalidInput, match="nosuch"):
            serving.subscribe(after=0, columns=["nosuch"])


def test_a_connection_that_breaks_after_each_message_repeats_and_misses_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 7)
    plainly, count = _Subscription._send, [0]

    def breaking(self: _Subscription, message: bytes, rows: pa.RecordBatch | None = None) -> None:
        plainly(self, message, rows)
        count[0] += rows is not None
        if rows is not None and count[0] % 2 == 0:
            self._stream.abort()

    with served(tmp_path) as (_, table, serving):
        epochs = [table.upsert(rows(*range(1 + number % 9), v=number)) for number in range(30)]
        monkeypatch.setattr(_Subscription, "_send", breaking)
        with serving.subscribe(after=0) as sub:
            seen: list[int] = []
            while sub.epoch != epochs[-1]:
                seen += next(sub)["_commit_version"].to_pylist()
        assert seen == [epoch for number, epoch in enumerate(epochs) for _ in range(1 + number % 9)]
        assert count[0] > 8


def test_epochs_of_one_commit_are_told_apart(tmp_path: Path) -> None:
    with served(tmp_path) as (store, table, serving), serving.subscribe() as sub:
        writer, base = table.writer(), store.last_epoch
        labels = [base + 4096 * step for step in (1, 2, 3)]
        segments: list[el.Segment] = []
        for label in labels[:2]:
            writer.upsert(rows(1, label))
            segments += writer.seal(label)
        store.commit({"t": segments}, epoch=labels[2])
        assert [next(sub)["_commit_version"].to_pylist() for _ in range(2)] == [[label] * 2 for label in labels[:2]]
        wait_until(lambda: sub.poll(0) is None and sub.epoch == labels[2])


def test_nested_and_rare_types_arrive_as_they_are(tmp_path: Path) -> None:
    with served(tmp_path) as (store, _, serving):
        schema = WIDE.schema.append(pa.field("d", pa.dictionary(pa.int8(), pa.string())))
        table = store.create_table("wide", schema, ["id"])

        def more(ids: list[int], salt: int) -> pa.Table:
            words = pa.array([f"w{salt}{i % 3}" for i in ids]).dictionary_encode().cast(schema.field("d").type)
            return wide_rows(ids, salt).append_column("d", words)

        table.upsert(more(list(range(20)), 0))
        with serving.subscribe("wide") as sub:
            given = next(sub).select(schema.names)
            assert pa.Table.from_batches([given]).cast(table.schema).equals(table.to_arrow())
            for salt in (1, 2):  # with other words each
                table.upsert(more(list(range(5)), salt))
                wanted = table.to_arrow().slice(0, 5)
                assert pa.Table.from_batches([next(sub).select(schema.names)]).cast(table.schema).equals(wanted)


def test_an_empty_table_is_complete_at_once_and_then_followed(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving), serving.subscribe() as sub:
        wait_until(lambda: sub.poll(0) is None and sub.epoch == 0)
        epoch = table.upsert(rows(1))
        assert next(sub)["id"].to_pylist() == [1] and sub.epoch == epoch


def test_it_ends_with_the_data_of_the_table(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1))
        with serving.subscribe() as sub:
            next(sub)
            table.upsert(rows(2))
            end = table.finish()
            assert [batch["id"].to_pylist() for batch in sub] == [[2]]
            assert sub.epoch == end and sub.ended
        with serving.subscribe() as again:
            assert [batch["id"].to_pylist() for batch in again] == [[1, 2]] and again.epoch == end


def test_what_goes_wrong_is_told_by_its_name(tmp_path: Path) -> None:
    with served(tmp_path) as (store, table, serving):
        first = table.upsert(rows(1))
        for wanted, error in (
            ({"name": "nothing"}, el.TableNotFound),
            ({"columns": ["w"]}, el.InvalidInput),
            ({"columns": "v"}, el.InvalidInput),
            ({"after": -1}, el.InvalidInput),
            ({"after": first + (1 << 30)}, el.EpochNotCommitted),
        ):
            with pytest.raises(error):
                serving.subscribe(**wanted)
        second = table.upsert(rows(2))
        table.truncate_log(second)
        with pytest.raises(el.LogTruncated, match="without `after`"):
            serving.subscribe(after=0)
        with serving.subscribe() as sub:
            assert next(sub).num_rows == 2
            store.drop_table("t")
            with pytest.raises(el.TableDropped):
                next(sub)
            with pytest.raises(el.TableDropped):
                sub.poll(0)
        with el.connect(serving.location, token="x") as stranger, pytest.raises(el.AccessDenied):
            stranger.subscribe("t")
        with el.connect(serving.location, token="r") as reader, pytest.raises(el.TableNotFound):
            reader.subscribe("t")
    with el.connect(serving.location) as nobody, pytest.raises(el.ServerUnavailable):
        nobody.subscribe("t")
    with pytest.raises(el.StoreClosed):
        nobody.subscribe("t")


def test_close_ends_the_iteration_in_another_thread(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1))
        sub, given, first = serving.subscribe(), [], threading.Event()

        def read() -> None:
            for batch in sub:
                given.append(batch.num_rows)
                first.set()

        reading = threading.Thread(target=read)
        reading.start()
        assert first.wait(WAIT_LIMIT_S)
        sub.close()
        reading.join(WAIT_LIMIT_S)
        assert not reading.is_alive() and given == [1]
        sub.close()
        wait_until(lambda: serving.service._open_count == 0)


def test_what_is_read_is_held_until_it_is_closed(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(1))
        with serving.subscribe(after=first):
            second = table.upsert(rows(2))
            with pytest.raises(el.LogHeld):
                table.truncate_log(second)
        wait_until(lambda: serving.service._open_count == 0)
        table.truncate_log(second)


# ---- connections that break --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 14))
def test_wherever_it_is_cut_it_goes_on_without_a_gap_or_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """The connection, and the next three, break after so many messages: within the rows, between, within an epoch."""
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 4)
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(*range(10)))
        breaking = BreakingConnections(serving, [cut, max(cut - 3, 0), cut, 2])
        with breaking.subscribe() as sub:
            for step in range(3):
                table.upsert(rows(*range(step, step + 9), v=step))
            last = table.delete(rows(1, 2, 3).select(["id"]))
            assert Replica().follow(sub, last).same_as(table)
            assert breaking.dials > 1


def test_a_server_that_comes_back_at_its_port_is_found_again(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1, 2))
        with serving.subscribe() as sub:
            replica = Replica().follow(sub, table.info.max_committed_epoch)
            serving.stop()
            epoch = table.upsert(rows(2, 3, v=1))
            assert sub.poll(0.05) is None
            serving.start()
            assert replica.follow(sub, epoch).same_as(table)


def test_one_that_does_not_come_back_is_given_up_after_what_had_come(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        epoch = table.upsert(rows(1))
        with serving.subscribe(reconnect=0.1) as sub:
            wait_until(lambda: sub._queue)
            serving.stop()
            assert next(sub).num_rows == 1
            with pytest.raises(el.ServerUnavailable, match=rf"through epoch {epoch} \(.*Z\) were returned"):
                next(sub)


def test_a_table_made_anew_under_its_name_is_another_one(tmp_path: Path) -> None:
    with served(tmp_path) as (store, table, serving):
        table.upsert(rows(1))
        with serving.subscribe() as sub:
            next(sub)
            serving.stop()
            store.drop_table("t")
            store.create_table("t", SCHEMA, ["id"]).upsert(rows(5))
            serving.start()
            with pytest.raises(el.TableDropped):
                next(sub)


@pytest.mark.medium
def test_a_server_that_fails_at_each_try_is_given_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1))
        with serving.subscribe(reconnect=0.3) as sub:
            next(sub)

            def broken(self: Any, view: Any) -> Any:
                raise ZeroDivisionError

            monkeypatch.setattr(table_feed.TableFeed, "_plan_round", broken)
            table.upsert(rows(2))
            with pytest.raises(el.ServerUnavailable, match="own log"):
                next(sub)


def test_rows_that_were_half_given_and_let_go_meanwhile_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 1)
    with served(tmp_path) as (_, table, serving):
        table.upsert(rows(1, 2, 3))

        def gone(*_: Any) -> Any:
            raise el.EpochExpired("let go")

        with BreakingConnections(serving, [2]).subscribe() as sub:
            monkeypatch.setattr(table_feed, "plan_backfill", gone)
            with pytest.raises(el.SnapshotExpired, match="subscribe anew"):
                list(sub)
            assert sub.epoch is None


# ---- slow readers, and many --------------------------------------------------------------------------------------


def test_the_server_does_not_read_ahead_of_a_slow_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 99)
    drawn = []
    real = table_feed.TableFeed._slices

    def counted(*args: Any) -> Any:
        for item in real(*args):
            drawn.append(item[0])
            yield item

    monkeypatch.setattr(table_feed.TableFeed, "_slices", counted)
    slice_bytes = 100 * 40
    with served(tmp_path, SubscriptionLimits(window=3 * slice_bytes)) as (_, table, serving):
        last = table.upsert(rows(*range(10_000)))
        with serving.subscribe() as sub:
            wait_until(lambda: len(sub._queue) >= 3)
            assert sub.poll(0) is not None
            settled = threading.Event()
            settled.wait(0.1)
            assert len(drawn) < 12, "beyond its window it draws nothing"
            assert sub._queued_bytes < 6 * slice_bytes
            count = 0
            while sub.epoch != last:
                count += next(sub).num_rows
            assert len(drawn) > 100 and count > 9_000


def test_a_reader_that_takes_nothing_is_cut_off_and_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    with served(tmp_path, SubscriptionLimits(window=100, slow_s=0.2, beat_s=0.05)) as (_, table, serving):
        table.upsert(rows(*range(1000)))
        with serving.subscribe() as sub:
            wait_until(lambda: sub._error is not None)
            with pytest.raises(el.ReaderTooSlow, match="subscriber to 't' took nothing for 0.2 s"):
                list(sub)


@pytest.mark.medium
def test_subscribers_lend_each_other_room_and_miss_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for one at a time: who takes nothing lets go of what was decoded for him, and goes on later."""
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    given: list[Footprint] = []
    plainly = _Subscription._reserve_memory

    def metered(self: _Subscription, batches: Any, footprint: Footprint) -> Any:
        given.append(footprint)
        return plainly(self, batches, footprint)

    monkeypatch.setattr(_Subscription, "_reserve_memory", metered)
    with served(tmp_path, SubscriptionLimits(window=1_000, beat_s=0.01)) as (_, table, serving), ExitStack() as stack:
        serving.admission.close()
        admission = AdmissionController(AdmissionLimits(in_flight_bytes=1))
        serving.admission = serving.service._admission = admission
        table.upsert(rows(*range(200)))
        table.upsert(rows(*range(100, 400)))
        last = table.delete(pa.table({"id": list(range(0, 400, 3))}))
        subs = [stack.enter_context(serving.subscribe(after=after)) for after in (0, None, 0, 0)]
        received: list[list[Any]] = [[] for _ in subs]
        chance = random.Random(4711)
        while any(sub.epoch != last for sub in subs):
            at = chance.randrange(len(subs))
            batch = subs[at].poll(0.02) if subs[at].epoch != last else None
            received[at] += [] if batch is None else batch.to_pylist()
        wait_until(lambda: admission.acquired_bytes == 0)
        assert len(given) > 2 * len(subs), "they let go, and began anew"
    assert received[0] == received[2] == received[3] and len(received[0]) == 200 + 300 + 134
    assert [row["id"] for row in received[1]] == sorted(set(range(400)) - set(range(0, 400, 3)))


@pytest.mark.medium
def test_a_reader_that_is_idle_is_not_slow(tmp_path: Path) -> None:
    with served(tmp_path, SubscriptionLimits(window=100, slow_s=0.1, beat_s=0.02)) as (_, table, serving):
        table.upsert(rows(1))
        with serving.subscribe() as sub:
            next(sub)
            assert sub.poll(0.5) is None
            table.upsert(rows(2))
            assert next(sub)["id"].to_pylist() == [2]


@pytest.mark.medium
def test_a_client_that_connects_and_never_reads_is_cut_off(tmp_path: Path) -> None:
    """It takes nothing, answers nothing, and closes nothing; what holds the log for it is let go of."""
    with served(tmp_path, SubscriptionLimits(window=1 << 40, slow_s=0.2, beat_s=0.05)) as (_, table, serving):
        first = table.upsert(rows(*range(500_000)))
        line = ClientStream(serving.location, b'subscribe:{"table":"t"}', token=TOKEN, tls_roots=None)
        wait_until(lambda: serving.service._open_count == 1)
        wait_until(lambda: serving.service._open_count == 0)
        line.close()
        table.truncate_log(first)


@pytest.mark.medium
def test_fifty_idle_readers_ask_the_catalog_as_often_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (store, table, serving):
        table.upsert(rows(1))
        subs = [serving.subscribe() for _ in range(50)]
        assert all(next(sub).num_rows == 1 for sub in subs)
        asked: dict[str, int] = {}
        real = store._handle.catalog.read

        def counted(body: Any) -> Any:
            name = threading.current_thread().name
            asked[name] = asked.get(name, 0) + 1
            return real(body)

        wait_until(lambda: all(not sub.poll(0) for sub in subs))
        monkeypatch.setattr(store._handle.catalog, "read", counted)
        wait_until(lambda: asked.get("epochlog-watch", 0) >= 5)
        assert set(asked) <= {"epochlog-watch", "epochlog-subscription"}
        assert asked.get("epochlog-subscription", 0) <= 50, "at most the one look after they were let in"
        table.upsert(rows(2))
        assert all(next(sub)["id"].to_pylist() == [2] for sub in subs)
        for sub in subs:
            sub.close()
        wait_until(lambda: serving.service._open_count == 0)
        wait_until(lambda: not any(thread.name == "epochlog-watch" for thread in threading.enumerate()))


class Waits:
    def __init__(self, key: bytes) -> None:
        self.watched_key = key
        self.notified = threading.Event()

    def on_change(self) -> None:
        self.notified.set()

    def on_poll(self, now_s: float) -> None:
        pass


def test_who_comes_late_to_the_watch_is_told_at_once(tmp_path: Path) -> None:
    """A new listener is notified at once: a commit may lie between its own read and the watcher's next poll."""
    with served(tmp_path) as (store, table, _):
        table.upsert(rows(1))
        watcher, key = store._handle.watcher, head_key(table._table.id)
        early, late = Waits(key), Waits(key)
        watcher.add(early)
        assert early.notified.wait(WAIT_LIMIT_S)
        early.notified.clear()
        assert not early.notified.wait(0.05)
        watcher.add(late)
        assert late.notified.wait(WAIT_LIMIT_S)
        early.notified.clear()
        table.upsert(rows(2))
        assert early.notified.wait(WAIT_LIMIT_S)
        watcher.remove(early)
        watcher.remove(late)


def test_a_commit_between_the_opening_and_the_first_notification_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, send_feed = _Subscription.run, _Subscription._send_feed
    with served(tmp_path) as (_, table, serving):
        first = table.upsert(rows(1))

        def commit_then_run(subscription: _Subscription) -> None:
            table.upsert(rows(2))  # the feed has planned its first round already
            run(subscription)

        def send_once_notified(subscription: _Subscription) -> None:
            wait_until(lambda: subscription._has_news)
            send_feed(subscription)

        monkeypatch.setattr(_Subscription, "run", commit_then_run)
        monkeypatch.setattr(_Subscription, "_send_feed", send_once_notified)
        with serving.subscribe(after=first) as sub:
            batch = sub.poll(WAIT_LIMIT_S)
            assert batch is not None and batch["id"].to_pylist() == [2]


def test_what_is_taken_while_it_connects_makes_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "SLICE_ROWS", 10)
    with served(tmp_path, SubscriptionLimits(window=1)) as (_, table, serving):
        last = table.upsert(rows(*range(100)))

        class Taking(BreakingConnections):
            def __call__(self, command: bytes) -> ClientStream:
                if self.dials == 1:  # the server has been told already what lies in the box
                    replica.apply(sub.poll(0))
                return super().__call__(command)

        replica = Replica()
        with Taking(serving, [2]).subscribe() as sub:
            wait_until(lambda: replica.received)
            assert replica.follow(sub, last).same_as(table)


def test_there_is_room_for_so_many_and_no_more(tmp_path: Path) -> None:
    with served(tmp_path, SubscriptionLimits(max_subscriptions=2)) as (_, _, serving):
        with serving.subscribe(), serving.subscribe(), pytest.raises(el.LimitExceeded):
            serving.subscribe()
        wait_until(lambda: serving.service._open_count == 0)
        serving.subscribe().close()
