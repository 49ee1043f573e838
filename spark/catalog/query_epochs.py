"""Query epochs: the epochs at which one query reads the tables of a Spark catalog.

Spark asks for the tables of a query one after the other, so a catalog chooses the epochs of all its tables at once,
when the first of them is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from epochlog.batch.choice import ChoiceRead, choose
from epochlog.batch.policy import AsOf, Exact, Global, Latest, Policy, choose_epochs, left_out_of
from epochlog.batch.tags import list_tags
from epochlog.errors import (
    EpochExpired,
    EpochNotCommitted,
    InvalidInput,
    SchemaChanged,
    TableNotFound,
    TableNotReadable,
)
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.epoch_errors import require_begun
from epochlog.store.epochs.explain import blamed
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_tables, find_table, get_table, get_version
from epochlog.store.scan.scan_plan import require_complete
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch

_NO_REASONS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class QueryEpochs:
    """Epochs at which one query reads the tables: their epochs by name, the ids of all tables of the store, and the
    reasons for which the others have no epoch.
    """

    epochs: Mapping[str, int]
    ids: Mapping[str, int]
    left_out: Mapping[str, str] = field(default_factory=lambda: _NO_REASONS)

    def epoch(self, table: str) -> int:
        """Return the epoch of a table. Raises TableNotFound, TableNotReadable."""
        if table in self.epochs:
            return self.epochs[table]
        if table not in self.ids:
            raise TableNotFound(f"there is no table {table!r}; the catalog has: {', '.join(self.epochs) or 'none'}")
        raise TableNotReadable(self.left_out.get(table) or f"the catalog does not include {table!r}")

    def epoch_of(self, table: TableDef) -> int:
        """Return the epoch of a table that was loaded before. Raises TableNotFound, TableNotReadable."""
        if self.ids.get(table.name) != table.id:
            raise TableNotFound(f"table {table.name!r} was dropped after the query was analysed; run the query again")
        return self.epoch(table.name)


@dataclass(frozen=True, slots=True)
class NamedMoment:
    """Moment that a query names for a table: an epoch, a time in Unix milliseconds, or the name of a tag or a token."""

    epoch: int | None = None
    unix_ms: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """Table as a query reads it."""

    definition: TableDef
    epoch: int | None = None
    """None for the newest definition, of which no rows are read."""
    changed: int | None = None
    """Epoch of the newest commit at or below `epoch`, which has the same rows; `epoch` itself if it is not known. Of a
    definition that of its newest commit, by which Spark 4.0 finds what it has cached of the table that it writes.
    """
    outdated: bool = False
    """True if the table was altered after `epoch`."""
    moment: NamedMoment | None = None
    """Moment at which the query names the table (`VERSION AS OF`), if any."""
    chosen: QueryEpochs | None = None
    """Query epochs with which it was loaded; None for a given epoch."""
    fixed: bool = False
    """True if the catalog's policy reads the past (`AsOf`, `Exact`): later commits do not change the rows."""

    @property
    def rows_at(self) -> int:
        """Return the epoch at which to read rows. Raises TableNotReadable for a definition."""
        if self.epoch is None:
            raise TableNotReadable(f"table {self.definition.name!r} was loaded to write or alter it: read it anew")
        return self.epoch

    def named(self, moment: NamedMoment) -> LoadedTable:
        """Return the table as one that the query names at a moment, whose rows do not depend on later commits."""
        return replace(self, changed=self.epoch, moment=moment)


