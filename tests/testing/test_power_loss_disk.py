"""A power-loss disk stands in for the real one inside of its block alone, and loses what was not synced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.env import local_folder
from epochlog.testing.power_loss_disk import PowerLossDisk, write_tree

pytestmark = pytest.mark.local_only

SCHEMA = pa.schema([("id", pa.int64())])


def test_it_leaves_when_its_block_ends_in_an_error(tmp_path: Path) -> None:
    disk = PowerLossDisk(tmp_path)
    with pytest.raises(ZeroDivisionError), disk.installed():  # noqa: PT012
        assert local_folder.os is disk
        raise ZeroDivisionError
    assert local_folder.os is os


@pytest.mark.medium
def test_an_acknowledged_row_survives_if_its_file_was_synced(tmp_path: Path) -> None:
    """With durability="os" nothing was promised, and the disk shows it."""
    survivors = dict[str, int]()
    for durability in ("disk", "os"):
        base = tmp_path / durability
        base.mkdir()
        disk = PowerLossDisk(base)
        with disk.installed(), el.open(base / "lake", durability=durability) as store:
            store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1]}))
            trees = disk.survivals(random.Random(1), 3)
        for number, tree in enumerate(trees):
            write_tree(tree, tmp_path / f"{durability}-{number}")
        survivors[durability] = sum(any(path.endswith(".arrow") for path in tree) for tree in trees)
        assert len(trees) > 1
        assert survivors[durability] < len(trees) or durability == "disk"
        if durability == "disk":
            for number in range(len(trees)):
                with el.open(tmp_path / f"disk-{number}" / "lake", create=False) as store:
                    assert store.table("t").count() == 1
