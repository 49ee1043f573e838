"""consumers and tail: who reads along, how far they are, and what changes as it comes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.store.changelog.consumers import open_consumer


def orders(ids: list[int], days: list[str], cents: list[int]) -> pa.Table:
    return pa.table({"id": ids, "day": days, "cents": cents})


def lines(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def shown(out: str) -> list[tuple]:
    return [(row["_commit_version"], row["_change_type"], row["id"], row["cents"]) for row in lines(out)]


def listed(run, lake) -> list[dict]:
    return json.loads(run("consumers", lake.root, "--json").out)["consumers"]


@pytest.fixture
def dash(lake):
    """A consumer that has acknowledged the first commit."""
    with api.open(lake.root) as store, open_consumer(store._handle, "dash", ["orders"]) as consumer:
        consumer.ack(lake.epochs["first"])


# ---- consumers ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.11")
def test_consumers_are_listed(run, lake, dash) -> None:
    (consumer,) = listed(run, lake)
    assert consumer["lag_ms"] > 0 and consumer["until"] > consumer["acked"]
    del consumer["lag_ms"], consumer["until"], consumer["acked"]
    assert consumer == {
        "name": "dash", "tables": ["orders"], "state": "away", "position": lake.epochs["first"], "incarnation": 1,
        "lag_commits": 2, "too_old": "error", "keep_ms": 7 * 86_400_000,
    }  # fmt: skip
    for word in ("dash", "orders", "away", str(lake.epochs["first"]), "error"):
        assert word in run("consumers", lake.root).out


def test_nobody_reads_along(run, lake) -> None:
    assert listed(run, lake) == []
    assert "has no consumer" in run("consumers", lake.root).out


@pytest.mark.parametrize("to", ["snapshot", "latest", "earliest", "second"])
def test_one_is_reset(run, lake, dash, to: str) -> None:
    done = run("consumers", lake.root, "--reset", "dash", lake.epochs.get(to, to), "--json")
    (consumer,) = json.loads(done.out)["consumers"]
    assert consumer["incarnation"] == 2
    expected = {"snapshot": None, "earliest": 0, "second": lake.epochs["second"]}
    assert consumer["position"] == expected[to] if to in expected else consumer["lag_commits"] == 0
    assert ("the rows first" in run("consumers", lake.root).out) == (to == "snapshot")


def test_one_is_dropped(run, lake, dash) -> None:
    assert "has no consumer" in run("consumers", lake.root, "--drop", "dash").out
    done = run("consumers", lake.root, "--drop", "dash")
    assert (done.code, done.out) == (1, "") and "there is no consumer 'dash'" in done.err


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--reset", "dash"], 2), (["--reset", "dash", "newest"], 1), (["--reset", "d", "latest", "--drop", "d"], 2)],
)
def test_what_makes_no_sense_is_refused(run, lake, dash, options: list[str], code: int) -> None:
    assert run("consumers", lake.root, *options).code == code
    assert listed(run, lake)[0]["incarnation"] == 1


# ---- tail --------------------------------------------------------------------------------------------------------


def test_tail_shows_what_changes_shows(run, lake) -> None:
    tail = ("tail", lake.root, "orders", "--until-idle")
    for begin, after in (("earliest", 0), (lake.epochs["first"], lake.epochs["first"])):
        expected = run("changes", lake.root, "orders", "--json", "--after", after).out
        assert run(*tail, "--json", "--from", begin).out == expected and expected
    assert run(*tail).out == run(*tail, "--from", "latest", "--json").out == ""
    rows = shown(run(*tail, "--from", "snapshot", "--json").out)
    assert [row[1:] for row in rows] == [("insert", 1, 501), ("insert", 3, 100)]
    assert shown(run(*tail, "--from", "earliest", "--limit", 1, "--json").out)[0][0] == lake.epochs["first"]
    only = lines(run(*tail, "--from", "earliest", "--columns", "cents", "--limit", 3, "--json").out)
    assert [list(row)[:1] for row in only] == [["cents"]] * 3
    people = run(*tail, "--from", "earliest").out.splitlines()
    assert len(people) == 5 and people[0].endswith("upsert  id=1 day=mon cents=500")
    assert str(lake.epochs["delete"]) in people[-1] and "delete  id=2" in people[-1]


def test_a_table_whose_data_has_ended_ends_the_tail(run, lake) -> None:
    with api.open(lake.root) as store:
        store.table("orders").finish()
    assert len(shown(run("tail", lake.root, "orders", "--from", "earliest", "--json").out)) == 5


@pytest.mark.rule("4.11")
def test_a_consumer_goes_on_where_it_was(run, lake) -> None:
    tail = ("tail", lake.root, "orders", "--consumer", "me", "--json")
    assert [row[1] for row in shown(run(*tail, "--until-idle").out)] == ["insert", "insert"]
    assert run(*tail, "--until-idle").out == ""
    with api.open(lake.root) as store:
        store.table("orders").upsert(orders([7, 8], ["thu", "thu"], [1, 2]))
        last = store.table("orders").upsert(orders([9], ["fri"], [3]))
    assert [row[2] for row in shown(run(*tail, "--limit", 1).out)] == [7]  # half of an epoch is not acknowledged
    assert [row[2] for row in shown(run(*tail, "--limit", 2).out)] == [7, 8]
    assert [row[2] for row in shown(run(*tail, "--limit", 1).out)] == [9]
    (consumer,) = listed(run, lake)
    assert (consumer["position"], consumer["state"], consumer["lag_commits"]) == (last, "away", 0)


def test_a_new_consumer_begins_where_it_is_told(run, lake) -> None:
    tail = ("tail", lake.root, "orders", "--until-idle", "--json")
    assert run(*tail, "--consumer", "new", "--from", "latest").out == ""
    assert len(shown(run(*tail, "--consumer", "old", "--from", "earliest").out)) == 5
    assert len(shown(run(*tail, "--consumer", "mid", "--from", lake.epochs["second"]).out)) == 1
    assert {consumer["position"] for consumer in listed(run, lake)} == {lake.epochs["delete"]}


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["orders", "--from", "newest"], 1, "neither a snapshot's token nor the name of a tag"),
        (["orders", "--from", "1.5"], 2, "an epoch, a snapshot's token or the name"),
        (["orders", "--columns", "price"], 1, "no column 'price'"),
        (["nobody"], 1, "there is no table 'nobody'"),
        (["orders", "--consumer", "a/b"], 1, "consumer name"),
        (["orders", "--limit", "0"], 2, "whole number from 1"),
    ],
)
def test_a_wrong_tail_is_refused(run, lake, options: list[str], code: int, sentence: str) -> None:
    done = run("tail", lake.root, *options)
    assert (done.code, done.out) == (code, "") and sentence in done.err


def test_a_truncated_log_says_how_to_begin(run, lake) -> None:
    with api.open(lake.root) as store:
        for job in ("daily", "broken"):
            store.drop_job(job)
        store.table("orders").truncate_log(lake.epochs["delete"])
    done = run("tail", lake.root, "orders", "--from", lake.epochs["first"])
    assert done.code == 1 and "--from snapshot" in done.err


@pytest.mark.slow
def test_what_comes_is_shown_at_once_until_ctrl_c(lake) -> None:
    command = [sys.executable, "-m", "epochlog", "tail", lake.root, "orders", "--consumer", "me", "--json"]
    with (
        api.open(lake.root) as store,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout and process.stderr
        assert [json.loads(process.stdout.readline())["id"] for _ in range(2)] == [1, 3]
        for key in (10, 11):
            epoch = store.table("orders").upsert(orders([key], ["thu"], [1]))
            row = json.loads(process.stdout.readline())
            assert (row["id"], row["_commit_version"]) == (key, epoch)
        while store.consumers()[0].position != epoch:  # acknowledged once nothing more is there to show
            assert process.poll() is None
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait()) == ("", 130)
        (info,) = store.consumers()
        assert (info.position, info.state) == (epoch, "away")
