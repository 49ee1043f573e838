"""Reads that wait at a server for an epoch: they end with client and server, and leave flights to other readers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import wait_until as wait_until_module
from endpoints import READ_TOKEN, ROWS, TOKEN, bearer
from epochlog import serving
from epochlog.batch import choice
from epochlog.errors import InvalidInput, LimitExceeded
from epochlog.exchange.flight.leases import Caller, FlightLeases, FlightPart, LeasedFlight
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.transport.admission import AdmissionLimits
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.types.epoch import MAX_EPOCH
from security.test_served_process import Served
from wait_until import WAIT_LIMIT_S, wait_until
from waiting_client import WaitingClient, waits_of

pytestmark = [pytest.mark.local_only, pytest.mark.medium]
NEVER = 3600.0


def at_least(epoch: int = MAX_EPOCH, timeout: float = 30.0) -> flight.FlightDescriptor:
    options = {"epoch": epoch, "timeout": timeout}
    return flight.FlightDescriptor.for_command(
        json.dumps({"read": "orders", "consistency": "at_least", "options": options})
    )


class Reader(WaitingClient):
    """Connection with the read token, whose reads wait."""

    def wait(self, about: flight.FlightDescriptor, deadline_s: float | None = None) -> None:
        options = flight.FlightCallOptions(headers=bearer(READ_TOKEN), timeout=deadline_s)
        self.run(lambda: self.client.get_flight_info(about, options))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets reads wait for longer than any test."""
    monkeypatch.setattr(serving, "MAX_WAIT_S", 2 * NEVER)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"]).upsert(ROWS)
        yield store


def test_a_served_process_that_is_stopped_ends_its_waits_and_exits_with_0(store: el.Store, tmp_path: Path) -> None:
    """It was ended by SIGABRT in 8 of 8 tries: its interpreter ended while the calls waited."""
    store.close()
    served = Served(tmp_path / "s")
    with closing(Reader(served.location)) as reader:
        try:
            for _ in range(65):
                reader.wait(at_least())
            wait_until(lambda: reader.ended)
            assert "64 of them open or planned" in str(reader.ended.pop())
            stderr = served.stop()
            assert served.process.returncode == 0, stderr
            assert "Fatal" not in stderr
            for thread in reader.threads:
                thread.join()
            assert len(reader.ended) == 64
            assert all("ServerUnavailable: this server is shutting down" in str(error) for error in reader.ended)
        finally:
            served.process.kill()


STUCK = """
import os, sys, threading
import epochlog as el
from pyarrow import flight
from epochlog.exchange.flight.service import FlightDesk

begun = threading.Semaphore(0)

def stuck(name):
    plainly = getattr(FlightDesk, name)

    def call(*arguments):
        begun.release()
        os.read(0, 1)
        os.write(1, b"an end\\n")
        return plainly(*arguments)

    return call

store = el.open(sys.argv[1])
table = store.table("orders")
path = flight.FlightDescriptor.for_path("orders")
server = el.serve(store)
ticket = flight.connect(server.location).get_flight_info(path).endpoints[0].ticket
for name in ("list_flights", "info", "schema", "get", "put"):
    setattr(FlightDesk, name, stuck(name))
calls = [
    lambda client: list(client.list_flights()),
    lambda client: client.get_flight_info(path),
    lambda client: client.get_schema(path),
    lambda client: client.do_get(ticket).read_all(),
    lambda client: client.do_put(path, table.schema)[1].read(),
]

def run(call):
    try:
        call(flight.connect(server.location, generic_options=[("grpc.use_local_subchannel_pool", 1)]))
    except Exception:
        pass

for call in calls * 3:
    threading.Thread(target=run, args=(call,), daemon=True).start()
for call in calls * 3:
    begun.acquire()
server.shutdown(0.1)
store.close()
print("the main thread ends", flush=True)
"""


DAEMONS = """
plainly = threading.Thread.start

def start(thread):
    thread.daemon = True
    plainly(thread)

threading.Thread.start = start
"""
"""The planted bug: daemon threads, for which the interpreter does not wait."""


