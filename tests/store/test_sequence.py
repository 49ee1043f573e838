"""Tables with a sequence: one table whatever the order of arrival, the cuts into batches and the door of the writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from cdc import SCHEMA, CdcEvent, contents, deletes, events, expected, replayed, rows_of, upserts
from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.commit import kept_merge, preparation, root_commit, verdict
from epochlog.store.commit import transaction as commit_transaction
from epochlog.store.metadata.kept_deletes import kept_deletes, kept_records
from epochlog.store.retention.retention import apply_retention
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst import segment_writer
from lab import Lab

KEPT = el.TableOptions(history_retention=timedelta(days=1))


def cdc_table(lab: Lab, **options: Any) -> el.Table:
    return lab.store.create_table("t", SCHEMA, ["k"], sequence_by="at", **options)


def kept_files(lab: Lab, table: el.Table) -> int:
    return len(table._handle.catalog.read(lambda view: kept_deletes(view, table._table.id)))


# ---- doors ---------------------------------------------------------------------------------------------------------


def by_calls(lab: Lab, table: el.Table, batch: Sequence[CdcEvent]) -> None:
    """Each event in a commit of its own."""
    for event in batch:
        table.delete(deletes([event])) if event.deleted else table.upsert(upserts([event]))


def by_transaction(lab: Lab, table: el.Table, batch: Sequence[CdcEvent]) -> None:
    with lab.store.transaction() as tx:
        for event in batch:
            if event.deleted:
                tx.delete("t", deletes([event]))
            else:
                tx.upsert("t", upserts([event]))


def by_labels(lab: Lab, table: el.Table, batch: Sequence[CdcEvent]) -> None:
    """Each event in a segment of its own; each second one begins a log epoch."""
    writers = [table.writer(), table.writer()]
    label, sealed = lab.store.last_epoch + 1, []
    for place, event in enumerate(batch):
        writer = writers[place % 2]
        writer.delete(deletes([event])) if event.deleted else writer.upsert(upserts([event]))
        sealed += writer.seal(label)
        label += place % 2
    lab.store.commit({"t": sealed})


def by_changes(lab: Lab, table: el.Table, batch: Sequence[CdcEvent]) -> None:
    """All events as one table of a change feed."""
    writer = table.writer()
    take_rows(writer._writer, table._table.schema, rows_of(batch))
    lab.store.commit({"t": writer.seal(lab.store.last_epoch + 1)})


DOORS: list[Callable[[Lab, el.Table, Sequence[CdcEvent]], None]] = [by_calls, by_transaction, by_labels, by_changes]


def compact(lab: Lab) -> None:
    lab.store.compact("t", full=True)


def upkeep(lab: Lab) -> None:
    lab.tick(7200)
    lab.store.compact("t")
    lab.store.vacuum(grace=timedelta(0))


STEPS = st.one_of(
    st.tuples(st.sampled_from(DOORS), st.lists(events(), min_size=1, max_size=6)),
    st.tuples(st.sampled_from([compact, upkeep]), st.none()),
)


@contextmanager
def new_lab() -> Iterator[Lab]:
    with TemporaryDirectory() as folder:
        lab = Lab(Path(folder) / "s")
        try:
            yield lab
        finally:
            lab.store.close()


def any_order(steps: Sequence[Any], changelog: str = "upsert") -> None:
    with new_lab() as lab:
        table = cdc_table(lab, changelog=changelog, options=KEPT)
        arrived: list[CdcEvent] = []
        for act, batch in steps:
            if batch is None:
                act(lab)
            else:
                act(lab, table, batch)
                arrived += batch
            assert contents(table) == expected(arrived)
        assert replayed(table) == contents(table)
        images = table.changes(0, pre_images=True).read_all().to_pylist()
        assert {row["_change_type"] for row in images} <= {"insert", "update_preimage", "update_postimage", "delete"}


@pytest.mark.medium
@pytest.mark.rule("1.10")
@pytest.mark.rule("1.12")
@given(st.lists(STEPS, max_size=8), st.sampled_from(["upsert", "full"]))
def test_any_order_and_any_cuts_give_one_table(steps: list[Any], changelog: str) -> None:
    any_order(steps, changelog)


# ---- the rules, one by one -----------------------------------------------------------------------------------------


@pytest.mark.rule("1.10")
def test_the_greatest_sequence_wins_in_the_writer_in_segments_in_labels_and_in_the_table(lab: Lab) -> None:
    table = cdc_table(lab)
    table.upsert(upserts([CdcEvent(1, 5), CdcEvent(1, 3)]))
    assert contents(table) == {1: ("1@5", 5)}
    by_labels(lab, table, [CdcEvent(2, 5), CdcEvent(2, 3), CdcEvent(2, 4), CdcEvent(1, 4)])
    assert contents(table) == {1: ("1@5", 5), 2: ("2@5", 5)}
    assert table.history(1)["rows_upserted"].to_pylist() == [1]
    table.upsert(upserts([CdcEvent(2, 4)]))
    assert contents(table)[2] == ("2@5", 5)
    assert lab.entries("t")[-1][1] == 0


@pytest.mark.rule("1.10")
def test_at_a_tie_a_delete_wins_then_the_later_row(lab: Lab) -> None:
    table = cdc_table(lab)
    table.upsert([{"k": 1, "v": "a", "at": 5}])
    table.upsert([{"k": 1, "v": "b", "at": 5}])
    assert contents(table) == {1: ("b", 5)}
    table.delete([(1, 5)])
    table.upsert([{"k": 1, "v": "c", "at": 5}])
    assert contents(table) == {}
    with lab.store.transaction() as tx:  # in one commit too, whatever comes first
        tx.delete("t", [(2, 1)])
        tx.upsert("t", [{"k": 2, "v": "c", "at": 1}])
    assert contents(table) == {}


def test_a_repeated_row_changes_nothing_and_wakes_nobody(lab: Lab) -> None:
    table = cdc_table(lab)
    first = table.upsert(upserts([CdcEvent(1, 5), CdcEvent(2, 5)]))
    table.upsert(upserts([CdcEvent(1, 5), CdcEvent(2, 5)]))
    assert table.changes(first).read_all().num_rows == 0
    table.upsert(upserts([CdcEvent(1, 5), CdcEvent(2, 6)]))
    assert table.history(1)["rows_upserted"].to_pylist() == [1]


@pytest.mark.rule("1.11")
@pytest.mark.parametrize("bad", [[1], [(1, None)], pa.table({"k": [1]})])
def test_a_delete_without_a_sequence_is_refused(lab: Lab, bad: object) -> None:
    table = cdc_table(lab)
    table.upsert(upserts([CdcEvent(1, 5)]))
    with pytest.raises((el.SchemaMismatch, el.InvalidInput), match="at"):
        table.delete(bad)
    rows = rows_of([CdcEvent(1, 6, deleted=True)]).drop_columns(["at"])
    with pytest.raises(el.SchemaMismatch, match="sequence column 'at'"):
        take_rows(table.writer()._writer, table._table.schema, rows)
    with pytest.raises(el.SchemaMismatch, match="null"):
        table.upsert([{"k": 1, "v": "x", "at": None}])
    assert contents(table) == {1: ("1@5", 5)}


@pytest.mark.rule("1.12")
def test_deletes_of_absent_keys_are_kept_and_are_no_change(lab: Lab) -> None:
    table = cdc_table(lab)
    epoch = table.delete([(1, 5)])
    assert lab.entries("t") == [(epoch, 0)]
    assert table.changes(0).read_all().num_rows == 0
    table.upsert(upserts([CdcEvent(1, 4)]))
    lab.store.compact("t", full=True)
    table.upsert(upserts([CdcEvent(1, 5)]))
    assert contents(table) == {}
    table.upsert(upserts([CdcEvent(1, 6)]))
    assert contents(table) == {1: ("1@6", 6)}


@pytest.mark.rule("1.12")
def test_a_delete_is_known_exactly_as_long_as_its_retention(lab: Lab) -> None:
    table = cdc_table(lab, options=el.TableOptions(tombstone_retention=timedelta(seconds=10)))
    deleted = table.delete(deletes([CdcEvent(1, 5, deleted=True)]))
    lab.store.compact("t", full=True)
    lab.tick(9)
    span = 10_000 << 12
    table.upsert(upserts([CdcEvent(1, 4)]), epoch=deleted + span - 1)
    assert contents(table) == {}
    table.upsert(upserts([CdcEvent(1, 4)]), epoch=deleted + span)
    assert contents(table) == {1: ("1@4", 4)}


def test_a_kept_delete_that_expires_before_the_transaction_is_judged_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cdc_table(lab, options=el.TableOptions(tombstone_retention=timedelta(seconds=10)))
    table.delete([(1, 5)])
    lab.tick(9.9)
    ticks = [2.0]

    def tick(_: str) -> None:
        if ticks:
            lab.tick(ticks.pop(0))

    monkeypatch.setattr(root_commit, "hit", tick)
    table.upsert(upserts([CdcEvent(1, 4)]))
    assert contents(table) == {1: ("1@4", 4)}


# ---- races ---------------------------------------------------------------------------------------------------------


def racing(lab: Lab, monkeypatch: pytest.MonkeyPatch, landing: list[Callable[[el.Table], object]]) -> None:
    """Land one commit of another handle before each try of the next commit of this one."""
    other = lab.open().table("t")
    busy: list[bool] = []

    def land(name: str) -> None:
        if name == "commit:segments-written" and landing and not busy:
            busy.append(True)
            landing.pop(0)(other)
            busy.pop()

    monkeypatch.setattr(root_commit, "hit", land)


@pytest.mark.rule("1.13")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_what_lands_meanwhile_is_compared_too(lab: Lab, monkeypatch: pytest.MonkeyPatch, changelog: str) -> None:
    table = cdc_table(lab, changelog=changelog)
    table.upsert(upserts([CdcEvent(k, 1) for k in range(6)]))
    landing: list[Callable[[el.Table], object]] = [
        lambda other: other.upsert(upserts([CdcEvent(0, 9), CdcEvent(7, 9)])),
        lambda other: other.delete(deletes([CdcEvent(1, 9, deleted=True), CdcEvent(8, 9, deleted=True)])),
        lambda other: other.upsert(upserts([CdcEvent(2, 4)])),
    ]
    racing(lab, monkeypatch, landing)
    batch = [CdcEvent(k, 5) for k in range(10)]
    table.upsert(upserts(batch))
    assert not landing
    monkeypatch.undo()
    arrived = [
        CdcEvent(0, 9),
        CdcEvent(7, 9),
        CdcEvent(1, 9, deleted=True),
        CdcEvent(8, 9, deleted=True),
        CdcEvent(2, 4),
        *batch,
    ]
    assert contents(table) == expected(arrived)
    assert replayed(table) == contents(table)
    assert table.history(1)["rows_upserted"].to_pylist() == [6]
    assert lab.store.verify().ok
    table.upsert(upserts([CdcEvent(8, 8), CdcEvent(1, 8)]))
    assert contents(table) == expected(arrived)


@pytest.mark.rule("1.13")
def test_only_keys_that_were_touched_are_decided_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = cdc_table(lab)
    table.upsert(upserts([CdcEvent(k, 1) for k in range(1000)]))
    looked_up: list[int] = []
    real = ScanPlan.rows_of

    def counted(plan: ScanPlan, files: Any, keys: pa.Array, columns: Any) -> Any:
        looked_up.append(len(keys))
        return real(plan, files, keys, columns)

    monkeypatch.setattr(ScanPlan, "rows_of", counted)
    racing(lab, monkeypatch, [lambda other: other.upsert(upserts([CdcEvent(7, 9)]))])
    table.upsert(upserts([CdcEvent(k, 5) for k in range(1000)]))
    assert looked_up == [1000, 1, 1]  # of the commit, of the one that lands meanwhile, of the touched key
    assert contents(table)[7] == ("7@9", 9)


@pytest.mark.medium
@given(st.lists(events(), min_size=1, max_size=6), st.lists(st.lists(events(), max_size=4), min_size=1, max_size=4))
def test_any_races_give_one_table(batch: list[CdcEvent], others: list[list[CdcEvent]]) -> None:
    with new_lab() as lab, pytest.MonkeyPatch.context() as patch:
        table = cdc_table(lab)
        racing(lab, patch, [lambda other, rows=rows: by_changes(lab, other, rows) for rows in others if rows])
        by_changes(lab, table, batch)
        arrived = [*batch, *(event for rows in others for event in rows)]
        table.upsert(upserts([]))
        while contents(table) != expected(arrived):  # some could not land: there were no more tries
            patch.undo()
            by_changes(lab, table, arrived)
            break
        assert contents(table) == expected(arrived)
        assert replayed(table) == contents(table)


# ---- restore, merges, vacuum ---------------------------------------------------------------------------------------


@pytest.mark.rule("1.14")
def test_a_restore_bypasses_the_sequence_and_restores_kept_deletes(lab: Lab) -> None:
    table = cdc_table(lab, options=KEPT)
    table.upsert(upserts([CdcEvent(1, 5), CdcEvent(2, 5)]))
    table.delete([(3, 5)])
    before = table.upsert(upserts([CdcEvent(4, 1)]))
    table.upsert(upserts([CdcEvent(1, 9), CdcEvent(3, 9)]))
    table.delete([(2, 9), (5, 9)])
    lab.store.compact("t", full=True)
    table.restore(before)
    assert contents(table) == {1: ("1@5", 5), 2: ("2@5", 5), 4: ("4@1", 1)}
    table.upsert(upserts([CdcEvent(1, 6), CdcEvent(2, 6), CdcEvent(3, 5), CdcEvent(5, 6)]))
    assert contents(table) == {1: ("1@6", 6), 2: ("2@6", 6), 4: ("4@1", 1), 5: ("5@6", 6)}
    assert lab.store.verify().ok


def test_kept_deletes_are_merged_and_old_files_vacuumed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_merge, "MOST_FILES", 4)
    table = cdc_table(lab, options=el.TableOptions(tombstone_retention=timedelta(hours=3)))
    for k in range(40):
        table.delete([(k, 5), (k // 2, 6)])
        assert kept_files(lab, table) <= 7
    lab.tick(2 * 3600)
    table.delete([(50, 5)])  # only this one is still known later
    lab.tick(2 * 3600)
    table.upsert(upserts([CdcEvent(k, 4) for k in range(60)]))
    assert set(contents(table)) == set(range(60)) - {50}
    apply_retention(table._handle, table._table)
    lab.store.vacuum(grace=timedelta(0))
    assert lab.store.verify().ok
    assert len(lab.store.vacuum(grace=timedelta(0)).kept) == 0


@pytest.mark.rule("1.14")
def test_kept_deletes_of_epochs_that_cannot_be_read_are_forgotten(lab: Lab) -> None:
    table = cdc_table(lab, options=el.TableOptions(history_retention=timedelta(hours=1)))
    table.upsert(upserts([CdcEvent(1, 1)]))
    for at in range(2, 6):
        table.delete([(1, at), (2, at)])
        table.upsert(upserts([CdcEvent(1, at + 1)]))
        lab.tick(600)

    def records() -> int:
        return len(table._handle.catalog.read(lambda view: list(kept_records(view, table._table.id))))

    assert records() == 4
    held = lab.store.snapshot(["t"], consistency="latest")
    lab.tick(7200)
    retained = [CdcEvent(1, 9), CdcEvent(3, 9, deleted=True)]
    by_calls(lab, table, retained)
    apply_retention(table._handle, table._table)
    assert records() == 2  # that of the snapshot, and the newest
    held.close()
    lab.tick(7200)
    apply_retention(table._handle, table._table)
    assert records() == 1
    lab.store.vacuum(grace=timedelta(0))
    table.upsert(upserts([CdcEvent(2, 5), CdcEvent(3, 9), CdcEvent(2, 4)]))
    assert contents(table) == {1: ("1@9", 9)}
    assert lab.store.verify().ok


@pytest.mark.damages_store
def test_damage_to_kept_deletes_is_reported(lab: Lab) -> None:
    table = cdc_table(lab)
    table.delete([(k, 5) for k in range(100)])
    ((_, (kept,)),) = table._handle.catalog.read(lambda view: list(kept_records(view, table._table.id)))
    handle = table._handle
    data = bytearray(handle.files.read(kept.segment.path).to_pybytes())
    data[len(data) // 2] ^= 1
    handle.files.delete(kept.segment.path)
    handle.files.write(kept.segment.path, pa.py_buffer(bytes(data)))
    report = lab.store.verify()
    assert [problem.where for problem in report.problems] == [kept.segment.path]
    with pytest.raises(el.Corrupt):
        table.upsert(upserts([CdcEvent(1, 4)]))


# ---- formats -------------------------------------------------------------------------------------------------------


def test_only_tables_with_a_sequence_have_the_new_format(lab: Lab) -> None:
    plain = lab.root_table()
    table = cdc_table(lab)
    import msgpack

    assert msgpack.unpackb(plain._table.schema.to_bytes())["format"] == 1
    assert msgpack.unpackb(table._table.schema.to_bytes())["format"] == 2
    assert "tombstone_ms" not in plain._table.options.to_record()


@pytest.mark.parametrize(
    ("column", "says"), [("k", "no part of it"), ("none", "must name one column"), (["at"], "must name one column")]
)
def test_a_sequence_is_one_column_outside_of_the_key(lab: Lab, column: Any, says: str) -> None:
    with pytest.raises(el.InvalidSchema, match=says):
        lab.store.create_table("t", SCHEMA, ["k"], sequence_by=column)
    with pytest.raises(el.InvalidSchema, match="has no order"):
        lab.store.create_table("t", SCHEMA.append(pa.field("l", pa.list_(pa.int64()))), ["k"], sequence_by="l")


def test_exist_ok_compares_the_sequence(lab: Lab) -> None:
    cdc_table(lab)
    cdc_table(lab, exist_ok=True)
    with pytest.raises(el.TableExists, match="sequence_by is 'at', not None"):
        lab.store.create_table("t", SCHEMA, ["k"], exist_ok=True)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "b", "ba"]),
        (pa.timestamp("us"), [1, 2, 3]),
        (pa.float64(), [-1.5, 0.0, float("nan")]),
        (pa.decimal128(10, 2), ["-1.00", "0.50", "2.00"]),
        (pa.uint64(), [1, 2**63, 2**64 - 1]),
    ],
)
def test_sequences_of_each_type_are_compared_as_keys_are(lab: Lab, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", kind)])
    table = lab.store.create_table("t", schema, ["k"], sequence_by="at")
    column = pa.array(values).cast(kind) if not pa.types.is_uint64(kind) else pa.array(values, kind)
    for at in (1, 0, 2, 1, 0):
        table.upsert(pa.table({"k": [1, 1], "at": column.take(pa.array([at, 0]))}, schema))
    assert table.to_arrow()["at"].combine_chunks().equals(column.slice(2, 1)) or pa.types.is_floating(kind)
    assert str(table.to_arrow()["at"][0].as_py()) == str(column[2].as_py())
    table.delete(pa.table({"k": [1], "at": column.take(pa.array([1]))}))
    assert table.count() == 1
    table.delete(pa.table({"k": [1], "at": column.take(pa.array([2]))}))
    assert table.count() == 0


# ---- planted bugs --------------------------------------------------------------------------------------------------


def arrival_wins(patch: pytest.MonkeyPatch) -> None:
    """A greater sequence earlier in a batch dies in the writer."""
    patch.setattr(segment_writer, "greatest_wins", lambda sources, _: segment_writer.newest_wins(
        [segment_writer.sorted_unique(rows.keys, rows.data, rows.deleted) for rows in sources]
    ))  # fmt: skip


def decided_against_nothing(patch: pytest.MonkeyPatch) -> None:
    """The current rows are not looked at."""
    real = preparation.Judge
    patch.setattr(preparation, "Judge", lambda *args: replace(real(*args), blind=True))


def nothing_kept(patch: pytest.MonkeyPatch) -> None:
    """Deletes are forgotten with their rows."""
    patch.setattr(verdict.Judge, "_keep", lambda self, piece, everything: [])


def labels_backwards(patch: pytest.MonkeyPatch) -> None:
    """Log epochs are judged in another order than theirs."""
    real = preparation.log_epochs
    patch.setattr(preparation, "log_epochs", lambda *args: real(*args)[::-1])


def stale_verdict(patch: pytest.MonkeyPatch) -> None:
    """A lost race is not decided again."""
    patch.setattr(preparation, "_touched_since", lambda *args: pa.array([], pa.int64()))


@pytest.mark.planted
@pytest.mark.parametrize("bug", [arrival_wins, decided_against_nothing, nothing_kept])
def test_planted_bugs_are_found_by_orders(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        (by_transaction, [CdcEvent(1, 5), CdcEvent(1, 3)]),
        (by_calls, [CdcEvent(1, 4), CdcEvent(2, 5, deleted=True), CdcEvent(2, 4)]),
        (compact, None),
        (by_changes, [CdcEvent(1, 6, deleted=True), CdcEvent(1, 5)]),
    ]
    any_order(steps)
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        any_order(steps)


@pytest.mark.planted
def test_labels_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(by_labels, [CdcEvent(1, 3), CdcEvent(2, 5), CdcEvent(1, 5), CdcEvent(2, 3)])]
    any_order(steps)
    labels_backwards(monkeypatch)
    with pytest.raises(AssertionError):
        any_order(steps)


@pytest.mark.planted
def test_a_race_that_is_not_decided_again_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stale_verdict(monkeypatch)
    with pytest.raises(AssertionError):
        test_what_lands_meanwhile_is_compared_too(lab, monkeypatch, "upsert")


@pytest.mark.planted
def test_a_restore_that_leaves_the_kept_deletes_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        commit_transaction, "kept_deletes", lambda view, table_id, epoch=None: kept_deletes(view, table_id)
    )
    with pytest.raises(AssertionError):
        test_a_restore_bypasses_the_sequence_and_restores_kept_deletes(lab)


@pytest.mark.planted
def test_a_verdict_that_forgets_the_time_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict.Verdict, "applies_at", lambda self, expired: True)
    with pytest.raises(AssertionError):
        test_a_kept_delete_that_expires_before_the_transaction_is_judged_again(lab, monkeypatch)
