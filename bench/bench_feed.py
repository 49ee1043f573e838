"""P4: the change feed of 20 commits, without old images, with them stored and with them looked up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from contenders import Delta
from data import COMMITS, PLAIN, Shape, make_workload
from pairs import ReplayClock, measure
from report import Book, Figure, Target

import epochlog as el

CHEAP, STORED, LOOKED_UP, PEER = "without images", "images stored", "images looked up", "deltalake"
FED = f"change feed of {COMMITS} commits"
WHO = (CHEAP, STORED, LOOKED_UP, PEER)
TARGETS = (
    Target(CHEAP, PEER, 1 / 2, "≤ 1/2"),
    Target(STORED, PEER, 1, "≤ 1"),
    Target(LOOKED_UP, PEER, 4, "≤ 4"),
)


def feed(table: el.Table, after: int, pre_images: bool) -> pa.Table:
    return table.changes(after, pre_images=pre_images).read_all()


def fed(folder: Path, shape: Shape, scale: float, rounds: int) -> Figure:
    """All that the commits of this shape changed, read in every way; the numbers of rows are compared before."""
    work = make_workload(scale, COMMITS, shape=shape)
    delta = Delta(folder / "d", shape, change_feed=True)
    with el.open(folder / "e") as store:
        plain, full = (
            store.create_table(changelog, shape.schema, primary_key=list(shape.primary_key), changelog=changelog)
            for changelog in ("upsert", "full")
        )
        after = {table.name: table.upsert(work.base) for table in (plain, full)}
        delta.load(work.base)
        for rows in work.commits:
            for commit in (plain.upsert, full.upsert, delta.commit):
                commit(rows)
        contenders = {
            CHEAP: partial(feed, plain, after[plain.name], False),
            LOOKED_UP: partial(feed, plain, after[plain.name], True),
            PEER: delta.changes,
            STORED: partial(feed, full, after[full.name], True),
        }
        rows = {name: read().num_rows for name, read in contenders.items()}
        assert rows[CHEAP] == sum(commit.num_rows for commit in work.commits)
        assert len({count for name, count in rows.items() if name != CHEAP}) == 1, rows
        return Figure("P4", FED, measure(contenders, rounds), TARGETS, shape=shape.name)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    feed_figure = fed(tmp_path_factory.mktemp("feed"), PLAIN, scale, 11 if scale >= 1 else 3)
    book.add(feed_figure)
    return feed_figure


@pytest.mark.parametrize("who", WHO)
def test_p4_feed(who: str, clock: ReplayClock, benchmark, figure: Figure) -> None:
    clock.play(benchmark, figure.samples[who])
