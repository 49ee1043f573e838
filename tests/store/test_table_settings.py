"""A table's settings changed later: what log entries say of old rows, and who reads the settings again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import epochlog as el
from epochlog.store.catalog.keys import after_prefix, log_key, table_key
from epochlog.store.compaction.executor import compact_table
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.retention.retention import apply_retention, raise_safe_epoch
from lab import KEY, SCHEMA, Lab, mirror, table_of

SHORT = el.TableOptions(history_retention=timedelta(0))
ChangeRows = list[tuple[str, int, int]]


def changed_rows(lab: Lab, after: int, until: int | None = None, mode: str = "epochs") -> ChangeRows:
    changes = lab.store.table("r").changes(after, until, mode=mode, pre_images=True).read_all()
    return list(zip(*(changes[name].to_pylist() for name in ("_change_type", "k", "v")), strict=True))


def update(key: int, old: int, new: int) -> ChangeRows:
    return [("update_preimage", key, old), ("update_postimage", key, new)]


def let_go_of_states(lab: Lab) -> None:
    lab.tick()
    lab.store.compact("r", full=True)


def as_of_0_1(lab: Lab, name: str = "r") -> None:
    """Write the table's records as version 0.1 did."""

    def body(tx: Any) -> None:
        table = find_table(tx, name)
        known = ("id", "schema", "changelog", "options", "job_id")
        tx.put(table_key(table.id), {field: tx.get(table_key(table.id))[field] for field in known})
        for key, record in list(tx.scan(log_key(table.id, 0), after_prefix(b"log/%08x/" % table.id))):
            tx.put(key, {field: record[field] for field in ("epoch", "groups", "end")})

    lab.store._handle.catalog.transact(body)


# ---- old rows ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.7")
def test_entries_from_before_full_have_their_old_rows_looked_up(lab: Lab) -> None:
    """The wrong answer of the mutant: an update of an entry that stores nothing, read as an insert."""
    table = lab.root_table()
    start = lab.put({1: (0, 1), 2: (0, 1)})
    before = lab.put({1: (0, 2)})
    table.alter(changelog="full")
    after = lab.put({1: (0, 3), 3: (0, 3)})
    assert changed_rows(lab, start) == [*update(1, 1, 2), *update(1, 2, 3), ("insert", 3, 3)]
    assert changed_rows(lab, start, mode="net") == [*update(1, 1, 3), ("insert", 3, 3)]
    assert changed_rows(lab, before) == changed_rows(lab, before, after) == [*update(1, 2, 3), ("insert", 3, 3)]
    assert changed_rows(lab, start, before) == update(1, 1, 2)


@pytest.mark.rule("4.6", "4.7")
def test_where_the_states_are_gone_only_stored_old_rows_are_told(lab: Lab) -> None:
    table = lab.root_table(options=SHORT)
    start = lab.put({1: (0, 1)})
    lab.put({1: (0, 2)})
    table.alter(changelog="full")
    middle = lab.store.last_epoch
    lab.put({1: (0, 3)})
    lab.put({4: (0, 4)})
    let_go_of_states(lab)
    with pytest.raises(el.EpochExpired):
        changed_rows(lab, start)
    assert changed_rows(lab, middle) == [*update(1, 2, 3), ("insert", 4, 4)]
    assert changed_rows(lab, middle, mode="net") == [*update(1, 2, 3), ("insert", 4, 4)]


@pytest.mark.rule("4.7")
def test_what_full_stored_stays_when_it_ends(lab: Lab) -> None:
    table = lab.root_table(changelog="full", options=SHORT)
    start = lab.put({1: (0, 1)})
    stored = lab.put({1: (0, 2), 5: (0, 5)})
    table.alter(changelog="upsert")
    lab.put({1: (0, 3)})
    assert changed_rows(lab, start) == [*update(1, 1, 2), ("insert", 5, 5), *update(1, 2, 3)]
    let_go_of_states(lab)
    assert changed_rows(lab, start, stored) == [*update(1, 1, 2), ("insert", 5, 5)]
    with pytest.raises(el.EpochExpired):
        changed_rows(lab, start)
    table.alter(changelog="full")
    again = lab.store.last_epoch
    lab.put({1: (0, 4)})
    assert changed_rows(lab, again) == update(1, 3, 4)


@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_entries_of_0_1_are_read_as_they_were_written(lab: Lab, changelog: str) -> None:
    """They do not say whether they store old rows: the table's changelog at that time does, for inserts too."""
    table = lab.root_table(changelog=changelog, options=SHORT)
    start = lab.put({1: (0, 1)})
    middle = lab.put({2: (0, 2)})
    last = lab.put({1: (0, 3)})
    as_of_0_1(lab)
    lab.reopen()
    assert changed_rows(lab, start) == [("insert", 2, 2), *update(1, 1, 3)]
    other = "full" if changelog == "upsert" else "upsert"
    table = lab.store.table("r")
    table.alter(changelog=other)
    lab.put({2: (0, 4)})
    assert changed_rows(lab, start) == [("insert", 2, 2), *update(1, 1, 3), *update(2, 2, 4)]
    let_go_of_states(lab)
    if changelog == "full":
        assert changed_rows(lab, start, last) == [("insert", 2, 2), *update(1, 1, 3)]
        assert changed_rows(lab, start, middle) == [("insert", 2, 2)]
        with pytest.raises(el.EpochExpired):
            changed_rows(lab, start)
    else:
        assert changed_rows(lab, last) == update(2, 2, 4)
        with pytest.raises(el.EpochExpired):
            changed_rows(lab, start, last)


