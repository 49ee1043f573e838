"""Tests of a bench run's report: verdicts for each kind of rows, missing figures with their reasons, and plots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pairs import ratio
from peers import PAIMON, PEERS
from plots import Panel, Plot, at, draw
from report import BASE, LARGE, STRING, Book, Figure, Target, whole, write_between

BESIDE = Target("epochlog", "peer", 0.5, "≤ 1/2")
MARKED = "before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n"
PLOT = Plot("curve", "Found: flat", "commits", [Panel("ms", [at(10, 1.0), at(1000, 1.5)], 2, "at most 2")], log_x=True)


def figure(name: str, ours: float, theirs: float, shape: str = BASE) -> Figure:
    return Figure(name, "read", {"epochlog": [ours] * 3, "peer": [theirs] * 3}, (BESIDE,), shape=shape)


def test_a_ratio_is_the_median_of_the_pairs_and_not_the_ratio_of_medians() -> None:
    samples = {"a": [1.0, 10.0, 100.0], "b": [2.0, 5.0, 10.0]}
    assert ratio(samples, "a", "b") == 2  # of 0.5, 2 and 10


def test_verdicts_stand_in_a_table_for_each_kind_of_rows_in_the_order_of_their_numbers() -> None:
    book = Book()
    for each in (figure("P2", 6, 10, STRING), figure("P10", 5, 10), figure("P2", 4, 10), figure("P2", 9, 10, LARGE)):
        book.add(each)
    lines = book.verdicts()
    assert [line for line in lines if line.startswith(("| P", "**"))] == [
        "| P2 | read | 4.00 ms | peer | 10.0 ms | 0.4 | ≤ 1/2 | hit |",
        "| P10 | read | 5.00 ms | peer | 10.0 ms | 0.5 | ≤ 1/2 | hit |",
        "**string key**",
        "| P2 | read | 6.00 ms | peer | 10.0 ms | 0.6 | ≤ 1/2 | **miss** |",
        "**20 M rows**",
        "| P2 | read | 9.00 ms | peer | 10.0 ms | 0.9 | ≤ 1/2 | **miss** |",
    ]


def test_a_peer_that_could_not_take_part_is_named_with_the_reason_and_not_judged() -> None:
    book, why = Book(), "could not be installed: no network"
    book.add(Figure("P1", "commit", {"epochlog": [1.0]}, (BESIDE,), absent={"peer": why}))
    assert f"| P1 | commit | 1.00 ms | peer | {why} | – | ≤ 1/2 | not judged |" in book.verdicts()
    assert f"| P1 | commit | peer | {why} | – | 0 |" in book.medians()


def test_why_there_is_no_pypaimon_is_what_its_installation_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypaimon, python = PEERS[PAIMON], tmp_path / "bin" / "python"
    monkeypatch.setenv(pypaimon.variable, str(python))
    assert "does not name" in str(pypaimon.why_absent())
    (tmp_path / "failed").write_text("ERROR: no matching distribution\n")
    assert pypaimon.why_absent() == "could not be installed: ERROR: no matching distribution"
    python.parent.mkdir()
    (tmp_path / "failed").unlink()
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named pypaimon >&2\nexit 1\n")
    python.chmod(0o755)
    assert pypaimon.why_absent() == "cannot be imported: ModuleNotFoundError: No module named pypaimon"
    python.write_text("#!/bin/sh\n")
    assert pypaimon.why_absent() is None
    monkeypatch.delenv(pypaimon.variable)
    assert "does not name" in str(pypaimon.why_absent())


@pytest.mark.medium
def test_figures_are_in_the_file_of_results_as_soon_as_they_are_known_and_what_is_missing_too(tmp_path: Path) -> None:
    book = Book(0.1, tmp_path / "new" / "figures.json")
    book.add(figure("P1", 1, 2))
    assert book.results is not None
    first = json.loads(book.results.read_text())
    assert first["figures"][0]["samples"] == {"epochlog": [1, 1, 1], "peer": [2, 2, 2]}
    assert first["scale"] == 0.1 and first["failures"] == {}
    book.fail("bench_growth", "AssertionError: 3 rows")
    book.fail("bench_growth", "what came of it")
    results = json.loads(book.results.read_text())
    assert results["failures"] == {"bench_growth": "AssertionError: 3 rows"} and "P9 (0 of 3)" in results["missing"]
    missing, failed = book.complaints()
    assert "P9 (0 of 3); " in missing and "P1; " not in missing and "P10 (0 of 2), 20 M rows" in missing
    assert failed == "failed: bench_growth: AssertionError: 3 rows"


def test_a_run_is_whole_when_every_row_of_every_table_is_there() -> None:
    book = Book()
    for (shape, name), count in whole(1).items():
        for number in range(count):
            assert book.missing()
            book.add(replace(figure(name, 1, 2, shape), what=f"part {number}"))
    assert book.missing() == [] and book.complaints() == []
    assert {(BASE, f"P{number}") for number in range(1, 18)} <= set(whole(0.1))
    assert whole(1).keys() - whole(0.1).keys() == {(BASE, "P18")}


@pytest.mark.medium
def test_the_report_is_written_between_its_markers_with_the_plots_beside_it(tmp_path: Path) -> None:
    page, book = tmp_path / "PERFORMANCE.md", Book()
    page.write_text(MARKED)
    book.add(figure("P1", 1, 2))
    book.plot(PLOT)
    book.write(page, "make bench")
    text = page.read_text()
    assert text.startswith("before\n<!-- figures: begin -->\n| |") and text.endswith("<!-- figures: end -->\nafter\n")
    assert "old" not in text and "![Found: flat](performance/curve.png)" in text
    assert 'durability="disk"' in text and "Checksums are on" in text and "documented defaults" in text
    assert f"pyarrow {pa.__version__}" in text and "Machine: " in text and "To measure again: `make bench`." in text
    assert (tmp_path / "performance" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_with_what_one_that_ended_early_has_left(tmp_path: Path) -> None:
    unfinished = tmp_path / "left.json"
    first = Book(1, unfinished)
    first.plot(PLOT)
    first.add(figure("P1", 1, 2))
    first.add(figure("P2", 3, 4))
    book = Book(1, tmp_path / "all.json")
    book.go_on(unfinished)
    assert book.figures == first.figures and book.missing() == first.missing()
    assert [plot.title for plot in book.plots] == [PLOT.title]
    book.add(figure("P2", 5, 6))  # measured again
    assert [each.samples["epochlog"][0] for each in book.figures] == [1, 5]
    assert "in 2 runs, each going on where the one before had ended" in book.render("make bench")
    with pytest.raises(ValueError, match="of another scale"):
        Book(0.1).go_on(unfinished)


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text("no markers\n")
    with pytest.raises(ValueError, match="must hold the lines"):
        write_between(page, "text")
    assert page.read_text() == "no markers\n"


@pytest.mark.medium
def test_the_same_figures_make_the_same_small_picture(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw(PLOT, tmp_path / name)
    picture = (tmp_path / "a.png").read_bytes()
    assert picture == (tmp_path / "b.png").read_bytes() and len(picture) < 60_000
