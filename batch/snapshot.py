"""Snapshots: several tables read at the epochs that a policy chose, pinned while the snapshot is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from epochlog.errors import InvalidInput, LimitExceeded, SnapshotExpired, TableNotReadable
from epochlog.store.catalog.keys import head_key, runs_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.catalog.records import Record
from epochlog.store.env.closeable import Closeable
from epochlog.store.env.process_local import OneProcess, warn_unclosed
from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.lookups import get_table
from epochlog.store.metadata.read_default import read_default
from epochlog.store.metadata.version import runs_from_record
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.schema import TableSchema

from .choice import ChoiceRead, choose_and_pin
from .default_policy import default_policy, policy_text
from .policy import Exact, Policy, advice_of, choose_epochs, left_out_of, listed
from .table_snapshot import TableSnapshot
from .tags import Tag, put_tag
from .token import decode_token, encode_token

if TYPE_CHECKING:
    import duckdb

MAX_OPEN_SNAPSHOTS = 1_000
"""Most open snapshots of one open store: each holds history back, so thousands are a leak."""


class PinnedSnapshot(OneProcess, Closeable):
    """Tables at chosen epochs, pinned until the snapshot is closed. `Snapshot` adds Spark's way to read them.

    `left_out` has, for a snapshot of all tables, the reason for each table that is missing; reading one raises
    TableNotReadable.
    """

    _instead = "send store.root and snapshot.token: epochlog.open(root).snapshot(consistency=epochlog.Exact(token))"

    def __init__(
        self,
        handle: Handle,
        holder: str,
        plans: Mapping[str, ScanPlan],
        token: str,
        policy: Policy,
        view: EpochView,
        left_out: Mapping[str, LeftOut],
    ) -> None:
        self._handle = handle
        self._holder = holder
        self._plans = dict(plans)
        self._left_out = dict(left_out)
        self._open = True
        self.left_out = {name: entry.reason for name, entry in left_out.items()}
        self.token = token
        self.policy = policy
        self.epochs = {name: plan.epoch for name, plan in plans.items()}
        self.lag_ms = {name: view.lag_ms(name, epoch) for name, epoch in self.epochs.items()}

    def __getitem__(self, table: str) -> TableSnapshot:
        self._check(table)
        return TableSnapshot(self._handle, self._plans[table], lambda: self._check(table))

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __del__(self) -> None:
        if self._open and not self._handle.leases.closing:
            warn_unclosed(self)

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Snapshot {state}, {self.policy!r}: {self.epochs}>"

    def close(self) -> None:
        """Release the holds of the snapshot; later reads raise SnapshotExpired."""
        if self._open:
            self._open = False
            self._handle.leases.release(self._holder)

    def tag(self, name: str, lasting: float | timedelta | None = None, *, partial: bool = False) -> Tag:
        """Keep the snapshot's epochs under a name, without this snapshot or process: for good, or for `lasting`
        (seconds or a timedelta, at most 366 days) from now on.

        `store.tags()` lists tags, `store.drop_tag(name)` deletes one. Tagging the same epochs under the same name again
        moves the end. Raises InvalidName, LimitExceeded, TableDropped, SnapshotExpired, InvalidInput when another tag
        has the name, and TableNotReadable for a snapshot of all tables that left some out, unless `partial` is True.
        """
        self._check_open()
        if self.left_out and not partial:
            raise TableNotReadable(
                f"this snapshot of all tables left some out: {listed([*self.left_out.values()])}. Tag it without them "
                "with partial=True, or take a snapshot that names its tables"
            )
        return put_tag(self._handle, decode_token(self.token), name, lasting)

    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """Return a DuckDB connection with every table of the snapshot as a view of its name.

        Queries read what they need when they run: their columns, and the row groups that may pass their filters; never
        a whole table into memory. After the snapshot is closed they fail with an error that says so. Decimals of more
        than 38 digits become text and halves become floats, since DuckDB has neither. A cursor of the connection lacks
        these views; create a connection for each thread.
        """
        import duckdb

        from .arrow_compat import compatible_schema, in_duckdb
        from .dataset import Relation

        connection = duckdb.connect()
        for name in self._plans:
            table = self[name]
            connection.register(
                name, Relation(table.through("duckdb"), schema=compatible_schema(table.schema, in_duckdb))
            )
        for name, entry in self._left_out.items():  # a query of such a table fails with its reason
            refused = TableSnapshot(self._handle, ScanPlan(entry.schema, 0), lambda name=name: self._check(name))
            connection.register(name, Relation(refused, schema=compatible_schema(refused.schema, in_duckdb)))
        return connection

    def read_as(self, columns: Mapping[str, TableSchema]) -> None:
        """Read these tables in other columns than those of their epochs, as a job does."""
        self._plans.update({name: replace(self._plans[name], table=schema) for name, schema in columns.items()})

    def _check_open(self) -> None:
        if not self._open:
            raise SnapshotExpired(
                "this snapshot was closed; take a new one, or repeat it with consistency=epochlog.Exact(token)"
            )

    def _check(self, table: str) -> None:
        self._check_open()
        if table in self.left_out:
            raise TableNotReadable(f"this snapshot left out the table: {self.left_out[table]}")
        if table not in self._plans:
            advice = advice_of(self.policy)
            raise InvalidInput(f"this snapshot has no table {table!r}; it has {sorted(self._plans)}{advice}")


S = TypeVar("S", bound=PinnedSnapshot)


def take_snapshot(
    handle: Handle,
    policy: Policy | None,
    tables: Sequence[str] | None = None,
    kind: type[S] = PinnedSnapshot,
    check: Callable[[], None] | None = None,
) -> S:
    """Choose epochs by the policy (None: the default of these tables) and pin them in a snapshot of class `kind`.

    A policy with a timeout is asked again when the catalog changes, until the timeout has passed. check: called during
    that wait; it raises an error to end the wait.
    """
    _require_names(tables)
    if handle.leases.count("snapshot") >= MAX_OPEN_SNAPSHOTS:
        raise LimitExceeded(
            f"{MAX_OPEN_SNAPSHOTS} snapshots of this store are open; close some of them (or use `with`)"
        )
    holder = handle.new_holder("snapshot")
    choice, (plans, keys) = choose_and_pin(
        handle,
        policy,
        lambda asked: _choose(asked, tables),
        lambda tx, choice: _pin(handle, tx, choice, holder),
        check,
    )
    handle.leases.share(holder, keys)
    names = {table_id: name for name, table_id in choice.view.ids.items()}
    epochs = {choice.view.ids[name]: plan.epoch for name, plan in plans.items()}
    reasons = {name: entry.reason for name, entry in choice.left_out.items()}
    chosen_by = choice.policy
    repeated = chosen_by.token if isinstance(chosen_by, Exact) else None
    text = repeated.policy if repeated is not None and repeated.policy else policy_text(chosen_by)
    token = encode_token(epochs, names, handle.store_id, reasons, text)
    return kind(handle, holder, plans, token, chosen_by, choice.view, choice.left_out)


def default_of(handle: Handle, tables: Sequence[str] | None) -> Policy:
    """Return the policy of a snapshot of these tables that names none. Raises InvalidInput for a wrong list."""
    _require_names(tables)
    return default_policy(tables, handle.catalog.read(read_default))


def _require_names(tables: Sequence[str] | None) -> None:
    if isinstance(tables, str):
        raise InvalidInput(f"tables must be a list of table names: write [{tables!r}]")
    if tables is not None and not (isinstance(tables, Sequence) and all(isinstance(name, str) for name in tables)):
        raise InvalidInput(f"tables must be a list of table names, not {tables!r}")
    if tables is not None and not tables:
        raise InvalidInput("a snapshot needs at least one table; leave tables out for all that the policy covers")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Table that a snapshot of all tables leaves out, and the reason."""

    schema: TableSchema
    reason: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """Chosen epochs, the policy that chose them, the files to read, and the records that each plan was made of."""

    policy: Policy
    view: EpochView
    plans: Mapping[str, ScanPlan]
    records: Mapping[str, PlanRecords]
    left_out: Mapping[str, LeftOut]


