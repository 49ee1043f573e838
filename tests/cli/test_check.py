"""epochlog check: what a job has made beside its query, as text and as JSON, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog import api

SQL = "SELECT day, sum(cents) AS cents FROM orders GROUP BY day"


def test_equal_is_0(run, lake) -> None:
    """At the job's own epoch: what has come since is not counted."""
    done = run("check", lake.root, "daily", "--sql", SQL)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"revenue at epoch {lake.epochs['view']} (") and done.out.endswith(
        ": 2 rows, equal to the query\n"
    )
    facts = json.loads(run("check", lake.root, "daily", "--json", "--sql", SQL).out)
    assert (facts["job"], facts["epoch"], facts["ok"]) == ("daily", lake.epochs["view"], True)


@pytest.mark.medium
def test_a_difference_is_1_and_is_shown(run, lake, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("SELECT CASE day WHEN 'mon' THEN 'mon' ELSE 'sun' END AS day, cents + 1 AS cents FROM orders")
    done = run("check", lake.root, "daily", "--file", file)
    assert done.code == 1
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[0].endswith(": 2 rows, 2 in the query")
    for wanted in ("1 missing: only in the query", "sun 701", "1 extra: only in the table", "tue 700", "1 different"):
        assert wanted in lines
    assert "day cents cents_expected" in lines and "mon 500 501" in lines
    done = run("check", lake.root, "daily", "--json", "--file", file)
    (facts,) = json.loads(done.out)["outputs"]
    assert done.code == 1 and facts == {
        "output": "revenue",
        "ok": False,
        "rows": 2,
        "expected_rows": 2,
        "missing": 1,
        "extra": 1,
        "different": 1,
        "missing_rows": [{"day": "sun", "cents": 701}],
        "extra_rows": [{"day": "tue", "cents": 700}],
        "different_rows": [{"day": "mon", "cents": 500, "cents_expected": 501}],
    }


@pytest.mark.medium
def test_few_of_many_are_shown(run, tmp_path: Path) -> None:
    with api.open(tmp_path / "lake", durability="os") as store:
        rows = pa.schema([("id", pa.int64())])
        store.create_table("numbers", rows, ["id"]).upsert(pa.table({"id": range(300)}))
        job = store.create_job("copy", ["numbers"], {"same": (rows, ["id"]), "none": (rows, ["id"])})
        store.checkpoint()
        job.step_local(lambda ctx: ctx.upsert("same", ctx.table("numbers")))
    command = ("check", tmp_path / "lake", "copy", "--sql", "SELECT id FROM numbers", "--output")
    assert run(*command, "same").code == 0
    assert (
        "300 missing: only in the query; the first 7, --limit N or --all for more"
        in run(*command, "none", "--limit", 7).out
    )
    assert len(json.loads(run(*command, "none", "--json").out)["outputs"][0]["missing_rows"]) == 300
    assert "pass a dict {output: query}" in run("check", tmp_path / "lake", "copy", "--sql", "SELECT 1").err


@pytest.mark.parametrize("argv, code, message", [
    (["daily"], 1, "'daily' is no view, so the store does not know its query: give --sql or --file"),
    ([], 1, "the store has no views"),
    (["--sql", SQL], 2, "need the name of a job"),
    (["daily", "--output", "revenue"], 2, "--output needs --sql"),
    (["daily", "--sql", SQL, "--engine", "spark"], 2, "--engine is for views"),
    (["daily", "--sql", SQL, "--file", "x"], 2, "not allowed with"),
    (["nobody", "--sql", SQL], 1, "nobody"),
    (["broken", "--sql", SQL], 1, "has not committed yet"),
    (["daily", "--sql", "SELECT nope FROM orders"], 1, "failed"),
    (["daily", "--sql", SQL, "--output", "orders"], 1, "no output 'orders'"),
    (["daily", "--sql", SQL, "--tolerance", "-1"], 1, "tolerance"),
    (["daily", "--file", "there/is/none"], 1, "there/is/none"),
])  # fmt: skip
def test_what_is_refused(run, lake, argv: list[str], code: int, message: str) -> None:
    done = run("check", lake.root, *argv)
    assert done.code == code and message in done.err and done.out == ""


def test_a_file_that_is_no_text_is_refused(run, lake, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_bytes(b"\xff\xfe")
    done = run("check", lake.root, "daily", "--file", file)
    assert (done.code, done.out) == (1, "") and "no text in UTF-8" in done.err


ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])


