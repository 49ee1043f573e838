"""Steps and replacements of views in a process that dies by SIGKILL: at failpoints, and anywhere else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from raw_check import raw_check
from view_shop import ORDERS

QUERY = "SELECT day, SUM(cents) * {} AS cents FROM {} GROUP BY day"
PLACES = (
    *("write:created", "write:half", "write:written", "write:done", "segment:written", "intent:registered"),
    *("commit:before-transaction", "commit:after-transaction", "seal:after"),
    *("job:before-commit", "job:after-commit", "rebuild:before-commit", "rebuild:after-commit"),
)
WORKER = f"""
import random, sys
import pyarrow as pa
import epochlog as el
from view_shop import ORDERS
chance = random.Random(int(sys.argv[2]))
with el.open(sys.argv[1], durability="os", checkpoint_interval_ms=10) as store:
    views = [store.view(name) for name in ("copy", "a", "b")]
    print("up", flush=True)
    while True:
        if chance.random() < 0.5:  # else views that have caught up are valid at the next boundary too
            ids = chance.sample(range(30), 4)
            days, cents = [chance.randrange(5) for _ in ids], [chance.randrange(1, 100) for _ in ids]
            store.table("orders").upsert(pa.table([ids, ids, days, cents], schema=ORDERS))
            store.checkpoint()
        if chance.random() < 0.5:
            factor = chance.randrange(1, 100)
            tables = {{name: chance.choice(["orders", "copy"]) for name in ("a", "b")}}
            store.replace_views({{name: {QUERY!r}.format(factor, table) for name, table in tables.items()}})
        for view in chance.sample(views, chance.randrange(4)):
            while view.step(take_over=True) is not None:
                pass
        print("round", flush=True)
"""


def require_one_definition(store: el.Store) -> int | None:
    """Compare both views, read at one epoch, with the orders; return the factor of their query, None without rows."""
    with store.snapshot(["a", "b", "orders"], consistency="aligned") as snapshot:
        orders = snapshot["orders"].to_arrow().group_by("day").aggregate([("cents", "sum")])
        sums = dict(zip(orders["day"].to_pylist(), orders["cents_sum"].to_pylist(), strict=True))
        rows = [snapshot[name].to_arrow() for name in ("a", "b")]
    contents = [dict(zip(r["day"].to_pylist(), r["cents"].to_pylist(), strict=True)) for r in rows]
    assert contents[0] == contents[1]
    assert contents[0].keys() == sums.keys()
    factors = {cents / sums[day] for day, cents in contents[0].items()}
    assert len(factors) <= 1, (contents, sums)
    return round(factors.pop()) if factors else None


@pytest.mark.long
@pytest.mark.local_only
def test_a_kill_within_a_step_or_a_replacement_leaves_one_definition(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, root = random.Random(seed), tmp_path / "store"
    with el.open(root, durability="os", checkpoint_interval_ms=10) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        orders.upsert(pa.table([[100], [1], [1], [10]], schema=ORDERS))
        store.create_view("copy", "SELECT id, day, cents FROM orders", ["id"])
        for name in ("a", "b"):
            store.create_view(name, QUERY.format(1, "orders"), ["day"])
        store.checkpoint()
        for name in ("copy", "a", "b"):
            store.view(name).step()
    killed_at: list[str] = []
    for attempt in range(8):
        place = chance.choice(PLACES) if attempt % 2 else ""
        armed = {"EPOCHLOG_KILL_AT": f"{place}:{chance.randrange(1, 6)}"} if place else {}
        child = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(root), str(chance.randrange(1 << 32))],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **armed},
        )
        assert child.stdout is not None
        for rounds, _ in enumerate(child.stdout):
            if rounds >= (25 if place else chance.randrange(1, 8)):  # of a place that these rounds do not come to
                child.kill()
                break
        child.communicate()
        assert child.returncode == -9, child.returncode
        killed_at.append(place or "anywhere")
        with el.open(root, durability="os", checkpoint_interval_ms=10) as store:
            require_one_definition(store)
            store.checkpoint()
            views = [store.view(name) for name in ("copy", "a", "b")]
            for view in [views[0], *chance.sample(views[1:], 2)]:
                while view.step(take_over=True) is not None:
                    require_one_definition(store)
            factor = require_one_definition(store)
            for view in views[1:]:
                assert view.sql in [QUERY.format(factor, table) for table in ("orders", "copy")], killed_at
                assert len(view.info.upstreams) == 1
            assert all(raw_check(view).ok for view in views)
