"""Store whose table gets 20 rows in each second of the store's clock: the log of P27, packed or not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self
from unittest.mock import patch

import numpy as np
from data import SCHEMA, make_rows

import epochlog as el
from epochlog.store.metadata.commit_log import scan_entries

ROWS, KEYS = 20, 20_000
COMPACT_EVERY = 48
START_MS = 1_767_225_600_000
OPTIONS = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(days=2))
"""Retention that keeps the whole log of 100,000 seconds."""
VIEW = "SELECT COALESCE(id % 64, 0) AS part, COUNT(*) AS n, SUM(id) AS total FROM t GROUP BY COALESCE(id % 64, 0)"
PACKERS = ("epochlog.store.compaction.packing_pass.pack_log", "epochlog.store.compaction.packing_pass.write_chapters")
"""Names by which a pass of packing calls its two parts."""


@contextmanager
def without_packing() -> Iterator[None]:
    """Let no maintenance of this process pack a log in the block."""
    with patch(PACKERS[0], return_value=0), patch(PACKERS[1], return_value=0):
        yield


class SmallCommits:
    """Store at a folder with a table `t` of small commits, compacted at each 48th and not packed."""

    def __init__(self, folder: Path, *, changelog: str = "upsert", views: int = 0) -> None:
        self.folder, self.count, self._chance = folder, 0, np.random.default_rng(27)
        self._open()
        self.store.create_table("t", SCHEMA, ["id"], changelog=changelog, options=OPTIONS)
        self.table = self.store.table("t")
        self.add_views(views)

    def _open(self) -> None:
        self.store = el.open(self.folder, durability="os", clock=self._now_ms)

    def _now_ms(self) -> int:
        return START_MS + 1000 * self.count

    def add_views(self, views: int) -> list[el.View]:
        """Create views of the table, and let each make its first step."""
        made = [self.store.create_view(f"v{number}", VIEW, primary_key=["part"]) for number in range(views)]
        for view in made:
            while view.step() is not None:
                pass
        return made

    def commit(self) -> None:
        self.count += 1
        self.table.upsert(make_rows(self._chance.choice(KEYS, ROWS, replace=False), self._chance))

    def grow(self, commits: int) -> Self:
        """Commit until there are so many commits."""
        with without_packing():
            while self.count < commits:
                self.commit()
                if self.count % COMPACT_EVERY == 0:
                    self.store.compact("t")
        return self

    def copied(self, folder: Path) -> SmallCommits:
        """Return an open copy of the store."""
        self.store.close()
        shutil.copytree(self.folder, folder)
        self.reopen()
        copy = object.__new__(SmallCommits)
        copy.folder, copy.count, copy._chance = folder, self.count, np.random.default_rng(28)
        return copy.reopen()

    def reopen(self) -> Self:
        self._open()
        self.table = self.store.table("t")
        return self

    def packed(self) -> Self:
        """Seal the newest commit, compact the table, pack its log to the end, and delete the files that nothing reaches
        any more.
        """
        self.store.checkpoint()
        self.store.compact("t")
        self.store.vacuum(grace=0)
        return self

    def epochs(self) -> list[int]:
        """Return the epochs of all commits, oldest first."""
        return self.table.history(limit=self.count)["epoch"].to_pylist()[::-1]

    @property
    def files(self) -> int:
        """Return the number of files that the log of the table reaches."""
        table = self.table._table.id
        return self.store._handle.catalog.read(
            lambda view: sum(len(entry.files) for entry in scan_entries(view, table))
        )

    @property
    def catalog_bytes(self) -> int:
        """Return the bytes of all records of the catalog, with their keys."""
        return self.store._handle.catalog.read(
            lambda view: sum(len(key) + len(value) for key, value in view.scan_packed(b"", b"\xff"))
        )

    def close(self) -> None:
        self.store.close()
