"""The Spark sinks without Spark: what attempts leave behind, what ends them, and what is refused before any task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext

import epochlog as el
from epochlog.spark import frames
from epochlog.spark import overwrite as overwriting
from epochlog.store.commit import idempotency
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.write_intents import Intents
from logged_events import logged
from sink_simulation import CHANGES, DAY_MS, GRACE_MS, Later, SinkWrite, files_of, spark_intents, unreached

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def clock() -> Later:
    """The store's; the sinks, which open it for themselves, stay in the present."""
    return Later()


@pytest.fixture
def store(tmp_path: Path, clock: Later) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", clock=clock) as opened:
        opened.create_table("t", SCHEMA, ["k"])
        yield opened


def rows(*keys: int, v: int = 0) -> pa.Table:
    return pa.table({"k": list(keys), "v": [v] * len(keys)}, schema=SCHEMA)


def held(store: el.Store) -> dict[int, int]:
    rows = store.table("t").to_arrow()
    return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def plan(store: el.Store, mode: str = "append", stream: int | None = None, **options: object) -> SinkWrite:
    return SinkWrite(store, "t", SCHEMA, mode, stream, **options)


# ---- what a write leaves behind ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("stream", [None, 7])
def test_a_write_leaves_no_intent_behind(store: el.Store, mode: str, stream: int | None) -> None:
    """A stream's batch is committed by another sink than the one that planned it, and the intent is of the first."""
    for batch in range(3):
        write = plan(store, mode, None if stream is None else stream + batch, **({"txnAppId": "q"} if stream else {}))
        messages = write.run(rows(batch), rows(10 + batch))
        assert spark_intents(store) == 1
        write.commit(messages)
        assert spark_intents(store) == 0
    assert unreached(store) == 0


@pytest.mark.parametrize("stream", [None, 7])
def test_nothing_written_leaves_nothing_behind(store: el.Store, stream: int | None) -> None:
    write = plan(store, stream=stream)
    write.commit(write.run(rows(), rows()))
    assert spark_intents(store) == 0 and store.table("t").history().num_rows == 0


@pytest.mark.parametrize("stream", [None, 7])
def test_an_aborted_write_is_vacuumed_after_the_grace_and_cannot_be_committed(
    store: el.Store, clock: Later, stream: int | None
) -> None:
    committed = plan(store)
    committed.commit(committed.run(rows(1)))
    write = plan(store, stream=stream, **({"txnAppId": "q"} if stream else {}))
    messages = [*write.run(rows(2), rows(3)), None]
    write.abort(messages)
    assert spark_intents(store) == 0 and unreached(store) == 2
    write.attempt(rows(4).to_batches())  # an attempt that nobody could stop
    with pytest.raises(el.SegmentUnknown):
        write.commit(messages[:2])
    assert store.vacuum().deleted == ()
    clock.added_ms += GRACE_MS
    assert len(store.vacuum().deleted) == 3
    assert files_of(store) == 1 and held(store) == {1: 0}


def test_what_a_dead_driver_has_left_is_vacuumed_after_a_day(store: el.Store, clock: Later) -> None:
    write = plan(store)
    messages = write.run(rows(1), rows(2))
    clock.added_ms += DAY_MS - GRACE_MS
    assert store.vacuum().deleted == () and store.vacuum().revoked == ()
    clock.added_ms += 2 * GRACE_MS
    assert len(store.vacuum().deleted) == 2 and files_of(store) == 0
    with pytest.raises(el.SegmentUnknown):
        write.commit(messages)
    assert held(store) == {}


def test_attempts_that_lost_are_vacuumed_and_those_that_count_stay(store: el.Store, clock: Later) -> None:
    write = plan(store)
    lost = [write.attempt(rows(1, v=1).to_batches()), write.attempt(rows(2, v=1).to_batches())]
    write.commit(write.run(rows(1, v=2), rows(2, v=2)))
    write.attempt(rows(1, v=3).to_batches())  # a speculative copy that ends after the commit
    assert len(lost) == 2 and files_of(store) == 5 and held(store) == {1: 2, 2: 2}
    store.vacuum()
    clock.added_ms += GRACE_MS
    assert len(store.vacuum().deleted) == 3
    assert files_of(store) == 2 and held(store) == {1: 2, 2: 2}


