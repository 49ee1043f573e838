"""A store that is opened read-only: each public call reads, or raises StoreReadOnly and changes no byte."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.errors import StoreReadOnly
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import Leases

pytestmark = pytest.mark.local_only

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]}, schema=SCHEMA)
KEYS = ROWS.select(["id"])


@dataclass
class OpenedCalls:
    """Store that is opened read-only, with what the calls need."""

    store: el.Store
    epoch: int
    segments: list[el.Segment]
    folder: Path

    @property
    def table(self) -> el.Table:
        return self.store.table("t")

    @property
    def view(self) -> el.View:
        return self.store.view("v")

    @property
    def job(self) -> el.Job:
        return self.store.job("j")

    def log(self, **options: Any) -> el.UpstreamLog:
        return el.UpstreamLog(self.store, ["t"], **options)


def make(folder: Path) -> int:
    """Make a store with a table, a view, a job, a tag and a consumer; return the newest epoch."""
    with el.open(folder / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(ROWS)
        store.create_view("v", "SELECT id, v + 1 AS v FROM t", ["id"])
        store.create_job("j", ["t"], {"out": el.Output(SCHEMA, ["id"])})
        store.checkpoint()
        store.view("v").step()
        store.job("j").step_local(copy)
        store.tag("kept", ["t"])
        with el.UpstreamLog(store, ["t"], consumer="reader", after=0) as log:
            barrier = next(item for item in log if isinstance(item, el.Barrier))
            log.ack(barrier)
        return table.upsert(pa.table({"id": [4], "v": [40]}, schema=SCHEMA))


def copy(ctx: el.LocalRefreshContext) -> None:
    ctx.upsert("out", ctx.table("t"))


def bytes_of(folder: Path) -> dict[str, str]:
    """Map each path below a folder to its content and times of change; folders too."""
    return {
        str(path.relative_to(folder)): f"{path.stat().st_mtime_ns} {path.stat().st_ctime_ns} "
        + (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in sorted(folder.rglob("*"))
    }


Call = Callable[[OpenedCalls], object]
READ, WRITE = "reads", "writes"
NO_SEGMENT: Any = object()
NO_SPARK: Any = None  # a call that writes refuses before it looks at the session

CALLS: dict[type, dict[str, tuple[str, Call]]] = {
    el.Store: {
        "adopt": (WRITE, lambda o: o.store.adopt("out")),
        "alter": (WRITE, lambda o: o.store.alter(global_max_lag=timedelta(minutes=5))),
        "checkpoint": (WRITE, lambda o: o.store.checkpoint()),
        "clone": (WRITE, lambda o: o.store.clone("t", "t2")),
        "close": (READ, lambda o: el.open(o.store.root, read_only=True).close()),
        "commit": (WRITE, lambda o: o.store.commit({"t": o.segments})),
        "compact": (WRITE, lambda o: o.store.compact()),
        "consumers": (READ, lambda o: o.store.consumers()),
        "create_job": (WRITE, lambda o: o.store.create_job("k", ["t"], {"o2": el.Output(SCHEMA, ["id"])})),
        "create_table": (WRITE, lambda o: o.store.create_table("t", SCHEMA, ["id"], exist_ok=True)),
        "create_view": (WRITE, lambda o: o.store.create_view("w", "SELECT id, v FROM t", ["id"])),
        "drop_consumer": (WRITE, lambda o: o.store.drop_consumer("reader")),
        "drop_job": (WRITE, lambda o: o.store.drop_job("j")),
        "drop_load": (WRITE, lambda o: o.store.drop_load("l")),
        "drop_table": (WRITE, lambda o: o.store.drop_table("t")),
        "drop_tag": (WRITE, lambda o: o.store.drop_tag("kept")),
        "drop_view": (WRITE, lambda o: o.store.drop_view("v")),
        "export_catalog": (READ, lambda o: o.store.export_catalog(o.folder / f"export-{id(o)}")),
        "job": (READ, lambda o: o.store.job("j").info),
        "jobs": (READ, lambda o: o.store.jobs()),
        "metrics": (READ, lambda o: o.store.metrics()),
        "replace_views": (WRITE, lambda o: o.store.replace_views({"v": "SELECT id, v FROM t"})),
        "reset_consumer": (WRITE, lambda o: o.store.reset_consumer("reader", "latest")),
        "resolve": (WRITE, lambda o: o.store.resolve(("app", 1))),
        "snapshot": (READ, lambda o: [o.store.snapshot(tables).close() for tables in (None, ["t"], ["t", "v"])]),
        "table": (READ, lambda o: o.store.table("t").info),
        "tables": (READ, lambda o: o.store.tables()),
        "tag": (WRITE, lambda o: o.store.tag("more", ["t"])),
        "tags": (READ, lambda o: o.store.tags()),
        "transaction": (WRITE, lambda o: o.store.transaction().__enter__()),
        "vacuum": (WRITE, lambda o: o.store.vacuum()),
        "verify": (READ, lambda o: o.store.verify()),
        "view": (READ, lambda o: o.store.view("v").sql),
    },
    el.Table: {
        "alter": (WRITE, lambda o: o.table.alter(add=pa.schema([("w", pa.int64())]))),
        "changes": (READ, lambda o: [list(o.table.changes(0, pre_images=images)) for images in (False, True)]),
        "count": (READ, lambda o: o.table.count()),
        "dataset": (READ, lambda o: o.table.dataset().to_table()),
        "delete": (WRITE, lambda o: o.table.delete(KEYS)),
        "finish": (WRITE, lambda o: o.table.finish()),
        "get": (READ, lambda o: o.table.get(KEYS)),
        "history": (READ, lambda o: o.table.history()),
        "lazy": (READ, lambda o: o.table.lazy().collect()),
        "next_epoch": (READ, lambda o: o.table.next_epoch(0)),
        "restore": (WRITE, lambda o: o.table.restore(o.epoch)),
        "scan": (READ, lambda o: list(o.table.scan())),
        "schema_at": (READ, lambda o: o.table.schema_at(o.epoch)),
        "to_arrow": (READ, lambda o: o.table.to_arrow()),
        "to_pandas": (READ, lambda o: o.table.to_pandas()),
        "to_polars": (READ, lambda o: o.table.to_polars()),
        "truncate_log": (WRITE, lambda o: o.table.truncate_log(o.epoch)),
        "update": (WRITE, lambda o: o.table.update(ROWS)),
        "upsert": (WRITE, lambda o: o.table.upsert(ROWS)),
        "writer": (WRITE, lambda o: o.table.writer()),
    },
    el.TableWriter: dict.fromkeys(
        ("abort", "delete", "seal", "update", "upsert"), (WRITE, lambda o: el.TableWriter(*parts_of(o)))
    ),
    el.Transaction: dict.fromkeys(("delete", "update", "upsert"), (WRITE, lambda o: o.store.transaction())),
    el.Job: {
        "alter": (WRITE, lambda o: o.job.alter(max_lag=timedelta(seconds=9))),
        "cancel": (WRITE, lambda o: o.job.cancel()),
        "check": (READ, lambda o: o.job.check("SELECT id, v FROM t")),
        "rebuild": (WRITE, lambda o: o.job.rebuild()),
        "start": (WRITE, lambda o: o.job.start(NO_SPARK, NO_SPARK)),
        "step": (WRITE, lambda o: o.job.step(NO_SPARK, NO_SPARK)),
        "step_local": (WRITE, lambda o: o.job.step_local(copy)),
        "stop": (WRITE, lambda o: o.job.stop(drain=True)),
    },
    el.View: {
        "check": (READ, lambda o: o.view.check()),
        "explain": (READ, lambda o: o.view.explain()),
        "stats": (READ, lambda o: o.view.stats()),
        "rebuild": (WRITE, lambda o: o.view.rebuild()),
        "start": (WRITE, lambda o: o.view.start(NO_SPARK)),
        "step": (WRITE, lambda o: o.view.step()),
        "stop": (WRITE, lambda o: o.view.stop(drain=True)),
    },
    el.Pipeline: dict.fromkeys(("add", "run", "status", "stop"), (WRITE, lambda o: el.Pipeline(o.store))),
    el.Snapshot: {
        "close": (READ, lambda o: o.store.snapshot().close()),
        "duckdb": (READ, lambda o: o.store.snapshot(["t"]).duckdb().sql("SELECT sum(v) FROM t").fetchall()),
        "read_as": (READ, lambda o: o.store.snapshot(["t"]).read_as({})),
        "spark": (READ, lambda o: None),  # spark/test_read_only.py
        "tag": (WRITE, lambda o: o.store.snapshot(["t"]).tag("more")),
    },
    el.UpstreamLog: {
        "ack": (WRITE, lambda o: o.log(consumer="reader")),
        "close": (READ, lambda o: o.log().close()),
        "poll": (READ, lambda o: [log.poll(0.0) for log in (o.log(), o.log(after="snapshot"), o.log(pre_images=True))]),
    },
}
ELSEWHERE = {el.SparkRefreshContext, el.StoreServer, el.Subscription, el.Worker}
"""Classes of a step, which no read-only store makes, and of peers of a server (exchange/test_read_only_server.py)."""


def parts_of(opened: OpenedCalls) -> tuple[Any, Any]:
    return opened.table._handle, opened.table._table


def public_calls(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}


def holds_store(kind: type) -> bool:
    """Return True if objects of the class have an open store."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("epochlog")]
    return any("_handle" in inspect.getsource(base) for base in own)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenedCalls]:
    epoch = make(tmp_path)
    with el.open(tmp_path / "s", read_only=True) as store:
        segment: Any = NO_SEGMENT
        yield OpenedCalls(store, epoch, [segment], tmp_path)


