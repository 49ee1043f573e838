"""P22: commits of late changes: with a sequence, of some columns, and with checks, beside plain upserts and a MERGE."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from contenders import Delta
from data import COMMITS, PLAIN, make_workload
from pairs import ReplayClock, Samples, timed, turned
from report import Book, Figure, Target

import epochlog as el

PLAIN_UPSERT, SEQUENCE, UPDATE, CHECKS = "plain upserts", "sequence_by", "update of two columns", "checks"
PEER = "deltalake MERGE of greater sequences"
COMMITTED = "durable commit of 20,000 changes"
WHO = (SEQUENCE, UPDATE, CHECKS, PLAIN_UPSERT, PEER)
TARGETS = (
    Target(SEQUENCE, PLAIN_UPSERT, 2.5, "≤ 2.5"),
    Target(UPDATE, PLAIN_UPSERT, 2.5, "≤ 2.5"),
    Target(SEQUENCE, PEER, 1 / 10, "≤ 1/10"),
)


class LatestMerge(Delta):
    """deltalake: a MERGE that updates rows of smaller sequences only."""

    def commit(self, prepared: pa.Table) -> None:
        merger = self._table.merge(prepared, self._same_key, source_alias="s", target_alias="t")
        merger.when_matched_update_all("s.at > t.at").when_not_matched_insert_all().execute()


def with_sequence(rows: pa.Table, chance: np.random.Generator, at: int) -> pa.Table:
    """Add a sequence to rows of the commit `at`: a tenth of them are late."""
    sequence = np.where(chance.random(rows.num_rows) < 0.1, 10 * at - 15, 10 * at)  # no two are equal
    return rows.append_column(pa.field("at", pa.int64(), nullable=False), pa.array(sequence))


def committed(folder: Path, scale: float) -> Figure:
    """Commit the same changes everywhere in turns; tables that must be equal are compared at the end."""
    work, chance = make_workload(scale, COMMITS, shape=PLAIN), np.random.default_rng(22)
    base = with_sequence(work.base, chance, 0)
    commits = [with_sequence(rows, chance, at) for at, rows in enumerate(work.commits, start=1)]
    delta = LatestMerge(folder / "d")
    delta.load(base)
    with el.open(folder / "e") as store:
        options = {
            PLAIN_UPSERT: {},
            SEQUENCE: {"sequence_by": "at"},
            UPDATE: {},
            CHECKS: {"checks": {"known": "at >= -20"}},
        }
        tables = {
            name: store.create_table(f"t{place}", base.schema, list(PLAIN.primary_key), **chosen)
            for place, (name, chosen) in enumerate(options.items())
        }
        for table in tables.values():
            table.upsert(base)
            store.compact(table.name, full=True)
        samples: Samples = {name: [] for name in WHO}
        for place, rows in enumerate(commits):
            some = rows.select([*PLAIN.primary_key, "value", "at"])
            calls = {name: partial(tables[name].upsert, rows) for name in (PLAIN_UPSERT, SEQUENCE, CHECKS)}
            calls |= {UPDATE: partial(tables[UPDATE].update, some), PEER: partial(delta.commit, rows)}
            for name in turned(WHO, place):
                samples[name].append(timed(calls[name]))
        ours, theirs = tables[SEQUENCE].to_arrow(), delta.as_arrow(delta.read())
        assert ours.equals(theirs.select(ours.column_names).cast(ours.schema))
        return Figure("P22", COMMITTED, samples, TARGETS)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    commit_figure = committed(tmp_path_factory.mktemp("changes"), scale)
    book.add(commit_figure)
    return commit_figure


@pytest.mark.parametrize("who", WHO)
def test_p22_commits(who: str, clock: ReplayClock, benchmark, figure: Figure) -> None:
    clock.play(benchmark, figure.samples[who])
