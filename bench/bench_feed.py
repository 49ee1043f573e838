"""P4: the change feed of 20 commits, without old images, with them stored and with them looked up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from contenders import Delta
from data import COMMITS, SCHEMA, make_workload
from pairs import ReplayClock, measure
from report import Book, Figure, Target

import epochlog as el

CHEAP, STORED, LOOKED_UP, PEER = "without images", "images stored", "images looked up", "deltalake"
WHO = (CHEAP, STORED, LOOKED_UP, PEER)
TARGETS = (
    Target(CHEAP, PEER, 1 / 2, "≤ 1/2"),
    Target(STORED, PEER, 1, "≤ 1"),
    Target(LOOKED_UP, PEER, 4, "≤ 4"),
)


def feed(table: el.Table, after: int, pre_images: bool) -> pa.Table:
    return table.changes(after, pre_images=pre_images).read_all()


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    folder: Path = tmp_path_factory.mktemp("feed")
    work = make_workload(scale, COMMITS)
    delta = Delta(folder / "d", change_feed=True)
    with el.open(folder / "e") as store:
        plain = store.create_table("plain", SCHEMA, primary_key=["id"])
        try:
            full = store.create_table("full", SCHEMA, primary_key=["id"], changelog="full")
        except el.InvalidInput:  # a version that does not store images
            full = None
        tables = [plain, full] if full else [plain]
        after = {table.name: table.upsert(work.base) for table in tables}
        delta.load(work.base)
        for rows in work.commits:
            for commit in (*(table.upsert for table in tables), delta.commit):
                commit(rows)
        contenders = {
            CHEAP: partial(feed, plain, after["plain"], False),
            LOOKED_UP: partial(feed, plain, after["plain"], True),
            PEER: delta.changes,
        }
        if full:
            contenders[STORED] = partial(feed, full, after["full"], True)
        rows = {name: read().num_rows for name, read in contenders.items()}
        assert rows[CHEAP] == sum(commit.num_rows for commit in work.commits)
        assert len({count for name, count in rows.items() if name != CHEAP}) == 1, rows
        samples = measure(contenders, 11 if scale >= 1 else 3)
    found = Figure("P4", f"change feed of {COMMITS} commits", samples, tuple(t for t in TARGETS if t.ours in samples))
    book.add(found)
    return found


@pytest.mark.parametrize("who", WHO)
def test_p4_feed(who: str, clock: ReplayClock, benchmark, figure: Figure) -> None:
    if who in figure.samples:
        clock.play(benchmark, figure.samples[who])
