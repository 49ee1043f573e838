"""The way that all stores go side by side, for a table of any shape: load, 20 commits, reads, compaction, reads, and
for the plain shape 20 commits and reads again. P1, P2, P3 and P8 are measured on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from byte_peers import Lmdb, Rocks
from contenders import Contender, Delta, Epochlog, Lance, result_cache, same_rows
from data import COMMITS, PLAIN, Shape, Workload, expected, make_workload
from file_peers import IPC, IPC_PLAIN, PARQUET, PARQUET_DEFAULTS, IpcFile, ParquetFile
from pairs import Samples, measure, timed, turned
from peers import PAIMON, PEERS
from pypaimon_peer import Paimon
from report import Figure, Target

OURS, DELTA, LANCE, ROCKS, LMDB = (who.name for who in (Epochlog, Delta, Lance, Rocks, Lmdb))
WARM = "again after one more commit"
BEFORE, AFTER, AGAIN = "before compaction", "after compaction", "20 commits after compaction"
COMMIT_TARGETS = (Target(OURS, DELTA, 1 / 40, "≤ 1/40"), Target(OURS, ROCKS, 1 / 2, "≤ 1/2"))
READ_TARGETS = {BEFORE: (1 / 2, "≤ 1/2"), AFTER: (1 / 3, "≤ 1/3"), AGAIN: (1 / 2, "≤ 1/2")}
PAST_TARGETS = (Target(OURS, DELTA, 1 / 2, "≤ 1/2"),)
POINTS = (1, 1_000, 100_000)
POINT_TARGETS = {1: Target(OURS, None, 1, "≤ 1 ms"), 100_000: Target(OURS, ROCKS, 1, "≤ 1")}
BACK = 15
WARM_ROUNDS = 4
"""Rounds of reads of few keys before those that count: all contenders have caches."""
SINGLES = 50
"""Calls that make a sample of single keys; one of lance's, which reads the table for each."""
WARM_COMMITS = 10
"""Commits of which each is followed by a read of the whole table, which puts it on the rows of the read before."""
ROCKS_READS, PAIMON_READS = 2, 1
PAIMON_COMMITS = 5
"""Number of commits in which pypaimon takes part; it gets the rows of the others at once."""


def lance_is_asked(count: int, shape: Shape) -> bool:
    """Its filter is a text: 100,000 keys are no text, and a thousand keys of two columns take it many seconds."""
    return count <= (1_000 if len(shape.primary_key) == 1 else 1)


