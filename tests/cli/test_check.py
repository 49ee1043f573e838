"""epochlog check: what a job has made beside its query, as text and as JSON, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

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
    (["daily"], 2, "one of the arguments --sql --file is required"),
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
