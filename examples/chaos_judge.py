"""Tables of chaos.py, the ledger of its writer, and the comparison of what is read at one epoch with DuckDB's answers.

A commit of the writer is a line of the ledger once the store has acknowledged it. So the ledger tells which payments
the table has at an epoch, without the store.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import epochlog as el

PAYMENTS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("id", "account", "cents")])
VIEWS = {
    "large": ("SELECT id, account, cents, cents - 5000 AS above FROM payments WHERE cents >= 5000", ["id"]),
    "balances": (
        "SELECT account, SUM(cents) AS cents, COUNT(*) AS number, MAX(cents) AS most FROM payments GROUP BY account",
        ["account"],
    ),
    "shares": (
        "SELECT l.id, l.account, l.cents, b.cents AS balance FROM large l JOIN balances b ON l.account = b.account",
        ["id"],
    ),
}
"""Query and primary key of each view; the third reads the other two."""
TABLES = ("payments", *VIEWS)
ACCOUNTS = 400
NEW, CHANGED, DELETED = 40, 15, 5
"""Numbers of payments that a commit adds, changes and deletes."""
WITH = "WITH " + ", ".join(f"{name} AS ({sql})" for name, (sql, _) in VIEWS.items())


@dataclass(frozen=True)
class Acknowledged:
    """Commit of the writer that the store has acknowledged."""

    epoch: int
    upserts: list[list[int]]
    """Values of the columns of each payment."""
    deletes: list[int]
    """Ids."""


class Writer:
    """Writer of payments, and of the ledger."""

    def __init__(self, store: el.Store, ledger: Path, seed: int) -> None:
        self._store, self._ledger, self._chance = store, ledger, random.Random(seed)
        self._ids: list[int] = []
        self._next = 0

    def commit(self) -> Acknowledged:
        """Commit new, changed and deleted payments together, and write down what was acknowledged."""
        self._chance.shuffle(self._ids)
        deletes, self._ids = self._ids[:DELETED], self._ids[DELETED:]
        new = list(range(self._next, self._next + NEW))
        upserts = [self._payment(number) for number in [*self._ids[:CHANGED], *new]]
        with self._store.transaction() as transaction:
            transaction.upsert("payments", rows_of(upserts))
            if deletes:
                transaction.delete("payments", pa.table({"id": deletes}))
        self._ids += new
        self._next += NEW
        commit = Acknowledged(transaction.epoch, upserts, deletes)
        with self._ledger.open("a") as file:
            print(json.dumps(asdict(commit)), file=file)
        return commit

    def _payment(self, number: int) -> list[int]:
        return [number, self._chance.randrange(ACCOUNTS), self._chance.randrange(10_000)]


def rows_of(payments: Iterable[list[int]]) -> pa.Table:
    """Return payments as a table."""
    return pa.Table.from_pylist([dict(zip(PAYMENTS.names, payment, strict=True)) for payment in payments], PAYMENTS)


def read_ledger(path: Path) -> list[Acknowledged]:
    """Return the commits of the ledger; without its last line while the writer has not ended that."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Acknowledged(**json.loads(line)) for line in lines if line.endswith("\n")]


def payments_at(epoch: int, commits: Iterable[Acknowledged]) -> pa.Table:
    """Return the payments at an epoch by the commits that were acknowledged."""
    payments: dict[int, list[int]] = {}
    for commit in commits:
        if commit.epoch <= epoch:
            payments |= {payment[0]: payment for payment in commit.upserts}
            for number in commit.deletes:
                payments.pop(number, None)
    return rows_of(payments.values())


def differing(moment: Mapping[str, pa.Table], ledger: pa.Table) -> dict[str, int]:
    """Count rows that are missing, or too many, in what was read at one epoch; return only counts above zero.

    moment: the rows of `payments` and of each view. ledger: the payments at that epoch by the ledger.
    """
    counts = {"payments beside the ledger": _count(moment["payments"], ledger, "payments")}
    for name in VIEWS:
        counts[f"{name} beside its query over payments"] = _count(moment[name], moment["payments"], name)
        counts[f"{name} beside its query over the ledger"] = _count(moment[name], ledger, name)
    return {what: count for what, count in counts.items() if count}


def _count(actual: pa.Table, payments: pa.Table, name: str) -> int:
    """Count the rows by which `actual` differs from what DuckDB computes for a table or view over payments."""
    with duckdb.connect() as connection:
        connection.register("payments", payments)
        connection.register("actual", actual)
        result: Any = connection.execute(
            f"{WITH}, expected AS MATERIALIZED (FROM {name}) SELECT count(*) FROM "
            "((FROM actual EXCEPT ALL FROM expected) UNION ALL (FROM expected EXCEPT ALL FROM actual))"
        ).fetchone()
    return result[0]


def judge(store: el.Store, token: str, commits: Iterable[Acknowledged]) -> dict[str, int]:
    """Read all tables of a token, which must be of one epoch, and compare them; see `differing`."""
    with store.snapshot(list(TABLES), consistency=el.Exact(token)) as moment:
        (epoch,) = {*moment.epochs.values()}
        return differing({name: moment[name].to_arrow() for name in TABLES}, payments_at(epoch, commits))