class Course:
    """The plain shape meets every peer and goes the whole way; the others the first part, beside fewer."""

    def __init__(self, folder: Path, scale: float, add_figure: Callable[[Figure], None], shape: Shape = PLAIN) -> None:
        self._folder, self._shape, self._add_figure, plain = folder, shape, add_figure, shape is PLAIN
        self._rounds = (5 if plain else 3) if scale >= 1 else (3 if plain else 1)
        self._warm_rounds, self._singles = (WARM_ROUNDS, SINGLES) if scale >= 1 else (1, 10)
        self._work: Workload = make_workload(scale, (2 * COMMITS if plain else COMMITS) + WARM_COMMITS, shape=shape)
        self._ours, self._delta = Epochlog(folder / "e", shape), Delta(folder / "d", shape)
        self._lance, self._rocks = Lance(folder / "n", shape), Rocks(folder / "r", shape)
        self._lmdb = Lmdb(folder / "m", shape) if plain else None
        why = PEERS[PAIMON].why_absent() if plain else None
        self._paimon = Paimon(folder / "p", shape) if plain and why is None else None
        self._absent = {PAIMON: why} if why is not None else {}
        self._readers: list[Contender] = [self._ours, self._delta, self._lance, self._rocks]
        self.figures: list[Figure] = []
        self._stack = ExitStack()
        self._cache_bytes = self._stack.enter_context(result_cache(0))  # all reads but one begin with the files

    def run(self) -> None:
        """Go the whole way; what was measured is in `figures`."""
        stores = [*([self._paimon] if self._paimon else []), *self._readers, *([self._lmdb] if self._lmdb else [])]
        for store in stores:
            store.load(self._work.base)
        first, second = self._work.commits[:COMMITS], self._work.commits[COMMITS:-WARM_COMMITS]
        samples = self._commits(stores, first)
        self._looks(BEFORE, first)
        for store in self._readers:
            store.compact()
        self._looks(AFTER, first)
        if second:
            more = self._commits([store for store in stores if store is not self._paimon], second)
            samples = {name: took + more.get(name, []) for name, took in samples.items()}
            self._reads(AGAIN, (*first, *second))
        self._reads_again(self._work.commits[-WARM_COMMITS:])
        self._note("P1", f"durable commit of {self._shape.commit_rows:,} upserts", samples, COMMIT_TARGETS)

    def close(self) -> None:
        self._stack.close()
        for store in (*self._readers, self._lmdb, self._paimon):
            if store is not None:
                store.close()

    def _note(self, name: str, what: str, samples: Samples, targets: tuple[Target, ...]) -> None:
        absent = self._absent if name == "P1" or (name == "P2" and BEFORE in what) else {}
        self.figures.append(Figure(name, what, samples, targets, shape=self._shape.name, absent=absent))
        self._add_figure(self.figures[-1])

    def _commits(self, stores: Iterable[Contender], commits: tuple[pa.Table, ...]) -> Samples:
        by_name = {store.name: store for store in stores}
        samples: Samples = {name: [] for name in by_name}
        for place, rows in enumerate(commits):
            for name in turned(list(by_name), place):
                if name == PAIMON and place >= PAIMON_COMMITS:
                    continue
                prepared = by_name[name].prepare(rows)
                samples[name].append(timed(partial(by_name[name].commit, prepared)))
        if PAIMON in by_name and (rest := commits[PAIMON_COMMITS:]):
            by_name[PAIMON].commit(by_name[PAIMON].prepare(self._shape.newest(pa.concat_tables(rest).combine_chunks())))
        return samples

    def _looks(self, state: str, commits: tuple[pa.Table, ...]) -> None:
        self._reads(state, commits)
        self._past(state, commits)
        for count in POINTS:
            self._gets(state, count)

    def _reads(self, state: str, commits: tuple[pa.Table, ...]) -> None:
        wanted = expected(self._work.base, commits, self._shape)
        for store in self._readers:
            assert same_rows(store.as_arrow(store.read()), wanted), f"{store.name} returned other rows"
        files = [ParquetFile(self._folder, self._shape, tuned=tuned) for tuned in (True, False)]
        files += [IpcFile(self._folder, compressed=compressed) for compressed in (True, False)]
        for file in files:
            file.write(wanted)
            assert same_rows(file.read(), wanted), f"{file.name} returned other rows"
        samples = measure(
            {who.name: who.read for who in (*self._readers, *files)}, self._rounds, rounds_of={ROCKS: ROCKS_READS}
        )
        if self._paimon and state == BEFORE:  # not in turns with the others, and not often: it takes too long
            samples[PAIMON] = [timed(self._paimon.read) for _ in range(PAIMON_READS)]
            assert same_rows(self._paimon.last_read(), wanted), f"{PAIMON} returned other rows"
        at_most, says = READ_TARGETS[state]
        beside = min((PARQUET, PARQUET_DEFAULTS), key=lambda name: float(np.median(samples[name])))
        targets = (Target(OURS, DELTA, at_most, says), Target(OURS, beside, 2, "≤ 2"))
        self._note("P2", f"read the whole table {state}", samples, targets)

    def _reads_again(self, commits: tuple[pa.Table, ...]) -> None:
        """Read the whole table after each of these commits, beside one file of its rows before them."""
        samples: Samples = {OURS: [], PARQUET: []}
        file = ParquetFile(self._folder, self._shape, tuned=True)
        with result_cache(self._cache_bytes):
            file.write(self._ours.as_arrow(self._ours.read()))
            for place, rows in enumerate(commits):
                self._ours.commit(self._ours.prepare(rows))
                for name in turned(list(samples), place):
                    samples[name].append(timed(self._ours.read if name == OURS else file.read))
            wanted = expected(self._work.base, self._work.commits, self._shape)
            assert same_rows(self._ours.as_arrow(self._ours.read()), wanted), "a read of kept rows returned other rows"
        self._note("P2", f"read the whole table {WARM}", samples, (Target(OURS, PARQUET, 1.3, "≤ 1.3"),))

    def _past(self, state: str, commits: tuple[pa.Table, ...]) -> None:
        at = len(commits) - BACK
        wanted = expected(self._work.base, commits[:at], self._shape)
        work = {who.name: partial(who.read_at, at) for who in (self._ours, self._delta, self._lance)}
        for who in (self._ours, self._delta, self._lance):
            assert same_rows(who.as_arrow(work[who.name]()), wanted), f"{who.name} returned other rows of the past"
        self._note("P3", f"read {BACK} commits back, {state}", measure(work, self._rounds), PAST_TARGETS)

    def _gets(self, state: str, count: int) -> None:
        """Other keys in every call, the same for all; all are there."""
        chance, keys = np.random.default_rng(count), self._work.base.select(list(self._shape.primary_key))
        everybody: dict[str, Any] = {who.name: who for who in (self._ours, self._rocks, self._lmdb) if who}
        if lance_is_asked(count, self._shape):
            everybody[LANCE] = self._lance
        samples: Samples = {name: [] for name in everybody}
        warm_rounds = self._warm_rounds if count < max(POINTS) else 1  # so many keys are in nearly every block
        for place in range(-warm_rounds, self._rounds):
            draws = self._singles if count == 1 else 1
            picks = [chance.choice(len(keys), min(count, len(keys)), replace=False) for _ in range(draws)]
            key_tables = [keys.take(pa.array(pick)) for pick in picks]
            for name in turned(list(everybody), place):
                who, calls = everybody[name], 1 if name == LANCE else draws
                lookups = [who.keys(rows) for rows in key_tables[:calls]]
                if place == -warm_rounds:
                    results = [who.get(lookup) for lookup in lookups]
                    assert [len(rows) for rows in results] == [len(rows) for rows in key_tables[:calls]], name
                    assert not any(row is None for rows in results if isinstance(rows, list) for row in rows), name
                    continue
                took = timed(partial(_each, who.get, lookups)) / calls
                if place >= 0:
                    samples[name].append(took)
        targets = (POINT_TARGETS[count],) if count in POINT_TARGETS else ()
        self._note("P8", f"get {count:,} keys {state}", samples, targets)


