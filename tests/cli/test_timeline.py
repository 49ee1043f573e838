"""The timeline of epochs tells of every epoch what the definitions say, and is drawn as it is."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from epoch_histories import play, random_history
from epochlog.cli.render.timeline import picture
from epochlog.facts.timeline import Stretch, Timeline, timeline
from epochlog.store.epochs.explain import blamed
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch_set import Intervals
from history_runs import by_library, forget

pytestmark = pytest.mark.local_only
FIRST_SEED = int(os.environ.get("EPOCHLOG_MODEL_FIRST_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + 10)


def worlds(seeds: range) -> Iterator[tuple[int, random.Random, EpochView]]:
    """Random graphs, each at several moments, some with a past that is forgotten."""
    for seed in seeds:
        rng = random.Random(seed)
        for history in play(random_history(rng), rng, by_library):
            forget(history, rng)
            yield seed, rng, history.view()


def samples(rng: random.Random, stretch: Stretch) -> set[int]:
    return {stretch.first, stretch.last, rng.randint(stretch.first, stretch.last)}


@pytest.mark.medium
def test_every_epoch_is_as_the_definitions_say() -> None:
    seen = set()
    for seed, rng, view in worlds(SEEDS):
        names = rng.sample(sorted(view.ids), rng.randint(1, len(view.ids)))
        result = timeline(view, names)
        for before, after in zip(result.stretches, result.stretches[1:], strict=False):
            assert before.last + 1 == after.first, seed
        assert not result.stretches or result.stretches[-1].last == view.last_epoch
        for stretch in result.stretches:
            for epoch in samples(rng, stretch):
                assert stretch.readable == (not view.why_not(names, epoch)), (seed, names, epoch)
                assert stretch.readable == (not blamed(view, names, epoch))
                for name, state in stretch.states.items():
                    table = view.table(name)
                    seen.add(state)
                    if name in names:
                        assert (state == "gone") == (epoch < table.safe_epoch), (seed, name, epoch)
                    if state in ("valid", "behind"):
                        assert (state == "valid") == view.valid(name, epoch), (seed, name, epoch)
                    if state == "none":
                        assert not any(commit <= epoch for commit in table.commits.tolist())
    assert seen == {"none", "valid", "behind", "gone"}


def test_everything_that_landed_begins_a_stretch() -> None:
    for seed, _, view in worlds(SEEDS):
        result = timeline(view, list(view.ids))
        landed = {
            (name, stretch.first): landing for stretch in result.stretches for name, landing in stretch.landed.items()
        }
        expected = {}
        for table in view.tables.values():
            commits, changes = set(table.commits.tolist()), set(table.changes.tolist())
            for epoch in commits | changes:
                rows = "rows" if epoch in commits else "label"
                expected[table.name, epoch] = rows if epoch in changes else "empty"
        assert landed == expected, seed


def test_a_part_of_it_is_the_same_as_in_the_whole() -> None:
    for seed, rng, view in worlds(SEEDS):
        names = rng.sample(sorted(view.ids), rng.randint(1, len(view.ids)))
        stretches, limit = timeline(view, names).stretches, rng.randint(1, 6)
        newest = timeline(view, names, limit)
        assert newest.stretches == stretches[-limit:], seed
        assert (newest.earlier, newest.later) == (len(stretches) > limit, False)
        if not stretches:
            continue
        epoch = rng.randint(stretches[0].first, view.last_epoch)
        some = timeline(view, names, limit, around=epoch)
        assert any(stretch.first <= epoch <= stretch.last for stretch in some.stretches), seed
        at = stretches.index(some.stretches[0])
        assert some.stretches == stretches[at : at + len(some.stretches)]
        assert len(some.stretches) == min(limit, len(stretches))
        assert (some.earlier, some.later) == (at > 0, at + len(some.stretches) < len(stretches))


# ---- drawn -------------------------------------------------------------------------------------------------------


def view() -> EpochView:
    """orders has changes at 10, 20, 30 (a label) and 32, and lets go of what is below 15; daily follows it late."""
    orders = TableEpochs(1, "orders", safe_epoch=15, commits=[10, 20, 32], changes=[10, 20, 30, 32])
    daily = TableEpochs(2, "daily", derived=True, upstreams=(1,), commits=[10, 25, 40], changes=[10, 25])
    return EpochView(45, 0, {1: orders, 2: daily})


def drawn(shown: Timeline, choices: dict[str, list[int]], width: int = 80) -> list[str]:
    names, lanes = picture(shown, choices, width)
    return [lane.text(names) for lane in lanes]


def test_a_picture() -> None:
    result = timeline(view(), ["orders", "daily"])
    assert [(stretch.first, stretch.last, stretch.readable) for stretch in result.stretches] == [
        (10, 14, False),
        (15, 19, True),
        (20, 24, False),
        (25, 29, True),
        (30, 31, False),
        (32, 39, False),
        (40, 45, True),
    ]
    assert drawn(result, {"global": [45], "aligned": [45], "latest": [32, 40], "exact": []}) == [
        "                 1  2  3  4  5  6  7",
        "orders           ●░░───●─────•──●─────",
        "daily            ●─────╌╌╌●──╌╌╌╌╌╌○──",
        "all together        ███   ███      ███",
        "global, aligned                    ▲",
        "latest                          ▲  ▲",
    ]


def test_a_picture_of_the_newest_part() -> None:
    result = timeline(view(), ["daily"], limit=3)
    assert drawn(result, {"as_of": [12], "latest": [40]}) == [
        "              1  2  3",
        "daily         ╌╌╌╌╌╌○──",
        "orders        •──●─────",
        "all together        ███",
        "as_of         ◀",
        "latest              ▲",
    ]


def test_a_picture_that_is_too_wide_goes_on_below() -> None:
    result = timeline(view(), ["orders"])
    lines = drawn(result, {"latest": [32]}, width=24)
    assert lines == [
        "              1  2  3",
        "orders        ●░░───●──",
        "all together     ██████",
        "",
        "              4  5",
        "orders        •──●──",
        "all together  ██████",
        "latest           ▲",
    ]
    assert max(map(len, drawn(result, {}, width=1))) < 20


def test_long_names_are_cut() -> None:
    table = TableEpochs(1, "a" * 63, commits=[1], changes=[1])
    lines = drawn(timeline(EpochView(3, 0, {1: table}), ["a" * 63]), {})
    assert lines[1] == "a" * 26 + "..  ●──"


def test_tables_without_a_commit_have_no_stretch() -> None:
    empty = EpochView(3, 0, {1: TableEpochs(1, "t")})
    assert timeline(empty, ["t"], 5, around=2) == Timeline(("t",), (), ())
    assert drawn(timeline(empty, ["t"]), {}) == []


def test_only_what_is_shown_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has seen a million commits is drawn as quickly as a young one."""
    ranges = []
    common_valid = EpochView.common_valid

    def noted(self: EpochView, refs: list[int], lo: int, hi: int) -> Intervals:
        ranges.append((lo, hi))
        return common_valid(self, refs, lo, hi)

    monkeypatch.setattr(EpochView, "common_valid", noted)
    every = range(10, 10_010, 10)
    tables = {number: TableEpochs(number, f"t{number}", commits=every, changes=every) for number in (1, 2)}
    old = EpochView(10_005, 0, tables)
    assert len(timeline(old, ["t1", "t2"], 4).stretches) == 4 and set(ranges) == {(9_970, 10_005)}
    ranges.clear()
    assert len(timeline(old, ["t1", "t2"], 4, around=5_001).stretches) == 4 and set(ranges) == {(4_970, 5_049)}
