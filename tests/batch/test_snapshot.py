"""Snapshots: the same bytes for their whole life, repeatable by token, waiting as asked, gone when closed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.catalog.records import DECODED
from epochlog.store.epochs import view_reader
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention.holds import holds_of
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.sst.sorted_run import SortedRun
from lab import Lab, keys_of, mirror, state_of, sums


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=el.TableOptions(history_retention=timedelta(0)))
    lab.put({1: (0, 10), 2: (0, 20), 3: (1, 30)})
    lab.tick()
    lab.job("j", ["r"]).step_local(sums("r", "j_out"))
    return lab


def step(lab: Lab) -> int | None:
    return lab.store.job("j").step_local(sums("r", "j_out"))


def read(snapshot: el.Snapshot) -> dict[str, Any]:
    return {table: state_of(snapshot[table].to_arrow()) for table in snapshot}


def expiries(lab: Lab) -> list[int]:
    """List the milliseconds until the leases on table r expire."""
    handle: Any = lab.store._handle
    table = handle.catalog.read(lambda view: holds_of(view, 1, lab.now_ms, handle.leases.live))
    return [hold.expires_ms - lab.now_ms for hold in table if hold.expires_ms is not None]


# ---- the same for its whole life ------------------------------------------------------------------------------------


@pytest.mark.rule("3.17")
def test_a_pinned_snapshot_stays_the_same_through_commits_and_compaction(lab: Lab) -> None:
    with lab.store.snapshot(["r", "j_out"], consistency="aligned") as snapshot:
        before = read(snapshot)
        assert before == {"r": {1: (0, 10), 2: (0, 20), 3: (1, 30)}, "j_out": {0: (3, 60)}}
        for number in range(4):
            lab.put({2: (0, number), 10 + number: (0, 1)})
            lab.store.table("r").delete(keys_of([1]))
            lab.tick()
            step(lab)
            lab.store.compact(full=True)
            assert read(snapshot) == before
            assert snapshot["r"].count() == 3
            assert state_of(snapshot["r"].get(keys_of([3, 1, 99]))) == {3: (1, 30), 1: (0, 10)}
    assert lab.rows("j_out") == {0: (6, 37)}


def test_two_snapshots_of_one_store_are_each_their_own(lab: Lab) -> None:
    first = lab.store.snapshot()
    lab.put({1: (0, 11)})
    lab.tick()
    step(lab)
    second = lab.store.snapshot()
    assert (read(first)["j_out"], read(second)["j_out"]) == ({0: (3, 60)}, {0: (3, 61)})
    first.close()
    lab.store.compact(full=True)
    assert read(second)["j_out"] == {0: (3, 61)}
    second.close()


# ---- repeated -------------------------------------------------------------------------------------------------------


READER = """
import sys, json
import epochlog as el
now = int(sys.argv[3])
with el.open(sys.argv[1], create=False, clock=lambda: now) as store:
    with store.snapshot(consistency=el.Exact(sys.argv[2])) as snapshot:
        rows = {table: snapshot[table].to_arrow().to_pylist() for table in snapshot}
        print(json.dumps([snapshot.epochs, rows, snapshot.token]))
