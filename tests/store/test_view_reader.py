"""Looks at the catalog that leave out what a question does not need see the same of what it does."""

from __future__ import annotations

from pathlib import Path

from epochlog.store.epochs.view_reader import read_epoch_view
from lab import Lab, mirror


def test_a_look_at_some_tables_reads_those_and_what_they_descend_from(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store")
    for name in ("r", "s", "alone"):
        lab.root_table(name)
    jobs = [lab.job("a", ["r"]), lab.job("b", ["s", "a_out"]), lab.job("c", ["b_out"], ["c1", "c2"])]
    lab.put({1: (1, 1)})
    lab.put({1: (1, 1)}, "s")
    lab.tick()
    for job, source, out in zip(jobs, ("r", "a_out", "b_out"), ("a_out", "b_out", "c1"), strict=True):
        job.step_local(mirror(source, out))
    lab.put({2: (1, 1)})
    handle = lab.store._handle
    whole = handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, lab.now_ms, "x"))
    expected = {"r": {"r"}, "a_out": {"r", "a_out"}, "b_out": {"r", "s", "a_out", "b_out"}}
    expected["c1"] = {*expected["b_out"], "c1"}
    for name, seen in expected.items():
        above = [whole.ids[name]]
        part = handle.catalog.read(
            lambda view, above=above: read_epoch_view(view, handle.memory, lab.now_ms, "x", above=above)
        )
        assert set(part.ids) == seen
        assert (part.last_epoch, part.clock_ms, part.store_id) == (whole.last_epoch, whole.clock_ms, "x")
        for table_id, table in part.tables.items():
            whole_table = whole.tables[table_id]
            assert (table.commits.tolist(), table.changes.tolist()) == (
                whole_table.commits.tolist(),
                whole_table.changes.tolist(),
            )
            assert all(
                getattr(table, field) == getattr(whole_table, field)
                for field in ("state", "derived", "upstreams", "name")
            )
            assert (table.safe_epoch, table.known_from) == (whole_table.safe_epoch, whole_table.known_from)
            assert part.complete_through(table_id) == whole.complete_through(table_id)