@pytest.mark.logs("intent_left")
def test_an_abort_that_does_not_reach_the_catalog_is_logged(
    store: el.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would show its error in place of the one that the write failed with."""
    write = plan(store)
    messages = write.run(rows(1))

    def fails(*_: object) -> None:
        raise el.CatalogUnavailable("gone; try again")

    with monkeypatch.context() as patched:
        patched.setattr(Intents, "end", fails)
        write.abort(messages)
    assert "gone" in logged(caplog, "intent_left")[0]["error"] and spark_intents(store) == 1


# ---- exactly once --------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.7")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_replay_writes_no_file_and_changes_nothing(store: el.Store, mode: str) -> None:
    first = plan(store, mode, txnAppId="a", txnVersion=1)
    first.commit(first.run(rows(1), rows(2)))
    before, history = files_of(store), store.table("t").history()
    again = plan(store, mode, txnAppId="a", txnVersion=1)
    again.commit(again.run(rows(3), rows(4)))
    assert files_of(store) == before and spark_intents(store) == 0
    assert held(store) == {1: 0, 2: 0} and store.table("t").history().equals(history)


def test_a_replay_changes_nothing_even_when_its_outcome_is_forgotten_while_it_runs(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks have passed over their rows: to commit it would make the table empty."""
    monkeypatch.setattr(idempotency, "KEPT_OUTCOMES", 1)
    first, second = (plan(store, "overwrite", txnAppId="a", txnVersion=number) for number in (1, 2))
    first.commit(first.run(rows(1)))
    again = plan(store, "overwrite", txnAppId="a", txnVersion=1)
    messages = again.run(rows(5))
    second.commit(second.run(rows(2)))
    again.commit(messages)
    assert held(store) == {2: 0} and store.table("t").history().num_rows == 2


@pytest.mark.rule("1.7")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_of_two_drivers_with_one_transaction_one_lands(store: el.Store, clock: Later, mode: str) -> None:
    """Both were planned before either landed, so both have written."""
    store.table("t").upsert(rows(9))
    first_plan, second_plan = (plan(store, mode, txnAppId="a", txnVersion=1) for _ in range(2))
    first, second = first_plan.run(rows(1)), second_plan.run(rows(2))
    second_plan.commit(second)
    first_plan.commit(first)
    assert held(store) == ({2: 0} if mode == "overwrite" else {2: 0, 9: 0}) and spark_intents(store) == 0
    store.vacuum()
    clock.added_ms += GRACE_MS
    store.vacuum()
    assert unreached(store) == 0


def test_a_replay_into_a_table_that_has_been_finished_since_is_no_error(store: el.Store) -> None:
    for _ in range(2):
        write = plan(store, txnAppId="a", txnVersion=1)
        write.commit(write.run(rows(1)))
        if store.table("t").info.state != "finished":
            store.table("t").finish()
    with pytest.raises(el.TableFinished):
        plan(store, txnAppId="a", txnVersion=2)


def test_a_transaction_that_can_land_no_more_is_refused_before_any_task(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "KEPT_OUTCOMES", 2)
    store.create_table("other", SCHEMA, ["k"])
    for number in range(4):
        write = plan(store, txnAppId="a", txnVersion=number)
        write.commit(write.run(rows(number)))
    with pytest.raises(el.TxnOutcomeForgotten):
        plan(store, txnAppId="a", txnVersion=1)
    with pytest.raises(el.TxnMismatch):
        SinkWrite(store, "other", SCHEMA, txnAppId="a", txnVersion=3)
    assert store.resolve(("a", 9)) is None
    with pytest.raises(el.TxnAborted):
        plan(store, txnAppId="a", txnVersion=9)
    assert spark_intents(store) == 0 and files_of(store) == 4


@pytest.mark.rule("1.7")
def test_a_transaction_that_is_aborted_while_its_tasks_run_does_not_land(store: el.Store) -> None:
    write = plan(store, txnAppId="a", txnVersion=1)
    messages = write.run(rows(1))
    assert store.resolve(("a", 1)) is None
    with pytest.raises(el.TxnAborted):
        write.commit(messages)
    write.abort(messages)
    assert held(store) == {} and spark_intents(store) == 0


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replaceWhere": "k = 1"}, "replaces all rows of the table"),
        ({"partitionOverwriteMode": "Dynamic"}, "replaces all rows of the table"),
        ({"versionAsOf": 3}, "versionAsOf is for reading"),
        ({"txnAppId": "a"}, "go together"),
        ({"txnVersion": 1}, "go together"),
        ({"txnAppId": "x" * 201, "txnVersion": 1}, "1 to 200 bytes"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "whole number"),
        ({"txnAppId": "a", "txnVersion": 1 << 63}, "txn must be a pair"),
    ],
)
def test_options_that_would_not_do_what_they_say_are_refused(
    store: el.Store, options: dict[str, object], message: str
) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        plan(store, "overwrite", **options)
    assert spark_intents(store) == 0


# ---- overwrite -----------------------------------------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, acts: Iterator[Callable[[], object]]) -> list[int]:
    """Before each attempt of an overwrite to land, the next act; returns the rows that each attempt's search for keys
    to delete has looked at.
    """
    real_commit, real_held, looked = overwriting.commit_changes, overwriting._plan_existing, []

    def commit(*args: object, **options: object) -> object:
        next(acts, lambda: None)()
        return real_commit(*args, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def held(*args: object) -> object:
        log = real_held(*args)  # pyright: ignore[reportArgumentType]
        looked.append(log.rows_at_most)
        return log

    monkeypatch.setattr(overwriting, "commit_changes", commit)
    monkeypatch.setattr(overwriting, "_plan_existing", held)
    return looked


@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_an_overwrite_looks_only_at_what_came_since_its_last_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changelog: str
) -> None:
    with el.open(tmp_path / "other") as store:
        table = store.create_table("t", SCHEMA, ["k"], changelog=changelog)
        table.upsert(rows(*range(1000)))
        store.compact("t", full=True)
        acts = [
            lambda: table.upsert(rows(5, 2000, 2001)),
            lambda: table.delete(pa.table({"k": [2000]})),
            lambda: (table.upsert(rows(3000)), store.compact("t", full=True)),
        ]
        looked = meanwhile(monkeypatch, iter(acts))
        write = plan(store, "overwrite")
        write.commit(write.run(rows(5, 6, v=1), rows(2001, v=2)))
        assert looked == [1000, 3, 1, 1]
        assert held(store) == {5: 1, 6: 1, 2001: 2}
        entry = store.table("t").history().to_pylist()[0]
        assert (entry["operation"], entry["rows_upserted"], entry["rows_deleted"]) == ("overwrite", 3, 998 + 1 + 0 + 1)


