"""read and changes into a file, whole or not at all; and the progress that is shown of what takes long."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import epochlog as el
from epochlog import api
from epochlog.__main__ import main
from epochlog.cli.render import out_file, output


def loaded(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    return pa.ipc.open_file(path).read_all() if path.suffix == ".arrow" else pa.csv.read_csv(path)


@pytest.mark.parametrize("ending", out_file.ENDINGS)
def test_rows_are_written_as_they_are_read(run, lake, tmp_path, ending) -> None:
    out = tmp_path / f"orders{ending}"
    done = run("read", lake.root, "orders", "--out", out)
    at = lake.epochs["delete"]
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"2 rows of orders at epoch {at} (") and f" are in {out}, " in done.out
    with api.open(lake.root, create=False) as store:
        assert loaded(out).to_pylist() == store.table("orders").to_arrow().to_pylist()
        if ending != ".csv":
            assert loaded(out).schema.equals(store.table("orders").schema)
    assert os.listdir(tmp_path / "lake") and sorted(os.listdir(tmp_path)) == ["lake", out.name]


def test_columns_filter_limit_and_policy(run, lake, tmp_path) -> None:
    with api.open(lake.root) as store:
        ids = list(range(1000))
        store.table("orders").upsert(pa.table({"id": ids, "day": ["d"] * 1000, "cents": ids}))
    out = tmp_path / "some.arrow"
    facts = json.loads(
        run(
            "read", lake.root, "orders", "--columns", "cents,id", "--filter", "id >= 10", "--limit", 300, "--out", out,
            "--json",
        ).out
    )  # fmt: skip
    assert facts == {
        "table": "orders", "epoch": facts["epoch"], "file": str(out), "rows": 300, "bytes": out.stat().st_size
    }  # fmt: skip
    assert loaded(out).to_pylist() == [{"cents": number, "id": number} for number in range(10, 310)]
    past = tmp_path / "past.parquet"
    assert run("read", lake.root, "orders", "--epoch", lake.epochs["first"], "--out", past).code == 0
    assert loaded(past)["cents"].to_pylist() == [500, 700]
    everything = tmp_path / "all.csv"
    assert run("read", lake.root, "orders", "--out", everything).code == 0
    assert loaded(everything).num_rows == 1000


def test_no_rows_are_a_file_with_columns(run, lake, tmp_path) -> None:
    for ending in out_file.ENDINGS:
        out = tmp_path / f"none{ending}"
        assert "0 rows of nothing_yet" in run("read", lake.root, "nothing_yet", "--out", out).out
        assert (loaded(out).column_names, loaded(out).num_rows) == (["id"], 0)


def test_changes_are_written(run, lake, tmp_path) -> None:
    out = tmp_path / "changes.parquet"
    done = run("changes", lake.root, "orders", "--mode", "net", "--pre-images", "--out", out)
    assert done.out.startswith(f"2 changes of orders are in {out}, ")
    shown = [
        json.loads(line) for line in run("changes", lake.root, "orders", "--mode", "net", "--json").out.splitlines()
    ]
    rows = loaded(out).to_pylist()
    assert {row["_change_type"] for row in rows} == {"insert"}
    assert [row["id"] for row in rows] == [row["id"] for row in shown if row["_change_type"] != "delete"]


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["orders", "--out", "rows.json"], "the ending must be one of .parquet, .arrow, .csv"),
        (["orders", "--out", "rows"], "the ending must be one of .parquet"),
        (["orders", "revenue", "--out", "rows.csv"], "one table to a file: name one of orders, revenue"),
        (["--out", "rows.csv"], "one table to a file"),
        (["orders", "--out", "there.csv"], "exists already: remove it"),
        (["orders", "--out", "missing/rows.csv"], "No such file or directory"),
        (["orders", "--columns", "price", "--out", "rows.csv"], "no column 'price'"),
    ],
)
def test_what_cannot_be_written(run, lake, tmp_path, monkeypatch, options, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("mine")
    done = run("read", lake.root, *options)
    assert (done.code, done.out) == (1, "") and sentence in done.err and done.err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["lake", "there.csv"] and (tmp_path / "there.csv").read_text() == "mine"


def test_epochs_without_rows_go_to_no_file(run, lake, tmp_path) -> None:
    done = run("read", lake.root, "orders", "--epochs", "--out", tmp_path / "x.csv")
    assert done.code == 2 and "--epochs shows no rows" in done.err


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.binary(2), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())],
)
def test_what_csv_cannot_spell_is_refused_before_anything_is_read(run, tmp_path, kind) -> None:
    schema = pa.schema([("k", pa.int64()), ("odd", kind)])
    with api.open(tmp_path / "lake") as store:
        store.create_table("t", schema, ["k"]).upsert(pa.table({"k": [1], "odd": pa.nulls(1, kind)}))
    done = run("read", tmp_path / "lake", "t", "--out", tmp_path / "t.csv")
    assert done.code == 1 and "CSV cannot hold column 'odd'" in done.err
    assert run("read", tmp_path / "lake", "t", "--columns", "k", "--out", tmp_path / "t.csv").code == 0
    assert run("read", tmp_path / "lake", "t", "--out", tmp_path / "t.arrow").code == 0
    assert loaded(tmp_path / "t.arrow").to_pylist() == [{"k": 1, "odd": None}]


@pytest.mark.damages_store
def test_a_read_that_fails_leaves_no_file(run, lake, tmp_path) -> None:
    for path in Path(lake.root).rglob("*.arrow"):
        body = path.read_bytes()
        path.write_bytes(body[:-1] + bytes([body[-1] ^ 0xFF]))
    done = run("read", lake.root, "orders", "--out", tmp_path / "orders.parquet")
    assert done.code == 1 and "is damaged" in done.err and os.listdir(tmp_path) == ["lake"]


def test_a_disk_that_is_full_leaves_no_file(run, lake, tmp_path, monkeypatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(out_file, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
    done = run("read", lake.root, "orders", "--out", tmp_path / "orders.parquet")
    assert done.code == 1 and "No space left" in done.err and "no part of it is left" in done.err
    assert os.listdir(tmp_path) == ["lake"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_came_meanwhile_is_not_overwritten(run, lake, tmp_path, monkeypatch, links) -> None:
    out, write = tmp_path / "orders.csv", out_file.OutFile._publish

    def late(self: out_file.OutFile, part: Path) -> None:
        out.write_text("another's")
        write(self, part)

    def linkless(*args: Any) -> None:
        raise OSError(95, "Operation not supported")

    if links:
        monkeypatch.setattr(out_file.OutFile, "_publish", late)
        done = run("read", lake.root, "orders", "--out", out)
        assert done.code == 1 and "was created by another process" in done.err and out.read_text() == "another's"
    else:
        monkeypatch.setattr(out_file, "os", SimpleNamespace(**{**vars(os), "link": linkless}))
        assert run("read", lake.root, "orders", "--out", out).code == 0 and loaded(out).num_rows == 2
    assert sorted(os.listdir(tmp_path)) == ["lake", "orders.csv"]


# ---- progress ----------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None, str]]:
    """Record the reported progress: (done, total, unit)."""
    reported: list[tuple[int, int | None, str]] = []
    step = output.Waiting.step

    def record(self: output.Waiting, done: int, total: int | None = None, *, of: str = "") -> None:
        reported.append((done, total, of))
        step(self, done, total, of=of)

    monkeypatch.setattr(output.Waiting, "step", record)
    return reported


@pytest.fixture
def wide(lake, monkeypatch: pytest.MonkeyPatch):
    """The lake with a table of several small batches."""
    monkeypatch.setattr("epochlog.store.scan.scan_plan.BATCH_ROWS", 100)
    monkeypatch.setattr("epochlog.store.compaction.subcompactions.SUBCOMPACTION_ROWS", 64)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 32)
    monkeypatch.setattr("epochlog.store.changelog.log_reader.SLICE_ROWS", 100)
    with api.open(lake.root) as store:
        ids = list(range(10, 410))
        store.table("orders").upsert(pa.table({"id": ids, "day": ["d"] * 400, "cents": ids}))
    return lake


def rising(steps: list[tuple[int, int | None, str]]) -> None:
    done = [step[0] for step in steps]
    assert len(done) > 1 and done == sorted(done)


def test_a_file_tells_of_its_rows(run, wide, tmp_path, steps) -> None:
    run("read", wide.root, "orders", "--out", tmp_path / "a.csv")
    rising(steps)
    done, total, _ = steps[-1]
    assert done == 402 and total is not None and 402 <= total <= 410
    steps.clear()
    run("read", wide.root, "orders", "--out", tmp_path / "b.csv", "--limit", 250)
    assert steps[-1][:2] == (250, 250)
    steps.clear()
    run("read", wide.root, "orders", "--out", tmp_path / "c.csv", "--filter", "cents > 5")
    assert steps[-1][:2] == (402, None)


def test_a_compaction_tells_of_its_pieces_and_its_table(run, wide, steps) -> None:
    run("compact", wide.root, "--full")
    orders = [step for step in steps if step[2] == "orders, 2 of 4"]
    assert [step[0] for step in orders] == list(range(len(orders))) and len(orders) > 3
    assert orders[-1][:2] == (len(orders) - 1, len(orders) - 1)
    assert {step[2].split(",")[0] for step in steps} == {"nothing_yet", "orders", "revenue", "seen"}


def test_a_tail_tells_of_the_rows_it_begins_with_and_of_nothing_after(run, wide, steps) -> None:
    run("tail", wide.root, "orders", "--from", "snapshot", "--until-idle")
    rising(steps)
    assert steps[-1][0] == 402 and steps[-1][1] is not None
    steps.clear()
    run("tail", wide.root, "orders", "--from", "earliest", "--until-idle")
    assert steps == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_that_is_not_a_programs(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    for quiet in (True, False):
        with output.Waiting("compact lake", quiet=quiet) as waiting:
            assert waiting._timer.is_alive() is not quiet
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with output.Waiting("compact lake") as waiting:
        waiting._show()
        waiting.step(1, 4, of="orders, 2 of 3")
    assert "compact lake: orders, 2 of 3" in screen.getvalue()


@pytest.mark.parametrize("options, quiet", [((), False), (("--json",), True)])
def test_a_program_is_shown_none(lake, monkeypatch, options, quiet) -> None:
    seen = []

    class Seen(output.Waiting):
        def __init__(self, label: str, *, quiet: bool) -> None:
            super().__init__(label, quiet=quiet)
            seen.append(quiet)

    monkeypatch.setattr(output, "Waiting", Seen)
    assert main(["verify", lake.root, *options]) == 0 and seen == [quiet]


@pytest.mark.parametrize("leads_to", ["nothing", "victim"])
def test_no_planted_link_is_followed(run, lake, tmp_path, leads_to) -> None:
    """In a folder that others write to, as /tmp: what the link leads to stays as it is."""
    victim, out = tmp_path / "victim", tmp_path / "rows.csv"
    victim.write_text("as it was")
    out.symlink_to(tmp_path / leads_to)
    done = run("read", lake.root, "orders", "--out", out)
    assert done.code == 1 and "is a link" in done.err
    assert victim.read_text() == "as it was" and sorted(os.listdir(tmp_path)) == ["lake", "rows.csv", "victim"]


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_lies_in_the_way_of_the_part_is_neither_used_nor_removed(run, lake, tmp_path, planted) -> None:
    victim, out = tmp_path / "victim", tmp_path / "rows.csv"
    victim.write_text("as it was")
    part = tmp_path / f"rows.csv.{os.getpid()}.part"
    part.symlink_to(victim) if planted == "link" else part.write_text("somebody's")
    done = run("read", lake.root, "orders", "--out", out)
    assert done.code == 1 and "cannot be written" in done.err and part.name in done.err
    assert victim.read_text() == "as it was" and part.is_symlink() == (planted == "link") and not out.exists()


def test_a_link_that_comes_meanwhile_is_not_followed(run, lake, tmp_path, monkeypatch) -> None:
    victim, out = tmp_path / "victim", tmp_path / "rows.csv"
    victim.write_text("as it was")
    real_publish = out_file.OutFile._publish

    def publish(self: out_file.OutFile, part: Path) -> None:
        out.symlink_to(victim)
        real_publish(self, part)

    monkeypatch.setattr(out_file.OutFile, "_publish", publish)
    done = run("read", lake.root, "orders", "--out", out)
    assert done.code == 1 and "was created by another process" in done.err and victim.read_text() == "as it was"


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o177])
def test_the_file_is_for_its_user_alone(run, lake, tmp_path, mask) -> None:
    before = os.umask(mask)
    try:
        assert run("read", lake.root, "orders", "--out", tmp_path / "rows.parquet").code == 0
        with api.open(lake.root) as store:
            store.export_catalog(tmp_path / "catalog.dump")
    finally:
        os.umask(before)
    for name in ("rows.parquet", "catalog.dump"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 & ~mask


def test_an_export_follows_no_link(lake, tmp_path) -> None:
    for leads_to in ("nothing", "victim"):
        (tmp_path / "victim").write_text("as it was")
        out = tmp_path / f"{leads_to}.dump"
        out.symlink_to(tmp_path / leads_to)
        with api.open(lake.root) as store, pytest.raises(el.InvalidInput, match="exists already"):
            store.export_catalog(out)
    assert (tmp_path / "victim").read_text() == "as it was" and not (tmp_path / "nothing").exists()
