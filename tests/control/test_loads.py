"""Loads over the control stream: what is committed with what, who is fenced, what a cut line and a lost worker do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from control_fixture import SCHEMA, TOKEN, attach, ids, open_worker, rows, served, settings
from epochlog.__main__ import main
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import managed_jobs
from epochlog.checkpoint.coordinator.coordinator import Coordinator
from epochlog.errors import (
    Cancelled,
    Fenced,
    InvalidInput,
    JobNotFound,
    RolledBack,
    ServerUnavailable,
    TableFinished,
    TableInUse,
)
from epochlog.exchange.transport.duplex import ClientStream
from epochlog.store.catalog.keys import intent_key
from epochlog.store.commit.loads import get_load, load_parts
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.env.clock import Deadline
from epochlog.testing.tcp_proxy import TcpProxy
from ports import fixed_location
from wait_until import WAIT_LIMIT_S, wait_until


def parts_of(store: el.Store, name: str = "ld") -> dict[int, tuple[bytes | None, bool]]:
    parts = store._handle.catalog.read(lambda view: load_parts(view, name))
    return {index: (part.state, part.finished) for index, part in parts}


@pytest.mark.rule("5.30")
def test_rows_and_states_are_committed_together(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        assert part.state is None and part.epoch == 0
        part.writer("clicks").upsert(rows(1, 2))
        part.poll(state=b"two")
        wait_until(lambda: part.epoch, part)
        assert ids(store) == [1, 2] and parts_of(store) == {0: (b"two", False)}
        part.writer("clicks").delete({"id": [1]} and rows(1).select(["id"]))
        part.poll(state=b"three")
        wait_until(lambda: ids(store) == [2], part)
        assert parts_of(store) == {0: (b"three", False)}
        history = store.table("clicks").history()
        assert set(history["operation"].to_pylist()) == {"load"}
        assert {txn["application"] for txn in history["txn"].to_pylist()} == {"load:ld"}


def test_a_load_at_rest_commits_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: part.epoch, part)
        before, status = store.last_epoch, server.coordinator.status()[0].commits
        deadline = Deadline.after(0.2)
        wait_until(lambda: deadline.passed, part)
        assert store.last_epoch == before and server.coordinator.status()[0].commits == status


@pytest.mark.rule("5.29", "5.34")
def test_all_parts_finish_and_the_tables_end(tmp_path: Path) -> None:
    with (
        served(tmp_path) as (store, server),
        open_worker(server, store) as first_worker,
        open_worker(server, store) as second_worker,
    ):
        first, second = attach(first_worker, 0, 2, finish_tables=True), attach(second_worker, 1, 2, finish_tables=True)
        first.writer("clicks").upsert(rows(1))
        second.writer("clicks").upsert(rows(2))
        done = threading.Thread(target=first.finish, args=(b"end",))
        done.start()
        wait_until(lambda: first.finished, second)  # a part may finish long before the others
        assert store.table("clicks").info.state == "created"
        assert parts_of(store)[0] == (None, True)
        assert second.finish(b"too", timeout=WAIT_LIMIT_S) == store.table("clicks").info.max_committed_epoch
        done.join(WAIT_LIMIT_S)
        assert ids(store) == [1, 2] and store.table("clicks").info.state == "finished"
        assert parts_of(store) == {0: (None, True), 1: (None, True)}  # flags, not states
        again = attach(second_worker, 0, 2, finish_tables=True)
        assert again.finished and again.state is None and again.finish() == 0
        with pytest.raises(TableFinished):
            store.table("clicks").upsert(rows(3))


@pytest.mark.rule("5.31")
def test_two_workers_claim_one_part(tmp_path: Path) -> None:
    """The later one has it; what the earlier one wrote and did not commit is dropped, and it has no effect any more."""
    with (
        served(tmp_path) as (store, server),
        open_worker(server, store) as first_worker,
        open_worker(server, store) as second_worker,
    ):
        first = attach(first_worker)
        first.writer("clicks").upsert(rows(1))
        wait_until(lambda: first.epoch, first)
        first.writer("clicks").upsert(rows(2))
        second = attach(second_worker)
        with pytest.raises(Fenced):
            wait_until(lambda: False, first)
        with pytest.raises(Fenced):
            first.finish()
        second.writer("clicks").upsert(rows(3))
        second.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 3]


@pytest.mark.rule("5.30")
def test_a_killed_workers_part_goes_on_from_its_state(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        lost = open_worker(server, store)
        part, other = attach(lost, 0, 2), attach(worker, 1, 2)
        part.writer("clicks").upsert(rows(1))
        part.poll(state=b"1")
        wait_until(lambda: ids(store) == [1], part, other)
        part.writer("clicks").upsert(rows(2))
        other.writer("clicks").upsert(rows(3))
        cut(lost)
        with open_worker(server, store) as two:
            again = attach(two, 0, 2)
            assert again.state == b"1"
            again.writer("clicks").upsert(rows(4))
            wait_until(lambda: ids(store) == [1, 3, 4], again, other)  # the other part was not disturbed
        lost.close()


def cut(worker: el.Worker) -> None:
    """As by the death of its process: nothing more is heard of it."""
    worker._closed.set()
    assert worker._link.stream is not None
    worker._link.stream.abort()


@pytest.mark.rule("5.32", "5.33")
def test_a_lost_worker_ends_its_parts_and_no_others(tmp_path: Path) -> None:
    with served(tmp_path, settings(timeout_ms=300)) as (store, server), open_worker(server, store) as worker:
        lost = open_worker(server, store)
        attach(lost, 0, 1, "gone")
        mine = attach(worker)
        cut(lost)
        wait_until(lambda: server.coordinator._executor.owners.keys() == {mine.name}, mine)
        mine.writer("clicks").upsert(rows(1))
        wait_until(lambda: mine.epoch, mine)
        assert {status.job: dict(status.actors) for status in server.coordinator.status()}["load:gone"] == {
            ("gone", 0): "INITIALIZING"
        }
        lost.close()


@pytest.mark.rule("5.34")
@pytest.mark.parametrize("drain", [False, True])
def test_cancel_and_drain(tmp_path: Path, drain: bool) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        server.coordinator.stop("load", "ld", drain=drain)
        if drain:
            wait_until(lambda: not part.poll(state=b"end"))
            part.finish(timeout=WAIT_LIMIT_S)
            assert ids(store) == [1] and parts_of(store) == {0: (None, True)}
        else:
            with pytest.raises(Cancelled):
                wait_until(lambda: False, part)
            assert ids(store) == [] and parts_of(store) == {}


def test_another_declaration_is_refused(tmp_path: Path) -> None:
    with (
        served(tmp_path) as (store, server),
        open_worker(server, store) as first_worker,
        open_worker(server, store) as second_worker,
    ):
        store.create_table("other", SCHEMA, ["id"])
        attach(first_worker, 0, 2)
        for of, tables, end in ((3, ["clicks"], False), (2, ["clicks", "other"], False), (2, ["clicks"], True)):
            with pytest.raises(InvalidInput):
                second_worker.attach("ld", index=1, of=of, tables=tables, finish_tables=end, timeout=WAIT_LIMIT_S)
        with pytest.raises(el.TableNotFound):
            second_worker.attach("other_load", index=0, of=1, tables=["nothing"], timeout=WAIT_LIMIT_S)
        with pytest.raises(el.JobNotFound):
            second_worker.attach(job="nothing", index=0, of=1, timeout=WAIT_LIMIT_S)
        with pytest.raises(TableInUse, match="load 'ld'"):
            store.drop_table("clicks")


def test_nobody_there_and_a_wrong_token(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server):
        with el.Worker(server.location, store, token="wrong") as stranger, pytest.raises(el.AccessDenied):
            attach(stranger)
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        with el.Worker(f"grpc://127.0.0.1:{port}", store, token=TOKEN) as early, pytest.raises(ServerUnavailable):
            early.attach("ld", index=0, of=1, tables=["clicks"], timeout=0.2)


# ---- lines that are cut --------------------------------------------------------------------------------------------


def proxied(server: el.StoreServer) -> TcpProxy:
    return TcpProxy(int(server.location.rpartition(":")[2]))


@pytest.mark.rule("5.32")
@pytest.mark.medium
def test_a_cut_line_costs_nothing(tmp_path: Path) -> None:
    """An incarnation continues over a new connection: its sealed and reported rows are committed once."""
    with served(tmp_path) as (store, server):
        proxy = proxied(server)
        with open_worker(f"grpc://127.0.0.1:{proxy.port}", store) as worker:
            part = attach(worker)
            for round_ in range(4):
                part.writer("clicks").upsert(rows(round_, v=round_))
                part.poll(state=b"%d" % round_)
                proxy.refuse(True)
                wait_until(lambda: not worker.connected)
                part.writer("clicks").upsert(rows(100 + round_))
                part.poll()
                proxy.refuse(False)
                wait_until(lambda round_=round_: ids(store)[-1:] == [100 + round_], part)
            part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [0, 1, 2, 3, 100, 101, 102, 103]
        (status,) = server.coordinator.status()
        assert status.incarnation == 1 and status.state == "finished"
        proxy.stop()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["cut after delivery", "cut before", "black hole", "slow"])
def test_a_report_in_a_bad_network(tmp_path: Path, trouble: str) -> None:
    """Rows of a report are committed once, even if the network loses, repeats or delays its bytes."""
    with served(tmp_path, settings(timeout_ms=400)) as (store, server):
        proxy = proxied(server)
        arm = {"cut after delivery": proxy.cut_answer, "cut before": proxy.hold, "black hole": proxy.swallow}
        with open_worker(f"grpc://127.0.0.1:{proxy.port}", store) as worker:
            part, begun_again = attach(worker), 0
            for number in range(3):
                part.writer("clicks").upsert(rows(number, v=number))
                if trouble == "slow":
                    proxy.slow(0.05)
                else:
                    arm[trouble](b".arrow")
                begun_again += wait_out(store, part, number)
                assert trouble == "slow" or proxy.fired.wait(WAIT_LIMIT_S)  # rows may be in before the answer is
            part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [0, 1, 2]
        written = sum(store.table("clicks").history()["rows_upserted"].to_pylist())
        assert 3 <= written <= 3 + begun_again
        proxy.stop()


def wait_out(store: el.Store, part: el.LoadPart, number: int) -> int:
    """Until the row is committed; a part that was away for too long begins again, and writes it again. How often."""
    again = 0
    while number not in ids(store):
        try:
            wait_until(lambda: number in ids(store), part)
        except RolledBack:
            again += 1
            part.writer("clicks").upsert(rows(number, v=number))
    return again


@pytest.mark.rule("5.26")
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.logs("outcome_unknown")
def test_a_commit_of_unknown_outcome_is_resolved(tmp_path: Path, landed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in once, whether it had landed or not; the number of the one that had not is never used again."""
    failures_left = [2]

    def lose_answer(*args: Any, **kwargs: Any) -> Any:
        if not failures_left[0]:
            return commit_changes(*args, **kwargs)
        failures_left[0] -= 1
        if landed:
            commit_changes(*args, **kwargs)
        raise el.OutcomeUnknown("the server went away")

    monkeypatch.setattr(managed_jobs, "commit_changes", lose_answer)
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        for number in range(3):
            part.writer("clicks").upsert(rows(number))
            wait_until(lambda number=number: number in ids(store), part)
        part.finish(b"end", timeout=WAIT_LIMIT_S)
        assert ids(store) == [0, 1, 2] and failures_left == [0] and parts_of(store) == {0: (None, True)}
        numbers = [txn["id"] for txn in store.table("clicks").history()["txn"].to_pylist()]
        assert len(set(numbers)) == len(numbers) == 3
        if not landed:
            assert min(numbers) == 3


