"""epochs: the timeline of a real store, why an epoch cannot be read, and what each policy would choose."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.__main__ import main
from epochlog.batch import policy_registry
from epochlog.batch.policy import Aligned
from epochlog.store.epochs.view import EpochView

POLICIES = ["global", "aligned", "latest", "as_of", "at_least", "bounded", "exact"]


def facts_of(run, *argv: object) -> dict[str, Any]:
    done = run("epochs", *argv, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_the_timeline_of_two_tables(run, lake) -> None:
    facts = facts_of(run, lake.root, "orders", "revenue")
    first, view, second, delete = (lake.epochs[name] for name in ("first", "view", "second", "delete"))
    assert first == view
    rows = [(row["first"], row["last"], row["landed"], row["readable"]) for row in facts["stretches"]]
    assert rows == [
        (first, second - 1, {"orders": "rows", "revenue": "rows"}, True),
        (second, delete - 1, {"orders": "rows"}, False),
        (delete, facts["last_epoch"], {"orders": "rows"}, False),
    ]
    assert facts["stretches"][0]["why_not"] == [] and facts["stretches"][0]["from"].endswith("Z")
    (blame,) = facts["stretches"][1]["why_not"]
    assert blame["table"] == "revenue" and f"does not reflect the change of orders at {second}" in blame["reason"]
    assert facts["stretches"][1]["states"] == {"orders": "valid", "revenue": "behind"}
    assert [(table["name"], table["asked"], table["upstreams"]) for table in facts["tables"]] == [
        ("orders", True, []),
        ("revenue", True, ["orders"]),
    ]
    assert (facts["earlier"], facts["later"], facts["epoch"], facts["left_out"]) == (False, False, None, {})


def test_what_a_table_descends_from_is_drawn_with_it(run, lake) -> None:
    facts = facts_of(run, lake.root, "revenue")
    assert [(table["name"], table["asked"]) for table in facts["tables"]] == [("revenue", True), ("orders", False)]
    assert len(facts["stretches"]) == 3


def test_no_table_named_means_those_that_global_counts(run, lake) -> None:
    facts = facts_of(run, lake.root)
    assert [table["name"] for table in facts["tables"]] == ["nothing_yet", "orders", "revenue"]
    assert facts["left_out"] == {"seen": "seen cannot be read: it is creating"}
    assert "not counted under global: seen cannot be read: it is creating" in run("epochs", lake.root).out
    named = facts_of(run, lake.root, "seen")
    assert [row["readable"] for row in named["stretches"]] == [False] * 3
    assert named["stretches"][0]["why_not"] == [{"table": "seen", "reason": "seen (creating) has no commit yet"}]


def test_policies_choose_as_snapshots_do(run, lake) -> None:
    choices = facts_of(run, lake.root, "orders", "revenue")["choices"]
    assert [choice["policy"] for choice in choices] == POLICIES
    with api.open(lake.root, create=False) as store:
        for choice in choices:
            if choice["policy"] == "bounded":  # its lag grows while we look
                assert choice["epochs"] == choices[1]["epochs"]
            elif choice["error"] is None:
                with store.snapshot(["orders", "revenue"], consistency=choice["policy"], **choice["options"]) as moment:
                    assert choice["epochs"] == moment.epochs
            else:
                assert choice["epochs"] == {}
    refused = {choice["policy"]: choice["error"]["type"] for choice in choices if choice["error"]}
    assert refused == {"at_least": "NoConsistentEpoch", "exact": "EpochNotCommitted"}
    assert {choice["options"].get("epoch") for choice in choices} == {None, lake.epochs["delete"]}
    (bounded,) = (choice for choice in choices if choice["policy"] == "bounded")
    assert bounded["options"]["max_lag"] * 1000 >= max(bounded["lag_ms"].values()) > 0


def test_an_epoch_that_can_be_read_is_explained(run, lake) -> None:
    first, second = lake.epochs["first"], lake.epochs["second"]
    facts = facts_of(run, lake.root, "orders", "revenue", "--at", second - 1)
    epoch = facts["epoch"]
    assert (epoch["readable"], epoch["readable_at_or_below"], epoch["readable_above"]) == (True, second - 1, None)
    assert [(table["table"], table["commit"], table["why_not"]) for table in epoch["tables"]] == [
        ("orders", first, []),
        ("revenue", first, []),
    ]
    errors = [choice["policy"] for choice in facts["choices"] if choice["error"]]
    assert errors == [] and facts["choices"][-1]["epochs"] == {"orders": second - 1, "revenue": second - 1}
    assert f"at epoch {second - 1} (" in run("epochs", lake.root, "orders", "--at", second - 1).out


def test_an_epoch_that_cannot_be_read_is_explained(run, lake) -> None:
    first, second = lake.epochs["first"], lake.epochs["second"]
    epoch = facts_of(run, lake.root, "orders", "revenue", "--at", second)["epoch"]
    assert (epoch["readable"], epoch["readable_at_or_below"], epoch["readable_above"]) == (False, second - 1, None)
    orders, revenue = epoch["tables"]
    assert (orders["commit"], orders["why_not"], revenue["commit"]) == (second, [], first)
    (blame,) = revenue["why_not"]
    assert blame["table"] == "revenue" and f"at {second}" in blame["reason"]
    page = run("epochs", lake.root, "orders", "revenue", "--at", second).out
    assert blame["reason"] in page and "cannot be read together" in page
    assert f"before it up to {second - 1} (" in page and "after it from -" in page
    before = facts_of(run, lake.root, "orders", "revenue", "--at", first - 1)["epoch"]
    assert (before["readable_at_or_below"], before["readable_above"]) == (None, first)
    assert "begins with its first commit" in before["tables"][1]["why_not"][0]["reason"]


def test_an_epoch_of_the_future_is_explained(run, lake) -> None:
    facts = facts_of(run, lake.root, "orders", "--at", 1 << 53 - 1)
    assert facts["epoch"]["tables"][0]["why_not"][0]["table"] is None
    assert "is not sealed yet" in facts["epoch"]["tables"][0]["why_not"][0]["reason"]
    assert facts["epoch"]["readable_at_or_below"] == facts["last_epoch"]


def test_people_see_a_picture_and_short_reasons(run, lake) -> None:
    page = run("epochs", lake.root, "orders", "revenue").out
    lines = [line.rstrip() for line in page.splitlines()]
    assert "orders                  ●──●──●──" in lines
    assert "revenue                 ●──╌╌╌╌╌╌" in lines
    assert "all together            ███" in lines
    assert "latest                  ▲     ▲" in lines
    assert any(line.startswith("2 ") and line.endswith("no             revenue is behind") for line in lines)
    assert "--at EPOCH lists all reasons" in page
    assert "at_least: at_least: the largest valid epoch" not in page
    assert any(line.startswith("at_least (epoch ") and "nothing: NoConsistentEpoch" in line for line in lines)


def test_the_picture_fits_its_terminal(lake, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with api.open(lake.root) as store:
        for number in range(20):
            store.table("orders").upsert(pa.table({"id": [number], "day": ["d"], "cents": [0]}))
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["epochs", lake.root, "orders"]) == 0
    page = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    drawn = [line for line in page.splitlines() if "●" in line and "rows landed" not in line]
    assert len(drawn) >= 2 and max(map(len, drawn)) <= 60
    assert sum(line.count("●") for line in drawn) == 23


def test_plain_ascii_where_the_terminal_knows_no_more(lake, monkeypatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["epochs", lake.root, "orders", "revenue"]) == 0
    assert main(["jobs", lake.root]) == 0
    narrow.flush()
    page = narrow.buffer.getvalue().decode("ascii")  # pyright: ignore[reportAttributeAccessIssue]
    assert "revenue                 *--~~~~~~" in page and "all together            ###" in page


@pytest.mark.medium
def test_a_long_timeline_is_cut_and_says_so(run, lake) -> None:
    with api.open(lake.root) as store:
        epochs = [
            store.table("orders").upsert(pa.table({"id": [9], "day": ["d"], "cents": [number]})) for number in range(50)
        ]
    page = run("epochs", lake.root, "orders").out
    assert "40 stretches are shown; --limit N or --all for more" in page
    assert len(facts_of(run, lake.root, "orders")["stretches"]) == 53
    some = facts_of(run, lake.root, "orders", "--limit", 4)
    assert [row["first"] for row in some["stretches"]] == epochs[-4:] and some["earlier"] and not some["later"]
    around = facts_of(run, lake.root, "orders", "--limit", 4, "--at", epochs[10])
    assert [row["first"] for row in around["stretches"]] == epochs[8:12] and around["earlier"] and around["later"]
    assert "stretches are shown" not in run("epochs", lake.root, "orders", "--all").out


def test_a_store_without_tables_and_tables_without_commits(run, lake, tmp_path) -> None:
    api.open(tmp_path / "new").close()
    assert "there is no table yet" in run("epochs", tmp_path / "new").out
    facts = facts_of(run, tmp_path / "new", "--at", 5)
    assert (facts["stretches"], facts["choices"], facts["epoch"]) == ([], [], None)
    assert "these tables have no commit yet" in run("epochs", lake.root, "nothing_yet").out


def test_an_unknown_table_is_named(run, lake) -> None:
    done = run("epochs", lake.root, "orders", "nobody")
    assert (done.code, done.out) == (1, "") and "nobody" in done.err and done.err.count("\n") == 1


class Yesterday(Aligned):
    """A policy of one's own."""

    def choose(self, view: EpochView, tables: Sequence[str], /) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dict.fromkeys(tables, 0)


def test_a_policy_of_ones_own_is_asked_too(run, lake, monkeypatch) -> None:
    monkeypatch.setattr("epochlog.facts.epochs.policy_names", lambda: [*POLICIES, "yesterday"])
    monkeypatch.setitem(policy_registry.BUILT_IN, "yesterday", Yesterday)
    choice = facts_of(run, lake.root, "orders")["choices"][-1]
    assert (choice["policy"], choice["epochs"], choice["options"]) == ("yesterday", {"orders": 0}, {})
