"""Tables that a replaced view reads: those of its new query from the replacement on, those of the old one before it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.metadata.lookups import find_job
from lab import KEY, Lab, epochs_of
from raw_check import raw_check

ROOTS, VIEWS = ("r", "s"), ("a", "b", "c")


def query(*tables: str, factor: int = 1) -> str:
    """Return the query that adds up the rows of tables by key."""
    rows = " UNION ALL ".join(f"SELECT k, v FROM {table}" for table in tables)
    return f"SELECT k, MAX(CAST(k AS STRING)) AS g, SUM(v) * {factor} AS v FROM ({rows}) GROUP BY k"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    for table in ROOTS:
        lab.root_table(table)
        lab.put({1: (0, 10)}, table)
    yield lab
    lab.store.close()


def step(lab: Lab, *views: str, ticks: float = 1) -> list[int | None]:
    lab.tick(ticks)
    return [lab.store.view(name).step() for name in views]


def valid(lab: Lab, table: str, epoch: int) -> bool:
    return epochs_of(lab.store).valid(table, epoch)


@pytest.mark.rule("5.11")
def test_a_replaced_view_no_longer_waits_for_the_tables_that_only_its_old_query_read(lab: Lab) -> None:
    lab.store.create_view("mid", query("r"), KEY)
    top = lab.store.create_view("top", query("mid"), KEY)
    first = max(filter(None, step(lab, "mid", "top")))
    boundary = lab.store.replace_views({"top": query("r")})
    with pytest.raises(el.TableInUse, match=r"'top'.*step"):
        lab.store.drop_view("mid")
    assert top.info.upstreams == ("r",) and valid(lab, "top", boundary - 1)
    assert top.step() == boundary
    lab.put({1: (0, 11)})
    for name in ("top", "mid"):  # `top` does not wait for `mid`
        assert step(lab, name) != [None]
    assert valid(lab, "top", first) and valid(lab, "top", boundary - 1)
    assert raw_check(top).ok
    lab.store.drop_view("mid")
    assert not valid(lab, "top", first) and valid(lab, "top", boundary)
    assert "dropped" in epochs_of(lab.store).why_not(["top"], first)[0]
    assert lab.rows("top", first) == lab.rows("top", boundary)  # the rows stay
    lab.put({1: (0, 12)})
    assert step(lab, "top") != [None] and raw_check(top).ok
    assert lab.store.verify().problems == ()


@pytest.mark.rule("5.11")
def test_two_views_of_which_one_reads_the_other_change_places(lab: Lab) -> None:
    for name, sql in {"a": query("r"), "b": query("a", factor=2)}.items():
        lab.store.create_view(name, sql, KEY)
    first = max(filter(None, step(lab, "a", "b")))
    boundary = lab.store.replace_views({"a": query("b", factor=2), "b": query("r")})
    lab.put({1: (0, 11)})
    assert step(lab, "a") == [None]  # `b` is not committed there
    assert lab.store.view("b").step() == boundary == lab.store.view("a").step()
    for _ in range(2):
        step(lab, "b", "a")
    assert lab.rows("a") == {1: ("1", 22)} and lab.rows("b") == {1: ("1", 11)}
    for epoch in (first, boundary - 1, boundary):
        with lab.store.snapshot(["a", "b"], consistency=el.AsOf(epoch)) as snapshot:
            assert max(snapshot.epochs.values()) == epoch


@pytest.mark.medium
def test_a_view_that_is_ahead_of_a_table_that_its_new_query_reads_can_be_stepped(lab: Lab) -> None:
    lab.store.create_view("slow", query("s"), KEY)
    lab.store.create_view("top", query("r"), KEY)
    step(lab, "slow", "top")
    lab.put({1: (0, 11)}, "s")
    lab.put({1: (0, 11)})
    step(lab, "top")
    boundary = lab.store.replace_views({"top": query("slow")})
    lab.store.close()
    lab.store = lab.open()
    assert lab.store.view("top").step() is None
    assert lab.store.view("slow").step() and (lab.store.view("slow").step() or 0) <= boundary
    step(lab, "slow", "top")
    assert raw_check(lab.store.view("top")).ok and lab.store.verify().problems == ()


@pytest.mark.medium
def test_the_tables_of_forgotten_queries_are_forgotten(lab: Lab) -> None:
    lab.store.create_view("a", query("r"), KEY)
    for factor in range(2, 8):
        step(lab, "a")
        lab.store.replace_views({"a": query("r" if factor % 2 else "s", factor=factor)})
        lab.put({1: (0, factor)})
        step(lab, "a", "a")
        lab.tick(30 * 3600)
        for table in ("a", "r", "s"):
            lab.store.compact(table, full=True)
    record = lab.store._handle.catalog.read(lambda view: find_job(view, "a"))
    assert len(record.former) <= 2


# ---- at random -----------------------------------------------------------------------------------------------------


class ReplacedViews:
    """Views over two root tables that are replaced, dropped and stepped at random, with all definitions by epoch."""

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self.lab, self.chance = lab, chance
        self.definitions: list[tuple[int, dict[str, tuple[tuple[str, ...], int]]]] = []
        self.seen: Counter[str] = Counter()
        shapes = self._shapes(VIEWS)
        for name in self.order:
            lab.store.create_view(name, query(*shapes[name][0], factor=shapes[name][1]), KEY)
        self.definitions.append((0, shapes))

    def _shapes(self, names: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], int]]:
        """Choose the tables and factors of views, each of tables before it in a random order."""
        self.order = self.chance.sample(names, len(names))
        shapes = {}
        for place, name in enumerate(self.order):
            tables = (*ROOTS, *self.order[:place])
            shapes[name] = (tuple(self.chance.sample(tables, self.chance.randint(1, 2))), self.chance.randint(1, 3))
        return shapes

    def act(self) -> None:
        store, chance = self.lab.store, self.chance
        action = chance.choice(["put", "put", "step", "step", "step", "step", "tick", "replace", "drop", "reopen"])
        if action == "put":
            self.lab.put({chance.randrange(3): (0, chance.randrange(100))}, chance.choice(ROOTS))
        elif action == "step":
            store.view(chance.choice(VIEWS)).step()
        elif action == "tick":
            self.lab.tick(chance.choice([0.3, 1, 2.5, 30]))
        elif action == "replace":
            shapes = self._shapes(VIEWS)
            changed = chance.sample(VIEWS, chance.randint(1, 3))
            new = {**self.definitions[-1][1], **{name: shapes[name] for name in changed}}
            try:
                epoch = store.replace_views({name: query(*new[name][0], factor=new[name][1]) for name in changed})
            except el.JobCycle:
                self.seen["cycle"] += 1
            else:
                self.definitions.append((epoch, new))
        elif action == "drop":
            self._make_again(chance.choice(VIEWS))
        elif action == "reopen":
            self.lab.reopen()

    def _make_again(self, name: str) -> None:
        """Drop a view that no other reads, and create one of its name."""
        try:
            self.lab.store.drop_view(name)
        except el.TableInUse as error:
            self.seen["still in use" if "step the view" in str(error) else "in use"] += 1
            return
        self.seen["dropped"] += 1
        tables, factor = self.chance.sample(ROOTS, self.chance.randint(1, 2)), self.chance.randint(1, 3)
        self.lab.store.create_view(name, query(*tables, factor=factor), KEY)
        shape = (tuple(tables), factor)  # at all its epochs: no valid epoch of another view is of the dropped one
        self.definitions = [(begin, {**shapes, name: shape}) for begin, shapes in self.definitions]

    def expected(self, name: str, epoch: int) -> dict[int, int]:
        """Compute a table at an epoch from the root tables there, by the queries of that epoch."""
        if name in ROOTS:
            return {key: value for key, (_, value) in self.lab.rows(name, epoch).items()}
        shapes = next(shapes for begin, shapes in reversed(self.definitions) if begin <= epoch)
        sums: Counter[int] = Counter()
        for table in shapes[name][0]:
            for key, value in self.expected(table, epoch).items():
                sums[key] += value * shapes[name][1]
        return dict(sums)

    def check(self) -> None:
        view = epochs_of(self.lab.store)
        marks = {0, *(begin for begin, _ in self.definitions)}
        for name in (*ROOTS, *VIEWS):
            marks.update(self.lab.store.table(name).history()["epoch"].to_pylist())
        near = sorted({m + d for m in marks for d in (-1, 0, 1) if 0 < m + d <= view.last_epoch} | {view.last_epoch})
        for name in VIEWS:
            starts, ends = view.valid_intervals(name)
            for epoch in near:
                is_valid = view.valid(name, epoch)
                assert is_valid == bool(((starts <= epoch) & (epoch <= ends)).any()), (name, epoch)
                assert is_valid == (not view.why_not([name], epoch)), (name, epoch, view.why_not([name], epoch))
                assert not is_valid or view.complete(name, epoch), (name, epoch)
                newest = max([int(e) for e in ends if e <= epoch] + [epoch] * is_valid, default=None)
                assert view.largest_valid_at_most([name], epoch) == newest, (name, epoch)
                if is_valid:
                    rows = {key: value for key, (_, value) in self.lab.rows(name, epoch).items()}
                    assert rows == self.expected(name, epoch), (name, epoch)
                    old = epoch < self.definitions[-1][0]
                    self.seen["an earlier query" if old else "the newest query"] += 1

    def come_to_rest(self) -> None:
        for _ in VIEWS:
            step(self.lab, *VIEWS, ticks=64)
        while any(step(self.lab, *VIEWS, ticks=0)):
            pass
        view = epochs_of(self.lab.store)
        assert view.largest_valid_at_most(VIEWS) == view.last_epoch
        assert [view.lag_ms(name) for name in VIEWS] == [0, 0, 0]
        self.seen["rest"] += 1


@pytest.mark.rule("2.4", "2.5", "5.11")
@pytest.mark.medium
def test_views_replaced_at_random_equal_their_query_of_the_epoch(lab: Lab) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    world = ReplacedViews(lab, random.Random(seed))
    for number in range(1, 121):
        world.act()
        if number % 12 == 0:
            world.check()
        if number % 40 == 0:
            world.come_to_rest()
            world.check()
    assert world.seen["an earlier query"] > 20 and world.seen["the newest query"] > 20, world.seen
    assert lab.store.verify().problems == ()
