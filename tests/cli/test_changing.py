"""alter, rebuild and drop: they ask before they destroy, and say what will be gone."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog import api
from epochlog.cli.commands import changing
from epochlog.cli.grammar.commands import parser
from epochlog.store.catalog.keys import READS
from wait_until import wait_until


class Terminal(io.StringIO):
    """Standard input of a person at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Somebody at a terminal who gives one answer."""

    def sits(answer: str) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(answer + "\n"))
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    return sits


def tables_of(root: str) -> list[str]:
    with api.open(root, create=False) as store:
        return [info.name for info in store.tables()]


DESTROYING = {
    "drop table nothing_yet": ["table nothing_yet: 0 rows, 0 B, 0 commits, the newest at -"],
    "drop job daily": ["table revenue: 2 rows, ", " B, 1 commit, the newest at ", "held by tag:kept"],
    "drop job daily --keep-outputs": ["its tables stay as root tables"],
    "rebuild daily": ["table revenue: 2 rows, ", "held by tag:kept", "the job's next step rebuilds its tables"],
    "finish orders": ["no commit can write the table again", "job broken ends too", "job daily ends too"],
    "stop daily --drain": ["later changes of its upstreams do not reach revenue"],
    "alter table orders --log-retention 1h --history-retention 61m": [
        "history_retention is auto and would be 1 h 1 min; log_retention is 1 d and would be 1 h",
    ],
    "alter table orders --ttl 1h --ttl-column at": ["ttl is without an end and would be 1 h"],
    "alter table orders --tombstone-retention 1h": ["tombstone_retention is 7 d and would be 1 h"],
}
"""Commands that want a confirmation, each with what they would lose; test_views.py has apply."""


def argv_of(words: list[str], root: str) -> list[str]:
    return [words[0], root, *words[1:]]


def test_all_commands_that_want_a_confirmation_are_tried() -> None:
    commands = {
        name
        for action in parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
        if "--yes" in command.format_help()
    }
    assert commands == {words.split()[0] for words in DESTROYING} | {"apply"}


@pytest.mark.parametrize("words", DESTROYING)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["plain", "json"])
def test_without_a_terminal_nothing_is_destroyed_unless_yes_is_said(run, lake, words, more) -> None:
    with api.open(lake.root) as store:
        store.tag("kept", ["revenue"], consistency="latest")
        store.table("orders").alter(add=[pa.field("at", pa.timestamp("ms"))])
    before = (Path(lake.root) / "catalog" / "data.mdb").read_bytes()
    done = run(*argv_of(words.split(), lake.root), *more)
    assert (done.code, done.out) == (2, "")
    name = words.split()[1 if words.split()[0] in {"rebuild", "finish", "stop"} else 2]
    assert name in done.err and "--yes" in done.err and done.err.count("\n") == 1
    assert all(part in done.err for part in DESTROYING[words]), done.err
    assert (Path(lake.root) / "catalog" / "data.mdb").read_bytes() == before


@pytest.mark.planted
@pytest.mark.parametrize("words", DESTROYING)
def test_a_refusal_that_names_no_loss_is_found(run, lake, words, monkeypatch: pytest.MonkeyPatch) -> None:
    real = changing.confirm
    monkeypatch.setattr(changing, "confirm", lambda session, question, losses: real(session, question, ()))
    with pytest.raises(AssertionError, match="Nothing was done"):
        test_without_a_terminal_nothing_is_destroyed_unless_yes_is_said(run, lake, words, [])


@pytest.mark.parametrize("answer", ["", "n", "no", "yess", "q"])
def test_any_answer_but_yes_leaves_it(run, lake, person, answer) -> None:
    person(answer)
    done = run("drop", lake.root, "job", "daily")
    assert done.code == 1 and "nothing was done" in done.err
    assert "revenue" in tables_of(lake.root)


@pytest.mark.parametrize("answer", ["y", "yes", " Y "])
def test_a_person_sees_what_will_be_gone_and_says_yes(run, lake, person, answer) -> None:
    person(answer)
    with api.open(lake.root) as store:
        held = store.snapshot(["revenue"], consistency="latest").tag("kept", 3600)
        assert held.name == "kept"
    done = run("drop", lake.root, "job", "daily")
    assert done.code == 0
    assert "table revenue: 2 rows" in done.err and "1 commit," in done.err
    assert f"{lake.epochs['view']} (" in done.err and "held by tag:kept" in done.err
    assert "Drop job daily permanently? [y/N]" in done.err
    assert "dropped job daily" in done.out
    assert tables_of(lake.root) == ["nothing_yet", "orders", "seen"]


def test_drop_as_json_tells_what_went(run, lake) -> None:
    facts = json.loads(run("drop", lake.root, "table", "nothing_yet", "--yes", "--json").out)
    assert facts == {
        "kind": "table",
        "name": "nothing_yet",
        "tables": [{
            "name": "nothing_yet", "rows": 0, "bytes": 0, "max_committed_epoch": 0, "max_committed_at": None,
            "commits": 0, "held_by": [],
        }],
    }  # fmt: skip


def test_what_is_in_use_or_not_there_is_an_error_before_anybody_is_asked(run, lake, person) -> None:
    for words, names in (
        (["drop", "table", "orders"], "'daily'|'broken'"),
        (["drop", "table", "revenue"], "'daily'"),
        (["drop", "table", "none"], "'none'"),
        (["drop", "job", "none"], "'none'"),
        (["rebuild", "none"], "'none'"),
        (["alter", "job", "none", "--interval", "2s"], "'none'"),
    ):
        person("y")
        done = run(*argv_of(words, lake.root))
        assert done.code == 1 and "[y/N]" not in done.err, done
        assert any(name in done.err for name in names.split("|"))


def test_tables_of_a_job_can_be_kept(run, lake) -> None:
    assert run("adopt", lake.root, "revenue").code == 1
    assert run("drop", lake.root, "table", "revenue", "--keep-outputs").code == 2
    facts = json.loads(run("drop", lake.root, "job", "daily", "--keep-outputs", "--yes", "--json").out)
    assert facts == {"kind": "job", "name": "daily", "tables": []}
    assert "revenue" in tables_of(lake.root)
    assert "table revenue is a root table from" in run("adopt", lake.root, "revenue").out
    assert json.loads(run("adopt", lake.root, "orders", "--json").out) == {"name": "orders", "adopted": 0}


def test_rebuild_makes_anew(run, lake) -> None:
    facts = json.loads(run("rebuild", lake.root, "daily", "--yes", "--json").out)
    assert (facts["name"], facts["rebuilding"]) == ("daily", True)
    assert "rebuilds revenue" in run("rebuild", lake.root, "daily", "--yes").out


@pytest.mark.rule("5.6")
def test_finish_ends_a_table_and_says_so_again(run, lake) -> None:
    first = run("finish", lake.root, "orders", "--yes")
    assert first.code == 0 and "table orders has ended, at epoch" in first.out
    with api.open(lake.root) as store:
        info = store.table("orders").info
        assert info.state == "finished"
        with pytest.raises(el.TableFinished):
            store.table("orders").delete(pa.table({"id": [1]}))
        store.checkpoint()
        job = store.job("daily")
        while job.step_local(refresh) is not None:
            pass
        assert job.info.state == "finished"
    again = run("finish", lake.root, "orders", "--json")
    assert json.loads(again.out) == {"name": "orders", "finished": info.max_committed_epoch}
    assert json.loads(run("finish", lake.root, "revenue", "--json").out)["name"] == "revenue"


def test_finish_refuses_an_output_before_anybody_is_asked(run, lake, person) -> None:
    person("y")
    done = run("finish", lake.root, "revenue")
    assert done.code == 1 and "only that job writes it" in done.err and "[y/N]" not in done.err


def test_finish_names_no_job_that_another_table_keeps_going(run, lake, person) -> None:
    person("n")
    with api.open(lake.root) as store:
        store.create_job("both", ["orders", "nothing_yet"], {"copy": (store.table("orders").schema, ["id"])})
    done = run("finish", lake.root, "orders")
    assert "job daily ends too" in done.err and "job both" not in done.err


def test_finish_names_the_jobs_that_end_through_others(run, lake, person) -> None:
    person("n")
    with api.open(lake.root) as store:
        revenue = store.table("revenue").schema
        store.create_job("weekly", ["revenue"], {"by_week": (revenue, ["day"])})
        store.create_job("mixed", ["by_week", "nothing_yet"], {"mix": (revenue, ["day"])})
    done = run("finish", lake.root, "orders")
    assert "job daily ends too" in done.err and "job weekly ends too" in done.err and "job mixed" not in done.err


@pytest.mark.rule("5.7")
def test_stop_without_a_runner_leaves_the_end_to_the_next_one(run, lake) -> None:
    done = run("stop", lake.root, "daily", "--drain", "--yes")
    assert done.code == 0 and "its next runner ends it; there is none now" in done.out
    pending = run("stop", lake.root, "daily", "--drain", "--wait", "0.01")
    assert pending.code == 1 and "`epochlog stop STORE daily --drain --wait SECONDS`" in pending.err
    with api.open(lake.root) as store:
        store.table("orders").upsert(pa.table({"id": [9], "day": ["sun"], "cents": [1]}))
        job = store.job("daily")
        assert job.info.draining
        while job.step_local(refresh) is not None:
            pass
        assert job.info.state == "finished" and store.table("orders").info.state != "finished"
        assert "sun" not in store.table("revenue").to_arrow()["day"].to_pylist()
    again = run("stop", lake.root, "daily", "--drain", "--wait", "0")
    assert again.code == 0 and "job daily has finished, at epoch" in again.out
    assert json.loads(run("stop", lake.root, "daily", "--drain", "--json").out)["state"] == "finished"


def refresh(ctx: el.LocalRefreshContext) -> None:
    sums = ctx.table("orders", among=ctx.touched("orders", "day")).group_by("day").aggregate([("cents", "sum")])
    ctx.recompute("revenue", by="day", from_=sums.rename_columns(["day", "cents"]))


RUNNER = f"""
import sys
import epochlog as el

