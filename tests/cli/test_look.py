"""ls, describe, history, status and jobs: what they say of a real store, to programs and to people."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.errors import JobNotFound, TableNotFound

TABLE_KEYS = {
    "name", "state", "job", "primary_key", "max_committed_epoch", "max_committed_at", "safe_epoch", "log_start_epoch",
    "lag_ms", "rows", "bytes", "log_segments", "runs",
}  # fmt: skip
JOB_KEYS = {
    "name", "upstreams", "outputs", "state", "committed_epoch", "committed_at", "lag_ms", "incarnation", "last_error",
    "draining", "lost", "snapshot_rows", "rebuilding", "interval", "interval_ms", "max_lag", "max_lag_ms",
    "failed_since", "barrier", "snapshot", "waits_for", "runner", "outside", "sql", "component",
}  # fmt: skip


def test_ls_as_json_says_what_table_info_says(run, lake) -> None:
    done = run("ls", lake.root, "--json")
    facts = json.loads(done.out)
    assert (done.code, done.err, facts["root"]) == (0, "", lake.root)
    assert [table["name"] for table in facts["tables"]] == ["nothing_yet", "orders", "revenue", "seen"]
    with api.open(lake.root, create=False) as store:
        assert facts["last_epoch"] == store.last_epoch
        for listed, info in zip(facts["tables"], store.tables(), strict=True):
            assert set(listed) == TABLE_KEYS
            same = TABLE_KEYS - {"max_committed_at", "lag_ms"}
            assert {name: listed[name] for name in same} == {name: getattr(info, name) for name in same}


def test_ls_for_people_shows_epochs_with_their_time(run, lake) -> None:
    done = run("ls", lake.root)
    line = next(line for line in done.out.splitlines() if line.startswith("orders"))
    assert re.search(rf"{lake.epochs['delete']} \(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z\)", line)
    assert re.search(r"\d+ B|kB", line)
    assert "\x1b" not in done.out
    empty = next(line for line in done.out.splitlines() if line.startswith("nothing_yet"))
    assert empty.split()[1:4] == ["created", "-", "-"]


def test_ls_counts_no_rows_when_told_so(run, lake) -> None:
    assert {table["rows"] for table in json.loads(run("ls", lake.root, "--json", "--no-rows").out)["tables"]} == {None}
    assert "?" in run("ls", lake.root, "--no-rows").out


def test_ls_of_a_store_without_tables(run, tmp_path) -> None:
    api.open(tmp_path / "new").close()
    assert json.loads(run("ls", tmp_path / "new", "--json").out)["tables"] == []
    assert "no table yet" in run("ls", tmp_path / "new").out
    assert "no job yet" in run("jobs", tmp_path / "new").out
    assert run("status", tmp_path / "new").code == run("compact", tmp_path / "new").code == 0


def test_describe_as_json(run, lake) -> None:
    facts = json.loads(run("describe", lake.root, "orders", "--json").out)
    assert set(facts) > TABLE_KEYS
    assert facts["schema"][0] == {"name": "id", "type": "int64", "nullable": False, "key": 1}
    assert facts["schema"][1] == {"name": "day", "type": "string", "nullable": True, "key": None}
    assert facts["rows"] == 2 and facts["read_by"] == ["broken", "daily"] and facts["upstreams"] == []
    log = facts["log"]
    assert (log["entries"], log["segments"], log["rows"], log["deletes"]) == (3, 3, 5, 1)
    assert (log["first_epoch"], log["last_epoch"]) == (lake.epochs["first"], lake.epochs["delete"])
    assert facts["run_list"] == [] and log["unfolded_segments"] == 3
    auto = {"grows": True, "bytes": 0, "live_bytes": 0}
    assert facts["retention"] == {
        "history_s": 3600.0, "history_auto": auto, "log_s": 86400.0, "tombstone_s": None,
    }  # fmt: skip
    text = run("describe", lake.root, "orders").out
    assert "history 1 h (auto, up to 2 d: in its runs replaced rows take 0 B, the others 0 B), log 1 d" in text
    assert (facts["changelog"], facts["full_since"], facts["drop_unchanged"]) == ("upsert", None, None)
    assert (facts["compact_segments"], facts["max_segments"]) == (8, 64)
    view = json.loads(run("describe", lake.root, "revenue", "--json").out)
    assert view["upstreams"] == ["orders"] and view["drop_unchanged"] is True


def test_describe_says_who_runs_the_job(run, lake) -> None:
    def shown_runner() -> tuple[object, str]:
        page = run("describe", lake.root, "revenue").out
        match = re.search(r"run by +(.*)", page)
        assert match is not None
        return json.loads(run("describe", lake.root, "revenue", "--json").out)["runner"], match[1].strip()

    assert shown_runner() == (None, "-")
    assert json.loads(run("describe", lake.root, "orders", "--json").out)["runner"] is None
    seen = []
    with api.open(lake.root, create=False) as store:
        store.table("orders").upsert([{"id": 77, "day": "sun", "cents": 1}])
        store.checkpoint()
        store.job("daily").step_local(lambda ctx: seen.append(shown_runner()))
    [(runner, words)] = seen
    assert (runner["kind"], runner["pid"]) == ("step", os.getpid())
    assert words == f"a step of process {os.getpid()} on {os.uname().nodename} since {runner['since']}"


def test_describe_shows_settings_and_since_when(run, lake) -> None:
    assert "upsert: old rows are looked up" in run("describe", lake.root, "orders").out
    run("alter", lake.root, "table", "revenue", "--changelog", "full", "--max-segments", "1000")
    people = run("describe", lake.root, "revenue").out
    assert re.search(rf"changelog +full: .*, after {lake.epochs['view']} .*; unchanged rows are left out", people)
    assert re.search(r"compaction +at 8 segments; write stall at 1,000", people)
    run("alter", lake.root, "table", "revenue", "--drop-unchanged", "no")
    assert "unchanged rows are kept" in run("describe", lake.root, "revenue").out
    refused = run("alter", lake.root, "table", "orders", "--drop-unchanged", "no")
    assert refused.code == 1 and "outputs of jobs" in refused.err


def test_describe_says_who_holds_a_table_back_and_since_when(run, lake) -> None:
    with api.open(lake.root) as store, store.snapshot(["orders"], consistency="aligned") as moment:
        holds = json.loads(run("describe", lake.root, "orders", "--json").out)["holds"]
        people = run("describe", lake.root, "orders").out
        epoch = moment.epochs["orders"]
    (job,) = (hold for hold in holds if hold["name"] == "daily")
    (lease,) = (hold for hold in holds if hold["kind"] == "snapshot")
    assert (job["kind"], job["log_epoch"], job["read_epoch"]) == ("job", lake.epochs["view"], lake.epochs["view"])
    assert (lease["log_epoch"], lease["read_epoch"]) == (None, epoch)
    assert job["expires"] is None and lease["age_ms"] >= 0
    assert datetime.fromisoformat(lease["expires"]) > datetime.fromisoformat(lease["since"])
    assert re.search(r"job:daily .* \d+(\.\d)? m?s", people) and "snapshot:" in people


def test_describe_after_a_compaction_shows_the_run(run, lake) -> None:
    assert run("compact", lake.root, "orders").code == 0
    facts = json.loads(run("describe", lake.root, "orders", "--json").out)
    (only,) = facts["run_list"]
    assert (only["until"], only["rows"], only["parts"]) == (lake.epochs["delete"], 2, 1)
    assert facts["runs"] == 1 and facts["log"]["unfolded_segments"] == 0
    assert "run through epoch" in run("describe", lake.root, "orders").out


def test_history_is_json_lines_newest_first(run, lake) -> None:
    lines = [json.loads(line) for line in run("history", lake.root, "orders", "--json").out.splitlines()]
    assert [line["epoch"] for line in lines] == [lake.epochs[name] for name in ("delete", "second", "first")]
    assert lines[0]["rows_deleted"] == 1 and lines[1]["rows_upserted"] == 2 and lines[0]["txn"] is None
    with api.open(lake.root, create=False) as store:
        assert list(lines[0]) == store.table("orders").history().schema.names
    assert datetime.fromisoformat(lines[0]["timestamp"]).tzinfo
    assert len(run("history", lake.root, "orders", "--json", "--limit", 2).out.splitlines()) == 2


def test_history_for_people_names_the_transaction_and_the_job(run, lake) -> None:
    with api.open(lake.root) as store:
        store.table("orders").upsert(pa.table({"id": [4], "day": ["fri"], "cents": [1]}), txn=("loader", 7))
    out = run("history", lake.root, "orders", "--limit", 2).out
    assert "loader 7" in out and "the newest 2; --limit N or --all for more" in out
    assert "daily" in run("history", lake.root, "revenue").out


def test_status_shows_lag_and_errors(run, lake) -> None:
    facts = json.loads(run("status", lake.root, "--json").out)
    tables = {table["name"]: table for table in facts["tables"]}
    jobs = {job["name"]: job for job in facts["jobs"]}
    upkeep = {"pressure", "compaction", "trouble"}
    assert all(set(table) == TABLE_KEYS | upkeep for table in tables.values())
    assert all(table[name] is None for table in tables.values() for name in upkeep)
    assert all(set(job) == JOB_KEYS for job in jobs.values())
    assert tables["revenue"]["lag_ms"] > 0 and tables["orders"]["lag_ms"] == 0
    assert (jobs["daily"]["state"], jobs["daily"]["committed_epoch"]) == ("running", lake.epochs["view"])
    assert jobs["broken"]["state"] == "failed" and "ZeroDivisionError" in jobs["broken"]["last_error"]
    assert jobs["broken"]["committed_epoch"] == 0 and jobs["broken"]["committed_at"] is None
    people = run("status", lake.root).out
    assert re.search(r"broken +failed .*ZeroDivisionError", people) and re.search(r"orders +created .* none +2", people)


def test_jobs_say_what_they_read_and_write(run, lake) -> None:
    facts = json.loads(run("jobs", lake.root, "--json").out)
    assert [(job["name"], job["upstreams"], job["outputs"]) for job in facts["jobs"]] == [
        ("broken", ["orders"], ["seen"]),
        ("daily", ["orders"], ["revenue"]),
    ]
    with api.open(lake.root, create=False) as store:
        assert [job["incarnation"] for job in facts["jobs"]] == [job.incarnation for job in store.jobs()]
        with pytest.raises(JobNotFound):
            store.job("nobody")
        with pytest.raises(TableNotFound):
            store.table("nobody")
    assert re.search(r"^daily +orders +revenue ", run("jobs", lake.root).out, re.MULTILINE)
