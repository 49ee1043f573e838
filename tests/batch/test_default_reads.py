"""Reads that name no policy: each door shows what the definition says, in random histories."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from default_doors import BOUND_MS, INTERVAL_MS, ROOTS, ROWS, VIEWS, DefaultWorld, Doors, Seen, as_state, seen_by
from epochlog.batch import default_policy, default_read, policy, snapshot
from epochlog.batch.choice import choose, choose_and_pin
from epochlog.batch.default_policy import policy_text
from epochlog.batch.default_read import plan_default_read
from epochlog.batch.policy import Aligned, Global, Latest
from epochlog.batch.policy_registry import BUILT_IN, resolve_policy
from epochlog.batch.token import decode_token, encode_token
from epochlog.errors import InvalidInput, TableNotReadable, UnsupportedFormat
from epochlog.spark.catalog.query_epochs import CatalogTables
from epochlog.store.catalog.keys import READS

pytestmark = pytest.mark.local_only
OWN = (None, None, "global", "aligned", "latest")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DefaultWorld]:
    made = DefaultWorld(tmp_path / "lake", 7)
    for view in VIEWS:
        made.store.checkpoint()
        made.step(view)
    yield made
    made.store.close()


def leave_late_behind(world: DefaultWorld) -> None:
    """Commit, step all views but one, and let the bound pass."""
    world.now_ms += INTERVAL_MS
    for name in ROOTS:
        world.commit(name)
    for view in ("revenue", "margin"):
        world.store.checkpoint()
        world.step(view)
    world.now_ms += BOUND_MS + INTERVAL_MS


# ---- each rule


@pytest.mark.rule("3.71")
def test_a_late_table_among_several_is_named_with_the_policies_to_write(world: DefaultWorld) -> None:
    leave_late_behind(world)
    with pytest.raises(TableNotReadable) as refused:
        world.store.snapshot(["orders", "late"])
    message = str(refused.value)
    assert (
        "late lags 1 min" in message and "orders lags" not in message and "more than global_max_lag (1 min)" in message
    )
    assert "late is committed through" in message
    assert "consistency='aligned'" in message and "'latest'" in message
    for consistency in ("aligned", "latest"):
        world.store.snapshot(["orders", "late"], consistency=consistency).close()
    world.store.snapshot(["orders", "margin"]).close()  # tables that do not need the late one


@pytest.mark.rule("3.70")
def test_one_table_is_read_at_its_newest_valid_epoch_however_old_it_is(world: DefaultWorld) -> None:
    leave_late_behind(world)
    with world.store.snapshot(["late"]) as moment:
        assert moment.policy == Aligned() and moment.lag_ms["late"] > BOUND_MS
        assert world.store.table("late").to_arrow() == moment["late"].to_arrow()


@pytest.mark.rule("3.70")
def test_an_output_without_a_commit_has_no_epoch_by_any_door(world: DefaultWorld) -> None:
    world.store.create_job("job_new", ["orders"], {"new": (ROWS, ["id"])})
    doors = Doors(world)
    try:
        doors.handles["new"] = world.store.table("new")
        for name, (door, numbers) in doors.all().items():
            if "single" in numbers:
                assert seen_by(doors, door, ["new"]) == "NoConsistentEpoch", name
    finally:
        doors.close()


@pytest.mark.rule("3.70", "3.73")
def test_a_snapshot_and_its_token_name_the_policy_that_was_taken(world: DefaultWorld) -> None:
    store = world.store
    for tables, taken, text in (
        (["orders"], Aligned(), "aligned"),
        (["orders", "revenue"], Aligned(bounded=True), "aligned(bounded=True)"),
        (["orders", "orders"], Aligned(), "aligned"),
        (None, Global(), "global"),
    ):
        with store.snapshot(tables) as moment:
            assert moment.policy == taken and decode_token(moment.token).policy == text
            with store.snapshot(consistency=el.Exact(moment.token)) as again:
                assert again.token == moment.token and again.epochs == moment.epochs
            assert decode_token(moment.tag("kept").token).policy == ""
            store.drop_tag("kept")
    store.alter(default_consistency="latest")
    with store.snapshot() as moment:
        assert moment.policy == Latest() and decode_token(moment.token).policy == "latest"
    with store.snapshot(["orders"], consistency=el.AsOf(epoch=store.last_epoch)) as moment:
        assert decode_token(moment.token).policy == f"as_of(epoch={store.last_epoch})"


@pytest.mark.rule("3.73")
def test_a_token_without_a_policy_is_that_of_earlier_releases() -> None:
    token = encode_token({1: 5}, {1: "orders"}, "store", {"late": "it is late"})
    assert decode_token(token).policy == "" and decode_token(token).left_out == {"late": "it is late"}


def test_a_policy_in_words_has_its_name_and_the_options_that_were_set() -> None:
    assert policy_text(el.Bounded(5)) == "bounded(max_lag=5.0)"
    assert policy_text(el.Exact({"orders": 5})) == "exact"

    class Mine:
        def choose(self, view: object, tables: object) -> dict[str, int]:
            return {}

    assert policy_text(Mine()) == "Mine"  # pyright: ignore[reportArgumentType]: it has no name


@pytest.mark.rule("3.72")
def test_a_store_has_its_own_default_until_it_is_taken_back(world: DefaultWorld) -> None:
    store = world.store
    assert store.default_consistency == "auto"
    for name in ("global", "aligned", "latest"):
        store.alter(default_consistency=name)
        with el.open(world.root, clock=lambda: world.now_ms) as other, other.snapshot(["orders", "revenue"]) as moment:
            assert other.default_consistency == name and getattr(moment.policy, "name", "") == name
            assert moment.policy == default_policy.default_policy(None, name)
        with store.snapshot(["orders"], consistency="as_of", epoch=store.last_epoch) as moment:
            assert isinstance(moment.policy, el.AsOf)  # a policy that a read names goes before it
    store.alter(default_consistency="auto", global_max_lag=timedelta(minutes=2))
    assert (store.default_consistency, store.global_max_lag) == ("auto", timedelta(minutes=2))
    with store.snapshot(["orders", "revenue"]) as moment:
        assert moment.policy == Aligned(bounded=True)


@pytest.mark.rule("3.72")
def test_under_aligned_a_new_view_is_left_out_by_every_door_of_all_tables(world: DefaultWorld) -> None:
    """One view without a commit made each read of all tables fail."""
    store = world.store
    store.alter(default_consistency="aligned")
    store.create_job("job_new", ["orders"], {"new": (ROWS, ["id"])})
    doors = Doors(world)
    try:
        readable = {name: as_state(store.table(name).to_arrow()) for name in world.states}
        for name, (door, numbers) in doors.all().items():
            if "all" in numbers:
                assert without_empty(seen_by(doors, door, None)) == without_empty(readable), name
        for named in ({}, {"consistency": "aligned"}):
            with store.snapshot(**named) as moment:
                assert moment.policy == Aligned() and set(moment) == set(readable) and set(moment.left_out) == {"new"}
                assert moment.left_out["new"].startswith("new cannot be read: ")
                with pytest.raises(TableNotReadable, match="new cannot be read"):
                    moment["new"]
                with store.snapshot(consistency=el.Exact(moment.token)) as again:
                    assert again.left_out == moment.left_out
            with pytest.raises(TableNotReadable, match="left some out: new cannot be read"):
                store.tag("whole", **named)
            store.tag("whole", partial=True, **named)
            store.drop_tag("whole")
        with pytest.raises(el.NoConsistentEpoch):
            store.snapshot(["orders", "new"])
        for catalog_names in (None, ["orders"]):
            chosen = CatalogTables(store._handle, None, catalog_names and tuple(catalog_names)).newest()
            assert set(chosen.epochs) == set(catalog_names or readable)
            assert set(chosen.left_out) == (set() if catalog_names else {"new"})
    finally:
        doors.close()


@pytest.mark.rule("3.72")
def test_a_read_only_store_keeps_the_default_and_marks_no_late_job(world: DefaultWorld) -> None:
    leave_late_behind(world)
    world.store.alter(default_consistency="global")
    world.store.close()
    with el.open(world.root, read_only=True, clock=lambda: world.now_ms) as store:
        assert store.table("orders").count()
        with store.snapshot(["orders", "revenue"]) as moment:
            assert moment.policy == Global()
        with pytest.raises(TableNotReadable, match="late cannot be read: it lags"):
            store.table("late").count()


@pytest.mark.rule("3.72")
def test_only_policies_without_options_can_be_the_default(world: DefaultWorld) -> None:
    for wrong in ("bounded", "exact", "newest", 5):
        with pytest.raises(InvalidInput, match="default_consistency must be one of global, aligned, latest, or 'auto'"):
            world.store.alter(default_consistency=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match="takes global_max_lag= or default_consistency="):
        world.store.alter()
    assert world.store.default_consistency == "auto"


@pytest.mark.planted
def test_an_error_that_blames_global_is_found(world: DefaultWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "epochlog.api.named_policy", lambda name, default, **options: resolve_policy("global", **options)
    )
    with pytest.raises(AssertionError, match="the policy 'global' takes no timeout"):
        test_an_option_without_a_policy_is_refused_by_the_name_of_the_default(world)


OPTIONS = ("timeout", "epoch", "timestamp", "max_lag", "bounded", "epochs_or_token", "lag", "include_creating")


@pytest.mark.rule("3.70", "3.72")
def test_an_option_without_a_policy_is_refused_by_the_name_of_the_default(world: DefaultWorld) -> None:
    store = world.store
    with pytest.raises(InvalidInput) as refused:
        store.snapshot(["revenue"], timeout=3)
    assert str(refused.value) == (
        "this read names no policy, and its default, aligned, takes no timeout: name the policy; timeout belongs to "
        "consistency='at_least' or consistency='bounded'"
    )
    for own in ("auto", "global", "aligned", "latest"):
        store.alter(default_consistency=own)
        for tables in (None, ["orders"], ["orders", "revenue"]):
            with store.snapshot(tables) as moment:
                default = policy_text(moment.policy)
            for option in OPTIONS[:-1]:
                for call in (partial(store.snapshot, tables), partial(store.tag, "t", tables)):
                    with pytest.raises(InvalidInput) as refused:
                        call(**{option: 1})
                    assert f"its default, {default}, takes no {option}: " in str(refused.value)
                    advised = re.findall("consistency='([a-z_]+)'", str(refused.value))
                    taking = [name for name, kind in BUILT_IN.items() if option in inspect.signature(kind).parameters]
                    assert advised == taking and bool(taking) is (option != "lag")
    with store.snapshot(["orders", "revenue"], include_creating=True) as moment:
        assert moment.policy == Global(include_creating=True)
    for wrong in ("orders", 5, []):
        with pytest.raises(InvalidInput, match="tables must be a list|at least one table"):
            store.snapshot(wrong, timeout=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.rule("3.72")
def test_a_default_of_a_later_release_is_refused_by_name(world: DefaultWorld) -> None:
    world.store._handle.catalog.transact(lambda tx: tx.put(READS, {"consistency": "tidal"}))
    for read in (world.store.snapshot, lambda: world.store.table("orders").to_arrow()):
        with pytest.raises(UnsupportedFormat, match="'tidal'"):
            read()
    assert world.store.verify().ok
    world.store.snapshot(["orders"], consistency="aligned").close()
    world.store.alter(default_consistency="auto")
    assert world.store.table("orders").count()


# ---- every door in random histories


def without_empty(seen: Seen) -> Seen:
    """Return the tables that have rows; a command shows no others."""
    return seen if isinstance(seen, str) else {name: rows for name, rows in seen.items() if rows}


def campaign(root: Path, seed: int, moments: int = 5) -> Counter[str]:
    """Raises AssertionError at the first door that differs from the definition; else the number of each outcome."""
    world = DefaultWorld(root, seed)
    doors = Doors(world)
    outcomes: Counter[str] = Counter()
    try:
        for _ in range(moments):
            world.go_on()
            own = world.rng.choice(OWN)
            world.store.alter(default_consistency=own or "auto")
            names = [*ROOTS, *VIEWS]
            questions = {
                "single": [world.rng.choice(names)],
                "several": world.rng.sample(names, world.rng.randint(2, 4)),
                "all": None,
            }
            for number, tables in questions.items():
                for name, (door, numbers) in doors.all().items():
                    if number not in numbers:
                        continue
                    wanted = world.wanted(tables, own)  # anew, because a read under `global` marks late jobs
                    seen = seen_by(doors, door, tables)
                    assert without_empty(seen) == without_empty(wanted), (
                        "differs",
                        seed,
                        name,
                        own,
                        tables,
                        seen,
                        wanted,
                    )
                    outcomes[f"{number}: {seen if isinstance(seen, str) else 'rows'}"] += 1
    finally:
        doors.close()
    return outcomes


@pytest.mark.medium
@pytest.mark.rule("3.70", "3.71", "3.72")
def test_each_door_shows_what_the_definition_says(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for seed in (1, 3):
        outcomes += campaign(tmp_path / str(seed), seed)
    wanted = ["single: rows", "several: rows", "several: TableNotReadable", "all: rows"]
    assert all(outcomes[outcome] for outcome in wanted), outcomes


# ---- planted bugs

Mutant = Callable[[pytest.MonkeyPatch], None]


def flight_reads_the_newest_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "epochlog.serving.named_policy", lambda name, default, **options: resolve_policy(name or "latest", **options)
    )


def tables_are_read_at_their_newest_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_read, "choose", lambda handle, policy, answer: choose(handle, Latest(), answer))


def tables_do_not_ask_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_read, "choose", lambda handle, policy, answer: choose(handle, Aligned(), answer))


def a_plan_outlives_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(handle: Any, find: Any, before: Any = None) -> Any:
        return before or plan_default_read(handle, find)

    monkeypatch.setattr("epochlog.table.plan_default_read", plan)


def snapshots_are_global(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_by_global(handle: Any, policy: Any, *rest: Any) -> Any:
        return choose_and_pin(handle, policy or Global(), *rest)

    monkeypatch.setattr(snapshot, "choose_and_pin", choose_by_global)


def the_shell_aligns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "epochlog.cli.commands.rows.policy_of",
        lambda handle, options: {"consistency": "aligned" if options.tables else "global"},
    )


def the_bound_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_require_fresh", lambda view, tables, epoch: None)


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize(
    "mutant",
    [
        flight_reads_the_newest_commit,
        tables_are_read_at_their_newest_commit,
        tables_do_not_ask_the_store,
        a_plan_outlives_the_default,
        snapshots_are_global,
        the_shell_aligns,
        the_bound_is_not_checked,
    ],
)
def test_a_door_with_a_default_of_its_own_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def search() -> None:
        for seed in (15, 1, 3, *range(4, 15)):  # 15 and 1 find them all; the others are for what changes
            campaign(tmp_path / str(seed), seed)

    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="differs"):
        search()
