"""A folder of .sql files: its options, and the changes that make a store's views those of the folder."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.env.clock import FOR_EVER
from epochlog.views import view_folder
from epochlog.views.view_folder import Change, StoredView, ViewFile, parse_file, plan_changes, read_folder

QUERY = "SELECT day, SUM(cents) AS cents\nFROM orders GROUP BY day"


def parse(text: str) -> ViewFile:
    return parse_file("revenue", text, "views/revenue.sql")


@pytest.mark.parametrize("text", [
    f"-- primary_key: day\n{QUERY}",
    f"\n-- Revenue of each day: in cents.\n--   Primary_Key:  [day]  \n\n-- refresh: auto\n{QUERY};\n",
    f"---\nprimary_key: day\nrefresh: auto\n---\n\n{QUERY}",
])  # fmt: skip
def test_the_options_stand_at_the_head_of_the_file(text: str) -> None:
    assert parse(text) == ViewFile("revenue", QUERY, ("day",), "auto")


@pytest.mark.parametrize("head", [
    "---\nprimary_key:\n  - region\n  - day\nrefresh: auto\n---",
    "---\nprimary_key: [region, 'day']\n---",
    "-- primary_key:\n--   - region\n--   - day",
])  # fmt: skip
def test_a_key_may_be_a_list(head: str) -> None:
    assert parse(f"{head}\n{QUERY}").primary_key == ("region", "day")


def test_interval_and_max_lag_are_numbers_of_boundaries_or_times() -> None:
    head = "-- primary_key: day\n-- interval: {}\n-- max_lag: {}\n"
    for interval, lag, expected in (
        ("3", "30", (3, 30)),
        ("5s", "1 min", (timedelta(seconds=5), timedelta(minutes=1))),
        ("2 minutes", "1.5 hours", (timedelta(minutes=2), timedelta(minutes=90))),
        ("500 ms", "1 day", (timedelta(milliseconds=500), timedelta(days=1))),
    ):
        file = parse(head.format(interval, lag) + QUERY)
        assert (file.interval, file.max_lag) == expected
    with pytest.raises(el.InvalidInput, match="line 2: interval is a number of boundaries or a time"):
        parse(head.format("often", "1 min") + QUERY)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "revenue.sql").write_bytes(b"\xef\xbb\xbf" + f"-- primary_key: day\n{QUERY}".encode())
    assert read_folder(tmp_path)["revenue"].primary_key == ("day",)


def test_a_comment_within_the_query_is_part_of_it() -> None:
    text = f"-- primary_key: region, day\n{QUERY}\n-- refresh: full"
    assert parse(text) == ViewFile("revenue", f"{QUERY}\n-- refresh: full", ("region", "day"), "auto")


@pytest.mark.parametrize("text, message", [
    (QUERY, "names no primary key"),
    (f"-- primary_key: \n{QUERY}", "names no primary key"),
    ("-- primary_key: day\n", "no query"),
    ("-- primary_key: day\n ; ", "no query"),
    (f"-- primary_key: day\n-- primary_key: region\n{QUERY}", "line 2: 'primary_key' is given twice"),
    (f"---\nprimary_key: day\nkey: day\n---\n{QUERY}", "line 3: 'key: day' is no option"),
    (f"---\nprimary_key: day\n{QUERY}", "line 3"),
    (f"-- primary_key: day\n-- intervall: 5s\n{QUERY}", "line 2: 'intervall: 5s' is no option"),
    (f"-- primary_keys: day\n{QUERY}", "line 1: 'primary_keys: day' is no option; a view has primary_key, refresh"),
    (f"-- primary_key: day\n-- target_lag: 5s\n{QUERY}", "line 2: 'target_lag: 5s' is no option"),
    ("---\nprimary_key: day\n", "need another at their end"),
])  # fmt: skip
def test_a_wrong_head_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(el.InvalidInput, match=message) as error:
        parse(text)
    assert "views/revenue.sql" in str(error.value)


def test_a_folder_is_read_by_file_name(tmp_path: Path) -> None:
    with pytest.raises(el.InvalidInput, match="no .sql file"):
        read_folder(tmp_path)
    with pytest.raises(el.InvalidInput, match="no folder"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "revenue.sql").write_text(f"-- primary_key: day\n{QUERY}")
    (tmp_path / "notes.md").write_text("no view")
    assert list(read_folder(tmp_path)) == ["revenue"]
    (tmp_path / "Wrong-name.sql").write_text(f"-- primary_key: day\n{QUERY}")
    with pytest.raises(el.InvalidName, match="Wrong-name"):
        read_folder(tmp_path)
    (tmp_path / "Wrong-name.sql").write_bytes(b"\xff")
    with pytest.raises(el.ReadFailed):
        read_folder(tmp_path)


def file(name: str, sql: str = QUERY, key: str = "day") -> ViewFile:
    return ViewFile(name, sql, (key,), "auto")


def stored(name: str, *upstreams: str) -> StoredView:
    return StoredView(name, ("day",), "auto", upstreams)


def check_kind(kind: str, folder_of_views: Path) -> None:
    place = folder_of_views / "revenue.sql"
    if kind == "folder":
        place.mkdir()
    elif kind.startswith("link"):
        place.symlink_to(kind.removeprefix("link to "))
    else:
        os.mkfifo(place)
    text = f"-- primary_key: day\n{QUERY}"
    writer = threading.Thread(target=place.write_text, args=(text,)) if "writer" in kind else None
    if writer is not None:
        writer.start()
    try:
        with pytest.raises(el.ReadFailed, match=r"revenue\.sql"):
            read_folder(folder_of_views)
    finally:
        if writer is not None:
            reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # lets it go on, if nobody has read
            writer.join()
            os.close(reader)


@pytest.mark.parametrize("kind", ["pipe", "pipe with a writer", "folder", "link to /dev/zero", "link to /dev/null"])
def test_what_is_no_regular_file_is_named(kind: str, tmp_path: Path) -> None:
    """`apply` waited for ever for the other end of a pipe."""
    check_kind(kind, tmp_path)


@pytest.mark.planted
@pytest.mark.parametrize("kind", ["pipe with a writer", "link to /dev/null"])
def test_a_read_of_what_is_no_regular_file_is_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_folder, "_text_of", lambda path: path.read_text("utf-8-sig"))
    with pytest.raises((pytest.fail.Exception, el.InvalidInput)):
        check_kind(kind, tmp_path)


def test_numbers_and_times_beyond_all_bounds_are_refused_or_bounded() -> None:
    head = "-- primary_key: day\n-- interval: {}\n"
    with pytest.raises(el.InvalidInput, match="a number of boundaries or a time"):
        parse(head.format("9" * 5_000) + QUERY)
    assert parse(head.format("9" * 400 + " d") + QUERY).interval == FOR_EVER


def test_views_are_created_after_those_that_they_read_and_dropped_before_them() -> None:
    files = {"a": file("a"), "b": file("b"), "keep": file("keep"), "other": file("other", "SELECT 1")}
    now = {"keep": stored("keep", "orders"), "other": stored("other", "keep"), "x": stored("x", "y"), "y": stored("y")}
    reads = {"a": ["b", "orders"], "b": ["orders"], "keep": ["orders"], "other": ["keep"]}
    changes = plan_changes(files, now, reads, rewritten=["other"])
    assert [change.name for change in changes if change.action == "drop"] == ["x", "y"]
    actions = {change.name: change.action for change in changes}
    assert actions == {
        "x": "drop", "y": "drop", "a": "create", "b": "create", "keep": "unchanged", "other": "replace",
    }  # fmt: skip
    order = [change.name for change in changes]
    assert order.index("b") < order.index("a")
    assert changes[0] == Change("drop", "x")


def test_views_that_read_each_other_and_changed_keys_are_refused() -> None:
    with pytest.raises(el.JobCycle, match="a reads b|b reads a"):
        plan_changes({"a": file("a"), "b": file("b")}, {}, {"a": ["b"], "b": ["a"]})
    with pytest.raises(el.InvalidInput, match="names of their own"):
        plan_changes({"orders": file("orders")}, {}, {"orders": ["orders"]})
    with pytest.raises(el.InvalidInput, match="keeps its key"):
        plan_changes({"a": file("a", key="region")}, {"a": stored("a")}, {"a": []})