"""


@pytest.mark.rule("3.7")
@pytest.mark.medium
@pytest.mark.local_only
def test_a_token_repeats_a_snapshot_in_another_process(lab: Lab) -> None:
    import json

    with lab.store.snapshot(["r", "j_out"], consistency="aligned") as snapshot:
        lab.put({1: (0, 11)})
        lab.tick()
        step(lab)
        lab.store.compact(full=True)
        command = [sys.executable, "-c", READER, str(lab.root), snapshot.token, str(lab.now_ms)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        epochs, rows, token = json.loads(process.stdout)
        assert (epochs, token) == (snapshot.epochs, snapshot.token)
        assert rows == {table: snapshot[table].to_arrow().to_pylist() for table in snapshot}


def test_a_token_of_what_was_let_go_or_dropped_or_is_elsewhere_is_refused(lab: Lab, tmp_path: Path) -> None:
    with lab.store.snapshot(["r", "j_out"], consistency="aligned") as snapshot:
        token = snapshot.token
    other = Lab(tmp_path / "other")
    other.root_table()
    with pytest.raises(el.InvalidInput, match="another store"):
        other.store.snapshot(["r"], consistency=el.Exact(token))
    lab.put({1: (0, 11)})
    lab.tick()
    step(lab)
    lab.put({1: (0, 12)})
    lab.store.compact("r", full=True)
    with pytest.raises(el.EpochExpired, match="r"):
        lab.store.snapshot(consistency=el.Exact(token))
    lab.store.drop_job("j")
    with pytest.raises((el.TableDropped, el.EpochExpired)):
        lab.store.snapshot(consistency=el.Exact(token))


@pytest.mark.rule("2.6", "3.7")
def test_exact_epochs_are_read_as_given(lab: Lab) -> None:
    first = lab.store.snapshot()
    lab.put({1: (0, 11)})
    with lab.store.snapshot(consistency="exact", epochs_or_token=first.epochs) as again:
        assert (again.epochs, read(again)) == (first.epochs, read(first))
    with pytest.raises(el.EpochNotCommitted, match="r"):
        lab.store.snapshot(["r"], consistency=el.Exact({"r": lab.store.last_epoch + 1}))
    with pytest.raises(el.EpochNotCommitted, match="j_out"):
        lab.store.snapshot(["j_out"], consistency=el.Exact({"j_out": lab.store.last_epoch}))
    with pytest.raises(el.InvalidInput, match="j_out"):
        lab.store.snapshot(["j_out"], consistency=el.Exact({"r": 1}))
    first.close()


# ---- leases ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.17")
def test_leases_are_taken_renewed_and_given_back(lab: Lab) -> None:
    assert expiries(lab) == []
    first, second = lab.store.snapshot(["r"]), lab.store.snapshot()
    assert expiries(lab) == [LEASE_MS, LEASE_MS]
    lab.now_ms += LEASE_MS - 1
    lab.store._handle.leases.renew()
    assert expiries(lab) == [LEASE_MS, LEASE_MS]
    first.close()
    first.close()
    assert expiries(lab) == [LEASE_MS]
    second.close()
    assert expiries(lab) == []


@pytest.mark.rule("3.17")
def test_a_jump_of_the_clock_ends_no_lease_of_a_living_holder(lab: Lab) -> None:
    with lab.store.snapshot(["r"], consistency="latest") as snapshot:
        before = read(snapshot)
        lab.now_ms += 100 * LEASE_MS
        lab.put({1: (0, 99)})
        lab.tick()
        lab.store.compact("r", full=True)
        assert lab.store.table("r").info.safe_epoch <= snapshot.epochs["r"]
        assert read(snapshot) == before


def test_closing_the_store_gives_leases_back(lab: Lab) -> None:
    lab.store.snapshot()
    other = lab.open()
    lab.store.close()
    lab.store = other
    assert expiries(lab) == []


# ---- waiting --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.5")
def test_at_least_waits_until_another_thread_steps(lab: Lab) -> None:
    epoch = lab.put({1: (0, 11)})
    lab.tick()
    waiting = threading.Event()

    class Watched(el.AtLeast):
        def choose(self, view: Any, tables: Any, /) -> dict[str, int]:
            waiting.set()
            return super().choose(view, tables)

    thread = threading.Thread(target=lambda: waiting.wait() and step(lab))
    thread.start()
    with lab.store.snapshot(["r", "j_out"], consistency=Watched(epoch, timeout=60)) as snapshot:
        assert min(snapshot.epochs.values()) >= epoch
        assert read(snapshot)["j_out"] == {0: (3, 61)}
    thread.join()


@pytest.mark.parametrize("consistency, error", [
    (lambda epoch: el.AtLeast(epoch, timeout=0), el.NoConsistentEpoch),
    (lambda epoch: el.AtLeast(epoch, timeout=0.05), el.NoConsistentEpoch),
    (lambda epoch: el.AtLeast(epoch, timeout=timedelta(milliseconds=50)), el.NoConsistentEpoch),
    (lambda epoch: el.Bounded(max_lag=1, timeout=0.05), el.StalenessExceeded),
])  # fmt: skip
def test_waiting_ends_with_an_error_by_real_time_though_the_clock_stands_still(
    lab: Lab, consistency: Any, error: type[Exception]
) -> None:
    epoch = lab.put({1: (0, 11)})
    lab.tick(5)
    with pytest.raises(error, match="j_out"):
        lab.store.snapshot(["r", "j_out"], consistency=consistency(epoch))
    assert expiries(lab) == []


def test_at_least_is_met_at_once_where_it_holds_already(lab: Lab) -> None:
    epoch = lab.store.last_epoch
    with lab.store.snapshot(["r", "j_out"], consistency="at_least", epoch=epoch, timeout=0) as snapshot:
        assert set(snapshot.epochs.values()) == {epoch}


@pytest.mark.rule("3.6")
def test_bounded_by_its_lag(lab: Lab) -> None:
    with lab.store.snapshot(["r", "j_out"], consistency="bounded", max_lag=1, timeout=0) as snapshot:
        assert snapshot.lag_ms == {"r": 0, "j_out": 0}
    lab.put({1: (0, 11)})
    lab.tick(3)
    with pytest.raises(el.StalenessExceeded, match="lags 3,000 ms"):
        lab.store.snapshot(["r", "j_out"], consistency="bounded", max_lag=2, timeout=0)
    with lab.store.snapshot(["r", "j_out"], consistency=el.Bounded(max_lag=timedelta(seconds=3))) as snapshot:
        assert max(snapshot.lag_ms.values()) == 3000
    step(lab)
    with lab.store.snapshot(["r", "j_out"], consistency="bounded", max_lag=0, timeout=0) as snapshot:
        assert read(snapshot)["j_out"] == {0: (3, 61)}


# ---- what it is and is not ------------------------------------------------------------------------------------------


def test_a_closed_snapshot_is_expired(lab: Lab) -> None:
    snapshot = lab.store.snapshot()
    table = snapshot["r"]
    snapshot.close()
    for use in (
        lambda: snapshot["r"],
        table.to_arrow,
        table.scan,
        table.to_pandas,
        table.to_polars,
        table.count,
        lambda: table.get(keys_of([1])),
        snapshot.duckdb,
        lambda: snapshot.spark("r", None),
    ):
        with pytest.raises(el.SnapshotExpired, match="closed"):
            use()


def test_unknown_tables_and_empty_lists_are_refused(lab: Lab) -> None:
    with pytest.raises(el.TableNotFound, match="nothing"):
        lab.store.snapshot(["r", "nothing"])
    with pytest.raises(el.InvalidInput):
        lab.store.snapshot([])
    with pytest.raises(el.InvalidInput, match=r"\['r'\]"):
        lab.store.snapshot("r")
    for tables in ([1], [["r"]], b"r", [None]):
        with pytest.raises(el.InvalidInput, match="a list of table names"):
            lab.store.snapshot(tables, consistency="aligned")  # pyright: ignore[reportArgumentType]
    with pytest.raises(el.InvalidInput, match="nothing"):
        lab.store.snapshot(consistency="nothing")
    with lab.store.snapshot(["r"]) as snapshot, pytest.raises(el.InvalidInput, match="j_out"):
        _ = snapshot["j_out"]
    with lab.store.snapshot(["r"]) as snapshot, pytest.raises(el.InvalidInput, match="the text of a WHERE clause"):
        snapshot.spark("r", None, filter=pc.field("k") < 5)  # pyright: ignore[reportArgumentType]
    assert expiries(lab) == []


def test_the_doors_agree(lab: Lab) -> None:
    lab.put({k: (k % 3, k * k) for k in range(500)})
    lab.tick()
    step(lab)
    with lab.store.snapshot() as snapshot:
        table = snapshot["r"]
        rows = state_of(table.to_arrow())
        wanted = (len(rows), sum(v for _, v in rows.values()))
        with snapshot.duckdb() as connection:
            assert connection.sql("SELECT count(*), sum(v) FROM r").fetchall() == [wanted]
            joined = connection.sql("SELECT j_out.g = count(*) FROM r, j_out GROUP BY j_out.g").fetchall()
            assert joined == [(True,)]
        pandas, polars, scanned = table.to_pandas(), table.to_polars(), table.scan().read_all()
        assert (len(pandas), int(pandas.v.sum())) == wanted
        assert (polars.height, polars["v"].sum()) == wanted
        assert (scanned.num_rows, sum(scanned.column("v").to_pylist())) == wanted
        assert table.count() == wanted[0]
        assert read(snapshot)["j_out"] == {0: wanted}
        assert (len(snapshot), list(snapshot)) == (2, ["r", "j_out"])


def test_a_policy_of_ones_own_is_asked(lab: Lab) -> None:
    class Oldest:
        def choose(self, view: Any, tables: Any) -> dict[str, int]:
            return {name: int(view.table(name).commits[0]) for name in tables}

    first = lab.store.table("j_out").info.max_committed_epoch
    lab.put({1: (0, 11)})
    lab.tick()
    step(lab)
    with lab.store.snapshot(["j_out"], consistency=Oldest()) as snapshot:
        assert snapshot.epochs == {"j_out": first}
        assert read(snapshot) == {"j_out": {0: (3, 60)}}


class NewestOfAll(el.Aligned):
    """A user's policy that asks for a table that the snapshot does not name."""

    def choose(self, view: Any, tables: Any) -> dict[str, int]:
        return {name: view.table("other").position for name in tables}


