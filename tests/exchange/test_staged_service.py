"""The served exchange: budget, leases, drops, vacuum, threads, windows and silent servers, over real sockets."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.exchange import ChannelProgress, ExchangeClient
from epochlog.exchange.staged import messages, push_handler, service, transactions
from epochlog.exchange.staged import pull_client as mails
from epochlog.exchange.staged import push_client as pushers
from epochlog.exchange.staged.batch_file import encode_batch
from epochlog.exchange.staged.pull_handler import StageSender
from epochlog.exchange.transport.duplex import ClientStream, DuplexStream
from epochlog.testing.tcp_proxy import TcpProxy
from staged_fixture import JOIN, TOKEN, batch, client, files_of, fill, run_of, served, taken
from wait_until import WAIT_LIMIT_S, wait_until

local = pytest.mark.local_only  # the others run again where a store's catalog is in Redis, and its files on S3
LAKE_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = LAKE_MS

    def __call__(self) -> int:
        return self.now_ms


def big(channel: str, seq: int) -> pa.RecordBatch:
    """About 100 kB."""
    return batch(channel, seq, 4_000)


BIG = encode_batch(big("probe", 0)).size
pack = messages.pack


# ---- the disk budget -----------------------------------------------------------------------------------------------


@local
@pytest.mark.parametrize("name", ["PUSH", "PULL"])
def test_a_client_that_speaks_another_version_is_told_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A batch travelled in its message once; such a client tried again for all its patience, and blamed the server."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        monkeypatch.setattr(messages, name, getattr(messages, name).removesuffix(b".2"))

        def push() -> None:
            ex.push("probe", 0, 0, batch("probe", 0))
            ex.flush()

        with pytest.raises(el.InvalidInput, match="one version of epochlog"):
            push() if name == "PUSH" else next(ex.consume("join", incarnation=1))


@pytest.mark.rule("6.9")
@local
def test_a_push_waits_for_room_and_gives_up_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]}, budget=3 * BIG)
        for seq in range(3):
            ex.push("probe", 0, seq, big("probe", seq))
        before = files_of(store)
        with monkeypatch.context() as patch:
            patch.setattr(push_handler, "LONGEST_WAIT_MS", 50)
            with pytest.raises(el.BudgetExceeded, match="have the consumers acknowledge"):
                ex.push("probe", 0, 3, big("probe", 3))
        wait_until(lambda: files_of(store) == before)
        mail = ex.consume("join", incarnation=1)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: [ex.push("probe", 0, seq, big("probe", seq)) for seq in range(3, 20)])
            for seq in range(20):
                assert taken(mail, 1) == [("probe", seq)]
                mail.ack()
            rest.result()


@pytest.mark.rule("6.9")
@local
def test_later_stages_do_not_keep_out_the_lowest_open_one(tmp_path: Path) -> None:
    """The probe fills its half; every build still finds room, and then the probe goes on."""
    with served(tmp_path) as (_, server), client(server) as ex, ThreadPoolExecutor(1) as pool:
        ex.declare("join", JOIN, budget=8 * BIG)
        probe = pool.submit(lambda: [ex.push("probe", 0, seq, big("probe", seq)) for seq in range(12)])
        for seq in range(4):
            ex.push("build", -1, seq, big("build", seq))
        assert not probe.done()
        ex.end("build", 3)
        mail = ex.consume("join", incarnation=1)
        for _ in range(16):
            taken(mail, 1)
            mail.ack()
        probe.result()


@pytest.mark.rule("6.9")
@local
def test_a_later_stage_fills_half_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN, budget=8 * BIG)
        for seq in range(4):
            ex.push("probe", 0, seq, big("probe", seq))
        with monkeypatch.context() as patch:
            patch.setattr(push_handler, "LONGEST_WAIT_MS", 50)
            with pytest.raises(el.BudgetExceeded):
                ex.push("probe", 0, 4, big("probe", 4))
        for seq in range(4):
            ex.push("build", -1, seq, big("build", seq))


@pytest.mark.rule("6.9")
@local
def test_the_push_that_completes_a_stage_makes_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end mark came before it, and nobody acknowledges: the probe has half of the budget, and then all of it."""
    monkeypatch.setattr(service, "MAINTENANCE_S", 1e6)
    with served(tmp_path) as (store, server), client(server) as ex, ThreadPoolExecutor(1) as pool:
        ex.declare("join", JOIN, budget=9 * BIG)

        def used() -> int:
            return store._handle.catalog.read(lambda view: transactions.used_bytes(view, "q1")) // BIG

        probe = pool.submit(lambda: [ex.push("probe", 0, seq, big("probe", seq)) for seq in range(8)])
        wait_until(lambda: used() == 4)
        ex.end("build", 0)
        ex.push("build", -1, 0, batch("build", 0))
        probe.result()