def once(worker: el.Worker, kind: str, act: Callable[[], None]) -> None:
    """Before, or after, the next message of a kind is sent: do something. The message goes the way of its line."""
    send = worker.send

    def watched(message: object) -> None:
        send(message)  # pyright: ignore[reportArgumentType]
        if type(message).__name__ == kind:
            worker.send = send  # pyright: ignore[reportAttributeAccessIssue]
            act()

    worker.send = watched  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.rule("5.32")
@pytest.mark.parametrize("delivered", [False, True])
def test_a_report_that_is_lost_or_whose_commit_is_not_heard(tmp_path: Path, delivered: bool) -> None:
    """Sealed segments are sent again until they are known to be taken; those that were are not committed twice."""
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))

        def lose() -> None:
            if delivered:
                return
            worker._queue.clear()
            assert worker._link.stream is not None
            worker._link.stream.abort()

        once(worker, "Reported", lose)
        if delivered:
            wait_until(lambda: part._report is not None, part)
            assert worker._link.stream is not None
            worker._link.stream.abort()
        wait_until(lambda: part.epoch, part)
        part.writer("clicks").upsert(rows(2))
        part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 2]
        history = store.table("clicks").history()
        assert history["rows_upserted"].to_pylist() == [1, 1]


@pytest.mark.rule("5.32")
@pytest.mark.medium
def test_what_was_said_while_the_line_was_cut(tmp_path: Path) -> None:
    """The last commit, and the end of a load, are told when the worker comes back."""
    with served(tmp_path) as (store, server):
        proxy = proxied(server)
        with open_worker(f"grpc://127.0.0.1:{proxy.port}", store) as worker:
            part, other = attach(worker), attach(worker, name="other")
            part.writer("clicks").upsert(rows(1))
            proxy.cut_answer(b".arrow")
            assert part.finish(timeout=WAIT_LIMIT_S) == store.table("clicks").info.max_committed_epoch
            proxy.refuse(True)
            wait_until(lambda: not worker.connected)
            server.coordinator.stop("load", "other", drain=False)
            proxy.refuse(False)
            with pytest.raises(Cancelled):
                wait_until(lambda: False, other)
        proxy.stop()