@pytest.fixture
def views(tmp_path: Path) -> Iterator[el.Store]:
    """Two views that have committed, and one that has not."""
    with el.open(tmp_path / "views", checkpoint_interval_ms=10) as store:
        store.create_table("orders", ORDERS, ["id"]).upsert(
            pa.table([[1, 2], ["mon", "tue"], [500, 700]], schema=ORDERS)
        )
        for name in ("daily", "late", "twice"):
            store.create_view(name, SQL if name != "twice" else SQL.replace("(cents)", "(cents) * 2"), ["day"])
        store.checkpoint()
        store.view("daily").step()
        store.view("twice").step()
        yield store


def spoil(store: el.Store, view: str) -> None:
    """Commit wrong rows for a view, as a defect of a refresh would."""
    store.table("orders").upsert(pa.table([[3], ["wed"], [100]], names=store.table("orders").schema.names))
    store.checkpoint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epochlog.views.duckdb_engine.refresh", lambda ctx, output, plan: None)
        assert store.view(view).step()


@pytest.mark.medium
def test_a_view_is_compared_with_its_own_query(run, views: el.Store) -> None:
    root = views.root
    assert run("check", root, "daily").out.endswith(": 2 rows, equal to the query\n")
    assert run("check", root, "twice", "--json").code == 0
    assert run("check", root, "twice", "--sql", SQL).code == 1  # another query, at will
    views.table("orders").alter(rename={"day": "weekday"})
    assert run("check", root, "daily").code == 0
    spoil(views, "daily")
    done = run("check", root, "daily", "--json")
    (facts,) = json.loads(done.out)["outputs"]
    assert done.code == 1 and facts["missing_rows"] == [{"day": "wed", "cents": 100}]
    late = run("check", root, "late")
    assert late.code == 1 and "has not committed yet" in late.err


@pytest.mark.medium
def test_without_a_name_all_views_are_compared(run, views: el.Store) -> None:
    root = views.root
    done = run("check", root)
    lines = done.out.splitlines()
    assert done.code == 1 and lines[-1] == "2 equal, 0 different, 1 not compared"
    assert lines[1].startswith("late: not compared: ") and "has not committed yet" in lines[1]
    views.view("late").step()
    done = run("check", root, "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["ok"] is True
    assert [(view["job"], view["ok"]) for view in document["views"]] == [
        ("daily", True), ("late", True), ("twice", True),
    ]  # fmt: skip
    spoil(views, "late")
    views.replace_views({"twice": SQL})
    done = run("check", root)
    assert done.code == 1 and done.out.splitlines()[-1] == "1 equal, 1 different, 1 not compared"
    document = json.loads(run("check", root, "--json").out)
    assert document["ok"] is False and [view["ok"] for view in document["views"]] == [True, False, None]
    assert document["views"][1]["outputs"][0]["missing"] == 1
    assert document["views"][2]["error"]["type"] == "InvalidInput"


@pytest.mark.medium
def test_a_view_that_gets_a_new_query_during_its_check_is_checked_by_it(
    views: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is read before the rows: those of the next query are not compared with it."""
    from epochlog.batch import check

    real, calls = check.pin_newest_commit, []

    def replaced_meanwhile(*args: Any) -> Any:
        if not calls:
            views.replace_views({"twice": SQL})
            views.view("twice").step(take_over=True)
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(check, "pin_newest_commit", replaced_meanwhile)
    assert views.view("twice").check().ok and len(calls) == 2