PlanRecords = tuple[Record, Record | None]
"""Head and runs record of a table. A plan stays valid as long as they do not change."""


def _choose(asked: ChoiceRead, tables: Sequence[str] | None) -> _Choice:
    view, policy = asked.view, asked.policy(tables)
    epochs, records = asked.epochs(policy, tables)
    chosen = choose_epochs(policy, epochs, tables)
    plans, planned = dict[str, ScanPlan](), dict[str, PlanRecords]()
    for name, epoch in chosen.items():
        table, head, version = records[name]
        planned[name] = _, runs = _with_runs(view, table.id, head)
        plans[name] = plan_scan(view, table, epoch, known=(version, runs_from_record(runs)))
    reasons = left_out_of(policy, epochs) if tables is None else {}
    left_out = {
        name: LeftOut(records[name].definition.schema, reason)
        for name, reason in reasons.items()
        if name in records and name not in chosen
    }
    return _Choice(policy, epochs, plans, planned, left_out)


def _pin(handle: Handle, tx: Txn, choice: _Choice, holder: str) -> tuple[dict[str, ScanPlan], list[bytes]]:
    """Return the plans, made again for each table that has changed, and the keys of their holds. Call inside a
    transaction.
    """
    now_ms, lease, plans = handle.catalog.now_ms(), handle.leases.store_lease(tx), dict[str, ScanPlan]()
    holds = []
    for name, plan in choice.plans.items():
        table_id = choice.view.ids[name]
        head = tx.get(head_key(table_id))
        if head is None or _with_runs(tx, table_id, head) != choice.records[name]:
            plan = plan_scan(tx, get_table(tx, table_id, name), plan.epoch)
        plans[name] = plan
        holds.append(Hold(holder, table_id, None, plan.epoch, now_ms, now_ms + LEASE_MS, lease=lease))
    return plans, put_holds(tx, holds)


def _with_runs(view: ReadTxn, table_id: int, head: Record) -> PlanRecords:
    return head, view.get(runs_key(table_id)) if head["runs"] else None
