"""Old rows stored at commit (changelog="full"): by every way of committing, in races, without a trace when lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.spark.overwrite import commit_overwrite
from epochlog.store.changelog import change_reader, pre_images
from epochlog.store.changelog.log_plan import plan_changes
from epochlog.store.commit import preparation, root_commit
from epochlog.store.commit.change import TableChange
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.lookups import find_table
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.segment_writer import SegmentWriter
from log_model import NOW_MS, SCHEMA, tiny
from seeds import seeds

Row = tuple[str, int, Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS) as opened:
        yield opened


@pytest.fixture
def table(store: el.Store) -> el.Table:
    return store.create_table("t", SCHEMA, ["k"], changelog="full")


def rows(**values: float) -> pa.Table:
    """rows(k1=2.0): key 1 with the value 2.0."""
    keys = [int(name[1:]) for name in values]
    return pa.table([keys, list(values.values()), [f"w{value}" for value in values.values()]], schema=SCHEMA)


def keys(*wanted: int) -> pa.Table:
    return pa.table({"k": pa.array(wanted, pa.int64())})


def changes_after(table: el.Table, after: int, until: int | None = None, mode: str = "epochs") -> list[Row]:
    changes = table.changes(after, until, mode=mode, pre_images=True).read_all()
    return list(zip(*(changes[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))


def update(key: int, old: float, new: float) -> list[Row]:
    return [("update_preimage", key, old), ("update_postimage", key, new)]


def entries(store: el.Store, name: str = "t") -> list[Any]:
    return store._handle.catalog.read(lambda view: get_entries(view, find_table(view, name).id, 0, 1 << 60))


def assert_no_strays(store: el.Store) -> None:
    report = store.verify()
    assert report.ok and not report.unreachable


def assert_no_strays_after_vacuum(store: el.Store) -> None:
    store.vacuum(grace=timedelta(0))
    store.vacuum(grace=timedelta(0))
    assert_no_strays(store)


# ---- ways of committing ------------------------------------------------------------------------------------------


def test_upsert_delete_and_transactions(store: el.Store, table: el.Table) -> None:
    other = store.create_table("plain", SCHEMA, ["k"])
    start = table.upsert(rows(k1=1.0, k2=1.0, k3=1.0))
    table.upsert(rows(k2=2.0, k4=2.0))
    table.delete(keys(1, 9))
    with store.transaction() as tx:
        tx.upsert("t", rows(k2=3.0))
        tx.upsert("plain", rows(k1=1.0))
        tx.delete("t", keys(2, 4))
        tx.upsert("t", rows(k4=4.0, k5=4.0))
    assert changes_after(table, 0, start) == [("insert", key, 1.0) for key in (1, 2, 3)]
    assert changes_after(table, start) == [
        *update(2, 1.0, 2.0),
        ("insert", 4, 2.0),
        ("delete", 1, 1.0),
        ("delete", 2, 2.0),
        *update(4, 2.0, 4.0),
        ("insert", 5, 4.0),
    ]
    assert changes_after(table, start, mode="net") == [
        ("delete", 1, 1.0),
        ("delete", 2, 1.0),
        ("insert", 4, 4.0),
        ("insert", 5, 4.0),
    ]
    images_of = [[sum(file.rows for file in group.images) for group in entry.groups] for entry in entries(store)]
    assert images_of == [[0], [1], [1], [2]], "one old row for each key that was there"
    assert [group.images for entry in entries(store, "plain") for group in entry.groups] == [()]
    assert changes_after(other, 0) == [("insert", 1, 1.0)]
    assert_no_strays(store)


@pytest.mark.rule("1.6")
@pytest.mark.parametrize("relabelled", [False, True])
def test_labels_of_one_commit_see_each_other(store: el.Store, table: el.Table, relabelled: bool) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0))
    late, early = table.writer(), table.writer()
    label = store.last_epoch + 1
    late.delete(keys(1, 3))
    late.upsert(rows(k2=3.0))
    sealed = late.seal(label + 5)
    early.upsert(rows(k1=2.0, k3=2.0))
    sealed += early.seal(label + 2)
    at = store.commit({"t": sealed}, epoch=None if relabelled else label + 9)
    assert changes_after(table, start) == [
        *update(1, 1.0, 2.0),
        ("insert", 3, 2.0),
        ("delete", 1, 2.0),
        *update(2, 1.0, 3.0),
        ("delete", 3, 2.0),
    ]
    assert changes_after(table, start, mode="net") == [("delete", 1, 1.0), *update(2, 1.0, 3.0)]
    first, second = (group.label for group in entries(store)[-1].groups)
    assert (first, second) == ((at - 1, at) if relabelled else (label + 2, label + 5))
    assert changes_after(table, first, mode="net") == [("delete", 1, 2.0), *update(2, 1.0, 3.0), ("delete", 3, 2.0)]


def test_labels_of_several_tables_in_one_commit(store: el.Store, table: el.Table) -> None:
    """Each table's log epochs are its own, those of the commit those of all."""
    store.create_table("u", SCHEMA, ["k"], changelog="full")
    sealed: dict[str, list[el.Segment]] = {"t": [], "u": []}
    for name, steps in (("t", (1, 4)), ("u", (2, 3, 4))):
        writer = store.table(name).writer()
        for step in steps:
            writer.upsert(rows(k1=float(step)))
            sealed[name] += writer.seal(store.last_epoch + step)
    at = store.commit(sealed)
    assert [group.label for group in entries(store)[0].groups] == [at - 3, at]
    assert [group.label for group in entries(store, "u")[0].groups] == [at - 2, at - 1, at]
    assert changes_after(table, 0) == [("insert", 1, 1.0), *update(1, 1.0, 4.0)]
    assert changes_after(store.table("u"), 0) == [("insert", 1, 2.0), *update(1, 2.0, 3.0), *update(1, 3.0, 4.0)]