def test_an_overwrite_whose_log_was_truncated_meanwhile_looks_at_the_whole_table(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("t")
    table.upsert(rows(1, 2, 3))

    def act() -> None:
        table.upsert(rows(4))
        table.truncate_log(table.upsert(rows(5)))

    looked = meanwhile(monkeypatch, iter([act]))
    write = plan(store, "overwrite")
    write.commit(write.run(rows(3, v=1)))
    assert looked == [3, 5] and held(store) == {3: 1}


def test_an_overwrite_whose_files_are_vacuumed_under_it_begins_again(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("t")
    table.upsert(rows(1))
    table.upsert(rows(2))
    table.truncate_log(store.last_epoch)
    real, pending = overwriting._plan_existing, iter([True])

    def held_once(*args: object) -> object:
        log = real(*args)  # pyright: ignore[reportArgumentType]
        if next(pending, False):
            assert log.segments
            store.compact("t", full=True)
            assert store.vacuum(grace=0).deleted
        return log

    monkeypatch.setattr(overwriting, "_plan_existing", held_once)
    write = plan(store, "overwrite")
    write.commit(write.run(rows(2, v=1)))
    assert held(store) == {2: 1}


def test_an_overwrite_whose_own_files_are_vacuumed_ends(store: el.Store, clock: Later) -> None:
    """It went on for ever: a file that had gone passed for one of the table's, which a new plan would find."""
    store.table("t").upsert(rows(1, 2))
    write = plan(store, "overwrite")
    messages = write.run(rows(2))
    clock.added_ms += DAY_MS + GRACE_MS
    assert len(store.vacuum().deleted) == 1
    with pytest.raises(el.SegmentUnknown):
        write.commit(messages)
    assert held(store) == {1: 0, 2: 0}


def test_a_refused_overwrite_takes_its_deletes_along(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.table("t")
    table.upsert(rows(1, 2))
    write = plan(store, "overwrite")
    messages = write.run(rows(3))
    meanwhile(monkeypatch, iter([table.finish]))
    before = files_of(store)
    with pytest.raises(el.TableFinished):
        write.commit(messages)
    assert files_of(store) == before and held(store) == {1: 0, 2: 0}


def test_an_overwrite_by_changes_keeps_what_they_make(store: el.Store) -> None:
    store.table("t").upsert(rows(1, 2, 3))
    changes = rows(1, 2, 2, 4, v=5).append_column(CHANGES, pa.array(["delete", "insert", "delete", "insert"]))
    write = SinkWrite(store, "t", changes.schema, "overwrite")
    write.commit(write.run(changes))
    assert held(store) == {4: 5}


@pytest.mark.medium
def test_few_keys_are_in_memory_when_few_rows_are_replaced_by_many(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key ranges are those of the old rows; the new ones of a range are taken a part at a time."""
    store.table("t").upsert(rows(0, 10_000))
    monkeypatch.setattr(overwriting, "BATCH_ROWS", 100)
    real, sizes = overwriting._keys_of, []

    def measured(*args: object) -> Iterator[pa.Array]:
        for keys in real(*args):  # pyright: ignore[reportArgumentType]
            sizes.append(len(keys))
            yield keys

    monkeypatch.setattr(overwriting, "_keys_of", measured)
    write = plan(store, "overwrite")
    write.commit(write.run(*(rows(*range(first, 9_000, 90), v=1) for first in range(90))))
    assert sum(sizes) == 9_000 and max(sizes) <= 200
    assert list(held(store)) == list(range(9_000))


# ---- what tasks hand to the driver -----------------------------------------------------------------------------------


def test_many_small_tasks_do_not_fill_the_driver(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tasks with just less than a small one's bytes failed the whole job: Spark allows 1 GiB of results."""
    assert frames.small_bytes(63) == frames.SMALL_BYTES
    assert sum(map(frames.small_bytes, range(100_000))) < 512 << 20
    table = store._handle.catalog.read(lambda view: find_table(view, "t"))
    target = store._handle.write_target(table)
    for place, handed in ((0, True), (60_000, False)):
        monkeypatch.setattr(TaskContext, "get", lambda place=place: SimpleNamespace(partitionId=lambda: place))
        (result,) = frames._write_task(target, False, frames.WHOLE_ROWS, None, rows(*range(1000)).to_batches())
        assert result.column("rows").is_valid().to_pylist() == [handed]
