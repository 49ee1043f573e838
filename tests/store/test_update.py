"""Updates of some columns: merged with the newest rows at the commit, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.commit import merged_updates, preparation, root_commit
from lab import Lab

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.int64()), ("c", pa.float64())])
Table = dict[int, tuple[Any, ...]]
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Op:
    """Write of key `k`: kind upsert, delete, update (of the columns in `names`) or ignore (an update that ignores
    nulls).
    """

    kind: str
    k: int
    values: tuple[str | None, int | None, float | None]
    names: tuple[str, ...] = NAMES

    @property
    def row(self) -> dict[str, Any]:
        return {"k": self.k, **{name: self.values[NAMES.index(name)] for name in self.names}}


def ops() -> st.SearchStrategy[Op]:
    values = st.tuples(
        st.sampled_from([None, "x", "y"]), st.sampled_from([None, 0, 1]), st.sampled_from([None, 0.5, float("inf")])
    )
    whole = st.builds(Op, st.sampled_from(["upsert", "delete"]), st.integers(0, 3), values)
    names = st.sets(st.sampled_from(NAMES), min_size=1).map(lambda names: tuple(sorted(names)))
    some = st.builds(Op, st.sampled_from(["update", "ignore"]), st.integers(0, 3), values, names)
    return st.one_of(whole, some)


def apply(state: Table, op: Op) -> None:
    if op.kind == "delete":
        state.pop(op.k, None)
    elif op.kind == "upsert":
        state[op.k] = op.values
    else:
        old = state.get(op.k, (None, None, None))
        state[op.k] = tuple(
            new if name in op.names and not (op.kind == "ignore" and new is None) else before
            for name, before, new in zip(NAMES, old, op.values, strict=True)
        )


def write(target: Any, op: Op) -> None:
    if op.kind == "delete":
        target.delete(pa.table({"k": [op.k]}))
    elif op.kind == "upsert":
        target.upsert(pa.Table.from_pylist([op.row], SCHEMA))
    else:
        fields = [SCHEMA.field("k"), *(SCHEMA.field(name) for name in op.names)]
        target.update(pa.Table.from_pylist([op.row], pa.schema(fields)), ignore_nulls=op.kind == "ignore")


def by_calls(lab: Lab, table: el.Table, batch: Sequence[Op]) -> None:
    for op in batch:
        write(table, op)


def by_labels(lab: Lab, table: el.Table, batch: Sequence[Op]) -> None:
    """All in one commit; each third write ends a log epoch."""
    writer, label, sealed = table.writer(), lab.store.last_epoch + 1, []
    for place, op in enumerate(batch, start=1):
        write(writer, op)
        if place % 3 == 0 or place == len(batch):
            sealed += writer.seal(label)
            label += 1
    lab.store.commit({"t": sealed})


def by_kind(lab: Lab, table: el.Table, batch: Sequence[Op]) -> None:
    """Neighbours of one kind and with the same columns in one call."""
    with lab.store.transaction() as tx:
        while batch:
            first = batch[0]
            run = 1
            while run < len(batch) and (batch[run].kind, batch[run].names) == (first.kind, first.names):
                run += 1
            rows = [op.row for op in batch[:run]]
            if first.kind == "delete":
                tx.delete("t", [op.k for op in batch[:run]])
            elif first.kind == "upsert":
                tx.upsert("t", rows)
            else:
                fields = [SCHEMA.field("k"), *(SCHEMA.field(name) for name in first.names)]
                tx.update("t", pa.Table.from_pylist(rows, pa.schema(fields)), ignore_nulls=first.kind == "ignore")
            batch = batch[run:]


DOORS: list[Callable[[Lab, el.Table, Sequence[Op]], None]] = [by_calls, by_labels, by_kind]


def contents(table: el.Table) -> Table:
    return {row["k"]: tuple(row[name] for name in NAMES) for row in table.to_arrow().to_pylist()}


def replayed(table: el.Table) -> Table:
    """Apply the table's log with its pre-images, which must be the rows before."""
    state: Table = {}
    for change in table.changes(0, pre_images=True).read_all().to_pylist():
        k, row = change["k"], tuple(change[name] for name in NAMES)
        match change["_change_type"]:
            case "update_preimage" | "delete":
                assert state.pop(k) == row
            case _:
                assert k not in state
                state[k] = row
    return state


def in_order(steps: Sequence[Any], changelog: str = "upsert") -> None:
    with TemporaryDirectory() as folder:
        lab = Lab(Path(folder) / "s")
        try:
            options = el.TableOptions(history_retention=timedelta(days=1))
            table = lab.store.create_table("t", SCHEMA, ["k"], changelog=changelog, options=options)
            state: Table = {}
            for act, batch in steps:
                if act is None:
                    lab.store.compact("t", full=True)
                else:
                    act(lab, table, batch)
                    for op in batch:
                        apply(state, op)
                assert contents(table) == state
            assert replayed(table) == state
            assert not lab.store.vacuum(grace=timedelta(0)).kept or lab.store.verify().ok
        finally:
            lab.store.close()


@pytest.mark.medium
@pytest.mark.rule("1.15")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(DOORS), st.lists(ops(), min_size=1, max_size=7)), st.tuples(st.none(), st.none())
        ),
        max_size=6,
    ),
    st.sampled_from(["upsert", "full"]),
)
def test_updates_are_merged_in_the_order_of_the_calls(steps: list[Any], changelog: str) -> None:
    in_order(steps, changelog)


