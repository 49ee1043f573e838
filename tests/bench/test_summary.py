"""The summary of a run: at most twelve rows, each of one figure, in words that agree with its ratio."""

from __future__ import annotations

from pathlib import Path

import pytest
from report import BASE, Book, Figure, whole, write_from_results
from summary import BEGIN, END, MOST_ROWS, ROWS, lines_of, render, write


def figures(ours: float = 1.0, theirs: float = 2.0) -> list[Figure]:
    """Return a figure for each row."""
    return [
        Figure(row.id, f"{row.what} …", {row.ours: [ours] * 3, row.peer: [theirs] * 3}, (), shape=row.shape)
        for row in ROWS
    ]


def test_it_has_at_most_twelve_rows_of_figures_that_a_whole_run_has() -> None:
    assert len(ROWS) <= MOST_ROWS and len({row.work for row in ROWS}) == len(ROWS)
    assert {(row.shape, row.id) for row in ROWS} <= whole(1).keys()
    assert [line.row for line in lines_of(figures())] == list(ROWS)


def test_a_row_takes_the_figure_of_its_own_words_and_shape() -> None:
    compacted = next(row for row in ROWS if row.what == "read the whole table after")
    others = [
        Figure("P2", "read the whole table 20 commits after compaction", {"epochlog": [1.0], "parquet": [1.0]}, ()),
        Figure("P2", "read the whole table after compaction", {"epochlog": [1.0]}, (), shape="string key"),
        Figure("P3", "read the whole table after compaction", {"epochlog": [1.0], "parquet": [1.0]}, ()),
    ]
    assert not any(compacted.is_of(figure) for figure in others) and compacted.shape == BASE
    assert lines_of(others) == []


@pytest.mark.parametrize("ours, verdict", [
    (1.0, "2.0 times as fast"), (0.1, "20 times as fast"), (1.95, "as fast"), (2.1, "as fast"),
    (2.2, "**1.1 times as slow**"), (30.0, "**15 times as slow**"),
])  # fmt: skip
def test_the_ratio_is_said_in_words(ours: float, verdict: str) -> None:
    first = render(lines_of(figures(ours))).splitlines()[2]
    assert first.split(" | ")[-1] == f"{verdict} |"


@pytest.mark.medium
def test_a_file_of_results_is_enough(tmp_path: Path) -> None:
    book, page = Book(1, tmp_path / "figures.json"), tmp_path / "PERFORMANCE.md"
    for figure in figures(1.0)[:5]:
        book.add(figure)
    page.write_text(f"{BEGIN}\n{END}\n")
    write_from_results(write, tmp_path / "figures.json", page)
    assert page.read_text().count("2.0 times as fast") == 5


@pytest.mark.medium
def test_it_is_written_between_its_markers_with_its_picture(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, figures(3.0))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| what |") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert "(performance/summary.png)" in text
    assert (tmp_path / "performance" / "summary.png").read_bytes().startswith(b"\x89PNG")
    page.write_text("no markers")
    with pytest.raises(ValueError, match="must hold the lines"):
        write(page, figures())
