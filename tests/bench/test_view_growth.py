"""The table and the picture of a step's cost over the size of the tables."""

from __future__ import annotations

from pathlib import Path

from report import Figure, whole
from view_growth import ANEW, BATCHES, BEGIN, END, NUMBER, OURS, PICTURE, SIZES, measured, points, render, what, write


def figures() -> list[Figure]:
    """Return figures in which a step of n events takes n / 100 ms, and all rows anew a millisecond for 1,000 events."""
    anew = {size: [size / 1000, size / 1000 + 2, size / 1000 - 2] for size in SIZES}
    return [
        *(
            Figure(NUMBER, what(size, batch, mixed=mixed), {OURS: [batch / 100] * 3, ANEW: anew[size]}, ())
            for size, batch, mixed in measured()
        ),
        Figure("P7", "another", {OURS: [1.0]}, ()),
    ]


def test_a_whole_run_has_each_size_with_each_batch() -> None:
    assert whole(1)["", NUMBER] == whole(0.1)["", NUMBER] == len(list(measured())) == len(SIZES) * len(BATCHES) + 2


def test_a_row_has_the_medians_of_a_size() -> None:
    by_words = {figure.what: figure for figure in figures()}
    lines = render(by_words).splitlines()
    assert lines[2] == "| 100,000 | 10 ms | 100 ms | 100 ms |"
    assert lines[5] == "| 3,000,000 | 10 ms | 100 ms | 3,000 ms |"
    assert lines[6] == "| 1,000,000, also updates and deletes | 10 ms | 100 ms | – |"
    assert points(by_words, BATCHES[0], ANEW)[-1] == (3_000_000, 3000.0)


def test_what_was_not_measured_is_left_out() -> None:
    by_words = {figure.what: figure for figure in figures() if "over 3,000,000" not in figure.what}
    assert render(by_words).splitlines()[5] == "| 3,000,000 | – | – | – |"


def test_it_is_written_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, figures())
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| events in the tables |") and text.endswith(f"{END}\nafter\n")
    assert "old\n" not in text and (tmp_path / "performance" / PICTURE).read_bytes().startswith(b"\x89PNG")