@pytest.mark.rule("6.9")
@local
def test_a_channel_of_the_lowest_open_stage_that_has_nothing_may_always_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One channel has filled the budget; the other is not starved by it. Nor is the sequence that is missing."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a", "b"]}, budget=3 * BIG)
        for seq in (1, 2, 3):
            ex.push("a", 0, seq, big("a", seq))
        with monkeypatch.context() as patch:
            patch.setattr(push_handler, "LONGEST_WAIT_MS", 50)
            with pytest.raises(el.BudgetExceeded):
                ex.push("a", 0, 4, big("a", 4))
        ex.push("b", 0, 0, big("b", 0))
        ex.push("a", 0, 0, big("a", 0))
        mail = ex.consume("join", incarnation=1)
        assert sorted(taken(mail, 5)) == [*run_of("a", range(4)), ("b", 0)]


# ---- the end of a query --------------------------------------------------------------------------------------------


@pytest.mark.rule("6.10")
def test_a_dropped_query_is_gone_for_all_its_clients(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex, client(server) as other:
        ex.declare("join", JOIN)
        fill(ex, "build", -1, range(3))
        mail = ex.consume("join", incarnation=4)
        taken(mail, 3)
        other.drop()
        with pytest.raises(el.QueryNotFound):
            taken(mail)
        for refused in (
            lambda: ex.push("build", -1, 3, batch("build", 3)),
            lambda: ex.end("build", 3),
            lambda: ex.stage,
            lambda: ex.consume("join", incarnation=5),
            mail.ack,
        ):
            with pytest.raises(el.QueryNotFound):
                refused()
        wait_until(lambda: not files_of(store))
        ex.declare("join", {0: ["build"]})  # another query under the old name: it knows nothing of the first one
        ex.push("build", 0, 0, batch("build", 0))
        assert taken(ex.consume("join", incarnation=0), 1) == [("build", 0)]


@pytest.mark.rule("6.10")
def test_a_query_that_nobody_uses_ends_with_its_lease_and_vacuum_takes_what_it_had(tmp_path: Path) -> None:
    clock = Clock()
    with (
        el.open(tmp_path / "store", clock=clock, durability="os") as store,
        el.serve(store, token=TOKEN) as server,
        client(server) as ex,
        client(server, "q2") as other,
    ):
        ex.declare("join", JOIN, lease=timedelta(hours=2))
        other.declare("join", JOIN, lease=timedelta(days=2))
        fill(ex, "build", -1, range(3))
        fill(other, "build", -1, range(2))
        clock.now_ms += 3 * 3_600_000  # a jump ends nothing that is in use
        store.vacuum()
        assert ex.stage == 0
    clock.now_ms += 2 * 3_600_000 + 1
    with el.open(tmp_path / "store", clock=clock, durability="os") as store:
        store.vacuum()
        clock.now_ms += 3_600_000
        store.vacuum()
        assert len(files_of(store)) == 2
        assert store.verify().ok
        with el.serve(store, token=TOKEN) as server, client(server) as ex, client(server, "q2") as other:
            with pytest.raises(el.QueryNotFound):
                assert ex.stage
            other.end("probe", -1)
            assert taken(other.consume("join", incarnation=1)) == run_of("build", range(2))


@pytest.mark.rule("6.10")
@pytest.mark.medium
@local
def test_a_query_in_use_outlasts_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that waits is a use; another process's vacuum sees the lease renewed."""
    monkeypatch.setattr(service, "MAINTENANCE_S", 0.1)
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", JOIN, lease=1.5)
        mail = ex.consume("join", incarnation=1)
        first = expires_ms(store)
        assert first
        wait_until(lambda: (expires_ms(store) or 0) > first + 1_500)
        mail.close()
        wait_until(lambda: expires_ms(store) is None)


def expires_ms(store: el.Store) -> int | None:
    """Return the expiry of the query's lease; None when the query is gone."""
    record = store._handle.catalog.read(lambda view: view.get(b"xq/q1"))
    return None if record is None else record["expires_ms"]


@local
def test_files_in_use_survive_vacuum_and_restored_catalogs_and_dead_ones_do_not(tmp_path: Path) -> None:
    clock = Clock()
    root = tmp_path / "store"
    with el.open(root, clock=clock, durability="os") as store:
        with el.serve(store, token=TOKEN) as server, client(server) as ex:
            ex.declare("join", JOIN, lease=timedelta(days=9))
            fill(ex, "build", -1, range(3))
            fill(ex, "probe", 0, range(2))
            path = store._handle.new_path(0, ".arrow")
            store._handle.files.write(path, b"of a server that died before it could say so")
        store.export_catalog(tmp_path / "export")
    shutil.rmtree(root / "catalog")
    el.restore_catalog(root, tmp_path / "export")
    with el.open(root, clock=clock, durability="os") as store:
        assert path in store.verify().unreachable
        clock.now_ms += 86_400_000
        store.vacuum()
        clock.now_ms += 86_400_000
        store.vacuum()
        assert path not in files_of(store) and len(files_of(store)) == 5
        with el.serve(store, token=TOKEN) as server, client(server) as ex:
            assert taken(ex.consume("join", incarnation=1)) == run_of("build", range(3)) + run_of("probe", range(2))


# ---- content and ends ----------------------------------------------------------------------------------------------


@pytest.mark.rule("6.8")
@local
def test_the_rows_of_an_end_mark_are_counted(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a", "b"]})
        fill(ex, "a", 0, range(2), end=False)
        with pytest.raises(el.EndMarkMismatch, match="6 rows"):
            ex.end("a", 1, rows=7)
        ex.end("a", 1, rows=6)
        ex.end("a", 1)
        with pytest.raises(el.EndMarkMismatch):
            ex.end("a", 1, rows=7)
        with pytest.raises(el.EndMarkMismatch):
            ex.end("a", 2)
        ex.end("b", 1, rows=7)  # before its batches come
        ex.push("b", 0, 0, batch("b", 0))
        with pytest.raises(el.EndMarkMismatch, match="its end mark names 7"):
            ex.push("b", 0, 1, batch("b", 1))
        with pytest.raises(el.EndMarkMismatch, match="ended at sequence 1"):
            ex.push("b", 0, 2, batch("b", 2))
        ex.push("b", 0, 1, batch("b", 1, 4))
        assert len(taken(ex.consume("join", incarnation=1))) == 4


@local
def test_what_is_pushed_comes_out_with_its_types(tmp_path: Path) -> None:
    given = pa.table(
        {
            "i": pa.array([1, None, 3]),
            "s": pa.array(["a", None, "c"]),
            "b": pa.array([True, None, False]),
            "l": pa.array([[1, None], None, []]),
            "st": pa.array([{"x": 1}, None, {"x": None}]),
            "d": pa.array(["x", None, "x"]).dictionary_encode(),
            "t": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
        }
    ).replace_schema_metadata({"k": "v"})
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a"]})
        ex.push("a", 0, 0, given)
        ex.push("a", 0, 0, given.slice(0))
        padded = pa.concat_tables([given.slice(2), given]).combine_chunks().slice(1)  # the same, at other places
        ex.push("a", 0, 0, padded)
        ex.push("a", 0, 1, given.slice(0, 0))
        ex.push("a", 0, 2, given.to_pandas()[["s"]])
        ex.end("a", 2)
        batches = [data for _, _, data in ex.consume("join", incarnation=1)]
        assert batches[0].equals(given.combine_chunks().to_batches()[0], check_metadata=True)
        assert batches[1].num_rows == 0 and batches[1].schema == given.schema
        with pytest.raises(el.ContentMismatch):
            ex.push("a", 0, 0, given.slice(0, 2))


@pytest.mark.rule("6.12")
@local
def test_what_is_no_push_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        ex.declare("join", JOIN)
        some, huge = batch("build", 0), pa.table({"x": [bytes(65 << 20)]})
        for refused, error in (
            (lambda: ex.push("nobody", -1, 0, some), el.ChannelUnknown),
            (lambda: ex.end("nobody", -1), el.ChannelUnknown),
            (lambda: ex.push("build", 0, 0, some), el.InvalidInput),
            (lambda: ex.push("build", -1, -1, some), el.InvalidInput),
            (lambda: ex.push("build", -1, 0, some, attempt=-1), el.InvalidInput),
            (lambda: ex.push("a/b", -1, 0, some), el.InvalidInput),
            (lambda: ex.push("build", -1, 0, "no batch"), el.InvalidInput),
            (lambda: ex.push("build", -1, 0, huge), el.LimitExceeded),
            (lambda: ex.end("build", -2), el.InvalidInput),
            (lambda: ex.declare("join", {0: ["build"]}), el.InvalidInput),
            (lambda: ex.declare("other", {0: ["build"]}), el.InvalidInput),
            (lambda: ex.declare("other", {}), el.InvalidInput),
            (lambda: ex.declare("other", {0: ["x"], 1: ["x"]}), el.InvalidInput),
            (lambda: ex.declare("other", {0: "x"}), el.InvalidInput),
            (lambda: ex.consume("nobody", incarnation=1), el.InvalidInput),
            (lambda: ex.consume("join", incarnation=-1), el.InvalidInput),
            (lambda: ex.consume("join", incarnation=1, cursor={"nobody": 1}), el.ChannelUnknown),
            (lambda: ex.acknowledge("join", 1, {"build": 1}), el.Fenced),
            (lambda: client(server, "a b"), el.InvalidInput),
        ):
            with pytest.raises(error):
                refused()
        assert ex.stage == -1


@pytest.mark.rule("6.7")
def test_what_was_let_go_of_is_said_to_be(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a"]})
        fill(ex, "a", 0, range(4))
        mail = ex.consume("join", incarnation=1)
        taken(mail, 2)
        mail.ack()
        with pytest.raises(el.SequenceReleased, match="begin at the acknowledged cursor"):
            ex.consume("join", incarnation=2, cursor={"a": 1})
        with pytest.raises(el.SequenceReleased):
            ex.declare("late", {0: ["a"]})
        with pytest.raises(el.InvalidInput, match="delivered"):
            mail.ack({"a": 9})
        mail.ack({"a": 1})  # never backwards
        assert ex.consume("join", incarnation=3).cursor == {"a": 2}
        assert taken(ex.consume("join", incarnation=4, cursor={"a": 3})) == [("a", 3)]


@pytest.mark.rule("6.7")
def test_two_consumers_hold_a_batch_until_both_have_it(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("one", {0: ["a", "b"]})
        ex.declare("two", {-3: ["deep"], 0: ["a"]})
        for channel, stage in (("a", 0), ("b", 0), ("deep", -3)):
            fill(ex, channel, stage, range(2))
        first, second = ex.consume("one", incarnation=1), ex.consume("two", incarnation=1)
        assert sorted(taken(first)) == run_of("a", range(2)) + run_of("b", range(2))
        first.ack()
        wait_until(lambda: len(files_of(store)) == 4)
        assert taken(second) == run_of("deep", range(2)) + run_of("a", range(2))
        second.ack()
        wait_until(lambda: not files_of(store))


# ---- many at once --------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_threads_on_several_channels_and_pushes_that_share_a_transaction(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex, ThreadPoolExecutor(6) as pool:
        catalog, count = store._handle.catalog, [0]
        real = catalog.transact

        def counted(body):
            count[0] += 1
            return real(body)

        channels = [f"c{number}" for number in range(4)]
        ex.declare("join", {0: channels})
        catalog.transact = counted  # pyright: ignore[reportAttributeAccessIssue]

        def produce(channel: str) -> None:
            for seq in range(60):
                ex.push(channel, 0, seq, batch(channel, seq), wait=False)
            ex.end(channel, 59, rows=180)

        mail = ex.consume("join", incarnation=1)
        done = [pool.submit(produce, channel) for channel in channels]
        received = taken(mail)
        for future in done:
            future.result()
        assert sorted(received) == [given for channel in channels for given in run_of(channel, range(60))]
        assert all([seq for name, seq in received if name == channel] == list(range(60)) for channel in channels)
        assert count[0] < 240, "each push had a transaction of its own"


@local
def test_threads_on_one_channel(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex, ThreadPoolExecutor(4) as pool:
        ex.declare("join", {0: ["a"]})
        list(pool.map(lambda seq: ex.push("a", 0, seq, batch("a", seq)), reversed(range(24))))
        ex.end("a", 23)
        assert taken(ex.consume("join", incarnation=1)) == run_of("a", range(24))


@local
def test_a_refusal_of_a_push_that_nobody_waits_for_is_told_by_the_next_call(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a"]})
        ex.push("a", 0, 0, batch("a", 0), attempt=2)
        ex.push("a", 0, 1, batch("a", 1), attempt=1, wait=False)
        with pytest.raises(el.Fenced):
            ex.flush()
        ex.push("a", 0, 1, batch("a", 10), attempt=2, wait=False)
        ex.push("a", 0, 1, batch("a", 1), attempt=2, wait=False)
        with pytest.raises(el.ContentMismatch):
            ex.end("a", 1, attempt=2)


@pytest.mark.medium
@local
def test_a_consumer_that_takes_nothing_is_sent_no_more_than_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 400_000
    monkeypatch.setattr("epochlog.exchange.staged.client.WINDOW", size)
    monkeypatch.setattr(mails, "WINDOW", size)
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["a"]})
        for seq in range(30):
            ex.push("a", 0, seq, big("a", seq), wait=False)
        ex.end("a", 29)
        mail = ex.consume("join", incarnation=1)
        wait_until(lambda: mail._ready_bytes > size - BIG)
        most, received = mail._ready_bytes, []
        for _ in range(30):
            received += taken(mail, 1)
            most = max(most, mail._ready_bytes)
        assert received == run_of("a", range(30)) and mail.poll() is None
        assert most <= size + BIG, most


@local
def test_a_close_ends_an_iteration_that_waits(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex, ThreadPoolExecutor(1) as pool:
        ex.declare("join", JOIN)
        mail = ex.consume("join", incarnation=1)
        waiting = pool.submit(lambda: list(mail))
        mail.close()
        assert waiting.result() == [] and not mail.done


# ---- servers that are silent, or away ------------------------------------------------------------------------------


@pytest.mark.medium
@local
def test_a_server_that_falls_silent_is_left_for_a_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mails, pushers):
        monkeypatch.setattr(module, "SILENT_S", 1.5)
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        proxy = TcpProxy(int(server.location.rpartition(":")[2]))
        try:
            with client(f"grpc://127.0.0.1:{proxy.port}") as far:
                mail = far.consume("join", incarnation=1)
                far.push("probe", 0, 0, batch("probe", 0))
                assert taken(mail, 1) == [("probe", 0)]
                proxy.swallow(b"probe")
                far.push("probe", 0, 1, batch("probe", 1))
                assert proxy.fired.is_set()
                ex.end("probe", 1)
                assert taken(mail) == [("probe", 1)]
        finally:
            proxy.stop()


@local
def test_a_reader_with_a_defect_gives_up_and_tells_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: bytes) -> None:
        raise ZeroDivisionError

    with served(tmp_path) as (_, server), client(server, timeout=0.2) as ex:
        ex.declare("join", {0: ["probe"]})
        monkeypatch.setattr(messages, "decode_reader_message", broken)
        with pytest.raises(el.EpochlogError, match="could not be handled: ZeroDivisionError"):
            ex.consume("join", incarnation=1)


def line_to(ex: ExchangeClient, number: int = 1, *, mail: str = "one", incarnation: int = 1) -> ClientStream:
    """A consumer's line, opened by hand."""
    opened = ClientStream(
        ex.location, messages.PULL + b":", token=TOKEN, tls_roots=None, limit=messages.MAX_MESSAGE_BYTES
    )
    hello = {"query": ex.query, "consumer": "join", "incarnation": incarnation, "cursor": None, "window": 1 << 20}
    opened.send(messages.pack(**hello, mail=mail, line=number))
    return opened


def kinds(opened: ClientStream) -> Iterator[str]:
    while (parcel := opened.read_frame()) is not None:
        yield messages.decode_reader_message(parcel.message or b"")["kind"]


def test_a_line_that_its_client_gave_up_does_not_replace_the_one_it_opened_instead(tmp_path: Path) -> None:
    """A line's call can reach its handler late, on a busy machine: after that of the line which came for it."""
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        second = line_to(ex, 2)
        heard = kinds(second)
        assert next(heard) == "started"
        first = line_to(ex, 1)
        assert first.read() is None
        ex.push("probe", 0, 0, batch("probe", 0))
        assert next(kind for kind in heard if kind != "alive") == "item"
        third = line_to(ex, 3)
        assert next(kinds(third)) == "started"
        assert "refused" in heard  # replaced
        another = line_to(ex, 1, mail="another")
        assert next(kinds(another)) == "started"
        for opened in (first, second, third, another):
            opened.close()


def test_a_consumer_that_was_killed_as_it_claimed_does_not_replace_the_one_that_came_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler had claimed, and was not heard of until the next incarnation had claimed as well."""
    claimed, go_on = threading.Event(), threading.Event()
    plain = StageSender.__init__

    def slow(self: StageSender, service: service.StagedExchange, line: DuplexStream, hello: messages.Fields) -> None:
        plain(self, service, line, hello)
        if hello["incarnation"] == 1:
            claimed.set()
            assert go_on.wait(WAIT_LIMIT_S)

    monkeypatch.setattr(StageSender, "__init__", slow)
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        killed = line_to(ex, mail="one", incarnation=1)
        assert claimed.wait(WAIT_LIMIT_S)
        heir = line_to(ex, mail="another", incarnation=2)
        heard = kinds(heir)
        assert next(heard) == "started"
        go_on.set()
        assert killed.read() is None
        ex.push("probe", 0, 0, batch("probe", 0))
        assert next(kind for kind in heard if kind != "alive") == "item"
        for opened in (killed, heir):
            opened.close()


@pytest.mark.medium
@local
def test_a_server_that_is_away_for_good(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server):
        location = server.location
        with client(server) as ex:
            ex.declare("join", JOIN)
        short = client(server, timeout=0.3)
        mail = short.consume("join", incarnation=1)
    with short:
        for refused in (
            lambda: short.push("build", -1, 0, batch("build", 0)),
            lambda: short.stage,
            lambda: taken(mail, 1),
            lambda: short.consume("join", incarnation=2),
        ):
            with pytest.raises(el.ServerUnavailable):
                refused()
    assert location


@pytest.mark.rule("6.11")
@local
def test_a_batch_that_is_not_what_its_checksum_says_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        ex.push("probe", 0, 0, batch("probe", 0))
        with monkeypatch.context() as patch:
            patch.setattr(
                messages, "pack", lambda **fields: pack(**{**fields, **({"crc32": 7} if "crc32" in fields else {})})
            )
            with pytest.raises(el.BadMessage, match="checksum"):
                ex.push("probe", 0, 1, batch("probe", 1))
        assert len(files_of(store)) == 1
        ex.push("probe", 0, 1, batch("probe", 1))
        ex.end("probe", 1)
        assert taken(ex.consume("join", incarnation=1)) == run_of("probe", range(2))


@pytest.mark.rule("6.7")
@local
def test_what_was_not_given_out_cannot_be_acknowledged(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", {0: ["probe"], -1: ["build"]})
        ex.declare("join", {-1: ["build"], 0: ["probe"]})  # the same in another order
        fill(ex, "probe", 0, range(3))
        ex.push("build", -1, 0, batch("build", 0))
        with ex.consume("join", incarnation=1) as mail:
            assert taken(mail, 1) == [("build", 0)]
            with pytest.raises(el.InvalidInput, match="delivered"):
                mail.ack({"probe": 1})
            ex.end("build", 0)
            assert taken(mail) == run_of("probe", range(3))
            with pytest.raises(el.InvalidInput, match="delivered"):
                mail.ack({"probe": 4})
            mail.ack()


@local
def test_who_was_replaced_by_his_like_acknowledges_nothing(tmp_path: Path) -> None:
    """A second connection with an equal incarnation fences the first."""
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        for seq in range(2):
            ex.push("probe", 0, seq, batch("probe", seq))
        with ex.consume("join", incarnation=1) as first:
            assert taken(first, 2) == run_of("probe", range(2))
            with ex.consume("join", incarnation=1) as second:
                assert taken(second, 1) == [("probe", 0)]
                with pytest.raises(el.Fenced):
                    next(first)
                with pytest.raises(el.Fenced):
                    first.ack()
                assert len(files_of(store)) == 2
                second.ack()
                wait_until(lambda: len(files_of(store)) == 1)


@local
def test_the_read_token_asks_for_the_stage_and_does_nothing_else(tmp_path: Path) -> None:
    with (
        el.open(tmp_path / "store", durability="os") as store,
        el.serve(store, token=TOKEN, read_token="reader") as server,
        client(server) as ex,
        ExchangeClient(server.location, token="reader", query="q1") as reader,
    ):
        ex.declare("join", {0: ["a"]})
        fill(ex, "a", 0, range(2))
        assert reader.stage == 1
        for refused in (
            lambda: next(reader.consume("join", incarnation=1)),
            lambda: reader.acknowledge("join", 1, {"a": 1}),
            lambda: reader.push("a", 0, 0, batch("a", 0)),
            lambda: reader.end("a", 1),
            lambda: reader.declare("other", {0: ["b"]}),
            reader.drop,
        ):
            with pytest.raises(el.AccessDenied):
                refused()


@local
def test_lines_leave_no_threads_behind(tmp_path: Path) -> None:
    def ours() -> int:
        return sum(thread.name.startswith("epochlog") for thread in threading.enumerate())

    before = ours()
    with served(tmp_path) as (_, server):
        for query in range(5):
            with client(server, f"q{query}") as ex:
                ex.declare("join", JOIN)
                fill(ex, "build", -1, range(2))
                taken(ex.consume("join", incarnation=1), 1)
    wait_until(lambda: ours() <= before)


# ---- reads without a claim -------------------------------------------------------------------------------------------


@pytest.mark.rule("6.13")
@local
def test_reads_without_a_claim_get_all_batches_beside_the_claimed_incarnation(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex, client(server) as other:
        ex.declare("join", JOIN)
        fill(ex, "probe", 0, range(3))
        fill(ex, "build", -1, range(2), end=False)
        claimed, readers = ex.consume("join", incarnation=5), [ex.read("join"), other.read("join")]
        assert taken(claimed, 2) == taken(readers[0], 2) == taken(readers[1], 2) == run_of("build", range(2))
        assert [reader.poll(0) for reader in (claimed, *readers)] == [None, None, None]
        ex.end("build", 1)
        whole = run_of("build", range(2)) + run_of("probe", range(3))
        for reader in (claimed, *readers):
            assert taken(reader) == whole[2:]
        assert taken(ex.read("join")) == whole
        assert taken(ex.read("join", {"build": 1, "probe": 2})) == [("build", 1), ("probe", 2)]
        with pytest.raises(el.InvalidInput, match="without a claim"):
            readers[0].ack()
        claimed.ack({"build": 2})
        with pytest.raises(el.SequenceReleased):
            ex.read("join", {"build": 1})
        assert taken(ex.read("join")) == whole[2:]
        with pytest.raises(el.InvalidInput, match="declare it first"):
            ex.read("another")


@local
def test_progress_tells_pushed_and_ended_channels(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join", JOIN)
        fill(ex, "build", -1, [0, 1, 3], end=False)
        assert ex.progress == {"build": ChannelProgress(-1, 2, None), "probe": ChannelProgress(0, 0, None)}
        ex.end("build", 3)
        ex.end("probe", -1)
        assert not ex.progress["build"].passed and ex.progress["probe"] == ChannelProgress(0, 0, -1)
        ex.push("build", -1, 2, batch("build", 2))
        assert ex.progress["build"] == ChannelProgress(-1, 4, 3) and ex.progress["build"].passed
        with client(server, "another") as unknown, pytest.raises(el.QueryNotFound):
            _ = unknown.progress


@local
@pytest.mark.damages_store
@pytest.mark.logs("exchange_file_missing")
def test_a_file_that_is_missing_is_logged_with_its_place(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex:
        ex.declare("join", {0: ["probe"]})
        fill(ex, "probe", 0, range(1))
        for path in files_of(store):
            (Path(store.root) / path).unlink()
        with pytest.raises(el.Corrupt, match="the file is missing"):
            taken(ex.consume("join", incarnation=1))