@pytest.mark.rule("5.18")
def test_followers_hold_the_states_that_they_will_look_up(lab: Lab) -> None:
    """The changelog is altered after the consumer's position, or while it is away."""
    table = lab.root_table(options=SHORT)
    start = lab.put({1: (0, 1)})
    lab.put({1: (0, 2)})
    table.alter(changelog="full")
    newest = lab.put({1: (0, 3)})
    with el.UpstreamLog(lab.store, ["r"], after=start, consumer="dash", pre_images=True) as log:
        let_go_of_states(lab)
        assert log.poll() is not None
    assert table.info.safe_epoch == start
    lab.store.reset_consumer("dash", newest)
    let_go_of_states(lab)
    assert table.info.safe_epoch == newest, "all that it will read is stored"
    table.alter(changelog="upsert")
    lab.put({1: (0, 4)})
    lab.put({1: (0, 5)})
    let_go_of_states(lab)
    assert table.info.safe_epoch == newest, "it is not any more"
    with el.UpstreamLog(lab.store, ["r"], consumer="dash", pre_images=True) as log:
        lab.store.checkpoint()
        chunks = [log.poll() for _ in range(2)]
        assert [chunk.data["v"].to_pylist() for chunk in chunks if isinstance(chunk, el.Chunk)] == [[3, 4], [4, 5]]


# ---- settings ----------------------------------------------------------------------------------------------------


def test_outputs_have_settings_from_the_start(lab: Lab) -> None:
    lab.root_table()
    options = el.TableOptions(history_retention=timedelta(days=3), log_retention=timedelta(days=9))
    lab.store.create_job(
        "j",
        ["r"],
        {
            "full": el.Output(SCHEMA, KEY, changelog="full", options=options, drop_unchanged=False),
            "plain": (SCHEMA, KEY),
            "named": el.Output(SCHEMA, KEY),
        },
    )
    full, plain, named = (lab.store.table(name).info for name in ("full", "plain", "named"))
    assert (full.changelog, full.options, full.drop_unchanged) == ("full", options, False)
    assert (plain.changelog, plain.options, plain.drop_unchanged) == ("upsert", el.TableOptions(), True)
    assert (named.changelog, named.options, named.drop_unchanged, named.primary_key) == (*_settings(plain), KEY)


def _settings(info: el.TableInfo) -> tuple[str, el.TableOptions, bool]:
    return info.changelog, info.options, info.drop_unchanged


@pytest.mark.rule("5.15")
def test_altering_changes_what_it_is_given(lab: Lab) -> None:
    lab.root_table()
    lab.job("j", ["r"])
    for name in ("r", "j_out"):
        table, options = lab.store.table(name), el.TableOptions(compact_segments=3)
        table.alter(options=options)
        assert _settings(table.info) == ("upsert", options, True)
        table.alter(changelog="full")
        assert _settings(table.info) == ("full", options, True)
    lab.store.table("j_out").alter(drop_unchanged=False)
    lab.reopen()
    assert _settings(lab.store.table("j_out").info) == ("full", options, False)
    written = lab.txn_id()
    lab.store.table("r").alter(options=options, changelog="full")
    assert lab.txn_id() == written, "nothing changed, so nothing is written"


def test_altering_nothing_is_refused_as_it_is_of_jobs(lab: Lab) -> None:
    lab.root_table()
    lab.job("j", ["r"])
    written = lab.txn_id()
    for name in ("r", "j_out"):
        with pytest.raises(
            el.InvalidInput, match=f"table '{name}': alter takes options=, changelog=, drop_unchanged= or checks="
        ):
            lab.store.table(name).alter()
    for nothing in ({}, {"options": {}}):
        with pytest.raises(
            el.InvalidInput, match="job 'j': alter takes interval=, max_lag=, options= or snapshot_rows="
        ):
            lab.store.job("j").alter(**nothing)
    assert lab.txn_id() == written


