"""Regressions that random tests of the law found, as literal lists of operations."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import epochlog as el
from lab import Lab, keys_of


def test_history_that_was_read_back_stands_beside_history_that_is_new(tmp_path: Path) -> None:
    """Hidden columns computed and hidden columns read from a part differ in what they say of nulls; they could not be
    stacked, so the second compaction with history failed."""
    lab = Lab(tmp_path / "store")
    lab.root_table()
    epochs = {}
    for number in range(6):
        epochs[lab.put({1: (0, number), 2 + number: (1, number)})] = number
        if number % 2:
            lab.store.table("r").delete(keys_of([number]))
            lab.store.compact("r", full=True)
    for epoch, number in epochs.items():
        assert lab.rows("r", epoch)[1] == (0, number)
    assert lab.store.verify().ok


def test_changes_from_the_beginning_have_their_old_images_though_history_was_let_go(tmp_path: Path) -> None:
    """Before its first entry a table is empty, however far its safe epoch has come."""
    lab = Lab(tmp_path / "store")
    table = lab.root_table(options=el.TableOptions(history_retention=timedelta(0)))
    lab.put({1: (0, 1)})
    lab.put({1: (0, 2)})
    lab.tick()
    lab.store.compact("r", full=True)
    assert table.info.safe_epoch > 0
    changes = table.changes(0, pre_images=True).read_all().to_pylist()
    assert [(row["v"], row["_change_type"]) for row in changes] == [
        (1, "insert"),
        (1, "update_preimage"),
        (2, "update_postimage"),
    ]
    net = table.changes(0, mode="net", pre_images=True).read_all().to_pylist()
    assert [(row["v"], row["_change_type"]) for row in net] == [(2, "insert")]
