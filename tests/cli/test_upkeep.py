"""compact and verify on real stores, sound and damaged; and that looking at a store changes nothing in it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.store.env import local_folder


def damage(root: str, pattern: str = "*.arrow") -> list[str]:
    """Flip a byte in the middle of every file of that kind; their paths relative to the root."""
    paths = sorted(Path(root).rglob(pattern))
    for path in paths:
        body = bytearray(path.read_bytes())
        body[len(body) // 2] ^= 0xFF
        path.write_bytes(body)
    return [str(path.relative_to(root)) for path in paths]


def contents(root: Path) -> dict[str, bytes]:
    """Every file; LMDB's table of readers apart, which any reader enters itself in."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb"}


def test_compact_folds_one_table_or_all(run, lake) -> None:
    due = json.loads(run("compact", lake.root, "--json").out)
    assert [table["compacted"] for table in due["tables"]] == [False] * 4
    (compacted,) = json.loads(run("compact", lake.root, "orders", "--json").out)["tables"]
    assert compacted == {
        "table": "orders",
        "compacted": True,
        "outcome": "done",
        "unfolded_segments_before": 3,
        "unfolded_segments_after": 0,
        "bytes_before": compacted["bytes_before"],
        "bytes_after": compacted["bytes_after"],
    }
    full = json.loads(run("compact", lake.root, "--full", "--json").out)
    assert {table["table"] for table in full["tables"] if table["compacted"]} == {"revenue"}
    assert "not due" in run("compact", lake.root).out
    with api.open(lake.root, create=False) as store:
        assert store.table("orders").to_arrow()["id"].to_pylist() == [1, 3]


def test_verify_of_a_sound_store(run, lake) -> None:
    done = run("verify", lake.root, "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["ok"], facts["problems"], facts["tables"]) == (0, True, [], 4)
    assert facts["files"] == 4 and facts["bytes"] > 0
    assert run("verify", lake.root).out.endswith("checked: ok\n")


@pytest.mark.damages_store
def test_verify_of_a_damaged_store_exits_1_and_names_the_files(run, lake) -> None:
    damaged = damage(lake.root)
    done = run("verify", lake.root, "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["ok"]) == (1, False)
    assert {problem["where"] for problem in facts["problems"]} == set(damaged)
    people = run("verify", lake.root)
    assert people.code == 1 and damaged[0] in people.out and f"{len(facts['problems'])} problems" in people.out


def test_verify_of_files_that_could_not_be_opened_exits_1_and_calls_none_damaged(run, lake, monkeypatch) -> None:
    plainly = local_folder._read_small

    def refused(path: str) -> bytes | None:
        if path.endswith(".json"):
            return plainly(path)
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(local_folder, "_read_small", refused)
    done = run("verify", lake.root, "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["ok"], facts["problems"], len(facts["unread"])) == (1, False, [], facts["files"])
    page = run("verify", lake.root).out
    assert "no damage is known" in page and page.endswith(f"checked: {facts['files']} not read\n")


def test_verify_lists_unreachable_files_as_no_damage(run, lake) -> None:
    with api.open(lake.root) as store:
        writer = store.table("orders").writer()
        writer.upsert(pa.table({"id": [8], "day": ["x"], "cents": [1]}))
        (segment,) = writer.seal(store.last_epoch + 1)
    done = run("verify", lake.root, "--json")
    assert (done.code, json.loads(done.out)["unreachable"]) == (0, [segment.path])
    assert segment.path in run("verify", lake.root).out


@pytest.mark.damages_store
def test_damage_does_not_hide_the_other_tables_from_lists(run, lake) -> None:
    with api.open(lake.root, create=False) as store:
        store.compact("revenue")
    damage(lake.root)
    for command in (("ls", lake.root), ("status", lake.root), ("describe", lake.root, "orders")):
        done = run(*command, "--json")
        assert done.code == 1 and "is damaged" in done.err and done.err.count("\n") == 1
        facts = json.loads(done.out)
        counts = {table["name"]: table["rows"] for table in facts.get("tables", [facts])}
        assert counts["orders"] is None and counts.get("revenue", 2) == 2
    assert run("read", lake.root, "orders").code == 1


@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("status",),
        ("jobs",),
        ("verify",),
        ("describe", "orders"),
        ("history", "orders"),
        ("history", "orders", "--compactions"),
        ("vacuum", "--dry-run"),
        ("tag",),
        ("epochs",),
        ("epochs", "orders", "revenue", "--at", "7"),
        ("changes", "orders"),
        ("changes", "orders", "--after", "1", "--pre-images"),
        ("describe", "nobody"),
    ],
)
def test_looking_changes_nothing(run, lake, command) -> None:
    before = contents(Path(lake.root))
    run(command[0], lake.root, *command[1:])
    run(command[0], lake.root, *command[1:], "--json")
    assert contents(Path(lake.root)) == before


@pytest.mark.parametrize("options", [(), ("--json",), ("--epochs",), ("--epoch", "3"), ("--columns", "nothing")])
def test_reading_leaves_no_file_and_no_lease(run, lake, options) -> None:
    before = set(contents(Path(lake.root)))
    run("read", lake.root, "orders", *options)
    assert set(contents(Path(lake.root))) == before
    holds = json.loads(run("describe", lake.root, "orders", "--json").out)["holds"]
    assert {hold["kind"] for hold in holds} == {"job"}


COMMANDS = [
    ("ls",),
    ("status",),
    ("jobs",),
    ("verify",),
    ("compact",),
    ("vacuum",),
    ("read",),
    ("epochs",),
    ("tag",),
    ("tag", "--name", "a"),
    ("describe", "t"),
    ("history", "t"),
    ("changes", "t"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_no_command_makes_a_store(run, tmp_path, command) -> None:
    missing, foreign = tmp_path / "missing", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    for root in (missing, foreign, foreign / "notes.txt"):
        done = run(command[0], root, *command[1:])
        assert (done.code, done.out) == (1, "")
        assert done.err.count("\n") == 1 and str(root) in done.err
    assert not missing.exists()
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]


def test_a_marker_of_something_else_is_refused(run, tmp_path) -> None:
    (tmp_path / "epochlog.json").write_text('{"name": "another"}')
    done = run("ls", tmp_path)
    assert done.code == 1 and "is not an epochlog marker" in done.err


@pytest.mark.parametrize("command", ["describe", "history", "changes", "compact"])
def test_an_unknown_table_is_named_with_those_there_are(run, lake, command) -> None:
    done = run(command, lake.root, "nobody")
    assert (done.code, done.out) == (1, "")
    assert "there is no table 'nobody'" in done.err and "orders" in done.err