def test_repeated_and_stale_reports_change_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: part.epoch, part)
        report = part._report
        part.writer("clicks").upsert(rows(2))
        with worker.changed:
            for _ in range(3):
                worker.send(report)
        wait_until(lambda: ids(store) == [1, 2], part)
        with open_worker(server, store) as two:
            again = attach(two)
            with worker.changed:
                worker.send(report)
            again.writer("clicks").upsert(rows(3))
            wait_until(lambda: ids(store) == [1, 2, 3], again)
        assert sum(store.table("clicks").history()["rows_upserted"].to_pylist()) == 3


@pytest.mark.rule("5.32")
def test_a_server_that_comes_back_on_its_port_rolls_its_parts_back(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        store.create_table("clicks", SCHEMA, ["id"])
        location = fixed_location()
        server = el.serve(store, location, token=TOKEN, control=settings())
        with open_worker(server, store) as worker:
            part = attach(worker)
            part.writer("clicks").upsert(rows(1))
            part.poll(state=b"1")
            wait_until(lambda: part.epoch, part)
            server.shutdown()
            part.writer("clicks").upsert(rows(2))
            part.poll(state=b"2")  # nobody hears it: no error
            with el.serve(store, location, token=TOKEN, control=settings()):
                with pytest.raises(RolledBack):
                    wait_until(lambda: False, part)
                assert part.state == b"1"
                part.writer("clicks").upsert(rows(3))
                part.finish(b"3", timeout=WAIT_LIMIT_S)
            assert ids(store) == [1, 3] and parts_of(store) == {0: (None, True)}
            assert store._handle.catalog.read(lambda view: get_load(view, "ld")).incarnation == 2


@pytest.mark.rule("5.31")
def test_an_old_coordinator_commits_nothing_any_more(tmp_path: Path) -> None:
    """Two coordinators of one load: the catalog knows which one counts."""
    with served(tmp_path) as (store, old), open_worker(old, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: part.epoch, part)
        with el.serve(store, token=TOKEN, control=settings()) as new, open_worker(new, store) as two:
            again = attach(two)
            part.writer("clicks").upsert(rows(2))
            with pytest.raises(Cancelled):
                wait_until(lambda: False, part)
            again.writer("clicks").upsert(rows(3))
            again.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 3]


