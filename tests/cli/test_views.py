"""`epochlog apply` and `epochlog run`: views of a folder, planned, confirmed, made, and kept up to date."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.cli.main import run
from epochlog.store.compaction.trace import read_traces
from epochlog.store.metadata.lookups import find_job, find_table
from raw_check import raw_check
from wait_until import wait_until

pytestmark = pytest.mark.local_only
ORDERS = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
REVENUE = "-- primary_key: day\nSELECT day, SUM(cents) AS cents FROM orders GROUP BY day\n"
BEST = "-- primary_key: cents\nSELECT cents, COUNT(*) AS n FROM revenue GROUP BY cents\n"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tuple[el.Store, str, Path]]:
    """A store with orders, and a folder of two views, one over the other."""
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / "revenue.sql").write_text(REVENUE)
    (folder / "best.sql").write_text(BEST)
    with el.open(tmp_path / "lake", checkpoint_interval_ms=20) as store:
        store.create_table("orders", ORDERS, ["id"]).upsert(pa.table([[1, 2], [1, 2], [5, 5]], schema=ORDERS))
        yield store, str(tmp_path / "lake"), folder


def names(store: el.Store) -> list[str]:
    return [info.name for info in store.jobs()]


def test_apply_shows_the_plan_and_then_makes_it(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store, root, folder = lake
    assert run(["apply", str(folder), root, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "create     revenue\ncreate     best\nnothing was changed" in shown
    assert "incremental by (day)" in shown and names(store) == []
    assert run(["apply", str(folder), root]) == 0  # what only creates is not asked
    assert names(store) == ["best", "revenue"]
    capsys.readouterr()
    assert run(["apply", str(folder), root, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["applied"] is False and {change["action"] for change in document["changes"]} == {"unchanged"}


@pytest.mark.medium
def test_the_queries_of_views_are_shown(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root, folder = lake
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["apply", str(folder), root, "--yes"]) == 0
    query = "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day"
    for command in (["jobs", root], ["status", root], ["describe", root, "revenue"]):
        capsys.readouterr()
        assert run(command) == 0
        assert query in capsys.readouterr().out
    for table, sql in (("revenue", query), ("orders", None)):
        assert run(["describe", root, table, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sql"] == sql


def test_apply_replaces_and_drops_after_a_confirmation(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store, root, folder = lake
    assert run(["apply", str(folder), root]) == 0
    (folder / "best.sql").unlink()
    (folder / "revenue.sql").write_text(REVENUE.replace("SUM(cents)", "SUM(cents) * 2"))
    capsys.readouterr()
    assert run(["apply", str(folder), root]) == 2
    refusal = capsys.readouterr().err
    assert re.search(
        "^epochlog: Change 2 views of the store[?] drop best; replace revenue; table best: 0 rows, 0 B, 0 commits, .*"
        "Nothing was done: .* --yes",
        refusal,
    )
    assert refusal.count("\n") == 1 and names(store) == ["best", "revenue"]
    assert run(["apply", str(folder), root, "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(change["action"], change["name"]) for change in document["changes"]] == [
        ("drop", "best"), ("replace", "revenue"),
    ]  # fmt: skip
    assert document["epoch"] and names(store) == ["revenue"] and "* 2" in store.view("revenue").sql


KEYS = {
    "SELECT id, day FROM orders": (("id", False, False), ("day", True, True)),
    "SELECT day, MAX(id) AS id FROM orders GROUP BY day": (("day", True, False), ("day, id", True, False)),
    "SELECT day, id FROM orders WHERE day IS NOT NULL": (("day", False, True), ("day, id", False, False)),
}
"""Keys by query, each with True where a column of it can be NULL, and where the query does not imply it."""


@pytest.mark.parametrize("action", ["create", "replace"])
@pytest.mark.parametrize("options", [["--dry-run"], ["--yes"]], ids=" ".join)
def test_apply_prints_the_advice_on_keys(
    lake: tuple[el.Store, str, Path],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    action: str,
    options: list[str],
) -> None:
    store, root, folder = lake
    for file in folder.iterdir():
        file.unlink()
    wanted = set[tuple[str, str]]()
    for query, keys in KEYS.items():
        for key, is_nullable, is_not_implied in keys:
            name = f"v{len(list(folder.iterdir()))}"
            (folder / f"{name}.sql").write_text(f"-- primary_key: {key}\n{query}\n")
            if action == "replace":
                store.create_view(name, f"SELECT * FROM ({query}) q WHERE id > 0", key.split(", "))
            wanted |= {(name, "can be NULL")} if is_nullable else set()
            wanted |= {(name, "does not imply the key")} if is_not_implied else set()
    assert run(["apply", str(folder), root, "--dry-run", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    as_json = [(change["name"], line) for change in changes for line in change["advice"]]
    caplog.clear()
    assert run(["apply", str(folder), root, *options]) == 0
    assert not [record for record in caplog.records if "view_key" in record.getMessage()], "it says so once"
    shown = capsys.readouterr().out
    for lines in (
        [re.split("^warning: view (v[0-9]): ", line)[1:] for line in shown.splitlines() if "warn" in line],
        as_json,
    ):
        assert len(lines) == len(wanted)
        assert {(name, part) for name, line in lines for _, part in wanted if part in line} == wanted
    assert run(["apply", str(folder), root]) == 0 or options == ["--dry-run"]
    assert ("warning" in capsys.readouterr().out) is (options == ["--dry-run"] and action == "create")


@pytest.mark.parametrize("name, text, message", [
    ("best", BEST.replace("revenue", "nothing"), "nothing"),
    ("best", BEST.replace("COUNT(*)", "RAND()"), "view 'best'"),
    ("revenue", REVENUE.replace("orders", "best"), "circle"),
    ("best", "SELECT 1", "primary key"),
])  # fmt: skip
def test_one_wrong_view_and_nothing_is_changed(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    store, root, folder = lake
    (folder / f"{name}.sql").write_text(text)
    assert run(["apply", str(folder), root, "--yes"]) == 1
    assert message in capsys.readouterr().err and names(store) == []


@pytest.mark.parametrize("name, text, message", [
    ("top", BEST, "revenue.sql"),  # reads a view whose file is gone
    ("orders", "-- primary_key: day\nSELECT day, COUNT(*) AS n FROM seen GROUP BY day\n", "another name"),
    ("top", "-- primary_key: day\nSELECT day, COUNT(*) AS n FROM orders GROUP BY day\n", "job 'counted' reads it"),
])  # fmt: skip
def test_an_apply_that_cannot_end_drops_no_view(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    store, root, folder = lake
    store.create_table("seen", ORDERS, ["id"])
    assert run(["apply", str(folder), root, "--yes"]) == 0
    if "counted" in message:
        store.create_job("counted", ["revenue"], {"counts": (pa.schema([("day", pa.int64())]), ["day"])})
    before = names(store)
    for file in folder.iterdir():
        file.unlink()
    (folder / f"{name}.sql").write_text(text)
    for options in (["--dry-run"], ["--yes"]):
        assert run(["apply", str(folder), root, *options]) == 1
        assert message in capsys.readouterr().err and names(store) == before


def test_apply_sets_the_interval_and_the_permitted_lag(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store, root, folder = lake
    (folder / "revenue.sql").write_text("-- interval: 40 ms\n-- max_lag: 2 s\n" + REVENUE)
    assert run(["apply", str(folder), root]) == 0
    job = store._handle.catalog.read(lambda view: find_job(view, "revenue"))
    assert (job.interval, job.max_lag_ms) == (2, 2000)
    (folder / "revenue.sql").write_text("-- interval: 3\n" + REVENUE)
    capsys.readouterr()
    assert run(["apply", str(folder), root, "--yes"]) == 0
    assert "alter      revenue" in capsys.readouterr().out
    job = store._handle.catalog.read(lambda view: find_job(view, "revenue"))
    assert (job.interval, job.max_lag_ms) == (3, 2000)
    assert run(["apply", str(folder), root, "--json"]) == 0
    assert {change["action"] for change in json.loads(capsys.readouterr().out)["changes"]} == {"unchanged"}


@pytest.mark.medium
def test_apply_after_a_rename_reads_files_in_present_names(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store, root, folder = lake
    assert run(["apply", str(folder), root]) == 0
    store.table("orders").alter(rename={"cents": "amount"})
    for options in (["--dry-run"], ["--yes"]):
        capsys.readouterr()
        assert run(["apply", str(folder), root, *options]) == 1
        error = capsys.readouterr().err
        assert "view 'revenue'" in error and "under the name 'amount'" in error and "write amount" in error
    for query in (store.view("revenue").sql, "SELECT day, SUM(amount) AS cents\nFROM orders GROUP BY day"):
        (folder / "revenue.sql").write_text(f"-- primary_key: day\n{query}\n")
        capsys.readouterr()
        assert run(["apply", str(folder), root, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert {change["action"] for change in document["changes"]} == {"unchanged"}
    assert not store.view("revenue").info.rebuilding
    query = " ".join(store.view("revenue").sql.split())
    for command in (["jobs", root], ["status", root], ["describe", root, "revenue"]):
        capsys.readouterr()
        assert run(command) == 0
        assert query in " ".join(capsys.readouterr().out.split())


def test_a_new_column_is_no_change_of_a_view_of_all_columns(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store, root, folder = lake
    (folder / "best.sql").write_text("-- primary_key: id\nSELECT * FROM orders")
    assert run(["apply", str(folder), root]) == 0
    store.table("orders").alter(add=[pa.field("note", pa.string())])
    capsys.readouterr()
    assert run(["apply", str(folder), root, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {change["action"] for change in document["changes"]} == {"unchanged"}


def test_errors_name_the_view_once(lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    store, root, folder = lake
    (folder / "best.sql").write_text("-- refresh: sometimes\n" + BEST)
    assert run(["apply", str(folder), root]) == 1
    assert capsys.readouterr().err.count("view 'best'") == 1
    (folder / "best.sql").write_text(BEST)
    (folder / "orders.sql").write_text(REVENUE)
    assert run(["apply", str(folder), root]) == 1
    assert "give the file another name" in capsys.readouterr().err
    (folder / "orders.sql").unlink()
    assert run(["apply", str(folder), root]) == 0
    queries = {"revenue": store.view("revenue").sql, "best": "SELECT cents, RAND() AS n FROM revenue"}
    with pytest.raises(el.InvalidInput, match="^view 'best': a view cannot have"):
        store.replace_views(queries)


@pytest.mark.parametrize("change", ["inline", "rename", "reverse"])
@pytest.mark.medium
def test_apply_inlines_renames_and_reverses_a_view_between_others(
    lake: tuple[el.Store, str, Path], capsys: pytest.CaptureFixture[str], change: str
) -> None:
    store, root, folder = lake
    assert run(["apply", str(folder), root]) == 0

    def step_all() -> None:
        store.checkpoint()
        for _ in range(2):
            for name in names(store):
                store.view(name).step(take_over=True)

    step_all()
    step_all()
    rows = store.table("best").to_arrow().to_pylist()
    assert rows
    if change == "inline":
        (folder / "revenue.sql").unlink()
        query = REVENUE.partition("\n")[2].strip()
        (folder / "best.sql").write_text(BEST.replace("FROM revenue", f"FROM ({query})"))
    elif change == "rename":
        (folder / "revenue.sql").rename(folder / "income.sql")
        (folder / "best.sql").write_text(BEST.replace("revenue", "income"))
    else:
        (folder / "best.sql").write_text(BEST.replace("revenue", "orders"))
        (folder / "revenue.sql").write_text(REVENUE.replace("orders", "(SELECT cents AS day, n AS cents FROM best)"))
    capsys.readouterr()
    assert run(["apply", str(folder), root, "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    waits = [entry["name"] for entry in document["changes"] if entry["waits"]]
    assert waits == ([] if change == "reverse" else ["revenue"]) and "best" in names(store)
    if waits:
        assert run(["apply", str(folder), root, "--yes"]) == 0
        assert "once best has its new query's rows" in capsys.readouterr().out and "revenue" in names(store)
    step_all()
    step_all()
    assert run(["apply", str(folder), root, "--yes"]) == 0
    assert names(store) == {"inline": ["best"], "rename": ["best", "income"], "reverse": ["best", "revenue"]}[change]
    if change != "reverse":
        assert store.table("best").to_arrow().to_pylist() == rows
    store.table("orders").upsert(pa.table([[3], [3], [7]], schema=ORDERS))
    step_all()
    step_all()
    assert all(raw_check(store.view(name)).ok for name in names(store))


def compactors(store: el.Store, table: str) -> set[str]:
    """Return who compacted the table."""
    catalog = store._handle.catalog
    return catalog.read(lambda view: {trace.by for trace in read_traces(view, find_table(view, table).id)})


@pytest.mark.slow
@pytest.mark.parametrize("maintained", [False, True])
def test_run_keeps_views_and_takes_in_new_ones(lake: tuple[el.Store, str, Path], maintained: bool) -> None:
    store, root, folder = lake
    assert run(["apply", str(folder), root]) == 0
    command = [sys.executable, "-m", "epochlog", "run", root, "--json", *(["--maintain"] if maintained else [])]
    for _ in range(8):
        store.table("orders").upsert(pa.table([[3], [3], [8]], schema=ORDERS))
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: store.view("best").info.committed_epoch > 0)
        store.create_view("days", "SELECT day, COUNT(*) AS n FROM orders GROUP BY day", ["day"])
        store.table("orders").upsert(pa.table([[3], [3], [7]], schema=ORDERS))
        wait_until(
            lambda: (
                store.view("days").info.committed_epoch > 0
                and store.table("days").to_arrow().num_rows == 3
                and store.table("best").to_arrow().num_rows == 2
            )
        )
        if maintained:
            wait_until(lambda: compactors(store, "orders") == {"maintenance"})
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate()
        assert child.returncode == 0
        assert maintained or not compactors(store, "orders"), "a table that others write"
        assert {json.loads(line)["name"] for line in out.splitlines()} == {"best", "revenue", "days"}
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
