"""Options of a load, resolved as Spark resolves them, without a session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.spark.batch_source import Load, resolve_load
from spark_store import SCHEMA, rows


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "lake") as opened:
        opened.create_table("orders", SCHEMA, ["id"])
        opened.create_table("city", SCHEMA, ["id"])
        yield opened


def load(store: el.Store, **options: object) -> Load:
    """Resolve a load as Spark does: all values are text, and `path` names the store."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return resolve_load({"path": store.root, "table": "orders", **texts})


def copy(ctx: Any) -> None:
    ctx.upsert("copy", ctx.table("orders"))


def test_options_of_policies_choose_the_epoch(store: el.Store) -> None:
    orders = store.table("orders")
    first = orders.upsert(rows(0, 3))
    job = store.create_job("copy", ["orders"], {"copy": (SCHEMA, ["id"])})
    store.checkpoint()
    common = job.step_local(copy)
    second = orders.upsert(rows(3, 3))
    assert common and first <= common < second
    for tables in ("orders,copy", '["copy", "orders"]'):
        (epoch,) = {load(store, table=name, consistency="aligned", tables=tables).epoch for name in ("orders", "copy")}
        assert common <= epoch < second
    assert load(store, consistency="aligned", tables="orders").epoch >= second
    assert load(store, consistency="latest", tables="orders,copy").epoch == second
    assert load(store, consistency="as_of", epoch=common).epoch == common
    assert load(store, consistency="as_of", timestamp="2999-01-01T00:00:00Z", tables="orders,copy").epoch == epoch
    assert load(store, consistency="at_least", epoch=second, timeout="10s").epoch >= second
    assert load(store, consistency="bounded", maxLag="1h").epoch >= second
    assert load(store, consistency="bounded", maxLag=3600, timeout="500ms").epoch >= second
    assert load(store, consistency="global", includeCreating=True).epoch == load(store, consistency="global").epoch
    assert load(store, consistency="global", includeCreating=False).epoch == load(store, consistency="global").epoch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versionasoff": 1}, "InvalidInput: epochlog has no option 'versionasoff'"),
        ({"foo": 1}, "InvalidInput: a load of .* takes no option foo; it takes path, .*, versionAsOf, .*snapshot, "),
        (
            {"foo": 1, "readChangeFeed": True},
            "InvalidInput: a change feed .* takes no option foo; it takes .*consumerId",
        ),
        ({"versionAsOf": 1, "readChangeFeed": True}, "InvalidInput: option versionAsOf .* set startingVersion to the "),
        ({"versionAsOf": 1 << 52}, "EpochNotCommitted: table 'orders'"),
        ({"versionAsOf": "x"}, "InvalidInput: option versionAsOf"),
        ({"versionAsOf": 1, "snapshot": "t"}, "InvalidInput: options versionAsOf and snapshot"),
        ({"columns": "nope"}, "InvalidInput: table 'orders' has no column 'nope'"),
        ({"filter": "nope = 1"}, "InvalidInput: filter 'nope = 1': there is no column 'nope'"),
        ({"filter": "id ="}, "InvalidInput: filter 'id ='"),
        (
            {"filter": "day = 'd'", "readChangeFeed": True},
            "InvalidInput: filter .*there is no column 'day'; there are id",
        ),
        ({"snapshot": "GARBAGE"}, "InvalidInput: invalid snapshot token"),
        ({"snapshot": "2026-q3"}, "TagNotFound: there is no tag '2026-q3'; the tags are: none"),
        ({"consistency": "wishful"}, "InvalidInput: unknown consistency policy 'wishful'"),
        ({"consistency": "aligned"}, "InvalidInput: consistency=aligned .*'tables', 'orders,revenue'"),
        ({"consistency": "aligned", "tables": "city"}, "InvalidInput: option tables has no 'orders'"),
        ({"consistency": "aligned", "tables": "orders,no"}, "TableNotFound: there is no table 'no'"),
        ({"maxLag": "30s"}, "InvalidInput: option maxLag belongs to a policy"),
        ({"tables": "orders", "versionAsOf": "1"}, "InvalidInput: option tables belongs to a policy"),
        ({"versionAsOf": 1, "epoch": 1}, "InvalidInput: option epoch belongs to a policy"),
        ({"consistency": "latest", "maxLag": "1"}, "InvalidInput: the policy 'latest' takes no option maxLag"),
        ({"consistency": "as_of", "maxLag": "1"}, "InvalidInput: .* takes no option maxLag; it takes epoch, timestamp"),
        ({"consistency": "bounded", "maxLag": "soon"}, "InvalidInput: option maxLag: a length of time is needed"),
        ({"consistency": "bounded"}, "InvalidInput: the policy 'bounded' needs max_lag"),
        ({"consistency": "bounded", "max_lag": "1s"}, "InvalidInput: .*did you mean 'maxLag'"),
        ({"consistency": "at_least", "epoch": "x"}, "InvalidInput: option epoch must be a whole number"),
        ({"consistency": "at_least", "epoch": 1 << 52, "timeout": "10ms"}, "NoConsistentEpoch: "),
        ({"consistency": "exact", "epoch": 1}, "InvalidInput: .* takes no option epoch; it takes no options in Spark"),
        ({"timestampAsOf": "yesterday"}, "InvalidInput: option timestampAsOf"),
        ({"timestampAsOf": "2026"}, "InvalidInput: option timestampAsOf"),
        ({"columns": "[1]"}, "InvalidInput: option columns"),
        ({"filter": "amount LIKE 'a'"}, "InvalidInput: filter .* does not fit the columns"),
        ({"table": "missing"}, "TableNotFound: there is no table 'missing'"),
        ({"table": ""}, "InvalidInput: .*needs .option"),
        ({"txnAppId": "a", "txnVersion": 1}, "InvalidInput: option txnAppId is for writing"),
    ],
)
def test_bad_options_are_refused(store: el.Store, options: dict[str, object], message: str) -> None:
    with pytest.raises(el.EpochlogError) as caught:
        load(store, **options)
    assert re.search(message, f"{type(caught.value).__name__}: {caught.value}"), caught.value