@pytest.mark.parametrize(
    ("consistency", "options", "read_tables"),
    [
        ("latest", {}, {"j_out", "r"}),
        ("aligned", {}, {"j_out", "r"}),
        ("bounded", {"max_lag": 60}, {"j_out", "r"}),
        ("as_of", {"timestamp": "2100-01-01"}, {"j_out", "r"}),
        ("at_least", {"epoch": 1}, {"j_out", "r"}),
        ("global", {}, {"j_out", "r", "other"}),
        (NewestOfAll(), {}, {"j_out", "r", "other"}),
    ],
)
def test_the_epochs_of_other_tables_are_read_only_for_a_policy_that_may_ask_for_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, consistency: Any, options: Any, read_tables: set[str]
) -> None:
    lab.root_table("other")
    lab.store.checkpoint()
    step(lab)
    seen: set[str] = set()
    of_table = view_reader._table_epochs

    def noted(view: Any, memory: Any, records: Any, *others: Any) -> Any:
        seen.add(records.definition.name)
        return of_table(view, memory, records, *others)

    monkeypatch.setattr(view_reader, "_table_epochs", noted)
    with lab.store.snapshot(["j_out"], consistency=consistency, **options) as snapshot:
        assert list(snapshot) == ["j_out"]
    assert seen == read_tables


