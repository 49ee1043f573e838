"""Scenarios D1-D10: the staged exchange as it is served, by the names they have in the design."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import epochlog as el
from epochlog.testing.tcp_proxy import TcpProxy
from exchange_server import ServerProcess
from staged_fixture import JOIN, batch, client, files_of, fill, run_of, served, taken
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = pytest.mark.local_only


def port_of(location: str) -> int:
    return int(location.rpartition(":")[2])


@pytest.mark.rule("6.1")
def test_d1_a_consumer_that_starts_again_elsewhere_gets_every_build_before_the_probe(tmp_path: Path) -> None:
    """The defect itself. Left-deep join, builds at stage -1 done, counter 0; the top join's machine dies having
    consumed nothing; on the new machine the probe's replay arrives first: nothing of it is delivered until every build
    batch and end mark is in.
    """
    stages = {-1: ["build_a", "build_b"], 0: ["probe"]}
    with served(tmp_path) as (_, server), client(server) as producer, client(server) as ex:
        ex.declare("join-top", stages)
        fill(producer, "build_a", -1, range(3))
        fill(producer, "build_b", -1, range(2))
        assert ex.stage == 0
        first = ex.consume("join-top", incarnation=1)
        first.close()  # its machine dies; it has consumed nothing
        fill(producer, "probe", 0, range(4))  # the probe is quick
        again = ex.consume("join-top", incarnation=2)
        order = taken(again)
        builds, probes = order[:5], order[5:]
        assert sorted(builds) == run_of("build_a", range(3)) + run_of("build_b", range(2))
        assert probes == run_of("probe", range(4)) and again.done


def test_d1_with_the_replay_of_the_build_slower_than_that_of_the_probe(tmp_path: Path) -> None:
    """D1 with builds that come after the probe, batch by batch: the consumer gets each build batch at once, and no
    probe batch before the last end mark.
    """
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join-top", JOIN)
        fill(ex, "probe", 0, range(4))
        mail = ex.consume("join-top", incarnation=1)
        for seq in range(3):
            ex.push("build", -1, seq, batch("build", seq))
            assert taken(mail, 1) == [("build", seq)]
        assert mail.poll(0.05) is None and ex.stage == -1
        ex.end("build", 2)
        assert taken(mail) == run_of("probe", range(4)) and ex.stage == 1


def test_d2_the_replayer_of_the_build_dies_half_way(tmp_path: Path) -> None:
    """The rest is made again; what was delivered is not delivered twice."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        fill(ex, "probe", 0, range(2))
        mail = ex.consume("join", incarnation=1)
        with client(server) as replayer:
            fill(replayer, "build", -1, range(2), end=False)
            replayer.push("build", -1, 3, batch("build", 3))  # the last that it got out: a hole is before it
            assert taken(mail, 2) == run_of("build", range(2))
        with client(server) as successor:
            fill(successor, "build", -1, range(5), attempt=1)
        assert taken(mail) == run_of("build", range(2, 5)) + run_of("probe", range(2))