@pytest.mark.rule("1.15")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_updates_that_race_both_count(lab: Lab, monkeypatch: pytest.MonkeyPatch, changelog: str) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], changelog=changelog)
    table.upsert(pa.Table.from_pylist([{"k": k, "a": "old", "b": 0, "c": 0.0} for k in range(100)], SCHEMA))
    other = lab.open().table("t")
    landing = [
        lambda: other.update([{"k": 1, "a": "other"}, {"k": 200, "a": "new"}]),
        lambda: other.delete([2]),
        lambda: other.update([{"k": 1, "c": 7.0}]),
    ]
    busy: list[bool] = []

    def land(name: str) -> None:
        if name == "commit:segments-written" and landing and not busy:
            busy.append(True)
            landing.pop(0)()
            busy.pop()

    looked_up: list[int] = []
    real = merged_updates.UpdateMerge.merge

    def counted(self: Any, epochs: Any, touched: pa.Array | None = None) -> Any:
        looked_up.append(-1 if touched is None else len(touched))
        return real(self, epochs, touched)

    monkeypatch.setattr(merged_updates.UpdateMerge, "merge", counted)
    monkeypatch.setattr(root_commit, "hit", land)
    table.update([{"k": k, "b": 5} for k in (*range(50), 200)])
    assert not landing
    assert looked_up == [-1, -1, 2, 1, -1, 1]  # of ours, of the other's first; then ours again, by touched keys only
    rows = contents(table)
    assert rows[1] == ("other", 5, 7.0)
    assert rows[2] == (None, 5, None)
    assert rows[200] == ("new", 5, None)
    assert rows[3] == ("old", 5, 0.0)
    assert rows[60] == ("old", 0, 0.0)
    assert replayed(table) == rows
    assert lab.store.verify().ok


def test_an_update_that_inserts_needs_the_columns_without_nulls(lab: Lab) -> None:
    schema = pa.schema([("k", pa.int64()), pa.field("a", pa.string(), nullable=False), ("b", pa.int64())])
    table = lab.store.create_table("t", schema, ["k"])
    table.upsert([{"k": 1, "a": "x", "b": 1}])
    with pytest.raises(el.SchemaMismatch, match="inserts the key 7 without a value"):
        table.update([{"k": 1, "b": 2}, {"k": 7, "b": 2}])
    with pytest.raises(el.SchemaMismatch, match="null"):
        table.update([{"k": 1, "a": None}])
    table.update([{"k": 1, "a": None, "b": 3}], ignore_nulls=True)
    assert table.to_arrow().to_pylist() == [{"k": 1, "a": "x", "b": 3}]
    lab.store.vacuum(grace=timedelta(0))
    assert not lab.store.vacuum(grace=timedelta(0)).kept


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"a": "x"}], "column 'k' is missing"),
        ([{"k": 1, "z": 1}], "unknown column 'z'"),
        ([{"k": None, "a": "x"}], "null"),
        ([{"k": 1, "b": "x"}], "does not fit"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(lab: Lab, rows: list[dict[str, Any]], says: str) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    with pytest.raises(el.SchemaMismatch, match=says):
        table.update(rows)
    assert not table.count()


@pytest.mark.rule("1.16")
def test_a_table_with_a_sequence_takes_no_updates_of_some_columns(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"], sequence_by="b")
    with pytest.raises(el.InvalidInput, match="sequence takes no updates"):
        table.update([{"k": 1, "b": 2}])
    with pytest.raises(el.InvalidInput, match="sequence takes no updates"):
        table.writer().update([{"k": 1, "b": 2, "a": "x"}])


def test_committed_records_are_those_of_whole_rows(lab: Lab) -> None:
    table = lab.store.create_table("t", SCHEMA, ["k"])
    table.update([{"k": 1, "b": 2}])
    from epochlog.store.metadata.commit_log import get_entries

    (entry,) = table._handle.catalog.read(lambda view: get_entries(view, table._table.id, 0, 1 << 53))
    assert "updates" not in entry.segments[0].to_record()
    assert [operation.as_py() for operation in table.history()["operation"]] == ["update"]


# ---- planted bugs --------------------------------------------------------------------------------------------------

STEPS = [
    (by_calls, [Op("upsert", 1, ("x", 1, 0.5)), Op("update", 1, (None, 7, None), ("b",))]),
    (by_labels, [Op("delete", 1, (None, None, None)), Op("update", 1, ("y", None, None), ("a",))]),
    (by_kind, [Op("ignore", 2, ("x", None, None)), Op("ignore", 2, (None, 4, None))]),
]


def stale_rows(patch: pytest.MonkeyPatch) -> None:
    """Updates are merged with no rows."""
    real = preparation.UpdateMerge
    patch.setattr(
        preparation,
        "UpdateMerge",
        lambda files, table_id, before, path: real(files, table_id, replace(before, runs=(), segments=()), path),
    )


def nulls_overwrite(patch: pytest.MonkeyPatch) -> None:
    """Nulls are not ignored within a batch."""
    from epochlog.store.sst import segment_writer

    patch.setattr(
        segment_writer,
        "merged_values",
        lambda sources: segment_writer.newest_wins(
            [segment_writer.sorted_unique(rows.keys, rows.data) for rows in sources]
        ),
    )


@pytest.mark.planted
@pytest.mark.parametrize("bug", [stale_rows, nulls_overwrite])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    in_order(STEPS)
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        in_order(STEPS)
