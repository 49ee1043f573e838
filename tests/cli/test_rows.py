"""read and changes: the rows of a store on the command line, at the epochs asked for, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.batch import policy_registry
from epochlog.batch.policy_options import OptionKind, PolicyOption
from epochlog.store.epochs.view import EpochView


def lines(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def bare(rows: list[dict]) -> list[tuple]:
    """The user's columns of JSON lines, in their order."""
    return [tuple(value for name, value in row.items() if not name.startswith("_")) for row in rows]


def test_tables_are_read_as_of_one_moment(run, lake) -> None:
    done = run("read", lake.root, "orders", "revenue", "--json")
    rows = lines(done.out)
    assert len({row["_epoch"] for row in rows}) == 1
    assert bare([row for row in rows if row["_table"] == "orders"]) == [(1, "mon", 500), (2, "tue", 700)]
    assert bare([row for row in rows if row["_table"] == "revenue"]) == [("mon", 500), ("tue", 700)]
    latest = lines(run("read", lake.root, "orders", "revenue", "--json", "--consistency", "latest").out)
    assert bare([row for row in latest if row["_table"] == "orders"]) == [(1, "mon", 501), (3, "wed", 100)]
    assert {row["_epoch"] for row in latest} == {lake.epochs["delete"], lake.epochs["view"]}


def test_columns_filter_and_limit(run, lake) -> None:
    chosen = run("read", lake.root, "orders", "--json", "--columns", "cents,id", "--filter", "day = 'wed' OR id < 1")
    assert bare(lines(chosen.out)) == [(100, 3)]
    assert list(lines(chosen.out)[0]) == ["_table", "_epoch", "cents", "id"]
    assert bare(lines(run("read", lake.root, "orders", "--json", "--limit", 1).out)) == [(1, "mon", 501)]


