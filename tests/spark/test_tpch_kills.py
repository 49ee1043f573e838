"""TPC-H's views while orders come, change and go, and while drivers and workers of Spark are killed: at any moment what
is read as of one epoch is DuckDB's answer over the orders and lines of that epoch, to the last row.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import tpch
import tpch_data
from tpch_views import VIEWS

import epochlog as el

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("tpch_driver.py")
CREWS = {"a": ["q1", "q3_orders", "q3"], "b": ["q6", "q5", "q10_customers", "q10"]}
FAILPOINTS = ["segment:written", *(f"job:{when}-commit:{turn}" for when in ("before", "after") for turn in (1, 2))]
SCALE = 0.1
PAUSE_S, PAUSES = 0.05, 12_000  # ten minutes: patience, for a machine that is busy with other things


def patiently(what: Callable[[], object], why: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(PAUSES):
        if what():
            return
        pause.wait(PAUSE_S)
    raise AssertionError(f"it has not come true: {why()}")


class Driver:
    """A driver process with its JVM and the JVM's Python workers; what it says is collected."""

    def __init__(self, root: str, names: list[str], log: Path, kill_at: str = "") -> None:
        self.names, self.log, self._messages, self._heard = names, log, list[list[str]](), 0
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), root, *names],
                env={**os.environ, "EPOCHLOG_KILL_AT": kill_at, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._messages.append(line.split())

    def order(self, *words: str) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def expect(self, *words: str) -> list[str]:
        """The rest of the next line that begins so, of those that no call has waited for yet."""

        def is_printed() -> bool:
            assert self._hearing.is_alive() or self._next(words) is not None, (
                words,
                self._messages,
                self.log.read_text(),
            )
            return self._next(words) is not None

        patiently(is_printed, lambda: (words, self._messages))
        at = self._next(words)
        assert at is not None
        self._heard = at + 1
        return self._messages[at][len(words) :]

    def _next(self, words: tuple[str, ...]) -> int | None:
        return next(
            (at for at in range(self._heard, len(self._messages)) if self._messages[at][: len(words)] == [*words]), None
        )

    def forget(self) -> None:
        """Skip all messages up to now."""
        self._heard = len(self._messages)

    def workers(self) -> list[int]:
        """The Python processes of this driver's JVM."""
        parents = {int(stat.parent.name): parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
        family, jvm = {self.process.pid}, int(self.message_of("ready")[0])
        family.add(jvm)
        for _ in range(4):
            family |= {pid for pid, above in parents.items() if above in family}
        return sorted(family - {self.process.pid, jvm})

    def message_of(self, word: str) -> list[str]:
        return next(words[1:] for words in self._messages if words[0] == word)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._hearing.join()


def reads_lines(view: str) -> bool:
    """Return True if every refresh gives the view changes."""
    return "lineitem" in VIEWS[view].upstreams


def parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it has ended meanwhile
        return 0


class Story:
    """A store under refreshes, two drivers that keep its views, and what becomes of them. `seed` gives the refreshes
    and the plot; when exactly things happen is left to chance.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        print(f"seed {seed}")
        self.seed, self.folder = seed, folder
        self.rng, self.looks = random.Random(seed), random.Random(~seed)  # how often it looks depends on the machine
        tpch_data.generate(folder / "files", SCALE)
        self.store = el.open(folder / "store", durability="os", checkpoint_interval_ms=200)
        tpch_data.load(self.store, folder / "files")
        tpch.create_jobs(self.store)
        self.number, self.newest, self.epochs = 0, self.store.last_epoch, list[int]()
        self.drivers = {crew: self.start(crew) for crew in CREWS}

    def start(self, crew: str, kill_at: str = "") -> Driver:
        return Driver(self.store.root, CREWS[crew], self.folder / f"{crew}.log", kill_at)

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.kill()
        self.store.close()

    def commit(self) -> None:
        self.number += 1
        self.newest = tpch_data.refresh(self.store, self.seed, self.number)

    def look(self, views: Sequence[str] = ()) -> None:
        """Check some views, or all, at the newest epoch valid for them, in any state of the jobs."""
        views = views or self.looks.sample(list(VIEWS), self.looks.randint(1, len(VIEWS)))
        with self.store.snapshot([*tpch_data.KEYS, *views], consistency="aligned") as moment:
            wrong = {name: count for name, count in tpch.differing(moment, views).items() if count}
            assert not wrong, (f"seed {self.seed}", self.number, moment.epochs, wrong)
            self.epochs.append(moment.epochs["orders"])

    def caught_up(self, views: Sequence[str] = tuple(VIEWS)) -> bool:
        """Return True if these views include the newest refresh. Now and then check the views meanwhile."""
        try:
            if self.looks.random() < 0.03:
                self.look()
            with self.store.snapshot([*tpch_data.KEYS, *views], consistency="aligned") as moment:
                return moment.epochs["orders"] >= self.newest
        except el.NoConsistentEpoch:  # not all of them have been made yet
            return False

    def follow(self, views: Sequence[str] = tuple(VIEWS)) -> None:
        """Wait until these views have taken everything in, and look at them."""
        messages = [(driver.names, driver._messages) for driver in self.drivers.values()]
        patiently(lambda: self.caught_up(views), lambda: messages)
        self.look(views)
        assert self.epochs[-1] >= self.newest

    def rows(self) -> dict[str, pa.Table]:
        return {name: self.store.table(name).to_arrow() for name in VIEWS}

    # ---- troubles ----------------------------------------------------------------------------------------------------

    def caught_at_work(self, crew: str) -> Driver:
        """The driver, some time after it has begun to take in a refresh."""
        driver = self.drivers[crew]
        driver.forget()
        self.commit()
        driver.expect("begun")
        for _ in range(self.rng.randint(0, 2)):
            self.look()
        return driver

    def killed_twice(self, crew: str) -> None:
        """A driver at its work whenever it comes, and its successor where a commit is half done."""
        self.caught_at_work(crew).kill()
        self.look()
        self.commit()
        kill_at = self.rng.choice(FAILPOINTS)
        print(kill_at)
        driver = self.start(crew, kill_at)
        patiently(lambda: driver.process.poll() is not None, lambda: (kill_at, driver._messages))
        driver.kill()
        assert driver.process.returncode == -signal.SIGKILL
        self.look()
        self.drivers[crew] = self.start(crew)

    def stopped_and_replaced(self, crew: str) -> None:
        """A driver that goes on when another has taken its jobs over learns of it, and has no effect."""
        old = self.caught_at_work(crew)
        os.killpg(old.process.pid, signal.SIGSTOP)
        try:
            self.drivers[crew] = self.start(crew)
            self.follow()
            before = self.rows(), {name: self.store.job(name).info.incarnation for name in VIEWS}
            os.killpg(old.process.pid, signal.SIGCONT)
            patiently(lambda: old.process.poll() is not None, lambda: old._messages)
            assert before == (self.rows(), {name: self.store.job(name).info.incarnation for name in VIEWS})
            self.look()
        finally:
            old.kill()

    def workers_killed(self, crew: str) -> None:
        """Spark's Python workers, while a refresh needs them: its job tries again by itself."""
        driver = self.caught_at_work(crew)
        patiently(driver.workers, lambda: driver._messages)
        for pid in driver.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.follow()

    def jvm_killed(self, crew: str) -> None:
        """The driver lives on without its Spark: each job says so at its next barrier, and commits no more."""
        driver = self.caught_at_work(crew)
        os.kill(int(driver.message_of("ready")[0]), signal.SIGKILL)
        self.commit()
        patiently(lambda: all(self.lost(name) for name in driver.names if reads_lines(name)), lambda: driver._messages)
        self.look()
        driver.kill()
        self.drivers[crew] = self.start(crew)

    def lost(self, name: str) -> bool:
        return (self.store.job(name).info.last_error or "").startswith("SparkLost")

    def raises(self, crew: str) -> None:
        driver = self.drivers[crew]
        name = self.tell(driver, "raise")
        self.commit()
        driver.expect("raised", name)
        self.follow()

    def tell(self, driver: Driver, word: str) -> str:
        name = self.rng.choice([name for name in driver.names if reads_lines(name)])
        driver.order(word, name)
        driver.expect("told", name)
        return name

    def hangs(self, crew: str) -> None:
        """One view stands still, its rows written: the others go on, and are as of one epoch without it."""
        driver = self.drivers[crew]
        name = self.tell(driver, "hang")
        self.commit()
        driver.expect("hanging", name)
        self.commit()
        others = [view for view in VIEWS if name not in (view, *VIEWS[view].upstreams)]
        self.follow(others)
        self.look(list(VIEWS))
        driver.kill()
        self.drivers[crew] = self.start(crew)


SHORT = (Story.killed_twice, Story.workers_killed, Story.raises, Story.hangs)
LONG = (*SHORT, Story.jvm_killed, Story.stopped_and_replaced)


def play(story: Story, troubles: Sequence[Callable[[Story, str], None]]) -> None:
    """All these troubles in any order, each for either driver."""
    story.follow()
    first = story.rows()
    for trouble in story.rng.sample(troubles, len(troubles)):
        crew = story.rng.choice(list(CREWS))
        print(trouble.__name__, *CREWS[crew])
        trouble(story, crew)
        if story.rng.random() < 0.5:
            story.store.compact()
            story.store.vacuum(grace=0)
        story.look()
    story.follow()
    print(f"{len(story.epochs)} moments at {len({*story.epochs})} epochs of {story.number} refreshes")
    assert len({*story.epochs}) >= 4, "the first, and one after each trouble that is waited for"
    assert not [name for name, rows in story.rows().items() if rows.equals(first[name])], "the refreshes passed them by"
    pairs = [tuple(row["txn"].values()) for row in story.store.table("orders").history().to_pylist()]
    assert pairs[::-1] == [("load", 0), *(("refresh", number + 1) for number in range(story.number))]


@pytest.fixture
def story(tmp_path: Path, seed: int) -> Iterator[Story]:
    made = Story(tmp_path, seed)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_at_any_moment_the_views_are_duckdbs_answers(story: Story) -> None:
    play(story, SHORT)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_at_any_moment_of_longer_runs(story: Story) -> None:
    play(story, LONG)