def require_present_columns(handle: Handle, definition: TableDef) -> None:
    """Raise SchemaChanged if a stream or a write would have the columns of an epoch before the table's newest alter."""
    current = handle.catalog.read(lambda view: get_table(view, definition.id, definition.name))
    if current.schema.version != definition.schema.version:
        raise SchemaChanged(
            f"table {current.name!r} was altered at epoch {current.schema.version}, after the epoch at which the "
            "catalog reads it: use format('epochlog') with the table's path, or a catalog with consistency='latest'"
        )


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """Tables of a catalog, and the policy that chooses their epochs (None: the default)."""

    handle: Handle
    policy: Policy | None
    names: tuple[str, ...] | None = None
    """Names of the tables; None for all tables of the store."""

    def listed(self) -> list[str]:
        """Return the names of the tables, sorted."""
        stored = self._stored()
        return stored if self.names is None else [name for name in stored if name in self.names]

    @property
    def fixed(self) -> bool:
        """Return True if the policy reads the past: later commits do not show in the catalog."""
        return isinstance(self.policy, AsOf | Exact)

    def require_tables(self) -> None:
        """Raise TableNotFound if the store lacks a table of the catalog; StoreClosed for a closed store."""
        stored = self._stored()
        for name in self.names or ():
            if name not in stored:
                raise TableNotFound(
                    f"tables={list(self.names or ())}: there is no table {name!r}; the store has: "
                    f"{', '.join(stored) or 'none'}"
                )

    def _stored(self) -> list[str]:
        return sorted(table.name for table in self.handle.catalog.read(lambda view: list(all_tables(view))))

    def newest(self) -> QueryEpochs:
        """Return the epochs that the policy chooses now; wait for them as long as the policy says."""
        return self._choose(self.policy)

    def at(self, moment: NamedMoment) -> QueryEpochs | int:
        """Return the epochs at a moment: a given epoch, those of a tag or a token, or the newest ones at or before a
        time.
        """
        if moment.epoch is not None:
            return moment.epoch
        if moment.unix_ms is not None:
            return self._choose(AsOf(timestamp=moment.unix_ms))
        return self.tagged(moment.name) or self._choose(Exact(moment.name))

    def tagged(self, name: str) -> QueryEpochs | None:
        """Return the epochs of a tag; None if there is no tag of this name."""
        tag = next((tag for tag in list_tags(self.handle) if tag.name == name), None)
        return None if tag is None else self._choose(Exact(tag.token))

    def load(self, table: str, chosen: QueryEpochs | int) -> LoadedTable:
        """Return the table at its epoch. Raises TableNotFound, TableNotReadable, EpochNotCommitted, InvalidInput."""
        self._require_listed(table)

        def read(view: ReadTxn) -> LoadedTable:
            definition = find_table(view, table)
            if isinstance(chosen, QueryEpochs):
                pinned = get_table(view, chosen.ids.get(table, definition.id), table)
                return _loaded(view, pinned, chosen.epoch(table), chosen)
            epochs = self._view(view)
            require_complete(table, chosen, epochs.complete_through(definition.id))
            require_begun(epochs.table(definition.id), chosen, zero=False)
            return _loaded(view, definition, chosen)

        return replace(self.handle.catalog.read(read), fixed=self.fixed)

    def load_again(self, loaded: LoadedTable, chosen: QueryEpochs) -> LoadedTable:
        """Return a table that was loaded for a frame at the epoch of a query of the frame. Raises SchemaChanged for a
        table that was altered between them, and the errors of `load`.
        """
        definition = loaded.definition
        chosen.epoch_of(definition)  # raises for a table that was made anew
        again = self.load(definition.name, chosen)
        if again.definition.schema.version != definition.schema.version:
            raise SchemaChanged(
                f"table {definition.name!r} was altered after the frame was made, and this Spark keeps the columns of "
                "a frame: make the frame again"
            )
        return again

    def defined(self, table: str) -> LoadedTable:
        """Return the newest definition of a table, to write or alter it: no choice of epochs has a part in that. Raises
        TableNotFound.
        """
        self._require_listed(table)

        def read(view: ReadTxn) -> LoadedTable:
            definition = find_table(view, table)
            return LoadedTable(definition, changed=get_version(view, definition.id, table).max_committed_epoch)

        return self.handle.catalog.read(read)

    def explain_late_column(self, label: str, newest: TableDef, column: str) -> TableNotReadable | None:
        """Return the error for a column that the table has, but not at the epoch at which queries read it; None if that
        is not so. label: the table's name in the catalog.
        """
        epochs = self.newest()
        then = self.load(newest.name, epochs).definition.schema.schema
        if column in then.names or column not in newest.schema.schema.names:
            return None
        view = self.handle.catalog.read(self._view)
        added = newest.schema.version
        views = [name for name in epochs.epochs if view.table(name).derived]
        return TableNotReadable(
            f"{label} has the column {column} since epoch {show_epoch(added)}, and queries read it at epoch "
            f"{show_epoch(epochs.epoch(newest.name))}: {'; '.join(view.why_not(views, added)) or 'by their policy'}. "
            "Wait until the views named have caught up, or read it by el.catalog(spark, store, name='…', "
            f"consistency='aligned', tables=['{newest.name}'])"
        )

    def _require_listed(self, table: str) -> None:
        if self.names is not None and table not in self.names:
            raise TableNotFound(f"this catalog has no table {table!r}, only {', '.join(self.names)}")

    def _choose(self, policy: Policy | None) -> QueryEpochs:
        def answer(asked: ChoiceRead) -> QueryEpochs:
            chosen_by = asked.policy(self.names)
            return choose_query_epochs(chosen_by, asked.epochs(chosen_by)[0], self.names)

        return choose(self.handle, policy, answer)

    def _view(self, view: ReadTxn) -> EpochView:
        return read_epoch_view(view, self.handle.memory, self.handle.catalog.now_ms(), self.handle.store_id)


