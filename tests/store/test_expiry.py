"""Expiry: rows of a root table are deleted by ordinary commits once their ttl has passed, and never by a filter."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.commit import expiry, root_commit
from epochlog.store.commit.expiry import cutoff, expire_rows
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS
from lab import Lab
from law_queries import KEY
from seeds import seeds

HOUR_MS = 3_600_000
LATER_MS = HOUR_MS + 1000  # a boundary has passed since
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("at", pa.timestamp("ms", "UTC")), ("v", pa.int64())])
HOURLY = el.TableOptions(history_retention=timedelta(days=2), ttl=timedelta(hours=1), ttl_column="at")
Rows = dict[int, tuple[int | None, int]]
"""Key: Unix ms of the row (None: no time), value."""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.store.create_table("t", SCHEMA, ["k"], options=HOURLY)
    return lab


def table_of(rows: Rows) -> pa.Table:
    values = [list(rows), [at for at, _ in rows.values()], [v for _, v in rows.values()]]
    return pa.Table.from_arrays(
        [pa.array(column, kind.type if kind.name != "at" else pa.int64()).cast(kind.type)
         for column, kind in zip(values, SCHEMA, strict=True)],
        schema=SCHEMA,
    )  # fmt: skip


def rows_of(table: pa.Table) -> Rows:
    columns = table["k"].to_pylist(), table["at"].cast(pa.int64()).to_pylist(), table["v"].to_pylist()
    return {k: (at, v) for k, at, v in zip(*columns, strict=True)}


def put(lab: Lab, rows: Rows, name: str = "t") -> int:
    return lab.store.table(name).upsert(table_of(rows))


def rows(lab: Lab, epoch: int | None = None, name: str = "t") -> Rows:
    return rows_of(lab.store.table(name).to_arrow(epoch=epoch))


@pytest.mark.rule("1.23")
def test_rows_are_deleted_when_their_ttl_has_passed_and_a_null_never(lab: Lab) -> None:
    now = lab.now_ms
    before = put(lab, {1: (now, 1), 2: (now + 1000, 2), 3: (None, 3), 4: (now + HOUR_MS, 4)})
    lab.now_ms += LATER_MS
    assert len(rows(lab)) == 4, "nothing expires by itself, and no read filters"
    lab.store.compact("t")
    assert rows(lab) == {2: (now + 1000, 2), 3: (None, 3), 4: (now + HOUR_MS, 4)}
    history = lab.store.table("t").history(1).to_pylist()[0]
    assert (history["operation"], history["rows_deleted"], history["rows_upserted"]) == ("expire", 1, 0)
    assert len(rows(lab, before)) == 4, "earlier epochs read as before"
    entries = lab.store.table("t").history().num_rows
    lab.store.compact("t")
    assert lab.store.table("t").history().num_rows == entries, "nothing to expire is no commit"
    lab.now_ms += 2 * HOUR_MS
    lab.store.compact()
    assert rows(lab) == {3: (None, 3)}


@pytest.mark.rule("1.23")
def test_the_time_is_that_of_the_newest_boundary(lab: Lab) -> None:
    minutes(lab)


def minutes(lab: Lab) -> None:
    """A store with a boundary a minute: a row stays until the first one after its time."""
    other = Lab(lab.root.parent / "minutes", checkpoint_interval_ms=60_000)
    other.store.create_table("t", SCHEMA, ["k"], options=HOURLY)
    other.now_ms = EPOCH_ORIGIN_MS + 600_000
    put(other, {1: (other.now_ms - HOUR_MS - 1, 1), 2: (other.now_ms - HOUR_MS, 2)})
    for now_ms, left in ((0, {2}), (59_999, {2}), (60_000, set())):
        other.now_ms = EPOCH_ORIGIN_MS + 600_000 + now_ms
        other.store.compact("t")
        assert rows(other).keys() == left, now_ms
    other.store.close()


@pytest.mark.rule("1.23")
@pytest.mark.parametrize("kind", ["s", "ms", "us", "ns"])
def test_each_type_of_time(kind: str) -> None:
    at = 1_767_225_600_000
    exact = cutoff(pa.timestamp(kind, "UTC"), at, timedelta(days=1))
    assert exact.as_py() == datetime.fromtimestamp(at / 1000, UTC) - timedelta(days=1)
    late = cutoff(pa.timestamp(kind), at + 999, timedelta(days=1)).as_py().replace(tzinfo=UTC)
    assert 0 <= (datetime.fromtimestamp((at + 999) / 1000, UTC) - timedelta(days=1) - late).total_seconds() < 1
    for whole in (pa.date32(), pa.date64()):
        assert cutoff(whole, at, timedelta(days=1)).as_py() == date(2025, 12, 31)
        assert cutoff(whole, at - 1, timedelta(days=1)).as_py() == date(2025, 12, 30)
    assert cutoff(pa.timestamp("ns"), at, timedelta(days=100_000)) is not None


@pytest.mark.rule("1.24")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"ttl": timedelta(1)}, "go together"),
        ({"ttl_column": "at"}, "go together"),
        ({"ttl": timedelta(0), "ttl_column": "at"}, "1 ms or more"),
        ({"ttl": 5, "ttl_column": "at"}, "timedelta"),
        ({"ttl": timedelta(1), "ttl_column": 5}, "name of a column"),
        ({"ttl": timedelta(1), "ttl_column": "nobody"}, "no column 'nobody'"),
        ({"ttl": timedelta(1), "ttl_column": "v"}, "a timestamp or a date"),
    ],
)
def test_what_is_no_ttl_is_refused(lab: Lab, options: dict[str, Any], message: str) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        lab.store.create_table("u", SCHEMA, ["k"], options=el.TableOptions(**options))
    with pytest.raises(el.InvalidInput, match=message):
        lab.store.table("t").alter(options=el.TableOptions(**options))
    assert lab.store.table("t").info.options == HOURLY


@pytest.mark.rule("1.24")
def test_an_output_has_no_ttl_for_it_would_break_the_law(lab: Lab) -> None:
    with pytest.raises(el.InvalidInput, match="a ttl is for root tables"):
        lab.store.create_job("j", ["t"], {"o": el.Output(SCHEMA, KEY, options=HOURLY)})
    lab.store.create_job("j", ["t"], {"o": (SCHEMA, KEY)})
    with pytest.raises(el.InvalidInput, match="a ttl is for root tables"):
        lab.store.table("o").alter(options=HOURLY)


@pytest.mark.rule("1.24")
def test_a_table_with_a_sequence_has_no_ttl(lab: Lab) -> None:
    with pytest.raises(el.InvalidInput, match="it has no ttl: delete old rows with their sequences"):
        lab.store.create_table("s", SCHEMA, KEY, sequence_by=HOURLY.ttl_column, options=HOURLY)


@pytest.mark.rule("1.24")
def test_a_finished_table_expires_nothing_and_format_1_stays_without_a_ttl(lab: Lab) -> None:
    put(lab, {1: (lab.now_ms, 1)})
    lab.store.table("t").finish()
    lab.now_ms += 2 * HOUR_MS
    lab.store.compact("t")
    assert len(rows(lab)) == 1
    handle = lab.store._handle
    assert handle.catalog.read(lambda view: find_table(view, "t")).format == 2
    lab.store.create_table("plain", SCHEMA, ["k"])
    assert handle.catalog.read(lambda view: find_table(view, "plain")).format == 1


def copy(ctx: Any) -> None:
    changes = ctx.changes("t", mode="net")
    ctx.upsert("o", changes.filter(pc.not_equal(changes["_change_type"], "delete")).select(SCHEMA.names))
    ctx.delete("o", changes.filter(pc.equal(changes["_change_type"], "delete")).select(KEY))


@pytest.mark.rule("1.23")
def test_views_follow_and_a_full_changelog_has_the_images(lab: Lab) -> None:
    lab.store.table("t").alter(changelog="full")
    job = lab.store.create_job("j", ["t"], {"o": (SCHEMA, KEY)})
    now = lab.now_ms
    put(lab, {key: (now + key * 1000, key) for key in range(5)})
    lab.tick()
    job.step_local(copy)
    mark = lab.store.last_epoch
    lab.now_ms = now + HOUR_MS + 3000
    lab.store.compact("t")
    lab.tick()
    job.step_local(copy)
    assert rows(lab, name="o") == rows(lab) == {key: (now + key * 1000, key) for key in (3, 4)}
    images = lab.store.table("t").changes(mark, pre_images=True).read_all()
    assert images["_change_type"].to_pylist() == ["delete"] * 3 and images["v"].to_pylist() == [0, 1, 2]
    with lab.store.snapshot(["t", "o"], consistency="aligned") as snapshot:
        assert rows_of(snapshot["t"].to_arrow()) == rows_of(snapshot["o"].to_arrow())


@pytest.mark.rule("1.24", "2.5")
def test_rows_of_an_output_stay_while_the_rows_of_its_upstream_do(lab: Lab) -> None:
    outputs(lab)


def outputs(lab: Lab) -> None:
    """The upstream has no ttl; the output gets one if it can, and is its query over its upstream all the same."""
    lab.store.table("t").alter(options=el.TableOptions())
    try:
        job = lab.store.create_job("j", ["t"], {"o": el.Output(SCHEMA, KEY, options=HOURLY)})
    except el.InvalidInput:
        job = lab.store.create_job("j", ["t"], {"o": (SCHEMA, KEY)})
    put(lab, {key: (lab.now_ms, key) for key in range(3)})
    lab.tick()
    job.step_local(copy)
    lab.now_ms += LATER_MS
    lab.store.compact()
    Maintenance(lab.store._handle).run_once()
    with lab.store.snapshot(["t", "o"], consistency="aligned") as snapshot:
        assert rows_of(snapshot["o"].to_arrow()) == rows_of(snapshot["t"].to_arrow())


@pytest.mark.rule("1.23")
@pytest.mark.logs("rows_expired", "vacuum")
def test_maintenance_expires_rows_after_a_hundredth_of_their_ttl(lab: Lab) -> None:
    worker, now = Maintenance(lab.store._handle), lab.now_ms
    put(lab, {1: (now, 1), 2: (now + 20_000, 2)})
    lab.now_ms += LATER_MS
    worker.run_once()
    assert rows(lab).keys() == {2} and not worker.errors
    lab.now_ms += 21_000
    worker.run_once()
    assert rows(lab).keys() == {2}
    lab.now_ms += 20_000
    worker.run_once()
    assert not rows(lab) and not worker.errors


@pytest.mark.rule("1.23")
def test_many_rows_expire_in_several_commits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "BATCH_ROWS", 4)
    put(lab, {key: (lab.now_ms, key) for key in range(10)})
    lab.now_ms += LATER_MS
    table = lab.store._handle.catalog.read(lambda view: find_table(view, "t"))
    assert expire_rows(lab.store._handle, table) == 10 and not rows(lab)
    history = lab.store.table("t").history().to_pylist()
    assert [row["rows_deleted"] for row in history] == [2, 4, 4, 0]


def race(lab: Lab, changelog: str = "upsert", compacted: bool = True) -> None:
    """Each try of the commit loses against a writer that renews some rows, deletes some and adds some."""
    now = lab.now_ms
    lab.store.table("t").alter(changelog=changelog)
    put(lab, {key: (now, key) for key in range(8)})
    if compacted:
        lab.store.compact("t", full=True)
    lab.now_ms += LATER_MS
    renewals: list[Callable[[], object]] = [
        lambda: put(lab, {1: (lab.now_ms, 10), 20: (None, 20)}),
        lambda: lab.store.table("t").delete(pa.table({"k": [2]})),
        lambda: put(lab, {3: (now - 5, 30), 21: (now, 21)}),
        lambda: put(lab, {2: (None, 22)}),
    ]
    real = expiry.commit_changes

    def overtaken(*args: Any, **options: Any) -> Any:
        if renewals:
            renewals.pop(0)()
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry, "commit_changes", overtaken)
        lab.store.compact("t")
    kept = {1: (lab.now_ms, 10), 20: (None, 20), 2: (None, 22)}
    left = rows(lab)
    assert {key: row for key, row in left.items() if key != 21} == kept
    assert left.get(21) in (None, (now, 21)), "added after the choice: it expires now or the next time"
    lab.store.compact("t")
    assert rows(lab) == kept


@pytest.mark.rule("1.23")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_row_that_was_renewed_while_it_was_to_expire_stays(lab: Lab, changelog: str, compacted: bool) -> None:
    race(lab, changelog, compacted)
    deleted = [
        row["rows_deleted"] for row in lab.store.table("t").history().to_pylist() if row["operation"] == "expire"
    ]
    assert sum(deleted) == 7, "0 and 3 to 7, and 21"
    lab.now_ms += LATER_MS
    lab.store.vacuum(grace=0)
    assert lab.store.verify().ok


@pytest.mark.rule("1.23")
@pytest.mark.parametrize("after", [None, replace(HOURLY, ttl=timedelta(hours=5)), replace(HOURLY, ttl_column="until")])
def test_a_ttl_that_was_altered_meanwhile_is_heeded(tmp_path: Path, after: el.TableOptions | None) -> None:
    lab = Lab(tmp_path / "s")
    schema = SCHEMA.append(pa.field("until", pa.timestamp("ms", "UTC")))
    table = lab.store.create_table("t", schema, ["k"], options=HOURLY)
    table.upsert(table_of({1: (lab.now_ms, 1)}).append_column("until", pa.array([None], schema.field("until").type)))
    lab.now_ms += LATER_MS
    real = expiry._write_deletes

    def altered(*arguments: Any) -> Any:
        table.alter(options=after or el.TableOptions())
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry, "_write_deletes", altered)
        lab.store.compact("t")
    assert table.count() == 1 and lab.store.verify().ok


@pytest.mark.rule("1.23")
@pytest.mark.parametrize("seed", seeds(range(3)))
def test_random_histories_expire_what_a_dict_says(lab: Lab, seed: int) -> None:
    histories(lab, seed)


def histories(lab: Lab, seed: int = 0) -> None:
    dice, model = random.Random(seed), Rows()
    lab.store.table("t").alter(options=replace(HOURLY, compact_segments=2, history_retention=timedelta(0)))
    for step in range(50):
        lab.now_ms += dice.randint(0, HOUR_MS // 3)
        new = {dice.randrange(15): (dice.choice([None, lab.now_ms - dice.randrange(HOUR_MS)]), step) for _ in range(4)}
        if dice.random() < 0.7:
            put(lab, new)
            model |= new
        if dice.random() < 0.2:
            gone = [key for key in new if key in model]
            lab.store.table("t").delete(pa.table({"k": pa.array(gone, pa.int64())}))
            model = {key: row for key, row in model.items() if key not in gone}
        if dice.random() < 0.4:
            lab.store.compact("t", full=dice.random() < 0.5)
            boundary_ms = lab.now_ms // 1000 * 1000 - 1
            model = {key: row for key, row in model.items() if row[0] is None or row[0] + HOUR_MS > boundary_ms}
        assert rows(lab) == model, (seed, step)
    assert lab.store.verify().ok


# ---- bugs --------------------------------------------------------------------------------------------------------


def a_lost_race_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(handle: Any, chosen: Any, keys: Any, base: int) -> Any:
        return keys, handle.catalog.read(lambda view: expiry.plan_scan(view, chosen.table, None)).epoch

    monkeypatch.setattr(expiry, "_decide_again", same)


def a_commit_without_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    real = expiry.TableChange
    monkeypatch.setattr(expiry, "TableChange", lambda *fields, **named: real(*fields, **{**named, "base": None}))


def nulls_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    real = expiry._first_keys
    monkeypatch.setattr(
        expiry, "_first_keys", lambda handle, plan, expired: real(handle, plan, expired | pc.field("at").is_null())
    )


def the_clock_decides_and_not_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "newest_boundary_before", lambda now_ms, interval_ms: (now_ms - EPOCH_ORIGIN_MS) << 12)


def outputs_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output may have a ttl, expiry looks at it as at a root table, and a commit of anyone may write it."""
    check, get_table = Settings.check, expiry.get_table

    def permitted(settings: Settings, table: str, *, derived: bool, schema: Any = None) -> None:
        check(settings, table, derived=derived and (settings.options or HOURLY).ttl is None, schema=schema)

    monkeypatch.setattr(Settings, "check", permitted)
    monkeypatch.setattr(expiry, "get_table", lambda *table: replace(get_table(*table), job_id=None))
    monkeypatch.setattr(root_commit, "refuse_unwritable", lambda view, table: get_table(view, table.id, table.name))


@pytest.mark.planted
@pytest.mark.local_only
@pytest.mark.medium
@pytest.mark.parametrize(
    "bug, check",
    [
        (a_lost_race_is_not_decided_again, race),
        (a_commit_without_its_base, race),
        (nulls_expire, histories),
        (the_clock_decides_and_not_the_boundary, minutes),
        (outputs_expire, outputs),
    ],
)
def test_each_guard_is_needed(lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: Any, check: Any) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check(lab)
    lab.store.close()
    shutil.rmtree(lab.root)