@pytest.mark.rule("6.5")
def test_d3_the_consumer_dies_again_during_its_replay(tmp_path: Path) -> None:
    """A third incarnation gets the same order."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        fill(ex, "probe", 0, range(3))
        fill(ex, "build", -1, range(3))
        orders = []
        for incarnation, count in ((1, 2), (2, 4), (3, None)):
            with client(server) as machine:
                orders.append(taken(machine.consume("join", incarnation=incarnation), count))
        whole = run_of("build", range(3)) + run_of("probe", range(3))
        assert orders == [whole[:2], whole[:4], whole]


@pytest.mark.rule("6.4")
def test_d4_a_producer_thought_dead_pushes_after_its_successor(tmp_path: Path) -> None:
    """Refused, content unchanged, after a server restart too."""
    for _ in range(2):
        with served(tmp_path) as (store, server), client(server) as zombie, client(server) as successor:
            zombie.declare("join", JOIN)
            fill(successor, "build", -1, range(9), end=False, attempt=2)
            before = files_of(store)
            with pytest.raises(el.Fenced, match="attempt 1 was replaced by attempt 2"):
                zombie.push("build", -1, 7, batch("build", 70), attempt=1)
            with pytest.raises(el.Fenced):
                zombie.push("build", -1, 9, batch("build", 9), attempt=1)
            with pytest.raises(el.Fenced):
                zombie.end("build", 6, attempt=1)
            wait_until(lambda store=store, before=before: files_of(store) == before)
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.end("build", 8, attempt=2)
        assert taken(ex.consume("join", incarnation=0), 9) == run_of("build", range(9))


@pytest.mark.rule("6.5")
def test_d5_the_old_consumer_acknowledges_while_the_new_one_is_behind(tmp_path: Path) -> None:
    """Refused; 3-10 are still served."""
    with served(tmp_path) as (store, server), client(server) as ex, client(server) as elsewhere:
        ex.declare("join", JOIN)
        fill(ex, "build", -1, range(12))
        old = ex.consume("join", incarnation=1)
        taken(old, 10)
        new = elsewhere.consume("join", incarnation=2)
        taken(new, 3)
        with pytest.raises(el.Fenced, match="was replaced"):
            old.ack()
        assert len(files_of(store)) == 12
        with pytest.raises(el.Fenced):
            taken(old)
        new.ack()
        assert taken(new, 7) == run_of("build", range(3, 10))
        with pytest.raises(el.Fenced):
            elsewhere.consume("join", incarnation=1)


@pytest.mark.rule("6.3")
def test_d6_a_producer_pushes_again_what_the_consumer_has(tmp_path: Path) -> None:
    """It pushes 0-9 again, the consumer has 0-5: 0-5 dropped and freed, the rest once."""
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        fill(ex, "probe", 0, range(8), end=False)
        mail = ex.consume("join", incarnation=1)
        taken(mail, 6)
        mail.ack()
        wait_until(lambda: len(files_of(store)) == 2)
        fill(ex, "probe", 0, range(10), attempt=1)
        assert taken(mail) == run_of("probe", range(6, 10))
        wait_until(lambda: len(files_of(store)) == 4)
        with pytest.raises(el.ContentMismatch):  # of what is gone the checksum is known
            ex.push("probe", 0, 3, batch("probe", 30), attempt=1)
        mail.ack()
        wait_until(lambda: not files_of(store))


@pytest.mark.rule("6.6")
@pytest.mark.parametrize("wait", [True, False])
def test_d7_the_reply_to_a_push_is_lost(tmp_path: Path, wait: bool) -> None:
    """The client retries: not doubled."""
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        proxy = TcpProxy(port_of(server.location))
        try:
            with client(f"grpc://127.0.0.1:{proxy.port}") as producer:
                for seq in range(4):
                    if seq == 2:
                        proxy.cut_answer(b"probe")
                    producer.push("probe", 0, seq, batch("probe", seq), wait=wait)
                producer.end("probe", 3, rows=12)
            assert proxy.fired.is_set()
        finally:
            proxy.stop()
        assert taken(ex.consume("join", incarnation=1)) == run_of("probe", range(4))
        wait_until(lambda: len(files_of(store)) == 4)


@pytest.mark.rule("6.6")
@pytest.mark.medium
def test_d7_the_reply_to_an_acknowledgement_or_an_end_mark_is_lost(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        proxy = TcpProxy(port_of(server.location))
        try:
            with client(f"grpc://127.0.0.1:{proxy.port}") as far:
                fill(far, "probe", 0, range(4), end=False)
                proxy.cut_answer(b"staged.end")
                far.end("probe", 3)
                assert proxy.fired.is_set()
                mail = far.consume("join", incarnation=1)
                assert taken(mail) == run_of("probe", range(4))
                proxy.cut_answer(b"staged.ack")
                mail.ack()
                assert proxy.fired.is_set()
        finally:
            proxy.stop()
        wait_until(lambda: not files_of(store))
        assert ex.consume("join", incarnation=2).cursor == {"probe": 4}


@pytest.mark.rule("6.6")
def test_d7_a_consumer_whose_line_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    """Each sent batch comes once, though the consumer's connection breaks again and again."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        fill(ex, "build", -1, range(3))
        proxy = TcpProxy(port_of(server.location))
        try:
            with client(f"grpc://127.0.0.1:{proxy.port}") as far:
                mail = far.consume("join", incarnation=1)
                received = taken(mail, 3)
                for seq in range(4):
                    proxy.refuse(True)
                    ex.push("probe", 0, seq, batch("probe", seq))
                    proxy.refuse(False)
                    received += taken(mail, 1)
                ex.end("probe", 3)
                assert received + taken(mail) == run_of("build", range(3)) + run_of("probe", range(4))
        finally:
            proxy.stop()


