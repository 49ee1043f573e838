"""verify names each thing that is wrong: with a record of the catalog, with what refers to what, with rows in files."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import epochlog as el
from epochlog.store.catalog.keys import (
    HEAD,
    bound_key,
    head_key,
    hist_key,
    hold_key,
    job_key,
    job_name_key,
    log_key,
    name_key,
    runs_key,
    table_key,
    txn_app_key,
    txn_key,
    unreachable_key,
    used_key,
)
from epochlog.store.metadata.lookups import get_runs
from epochlog.store.metadata.version import runs_to_record
from epochlog.store.session.handle import Handle, open_handle
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.verify.verify import verify_store
from lab import Lab, mirror, sums

pytestmark = pytest.mark.local_only

Damage = Callable[[Handle], None]


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handle:
    """A store with a root table (a run with history, an entry above it, outcomes), and a job with two outputs."""
    monkeypatch.setattr("epochlog.store.sst.sorted_run.ROW_GROUP_ROWS", 3)
    lab = Lab(tmp_path / "s")
    table = lab.root_table()
    for value in range(3):
        table.upsert(rows(range(8), value))
        lab.tick()
    lab.store.compact(full=True)
    lab.store.table("r").upsert(rows([1], 9), txn=("app", 1))
    lab.store.table("r").upsert(rows([2], 9), txn=("app", 2))
    lab.tick()
    job = lab.job("j", ["r"], ["copy", "sum"])

    def refresh(ctx: Any) -> None:
        mirror("r", "copy")(ctx)
        sums("r", "sum")(ctx)

    assert job.step_local(refresh)
    lab.store.checkpoint()
    lab.store.close()
    opened = open_handle(lab.root, create=False, clock=lambda: lab.now_ms, durability="os")
    assert verify_store(opened).ok
    return opened


def rows(keys: Any, value: int) -> pa.Table:
    return pa.table({"k": list(keys), "g": [0] * len(list(keys)), "v": [value] * len(list(keys))})


def put(key: bytes, **fields: Any) -> Damage:
    """Fields of a record are changed."""
    return lambda handle: handle.catalog.transact(lambda tx: tx.put(key, {**(tx.get(key) or {}), **fields}))


def dropped(key: bytes) -> Damage:
    return lambda handle: handle.catalog.transact(lambda tx: tx.delete(key))


def newest_epoch(handle: Handle) -> int:
    return handle.catalog.read(lambda view: view.get(head_key(1)) or {})["max_committed_epoch"]


def at_newest(key: Callable[[int, int], bytes], change: Callable[[Any], Any]) -> Damage:
    """The log or history record of the newest commit is changed; dropped where nothing comes back."""

    def damage(handle: Handle) -> None:
        at = key(1, newest_epoch(handle))
        after = change(handle.catalog.read(lambda view: view.get(at)))
        handle.catalog.transact(lambda tx: tx.delete(at) if after is None else tx.put(at, after))

    return damage


def no_label(record: Any) -> Any:
    record["groups"][0][1][0]["label"] = None
    return record


def with_images(entry: Any) -> Any:
    """A log entry that has old rows, and says that it has none."""
    ((label, segments, _),) = entry["groups"]
    return {**entry, "groups": [[label, segments, segments]], "images": False}


def let_go(handle: Handle) -> None:
    path = next(iter(handle.catalog.read(lambda view: get_runs(view, 1))[0].parts)).path
    put(unreachable_key(1, path), path=path, table_id=1, bytes=1, at_ms=0, version=1)(handle)


def other_runs(change: Callable[[RunFile], RunFile], *, history: bool = False) -> Damage:
    """The descriptor of the first part (of the history) is changed."""

    def damage(handle: Handle) -> None:
        (run,) = handle.catalog.read(lambda view: get_runs(view, 1))
        name = "history" if history else "parts"
        parts = getattr(run, name)
        changed = replace(run, **{name: (change(parts[0]), *parts[1:])})
        handle.catalog.transact(lambda tx: tx.put(runs_key(1), runs_to_record((changed,))))

    return damage


IN_THE_CATALOG: dict[str, tuple[Damage, str]] = {
    "name-lost": (dropped(name_key("r")), "name/r.*says None"),
    "name-of-another": (put(name_key("r"), id=2), "name/r.*says 2"),
    "job-name-lost": (dropped(job_name_key("j")), "jobname/j"),
    "table-lost": (dropped(table_key(1)), "belong to a missing table"),
    "head-lost": (dropped(head_key(1)), "missing"),
    "id-again": (put(HEAD, next_table=2), "a second time"),
    "last-epoch-low": (put(HEAD, last_epoch=5), "above last_epoch 5"),
    "unknown-kind": (put(b"nosuch/1"), "unknown kind"),
    "orphan": (put(used_key(77, "x/y.arrow")), "used/0000004d.*missing"),
    "hold-of-another": (
        put(hold_key(1, "a:b"), holder="a:c", table_id=1, log_epoch=1, read_epoch=1, since_ms=1, expires_ms=1),
        "is a record of",
    ),
    "boundary-ahead": (put(bound_key(1 << 50), at_ms=1), "above last_epoch"),
    "gone-of-no-table": (
        put(unreachable_key(99, "f"), path="f", table_id=99, bytes=1, at_ms=1, version=1),
        "never existed",
    ),
    "reached-and-gone": (let_go, "noted as unreachable, but the catalog reaches it"),
    "job-position": (put(job_key(1), position=4096), "its output copy is at"),
    "job-barrier": (put(job_key(1), barrier=[1, 2, "regular"]), "its barrier is"),
    "job-outputs": (put(job_key(1), outputs=[2]), "omits the outputs"),
    "job-upstream": (put(job_key(1), upstreams=[42]), r"missing tables: \[42\]"),
    "outcome-count": (put(txn_app_key("app"), count=5), "counts 5 outcomes"),
    "outcome-forgotten": (put(txn_app_key("app"), forgotten=1), "are forgotten"),
    "outcome-lost": (dropped(txn_key("app", 2)), "transactions of 1 commits"),
    "outcome-of-another": (put(txn_key("app", 3), tables=[1], epoch=1 << 12, at_ms=1), "counts 2 outcomes"),
    "log-entry-lost": (at_newest(log_key, lambda entry: None), "has no log entry for 1 commits"),
    "commit-forgotten": (at_newest(hist_key, lambda commit: None), "lacks the records? of"),
    "commit-differs": (at_newest(hist_key, lambda commit: {**commit, "rows_upserted": 7}), "wrong records of 1"),
    "label-lost": (at_newest(log_key, no_label), "labels other than their log epoch"),
    "label-late": (
        at_newest(log_key, lambda entry: {**entry, "groups": [[entry["epoch"] + 1, *entry["groups"][0][1:]]]}),
        "has the log epochs",
    ),
    "old-rows-unsaid": (at_newest(log_key, with_images), "marked as having none"),
    "old-rows-missing": (put(table_key(1), changelog="full", full_since=0), "stores them since 0"),
    "log-counted": (put(head_key(1), log_segments=77), "counts 77 log_segments"),
    "l0-counted": (put(head_key(1), l0_bytes=77), "counts 77 l0_bytes"),
    "safe-epoch": (put(head_key(1), safe_epoch=1 << 50), "safe-epoch-within-committed"),
    "bounds": (other_runs(lambda part: replace(part, key_max=99)), "least and greatest keys"),
    "rows": (other_runs(lambda part: replace(part, rows=77)), "not 77"),
    "blocks": (other_runs(lambda part: replace(part, blocks=(0, 2, 6))), "blocks do not begin"),
    "statistics": (other_runs(lambda part: replace(part, stats={"k": (0, 5)})), "has values in"),
    "until": (other_runs(lambda part: replace(part, until=5), history=True), "not 5"),
    "foreign-file": (other_runs(lambda part: replace(part, path="elsewhere/x.parquet")), "of another folder"),
}


@pytest.mark.medium
@pytest.mark.damages_store
@pytest.mark.parametrize("name", IN_THE_CATALOG)
def test_damage_of_the_catalog_is_named(handle: Handle, name: str) -> None:
    damage, words = IN_THE_CATALOG[name]
    damage(handle)
    expect(handle, words)


def expect(handle: Handle, words: str) -> None:
    report = verify_store(handle)
    problems = [f"{problem.where}: {problem.what}" for problem in report.problems]
    assert any(re.search(words, line) for line in problems), problems
    handle.close()


# ---- rows ----------------------------------------------------------------------------------------------------------


def rewritten(change: Callable[[pa.Table], pa.Table], *, history: bool = False, **fields: Any) -> Damage:
    """A part is exchanged for one with other rows, with a right checksum: as a defect of a writer would leave it."""

    def damage(handle: Handle) -> None:
        (run,) = handle.catalog.read(lambda view: get_runs(view, 1))
        part = (run.history if history else run.parts)[0]
        table = change(pq.read_table(pa.BufferReader(handle.files.read(part.path))))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=3)
        data = sink.getvalue()
        path = handle.new_path(1, ".parquet")
        handle.files.write(path, data)
        new = replace(part, path=path, bytes=data.size, crc32=zlib.crc32(data), **fields)
        other_runs(lambda _: new, history=history)(handle)

    return damage


def with_column(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values = pa.array(change(table.column(name).to_pylist()), table.schema.field(name).type)
        return table.set_column(at, table.schema.field(name), values)

    return changed


IN_FILES: dict[str, tuple[Damage, str]] = {
    "order": (rewritten(with_column("k", lambda ks: [*ks[:4], ks[5], ks[4], *ks[6:]])), "not in strictly rising order"),
    "twice": (rewritten(with_column("k", lambda ks: [*ks[:4], ks[3], *ks[5:]])), "strictly rising"),
    "lost-row": (rewritten(lambda table: table.slice(0, table.num_rows - 1)), "has 7 rows"),
    "epoch-of-no-run": (rewritten(with_column("_epoch", lambda es: [*es[:-1], 1 << 50])), "outside its run's epochs"),
    "begins-too-early": (
        rewritten(with_column("_epoch", lambda es: [1, *es[1:]])),
        "history rows that end after newer rows",
    ),
    "ends-too-early": (
        rewritten(with_column("_until", lambda us: [1, *us[1:]]), history=True),
        "end before they begin",
    ),
    "ends-too-late": (
        rewritten(with_column("_until", lambda us: [*us[:-1], 1 << 50]), history=True, until=1 << 50),
        "end after its run",
    ),
    "overlap": (
        rewritten(with_column("_until", lambda us: [us[1], *us[1:]]), history=True),
        "two rows of one key for the same epoch",
    ),
}


@pytest.mark.damages_store
@pytest.mark.parametrize("name", IN_FILES)
def test_rows_that_no_writer_may_write_are_named(handle: Handle, name: str) -> None:
    damage, words = IN_FILES[name]
    damage(handle)
    expect(handle, words)


# ---- what is no damage ---------------------------------------------------------------------------------------------


def test_progress_counts_files(handle: Handle) -> None:
    progress: list[tuple[int, int]] = []
    report = verify_store(handle, lambda done, total: progress.append((done, total)))
    assert report.ok
    assert progress[-1] == (report.files, report.files)
    assert progress == sorted(progress)
    handle.close()


def test_a_table_that_is_compacted_and_dropped_meanwhile_is_no_damage(handle: Handle) -> None:
    """Files that another process makes unreachable between two reads of the catalog are no damage."""
    files = handle.files
    gone: list[str] = []

    class Meanwhile:
        """The first file that is asked for is gone, and so is its table."""

        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def read(self, path: str) -> pa.Buffer:
            if not gone:
                gone.append(path)
                with el.open(handle.root, durability="os") as store:
                    store.drop_job("j")
                    store.drop_table("r")
            raise FileNotFoundError(path)

    handle.files = Meanwhile()  # pyright: ignore[reportAttributeAccessIssue]
    report = verify_store(handle)
    handle.files = files
    assert [problem for problem in report.problems if "/t00000001/" in problem.where] == []
    handle.close()