{inspect.getsource(refresh)}
with el.open(sys.argv[1], create=False) as store:
    pipe = el.Pipeline(store)
    pipe.add(store.job("daily"), refresh)
    pipe.run()  # until the job has finished
    print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.rule("5.7")
def test_stop_ends_a_job_that_another_process_runs(run, lake) -> None:
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, lake.root], stdout=subprocess.PIPE)
    try:
        with api.open(lake.root) as store:
            wait_until(lambda: store.job("daily").info.committed_epoch > lake.epochs["view"])
        killed = subprocess.Popen(
            [sys.executable, "-m", "epochlog", "stop", lake.root, "daily", "--drain", "--yes", "--wait", "600"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        killed.kill()  # at any place: the command can be given again
        killed.wait()
        done = run("stop", lake.root, "daily", "--drain", "--yes", "--wait", "600", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["state"] == "finished"
        assert runner.communicate()[0] == b"ended\n" and runner.returncode == 0
    finally:
        runner.kill()
        runner.wait()


def test_stop_says_what_a_command_can_stop(run, lake) -> None:
    done = run("stop", lake.root, "daily")
    assert done.code == 2 and "add --drain" in done.err
    assert run("stop", lake.root, "nobody", "--drain", "--yes").code == 1


def test_alter_tells_boundaries_and_time(run, lake) -> None:
    done = run("alter", lake.root, "job", "daily", "--interval", "10s", "--max-lag", "5m")
    assert done.out == (
        "job daily: commits every 10 boundaries (10 s) of the store; may merge its boundaries at a lag above 30 "
        "boundaries (300 s)\n"
    )
    facts = json.loads(run("alter", lake.root, "job", "daily", "--interval", "1m", "--json").out)
    assert (facts["interval"], facts["interval_ms"], facts["max_lag"], facts["max_lag_ms"]) == (60, 60_000, 5, 300_000)
    done = run("alter", lake.root, "job", "daily", "--interval", "1500ms")
    assert done.code == 1 and "take 1 boundary (1 s) or 2 boundaries (2 s)" in done.err


@pytest.mark.parametrize("words", [["job", "daily"], ["table", "orders"], ["job", "daily", "--changelog", "full"]])
def test_alter_of_nothing_or_of_something_else_is_wrong_usage(run, lake, words) -> None:
    assert run("alter", lake.root, *words).code == 2


def test_alter_of_nothing_names_what_can_be_altered(run, lake) -> None:
    done = run("alter", lake.root, "job", "daily")
    assert "alter: name an option to change: --interval, --max-lag\n" in done.err, done.err
    done = run("alter", lake.root, "table", "orders")
    assert "name an option to change: --history-retention, --log-retention, --tombstone-retention, --comp" in done.err
    assert "--changelog, --drop-unchanged\n" in done.err


def test_alter_asks_nothing_where_the_history_goes_on_to_choose_its_length(run, lake) -> None:
    for _ in range(2):
        done = run("alter", lake.root, "table", "orders", "--history-retention", "auto")
        assert done.code == 0 and "history_retention auto" in done.out, done.err
    assert run("alter", lake.root, "table", "orders", "--history-retention", "1h", "--yes").code == 0
    done = run("alter", lake.root, "table", "orders", "--history-retention", "auto")
    assert done.code == 0, "an hour becomes an hour or more"
    done = run("alter", lake.root, "table", "orders", "--history-retention", "3h")
    assert done.code == 2 and "--yes" in done.err, "it may be two days now"
    assert run("alter", lake.root, "table", "orders", "--history-retention", "3h", "--yes").code == 0
    done = run("alter", lake.root, "table", "orders", "--history-retention", "auto")
    assert done.code == 2 and "--yes" in done.err, "it may be an hour then"


def test_alter_of_a_table_asks_before_it_keeps_less(run, lake) -> None:
    facts = json.loads(run("alter", lake.root, "table", "orders", "--log-retention", "9d", "--json").out)
    assert facts["options"]["log_retention"] == 9 * 86_400 and facts["changelog"] == "upsert"
    done = run("alter", lake.root, "table", "orders", "--log-retention", "1h")
    assert done.code == 2 and "--yes" in done.err
    done = run("alter", lake.root, "table", "orders", "--log-retention", "1h", "--changelog", "full", "--yes")
    assert done.out == (
        "table orders: changelog full, history_retention auto, log_retention 1 h, compact_segments 8, max_segments 64\n"
    )


def test_alter_of_an_output_tells_what_becomes_of_unchanged_rows(run, lake) -> None:
    for value, outcome in (("no", "kept"), ("yes", "left out")):
        done = run("alter", lake.root, "table", "revenue", "--drop-unchanged", value)
        assert done.out.endswith(f", max_segments 64; unchanged rows are {outcome}\n"), done.out
        assert json.loads(run("describe", lake.root, "revenue", "--json").out)["drop_unchanged"] == (value == "yes")
    facts = json.loads(run("alter", lake.root, "table", "revenue", "--drop-unchanged", "no", "--json").out)
    assert facts["drop_unchanged"] is False
    assert "unchanged rows are kept" in run("alter", lake.root, "table", "revenue", "--log-retention", "9d").out
    facts = json.loads(run("alter", lake.root, "table", "orders", "--log-retention", "9d", "--json").out)
    assert facts["drop_unchanged"] is None  # a root table has no such choice


def options_of(store: api.Store, name: str) -> el.TableOptions:
    return store.table(name).info.options


def between(monkeypatch: pytest.MonkeyPatch, root: str, change: Callable[[api.Store], object]) -> None:
    """Somebody else makes a change between the question and the answer."""

    def answered(*_: object) -> None:
        with api.open(root) as store:
            change(store)

    monkeypatch.setattr(changing, "confirm", answered)


def test_alter_leaves_what_somebody_else_changes_meanwhile(run, lake, monkeypatch) -> None:
    """One names log_retention and is asked; another sets the rest before the answer."""
    others = el.TableOptions(history_retention=timedelta(hours=7), compact_segments=3, max_segments=9)
    between(monkeypatch, lake.root, lambda store: store.table("orders").alter(options=others, changelog="full"))
    done = run("alter", lake.root, "table", "orders", "--log-retention", "1h")
    assert done.out == (
        "table orders: changelog full, history_retention 7 h, log_retention 1 h, compact_segments 3, max_segments 9\n"
    )
    with api.open(lake.root) as store:
        assert options_of(store, "orders") == replace(others, log_retention=timedelta(hours=1))


def test_alter_lets_go_of_nothing_that_was_not_asked_about(run, lake, monkeypatch) -> None:
    longer = el.TableOptions(log_retention=timedelta(days=30))
    between(monkeypatch, lake.root, lambda store: store.table("orders").alter(options=longer))
    done = run("alter", lake.root, "table", "orders", "--log-retention", "1h", "--compact-segments", "2")
    assert done.code == 1 and "log_retention is 30 d now" in done.err, done.err
    with api.open(lake.root) as store:
        assert options_of(store, "orders") == longer
    longer_yet = el.TableOptions(log_retention=timedelta(days=60))
    between(monkeypatch, lake.root, lambda store: store.table("orders").alter(options=longer_yet))
    done = run("alter", lake.root, "table", "orders", "--log-retention", "1h", "--yes")
    assert done.code == 0, "who says yes beforehand says it to whatever there is"
    with api.open(lake.root) as store:
        assert options_of(store, "orders").log_retention == timedelta(hours=1)


def test_alter_does_nothing_to_another_table_of_that_name(run, lake, monkeypatch) -> None:
    def anew(store: api.Store) -> None:
        store.drop_table("nothing_yet")
        store.create_table("nothing_yet", pa.schema([("id", pa.int64())]), ["id"])

    between(monkeypatch, lake.root, anew)
    done = run("alter", lake.root, "table", "nothing_yet", "--log-retention", "1h")
    assert done.code == 1 and "nothing_yet" in done.err
    with api.open(lake.root) as store:
        assert options_of(store, "nothing_yet") == el.TableOptions()


def test_a_table_is_cloned(run, lake) -> None:
    done = run("clone", lake.root, "orders", "trial", "--as-of", lake.epochs["first"], "--json")
    facts = json.loads(done.out)
    assert (facts["name"], facts["source"]) == ("trial", "orders") and facts["created"] > lake.epochs["delete"]
    with api.open(lake.root) as store:
        then = store.table("orders").to_arrow(epoch=lake.epochs["first"])
        assert store.table("trial").to_arrow().equals(then)
        store.tag("q", ["orders"], consistency="latest")
    page = run("clone", lake.root, "orders", "of_tag", "--as-of", "q").out
    assert re.match(r"^table of_tag is a clone of orders, from epoch \d+ on$", page.strip())
    again = run("clone", lake.root, "orders", "trial")
    assert again.code == 1 and "exists already" in again.err


def test_alter_of_a_ttl_asks_before_rows_expire(run, lake) -> None:
    with api.open(lake.root) as store:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms"))])
        store.create_table("timed", schema, ["id"])
    done = run("alter", lake.root, "table", "timed", "--ttl", "30d", "--ttl-column", "at")
    assert done.code == 2 and "--yes" in done.err
    done = run("alter", lake.root, "table", "timed", "--ttl", "30d", "--ttl-column", "at", "--yes")
    assert done.out.endswith("max_segments 64, ttl 30 d, ttl_column at\n")
    facts = json.loads(run("describe", lake.root, "timed", "--json").out)
    assert (facts["ttl_s"], facts["ttl_column"]) == (30 * 86_400, "at")
    assert "30 d after at" in run("describe", lake.root, "timed").out
    facts = json.loads(run("alter", lake.root, "table", "timed", "--ttl", "40d", "--json").out)
    assert facts["options"]["ttl"] == 40 * 86_400, "longer: nothing to ask"
    facts = json.loads(run("alter", lake.root, "table", "timed", "--ttl", "0", "--json").out)
    assert (facts["options"]["ttl"], facts["options"]["ttl_column"]) == (None, None)
    for wrong in (["timed", "--ttl", "1d"], ["orders", "--ttl", "1d", "--ttl-column", "day"]):
        assert run("alter", lake.root, "table", *wrong, "--yes").code == 1
    refused = run("alter", lake.root, "table", "revenue", "--ttl", "1d", "--ttl-column", "day", "--yes")
    assert refused.code == 1 and "root tables" in refused.err


@pytest.mark.rule("3.72")
def test_the_settings_of_the_store_are_altered_and_shown(run, lake) -> None:
    def status() -> tuple[str, int]:
        facts = json.loads(run("status", lake.root, "--json").out)
        return facts["default_consistency"], facts["global_max_lag_ms"]

    assert status() == ("auto", 600_000)
    assert "reads that name no policy take the policy for their tables (auto); global_max_lag 10 min\n" in (
        run("status", lake.root).out
    )
    for name in ("global", "aligned", "latest", "auto", "latest"):
        facts = json.loads(run("alter", lake.root, "store", "--default-consistency", name, "--json").out)
        assert facts == {"default_consistency": name, "global_max_lag_ms": 600_000}
        with api.open(lake.root) as store:
            assert store.default_consistency == name
    done = run("alter", lake.root, "store", "--global-max-lag", "3m")
    assert done.out == "reads that name no policy take latest; global_max_lag 3 min\n"
    assert status() == ("latest", 180_000)
    assert f"\n{done.out}" in run("status", lake.root).out


@pytest.mark.parametrize("words, message", [
    (["store", "lake", "--default-consistency", "global"], "a store takes no NAME"),
    (["store"], "name an option to change: --default-consistency, --global-max-lag"),
    (["store", "--changelog", "full"], "--changelog is not an option of a store"),
    (["store", "--default-consistency", "bounded"], "invalid choice"),
    (["table", "orders", "--default-consistency", "global"], "--default-consistency is not an option of a table"),
    (["job", "--interval", "2s"], "alter: name the job"),
])  # fmt: skip
def test_alter_of_the_store_takes_its_own_options(run, lake, words: list[str], message: str) -> None:
    done = run("alter", lake.root, *words)
    assert done.code == 2 and message in done.err
    assert run("alter", lake.root, "store", "--global-max-lag", "1ms").code == 1


def test_a_default_of_a_later_release_is_shown_and_can_be_taken_back(run, lake) -> None:
    with api.open(lake.root) as store:
        store._handle.catalog.transact(lambda tx: tx.put(READS, {"consistency": "tidal"}))
    assert json.loads(run("status", lake.root, "--json").out)["default_consistency"] == "tidal"
    assert run("alter", lake.root, "store", "--default-consistency", "auto").code == 0
    assert run("read", lake.root, "orders").code == 0
