"""`ExchangeClient.wait_stage`: the server waits; its waits end with client and server, and share places with reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

import epochlog as el
import wait_until as wait_until_module
from endpoints import bearer
from epochlog.exchange import ExchangeClient
from epochlog.exchange.flight.leases import FlightLeases
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.staged import client as client_module
from epochlog.exchange.staged import messages, service
from epochlog.exchange.staged.service import StagedExchange
from epochlog.exchange.staged.state import MAX_CHANNELS
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits
from exchange_server import ServerProcess
from staged_fixture import JOIN, TOKEN, batch, client, fill, served
from wait_until import WAIT_LIMIT_S, wait_until
from waiting_client import WaitingClient, waits_of

pytestmark = pytest.mark.local_only
NEVER = 3600.0
Patch = pytest.MonkeyPatch


@pytest.fixture
def patient(monkeypatch: Patch) -> None:
    """Let one call wait for longer than any test, and wake only by a channel that has passed."""
    monkeypatch.setattr(client_module, "WAIT_S", NEVER)
    monkeypatch.setattr(client_module, "ATTEMPT_S", 2 * NEVER)
    monkeypatch.setattr(service, "LONGEST_WAIT_S", NEVER)
    monkeypatch.setattr(service, "ASK_ANYWAY_S", NEVER)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Waiter(WaitingClient):
    """Connection of a caller that waits for a stage."""

    def ask(self, deadline_s: float | None = None) -> Any:
        options = flight.FlightCallOptions(headers=bearer(TOKEN), timeout=deadline_s)
        body = messages.pack(query="q1", stage=0, wait_ms=round(NEVER * 1000))
        return list(self.client.do_action(flight.Action("staged.wait", body), options))

    def wait(self, deadline_s: float | None = None) -> None:
        self.run(lambda: self.ask(deadline_s))


# ---- the end of a wait -----------------------------------------------------------------------------------------------


def check_one_call_waits(folder: Path, monkeypatch: Patch, *, last_push: bool = False) -> None:
    """One call waits in the server until the last channel of the stage has passed, by its end mark or by a push."""
    calls: list[str] = []
    run_action = client_module.run_action

    def counted(connection: Any, location: str, kind: str, *args: Any, **options: Any) -> bytes:
        calls.append(kind)
        return run_action(connection, location, kind, *args, **options)

    monkeypatch.setattr(client_module, "run_action", counted)
    with served(folder) as (_, server), client(server) as ex, ThreadPoolExecutor(1) as pool:
        ex.declare("join", {-1: ["a", "b"], 0: ["probe"]})
        waiting = pool.submit(ex.wait_stage, 0, timeout=NEVER)
        wait_until(lambda: waits_of(server) == 1)
        fill(ex, "a", -1, range(3))
        if last_push:
            ex.end("b", 1)
            ex.push("b", -1, 0, batch("b", 0))
        assert waits_of(server) == 1 and not waiting.done()
        ex.push("b", -1, 1, batch("b", 1)) if last_push else ex.end("b", -1)
        wait_until(waiting.done)
        assert waiting.result() == 0
        assert calls.count("staged.wait") == 1
        assert waits_of(server) == 0


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("last_push", [False, True])
def test_one_call_waits_until_the_stage_is_reached(tmp_path: Path, monkeypatch: Patch, last_push: bool) -> None:
    check_one_call_waits(tmp_path, monkeypatch, last_push=last_push)


@pytest.mark.rule("6.14")
def test_a_stage_that_is_reached_and_a_time_that_is_over_wait_for_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        assert ex.wait_stage(-1) == -1
        with pytest.raises(el.CallTimedOut, match="has not reached stage 0 in time: its stage counter is -1"):
            ex.wait_stage(0, timeout=0)
        with pytest.raises(el.CallTimedOut):
            ex.wait_stage(0, timeout=0.3)
        fill(ex, "build", -1, range(2))
        fill(ex, "probe", 0, range(2))
        assert [ex.wait_stage(stage, timeout=0) for stage in (-5, 0, 1)] == [1, 1, 1]
        for wrong in (True, 0.5, None, 1 << 70):
            with pytest.raises(el.InvalidInput, match="stage"):
                ex.wait_stage(wrong)  # pyright: ignore[reportArgumentType]
        for body in (b"", messages.pack(query="q1", stage=0), messages.pack(query="q1", stage="0", wait_ms=1)):
            with pytest.raises(el.BadMessage):
                ex._run_action("staged.wait", body, None)


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
def test_a_wait_ends_with_its_query(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        with pytest.raises(el.QueryNotFound):
            ex.wait_stage(0)
        ex.declare("join", JOIN)
        waiting = pool.submit(ex.wait_stage, 0, timeout=NEVER)
        wait_until(lambda: waits_of(server) == 1)
        ex.drop()
        wait_until(waiting.done)
        assert isinstance(waiting.exception(), el.QueryNotFound)


def check_another_server_is_seen(folder: Path, pool: ThreadPoolExecutor) -> None:
    """A channel passes through another server of the store than the one that waits."""
    with served(folder) as (store, server), el.serve(store, token=TOKEN) as other, client(server) as ex:
        ex.declare("join", JOIN)
        waiting = pool.submit(ex.wait_stage, 0, timeout=NEVER)
        wait_until(lambda: waits_of(server) == 1)
        with client(other) as producer:
            fill(producer, "build", -1, range(2))
        wait_until(waiting.done)
        assert waiting.result() == 0


@pytest.mark.rule("6.14")
def test_a_channel_that_passes_through_another_server_is_seen(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    check_another_server_is_seen(tmp_path, pool)


def check_waits_end_with_their_clients(folder: Path) -> None:
    """One client's deadline passes, and one goes."""
    with served(folder) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        late, gone = Waiter(server.location), Waiter(server.location)
        gone.wait()
        wait_until(lambda: waits_of(server) == 1)
        late.wait(deadline_s=0.2)
        gone.close()
        wait_until(lambda: late.ended and waits_of(server) == 0)
        late.close()


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
def test_a_wait_ends_with_its_client(tmp_path: Path) -> None:
    check_waits_end_with_their_clients(tmp_path)


