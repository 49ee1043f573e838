"""On random graphs the library agrees with the definitions, the law holds, and mutants are caught.

EPOCHLOG_MODEL_SEEDS=5000 makes a long campaign of it; EPOCHLOG_MODEL_FIRST_SEED=1234 begins there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from epoch_histories import History, play, random_history
from epochlog.batch.policy import Aligned, Latest, Policy
from epochlog.errors import NoConsistentEpoch
from epochlog.store.epochs.table_epochs import TableEpochs, TableRef
from epochlog.store.epochs.view import EpochView
from history_runs import BATCH, SEEDS, batches, by_library, decide_barrier, forget, runs

pytestmark = pytest.mark.local_only

Mutant = Callable[[pytest.MonkeyPatch], None]


def by_definition(history: History, job: str) -> int | None:
    return history.next_barrier(job, history.position(job), first=not history.log[job])


# ---- the library agrees with the definitions -----------------------------------------------------------------------


def check_against_definitions(
    seed: int, rng: random.Random, history: History, empty_entries_count: bool = False
) -> None:
    forget(history, rng)
    view, marks = history.view(empty_entries_count), rng.sample(history.marks(), min(24, len(history.marks())))
    for table in history.names:
        starts, ends = view.valid_intervals(table)
        assert all(starts[1:] > ends[:-1]), (seed, table)
        for epoch in [*marks, history.last_epoch]:
            assert view.complete(table, epoch) == history.complete(table, epoch), (seed, table, epoch, "complete")
            valid = history.valid(table, epoch)
            assert view.valid(table, epoch) == valid, (seed, table, epoch, "valid")
            assert any((starts <= epoch) & (epoch <= ends)) == valid, (seed, table, epoch, "valid interval")
            unreadable = epoch < history.safe_epoch.get(table, 0)
            assert bool(view.why_not([table], epoch)) == (unreadable or not valid), (seed, table, epoch, "why not")
        behind = not history.valid(table, history.last_epoch)
        assert (view.lag_ms(table) > 0) == (behind and lacks_something(history, table)), (seed, table, "lag")
    for _ in range(4):
        tables = rng.sample(history.names, rng.randint(1, len(history.names)))
        until = rng.choice([history.last_epoch, rng.randint(0, history.last_epoch)])
        assert view.largest_valid_at_most(tables, until) == history.aligned(tables, until), (seed, tables, until)
    for job in history.jobs:
        for after in [history.position(job), rng.randint(0, history.last_epoch)]:
            first = rng.random() < 0.5
            barrier = decide_barrier(history, view, job, after, first)
            assert barrier == history.next_barrier(job, after, first), (seed, job, after, first, "barrier")
    history.known_from.clear()
    history.safe_epoch.clear()


def lacks_something(history: History, table: str) -> bool:
    """Return True if the newest state of the table, or of one it descends from, misses a change of an upstream."""
    position, last = history.position(table), history.last_epoch
    return not history.ended(table) and any(
        lacks_something(history, up)
        or not history.remembers(up, position)
        or any(entry.changed and position < entry.epoch <= last for entry in history.log[up])
        for up in history.upstreams(table)
    )


@pytest.mark.rule("2.3", "2.4", "5.1")
@pytest.mark.parametrize("seeds", batches(), ids=lambda seeds: f"seeds-{seeds[0]}-{seeds[-1]}")
def test_the_library_agrees_with_the_definitions(seeds: range) -> None:
    for seed, rng, history in runs(seeds, by_definition):
        check_against_definitions(seed, rng, history)


# ---- the law -------------------------------------------------------------------------------------------------------


def check_law(seed: int, history: History) -> None:
    """Check that a table at each valid epoch equals its query over its upstreams, and over the roots, at that epoch."""
    view = history.view()
    for table in history.jobs:
        for epoch in history.marks():
            if view.valid(table, epoch):
                state = history.state(table, epoch)
                end = history.position(table) if history.ended(table) else epoch
                assert state == history.query(table, min(epoch, end)), (seed, table, epoch, "the law")
                assert state == from_roots(history, table, dict.fromkeys(history.roots, epoch)), (
                    seed,
                    table,
                    epoch,
                    "the law",
                )


def from_roots(history: History, table: str, epochs: Mapping[str, int]) -> dict[str, int]:
    """The answer of a table made anew from the root tables as of the chosen epochs; of an ended one, as of its end."""
    spec, out = history.jobs.get(table), {}
    if spec is not None and history.ended(table):
        epochs = {root: min(epoch, history.position(table)) for root, epoch in epochs.items()}
    if spec is None:
        return history.state(table, epochs[table])
    for upstream in spec.upstreams:
        for key, value in from_roots(history, upstream, epochs).items():
            out[key] = out.get(key, 0) + value
    return {**out, "rows": len(out)} if spec.counts else out


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


def catch_up(seed: int, history: History) -> None:
    """With the load gone every job catches up, and the newest epoch becomes valid for all."""
    for interval in {spec.interval for spec in history.jobs.values()}:
        while (history.last_epoch + 1) % (interval * 4096):
            history.seal()
    for _ in range(30):  # one interval of every job for each level of the graph
        history.seal()
        while sum(history.step(job, by_library) for job in history.jobs):
            pass
    view = history.view()
    assert view.largest_valid_at_most(history.names) == history.last_epoch, (seed, "not caught up")
    assert {view.lag_ms(table) for table in history.names} == {0}, (seed, "lag")


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
