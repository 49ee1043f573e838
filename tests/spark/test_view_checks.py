"""Checks of views by Spark: of a query that only Spark may run, at the view's newest commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.cli.main import run
from epochlog.spark import view_engine
from spark_store import Lake

pytestmark = pytest.mark.spark
ROWS = pa.schema([("id", pa.int64()), ("s", pa.string()), ("x", pa.float64())])
SQL = "SELECT UPPER(s) AS s, COUNT(*) AS n, SUM(ROUND(x, 1)) AS x FROM t GROUP BY UPPER(s)"


def test_spark_judges_a_view_that_only_spark_may_refresh(lake: Lake, spark: SparkSession) -> None:
    store = lake.store
    table = store.create_table("t", ROWS, ["id"])
    table.upsert(pa.table([[1, 2, 3], ["ß", "SS", None], [0.25, 0.35, None]], schema=ROWS))
    view = store.create_view("v", SQL, ["n"], spark=spark)
    store.checkpoint()
    with pytest.raises(el.InvalidInput, match="not committed"):
        view.check(spark)
    assert view.step(spark)
    table.upsert(pa.table([[1, 4], ["x", "x"], [9.0, 9.0]], schema=ROWS))  # after the commit: not judged
    report = view.check(spark)
    assert report.ok and report.outputs["v"].rows == 2, str(report)
    with pytest.raises(el.InvalidInput, match="UPPER.*check"):
        view.check()
    table.alter(rename={"s": "text"})
    store.checkpoint()
    assert view.check(spark).ok


@pytest.mark.planted
def test_spark_finds_a_wrong_row(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.store.create_table("t", ROWS, ["id"])
    table.upsert(pa.table([[1, 2], ["a", "b"], [0.5, 1.5]], schema=ROWS))
    view = lake.store.create_view("v", "SELECT id, UPPER(s) AS s, x FROM t", ["id"], spark=spark)
    lake.store.checkpoint()
    with monkeypatch.context() as patch:  # a refresh that loses a row
        patch.setattr(view_engine, "_cast", lambda rows, target: rows.where("id = 1"))
        assert view.step(spark)
    report = view.check(spark, sample=5)
    assert not report.ok and report.outputs["v"].missing_rows["s"].to_pylist() == ["B"]
    with pytest.raises(el.InvalidInput, match="SparkSession"):
        view.check(7)  # type: ignore[arg-type]


def test_the_command_compares_all_views_by_spark(
    lake: Lake, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.store.create_table("names", pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
    lake.store.table("names").upsert([{"id": 1, "name": "ann"}])
    lake.store.create_view("upper", "SELECT id, UPPER(name) AS name FROM names", ["id"], spark=spark)
    lake.store.create_view("plain", "SELECT id, name FROM names", ["id"])
    lake.store.checkpoint()
    lake.store.view("upper").step(spark)
    lake.store.view("plain").step()
    assert run(["check", lake.store.root]) == 1
    out = capsys.readouterr().out
    assert "upper: not compared: " in out and "UPPER" in out and "1 equal, 0 different, 1 not compared" in out
    assert run(["check", lake.store.root, "--engine", "spark"]) == 0
    assert "2 equal, 0 different, 0 not compared" in capsys.readouterr().out


def test_a_folder_of_views_may_have_functions_of_spark(
    lake: Lake, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.store.create_table("names", pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
    (tmp_path / "views").mkdir()
    file = tmp_path / "views" / "upper.sql"
    for function in ("UPPER", "LOWER"):  # made, then replaced
        file.write_text(f"-- primary_key: id\nSELECT id, {function}(name) AS name FROM names")
        command = ["apply", str(file.parent), lake.store.root, "--yes"]
        assert run(command) == 1 and "--engine spark" in capsys.readouterr().err
        assert run([*command, "--engine", "spark"]) == 0
        assert function in lake.store.view("upper").sql