@pytest.mark.rule("6.1", "6.8")
def test_d9_what_an_end_mark_promises_is_waited_for(tmp_path: Path) -> None:
    """An end mark says 9, only 0-7 arrived: closed."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        fill(ex, "probe", 0, range(2))
        fill(ex, "build", -1, range(8), end=False)
        ex.end("build", 9)
        assert ex.stage == -1
        mail = ex.consume("join", incarnation=1)
        assert taken(mail, 8) == run_of("build", range(8)) and mail.poll(0.05) is None and not mail.done
        fill(ex, "build", -1, (9,), end=False)
        assert ex.stage == -1
        fill(ex, "build", -1, (8,), end=False)
        assert ex.stage == 1
        assert taken(mail) == run_of("build", (8, 9)) + run_of("probe", range(2))


@pytest.mark.rule("6.1")
def test_d9_an_empty_stage_passes(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {-1: ["build_a", "build_b"], 0: ["probe"]})
        fill(ex, "probe", 0, range(2))
        mail = ex.consume("join", incarnation=1)
        ex.end("build_a", -1)
        assert mail.poll(0.05) is None  # nothing came of build_b, and that says nothing
        ex.end("build_b", -1, rows=0)
        assert taken(mail) == run_of("probe", range(2))


@pytest.mark.rule("6.1")
def test_d9_three_stages_deep(tmp_path: Path) -> None:
    """-2 before -1 before 0, whatever comes first."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"], -2: ["deep"], -1: ["build"]})
        assert ex.stage == -2
        for channel, stage, at in (("probe", 0, -2), ("build", -1, -2), ("deep", -2, 1)):
            fill(ex, channel, stage, range(2))
            assert ex.stage == at
        whole = run_of("deep", range(2)) + run_of("build", range(2)) + run_of("probe", range(2))
        assert taken(ex.consume("join", incarnation=1)) == whole


@pytest.mark.rule("6.6")
@pytest.mark.slow
def test_d10_the_server_is_killed_and_comes_back_on_the_same_port(tmp_path: Path) -> None:
    """No batch lost that was acknowledged, unknown incarnations refused, and never an empty stream where data is
    missing. Producer and consumer go on by themselves.
    """
    with (
        ServerProcess(tmp_path / "store") as server,
        client(server.location) as ex,
        client(server.location) as producer,
    ):
        ex.declare("join", JOIN)
        mail = ex.consume("join", incarnation=3)
        received: list[tuple[str, int]] = []
        eating = threading.Thread(target=lambda: received.extend(taken(mail)))
        eating.start()
        for seq in range(30):
            producer.push("build", -1, seq, batch("build", seq), wait=seq % 3 == 0)
            if seq == 15:
                server.kill()
                server.start()
        producer.end("build", 29)
        server.kill()
        server.start()
        fill(producer, "probe", 0, range(3))
        eating.join(WAIT_LIMIT_S)
        assert received == run_of("build", range(30)) + run_of("probe", range(3))
        with pytest.raises(el.Fenced):
            producer.consume("join", incarnation=2)
        mail.ack()
        server.kill()
        server.start()
        assert producer.consume("join", incarnation=3).cursor == {"build": 30, "probe": 3}
        with pytest.raises(el.Fenced, match="has not claimed"):
            producer.acknowledge("join", 9, {"build": 1})


@pytest.mark.rule("6.11")
@pytest.mark.damages_store
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut"])
def test_d10_data_that_is_missing_is_said_to_be(tmp_path: Path, damage: str) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        ex.push("probe", 0, 0, batch("probe", 0), wait=True)
        first = files_of(store)
        ex.push("probe", 0, 1, batch("probe", 1), wait=True)
        (second,) = files_of(store) - first
        fill(ex, "probe", 0, [2])
        path = Path(store.root) / second
    data = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    elif damage == "cut":
        path.write_bytes(data[:-9])
    with served(tmp_path) as (store, server), client(server) as ex:
        mail = ex.consume("join", incarnation=1)
        assert taken(mail, 1) == [("probe", 0)]
        with pytest.raises(el.Corrupt, match="sequence 1 of channel 'probe' is damaged") as error:
            taken(mail)
        assert path.name not in str(error.value) and not mail.done
        assert [Path(problem.where).name for problem in store.verify().problems] == [path.name]
