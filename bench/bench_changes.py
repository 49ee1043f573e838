"""P22: commits of late changes: with a sequence, of some columns, and with checks, beside plain upserts and a MERGE.
A job's commit that leaves out its unchanged rows, beside one that does not.
P24: reads of a table whose columns were altered ten times among its commits, beside one that never was.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contenders import Delta, result_cache
from data import COMMITS, PLAIN, make_workload
from pairs import ReplayClock, Samples, measure, timed, turned
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


DROPPED, WRITTEN = "drop_unchanged", "drop_unchanged=False"
REFRESHED = "commit of a job: 20,000 rows, half of them unchanged"
ROUNDS = 21

ALTERED, FIXED = "altered ten times", "never altered"
READS = ("all rows before compaction", "1,000 keys before compaction", "all rows after compaction")
ALTERS: tuple[dict[str, Any], ...] = (
    {"rename": {"value": "amount"}},
    {"add": [pa.field("more", pa.int32())]},
    {"rename": {"name": "label"}},
    {"widen": {"more": pa.int64()}},
    {"add": [pa.field("gone", pa.string())]},
    {"drop": ["gone"]},
    {"rename": {"amount": "label", "label": "amount"}},
    {"rename": {"label": "value", "amount": "name"}},
    {"add": [pa.field("gone", pa.int8())]},
    {"drop": ["gone"]},
)
"""Alters after which a table has the columns of the workload, and `more`."""


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


# ---- unchanged rows --------------------------------------------------------------------------------------------------


def refreshed(folder: Path, scale: float) -> Figure:
    """Step two jobs in turns. Each step writes the same rows into both outputs, of which half are there already."""
    work, tick = make_workload(scale, 1, shape=PLAIN), pa.schema([pa.field("id", pa.int64(), nullable=False)])
    chance, size = np.random.default_rng(23), work.commits[0].num_rows
    with el.open(folder) as store:
        upstream = store.create_table("tick", tick, ["id"])
        jobs = {
            name: store.create_job(
                f"j{place}",
                ["tick"],
                {f"out{place}": el.Output(PLAIN.schema, list(PLAIN.primary_key), drop_unchanged=name == DROPPED)},
            )
            for place, name in enumerate((DROPPED, WRITTEN))
        }
        outputs = dict(zip(jobs, ("out0", "out1"), strict=True))
        samples: Samples = {name: [] for name in jobs}
        for number in range(ROUNDS + 1):
            rows = work.base
            if number:
                keys = np.sort(chance.choice(rows.num_rows, size, replace=False))
                old = store.table("out0").to_arrow().take(pa.array(keys))
                changed = np.where(np.arange(size) % 2 == 0, chance.random(size), old["value"].to_numpy())
                rows = old.set_column(old.schema.get_field_index("value"), old.schema.field("value"), pa.array(changed))
            upstream.upsert([{"id": number}])
            store.checkpoint()
            for name in turned(list(jobs), number):
                took = timed(
                    partial(jobs[name].step_local, lambda ctx, to=outputs[name], rows=rows: ctx.upsert(to, rows))
                )
                if number:
                    samples[name].append(took)
                else:
                    store.compact(outputs[name], full=True)
        assert store.table("out0").to_arrow().equals(store.table("out1").to_arrow())
        return Figure("P22", REFRESHED, samples, (Target(DROPPED, WRITTEN, 2.5, "≤ 2.5"),))


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    figure = refreshed(tmp_path_factory.mktemp("unchanged"), scale)
    book.add(figure)
    return figure


@pytest.mark.parametrize("who", [DROPPED, WRITTEN])
def test_p22_unchanged_rows(who: str, clock: ReplayClock, benchmark, unchanged: Figure) -> None:
    clock.play(benchmark, unchanged.samples[who])


# ---- altered tables --------------------------------------------------------------------------------------------------


def by_names(rows: pa.Table, names: dict[str, str], schema: pa.Schema) -> pa.Table:
    """Return rows of the workload by the present names of their columns; other columns are null."""
    columns = {names.get(name, name): rows[name] for name in rows.column_names}
    nulls = {field.name: pa.nulls(rows.num_rows, field.type) for field in schema}
    return pa.table([columns.get(field.name, nulls[field.name]) for field in schema], schema=schema)


def altered_reads(folder: Path, scale: float) -> list[Figure]:
    """Write the same rows into both tables, and alter one of them after each second commit."""
    work, targets = make_workload(scale, 2 * len(ALTERS), shape=PLAIN), (Target(ALTERED, FIXED, 1.1, "≤ 1.1"),)
    with el.open(folder) as store, result_cache(0):
        schema = pa.schema([*PLAIN.schema, ("more", pa.int64())])
        fixed = store.create_table("fixed", schema, list(PLAIN.primary_key))
        altered = store.create_table("altered", PLAIN.schema, list(PLAIN.primary_key))
        tables, names = {ALTERED: altered, FIXED: fixed}, {name: name for name in PLAIN.schema.names}
        for place, rows in enumerate([work.base, *work.commits]):
            for table in tables.values():
                table.upsert(by_names(rows, names if table is altered else {}, table.schema))
            if place == 0:
                store.compact("fixed", full=True)
                store.compact("altered", full=True)
            elif place % 2 == 0:
                change = ALTERS[place // 2 - 1]
                altered.alter(**change)
                moved = change.get("rename", {})
                names = {name: moved.get(now, now) for name, now in names.items()}
        keys = work.base.select(["id"]).take(np.linspace(0, work.base.num_rows - 1, 1_000, dtype=np.int64))
        assert altered.to_arrow().equals(fixed.to_arrow())
        samples = [
            measure({name: table.to_arrow for name, table in tables.items()}, 11),
            measure({name: partial(table.get, keys) for name, table in tables.items()}, 21),
        ]
        for table in tables.values():
            store.compact(table.name, full=True)
        samples.append(measure({name: table.to_arrow for name, table in tables.items()}, 11))
        return [Figure("P24", f"read {what}", taken, targets) for what, taken in zip(READS, samples, strict=True)]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    figures = altered_reads(tmp_path_factory.mktemp("altered"), scale)
    for each in figures:
        book.add(each)
    return dict(zip(READS, figures, strict=True))


@pytest.mark.parametrize("who", [ALTERED, FIXED])
@pytest.mark.parametrize("what", READS)
def test_p24_reads(what: str, who: str, clock: ReplayClock, benchmark, reads: dict[str, Figure]) -> None:
    clock.play(benchmark, reads[what].samples[who])