def test_bad_settings_change_nothing(lab: Lab) -> None:
    table = lab.root_table()
    lab.job("j", ["r"])
    for settings in ({"options": {"compact_segments": 3}}, {"changelog": "half"}, {"changelog": ""}):
        with pytest.raises(el.InvalidInput, match="table 'r'"):
            table.alter(**settings)
    with pytest.raises(el.InvalidInput, match="outputs of jobs"):
        table.alter(options=SHORT, drop_unchanged=False)
    with pytest.raises(el.InvalidInput, match="drop_unchanged"):
        lab.store.table("j_out").alter(drop_unchanged=1)  # pyright: ignore[reportArgumentType]
    assert table.info.options == el.TableOptions()
    for output in (el.Output(SCHEMA, KEY, changelog=""), el.Output(SCHEMA, KEY, options={})):  # pyright: ignore[reportArgumentType]
        with pytest.raises(el.InvalidInput, match="table 'bad'"):
            lab.store.create_job("k", ["r"], {"bad": output})
    with pytest.raises(el.InvalidInput, match=r"epochlog\.Output"):
        lab.store.create_job("k", ["r"], {"bad": SCHEMA})  # pyright: ignore[reportArgumentType]
    lab.store.drop_job("j")
    lab.store.drop_table("r")
    lab.root_table()
    with pytest.raises(el.TableDropped):
        table.alter(options=SHORT)


def test_a_handle_of_an_output_that_was_adopted_since_goes_by_what_the_table_is(lab: Lab) -> None:
    lab.root_table()
    lab.job("j", ["r"])
    table = lab.store.table("j_out")
    lab.store.drop_job("j", keep_outputs=True)
    with pytest.raises(el.InvalidInput, match="is a root table"):
        table.alter(drop_unchanged=False)


# ---- who reads them again ----------------------------------------------------------------------------------------

KEPT = el.TableOptions(history_retention=timedelta(days=1), log_retention=timedelta(days=1))
GONE = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


def definition(lab: Lab, name: str = "r") -> TableDef:
    return lab.store._handle.catalog.read(lambda view: find_table(view, name))


@pytest.mark.rule("5.15")
@pytest.mark.parametrize("work", [apply_retention, raise_safe_epoch, compact_table], ids=lambda work: work.__name__)
@pytest.mark.parametrize("later", [KEPT, GONE], ids=["more", "less"])
def test_upkeep_goes_by_the_options_of_now(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, work: Callable[..., object], later: el.TableOptions
) -> None:
    """Not by those that its caller knew, nor by those that it looked at before its transaction."""
    table = lab.root_table(options=GONE if later is KEPT else KEPT)
    for value in range(4):
        lab.put({1: (0, value)})
    known, handle = definition(lab), lab.store._handle
    lab.tick()
    real = handle.catalog.transact

    def altered_first(body: Callable[..., object]) -> object:
        monkeypatch.setattr(handle.catalog, "transact", real)
        table.alter(options=later)
        return real(body)

    if later is KEPT:  # it finds something to do, and no reason for it any more
        monkeypatch.setattr(handle.catalog, "transact", altered_first)
    else:
        table.alter(options=later)
    work(handle, known)
    info = table.info
    if later is KEPT:
        assert (info.safe_epoch, info.log_start_epoch) == (0, 0)
    else:
        newest = info.max_committed_epoch
        done = {"apply_retention": info.log_start_epoch == newest, "compact_table": info.runs == 1}
        assert info.safe_epoch == newest and done.get(work.__name__, True)


@pytest.mark.rule("5.15")
def test_a_job_is_parked_by_the_retention_of_now(lab: Lab) -> None:
    """Its log was kept for long when it fell behind; and the other way round it is not parked."""
    table = lab.root_table(options=KEPT)
    job = lab.job("j", ["r"])
    lab.put({1: (0, 1)})
    lab.store.checkpoint()
    assert job.step_local(mirror("r", "j_out"))
    lab.put({1: (0, 2)})
    lab.tick(3600)
    lab.store.compact("r")
    assert lab.state("j") == "running"
    known = definition(lab)
    table.alter(options=el.TableOptions(log_retention=timedelta(minutes=1)))
    apply_retention(lab.store._handle, known)
    assert lab.state("j") == "parked" and "kept for 1 min and the job had made no progress for 1 h" in (
        job.info.lost or ""
    ), job.info


def test_maintenance_looks_at_once_at_a_table_that_was_altered(lab: Lab) -> None:
    table = lab.root_table(options=KEPT)
    for value in range(4):
        lab.put({1: (0, value)})
    worker = Maintenance(lab.store._handle)
    while worker.run_once():
        pass
    lab.tick()
    table.alter(options=GONE)
    worker.run_once()
    assert table.info.log_start_epoch == table.info.max_committed_epoch


@pytest.mark.rule("5.15")
def test_writers_are_slowed_by_the_limit_of_now(lab: Lab) -> None:
    """A handle that was got before sees the new limit with its next commit."""
    table = lab.root_table()
    for value in range(5):
        lab.put({1: (0, value)})
    lab.store.table("r").alter(options=el.TableOptions(compact_segments=2, max_segments=4))
    table.upsert(table_of({2: (0, 0)}))
    assert table.info.runs == 1


def test_a_record_of_0_1_has_the_settings_that_it_had(lab: Lab) -> None:
    lab.root_table(changelog="full")
    lab.job("j", ["r"])
    for name in ("r", "j_out"):
        written = lab.store._handle.catalog.read(lambda view, name=name: find_table(view, name))
        as_of_0_1(lab, name)
        read = lab.store._handle.catalog.read(lambda view, name=name: find_table(view, name))
        assert isinstance(read, TableDef) and read == replace(written, created=0)
