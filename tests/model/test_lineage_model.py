"""On random graphs the library agrees with the definitions, the law holds, and mutants are caught.

EPOCHLOG_MODEL_SEEDS=5000 makes a long campaign of it; EPOCHLOG_MODEL_FIRST_SEED=1234 begins there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from epoch_histories import History, play, random_history
from epochlog.batch.policy import Aligned, Latest, Policy
from epochlog.errors import NoConsistentEpoch
from epochlog.store.epochs.table_epochs import TableEpochs, TableRef
from epochlog.store.epochs.view import EpochView
from history_checks import by_definition, catch_up, check_against_definitions, check_law, from_roots
from history_runs import BATCH, SEEDS, batches, by_library, runs

pytestmark = pytest.mark.local_only

Mutant = Callable[[pytest.MonkeyPatch], None]


# ---- the library agrees with the definitions -----------------------------------------------------------------------


@pytest.mark.rule("2.3", "2.4", "5.1")
@pytest.mark.parametrize("seeds", batches(), ids=lambda seeds: f"seeds-{seeds[0]}-{seeds[-1]}")
def test_the_library_agrees_with_the_definitions(seeds: range) -> None:
    for seed, rng, history in runs(seeds, by_definition):
        check_against_definitions(seed, rng, history)


# ---- the law -------------------------------------------------------------------------------------------------------


def check_snapshot(seed: int, history: History, policy: Policy) -> None:
    """In snapshots of everything, and of single tables beside the roots, tables equal what those root tables give."""
    queries = [history.names, *([*history.roots, table] for table in history.jobs)]
    for tables in queries:
        try:
            epochs = policy.choose(history.view(), tables)
        except NoConsistentEpoch:
            continue
        for table in set(history.jobs).intersection(tables):
            if history.log[table]:
                expected = from_roots(history, table, epochs)
                assert history.state(table, epochs[table]) == expected, (seed, table, epochs, "snapshot")


@pytest.mark.rule("2.5")
@pytest.mark.medium
@pytest.mark.parametrize("seeds", batches(), ids=lambda seeds: f"seeds-{seeds[0]}-{seeds[-1]}")
def test_the_law_holds_and_everything_catches_up(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        history = random_history(rng)
        for _ in play(history, rng, by_library):
            check_snapshot(seed, history, Aligned())
        check_law(seed, history)
        catch_up(seed, history)


@pytest.mark.rule("2.3")
def test_what_is_complete_never_changes() -> None:
    for seed in SEEDS[:BATCH]:
        rng, seen = random.Random(seed), {}
        history = random_history(rng)
        for _ in play(history, rng, by_library):
            view = history.view()
            for (table, epoch), state in seen.items():
                assert history.state(table, epoch) == state, (seed, table, epoch)
            for table in history.names:
                for epoch in rng.sample(history.marks(), 20):
                    if view.complete(table, epoch):
                        seen[table, epoch] = history.state(table, epoch)


# ---- mutants: bugs that these tests must catch -----------------------------------------------------------------------


def complete_for_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    def valid(view: EpochView, ref: TableRef, epoch: int) -> bool:
        return view.table(ref).position > 0 and view.complete(ref, epoch)

    def largest(view: EpochView, refs: Iterable[TableRef], epoch: int | None = None, **_: object) -> int | None:
        return min(view.complete_through(ref) for ref in refs) or None

    monkeypatch.setattr(EpochView, "valid", valid)
    monkeypatch.setattr(EpochView, "largest_valid_at_most", largest)


def not_transitive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's own test is passed, and it is complete; whether its upstreams are valid is not asked."""
    whole = EpochView.closure

    def closure(view: EpochView, refs: Iterable[TableRef]) -> tuple[TableEpochs, ...]:
        refs = list(refs)
        return whole(view, refs) if len(refs) == len(view.tables) else tuple(view.table(ref) for ref in refs)

    monkeypatch.setattr(EpochView, "closure", closure)


def campaign_of_the_law() -> None:
    for seed, _, history in runs(range(200), by_definition):
        check_law(seed, history)


def campaign_of_the_definitions(empty_entries_count: bool = False) -> None:
    for seed, rng, history in runs(range(200), by_definition):
        check_against_definitions(seed, rng, history, empty_entries_count)


def campaign_of_snapshots(policy: Policy) -> None:
    for seed, _, history in runs(range(200)):
        check_snapshot(seed, history, policy)


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [complete_for_valid, not_transitive])
def test_mutants_break_the_law(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="the law"):
        campaign_of_the_law()


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [complete_for_valid, not_transitive])
def test_mutants_differ_from_the_definitions(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="valid|barrier"):
        campaign_of_the_definitions()


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [complete_for_valid, not_transitive])
def test_mutants_spoil_snapshots(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="snapshot"):
        campaign_of_snapshots(Aligned())


@pytest.mark.planted
def test_latest_in_place_of_aligned_is_caught() -> None:
    with pytest.raises(AssertionError, match="snapshot"):
        campaign_of_snapshots(Latest())


@pytest.mark.planted
@pytest.mark.rule("2.1")
def test_empty_entries_that_block_are_caught() -> None:
    with pytest.raises(AssertionError, match="complete|valid|barrier|lag"):
        campaign_of_the_definitions(empty_entries_count=True)


# ---- the campaign reaches what it is about -------------------------------------------------------------------


@pytest.mark.medium
def test_the_histories_have_everything_in_them() -> None:
    seen: Counter[str] = Counter()

    def decide(history: History, job: str) -> int | None:
        first, after = not history.log[job], history.position(job)
        stop = by_library(history, job)
        if stop is not None:
            spec = history.jobs[job]
            eager = by_library(replaced(history, job, max_lag=10**6), job)
            seen["initial" if first else "checkpoint"] += 1
            seen["forced" if stop in history.forced else "regular"] += 1
            seen["merged"] += eager != stop
            seen["own interval"] += spec.interval > 1
            seen["without a change"] += not any(history.changed(u, after, stop) for u in spec.upstreams)
        return stop

    for _, _, history in runs(range(40), decide):
        for table, log in history.log.items():
            seen["empty commit"] += any(not entry.changed for entry in log) and table in history.jobs
            seen["finished"] += history.ended(table) and table in history.jobs
            seen["drained"] += history.ended(table) and not all(map(history.ended, history.upstreams(table)))
            starts, ends = history.view().valid_intervals(table)
            through = history.view().complete_through(table)
            seen["complete, not valid"] += bool(len(starts) and ends[-1] < through)
    wanted = [
        "initial",
        "checkpoint",
        "forced",
        "regular",
        "merged",
        "own interval",
        "without a change",
        "empty commit",
    ]
    assert all(seen[what] >= 5 for what in [*wanted, "finished", "drained", "complete, not valid"]), seen


def replaced(history: History, job: str, max_lag: int) -> History:
    """Return the history with a job that does not merge."""
    return replace(history, jobs={**history.jobs, job: replace(history.jobs[job], max_lag=max_lag)})


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 10_600, 100))
def test_a_longer_campaign(start: int) -> None:
    for seed, rng, history in runs(range(start, start + 100)):
        check_snapshot(seed, history, Aligned())
        check_law(seed, history)
        check_against_definitions(seed, rng, history)