@pytest.mark.rule("5.32")
@pytest.mark.medium
@pytest.mark.logs("coordinator_silent")
def test_a_silent_coordinator_is_left(tmp_path: Path) -> None:
    """A black hole: the line stands, and nothing comes. The worker opens another one by itself."""
    with served(tmp_path, settings(timeout_ms=400)) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        with server.coordinator._executor.lock:
            (session,) = server.coordinator._connections
        first = worker._link.stream
        session._stream.send = lambda message: True  # pyright: ignore[reportAttributeAccessIssue]
        wait_until(lambda: worker._link.stream is not first and worker.connected)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: part.epoch, part)


@pytest.mark.medium
@pytest.mark.logs("worker_silent")
def test_a_silent_worker_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path, settings(timeout_ms=400)) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        muted: list[object] = []

        def is_left() -> bool:
            """Keep the worker silent, also if it connects anew by itself, until the coordinator notices."""
            stream = worker._link.stream
            if worker.connected and stream is not None and not any(stream is known for known in muted):
                stream.send = lambda message: True  # pyright: ignore[reportAttributeAccessIssue]
                muted.append(stream)
            return any(record.getMessage().startswith("worker_silent ") for record in caplog.records)

        wait_until(is_left)
        wait_until(lambda: worker._link.stream not in muted and worker.connected)
        with suppress(RolledBack):
            part.writer("clicks").upsert(rows(1))