def check_a_closed_client_waits_no_longer(folder: Path) -> None:
    """Another thread closes the client: its wait raises at once, though the call at the server goes on."""
    with served(folder) as (_, server), client(server) as ex, client(server) as other, ThreadPoolExecutor(1) as pool:
        ex.declare("join", JOIN)
        waiting = pool.submit(ex.wait_stage, 0, timeout=NEVER)
        wait_until(lambda: waits_of(server) == 1)
        ex.close()
        try:
            with pytest.raises(el.InvalidInput, match="this client is closed"):
                waiting.result(WAIT_LIMIT_S)
            assert waits_of(server) == 1, "the wait of the server has ended, not only that of the client"
        finally:
            other.drop()  # which ends the call


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
def test_a_wait_ends_when_another_thread_closes_its_client(tmp_path: Path) -> None:
    check_a_closed_client_waits_no_longer(tmp_path)


@pytest.mark.planted
@pytest.mark.usefixtures("patient")
def test_a_wait_that_a_close_does_not_end_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ExchangeClient, "_run_until_closed", ExchangeClient._run_action)
    monkeypatch.setitem(globals(), "WAIT_LIMIT_S", 1.0)
    with pytest.raises(TimeoutError):
        check_a_closed_client_waits_no_longer(tmp_path)