@pytest.mark.parametrize("names", [None, ["t0", "t1", "t2"]])
def test_a_snapshot_decodes_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None
) -> None:
    with el.open(tmp_path / "another") as store:
        for number in range(3):
            store.create_table(f"t{number}", pa.schema([("id", pa.int64())]), ["id"]).upsert([{"id": number}])
        store.compact("t0", full=True)
        decoded = Counter[str]()
        DECODED.clear()
        for kind in (TableDef, TableVersion, SortedRun):
            monkeypatch.setattr(kind, "from_record", counted(kind, decoded))
        with store.snapshot(names, consistency="latest") as snapshot:
            assert decoded == {"TableDef": 3, "TableVersion": 3, "SortedRun": 1}
            assert [snapshot[name].to_arrow()["id"].to_pylist() for name in snapshot] == [[0], [1], [2]]


def counted(kind: Any, calls: Counter[str]) -> Any:
    """Return the `from_record` of the class, which counts its calls."""
    decode = kind.from_record

    def from_record(record: dict[str, Any]) -> Any:
        calls[kind.__name__] += 1
        return decode(record)

    return staticmethod(from_record)


@pytest.mark.medium
def test_a_snapshot_taken_from_a_mirror_while_it_steps_is_whole(lab: Lab) -> None:
    """Readers and a job at work in threads: each snapshot is aligned, whatever moment it came at."""
    job = lab.job("m", ["r"])
    job.step_local(mirror("r", "m_out"))
    done, problems = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            with lab.store.snapshot(["r", "m_out"], consistency="aligned") as snapshot:
                rows = read(snapshot)
                if rows["r"] != rows["m_out"]:
                    problems.append((snapshot.epochs, rows))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(25):
        lab.put({number % 5: (0, number)})
        lab.tick()
        job.step_local(mirror("r", "m_out"))
        if number % 8 == 0:
            lab.store.compact(full=True)
    done.set()
    for thread in threads:
        thread.join()
    assert not problems


def test_snapshots_that_nobody_closes_are_a_leak(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.batch.snapshot.MAX_OPEN_SNAPSHOTS", 3)
    opened = [lab.store.snapshot(["r"]) for _ in range(3)]
    with pytest.raises(el.LimitExceeded, match="3 snapshots of this store are open"):
        lab.store.snapshot(["r"])
    with el.open(lab.root.parent / "another") as another:  # of this store, not of the process
        another.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        another.snapshot(["t"]).close()
    opened.pop().close()
    lab.store.snapshot(["r"]).close()
    for snapshot in opened:
        snapshot.close()
