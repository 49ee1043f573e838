"""The example of random kills loses and doubles nothing, and its judge finds each row that is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import chaos_judge
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chaos_judge import PAYMENTS, TABLES, VIEWS, Acknowledged, Writer, differing, payments_at, read_ledger
from chaos_processes import KINDS

import epochlog as el
from wait_until import wait_until

EXAMPLE = Path(chaos_judge.__file__).with_name("chaos.py")
MARK = "EPOCHLOG_CHAOS_TEST"


class Followed:
    """A store whose views have taken in three of four commits, a tag of that epoch, and the ledger."""

    def __init__(self, store: el.Store, ledger: Path) -> None:
        self.store = store
        store.create_table("payments", PAYMENTS, ["id"])
        for name, (sql, key) in VIEWS.items():
            store.create_view(name, sql, key)
        writer = Writer(store, ledger, 7)
        for _ in range(3):
            self.epoch = writer.commit().epoch
        store.checkpoint()
        for name in VIEWS:
            store.view(name).step(until="newest")
        self.tag = store.tag("seen", list(TABLES), consistency="aligned")
        writer.commit()
        self.ledger = read_ledger(ledger)

    def moment(self) -> dict[str, pa.Table]:
        with self.store.snapshot(list(TABLES), consistency=el.Exact(self.tag.token)) as moment:
            return {name: moment[name].to_arrow() for name in TABLES}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        yield Followed(store, tmp_path / "ledger")


@pytest.mark.medium
def test_what_is_as_the_ledger_says_passes(followed: Followed) -> None:
    assert len(followed.ledger) == 4 and followed.ledger[2].epoch == followed.epoch
    assert all(followed.store.table(name).count() for name in TABLES)
    assert chaos_judge.judge(followed.store, followed.tag.token, followed.ledger) == {}


def test_a_line_that_the_writer_has_not_ended_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text('{"epoch": 1, "upserts": [[1, 2, 3]], "deletes": []}\n{"epoch": 2, "ups')
    assert read_ledger(tmp_path / "ledger") == [Acknowledged(1, [[1, 2, 3]], [])]
    assert read_ledger(tmp_path / "none") == []


def lost(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def doubled(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def counted_twice(rows: pa.Table) -> pa.Table:
    first = pa.array([place == 0 for place in range(len(rows))])
    place = rows.column_names.index("cents")
    return rows.set_column(place, "cents", pc.if_else(first, pc.multiply(rows["cents"], 2), rows["cents"]))


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("damage", [lost, doubled, counted_twice])
def test_a_row_that_is_lost_or_doubled_is_found(
    followed: Followed, name: str, damage: Callable[[pa.Table], pa.Table]
) -> None:
    moment, ledger = followed.moment(), payments_at(followed.epoch, followed.ledger)
    moment[name] = damage(moment[name])
    counts = differing(moment, ledger)
    assert any(what.startswith(name) for what in counts), counts


def one_more(commits: list[Acknowledged]) -> list[Acknowledged]:
    return [replace(commits[0], upserts=[*commits[0].upserts, [10**6, 1, 9_999]]), *commits[1:]]


def without_the_second(commits: list[Acknowledged]) -> list[Acknowledged]:
    return [commits[0], *commits[2:]]


def without_deletes(commits: list[Acknowledged]) -> list[Acknowledged]:
    return [replace(commit, deletes=[]) for commit in commits]


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize("edit", [one_more, without_the_second, without_deletes])
def test_a_store_that_is_not_as_the_ledger_says_is_found(
    followed: Followed, edit: Callable[[list[Acknowledged]], list[Acknowledged]]
) -> None:
    counts = chaos_judge.judge(followed.store, followed.tag.token, edit(followed.ledger))
    assert "payments beside the ledger" in counts
    assert not any(what.endswith("over payments") for what in counts), counts


def start(folder: Path, mark: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=folder, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def left_behind(mark: str) -> list[str]:
    """Return the commands of all processes that a run has started and not ended."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                left.append((folder / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return left


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.redis
def test_nothing_is_lost_or_doubled_in_a_short_run(tmp_path: Path) -> None:
    mark = uuid4().hex
    run = start(tmp_path, mark, "--minutes", "1.5", "--json", str(tmp_path / "counted.json"))
    printed, _ = run.communicate()
    assert run.returncode == 0, printed
    assert "nothing was lost or doubled" in printed
    counted = json.loads((tmp_path / "counted.json").read_text())
    assert counted["kills"].keys() == {*KINDS} and all(kills["times"] for kills in counted["kills"].values())
    assert counted["wrong"] == {} and counted["epochs"] >= 2 and counted["commits"] > 10
    assert all(counted["rows"].values()) and all(counted["view_commits"].values())
    assert left_behind(mark) == []


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    mark = uuid4().hex
    run = start(tmp_path, mark)
    assert run.stdout is not None and run.stdout.readline().startswith("seed ")
    wait_until(lambda: any("SparkSubmit" in command for command in left_behind(mark)))
    run.send_signal(number)
    run.communicate()
    assert run.returncode == 128 + number
    assert left_behind(mark) == []
