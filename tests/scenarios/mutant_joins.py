"""The processes of a staged join with a mutation each; they are imported by the processes themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import staged_join
from staged_join import Plan

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.stage_gate import Delivery, StageGate
from epochlog.exchange.staged import transactions
from epochlog.exchange.staged.pull_handler import StageSender

# ---- a gate that trusts the counter ----------------------------------------------------------------------------------


def _trusting_take(gate: Any) -> list[Delivery]:
    """Gives out a stage once all lower ones have ended, though their batches have not come."""
    taken: list[Delivery] = []
    for channels in gate._stages.values():
        taken += [delivery for name in channels for delivery in gate._channels[name].take()]
        if any(gate._channels[name].last_seq is None for name in channels):
            break
    return taken


def _trusting_open(sender: Any) -> list[str]:
    catalog = sender._service.handle.catalog
    stage = catalog.read(lambda view: transactions.find_query(view, sender._query)).stage
    return [name for at, names in sender._stages.items() if at <= stage for name in names]


def trust_the_counter() -> None:
    gate: Any = StageGate
    sender: Any = StageSender
    gate.take, sender._open_channels = _trusting_take, _trusting_open


def trusting_work(plan: Plan, name: str, attempt: int) -> None:
    trust_the_counter()
    staged_join.work(plan, name, attempt)


def trusting_serve(root: str, port: int, catalog: str) -> None:
    trust_the_counter()
    staged_join.serve(root, port, catalog)


# ---- acknowledged before it is durable -------------------------------------------------------------------------------


def hasty_work(plan: Plan, name: str, attempt: int) -> None:
    """The collector acknowledges what it has received, and commits some of it together later."""
    if name != "result":
        staged_join.work(plan, name, attempt)
        return
    with (
        el.open(plan.root, plan.catalog, durability="os") as store,
        plan.exchange() as exchange,
        exchange.consume(name, incarnation=attempt) as mail,
    ):
        waiting: list[pa.RecordBatch] = []
        for _, _, batch in mail:
            mail.ack()
            waiting.append(batch)
            if len(waiting) == 4:
                _commit(store, plan, waiting)
                waiting.clear()
        _commit(store, plan, waiting)


def _commit(store: el.Store, plan: Plan, batches: list[pa.RecordBatch]) -> None:
    with store.transaction() as tx:
        for batch in batches:
            tx.upsert(plan.result, pa.Table.from_batches([batch]))


# ---- others ----------------------------------------------------------------------------------------------------------


class _AcksAll:
    """A consumer's mail whose every acknowledgement covers all that was given out."""

    def __init__(self, mail: Any) -> None:
        self._mail = mail

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._mail.close()

    def __iter__(self) -> Any:
        return iter(self._mail)

    @property
    def cursor(self) -> dict[str, int]:
        return self._mail.cursor

    def ack(self, cursor: object) -> None:
        self._mail.ack()


def forgetful_work(plan: Plan, name: str, attempt: int) -> None:
    """Joins acknowledge their build side, which nothing durable of theirs covers."""
    client: Any = ExchangeClient
    consume: Callable[..., Any] = client.consume
    client.consume = lambda *args, **options: _AcksAll(consume(*args, **options))
    staged_join.work(plan, name, attempt)


def fickle_work(plan: Plan, name: str, attempt: int) -> None:
    """A join puts its rows out in another order each time."""
    matched = staged_join.inner_join

    def turned(rows: pa.RecordBatch, table: pa.Table, build: staged_join.Build) -> pa.RecordBatch:
        joined = matched(rows, table, build)
        return joined.take(pa.array(range(joined.num_rows), pa.int64())[::-1]) if attempt % 2 else joined

    staged_join.inner_join = turned
    staged_join.work(plan, name, attempt)
