"""Vacuum races commits, compactions and readers in processes of their own; EPOCHLOG_RACE_SECONDS makes it longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from subprocess import Popen

import pytest

import epochlog as el
from crash.children import child, lines
from crash.upkeeper import ROWS, SCHEMA

SECONDS = float(os.environ.get("EPOCHLOG_RACE_SECONDS", "2"))
pytestmark = [pytest.mark.local_only, pytest.mark.slow]


@contextmanager
def started(root: Path, roles: dict[str, str]) -> Iterator[dict[str, Popen[str]]]:
    """Processes by name, all at work at the same time."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(child("upkeeper", root, role, SECONDS, name)) for name, role in roles.items()}
        for process in made.values():
            assert lines(process, 1) == ["ready"]
        for process in made.values():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield made


def rounds(process: Popen[str]) -> int:
    """Return the process's number of rounds; raise AssertionError if it died."""
    printed_lines = lines(process, 1)
    assert printed_lines and printed_lines[0].startswith("done "), printed_lines
    return int(printed_lines[0].split()[1])


@pytest.mark.parametrize("changelog", [pytest.param("upsert", marks=pytest.mark.long), "full"])
def test_vacuum_beside_commits_compactions_and_readers(tmp_path: Path, changelog: str) -> None:
    options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=2)
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"], changelog=changelog, options=options)
    roles = {"w": "writer", "maintained": "writer", "s": "spark", "r": "reader", "v": "vacuum", "u": "vacuum"}
    with started(tmp_path / "s", roles) as processes:
        done = {name: rounds(process) for name, process in processes.items()}
    print(done)
    assert all(done.values()), done
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.table("t")
        assert table.count() == ROWS and store.verify().ok
        for name in ("w", "maintained", "s"):  # every commit landed
            assert store.resolve((name, done[name] - 1)) is not None
        store.compact("t", full=True)
        store.vacuum(grace=0)
        report = store.verify()
        assert report.ok and not report.unreachable
