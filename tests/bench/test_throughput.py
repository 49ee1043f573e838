"""The table of throughput: rows per second of the medians, beside Spark's Parquet and on the oldest Spark."""

from __future__ import annotations

from pathlib import Path

from report import Figure, whole
from throughput import (
    BEGIN,
    CATALOG,
    END,
    NUMBER,
    OWN,
    PARQUET,
    READ,
    STREAM_IN,
    WORKS,
    on_oldest,
    render,
    write,
)


def figures() -> list[Figure]:
    """Return the figures of work with two samples of each leg; only the read was measured on the oldest Spark."""
    read = {OWN: [2000.0, 2000.0], CATALOG: [1000.0, 1000.0], PARQUET: [500.0, 1000.0], on_oldest(OWN): [4000.0]}
    return [
        Figure(NUMBER, READ.time, read, ()),
        Figure(NUMBER, READ.cpu, {OWN: [3000.0], PARQUET: [1000.0]}, ()),
        Figure(NUMBER, STREAM_IN.time, {OWN: [800.0], PARQUET: [400.0]}, ()),
        Figure(NUMBER, STREAM_IN.cpu, {OWN: [800.0], PARQUET: [400.0]}, ()),
        Figure("P7", "another", {OWN: [1.0]}, ()),
    ]


def test_a_whole_run_has_the_time_and_the_cpu_time_of_all_work() -> None:
    assert whole(1)["", NUMBER] == whole(0.1)["", NUMBER] == 2 * len(WORKS)


def test_a_row_has_rates_cpu_time_and_the_ratio_of_pairs() -> None:
    _, _, stream, read, catalog = render(figures()).splitlines()[:5]
    assert stream == f"| {STREAM_IN.what} | 1.25 | 0.80 s | 2.50 | 0.40 s | 2.00 | – | – |"
    assert read == f"| {READ.what} | 2.50 | 0.60 s | 6.67 | 0.20 s | 3.00 | 1.25 | – |"
    assert catalog == f"| {READ.what} (the catalog) | 5.00 | – | 6.67 | 0.20 s | 1.50 | – | – |"


def test_it_is_written_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, figures())
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| work |") and text.endswith(f"{END}\nafter\n") and "old\n" not in text