def _loaded(view: ReadTxn, table: TableDef, epoch: int, chosen: QueryEpochs | None = None) -> LoadedTable:
    """Return the table with the columns that it has at the epoch."""
    changed = min(epoch, get_version(view, table.id, table.name).max_committed_epoch)
    then = replace(table, schema=table.schema.at(epoch))
    return LoadedTable(then, epoch, changed, table.schema.version != then.schema.version, chosen=chosen)


def choose_query_epochs(policy: Policy, view: EpochView, names: Sequence[str] | None) -> QueryEpochs:
    """Return the epochs that the policy chooses for these tables; None: for all that it covers, or all that take part
    in `global`. Tables without history there have none. Pure.
    """
    if names is not None:
        known = [name for name in names if name in view.ids]
        return QueryEpochs(choose_epochs(policy, view, known), view.ids)
    if isinstance(policy, Global):
        return QueryEpochs(choose_epochs(policy, view), view.ids, _outside(policy, view))
    if hasattr(policy, "covers") or isinstance(policy, Latest):
        return QueryEpochs(choose_epochs(policy, view), view.ids, left_out_of(policy, view))
    left_out = _outside(Global(), view)
    covered = [name for name in Global().covers(view) if name not in left_out]
    try:
        return QueryEpochs(choose_epochs(policy, view, covered), view.ids, left_out)
    except (EpochExpired, EpochNotCommitted):
        reasons = {name: reason for name in covered if (reason := _unreadable(policy, view, name)) is not None}
        readable = [name for name in covered if name not in reasons]
        if not readable:
            raise
        return QueryEpochs(choose_epochs(policy, view, readable), view.ids, {**left_out, **reasons})


def _outside(policy: Global, view: EpochView) -> dict[str, str]:
    """Return the reason for each table that takes no part in `global`, or not at its epoch yet, with what to write."""
    reasons = left_out_of(policy, view)
    views = [name for name in view.membership.members if reasons and view.table(name).derived]
    late = [name for name, _ in blamed(view, views, view.last_epoch) if name]
    advice = dict[str, str]()
    for name, reason in reasons.items():
        advice[name] = (
            f"{reason}; to read it at that epoch write el.catalog(spark, store, name='…', consistency='aligned', "
            f"tables=['{name}'])"
        )
        if name in view.membership.members:
            epoch = view.safe_epoch_of([name])
            advice[name] += (
                f"; to wait for the views named, store.snapshot({[name, *late]}, consistency=el.AtLeast({epoch}, "
                "timeout=60)).close()"
            )
    return advice


def _unreadable(policy: Policy, view: EpochView, name: str) -> str | None:
    """Return the reason for which the policy cannot read the table by itself; None if it can."""
    try:
        choose_epochs(policy, view, [name])
    except (EpochExpired, EpochNotCommitted) as error:
        return str(error)
    return None


def require_suitable(policy: Policy | None, names: Sequence[str] | None) -> None:
    """Raise InvalidInput for a policy that needs the tables of a query, which a catalog does not know in time."""
    if getattr(policy, "name", None) == "aligned" and names is None:
        raise InvalidInput(
            "a catalog chooses the epoch before Spark has named all tables of a query, so aligned needs the tables "
            "that it aligns: tables=['orders', 'revenue']. The default, global, aligns all tables of the store"
        )