def test_the_counts_of_a_server_do_not_grow_with_its_queries(tmp_path: Path) -> None:
    def size(exchange: StagedExchange) -> int:
        counts = (exchange._commit_counts, exchange._pass_counts, exchange._budget_versions)
        return sum(len(pickle.dumps(each)) for each in counts)

    with served(tmp_path) as (_, server):
        before = size(server._staged)
        for number in range(40):
            with client(server, query=f"q{number}") as ex:
                ex.declare("join", JOIN)
                ex.drop()
        assert size(server._staged) <= before + 40 * 3, "a name is kept of each query"


def test_queries_that_share_a_count_all_end(tmp_path: Path, monkeypatch: Patch, pool: ThreadPoolExecutor) -> None:
    monkeypatch.setattr(service, "SLOTS", 1)
    with served(tmp_path) as (_, server), client(server, "q1") as ex, client(server, "q2") as other:
        for each in (ex, other):
            each.declare("join", JOIN)
        waits = [pool.submit(each.wait_stage, 0, timeout=NEVER) for each in (ex, other)]
        for each in (ex, other):
            fill(each, "build", -1, range(2))
        assert [wait.result(WAIT_LIMIT_S) for wait in waits] == [0, 0]


# ---- arguments -------------------------------------------------------------------------------------------------------

