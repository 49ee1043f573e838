"""tag: taken at night and read in the morning; and tokens and names wherever an epoch may be given."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog import api
from epochlog.batch.token import encode_token
from epochlog.cli.grammar import values


def lines(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def tag(run, lake, *argv: object) -> dict[str, Any]:
    done = run("tag", lake.root, *argv, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def tags(run, lake) -> list[dict]:
    return tag(run, lake)["tags"]


@pytest.fixture
def nightly(run, lake) -> dict[str, Any]:
    return tag(run, lake, "orders", "revenue", "--name", "nightly", "--lasting", "12h")


def test_one_is_taken(run, lake, nightly) -> None:
    at = lake.epochs["second"] - 1
    assert nightly["name"] == "nightly" and nightly["epochs"] == {"orders": at, "revenue": at}
    assert datetime.fromisoformat(nightly["until"]) - datetime.fromisoformat(nightly["since"]) == timedelta(hours=12)
    assert nightly["lag_ms"]["revenue"] > 0
    (listed,) = tags(run, lake)
    assert 0 < listed.pop("left_ms") <= nightly.pop("left_ms") <= 12 * 3_600_000
    del nightly["lag_ms"]
    assert listed == nightly
    with api.open(lake.root, create=False) as store:
        (kept,) = store.tags()
        assert (kept.name, kept.token) == ("nightly", listed["token"])


def test_people_are_told_until_when_and_the_token(run, lake) -> None:
    page = run("tag", lake.root, "orders", "--name", "short", "--lasting", "90m").out
    assert re.search(r"^short is kept until \d{4}-.*Z$", page, re.MULTILINE)
    (token,) = re.findall(r"^token (\S+)$", page, re.MULTILINE)
    assert token == tags(run, lake)[0]["token"]
    assert re.search(r"^short +orders +\d+ \(.*Z\) .* 1 h \d+ min$", run("tag", lake.root).out, re.MULTILINE)
    assert "short" in run("status", lake.root).out and "tag:short" in run("describe", lake.root, "orders").out


def test_there_is_no_tag(run, lake) -> None:
    assert tags(run, lake) == []
    assert run("tag", lake.root).out == f"{lake.root} has no tag\n"
    with api.open(lake.root) as store, store.snapshot(["orders"]):
        assert tags(run, lake) == []


def test_status_and_describe_show_it(run, lake, nightly) -> None:
    (snapshot,) = json.loads(run("status", lake.root, "--json").out)["tags"]
    assert snapshot["name"] == "nightly" and snapshot["token"] == nightly["token"]
    facts = json.loads(run("describe", lake.root, "orders", "--json").out)
    (mine,) = (hold for hold in facts["holds"] if hold["kind"] == "tag")
    assert (mine["name"], mine["read_epoch"], mine["expires"]) == (
        "nightly",
        nightly["epochs"]["orders"],
        snapshot["until"],
    )


@pytest.mark.parametrize("which", ["name", "token"])
def test_the_same_rows_are_read_again(run, lake, nightly, which) -> None:
    with api.open(lake.root) as store:
        store.table("orders").upsert(pa.table({"id": [1, 9], "day": ["x", "y"], "cents": [0, 0]}))
        store.compact(full=True)
    rows = lines(run("read", lake.root, "--token", nightly[which], "--json").out)
    assert [(row["_table"], row["_epoch"]) for row in rows] == [
        (table, nightly["epochs"][table]) for table in ("orders", "orders", "revenue", "revenue")
    ]
    assert [row["cents"] for row in rows] == [500, 700, 500, 700]
    only = lines(run("read", lake.root, "revenue", "--token", nightly[which], "--json").out)
    assert [row["cents"] for row in only] == [500, 700]


@pytest.mark.parametrize("which", ["name", "token"])
def test_what_came_after_it_is_shown(run, lake, nightly, which) -> None:
    past = run("changes", lake.root, "orders", "--after", nightly["epochs"]["orders"], "--json").out
    assert len(lines(past)) == 3
    assert run("changes", lake.root, "orders", "--after", nightly[which], "--json").out == past
    before = run("changes", lake.root, "orders", "--until", nightly[which], "--json").out
    assert [row["id"] for row in lines(before)] == [1, 2]
    assert run("tail", lake.root, "orders", "--from", nightly[which], "--until-idle", "--json").out == past


def test_a_token_is_shown(run, lake, nightly) -> None:
    for text in ("nightly", nightly["token"]):
        facts = json.loads(run("tag", lake.root, "--show", text, "--json").out)
        assert (facts["token"], facts["readable"]) == (nightly["token"], True)
        assert [(table["table"], table["epoch"]) for table in facts["tables"]] == list(nightly["epochs"].items())
        for table in facts["tables"]:
            assert (table["kept_until"], table["kept_by"]) == (nightly["until"], "tag:nightly")
            assert table["lag_ms"] > 0 and table["why_not"] is None
    page = run("tag", lake.root, "--show", "nightly").out
    assert "tag:nightly" in page and f"token {nightly['token']}" in page


def test_a_token_that_nobody_holds_is_kept_by_retention(run, lake, nightly) -> None:
    """A hold of a later epoch does not keep it."""
    first = lake.epochs["first"]
    token = json.loads(run("read", lake.root, "orders", "--epoch", first, "--epochs", "--json").out)["token"]
    (table,) = json.loads(run("tag", lake.root, "--show", token, "--json").out)["tables"]
    assert table["kept_by"] == "retention"
    assert datetime.fromisoformat(table["kept_until"]) - datetime.fromisoformat(table["at"]) == timedelta(hours=1)


def test_a_token_that_can_be_read_no_more_is_told(run, tmp_path) -> None:
    options = el.TableOptions(history_retention=timedelta(0))
    with api.open(tmp_path / "lake") as store:
        for name in ("kept", "gone"):
            store.create_table(name, pa.schema([("k", pa.int64())]), ["k"], options=options)
            store.table(name).upsert(pa.table({"k": [1]}))
        with store.snapshot() as moment:
            token = moment.token
        at_risk = json.loads(run("tag", tmp_path / "lake", "--show", token, "--json").out)["tables"]
        assert {(table["kept_until"], table["kept_by"], table["why_not"]) for table in at_risk} == {(None, None, None)}
        assert "not kept" in run("tag", tmp_path / "lake", "--show", token).out
        store.drop_table("gone")
        store.table("kept").upsert(pa.table({"k": [1]}))
        store.compact(full=True)
    facts = json.loads(run("tag", tmp_path / "lake", "--show", token, "--json").out)
    assert facts["readable"] is False
    why = {table["table"]: table["why_not"] for table in facts["tables"]}
    assert "has been dropped" in why["gone"] and "has been released" in why["kept"]
    page = run("tag", tmp_path / "lake", "--show", token).out
    assert "gone: gone has been dropped since the token was made" in page and "cannot be read" in page


def test_one_is_dropped(run, lake, nightly) -> None:
    refused = run("tag", lake.root, "--name", "weekly", "--lasting", "7d")
    assert refused.code == 1 and "left some out: seen cannot be read: it is creating" in refused.err
    weekly = tag(run, lake, "--name", "weekly", "--lasting", "7d", "--partial")
    assert weekly["epochs"].keys() == {"orders", "revenue", "nothing_yet"}  # global, where none is named
    assert [snapshot["name"] for snapshot in tag(run, lake, "--drop", "nightly")["tags"]] == ["weekly"]
    done = run("tag", lake.root, "--drop", "nightly")
    assert (done.code, done.out) == (1, "")
    assert done.err == "epochlog: there is no tag 'nightly'; the tags are: weekly\n"


def test_tagging_it_again_moves_its_end(run, lake, nightly) -> None:
    again = tag(run, lake, "--token", "nightly", "--name", "nightly", "--lasting", "2d")
    assert (again["token"], again["since"]) == (nightly["token"], nightly["since"])
    assert again["until"] > nightly["until"] and len(tags(run, lake)) == 1


def test_policies_choose_what_is_tagged(run, lake) -> None:
    latest = tag(run, lake, "orders", "revenue", "--name", "a", "--consistency", "latest")
    assert latest["epochs"] == {"orders": lake.epochs["delete"], "revenue": lake.epochs["view"]}
    past = tag(run, lake, "orders", "--name", "b", "--epoch", lake.epochs["first"])
    assert past["epochs"] == {"orders": lake.epochs["first"]}
    assert {tagged["until"] for tagged in (latest, past)} == {None}


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["orders", "--name", "a", "--lasting", "0"], "lasting must be more than 0"),
        (["orders", "--name", "a", "--lasting", "400d"], "at most 366 days"),
        (["orders", "--name", "Nightly"], "cannot be named 'Nightly'"),
        (["seen", "--name", "a"], "seen \\(creating\\) has no commit yet"),
        (["nobody", "--name", "a"], "nobody"),
        (["--show", "nobody"], "neither a snapshot's token nor the name of a tag; tags: none"),
        (["--show", "abc-DEF"], "invalid snapshot token"),
        (["--drop", "nobody"], "there is no tag 'nobody'"),
    ],
)
def test_what_cannot_be_is_an_error_of_one_line(run, lake, options, sentence) -> None:
    done = run("tag", lake.root, *options, "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and re.search(sentence, done.err)
    assert tags(run, lake) == []


@pytest.mark.parametrize(
    "options",
    [
        ["orders"],
        ["--lasting", "1h"],
        ["--consistency", "latest", "--show", "nightly"],
        ["--epoch", "0", "--drop", "nightly"],
        ["--name", "a", "--drop", "nightly"],
        ["--name", "a", "--lasting", "soon", "orders"],
        ["--show", "a b"],
        ["--include-creating"],
    ],
)
def test_wrong_usage(run, lake, options) -> None:
    done = run("tag", lake.root, *options)
    assert (done.code, done.out) == (2, "") and "usage: epochlog" in done.err


@pytest.mark.parametrize("argv", [("changes", "orders", "--after"), ("tail", "orders", "--until-idle", "--from")])
def test_epochs_of_no_table_of_this_store(run, lake, nightly, argv, tmp_path) -> None:
    with api.open(lake.root) as store:
        other = encode_token({1: 5}, {1: "orders"}, "0" * 32)
        dropped = encode_token({77: 5}, {77: "orders"}, store._handle.store_id)
        without = tag(run, lake, "revenue", "--name", "other")["token"]
    for text, sentence in (
        (other, "this snapshot token belongs to another store"),
        (dropped, "orders has been dropped since the token was made"),
        (without, "this snapshot does not read orders; it reads revenue"),
        ("nobody", "neither a snapshot's token nor the name"),
        (nightly["token"][:-1], "invalid snapshot token"),
    ):
        done = run(argv[0], lake.root, *argv[1:], text)
        assert (done.code, done.out) == (1, "") and sentence in done.err, text
    assert "belongs to another store" in run("tag", lake.root, "--show", other).err


@pytest.mark.slow
def test_taken_in_one_process_and_read_in_another(spawn, tmp_path) -> None:
    """Between them all that may go goes: nobody but the tag wants it."""
    root, options = tmp_path / "lake", el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
    with api.open(root) as store:
        table = store.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"], options=options)
        table.upsert(pa.table({"k": [1, 2], "v": [10, 20]}))
    night = json.loads(spawn("tag", root, "t", "--name", "nightly", "--lasting", "12h", "--json").out)
    with api.open(root) as store:
        for number in range(3):
            store.table("t").upsert(pa.table({"k": [1, 2], "v": [number, number]}))
            store.compact(full=True)
            store.vacuum(grace=0)
    morning = spawn("read", root, "--token", night["token"], "--json")
    assert [(row["k"], row["v"]) for row in lines(morning.out)] == [(1, 10), (2, 20)], morning.err
    spawn("tag", root, "--drop", "nightly")
    with api.open(root) as store:
        store.table("t").upsert(pa.table({"k": [1], "v": [5]}))
        store.compact(full=True)
    gone = spawn("read", root, "--token", night["token"], "--json")
    assert gone.code == 1 and "has been released" in gone.err


def test_a_token_may_begin_with_a_dash(run, lake) -> None:
    """argparse takes a word that begins so for an option: one in 64 tokens could not be used."""
    with api.open(lake.root) as store:
        store_id, table = store._handle.store_id, store.table("orders")._table.id
    made = (encode_token({table: lake.epochs["first"] + n}, {table: "orders"}, store_id) for n in range(10_000))
    token = next(token for token in made if token.startswith("-"))
    for argv in (("read", "--token"), ("tag", "--show"), ("changes", "orders", "--after")):
        done = run(argv[0], lake.root, *argv[1:], token, "--json")
        assert (done.code, done.err) == (0, "") and done.out


@pytest.mark.parametrize(
    "text, seconds",
    [("0", 0), ("1.5", 1.5), ("250ms", 0.25), ("90s", 90), ("2min", 120), ("1.5h", 5400), ("7d", 7 * 86_400)],
)  # fmt: skip
def test_lengths_of_time(text, seconds) -> None:
    assert values.seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "1 h", "1w", "-1s", "nan", "inf", "infs", "1h30m", "1H", "1\nh"])
def test_what_is_no_length_of_time(text) -> None:
    with pytest.raises(values.argparse.ArgumentTypeError, match="a length of time is needed"):
        values.seconds(text)