def begin_stuck_calls(root: Path, script: str) -> subprocess.Popen[bytes]:
    """Return a process whose main thread has ended while 15 calls, of every method, wait for its standard input."""
    command = [sys.executable, "-c", script, str(root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"the main thread ends\n"
    return process


def test_a_process_ends_after_its_calls_whatever_they_wait_for(store: el.Store, tmp_path: Path) -> None:
    """A call that outlives the time of the shutdown, as one that waits for a catalog, aborted the process too."""
    store.close()
    process = begin_stuck_calls(tmp_path / "s", STUCK)
    output, errors = process.communicate()
    assert (process.returncode, output.count(b"an end\n")) == (0, 15), errors


def check_waits_end_with_their_clients(store: el.Store) -> None:
    """One client's deadline passes, and one closes its connection."""
    with el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server:
        late, gone = Reader(server.location), Reader(server.location)
        gone.wait(at_least(timeout=NEVER))
        wait_until(lambda: waits_of(server) == 1)
        late.wait(at_least(timeout=NEVER), deadline_s=0.2)
        gone.close()
        wait_until(lambda: late.ended and waits_of(server) == 0 and not server._server.callers._calls)
        late.close()


def check_a_wait_ends_with_the_server(store: el.Store) -> None:
    server = el.serve(store, token=TOKEN, read_token=READ_TOKEN)
    with closing(Reader(server.location)) as reader:
        reader.wait(at_least(timeout=NEVER))
        wait_until(lambda: waits_of(server) == 1)
        server.shutdown(NEVER)
        reader.threads[0].join()
        assert "this server is shutting down" in str(reader.ended[0])


@pytest.mark.usefixtures("patient")
def test_a_wait_ends_with_its_server(store: el.Store) -> None:
    check_a_wait_ends_with_the_server(store)


@pytest.mark.usefixtures("patient")
def test_a_wait_ends_with_its_client(store: el.Store) -> None:
    check_waits_end_with_their_clients(store)


@pytest.mark.usefixtures("patient")
def test_waits_of_one_reader_leave_flights_to_the_others(store: el.Store) -> None:
    """192 of them refused the flights of all other readers."""
    with (
        el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server,
        closing(Reader(server.location)) as greedy,
        closing(Reader(server.location)) as other,
    ):
        for _ in range(192):
            greedy.wait(at_least(timeout=NEVER))
        wait_until(lambda: waits_of(server) + len(greedy.ended) == 192)
        assert waits_of(server) == AdmissionLimits().flights_of_one == 64
        assert all("LimitExceeded" in str(error) and "64 of them" in str(error) for error in greedy.ended)
        other.wait(flight.FlightDescriptor.for_path("orders"))
        other.threads[0].join()
        assert len(other.ended[0].endpoints) == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("connections", [3, 24])
def test_waits_over_many_connections_leave_flights_to_the_others(store: el.Store, connections: int) -> None:
    """192 of them refused the flights of all other readers, over three connections with their shares."""
    with ExitStack() as stack:
        server = stack.enter_context(el.serve(store, token=TOKEN, read_token=READ_TOKEN))
        greedy = [stack.enter_context(closing(Reader(server.location))) for _ in range(connections)]
        for reader in greedy * (192 // connections):
            reader.wait(at_least(timeout=NEVER))
        wait_until(lambda: waits_of(server) == 192)
        other = stack.enter_context(closing(Reader(server.location)))
        for about in (flight.FlightDescriptor.for_path("orders"), at_least(store.last_epoch + 1, NEVER)):
            other.wait(about)
        other.threads[0].join()
        assert len(other.ended[0].endpoints) == 1, other.ended
        wait_until(lambda: sum(len(reader.ended) for reader in greedy) == 2)
        assert all("this wait for an epoch has ended" in str(error) for reader in greedy for error in reader.ended)
        store.table("orders").upsert(ROWS)
        other.threads[1].join()
        assert len(other.ended[1].endpoints) == 1, other.ended


def test_a_connection_has_its_share_of_flights_and_gives_up_its_own_first() -> None:
    unread = LeasedFlight(ROWS.schema, (FlightPart(lambda: iter(()), Footprint(1, 1)),), lambda: None, 1, None)
    leases, names = FlightLeases(8, lambda: 0, 2), iter(range(100))

    def add(peer: str, *, may_write: bool = False) -> bytes:
        name = b"%d" % next(names)
        leases.add(name, lambda keep_waiting: unread, 1_000, may_write=may_write, peer=peer)
        return name

    def read(name: bytes) -> None:
        with leases.read_part(name, 0):
            pass

    first, of_other = add("a"), add("b")
    add("a")
    read(of_other)
    with pytest.raises(LimitExceeded, match="2 of them open or planned over this connection"):
        add("a")
    read(first)
    third = add("a")
    assert len(leases) == 3 and leases.schema(of_other) and leases.schema(third)
    for peer in ("c", "c", "d"):
        add(peer)
    add("e")  # in the place of b's, which is read: three quarters of the places are taken
    with pytest.raises(LimitExceeded):
        add("e")
    for _ in range(2):
        add("owner", may_write=True)
    with pytest.raises(LimitExceeded):
        add("owner", may_write=True)
    with pytest.raises(InvalidInput):
        leases.add(b"x", lambda _: el.CoordinatorSettings(wrong=1), 1, peer="f")  # pyright: ignore[reportCallIssue]
    leases.close()


def check_places_are_shared(seed: int) -> None:
    """Let connections of a few hosts wait in any order, and end waits. A reader without a place is refused by its own
    share alone, or because nobody has more places than it; no more places are taken than there are.
    """
    rng, leases = random.Random(seed), FlightLeases(12, lambda: 0, 6)
    waits: list[tuple[str, Any]] = []  # peer and plan, the oldest first
    for _ in range(100):
        if waits and rng.random() < 0.1:
            _, plan = waits.pop(rng.randrange(len(waits)))
            leases._planning.remove(plan)
        host = rng.choice((1, 1, 1, 1, 2, 3))
        peer = f"10.0.0.{host}:{rng.randrange(6)}"
        places = {of: (sum(host_of(wait) == host_of(of) for wait, _ in waits), by_peer(waits)[of]) for of, _ in waits}
        own = (sum(host_of(wait) == host_of(peer) for wait, _ in waits), by_peer(waits)[peer])
        most = max(places.values(), default=(0, 0))
        displaced: list[tuple[str, Any]] = []
        if own[1] >= 6 or (len(waits) == 9 and most <= own):
            with pytest.raises(LimitExceeded):
                leases._reserve(Caller(peer, False))
        else:
            displaced = [next(wait for wait in waits if places[wait[0]] == most)] if len(waits) == 9 else []
            plan = leases._reserve(Caller(peer, False))
            plan.keep_waiting()
            waits = [wait for wait in waits if wait not in displaced] + [(peer, plan)]
        assert [plan for _, plan in waits] == leases._planning
        for _, plan in displaced:
            with pytest.raises(LimitExceeded, match="needed the place"):
                plan.keep_waiting()
        for _, plan in waits:
            plan.keep_waiting()
    for count in range(3):
        leases._reserve(Caller(f"10.0.0.9:{count}", True))


def host_of(peer: str) -> str:
    return peer.partition(":")[0]


def by_peer(waits: list[tuple[str, Any]]) -> Counter[str]:
    return Counter(peer for peer, _ in waits)


@pytest.mark.parametrize("seed", range(20))
def test_places_of_waits_are_shared_by_hosts_and_connections(seed: int) -> None:
    check_places_are_shared(seed)


def any_wait_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def displace(leases: Any, caller: Any, rivals: set[Any]) -> bool:
        leases._planning.pop(0).displaced = True
        return True

    monkeypatch.setattr(FlightLeases, "_displaces_wait", displace)


def no_wait_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlightLeases, "_displaces_wait", lambda leases, caller, rivals: False)


def hosts_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "host", "")


@pytest.mark.planted
@pytest.mark.parametrize("plant", [any_wait_makes_way, no_wait_makes_way, hosts_are_one])
def test_places_that_are_not_shared_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_seeds() -> None:
        for seed in range(20):
            check_places_are_shared(seed)

    plant(monkeypatch)
    with pytest.raises((AssertionError, LimitExceeded, pytest.fail.Exception)):
        check_seeds()


def test_a_wait_that_ends_well_when_it_is_displaced_releases_its_epochs() -> None:
    """Its epoch came between its last check and the other one's call."""
    released: list[str] = []
    leases = FlightLeases(4, lambda: 0)
    content = LeasedFlight(ROWS.schema, (), lambda: released.append("x"), 1, None)

    def plan(keep_waiting: Callable[[], None]) -> LeasedFlight:
        keep_waiting()
        for peer in ("b:1", "b:2", "c:1"):
            leases.add(peer.encode(), lambda _: replace(content, release=list), 1, may_write=False, peer=peer)
        return content

    with pytest.raises(LimitExceeded, match="needed the place"):
        leases.add(b"a", plan, 1, may_write=False, peer="b:0")
    assert released == ["x"] and len(leases) == 3
    leases.close()


# ---- waits of all kinds --------------------------------------------------------------------------------------------


def check_random_waits(store: el.Store, seed: int) -> None:
    """Let readers wait for epochs, go, meet their deadlines and see commits in any order; the server waits for those
    alone whose client is there and whose epoch is not. It ends the last ones itself.
    """
    rng = random.Random(seed)
    table, newest = store.table("orders"), store.last_epoch
    server = el.serve(store, token=TOKEN, read_token=READ_TOKEN)
    readers = [Reader(server.location) for _ in range(4)]
    expected: dict[Reader, list[int]] = {reader: [] for reader in readers}
    for _ in range(25):
        match rng.choice(("wait", "wait", "wait", "go", "late", "commit")):
            case "wait":
                reader, epoch = rng.choice(readers), rng.choice((newest, newest + 1, MAX_EPOCH))
                reader.wait(at_least(epoch, NEVER))
                expected[reader] += [epoch] if epoch > newest else []
            case "go":
                place = rng.randrange(len(readers))
                del expected[readers[place]]
                readers[place].close()
                readers[place] = Reader(server.location)
                expected[readers[place]] = []
            case "late":
                reader = rng.choice(readers)
                reader.wait(at_least(MAX_EPOCH, NEVER), deadline_s=0.05)
                reader.threads[-1].join()  # else it could meet the shutdown in place of its deadline
            case _:
                newest = table.upsert(ROWS)
                for reader in readers:
                    expected[reader] = [epoch for epoch in expected[reader] if epoch > newest]
        wait_until(lambda: waits_of(server) == sum(map(len, expected.values())))
    shutting_down = sum(map(len, expected.values()))
    server.shutdown(NEVER)
    assert waits_of(server) == 0
    for reader in readers:
        for thread in reader.threads:
            thread.join()
        reader.close()
    shutdown_errors = [error for reader in readers for error in reader.ended if "is shutting down" in str(error)]
    assert len(shutdown_errors) == shutting_down


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("seed", range(2))
def test_any_waits_end_when_they_should(store: el.Store, seed: int) -> None:
    check_random_waits(store, seed)


def waits_without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_chosen(handle: Any, policy: Any, choose: Callable[[], Any], check: Any = None) -> Any:
        return plainly(handle, policy, choose)

    plainly = choice.until_chosen
    monkeypatch.setattr(choice, "until_chosen", until_chosen)


def a_shutdown_that_lets_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlightDesk, "end_waits", lambda desk: None)
    monkeypatch.setattr(FlightDesk, "end", lambda desk: None)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (waits_without_checks, check_waits_end_with_their_clients),
        (waits_without_checks, check_a_wait_ends_with_the_server),
        (a_shutdown_that_lets_them_wait, check_a_wait_ends_with_the_server),
    ],
)
def test_a_wait_that_goes_on_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[el.Store], None],
    store: el.Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_until_module, "WAIT_LIMIT_S", 0.5)
    monkeypatch.setitem(globals(), "NEVER", 1.0)  # so that the wait ends after all
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(store)


@pytest.mark.planted
def test_a_process_that_ends_during_its_calls_is_found(store: el.Store, tmp_path: Path) -> None:
    store.close()
    process = begin_stuck_calls(tmp_path / "s", STUCK.replace("server.shutdown", f"{DAEMONS}server.shutdown", 1))
    process.wait(WAIT_LIMIT_S)
    assert process.communicate()[0].count(b"an end\n") == 0
