"""The bench of Nexmark beside Flink SQL and pathway: its events, its files, and its figures without these two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_nexmark
import duckdb
import nexmark
import pyarrow as pa
import pytest
import view_course
from bench_nexmark import CPU, NUMBER, WALL, figures, measured, run, what
from changing_events import SIGN, Batch, ChangingEvents, plain
from nexmark_data import KEYS, SCHEMAS
from peers import FLINK, PATHWAY, PEERS
from report import Book, whole
from spent import Spent, spent, spent_by
from stream_peers import ALL, SOURCES, Course, answers_of_duckdb, flink_inserts, flink_query, flink_tables, sums
from view_course import COMMIT, COMPACTION, OURS, kept_by_epochlog

pytestmark = pytest.mark.local_only


def course(folder: Path, *, mixed: bool) -> Course:
    return Course(folder, 100, 3, mixed)


def rows_after(batches: list[Batch]) -> list[dict[str, Any]]:
    """Return the bids that are there, by what the store is given."""
    held: dict[tuple[Any, ...], dict[str, Any]] = {}
    for batch in batches:
        held |= {(row["auction"], row["number"]): row for row in plain(batch.upserts("bid")).to_pylist()}
        for row in batch.deleted.to_pylist():
            del held[row["auction"], row["number"]]
    return list(held.values())


def test_the_rows_that_come_and_go_leave_what_the_store_has(tmp_path: Path) -> None:
    batches = list(course(tmp_path, mixed=True).batches(500))
    there: list[dict[str, Any]] = []
    for row in (row for batch in batches for row in batch.signed("bid").to_pylist()):
        if row.pop(SIGN) > 0:
            there.append(row)
        else:
            there.remove(row)  # it has come before, and with these values
    order = [(row["auction"], row["number"]) for row in there]
    assert len(order) == len(set(order))
    assert sorted(map(str, there)) == sorted(map(str, rows_after(batches)))
    assert [len(batch.deleted) for batch in batches] == [len(batch.after) for batch in batches] == [0, 5, 5, 5]


def test_the_same_seed_gives_the_same_batches() -> None:
    batches = [(events.batch(300), events.batch(100, mixed=True)) for events in (ChangingEvents(), ChangingEvents())]
    assert batches[0][1].signed("bid").equals(batches[1][1].signed("bid"))
    assert not batches[0][0].signed("bid").equals(ChangingEvents(2).batch(300).signed("bid"))


@pytest.mark.parametrize("mixed", [False, True])
def test_the_files_have_the_rows_of_the_batches(tmp_path: Path, mixed: bool) -> None:
    own = Course(tmp_path, 20, 5, mixed)  # some steps without a person
    own.write(500)
    _, *steps = own.batches(500)
    for name in SCHEMAS:
        with pa.OSFile(str(tmp_path / "steps" / f"{name}.arrows")) as file:
            streamed = [pa.Table.from_batches([batch]) for batch in pa.ipc.open_stream(file)]
        assert [part.to_pylist() for part in streamed] == [step.signed(name).to_pylist() for step in steps]
        lines = (tmp_path / "texts" / "steps" / name).read_text().splitlines()
        rows = pa.concat_tables(streamed).to_pylist()
        if mixed:
            signs = [row.pop(SIGN) for row in rows]
            images = [json.loads(line) for line in lines]
            assert [1 if image["before"] is None else -1 for image in images] == signs
            assert [image["after"] or image["before"] for image in images] == rows
        else:
            assert [line.split(",")[0] for line in lines] == [str(row[KEYS[name][0]]) for row in rows]


def test_flink_is_given_each_view_and_the_sources() -> None:
    texts = flink_inserts(ALL)
    assert [text.split()[2] for text in texts] == [f"of_{view}" for view in nexmark.VIEWS]
    assert not any("DATE_TRUNC" in text or "AVG(p" in text for text in texts)
    assert flink_inserts("q17") == [f"INSERT INTO of_q17 {flink_query('q17')}"]
    assert len(flink_inserts(SOURCES)) == len(SCHEMAS)
    tables = flink_tables(Path("/events"), mixed=True, watched=True)
    assert "PRIMARY KEY (auction, number) NOT ENFORCED" in tables[-1] and "debezium-json" in tables[-1]


@pytest.mark.medium
def test_the_answers_of_duckdb_are_those_of_the_texts_of_the_views(tmp_path: Path) -> None:
    """The queries over microseconds give as many rows, and q20 gives the same."""
    batches = list(course(tmp_path, mixed=True).batches(2000))
    answers = answers_of_duckdb(batches)
    tables = {name: pa.concat_tables([batch.upserts(name) for batch in batches]) for name in ("person", "auction")}
    instants = pa.table(pa.Table.from_pylist(rows_after(batches)).to_pydict(), plain_schema("bid")).cast(SCHEMAS["bid"])
    with duckdb.connect() as connection:
        for name, rows in {**tables, "bid": instants}.items():
            connection.register(name, rows)
        texts = {view: connection.sql(text).to_arrow_table() for view, (text, _) in nexmark.VIEWS.items()}
    assert {view: len(rows) for view, rows in texts.items()} == {view: own.total() for view, own in answers.items()}
    assert sums([(row, 1) for row in plain(texts["q20"]).to_pylist()], "q20") == answers["q20"]


def plain_schema(name: str) -> pa.Schema:
    return plain(SCHEMAS[name].empty_table()).schema


@pytest.mark.medium
@pytest.mark.parametrize("mixed", [False, True])
def test_the_steps_of_epochlog_have_means(tmp_path: Path, mixed: bool) -> None:
    means = kept_by_epochlog(tmp_path / "store", 1000, 100, 2, mixed=mixed, compare=False)
    parts = [mean.cpu_ms for name, mean in means.items() if name in {COMMIT, COMPACTION, *nexmark.VIEWS}]
    assert len(parts) == 10 and means[OURS].cpu_ms == pytest.approx(sum(parts)) and min(parts) >= 0


@pytest.mark.slow
def test_a_run_without_the_peers_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FLINK, PATHWAY):
        monkeypatch.delenv(PEERS[name].variable, raising=False)
    assert [whole(scale)["", NUMBER] for scale in (0.1, 1)] == [2 * len(list(measured(scale))) for scale in (0.1, 1)]
    monkeypatch.setattr(bench_nexmark, "STEPS", 2)
    monkeypatch.setattr(bench_nexmark, "BATCHES", (1_000,))
    monkeypatch.setattr(view_course, "MERGES", 1)
    book = Book(0.1)
    for figure in run(tmp_path, 0.001):
        book.add(figure)
    first, *others = book.figures
    assert len(others) == 3
    assert first.what == what(1_000_000, 1_000, CPU, mixed=False) and set(first.absent) == {FLINK, PATHWAY}
    assert sum("does not name the Python" in line and "not judged" in line for line in book.verdicts()) == 4


def test_a_course_has_figures_of_both_times() -> None:
    means = {OURS: Spent(2, 4), FLINK: Spent(1, 3), f"{FLINK}, q3": Spent(0.5, 1)}
    cpu, wall = figures(300_000, 1_000, means, {PATHWAY: "left out"}, mixed=True)
    assert cpu.samples == {OURS: [2], FLINK: [1], f"{FLINK}, q3": [0.5]} and wall.samples[OURS] == [4]
    assert wall.what == what(300_000, 1_000, WALL, mixed=True) and not wall.targets


def test_the_time_of_another_process_is_read() -> None:
    import os

    own, seen = spent(), spent_by(os.getpid())
    assert abs(own.cpu_ms - seen.cpu_ms) < 1000 and seen.wall_ms >= own.wall_ms