def _each(work: Callable[[Any], Any], items: list[Any]) -> None:
    for item in items:
        work(item)


def legs(shape: Shape) -> list[tuple[str, str]]:
    """List the measurements of a course of this shape, each paired with one contender."""
    plain = shape is PLAIN
    stores = [OURS, DELTA, LANCE, ROCKS]
    files = [PARQUET, PARQUET_DEFAULTS, IPC, IPC_PLAIN]
    states, reads = (BEFORE, AFTER), (BEFORE, AFTER, AGAIN) if plain else (BEFORE, AFTER)
    contenders = {f"durable commit of {shape.commit_rows:,} upserts": [*stores, *([LMDB, PAIMON] if plain else [])]}
    contenders |= {f"read the whole table {state}": [*stores, *files] for state in reads}
    contenders[f"read the whole table {WARM}"] = [OURS, PARQUET]
    if plain:
        contenders[f"read the whole table {BEFORE}"].append(PAIMON)
    contenders |= {f"read {BACK} commits back, {state}": [OURS, DELTA, LANCE] for state in states}
    for count in POINTS:
        askers = [OURS, ROCKS, *([LMDB] if plain else []), *([LANCE] if lance_is_asked(count, shape) else [])]
        contenders |= {f"get {count:,} keys {state}": askers for state in states}
    return [(what, who) for what, everybody in contenders.items() for who in everybody]