def overwrite(store: el.Store, name: str, data: pa.Table, txn: tuple[str, int] | None = None) -> int:
    handle = store._handle
    table = handle.catalog.read(lambda view: find_table(view, name))
    writer = SegmentWriter(handle.write_target(table))
    writer.upsert(data)
    return commit_overwrite(handle, TableChange(table, tuple(writer.finish())), txn=txn)


def test_overwrite(store: el.Store, table: el.Table) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0, k3=1.0))
    at = overwrite(store, "t", rows(k2=1.0, k3=2.0, k4=2.0), ("app", 1))
    assert overwrite(store, "t", rows(k9=9.0), ("app", 1)) == at
    assert changes_after(table, start) == [("delete", 1, 1.0), *update(3, 1.0, 2.0), ("insert", 4, 2.0)]


# ---- races -------------------------------------------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 1) -> list[Any]:
    """Once the old rows of a commit are written, and before it, `act` is done; returns the images that were written."""
    real, written = preparation.write_images, []

    def write(*args: Any) -> Any:
        segments = real(*args)
        written.append(segments)
        if len(written) <= times:
            with monkeypatch.context() as undone:
                undone.setattr(preparation, "write_images", real)
                act()
        return segments

    monkeypatch.setattr(preparation, "write_images", write)
    return written


@pytest.mark.rule("4.8")
def test_a_commit_that_lands_in_between_is_seen(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0, k3=1.0))
    written = meanwhile(monkeypatch, lambda: (table.upsert(rows(k1=5.0)), table.delete(keys(3))))
    table.upsert(rows(k1=9.0, k2=9.0, k3=9.0))
    assert len(written) == 1, "only what was touched meanwhile is looked up again"
    assert changes_after(table, start, mode="net") == [*update(1, 1.0, 9.0), *update(2, 1.0, 9.0), *update(3, 1.0, 9.0)]
    newest = table.history(limit=2)["epoch"].to_pylist()
    assert changes_after(table, newest[1]) == [*update(1, 5.0, 9.0), *update(2, 1.0, 9.0), ("insert", 3, 9.0)]
    assert_no_strays(store)