@pytest.mark.rule("1.70")
def test_every_class_with_a_store_and_every_call_of_it_is_listed() -> None:
    kinds = [getattr(el, name) for name in el.__all__]
    with_store = {
        kind for kind in kinds if inspect.isclass(kind) and not issubclass(kind, Exception) and holds_store(kind)
    }
    assert with_store == set(CALLS) | ELSEWHERE
    for kind, calls in CALLS.items():
        assert set(calls) == public_calls(kind), kind


@pytest.mark.medium
@pytest.mark.rule("1.70")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_every_call_reads_or_raises_and_changes_nothing(opened: OpenedCalls) -> None:
    before, wrong = bytes_of(opened.folder / "s"), list[str]()
    for kind, calls in CALLS.items():
        for name, (effect, call) in calls.items():
            effect_seen, error = READ, None
            try:
                call(opened)
            except StoreReadOnly as refusal:
                effect_seen, error = WRITE, refusal
            except el.EpochlogError as other:
                effect_seen, error = "", other
            if effect_seen != effect or (error and "was opened read-only" not in str(error)):
                wrong.append(f"{kind.__name__}.{name}: {error!r}")
            if bytes_of(opened.folder / "s") != before:
                wrong.append(f"{kind.__name__}.{name} changed the store")
                before = bytes_of(opened.folder / "s")
    assert not wrong, "\n".join(wrong)


