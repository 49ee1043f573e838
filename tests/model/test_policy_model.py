"""On random graphs every policy chooses what its definition says, or raises what it says; mutants are caught.

EPOCHLOG_MODEL_SEEDS=5000 makes a long campaign of it; EPOCHLOG_MODEL_FIRST_SEED=1234 begins there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import policy_model as policies
from epoch_histories import INTERVAL_MS
from epochlog.batch import default_policy, policy
from epochlog.batch.policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest, choose_epochs
from epochlog.batch.token import encode_token
from epochlog.errors import EpochlogError
from epochlog.store.epochs import global_membership
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, last_of_unix_ms, to_unix_ms
from history_runs import batches, forget, runs
from policy_model import Answer, Question

pytestmark = pytest.mark.local_only

Case = tuple[str, Any, Answer]
Mutant = Callable[[pytest.MonkeyPatch], None]


def at_moments(seeds: range) -> Iterator[tuple[int, random.Random, Question, EpochView]]:
    """Queries of random tables in random histories, with some tables away, and some that have forgotten."""
    for seed, rng, history in runs(seeds):
        if rng.random() < 0.5:
            forget(history, rng)
        view = history.view()
        away = frozenset(
            table for table in history.jobs if rng.random() < 0.15 and view.table(table).state == "created"
        )
        bound_ms = rng.choice([rng.randint(2, 40), 600_000])
        now_ms = to_unix_ms(history.last_epoch) + rng.choice([0, 1, 10, 1_000])
        parked = frozenset(table for table in away if rng.random() < 0.5)
        running = [job for job in history.jobs if job not in away and not history.ended(job)]
        marked = frozenset(job for job in running if rng.random() < 0.1)
        long_kept = frozenset(table for table in history.names if rng.random() < 0.5)
        tables = {
            number: replace(
                entry,
                state=entry.state if entry.name not in away else "parked" if entry.name in parked else "creating",
                job_id=number if entry.derived else None,
                interval_ms=history.jobs[entry.name].interval * INTERVAL_MS if entry.derived else 0,
                outside_ms=1 if entry.name in marked else None,
                history_ms=2 * bound_ms - (entry.name not in long_kept),
            )
            for number, entry in view.tables.items()
        }
        view = EpochView(view.last_epoch, now_ms, tables, "s", bound_ms)
        query = rng.sample(history.names, rng.randint(1, len(history.names)))
        if rng.random() < 0.5 and view.membership.members:  # else most of them name a table that takes no part
            query = rng.sample(view.membership.members, rng.randint(1, len(view.membership.members)))
        yield seed, rng, Question(history, query, away, now_ms, bound_ms, parked, marked, long_kept), view
        history.known_from.clear()
        history.safe_epoch.clear()


def cases(rng: random.Random, question: Question, view: EpochView) -> Iterator[Case]:
    """Each policy with options that tell right from wrong: at, just below and just above where the answer turns."""
    history = question.history
    near = [*history.marks(), history.last_epoch + rng.randint(1, 9)]
    yield "global", Global(), policies.global_(question, include_creating=False)
    yield "global, naive", Global(include_creating=True), policies.global_(question, include_creating=True)
    yield "aligned", Aligned(), policies.aligned(question)
    yield "latest", Latest(), policies.latest(question)
    newest = question.largest(question.tables, history.last_epoch)
    for until in [rng.choice(near), *([] if newest is None else [newest - 1, newest])]:
        if until >= 0:
            yield "as_of", AsOf(epoch=until), policies.as_of(question, until)
    moment_ms = to_unix_ms(rng.choice(near))
    end = last_of_unix_ms(moment_ms)
    assert to_unix_ms(end) == moment_ms == to_unix_ms(end + 1) - 1 >= EPOCH_ORIGIN_MS
    yield "as_of, by time", AsOf(timestamp=moment_ms), policies.as_of(question, end)
    for epoch in [rng.choice(near), *([] if newest is None else [newest, newest + 1])]:
        yield "at_least", AtLeast(epoch, timeout=0), policies.at_least(question, epoch)
    if newest is not None and not history.known_from:
        lags = {policies.lag_ms(question, table, newest) for table in question.tables}
        for bound in {max(lags), max(0, max(lags) - 1), min(lags)}:
            yield "bounded", Bounded(bound / 1000, timeout=0), policies.bounded(question, bound)
        for tables in (question.tables, None):
            for own in (None, "global", "aligned", "latest"):
                wanted = policies.default(question, all_tables=tables is None, store_default=own)
                about = "one table" if len(question.tables) == 1 else "several"
                about = f"default: {own or ('all tables' if tables is None else about)}"
                yield about, default_policy.default_policy(tables, own), wanted
    given = {table: rng.choice([*near, history.position(table)]) for table in question.tables}
    given = given if rng.random() < 0.5 or newest is None else dict.fromkeys(given, newest)
    yield "exact", Exact(given), policies.exact(question, given)
    ids = {view.ids[table]: epoch for table, epoch in given.items()}
    token = encode_token(ids, {number: entry.name for number, entry in view.tables.items()}, "s")
    yield "exact, by token", Exact(token), policies.exact(question, given)


def answer_of(chosen: Any, view: EpochView, tables: list[str] | None) -> Answer:
    try:
        return choose_epochs(chosen, view, tables)
    except EpochlogError as error:
        return type(error)


def campaign(seeds: range) -> Counter[tuple[str, str]]:
    """Raises AssertionError at the first difference; else how often each policy chose, or raised what."""
    seen: Counter[tuple[str, str]] = Counter()
    for seed, rng, question, view in at_moments(seeds):
        for name, chosen, wanted in cases(rng, question, view):
            answer = answer_of(chosen, view, question.tables)
            assert answer == wanted, ("differs", f"seed {seed}", name, chosen, question.tables, answer, wanted)
            seen[name, "chose" if isinstance(answer, dict) else answer.__name__] += 1
        every = replace(question, tables=question.history.names)
        answer, wanted = answer_of(Aligned(), view, None), policies.aligned_of_all(every)
        assert answer == wanted, ("differs", f"seed {seed}", "aligned of all", answer, wanted)
        outcome = "chose" if isinstance(answer, dict) else answer.__name__
        seen[
            "aligned of all", "left out" if isinstance(answer, dict) and len(answer) < len(every.tables) else outcome
        ] += 1
    return seen


@pytest.mark.rule("3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.70", "3.71", "3.72")
@pytest.mark.parametrize("seeds", batches(), ids=lambda seeds: f"seeds-{seeds[0]}-{seeds[-1]}")
def test_every_policy_chooses_what_its_definition_says(seeds: range) -> None:
    campaign(seeds)


@pytest.mark.medium
def test_the_campaign_has_every_outcome_in_it() -> None:
    seen = campaign(range(50))
    wanted = {
        "global": ["chose", "TableNotReadable", "NoConsistentEpoch"],
        "global, naive": ["chose", "NoConsistentEpoch"],
        "aligned": ["chose", "NoConsistentEpoch"],
        "aligned of all": ["chose", "left out", "NoConsistentEpoch"],
        "latest": ["chose"],
        "as_of": ["chose", "NoConsistentEpoch", "EpochExpired"],
        "as_of, by time": ["chose", "NoConsistentEpoch", "EpochExpired"],
        "at_least": ["chose", "NoConsistentEpoch"],
        "bounded": ["chose", "StalenessExceeded"],
        "default: one table": ["chose"],
        "default: several": ["chose", "TableNotReadable"],
        "default: all tables": ["chose", "TableNotReadable"],
        "default: global": ["chose", "TableNotReadable"],
        "default: aligned": ["chose"],
        "default: latest": ["chose"],
        "exact": ["chose", "EpochExpired", "EpochNotCommitted"],
        "exact, by token": ["chose", "EpochExpired", "EpochNotCommitted"],
    }
    seldom = {("global", "NoConsistentEpoch"): 1}  # only where the history of what is read is short
    rare = {
        (name, what)
        for name, outcomes in wanted.items()
        for what in outcomes
        if seen[name, what] < seldom.get((name, what), 5)
    }
    assert not rare and len(seen) == sum(map(len, wanted.values())), seen


# ---- mutants --------------------------------------------------------------------------------------------------------


def descendants_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "epochlog.store.epochs.global_membership._without",
        lambda tables, out: [table for table in tables if table.table_id not in {*out}],
    )


def lag_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = global_membership.first_in
    monkeypatch.setattr(
        global_membership, "first_in", lambda view, table, commit: max(whole(view, table, commit), 1 << 52)
    )


def intervals_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_membership, "outside_by_interval", lambda tables, bound: {})


def the_longest_leave_though_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.epochs.global_membership.math.lcm", lambda first, second: first * second)


def nobody_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def agreeing(view: EpochView, tables: Any, out: Any, oldest: int) -> Any:
        members = global_membership._without(tables, out)
        at = view.largest_valid_at_most([table.table_id for table in members], read=())
        return members, at or 0, []

    monkeypatch.setattr(global_membership, "_agree", agreeing)


def the_least_lagging_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = global_membership._most_lagging_first
    monkeypatch.setattr(global_membership, "_most_lagging_first", lambda view, tables: whole(view, tables)[::-1])


def short_histories_lower_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def common(view: EpochView, members: Any, oldest: int) -> int | None:
        lowest = max([min(oldest - 1, view.last_epoch), *(table.safe_epoch for table in members)])
        return view.largest_valid_at_most([table.table_id for table in members], read=(), lowest=lowest)

    monkeypatch.setattr(global_membership, "_common_epoch", common)


def global_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EpochView.largest_valid_at_most

    def largest(
        view: EpochView, refs: Any, epoch: int | None = None, *, read: Any = None, lowest: int = 0
    ) -> int | None:
        return whole(view, refs if read is None else read, epoch, lowest=lowest)

    monkeypatch.setattr(EpochView, "largest_valid_at_most", largest)


def lag_of_the_newest_state(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = EpochView.lag_ms
    monkeypatch.setattr(EpochView, "lag_ms", lambda view, ref, epoch=None: whole(view, ref))


def lag_of_direct_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.epochs.lag._root_change", lambda view, table, change: change)


def expired_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_readable", lambda view, name, epoch: epoch)


def at_least_is_more_than(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = AtLeast.choose
    monkeypatch.setattr(
        AtLeast, "choose", lambda self, view, tables: choose(replace(self, epoch=self.epoch + 1), view, tables)
    )


def as_of_is_before(monkeypatch: pytest.MonkeyPatch) -> None:
    until = AsOf.until
    monkeypatch.setattr(AsOf, "until", lambda self: until(self) - 1)


def several_have_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_require_fresh", lambda view, tables, epoch: None)


def the_bound_is_met_too(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = policy._require_fresh
    monkeypatch.setattr(
        policy,
        "_require_fresh",
        lambda view, tables, epoch: whole(replace(view, global_max_lag_ms=view.global_max_lag_ms - 1), tables, epoch),
    )


def one_table_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_policy, "Aligned", lambda bounded: Aligned(bounded=True))


def the_store_has_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = default_policy.default_policy
    monkeypatch.setattr(default_policy, "default_policy", lambda tables, own: whole(tables, None))


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize(
    "mutant",
    [
        several_have_no_bound,
        the_bound_is_met_too,
        one_table_has_a_bound,
        the_store_has_no_default,
        descendants_take_part,
        lag_is_no_reason,
        intervals_are_no_reason,
        the_longest_leave_though_they_meet,
        nobody_leaves,
        the_least_lagging_leaves,
        short_histories_lower_the_bound,
        global_is_aligned,
        lag_of_the_newest_state,
        lag_of_direct_changes,
        expired_is_not_asked,
        at_least_is_more_than,
        as_of_is_before,
    ],
)
def test_mutants_differ_from_the_definitions(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="differs"):
        campaign(range(200))