def test_the_past_is_read_by_epoch_time_and_token(run, lake) -> None:
    first = [(1, "mon", 500), (2, "tue", 700)]
    at = lake.epochs["first"]
    assert bare(lines(run("read", lake.root, "orders", "--epoch", at, "--json").out)) == first
    as_of = run("read", lake.root, "orders", "--consistency", "as_of", "--epoch", lake.epochs["second"] - 1, "--json")
    assert bare(lines(as_of.out)) == first
    then = run("history", lake.root, "orders", "--json").out.splitlines()[-1]
    by_time = run("read", lake.root, "orders", "--timestamp", json.loads(then)["timestamp"], "--json")
    assert bare(lines(by_time.out)) == first
    chosen = json.loads(run("read", lake.root, "orders", "revenue", "--epochs", "--json").out)
    assert {table["table"] for table in chosen["tables"]} == {"orders", "revenue"}
    assert {table["epoch"] for table in chosen["tables"]} == {lake.epochs["second"] - 1}
    assert all(table["lag_ms"] >= 0 for table in chosen["tables"])
    again = lines(run("read", lake.root, "--token", chosen["token"], "--json").out)
    assert {(row["_table"], row["_epoch"]) for row in again} == {
        (table["table"], table["epoch"]) for table in chosen["tables"]
    }
    people = run("read", lake.root, "orders", "--epochs").out
    assert "token" in people and "lag" in people


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["orders", "--epoch", "9007199254740991"], "is complete only through"),
        (["orders", "--epoch", "99007199254740991"], "an int from 0 to 2\\*\\*53"),
        (["seen"], "seen \\(creating\\) has no commit yet"),
        (["orders", "nobody"], "there is no table 'nobody'"),
        (["orders", "--columns", "id,price"], "table 'orders' has no column 'price'"),
        (["orders", "--filter", "price > 1"], "there is no column 'price'"),
        (["orders", "--filter", "cents >"], "expected a literal"),
        (["orders", "--filter", "cents LIKE 'a%'"], "does not fit the columns"),
        (["orders", "--consistency", "hopeful"], "unknown consistency policy 'hopeful'"),
        (["orders", "--consistency", "latest", "--epoch", "5"], "'latest' takes no epoch \\(it takes: nothing\\)"),
        (["revenue", "--max-lag", "0", "--timeout", "0"], "revenue lags"),
        (["--epoch", "5"], "--epoch needs TABLE arguments"),
        (["orders", "--timestamp", "yesterday"], "'yesterday' is not an ISO 8601 timestamp"),
        (["orders", "--token", "nonsense"], "token"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_line(run, lake, options, sentence) -> None:
    done = run("read", lake.root, *options, "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1 and done.err.startswith("epochlog: ")
    assert re.search(sentence, done.err)


def test_a_policy_that_covers_less_than_all_is_honoured(run, lake) -> None:
    """`global` leaves the creating table out when no table is named, and refuses it when it is."""
    done = run("read", lake.root, "--consistency", "global", "--json")
    assert {row["_table"] for row in lines(done.out)} == {"orders", "revenue"}
    assert run("read", lake.root, "seen", "--consistency", "global").code == 1


class Older:
    """A policy of one's own: so many epochs before the newest that all can be read at."""

    def __init__(self, by: int, why: str = "", share: float = 1) -> None:
        self.by = round(by * share)
        self.why = why

    def choose(self, view: EpochView, tables: Sequence[str], /) -> Mapping[str, int]:
        newest = view.largest_valid_at_most(tables)
        assert newest is not None and self.why == "to see"
        return dict.fromkeys(tables, newest - self.by)


def test_a_policy_of_ones_own_takes_its_options(run, lake, monkeypatch) -> None:
    named = policy_registry._named
    monkeypatch.setattr(policy_registry, "_named", lambda name: Older if name == "older" else named(name))
    args = ("--option", "by=4", "--option", "why=to see", "--option", "share=0.5")
    done = run("read", lake.root, "orders", "revenue", "--consistency", "older", *args, "--epochs", "--json")
    assert {table["epoch"] for table in json.loads(done.out)["tables"]} == {lake.epochs["second"] - 3}
    for options, code, sentence in (
        (["--consistency", "older", "--option", "by"], 2, "name=value is needed"),
        (["--consistency", "older", "--option", "b y=1"], 2, "name=value is needed"),
        (["--consistency", "older", "--option", "much=1"], 1, "'older' takes no much"),
        (["--consistency", "bounded", "--option", "max_lag=1"], 1, "--option is for custom policies"),
        (["--option", "by=1"], 1, "--option is for custom policies, named by --consistency"),
    ):
        done = run("read", lake.root, "orders", *options)
        assert (done.code, done.out) == (code, "") and sentence in done.err, options


@dataclass(frozen=True)
class Settled:
    """A further built-in policy, which declares its options."""

    margin: float
    options: ClassVar[tuple[PolicyOption, ...]] = (
        PolicyOption("margin", OptionKind.SECONDS, "this long before the newest", implies=True),
    )

    def choose(self, view: EpochView, tables: Sequence[str], /) -> Mapping[str, int]:
        newest = view.largest_valid_at_most(tables)
        assert newest is not None
        return dict.fromkeys(tables, newest - round(self.margin))


def test_a_further_policy_has_its_options_on_the_command_line(run, lake, monkeypatch) -> None:
    assert "--margin" not in run("read", "--help").out
    monkeypatch.setitem(policy_registry.BUILT_IN, "settled", Settled)
    assert "--margin S this long before the newest (settled)" in " ".join(run("read", "--help").out.split())
    for named in ([], ["--consistency", "settled"]):
        done = run("read", lake.root, "orders", "revenue", "--margin", "3", *named, "--epochs", "--json")
        assert {table["epoch"] for table in json.loads(done.out)["tables"]} == {lake.epochs["second"] - 4}, done.err
    refused = run("read", lake.root, "orders", "--margin", "3", "--consistency", "latest")
    assert (refused.code, refused.out) == (1, "") and "'latest' takes no margin" in refused.err
    assert run("tag", lake.root, "--margin", "3").code == 2  # for taking one, and none is taken


@pytest.mark.parametrize(
    "options, policy",
    [
        ([], None),
        (["timeout"], None),
        (["epoch"], "exact"),
        (["token"], "exact"),
        (["epoch", "timeout"], "at_least"),
        (["max_lag"], "bounded"),
        (["max_lag", "timeout"], "bounded"),
        (["timestamp"], "as_of"),
        (["timestamp", "timeout"], "as_of"),
        (["include_creating"], "global"),
    ],
)
def test_options_alone_mean_a_policy(options: list[str], policy: str | None) -> None:
    assert policy_registry.implied_policy(options) == policy


@pytest.mark.medium
def test_people_see_a_limited_number_of_rows_and_how_to_see_more(run, lake) -> None:
    with api.open(lake.root) as store:
        store.table("orders").upsert(pa.table({"id": list(range(1000)), "day": ["d"] * 1000, "cents": [0] * 1000}))
    done = run("read", lake.root, "orders")
    assert done.out.endswith("the first 40; --limit N or --all for more\n")
    assert len([line for line in done.out.splitlines() if " d " in line]) == 40
    everything = run("read", lake.root, "orders", "--all").out
    assert len([line for line in everything.splitlines() if " d " in line]) == 1000
    assert "--limit" not in everything
    assert len(lines(run("read", lake.root, "orders", "--json").out)) == 1000


def test_an_empty_table_says_so(run, lake) -> None:
    assert "no rows" in run("read", lake.root, "nothing_yet").out
    assert run("read", lake.root, "nothing_yet", "--json").out == ""


def test_changes_have_the_change_columns(run, lake) -> None:
    rows = lines(run("changes", lake.root, "orders", "--json").out)
    kinds = [(row["id"], row["_change_type"], row["_commit_version"]) for row in rows]
    first, second, delete = (lake.epochs[name] for name in ("first", "second", "delete"))
    assert kinds == [
        (1, "upsert", first),
        (2, "upsert", first),
        (1, "upsert", second),
        (3, "upsert", second),
        (2, "delete", delete),
    ]
    assert rows[0]["_commit_timestamp"].endswith("Z") and rows[-1]["cents"] is None


def test_changes_of_a_range_net_and_with_images(run, lake) -> None:
    after = ("--after", lake.epochs["first"], "--mode", "net", "--pre-images", "--columns", "id,cents")
    rows = lines(run("changes", lake.root, "orders", *after, "--json").out)
    assert [(row["id"], row["cents"], row["_change_type"]) for row in rows] == [
        (1, 500, "update_preimage"),
        (1, 501, "update_postimage"),
        (2, 700, "delete"),
        (3, 100, "insert"),
    ]
    until = lines(run("changes", lake.root, "orders", "--until", lake.epochs["first"], "--json").out)
    assert [row["id"] for row in until] == [1, 2]
    by_key = lines(run("changes", lake.root, "orders", "--filter", "id = 3", "--json").out)
    assert [row["id"] for row in by_key] == [3]
    people = run("changes", lake.root, "orders", *after).out
    assert "update_preimage" in people and "null" not in people


def test_changes_begin_where_the_log_does(run, lake) -> None:
    with api.open(lake.root) as store:
        for name in ("daily", "broken"):
            store.drop_job(name)
        store.table("orders").truncate_log(lake.epochs["first"])
    assert [row["id"] for row in lines(run("changes", lake.root, "orders", "--json").out)] == [1, 3, 2]
    done = run("changes", lake.root, "orders", "--after", 0)
    assert done.code == 1 and "was truncated" in done.err


def test_changes_with_images_begin_at_the_oldest_state_kept(run, lake) -> None:
    run("compact", lake.root, "orders")
    rows = lines(run("changes", lake.root, "orders", "--pre-images", "--json").out)
    assert [row["_change_type"] for row in rows][:2] == ["insert", "insert"]


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--after", "9", "--until", "8"], "is inverted"),
        (["--filter", "cents > 5"], "can name key columns only"),
        (["--columns", "price"], "no column 'price'"),
    ],
)
def test_changes_that_cannot_be_read(run, lake, options, sentence) -> None:
    done = run("changes", lake.root, "orders", *options, "--json")
    assert (done.code, done.out) == (1, "") and sentence in done.err and done.err.count("\n") == 1


def test_data_cannot_steer_the_terminal(run, tmp_path) -> None:
    with api.open(tmp_path / "lake") as store:
        table = store.create_table("t", pa.schema([("k", pa.string()), ("v", pa.string())]), ["k"])
        table.upsert(pa.table({"k": ["a"], "v": ["\x1b[31mred\x07 [bold]x[/bold]\nline"]}))
    done = run("read", tmp_path / "lake", "t")
    assert "\\x1b[31mred\\x07 [bold]x[/bold]\\nline" in done.out and "\x1b" not in done.out
    assert lines(run("read", tmp_path / "lake", "t", "--json").out)[0]["v"] == "\x1b[31mred\x07 [bold]x[/bold]\nline"
