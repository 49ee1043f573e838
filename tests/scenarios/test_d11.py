"""D11: a hundred random left-deep joins in processes of their own, with random SIGKILLs: the results are right.

The processes are those of examples/staged_join.py: producers, joins and a collector for each join, around a served
store with its catalog in Redis, ten joins at a time. The seed is printed; EPOCHLOG_D11_SEED repeats it (what is joined
and who is killed after which pause, not how the processes happen to run).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import staged_join
from staged_join import Build, Cast, Plan, Redis, Serve, Work

import epochlog as el
from stores import watch
from wait_until import wait_until

pytestmark = [
    pytest.mark.local_only, pytest.mark.slow, pytest.mark.redis, pytest.mark.usefixtures("redis_on_path"),
]  # fmt: skip

GROUPS, JOINS, FEW = 10, 10, 4
TABLES, KEYS = 6, 120
KILLS = {"producer": 8, "consumer": 16, "server": 2, "redis": 2}
"""In each group, as far as there is anybody left to kill."""
FEWER_KILLS = {"producer": 4, "consumer": 6, "server": 2, "redis": 2}
"""In a group of `FEW` joins."""
BUILD = pa.schema([pa.field("key", pa.int64(), nullable=False), ("value", pa.string())])


def fill(store: el.Store, chance: random.Random) -> None:
    """Build tables of different sizes, one of them empty; two probe tables, each of some epochs."""
    for number in range(TABLES):
        keys = chance.sample(range(KEYS), 0 if number == 0 else chance.randrange(1, KEYS))
        table = store.create_table(f"b{number}", BUILD, ["key"])
        table.upsert(pa.table({"key": sorted(keys), "value": [f"{number}/{key}" for key in sorted(keys)]}))
    names = [f"k{number}" for number in range(TABLES)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *((name, pa.int64()) for name in names)])
    for name in ("p0", "p1"):
        table, ids = store.create_table(name, schema, ["id"]), list(range(chance.randrange(200)))
        while ids:
            some, ids = ids[:70], ids[70:]
            rows = {key: [chance.choice([None, *range(KEYS)]) for _ in some] for key in names}
            table.upsert(pa.table({"id": some, **rows}, schema=schema))


def a_plan(store: el.Store, catalog: str, location: str, query: str, chance: random.Random) -> Plan:
    """Two to four build sides, each on a column of its own."""
    epoch = {info.name: info.max_committed_epoch for info in store.tables()}
    chosen = chance.sample(range(0 if chance.random() < 0.1 else 1, TABLES), chance.randint(2, 4))
    builds = tuple(Build(f"b{number}", epoch[f"b{number}"], "key", f"k{number}") for number in chosen)
    probe = chance.choice(["p0", "p1"])
    return Plan(query, store.root, catalog, location, probe, epoch[probe], builds, chance.choice([3, 7, 20, 50]))


def wanted(store: el.Store, plan: Plan) -> pa.Table:
    """Compute the join in DuckDB over the plan's tables."""
    with duckdb.connect() as db:
        db.register(plan.probe, store.table(plan.probe).to_arrow())
        values, joins = "", ""
        for build in plan.builds:
            db.register(build.table, store.table(build.table).to_arrow())
            values += f", {build.table}.value as {build.table}_value"
            joins += f" join {build.table} on {plan.probe}.{build.on} = {build.table}.key"
        query = f"select {plan.probe}.*{values} from {plan.probe}{joins} order by id"
        return db.sql(query).to_arrow_table()


def alone(plan: Plan) -> pa.Table:
    """Run the join's functions in one process, without an exchange between them."""
    batches = list(staged_join.changes(plan))
    for build in plan.builds:
        table = pa.Table.from_batches(list(staged_join.snapshot(plan, build)))
        batches = [staged_join.inner_join(batch, table, build) for batch in batches]
    return pa.Table.from_batches(batches)


def answers(location: str) -> bool:
    """Return True if the server at that location can be reached."""
    try:
        with el.connect(location) as client:
            client.changes("p0", 0, 0)
    except el.ServerUnavailable:
        return False
    return True


def wrong(store: el.Store, plan: Plan) -> str:
    """Describe the difference of the result from the expected rows; empty if they are equal."""
    result, expected = store.table(plan.result).to_arrow(), wanted(store, plan)
    if result.to_pylist() != expected.to_pylist():
        return f"{plan}: {result.num_rows} rows that are not DuckDB's {expected.num_rows}"
    return "" if result.to_pylist() == alone(plan).to_pylist() else f"{plan}: not what it is without an exchange"


def run_group(
    folder: Path,
    seed: str,
    joins: int,
    kills: dict[str, int],
    work: Work = staged_join.work,
    serve: Serve = staged_join.serve,
) -> tuple[Counter[str], str]:
    """So many joins at once over one served store: whom it hit, and what is wrong with the results."""
    chance = random.Random(seed)
    folder.mkdir()
    fates = [kind for kind, times in kills.items() for _ in range(times)]
    chance.shuffle(fates)
    root = str(folder / "store")
    with (
        Redis(str(folder)) as redis,
        el.open(root, redis.url, durability="os") as store,
        Cast(root, redis, work=work, serve=serve) as cast,
    ):
        fill(store, chance)
        plans = [a_plan(store, redis.url, cast.location, f"q{number}", chance) for number in range(joins)]
        for plan in plans:
            staged_join.prepare(store, plan)
        cast.run(plans, fates, chance, pause_s=0.04)
        if fates:  # a run may end with the server killed and still starting
            cast.kill_server()
        wait_until(lambda: answers(cast.location))
        problems = [text for plan in plans if (text := wrong(store, plan))]
        assert store.verify().ok
        watch.forget()  # the store's Redis ends here, before the check of all stores
    return cast.kills, "\n".join(problems)


@pytest.fixture(scope="module")
def seed() -> str:
    number = os.environ.get("EPOCHLOG_D11_SEED") or str(random.SystemRandom().randrange(2**32))
    print(f"EPOCHLOG_D11_SEED={number}")
    return number


@pytest.mark.parametrize(
    "groups", [1, pytest.param(3, marks=pytest.mark.long), pytest.param(GROUPS, marks=pytest.mark.campaign)]
)
def test_d11_a_hundred_joins_under_random_kills_give_the_result_of_none(tmp_path: Path, seed: str, groups: int) -> None:
    kills: Counter[str] = Counter()
    joins, plan = (JOINS, KILLS) if groups > 1 else (FEW, FEWER_KILLS)
    for group in range(groups):
        hit, problems = run_group(tmp_path / str(group), f"{seed}/{group}", joins, plan)
        assert not problems, f"EPOCHLOG_D11_SEED={seed}, group {group}:\n{problems}"
        kills += hit
    print(f"killed: {dict(kills)}")
    assert all(kills[kind] >= groups for kind in Cast.KINDS), kills


@pytest.mark.long
def test_d11_without_kills(tmp_path: Path, seed: str) -> None:
    assert run_group(tmp_path / "calm", f"{seed}/0", JOINS, {}) == (Counter(), "")