def raced(monkeypatch: pytest.MonkeyPatch, acts: Sequence[Callable[[], object]]) -> list[int]:
    """Each act is done before one try of the next commit; returns how many old rows are looked up for each try."""
    looked_up, waiting, busy = list[int](), [*acts], list[bool]()
    rows_of = ScanPlan.rows_of

    def looking(plan: ScanPlan, files: Any, sought: pa.Array, columns: Any) -> Any:
        if not busy:
            looked_up.append(len(sought))
        return rows_of(plan, files, sought, columns)

    def landing(name: str) -> None:
        if name == "commit:segments-written" and waiting and not busy:
            busy.append(True)
            waiting.pop(0)()
            busy.pop()

    monkeypatch.setattr(ScanPlan, "rows_of", looking)
    monkeypatch.setattr(root_commit, "hit", landing)
    return looked_up


@pytest.mark.rule("4.8")
def test_a_large_commit_does_not_starve_behind_small_ones(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large commit keeps its lookups: each small commit that lands first repeats only the keys that both touch."""
    start = table.upsert(rows(**{f"k{key}": 1.0 for key in range(100)}))
    acts: list[Callable[[], object]] = [
        lambda: table.upsert(rows(k7=7.0)),
        lambda: table.upsert(rows(k500=1.0)),  # nothing in common
        lambda: table.delete(keys(8, 700)),
        lambda: (table.upsert(rows(k9=9.0)), table.delete(keys(9)), table.upsert(rows(k100=1.0))),
        lambda: (table.upsert(rows(k7=8.0)), store.compact("t", full=True)),
    ]
    looked_up = raced(monkeypatch, acts)
    table.upsert(rows(**{f"k{key}": 2.0 for key in range(101)}))
    assert looked_up == [101, 1, 1, 2, 1]
    last = table.history(limit=2)["epoch"].to_pylist()[1]
    expected = {key: update(key, {7: 8.0}.get(key, 1.0), 2.0) for key in range(101)}
    expected |= {8: [("insert", 8, 2.0)], 9: [("insert", 9, 2.0)]}
    assert changes_after(table, last) == [row for key in range(101) for row in expected[key]]
    assert changes_after(table, start, mode="net")[:2] == update(0, 1.0, 2.0)
    assert_no_strays_after_vacuum(store)


def test_labels_raced_by_others_see_each_other(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of concurrent commits are the pre-image of the first label that touches them, and of no other."""
    table.upsert(rows(k1=1.0, k2=1.0, k3=1.0))
    writer, label, sealed = table.writer(), store.last_epoch, list[el.Segment]()
    for step, change in enumerate((rows(k1=2.0), rows(k1=3.0, k2=3.0), rows(k2=4.0, k3=4.0)), start=1):
        writer.upsert(change)
        sealed += writer.seal(label + step)
    raced(monkeypatch, [lambda: table.upsert(rows(k1=8.0)), lambda: table.delete(keys(2, 3))])
    store.commit({"t": sealed})
    last = table.history(limit=2)["epoch"].to_pylist()[1]
    assert changes_after(table, last) == [
        *update(1, 8.0, 2.0),
        *update(1, 2.0, 3.0),
        ("insert", 2, 3.0),
        *update(2, 3.0, 4.0),
        ("insert", 3, 4.0),
    ]
    assert changes_after(table, last, mode="net") == [*update(1, 8.0, 3.0), ("insert", 2, 4.0), ("insert", 3, 4.0)]
    assert_no_strays(store)


def test_where_the_log_lacks_what_came_since_all_is_looked_up(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(rows(k1=1.0, k2=1.0))

    def truncated() -> None:
        table.upsert(rows(k1=5.0))
        store.compact("t", full=True)
        table.truncate_log(table.info.max_committed_epoch)

    looked_up = raced(monkeypatch, [truncated, lambda: table.alter(changelog="upsert")])
    at = table.upsert(rows(k1=2.0, k2=2.0))
    assert looked_up == [2, 2], "and the old rows that it has are stored, though they are not asked for any more"
    assert changes_after(table, at - 1) == [*update(1, 5.0, 2.0), *update(2, 1.0, 2.0)]
    assert_no_strays_after_vacuum(store)


@pytest.mark.parametrize("failing", [el.TableDropped, KeyboardInterrupt])
def test_a_race_that_ends_in_an_error_leaves_no_file(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch, failing: type[BaseException]
) -> None:
    table.upsert(rows(k1=1.0, k2=1.0))

    def end() -> None:
        table.upsert(rows(k1=5.0))
        if failing is KeyboardInterrupt:
            monkeypatch.setattr(preparation, "patched_images", interrupt)
        else:
            store.drop_table("t")

    raced(monkeypatch, [lambda: table.upsert(rows(k2=5.0)), end])
    with pytest.raises(failing):
        table.upsert(rows(k1=2.0, k2=2.0))
    if failing is el.TableDropped:
        assert_no_strays_after_vacuum(store)
    else:
        assert len(store.verify().unreachable) == 1, "its segment, which is left to vacuum"


@pytest.mark.rule("4.8")
@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_random_races(store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Labels over many blocks and pieces, raced at random: the log tells of each what it replaced."""
    tiny(monkeypatch)
    rng = random.Random(seed)

    def some() -> dict[int, float | None]:
        values = {key: float(rng.randrange(3)) for key in rng.sample(range(24), rng.randint(1, 12))}
        return {key: None if rng.random() < 0.3 else value for key, value in values.items()}

    def write(writer: Any, change: dict[int, float | None]) -> None:
        writer.upsert(rows(**{f"k{key}": value for key, value in change.items() if value is not None}))
        writer.delete(keys(*(key for key, value in change.items() if value is None)))

    state: dict[int, float] = {}

    def applied(change: dict[int, float | None]) -> list[Row]:
        values: list[Row] = []
        for key, new in sorted(change.items()):
            old = state.pop(key, None)
            if new is not None:
                state[key] = new
                values += [("insert", key, new)] if old is None else [] if old == new else update(key, old, new)
            elif old is not None:
                values.append(("delete", key, old))
        return values

    for _ in range(6):
        small, large = [some() for _ in range(rng.randint(0, 3))], [some() for _ in range(rng.randint(1, 3))]
        writer, label, sealed = table.writer(), store.last_epoch, list[el.Segment]()
        for step, change in enumerate(large, start=1):
            write(writer, change)
            sealed += writer.seal(label + step)

        def act(change: dict[int, float | None]) -> None:
            with store.transaction() as tx:
                write(_Only(tx), change)

        with monkeypatch.context() as racing:
            raced(racing, [partial(act, change) for change in small])
            at = store.commit({"t": sealed})
        for change in small:
            applied(change)
        expected = [row for change in large for row in applied(change)]
        assert changes_after(table, table.history(limit=2)["epoch"].to_pylist()[-1] if small else label, at) == expected
        if rng.random() < 0.3:
            store.compact("t", full=True)


class _Only:
    """The table "t" of a transaction."""

    def __init__(self, tx: Any) -> None:
        self.upsert, self.delete = partial(tx.upsert, "t"), partial(tx.delete, "t")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_compaction_in_between_changes_nothing(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = table.upsert(rows(k1=1.0))
    written = meanwhile(monkeypatch, lambda: store.compact("t", full=True))
    table.upsert(rows(k1=2.0))
    assert len(written) == 1 and changes_after(table, start) == update(1, 1.0, 2.0)


def test_an_overwrite_is_made_again_whole(store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0))
    meanwhile(monkeypatch, lambda: table.upsert(rows(k7=7.0)))
    overwrite(store, "t", rows(k2=2.0))
    assert table.to_arrow()["k"].to_pylist() == [2]
    assert changes_after(table, start)[1:] == [("delete", 1, 1.0), *update(2, 1.0, 2.0), ("delete", 7, 7.0)]
    assert_no_strays(store)


def test_tables_of_one_transaction_are_made_again_together(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store.create_table("u", SCHEMA, ["k"], changelog="full")
    table.upsert(rows(k1=1.0))
    start = other.upsert(rows(k1=1.0))
    meanwhile(monkeypatch, lambda: other.upsert(rows(k1=2.0)))
    with store.transaction() as tx:
        tx.upsert("t", rows(k1=3.0))
        tx.upsert("u", rows(k1=3.0))
    assert changes_after(other, start) == [*update(1, 1.0, 2.0), *update(1, 2.0, 3.0)]
    assert changes_after(table, start) == update(1, 1.0, 3.0)
    assert_no_strays(store)


@pytest.mark.parametrize("end", ["dropped", "finished", "landed", "write fails"])
def test_a_commit_that_is_refused_leaves_no_old_rows(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    table.upsert(rows(k1=1.0, k2=1.0))
    writer = table.writer()
    writer.upsert(rows(k1=2.0, k2=2.0))
    sealed = writer.seal(store.last_epoch + 1)
    own = {segment.path for segment in sealed}
    acts = {
        "dropped": lambda: store.drop_table("t"),
        "finished": table.finish,
        "landed": lambda: table.upsert(rows(k3=3.0), txn=("app", 1)),
        "write fails": lambda: None,
    }
    meanwhile(monkeypatch, acts[end])
    if end == "write fails":
        real, written = pre_images.write_segment, []

        def fails_at_the_second(*args: Any, **options: Any) -> Any:
            if written:
                raise el.WriteFailed("the disk is full")
            written.append(real(*args, **options))
            return written[-1]

        monkeypatch.setattr(pre_images, "write_segment", fails_at_the_second)
        monkeypatch.setattr(pre_images, "key_splits", lambda *_: [(None, 2), (2, None)])
    if end == "landed":
        assert store.commit({"t": sealed}, txn=("app", 1)) == table.info.max_committed_epoch
    else:
        with pytest.raises((el.TableDropped, el.TableFinished, el.WriteFailed)):
            store.commit({"t": sealed}, txn=("app", 1))
    strays = set(store.verify().unreachable)
    assert strays <= own or (end == "dropped" and len(strays) == 2), "the sealed segments alone"


@pytest.mark.rule("4.8")
@pytest.mark.medium
def test_writers_that_race_store_the_rows_that_they_replace(store: el.Store, table: el.Table) -> None:
    table.upsert(rows(k1=0.0))
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for number in range(12):
                wanted = {f"k{key}": seed * 100.0 + number for key in dice.sample(range(6), 3)}
                table.delete(keys(dice.randrange(6))) if dice.random() < 0.3 else table.upsert(rows(**wanted))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    state: dict[int, float] = {}
    for kind, key, value in changes_after(table, 0):
        if kind in ("insert", "update_postimage"):
            assert (kind == "insert") == (key not in state)
            state[key] = value
        else:
            assert state.pop(key) == value, "what is replaced is what was there"
            if kind == "update_preimage":
                state[key] = value
    contents = table.to_arrow()
    assert dict(zip(contents["k"].to_pylist(), contents["v"].to_pylist(), strict=True)) == state
    assert_no_strays(store)


# ---- what they are good for --------------------------------------------------------------------------------------


@pytest.mark.rule("4.6")
def test_old_rows_outlive_the_states_that_they_were_in(tmp_path: Path) -> None:
    now = [NOW_MS]

    def opened() -> el.Store:
        return el.open(tmp_path / "s", durability="os", clock=lambda: now[0])

    options = el.TableOptions(history_retention=timedelta(0))
    with opened() as store:
        table = store.create_table("t", SCHEMA, ["k"], changelog="full", options=options)
        epochs = []
        for value in (1.0, 2.0, 3.0, 4.0):
            now[0] += 1000
            epochs.append(table.upsert(rows(k1=value)))
        store.compact("t", full=True)
        assert table.info.safe_epoch == epochs[-1]
        with pytest.raises(el.EpochExpired):
            table.to_arrow(epoch=epochs[0])
        assert changes_after(table, epochs[0]) == [*update(1, 1.0, 2.0), *update(1, 2.0, 3.0), *update(1, 3.0, 4.0)]
        table.truncate_log(epochs[1])
    with opened() as store:
        table = store.table("t")
        for mode in ("epochs", "net"):
            assert changes_after(table, epochs[1], epochs[2], mode) == update(1, 2.0, 3.0)
        with pytest.raises(el.LogTruncated):
            table.changes(epochs[0], pre_images=True)
        plain = store.create_table("plain", SCHEMA, ["k"], options=options)
        first = plain.upsert(rows(k1=1.0))
        now[0] += 1000
        plain.upsert(rows(k1=2.0))
        store.compact("plain", full=True)
        with pytest.raises(el.EpochExpired):
            plain.changes(first, pre_images=True)


@pytest.mark.rule("4.8")
@pytest.mark.damages_store
def test_plain_reads_never_touch_them_and_changes_look_nothing_up(store: el.Store, table: el.Table) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0))
    second = table.upsert(rows(k1=2.0))
    files = [file for entry in entries(store) for group in entry.groups for file in group.images]
    assert [file.rows for file in files] == [1]
    assert table.info.bytes == sum(f.bytes for entry in entries(store) for f in entry.files), "they count"
    plan = store._handle.catalog.read(lambda view: plan_changes(view, find_table(view, "t"), start))
    assert plan.stored and plan.before is None
    for file in files:
        store._handle.files.delete(file.path)
    assert table.to_arrow()["v"].to_pylist() == [2.0, 1.0] and table.count() == 2
    assert table.to_arrow(epoch=start)["v"].to_pylist() == [1.0, 1.0]
    assert table.get(keys(1))["v"].to_pylist() == [2.0]
    assert table.changes(0).read_all().num_rows == 3
    table.upsert(rows(k2=3.0))
    store.compact("t", full=True)
    assert table.to_arrow()["v"].to_pylist() == [2.0, 3.0]
    assert changes_after(table, second) == update(2, 1.0, 3.0)
    with pytest.raises(el.Corrupt, match="gone"):
        changes_after(table, start)
    assert [problem.where for problem in store.verify().problems] == [file.path for file in files]


def test_large_commits_are_looked_up_in_pieces(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = table.upsert(rows(**{f"k{key}": 1.0 for key in range(0, 60, 2)}))
    held: list[int] = []
    real = pre_images._old_rows

    def counted(*args: Any) -> Any:
        pieces = real(*args)
        held.extend(len(old) for _, old, _ in pieces)
        return pieces

    monkeypatch.setattr(pre_images, "_old_rows", counted)
    with monkeypatch.context() as small:
        tiny(small)
        small.setattr("epochlog.store.sst.segment_writer.FLUSH_ROWS", 1 << 20)
        small.setattr("epochlog.store.changelog.pre_images.SPLIT_ROWS", 10)
        table.upsert(rows(**{f"k{key}": 2.0 for key in range(60)}))
    assert len(held) >= 5 and max(held) <= 10
    group = entries(store)[-1].groups[0]
    assert [file.rows for file in group.images] == held and sum(held) == 30
    edges = [(file.key_min, file.key_max) for file in group.images]
    assert all(left[1] < right[0] for left, right in pairwise(edges)), "in key order"
    changed = changes_after(table, start)
    assert [kind for kind, _, _ in changed] == ["update_preimage", "update_postimage", "insert"] * 30


@pytest.mark.rule("4.5")
def test_a_long_range_is_given_in_pieces(store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(8):
        table.upsert(rows(**{f"k{key}": float(value) for key in range(40)}))
    whole = {(mode, form): read(table, mode, form) for mode in ("epochs", "net") for form in (False, True)}
    tiny(monkeypatch)
    monkeypatch.setattr("epochlog.store.scan.key_ranges._SAMPLED_KEYS", 40)
    monkeypatch.setattr("epochlog.store.changelog.change_reader.SPLIT_ROWS", 32)
    monkeypatch.setattr("epochlog.store.changelog.log_plan.BATCH_ROWS", 1 << 20)
    for (mode, form), wanted in whole.items():
        batches = list(table.changes(0, mode=mode, pre_images=form))
        assert max(batch.num_rows for batch in batches) <= 80 and len(batches) > 4
        assert pa.Table.from_batches(batches).equals(wanted)


def read(table: el.Table, mode: str, form: bool) -> pa.Table:
    return table.changes(0, mode=mode, pre_images=form).read_all()


def test_tables_of_jobs_store_none(store: el.Store, table: el.Table) -> None:
    job = store.create_job("j", ["t"], {"out": (SCHEMA, ["k"])})
    table.upsert(rows(k1=1.0))
    store.checkpoint()
    assert job.step_local(lambda ctx: ctx.upsert("out", ctx.table("t"))) is not None
    assert store._handle.catalog.read(lambda view: find_table(view, "out")).changelog == "upsert"
    assert [group.images for entry in entries(store, "out") for group in entry.groups] == [()]


def test_jobs_read_them(store: el.Store, table: el.Table) -> None:
    job = store.create_job("j", ["t"], {"out": (SCHEMA, ["k"])}, backfill="log")
    rows_read: list[Row] = []

    def refresh(ctx: Any) -> None:
        changes = ctx.changes("t", mode="net", pre_images=True)
        rows_read.extend(zip(*(changes[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))

    table.upsert(rows(k1=1.0))
    store.checkpoint()
    job.step_local(refresh)
    table.upsert(rows(k1=2.0))
    store.checkpoint()
    job.step_local(refresh)
    assert rows_read == [("insert", 1, 1.0), *update(1, 1.0, 2.0)]


def test_what_is_no_changelog_is_refused(store: el.Store) -> None:
    for wrong in ("images", "", 1):
        with pytest.raises(el.InvalidInput, match="changelog"):
            store.create_table("x", SCHEMA, ["k"], changelog=wrong)  # pyright: ignore[reportArgumentType]
    assert store.tables() == []


# which changes replace a row


def unlooked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which each search of changes among old rows adds the number of the changes."""
    searched, real = list[int](), change_reader.positions_in
    monkeypatch.setattr(
        change_reader, "positions_in", lambda old, touches: (searched.append(len(touches)), real(old, touches))[1]
    )
    return searched


@pytest.mark.rule("4.6")
def test_old_rows_are_put_beside_their_changes_without_a_search(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = unlooked(monkeypatch)
    start = table.upsert(rows(k1=1.0, k3=1.0, k5=1.0))
    middle = table.upsert(rows(k1=2.0, k2=2.0, k5=2.0))
    with store.transaction() as tx:
        tx.delete("t", keys(1, 2, 7))
        tx.upsert("t", rows(k3=3.0, k4=3.0))
    everything = [
        *update(1, 1.0, 2.0), ("insert", 2, 2.0), *update(5, 1.0, 2.0),
        ("delete", 1, 2.0), ("delete", 2, 2.0), *update(3, 1.0, 3.0), ("insert", 4, 3.0),
    ]  # fmt: skip
    assert changes_after(table, start) == everything and changes_after(table, middle) == everything[5:]
    assert not searched
    only = table.changes(start, pre_images=True, filter=pc.field("k") == 3).read_all()  # leaves out files of other keys
    assert only["v"].to_pylist() == [1.0, 3.0]


@pytest.mark.rule("4.8")
def test_old_rows_that_were_looked_up_again_are_searched(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = table.upsert(rows(k1=1.0, k2=1.0, k3=1.0))
    meanwhile(monkeypatch, lambda: (table.upsert(rows(k1=5.0)), table.delete(keys(3))))
    last = table.upsert(rows(k1=9.0, k2=9.0, k3=9.0))
    searched = unlooked(monkeypatch)
    before = table.history(limit=2)["epoch"].to_pylist()[1]
    assert start < before < last
    assert changes_after(table, before) == [*update(1, 5.0, 9.0), *update(2, 1.0, 9.0), ("insert", 3, 9.0)]
    assert searched == [3]


@pytest.mark.planted
@pytest.mark.parametrize("bug", ["any bits are taken", "a file without bits replaces all"])
def test_bits_that_do_not_fit_their_changes_would_show(
    store: el.Store, table: el.Table, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    def replaces(reader: Any, unit: Any, touches: Any, images: Any) -> Any:
        bits = [some for some in images.replaced if some is not None]
        if bug == "any bits are taken":
            return np.resize(np.concatenate(bits), len(touches))
        return np.ones(len(touches), np.bool_)

    monkeypatch.setattr(change_reader.ChangeReader, "_replaces", replaces)
    with pytest.raises((AssertionError, IndexError)):
        test_old_rows_that_were_looked_up_again_are_searched(store, table, monkeypatch)


def test_a_commit_whose_own_segments_are_gone_ends(store: el.Store, table: el.Table) -> None:
    """No plan would have them: it looked for a newer one for ever."""
    table.upsert(rows(k1=1.0, k2=1.0))
    writer = table.writer()
    writer.upsert(rows(k1=2.0, k3=2.0))
    segments = writer.seal(store.last_epoch + 1)
    for segment in segments:
        store._handle.files.delete(segment.path)
    with pytest.raises(el.SegmentUnknown, match="is gone; write its rows again"):
        store.commit({"t": segments})
    assert table.count() == 2
