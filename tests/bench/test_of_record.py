"""Comparison of a bench run with the run of record."""

from __future__ import annotations

from pathlib import Path

from of_record import RatioRecord, compared
from report import BASE, WIDE, Figure, Target

ENVIRONMENT = ("Machine: 2 cores of X", "Disk: y", "Versions: z", "Revision: abc")


def figure(name: str, ours: float, peer: float = 10.0, shape: str = BASE) -> Figure:
    targets = (Target("epochlog", "peer", 1, "≤ 1"), Target("epochlog", None, 9, "≤ 9 ms"))
    return Figure(name, "read", {"epochlog": [ours], "peer": [peer]}, targets, shape=shape)


def test_ratios_that_moved_by_more_than_a_quarter_are_named_the_furthest_first() -> None:
    before = [figure("P1", 10), figure("P2", 10), figure("P3", 10), figure("P4", 10), figure("P1", 10, shape=WIDE)]
    now = [figure("P1", 12.4), figure("P2", 12.6), figure("P3", 5), figure("P4", 8.1), figure("P1", 20.4, shape=WIDE)]
    record, run = RatioRecord.of(before, ENVIRONMENT), RatioRecord.of(now, (*ENVIRONMENT[:3], "Revision: def"))
    assert compared(record, run) == [
        "compared with revision abc: 3 of 5 ratios moved by more than a quarter",
        f"slower: P1 read, {WIDE}: epochlog / peer is 2.04, 1 of record (2.04 times)",
        "faster: P3 read: epochlog / peer is 0.5, 1 of record (0.50 times)",
        "slower: P2 read: epochlog / peer is 1.26, 1 of record (1.26 times)",
    ]


def test_rows_of_one_run_only_and_another_machine_are_named() -> None:
    absent = Figure(
        "P9", "x", {"epochlog": [1.0]}, (Target("epochlog", "peer", 1, "≤ 1"),), absent={"peer": "no wheel"}
    )
    record = RatioRecord.of([figure("P1", 10), figure("P2", 10)], ENVIRONMENT)
    run = RatioRecord.of([figure("P1", 10), figure("P3", 10), absent], ("Machine: 64 cores of Y",))
    assert compared(record, run) == [
        "compared with revision abc: 0 of 1 ratios moved by more than a quarter, on another machine (2 cores of X)",
        "not of record: P3 read: epochlog / peer",
        "not measured now: 1 ratios of record",
    ]


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    record = RatioRecord.of([figure("P1", 1 / 3)], ENVIRONMENT)
    assert RatioRecord.load(tmp_path / "none.json") is None
    record.save(tmp_path / "new" / "1.json")
    assert RatioRecord.load(tmp_path / "new" / "1.json") == record
    assert record.ratios == {"P1 read: epochlog / peer": 0.0333}