HUGE = 1 << 62
WRONG: Mapping[str, tuple[str, Callable[[ExchangeClient], Any]]] = {
    "claim of a text": ("consumers", lambda ex: ex.claim("ab")),
    "claim of a number": ("consumers", lambda ex: ex.claim(5)),  # pyright: ignore[reportArgumentType]
    "claim of nobody": ("consumers", lambda ex: ex.claim([])),
    "claim twice": ("consumers", lambda ex: ex.claim(["a", "a"])),
    "claim of too many": ("consumers", lambda ex: ex.claim([f"c{i}" for i in range(MAX_CHANNELS + 1)])),
    "wait": ("stage", lambda ex: ex.wait_stage(HUGE)),
    "push to a stage": ("stage", lambda ex: ex.push("a", HUGE, 0, batch("a", 0))),
    "push of a sequence": ("seq", lambda ex: ex.push("a", 0, HUGE, batch("a", 0))),
    "push of an attempt": ("attempt", lambda ex: ex.push("a", 0, 0, batch("a", 0), 1 << 63)),
    "end": ("last_seq", lambda ex: ex.end("a", HUGE)),
    "rows of an end": ("rows", lambda ex: ex.end("a", 0, rows=1 << 63)),
    "budget": ("budget", lambda ex: ex.declare("a", JOIN, budget=1 << 63)),
    "stages": ("stages", lambda ex: ex.declare("a", {HUGE: ["a"]})),
    "cursor of a reader": ("cursor", lambda ex: ex.read("a", {"a": HUGE})),
    "cursor of a consumer": ("cursor", lambda ex: ex.consume("a", 0, 5)),  # pyright: ignore[reportArgumentType]
    "cursor of an acknowledgement": ("cursor", lambda ex: ex.acknowledge("a", 0, {"a": HUGE})),
    "no cursor": ("cursor", lambda ex: ex.acknowledge("a", 0, None)),  # pyright: ignore[reportArgumentType]
    "flush": ("a channel", lambda ex: ex.flush("")),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_by_name_before_anything_is_sent(case: str) -> None:
    argument, call = WRONG[case]
    with (
        ExchangeClient("grpc://127.0.0.1:1", query="q1", timeout=0) as ex,  # nobody answers there
        pytest.raises(el.InvalidInput, match=f"^{argument} "),
    ):
        call(ex)


def check_a_wait_ends_with_the_server(folder: Path) -> None:
    with el.open(folder / "store", durability="os") as store:
        server = el.serve(store, token=TOKEN)
        with client(server) as ex, closing(Waiter(server.location)) as waiter:
            ex.declare("join", JOIN)
            waiter.wait()
            wait_until(lambda: waits_of(server) == 1)
            server.shutdown(NEVER)
            waiter.threads[0].join()
            assert "this server is shutting down" in str(waiter.ended[0])


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
def test_a_wait_ends_with_its_server(tmp_path: Path) -> None:
    check_a_wait_ends_with_the_server(tmp_path)


@pytest.mark.rule("6.14")
@pytest.mark.medium
def test_a_wait_goes_on_at_a_server_that_was_killed_and_started_again(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with ServerProcess(tmp_path / "store") as server, client(server.location) as ex:
        ex.declare("join", JOIN)
        waiting = pool.submit(ex.wait_stage, 0, timeout=NEVER)
        fill(ex, "build", -1, range(2), end=False)
        server.kill()
        assert not waiting.done()
        server.start()
        fill(ex, "build", -1, range(2))
        wait_until(waiting.done)
        assert waiting.result() == 0


# ---- places of waits -------------------------------------------------------------------------------------------------


def check_one_connection_has_its_share(folder: Path) -> None:
    """Of 70 waits over one connection 64 wait; a reader over another one gets its flight."""
    with (
        served(folder) as (store, server),
        client(server) as ex,
        closing(Waiter(server.location)) as greedy,
    ):
        ex.declare("join", JOIN)
        store.create_table("orders", batch("a", 0).schema, ["n"]).upsert(batch("a", 0))
        for _ in range(70):
            greedy.wait()
        wait_until(lambda: waits_of(server) + len(greedy.ended) == 70)
        assert waits_of(server) == AdmissionLimits().flights_of_one == 64
        assert all("LimitExceeded" in str(error) and "64 of them" in str(error) for error in greedy.ended)
        with el.connect(server.location, token=TOKEN) as reader:
            assert reader.snapshot("orders").read_all().num_rows == 3
        assert ex.wait_stage(-1) == -1
        fill(ex, "build", -1, range(2))
        wait_until(lambda: len(greedy.ended) == 70 and waits_of(server) == 0)


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
@pytest.mark.medium
def test_one_connection_has_its_share_of_the_waits(tmp_path: Path) -> None:
    check_one_connection_has_its_share(tmp_path)


def check_a_client_without_a_place_asks_again(folder: Path, monkeypatch: Patch, pool: ThreadPoolExecutor) -> None:
    """Three threads wait over a connection that has one place: all of them end when the stage is reached."""
    monkeypatch.setattr(FlightDesk.__init__, "__defaults__", (AdmissionLimits(flights_of_one=1), None))
    with served(folder) as (_, server), client(server) as ex, client(server) as producer:
        ex.declare("join", JOIN)
        waiting: list[Future[int]] = [pool.submit(ex.wait_stage, 0, timeout=NEVER) for _ in range(3)]
        wait_until(lambda: waits_of(server) == 1)
        with pytest.raises(el.LimitExceeded):
            ex.wait_stage(0, timeout=0.2)
        fill(producer, "build", -1, range(2))
        wait_until(lambda: all(future.done() for future in waiting))
        assert [future.result() for future in waiting] == [0, 0, 0]


@pytest.mark.rule("6.14")
@pytest.mark.usefixtures("patient")
def test_a_client_without_a_place_asks_again(tmp_path: Path, monkeypatch: Patch, pool: ThreadPoolExecutor) -> None:
    check_a_client_without_a_place_asks_again(tmp_path, monkeypatch, pool)


# ---- versions --------------------------------------------------------------------------------------------------------


def test_clients_and_servers_of_another_version_get_an_answer(tmp_path: Path, monkeypatch: Patch) -> None:
    """An earlier server knows no wait, and says so; an earlier client asks for the stage, and gets it."""
    actions = StagedExchange.actions.fget
    assert actions is not None
    with monkeypatch.context() as patch:
        earlier = property(lambda service: {k: v for k, v in actions(service).items() if k != "staged.wait"})
        patch.setattr(StagedExchange, "actions", earlier)
        with served(tmp_path, "earlier") as (_, server), client(server) as ex:
            ex.declare("join", JOIN)
            with pytest.raises(el.InvalidInput, match="no action 'staged.wait'"):
                ex.wait_stage(0)
            assert ex.stage == -1
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        for body in (b"\x81\xa5query\xa2q1",):  # as version 0.1 sends it
            assert ex._run_action("staged.stage", body, None) == b"\x81\xa5stage\xff"


def test_the_read_token_may_wait(tmp_path: Path) -> None:
    with (
        el.open(tmp_path / "store", durability="os") as store,
        el.serve(store, token=TOKEN, read_token="reader") as server,
        client(server) as ex,
        ExchangeClient(server.location, token="reader", query="q1") as reader,
    ):
        ex.declare("join", JOIN)
        fill(ex, "build", -1, range(2))
        assert reader.wait_stage(0) == 0


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def a_pass_that_wakes_nobody(patch: Patch) -> None:
    patch.setattr(StagedExchange, "channel_passed", lambda service, query: service._retry_held_pushes(query))


def a_server_that_answers_at_once(patch: Patch) -> None:
    patch.setattr(service, "LONGEST_WAIT_S", 0.01)


def waits_without_checks(patch: Patch) -> None:
    def unchecked(wait: Callable[[float], bool], timeout_s: float, check: Any) -> None:
        wait(timeout_s)

    patch.setattr(service, "wait_with_checks", unchecked)


def a_shutdown_that_lets_them_wait(patch: Patch) -> None:
    patch.setattr(FlightDesk, "end_waits", lambda desk: None)
    patch.setattr(FlightDesk, "end", lambda desk: None)


def waits_that_never_ask_again(patch: Patch) -> None:
    patch.setattr(service, "ASK_ANYWAY_S", NEVER)


def waits_without_a_share(patch: Patch) -> None:
    patch.setattr(FlightLeases, "_rivals", lambda leases, caller: None)


def a_client_that_gives_up(patch: Patch) -> None:
    class Another(Exception):
        pass

    patch.setattr(client_module, "LimitExceeded", Another)


def a_client_that_is_thought_present(patch: Patch) -> None:
    def check(controller: Any, slot: Any) -> None:
        if controller._ending:
            raise el.ServerUnavailable("this server is shutting down")

    patch.setattr(AdmissionController, "check", check)


@pytest.mark.planted
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (a_pass_that_wakes_nobody, "one_call"),
        (a_server_that_answers_at_once, "one_call"),
        (waits_without_checks, "client"),
        (a_client_that_is_thought_present, "client"),
        (waits_without_checks, "server"),
        (a_shutdown_that_lets_them_wait, "server"),
        (waits_that_never_ask_again, "another_server"),
        (waits_without_a_share, "share"),
        (a_client_that_gives_up, "asks_again"),
    ],
)
def test_a_wait_that_goes_wrong_is_found(
    plant: Callable[[Patch], None], check: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(wait_until_module, "WAIT_LIMIT_S", 0.5)
    # so that the waits end after all; where that end shows the bug, later than a loaded machine takes to the check
    monkeypatch.setitem(globals(), "NEVER", 12.0 if check in ("one_call", "another_server") else 1.0)
    for name in ("LONGEST_WAIT_S", "ASK_ANYWAY_S"):
        monkeypatch.setattr(service, name, NEVER)
    plant(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        checks: dict[str, Callable[[], None]] = {
            "one_call": lambda: check_one_call_waits(tmp_path, monkeypatch),
            "client": lambda: check_waits_end_with_their_clients(tmp_path),
            "server": lambda: check_a_wait_ends_with_the_server(tmp_path),
            "another_server": lambda: check_another_server_is_seen(tmp_path, pool),
            "share": lambda: check_one_connection_has_its_share(tmp_path),
            "asks_again": lambda: check_a_client_without_a_place_asks_again(tmp_path, monkeypatch, pool),
        }
        with pytest.raises((AssertionError, el.LimitExceeded)):
            checks[check]()
