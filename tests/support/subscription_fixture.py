"""Fixtures of subscriptions: a served store, a replica that applies batches by key, connections that break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.exchange.server import Server
from epochlog.exchange.subscription.client import Subscription
from epochlog.exchange.subscription.messages import Request
from epochlog.exchange.subscription.server import SubscriptionLimits, Subscriptions
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits
from epochlog.exchange.transport.duplex import ClientStream
from epochlog.exchange.transport.services import Exchange, Role
from ports import fixed_location
from wait_until import WAIT_LIMIT_S

TOKEN = "the-token"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def rows(*ids: int, v: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


class Replica:
    """A table by key, as a subscriber keeps it; checks the order of what it is given."""

    def __init__(self, key: str = "id") -> None:
        self.key = key
        self.state: dict[Any, dict[str, Any]] = {}
        self.epoch = 0
        self.received: list[tuple[int, Any, str]] = []  # (epoch, key, kind)
        self.changes = False

    def apply(self, batch: pa.RecordBatch) -> None:
        epochs = set(batch["_commit_version"].to_pylist())
        assert len(epochs) == 1, "a batch is of one epoch"
        epoch = epochs.pop()
        assert epoch >= self.epoch, "epochs never go back"
        self.epoch = epoch
        for row in batch.to_pylist():
            kind, key = row.pop("_change_type"), row[self.key]
            for name in ("_commit_version", "_commit_timestamp"):
                del row[name]
            assert kind in (("upsert", "delete") if self.changes else ("insert", "upsert", "delete"))
            self.changes = self.changes or kind != "insert"
            self.received.append((epoch, key, kind))
            if kind == "delete":
                self.state.pop(key, None)
            else:
                self.state[key] = row

    def follow(self, sub: Subscription, through: int) -> Replica:
        """Takes all through that epoch."""
        while sub.epoch is None or sub.epoch < through:
            batch = sub.poll(WAIT_LIMIT_S)
            if batch is None:
                assert sub.epoch is not None and sub.epoch >= through, "it does not come"
                break
            self.apply(batch)
        return self

    def same_as(self, table: el.Table) -> bool:
        assert len(set(self.received)) == len(self.received), "a change came twice"
        return sorted(self.state.values(), key=repr) == sorted(table.to_arrow().to_pylist(), key=repr)


@contextmanager
def served(
    folder: Path, bounds: SubscriptionLimits | None = None, **store: Any
) -> Iterator[tuple[el.Store, el.Table, Serving]]:
    """A new store with the table `t`, and a server of subscriptions alone."""
    with el.open(folder / "store", durability="os", **store) as opened:
        table = opened.create_table("t", SCHEMA, ["id"])
        serving = Serving(opened, bounds)
        try:
            yield opened, table, serving
        finally:
            serving.stop()


class Serving:
    """A server of subscriptions, which can be stopped and started again at its port."""

    def __init__(self, store: el.Store, bounds: SubscriptionLimits | None = None) -> None:
        self.store = store
        self.bounds = bounds
        self.location = fixed_location()
        self.start()

    def start(self) -> None:
        self.admission = AdmissionController(AdmissionLimits())
        self.service = Subscriptions(self.store._handle, self.admission, self.bounds)
        exchanges = {b"subscribe": Exchange(self.service.serve, Role.READ)}
        self.server = Server(self.location, token=TOKEN, read_token="r", exchanges=exchanges)
        self.location = self.server.location

    def stop(self) -> None:
        self.server.shutdown(5)
        self.admission.close()

    def subscribe(
        self, name: str = "t", *, reconnect: float = WAIT_LIMIT_S, port: int | None = None, **wanted: Any
    ) -> Any:
        with self.client(port) as client:
            return client.subscribe(name, reconnect=reconnect, **wanted)

    def client(self, port: int | None = None) -> Any:
        location = self.location if port is None else f"grpc://127.0.0.1:{port}"
        return el.connect(location, token=TOKEN, timeout=WAIT_LIMIT_S)

    @property
    def port(self) -> int:
        return int(self.location.rpartition(":")[2])


class BreakingConnections:
    """Opens connections that are cut after so many messages, each; then whole ones."""

    def __init__(self, serving: Serving, cuts: list[int]) -> None:
        self.serving = serving
        self.cuts = cuts
        self.dials = 0

    def __call__(self, command: bytes) -> ClientStream:
        line = ClientStream(self.serving.location, command, token=TOKEN, tls_roots=None)
        if self.dials < len(self.cuts):
            frames_left, read_frame = self.cuts[self.dials], line.read_frame

            def cut() -> Any:
                nonlocal frames_left
                if frames_left <= 0:
                    line.abort()
                    return read_frame()
                frames_left -= 1
                return read_frame()

            line.read_frame = cut  # pyright: ignore[reportAttributeAccessIssue]
        self.dials += 1
        return line

    def subscribe(self, **wanted: Any) -> Subscription:
        return Subscription(self, self.serving.location, Request("t", **wanted), WAIT_LIMIT_S, WAIT_LIMIT_S)