@pytest.mark.medium
@pytest.mark.logs("worker_silent")
def test_a_worker_that_is_heard_and_gets_nothing_is_left(tmp_path: Path) -> None:
    """One direction of its connection stands still, as gRPC leaves it now and then: it connects anew."""
    with served(tmp_path, settings(timeout_ms=400)) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        worker._timeout_s = WAIT_LIMIT_S  # else it leaves the silent coordinator itself, now and then first
        with server.coordinator._executor.lock:
            (session,) = server.coordinator._connections
        stream, first = session._stream, worker._link.stream
        stream.send = lambda message: stream.closed.wait(WAIT_LIMIT_S) and False  # pyright: ignore[reportAttributeAccessIssue]
        wait_until(lambda: worker._link.stream is not first and worker.connected)
        with suppress(RolledBack):
            part.writer("clicks").upsert(rows(1))


@pytest.mark.medium
@pytest.mark.logs("coordinator_refused")
def test_a_message_of_the_coordinator_that_is_none_ends_its_stream(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        with server.coordinator._executor.lock:
            (session,) = server.coordinator._connections
        first = worker._link.stream
        session._stream.send(b"no message")
        wait_until(lambda: worker._link.stream is not first and worker.connected)
        part.writer("clicks").upsert(rows(1))
        wait_until(lambda: part.epoch, part)


def test_a_write_that_fails_rolls_the_part_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        with monkeypatch.context() as patched:

            def full(*args: object) -> None:
                raise el.WriteFailed("the disk is full")

            patched.setattr(type(store._handle.files), "write", full)
            part.writer("clicks").upsert(rows(1))
            with pytest.raises(el.WriteFailed):
                wait_until(lambda: False, part)
        with pytest.raises(RolledBack):
            part.poll()
        part.writer("clicks").upsert(rows(2))
        part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [2]


def test_a_shutdown_is_bounded_with_parts_at_work(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        ended = threading.Thread(target=server.shutdown, args=(5,))
        ended.start()
        ended.join(WAIT_LIMIT_S)
        assert not ended.is_alive()
        wait_until(lambda: not worker.connected)


def test_a_roll_back_that_found_no_coordinator_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of before are dropped: whoever went on without hearing so would lose them."""
    monkeypatch.setattr("epochlog.checkpoint.worker.actor.AGAIN_S", 0.1)
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        part.poll(state=b"one")
        wait_until(lambda: part.epoch, part)
        server.shutdown()
        part.writer("clicks").upsert(rows(2))
        with el.serve(store, server.location, token=TOKEN, control=settings()) as second:
            wait_until(lambda: part._restarted)
            second.shutdown()
        with pytest.raises(ServerUnavailable):
            part.poll(state=b"two")
        with el.serve(store, server.location, token=TOKEN, control=settings()):
            monkeypatch.setattr("epochlog.checkpoint.worker.actor.AGAIN_S", WAIT_LIMIT_S)
            part.writer("clicks").upsert(rows(3))
            with pytest.raises(RolledBack):
                part.poll(state=b"three")
            assert part.state == b"one"
            part.writer("clicks").upsert(rows(4))
            part.finish(b"four", timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 4]


def test_a_load_that_can_never_commit_again_ends(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        writer = part.writer("clicks")
        writer.upsert(rows(1))
        store.table("clicks").finish()
        with pytest.raises(Cancelled, match="TableFinished"):
            wait_until(lambda: False, part)
        with pytest.raises(Cancelled):
            part.finish(timeout=WAIT_LIMIT_S)
    assert not store_is_left_with_files(tmp_path)


def store_is_left_with_files(folder: Path) -> list[Path]:
    with el.open(folder / "store") as store:
        store.vacuum(grace=0)
    return list((folder / "store").rglob("*.arrow"))


def test_a_worker_has_a_load_checkpointed_drained_and_stopped(tmp_path: Path) -> None:
    """By name, whoever its parts are; nothing here waits for the load's own interval."""
    with served(tmp_path, settings(interval_ms=3_600_000)) as (store, server), open_worker(server, store) as worker:
        part = attach(worker)
        part.writer("clicks").upsert(rows(1))
        worker.checkpoint("ld")
        wait_until(lambda: part.epoch, part)
        part.writer("clicks").upsert(rows(2))
        worker.stop("ld", drain=True)
        while part.poll(state=b"on"):
            pass
        part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1, 2]
        with pytest.raises(InvalidInput, match="has finished"):
            part.writer("clicks").upsert(rows(3))
        again = attach(worker)
        assert again.finished and not again.poll()
        with pytest.raises(InvalidInput, match="drop_load"):
            again.writer("clicks").upsert(rows(3))
        other = attach(worker, name="other")
        worker.stop("other")
        with pytest.raises(Cancelled):
            wait_until(lambda: False, other)
        with pytest.raises(JobNotFound):
            worker.checkpoint("nothing")
        for wrong in ({}, {"load": "ld", "job": "ld"}, {"load": "No name"}):
            with pytest.raises(InvalidInput):
                worker.stop(**wrong)


def write_until_it_ends(part: Any) -> None:
    """Write row 1 again after each rollback: on a busy machine a coordinator may miss its worker for a while."""
    while True:
        part.writer("clicks").upsert(rows(1))
        with suppress(RolledBack):
            wait_until(lambda: False, part)


@pytest.mark.medium
def test_parts_of_one_load_at_two_coordinators_are_told(tmp_path: Path) -> None:
    """Each waits for the other's part and tries no commit, so the fenced one would never hear of it."""
    times = settings(timeout_ms=200)
    with (
        served(tmp_path, times) as (store, first),
        el.serve(store, token=TOKEN, control=times) as second,
        open_worker(first, store) as first_worker,
        open_worker(second, store) as second_worker,
    ):
        part, other = attach(first_worker, 0, 2), attach(second_worker, 1, 2)
        other.writer("clicks").upsert(rows(2))
        with pytest.raises(Cancelled, match="one coordinator"):
            write_until_it_ends(part)
        with open_worker(second, store) as third:
            moved = attach(third, 0, 2)
            moved.writer("clicks").upsert(rows(1))
            wait_until(lambda: moved.epoch and other.epoch, moved, other)
        assert ids(store) == [1, 2]


@pytest.mark.logs("attempt_aborted", "report_refused")
def test_a_part_whose_intent_was_revoked_goes_on_under_a_new_one(tmp_path: Path) -> None:
    """As after a long suspension: what it had sealed is gone, and it is told to write that again."""
    with (
        served(tmp_path) as (store, server),
        el.open(store.root, durability="os") as mine,
        open_worker(server, mine) as worker,
    ):
        part = attach(worker)
        writer = part.writer("clicks")
        handle = mine._handle
        handle.catalog.transact(
            lambda tx: tx.delete(intent_key(handle.intents.store_intent()))
        )  # as another's vacuum does
        writer.upsert(rows(1))
        with pytest.raises(RolledBack):
            wait_until(lambda: part.epoch, part)
        writer.upsert(rows(1))
        part.finish(timeout=WAIT_LIMIT_S)
        assert ids(store) == [1]


def test_jobs_and_status_show_the_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = attach(worker, 0, 1)
        part.writer("clicks").upsert(rows(1))
        part.finish(timeout=WAIT_LIMIT_S)
        root = store.root
    assert main(["jobs", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loads"] == [
        {
            "name": "ld",
            "state": "finished",
            "tables": ["clicks"],
            "parts": 1,
            "finished_parts": 1,
            "checkpoint": 1,
            "incarnation": 1,
        }
    ]
    for command in ("jobs", "status"):
        assert main([command, root]) == 0
        assert "finished" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ld "))


@pytest.mark.rule("5.24", "5.33")
def test_b4_a_stuck_barrier_is_timed_out_and_what_was_reported_is_in_the_next(tmp_path: Path) -> None:
    """On real files: only that load waits, and no row is lost or there twice."""
    with (
        served(tmp_path, settings(attempt_ms=100)) as (store, server),
        open_worker(server, store) as first_worker,
        open_worker(server, store) as second_worker,
    ):
        first, second = attach(first_worker, 0, 2), attach(second_worker, 1, 2)
        other = attach(first_worker, name="other")
        first.writer("clicks").upsert(rows(1))
        second.writer("clicks").upsert(rows(2))
        wait_until(lambda: aborts(server) >= 2, first)  # the second does not poll
        other.writer("clicks").upsert(rows(9))
        wait_until(lambda: other.epoch, first, other)
        assert ids(store) == [9]
        wait_until(lambda: first.epoch and second.epoch, first, second)
        assert ids(store) == [1, 2, 9]
        assert sum(store.table("clicks").history()["rows_upserted"].to_pylist()) == 3


def aborts(server: el.StoreServer, job: str = "load:ld") -> int:
    return next(status.aborts for status in server.coordinator.status() if status.job == job)


def test_what_was_asked_over_a_line_that_has_ended_is_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker that died as it attached would own its part for good, with nobody to be lost."""
    requested, gone, done = threading.Event(), threading.Event(), threading.Event()
    here: list[Coordinator] = []
    true_attach, true_open = Coordinator._attach, Coordinator._open

    def attach_late(self: Coordinator, *args: Any) -> None:
        true_attach(self, *args)
        done.set()

    def open_late(self: Coordinator, *args: Any) -> None:
        true_open(self, *args)
        here.append(self)
        requested.set()
        assert gone.wait(WAIT_LIMIT_S)

    monkeypatch.setattr(Coordinator, "_attach", attach_late)
    monkeypatch.setattr(Coordinator, "_open", open_late)
    with served(tmp_path) as (store, server):
        line = ClientStream(server.location, b"control", token=TOKEN, tls_roots=None)
        part = wire.PartName("load", "ld", 0)
        line.send(wire.encode([wire.Hello(wire.VERSION, "w")]))
        line.send(wire.encode([wire.Attach(part, 1, ("clicks",), False, 0, True)]))
        assert requested.wait(WAIT_LIMIT_S)
        line.close()
        wait_until(lambda: here[0].workers == 0)
        gone.set()
        assert done.wait(WAIT_LIMIT_S)
        assert not here[0]._executor.owners
        with open_worker(server, store) as later:
            mine = attach(later)
            mine.writer("clicks").upsert(rows(1))
            mine.finish()
        assert ids(store) == [1]