@pytest.mark.rule("1.70")
def test_reads_are_those_of_a_store_that_is_opened_for_writing(opened: OpenedCalls) -> None:
    with el.open(opened.store.root) as plain:
        for name in ("t", "v", "out"):
            assert opened.store.table(name).to_arrow().equals(plain.table(name).to_arrow())
        for tables in (None, ["t", "v"]):
            with opened.store.snapshot(tables) as reading, plain.snapshot(tables) as wanted:
                assert (reading.epochs, reading.token) == (wanted.epochs, wanted.token)
        with opened.store.snapshot(tag="kept") as kept:
            assert kept["t"].to_arrow().num_rows == 3
        assert opened.store.tags() == plain.tags()
        assert [job.committed_epoch for job in opened.store.jobs()] == [job.committed_epoch for job in plain.jobs()]


@pytest.mark.rule("1.74")
def test_a_read_only_open_creates_nothing(tmp_path: Path) -> None:
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(el.StoreNotFound):
            el.open(root, read_only=True)
    assert list(tmp_path.iterdir()) == []
    make(tmp_path)
    for options in ({"read_only": True, "maintenance": True}, {"read_only": 1}):
        with pytest.raises(el.InvalidInput):
            el.open(tmp_path / "s", **options)


@pytest.mark.rule("1.73")
def test_a_choice_under_global_marks_no_job(tmp_path: Path) -> None:
    """A late view is left out, and its record stays; the reader of a log seals no boundary."""
    clock = [1_767_225_600_000]
    with el.open(tmp_path / "s", clock=lambda: clock[0]) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(ROWS)
        store.create_view("v", "SELECT id, v + 1 AS v FROM t", ["id"])
        store.checkpoint()
        store.view("v").step()
        table.upsert(ROWS.slice(1))
        clock[0] += 3_600_000
        newest = table.upsert(pa.table({"id": [7], "v": [7]}, schema=SCHEMA))
        clock[0] += 5_000
        before = bytes_of(tmp_path / "s")
        with el.open(tmp_path / "s", read_only=True, clock=lambda: clock[0]) as reader:
            with reader.snapshot() as snapshot, el.UpstreamLog(reader, ["t"], after=newest - 1) as log:
                assert set(snapshot.left_out) == {"v"}
                assert snapshot["t"].to_arrow().num_rows == 4
                assert log.poll(0.0) is None
            assert reader.last_epoch == newest
        assert bytes_of(tmp_path / "s") == before
        with store.snapshot() as snapshot:
            assert set(snapshot.left_out) == {"v"}
        assert bytes_of(tmp_path / "s") != before


# ---- planted bugs --------------------------------------------------------------------------------------------------


def check_calls(folder: Path) -> None:
    epoch = make(folder)
    with el.open(folder / "s", read_only=True) as store:
        segment: Any = NO_SEGMENT
        test_every_call_reads_or_raises_and_changes_nothing(OpenedCalls(store, epoch, [segment], folder))


def _a_write_is_let_through(patch: pytest.MonkeyPatch) -> None:
    """The catalog of a read-only store is the one for writing."""
    from epochlog.store.catalog.lmdb import kind

    def writable(self: kind.LmdbSource, store_id: str, generation: str | None) -> Any:
        return self._open(create=False)

    patch.setattr(kind.LmdbSource, "open", writable)


def _a_lease_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A reader's holds are written."""
    _a_write_is_let_through(patch)
    patch.setattr(Handle, "pin", lambda self, body: self.catalog.transact(body))


def _a_call_without_effect_passes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handle, "require_writable", lambda self: None)


def _leases_are_renewed(patch: pytest.MonkeyPatch) -> None:
    """Leases of a read-only store end as those of others do."""
    real = Leases.__init__

    def writable(self: Leases, *parts: Any, read_only: bool) -> None:
        real(self, *parts)

    patch.setattr(Leases, "__init__", writable)


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    "plant", [_a_write_is_let_through, _a_lease_is_taken, _a_call_without_effect_passes, _leases_are_renewed]
)
def test_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_calls(tmp_path)
