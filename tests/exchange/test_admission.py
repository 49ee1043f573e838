"""Rows on their way to clients that are slow, gone or many: memory, time and the end of a server are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.errors import CallTimedOut, LimitExceeded, ServerUnavailable
from epochlog.exchange.flight.planner import Check, Chosen
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.server import Server
from epochlog.exchange.transport.admission import (
    MESSAGE_BYTES,
    MESSAGE_ROWS,
    AdmissionController,
    AdmissionLimits,
    CallSlot,
    Lane,
)
from epochlog.exchange.transport.services import Call
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.types.row_size import bounded_slices
from wait_until import WAIT_LIMIT_S, wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.binary(100))])
ROWS = 400_000  # 43 MB: more than what sockets and gRPC keep between a server and a client that does not read
CLIENT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Store]:
    with el.open(tmp_path_factory.mktemp("traffic") / "s", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table([np.arange(ROWS), pa.array([b"x" * 100] * ROWS, pa.binary(100))], schema=SCHEMA))
        yield store


class Served:
    """A server of the store's flights with limits of its own."""

    def __init__(self, store: el.Store, limits: AdmissionLimits) -> None:
        def choose(table: str, consistency: str, options: Any, check: Check) -> Chosen:
            snapshot = store.snapshot([table], consistency=consistency, **options)
            return Chosen(snapshot[table].plan, snapshot.close)

        self.desk = FlightDesk(store._handle, choose, limits)
        self.server = Server("grpc://127.0.0.1:0", token=None, flights=self.desk, actions=self.desk.actions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(5)
        self.desk.close()

    @property
    def idle(self) -> bool:
        admission = self.desk.admission
        return admission.calls == 0 and admission.acquired_bytes == 0


def begin(client: flight.FlightClient, timeout: float | None = None) -> flight.FlightStreamReader:
    """Start a get and read only its first batch."""
    info = client.get_flight_info(plain.command(changes="t", after=0))
    reader = client.do_get(info.endpoints[0].ticket, flight.FlightCallOptions(timeout=timeout))
    assert reader.read_chunk().data.num_rows
    return reader


def rest(reader: flight.FlightStreamReader) -> int:
    return sum(chunk.data.num_rows for chunk in reader)


@pytest.mark.medium
def test_a_client_that_reads_nothing_is_cut_off(store: el.Store) -> None:
    with Served(store, AdmissionLimits(stall_s=2.0)) as served, ExitStack() as stack:
        client, other = (stack.enter_context(plain.connected(served.server.location))[0] for _ in range(2))
        reader = begin(client)
        wait_until(lambda: served.idle)
        with pytest.raises(CLIENT_ERRORS):
            rest(reader)
        assert rest(begin(other)) > ROWS // 2


def test_a_client_that_cancels_or_goes_is_noticed(store: el.Store) -> None:
    with Served(store, AdmissionLimits()) as served, ExitStack() as stack:
        client, _ = stack.enter_context(plain.connected(served.server.location))
        reader = begin(client)
        assert not served.idle
        reader.cancel()
        wait_until(lambda: served.idle)
        reader = begin(client)
        del reader
        stack.close()
        wait_until(lambda: served.idle)  # it has closed its connection


def test_the_clients_deadline_is_kept(store: el.Store) -> None:
    with Served(store, AdmissionLimits()) as served, plain.connected(served.server.location) as (client, _):
        with pytest.raises(flight.FlightTimedOutError):  # noqa: PT012  on a slow machine already at the first rows
            reader = begin(client, timeout=0.2)
            wait_until(lambda: served.idle)
            rest(reader)
        wait_until(lambda: served.idle)


def test_a_call_that_lasts_too_long_ends(store: el.Store) -> None:
    with Served(store, AdmissionLimits(call_s=0.2)) as served, plain.connected(served.server.location) as (client, _):
        with pytest.raises(CLIENT_ERRORS):  # noqa: PT012  on a slow machine already at the first rows
            reader = begin(client)
            wait_until(lambda: served.idle)
            rest(reader)
        wait_until(lambda: served.idle)


@pytest.mark.parametrize("what", ["get", "put"])
def test_a_shutdown_is_bounded_in_the_middle_of_rows(store: el.Store, what: str) -> None:
    with Served(store, AdmissionLimits()) as served, plain.connected(served.server.location) as (client, _):
        if what == "get":
            reader = begin(client)
            go_on: Callable[[], object] = lambda: rest(reader)  # noqa: E731
        else:
            writer, _ = client.do_put(plain.path("t"), SCHEMA)
            writer.write_table(pa.table([[1], pa.array([b"y" * 100], pa.binary(100))], schema=SCHEMA))
            wait_until(lambda: served.desk.admission.calls == 1)
            go_on = writer.close
        served.server.shutdown(0.4)
        wait_until(lambda: served.idle)
        with pytest.raises(CLIENT_ERRORS):
            go_on()
    assert store.table("t").history().num_rows == 1


def test_a_shutdown_lets_calls_end_that_do_so_in_time(store: el.Store) -> None:
    with Served(store, AdmissionLimits()) as served, plain.connected(served.server.location) as (client, _):
        reader = begin(client)
        ending = threading.Thread(target=served.server.shutdown, args=(600,))
        ending.start()
        assert rest(reader) > ROWS // 2
        ending.join()
        assert served.idle


@pytest.mark.medium
def test_many_gets_at_once_stay_within_the_bound(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent gets keep their counted memory, in whole buffers, within the bound."""
    bound, base = 48 << 20, pa.total_allocated_bytes()
    plainly = CallSlot.stream_batches

    def stream_checked(
        slot: CallSlot, batches: Iterator[pa.RecordBatch], footprint: Footprint
    ) -> Iterator[pa.RecordBatch]:
        def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
            assert batch.get_total_buffer_size() <= footprint.kept <= footprint.making
            return batch

        return plainly(slot, map(checked, batches), footprint)

    monkeypatch.setattr(CallSlot, "stream_batches", stream_checked)
    with Served(store, AdmissionLimits(in_flight_bytes=bound)) as served:
        most, held, over = 0, 0, threading.Event()

        def watch() -> None:
            nonlocal most, held
            while not over.is_set():
                most, held = (
                    max(most, served.desk.admission.acquired_bytes),
                    max(held, pa.total_allocated_bytes() - base),
                )
                over.wait(0.0005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ExitStack() as stack:
            connected = [stack.enter_context(plain.connected(served.server.location)) for _ in range(9)]
            clients = [client for client, _ in connected]
            slow = [begin(client) for client in clients[:3]]
            row_counts: list[int] = []
            others = [
                threading.Thread(target=lambda c=client: row_counts.append(rest(begin(c)))) for client in clients[3:]
            ]
            for other in others:
                other.start()
            row_counts += [rest(reader) for reader in slow]
            for other in others:
                other.join()
            wait_until(lambda: served.idle)
        assert len(row_counts) == 9
        over.set()
        watcher.join()
        assert bound / 2 < most <= bound and bound / 3 < held <= bound


# ---- the rules by themselves -----------------------------------------------------------------------------------


class Hand:
    """A clock and a client, both moved by hand."""

    def __init__(self, **limits: float) -> None:
        self.now_s = 0.0
        self.gone = False
        self.cuts = 0
        self.admission = AdmissionController(AdmissionLimits(**limits), lambda: self.now_s)  # pyright: ignore[reportArgumentType]

    def enter(self, lane: Lane | None = None, *, may_write: bool = True) -> CallSlot:
        return self.admission.admit(Call("peer", lambda: self.gone, self.cut, may_write), lane)

    def cut(self) -> None:
        self.cuts += 1


def test_room_is_given_in_the_order_of_asking() -> None:
    hand = Hand(in_flight_bytes=100)
    order: list[str] = []
    with hand.enter() as first:
        first.acquire(100)
        with hand.enter() as small, hand.enter() as large:
            assert not small.acquire(1, wait=False)
            asked = []
            for slot, size, name in ((large, 90, "large"), (small, 5, "small")):
                asked.append(threading.Thread(target=lambda p=slot, s=size, n=name: (p.acquire(s), order.append(n))))
                asked[-1].start()
                wait_until(lambda: len(hand.admission._lanes[Lane.OWNERS].queue) == len(asked))
            first.release()
            for thread in asked:
                thread.join()
            assert sorted(order) == ["large", "small"]
            assert hand.admission.acquired_bytes == 95
    assert hand.admission.acquired_bytes == 0 and hand.admission.calls == 0
    hand.admission.close()


def test_room_is_kept_between_the_batches_of_a_reading() -> None:
    """It has the rest of its piece in memory meanwhile: gave it that room back, any number of readings would wait."""
    hand = Hand(in_flight_bytes=100)
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            taken.append(hand.admission.acquired_bytes)
            yield pa.record_batch({"a": [1]})

    with hand.enter() as slot, hand.enter() as other_slot:
        sent = slot.stream_batches(batches(), Footprint(100, 10))
        for _ in range(3):
            next(sent)
            assert not other_slot.acquire(1, wait=False)
        assert taken == [100] * 3
    assert hand.admission.acquired_bytes == 0
    hand.admission.close()


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    hand = Hand(in_flight_bytes=100)
    with hand.enter() as slot, hand.enter() as other_slot:
        assert slot.acquire(500)
        assert not other_slot.acquire(1, wait=False)
        slot.release()
        assert other_slot.acquire(1) and not slot.acquire(500, wait=False)
    hand.admission.close()


@pytest.mark.parametrize("why", ["gone", "late", "ending"])
def test_who_waits_for_room_is_told_why_it_ends(why: str) -> None:
    hand = Hand(in_flight_bytes=10, call_s=5.0)
    errors: list[BaseException] = []

    def wait(slot: CallSlot) -> None:
        try:
            slot.acquire(10)
        except (CallTimedOut, ServerUnavailable) as error:
            errors.append(error)

    with hand.enter() as holder, hand.enter() as waiting:
        holder.acquire(10)
        thread = threading.Thread(target=wait, args=(waiting,))
        thread.start()
        wait_until(lambda: bool(hand.admission._lanes[Lane.OWNERS].queue))
        if why == "gone":
            hand.gone = True
        elif why == "late":
            hand.now_s = 5.0
        else:
            hand.admission.end()
        thread.join()
    assert [type(error) for error in errors] == [CallTimedOut if why == "late" else ServerUnavailable]
    assert hand.admission.acquired_bytes == 0
    hand.admission.close()


def test_messages_are_of_bounded_size_and_hold_all_rows() -> None:
    wide = pa.record_batch({"a": pa.array([b"x" * (1 << 20)] * 30)})
    parts = list(bounded_slices(wide, MESSAGE_ROWS, MESSAGE_BYTES))
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([wide]))
    assert len(parts) > 3 and all(part.nbytes <= MESSAGE_BYTES + (1 << 20) for part in parts)
    long = pa.record_batch({"a": pa.nulls(200_000, pa.int8())})
    sizes = [part.num_rows for part in bounded_slices(long, MESSAGE_ROWS, MESSAGE_BYTES)]
    assert sizes == [MESSAGE_ROWS] * 3 + [200_000 - 3 * MESSAGE_ROWS]
    assert [part.num_rows for part in bounded_slices(long.slice(0, 0), MESSAGE_ROWS, MESSAGE_BYTES)] == [0]


def test_readers_use_up_neither_room_nor_slots_of_others() -> None:
    hand = Hand(in_flight_bytes=100, calls=2)
    with ExitStack() as stack:
        readers = [stack.enter_context(hand.enter(may_write=False)) for _ in range(2)]
        assert readers[0].acquire(100) and not readers[1].acquire(1, wait=False)
        with pytest.raises(LimitExceeded, match="2 calls of the read token"), hand.enter(may_write=False):
            pass
        owner, put = stack.enter_context(hand.enter()), stack.enter_context(hand.enter(Lane.PUTS))
        assert owner.acquire(100, wait=False) and put.acquire(100, wait=False)
        assert not owner.acquire(1, wait=False) and not put.acquire(1, wait=False)
        assert hand.admission.acquired_bytes == 300
    assert hand.admission.acquired_bytes == 0 and hand.admission.calls == 0
    hand.admission.close()


def test_who_is_held_up_by_his_client_lets_those_behind_him_pass() -> None:
    hand, held_up, go_on = Hand(in_flight_bytes=100), threading.Event(), threading.Event()

    def beat() -> None:
        held_up.set()
        assert go_on.wait(WAIT_LIMIT_S)

    with hand.enter() as holder, hand.enter() as stuck, hand.enter() as behind:
        holder.acquire(100)
        first = threading.Thread(target=lambda: stuck.acquire(10, on_poll=beat))
        first.start()
        assert held_up.wait(WAIT_LIMIT_S)
        second = threading.Thread(target=lambda: behind.acquire(10))
        second.start()
        wait_until(lambda: holder.has_waiters)
        holder.release()
        second.join()
        assert behind.acquired_bytes == 10 and not stuck.acquired_bytes
        go_on.set()
        first.join()
        assert stuck.acquired_bytes == 10
    hand.admission.close()


def kept_waiting(hand: Hand, slot: CallSlot, pace_s: float, size: int, until_s: float) -> float | None:
    """A client that moves `size` bytes each `pace_s`; when its patience is over, if that is before `until_s`."""
    while hand.now_s < until_s:
        with slot.waiting_for_client():
            if slot.stall_deadline_s < hand.now_s + pace_s:
                return slot.stall_deadline_s
            hand.now_s += pace_s
        slot.record_transfer(size)
    return None


@pytest.mark.parametrize(
    "pace_s, size, cut_s",
    [(59.0, 1, 60.0), (10.0, 1_000, None), (1.0, 20, None), (1.0, 10, 60.0), (30.0, 600, None), (61.0, 10_000, 60.0)],
)
def test_a_client_must_move_enough_over_a_window(pace_s: float, size: int, cut_s: float | None) -> None:
    """1,000 bytes for each 60 s of waiting; that something moves now and then is not enough."""
    hand = Hand(stall_s=60.0, least_bytes=1_000)
    with hand.enter() as slot:
        assert kept_waiting(hand, slot, pace_s, size, 1_000.0) == cut_s
    hand.admission.close()


def test_waiting_alone_is_counted() -> None:
    """The stall limit counts time spent waiting for the client, not the server's time to read the next batch."""
    hand = Hand(stall_s=60.0, least_bytes=1_000)
    with hand.enter() as slot:
        for _ in range(100):
            hand.now_s += 5
            with slot.waiting_for_client():
                hand.now_s += 0.1
            slot.record_transfer(10)
        with slot.waiting_for_client():
            assert slot.stall_deadline_s > hand.now_s + 50
    hand.admission.close()
