"""Expected contents of a store after any fault: every acknowledged commit, whole, and at most the one under way.

A story tells the ledger what it is about to do, does it, and tells that it was done. `Ledger.check` compares a store
that was opened afterwards, table by table, at every epoch that can be read, and change by change.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import pyarrow as pa

import epochlog as el
from faults.cdc_table import CDC, check_cdc
from faults.evolution import PREFIX, check_evolution
from faults.expiry import TABLE, check_expiry
from faults.jobs import SCHEMA, check_jobs

APPLICATION = "story"

State = dict[int, int]
"""id -> n; the column s follows from both."""
Group = dict[int, int | None]
"""What one log epoch does: id -> n, or None for a delete."""


def rows(group: Group) -> pa.Table:
    """The upserts of a group as a table."""
    upserts = {key: n for key, n in group.items() if n is not None}
    texts = [text(key, n) for key, n in upserts.items()]
    return pa.table({"id": list(upserts), "n": list(upserts.values()), "s": texts}, schema=SCHEMA)


def keys(group: Group) -> pa.Table:
    """The deletes of a group as a table of keys."""
    return pa.table({"id": [key for key, n in group.items() if n is None]}, schema=pa.schema([SCHEMA.field("id")]))


def text(key: int, n: int) -> str:
    return f"{key}:{n} " + "x" * (n % 7)


@dataclass
class LedgerCommit:
    """The number of a commit, and for each table its groups, one for each label.

    restored: the epoch whose rows the commit restores; its groups are the difference then.
    """

    number: int
    tables: dict[str, list[Group]]
    restored: int | None = None


@dataclass
class Ledger:
    """Commits in the order in which they were begun; each ends (done or refused) before the next begins."""

    commits: list[LedgerCommit] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)  # of acknowledged commits, by number
    unknown: set[int] = field(default_factory=set)  # given up without an answer: landed or not
    tables: set[str] = field(default_factory=set)
    maybe_tables: set[str] = field(default_factory=set)
    clones: dict[str, tuple[str, int]] = field(default_factory=dict)  # source, and the number of commits before it
    truncated: dict[str, int] = field(default_factory=dict)  # marks that were acknowledged
    acknowledged: int | None = None  # what the consumer has acknowledged
    acknowledging: int | None = None  # and what it was about to
    tags: dict[str, tuple[str, int]] = field(default_factory=dict)  # acknowledged, with table and epoch
    maybe_tags: dict[str, str] = field(default_factory=dict)  # that may be there, with the table
    evolution: dict[int, int] = field(default_factory=dict)  # epochs of acknowledged operations on altered tables
    evolves: int | None = None  # the operation on them that is under way
    exists: bool = False  # whether the creation of the store was acknowledged

    # ---- the story tells ----------------------------------------------------------------------------------------

    def begin(self, tables: Mapping[str, list[Group]], restored: int | None = None) -> int:
        """A commit is about to be asked for; its number, to be its id."""
        number = len(self.commits)
        self.commits.append(LedgerCommit(number, dict(tables), restored))
        self.unknown.add(number)
        return number

    def done(self, number: int, epoch: int) -> None:
        self.unknown.discard(number)
        self.epochs[number] = epoch

    def refused(self, number: int) -> None:
        """It has certainly not landed."""
        self.unknown.discard(number)

    def creating(self, table: str) -> None:
        self.maybe_tables.add(table)

    def cloning(self, source: str, table: str) -> None:
        self.creating(table)
        self.clones[table] = (source, len(self.commits))

    def created(self, table: str) -> None:
        self.maybe_tables.discard(table)
        self.tables.add(table)

    def dropping(self, table: str) -> None:
        self.tables.discard(table)
        self.maybe_tables.add(table)

    def dropped(self, table: str) -> None:
        self.maybe_tables.discard(table)

    def truncated_before(self, table: str, epoch: int) -> None:
        self.truncated[table] = epoch

    def acking(self, epoch: int) -> None:
        self.acknowledging = epoch

    def acked(self, epoch: int) -> None:
        self.acknowledged = epoch

    def tagging(self, name: str, table: str) -> None:
        self.maybe_tags[name] = table

    def tagged(self, name: str, epoch: int) -> None:
        self.tags[name] = (self.maybe_tags.pop(name), epoch)

    def untagging(self, name: str) -> None:
        self.maybe_tags[name] = self.tags.pop(name)[0]

    def untagged(self, name: str) -> None:
        del self.maybe_tags[name]

    def evolving(self, number: int) -> None:
        self.evolves = number

    def evolved(self, number: int, epoch: int) -> None:
        self.evolution[number], self.evolves = epoch, None

    def founded(self) -> None:
        self.exists = True

    def copy(self) -> Ledger:
        return deepcopy(self)

    # ---- the store shows ----------------------------------------------------------------------------------------

    def check(self, store: el.Store) -> None:
        """AssertionError, or the library's own error, where the store is not what it must be."""
        report = store.verify()
        assert report.ok, report.problems
        roots = {info.name for info in store.tables() if info.job is None} - {CDC, TABLE}
        names = {name for name in roots if not name.startswith(PREFIX)}
        assert self.tables <= names <= self.tables | self.maybe_tables, (names, self.tables)
        landed = self._landed(store, names)
        due = {n: epoch for n, epoch in self.epochs.items() if names & set(self.commits[n].tables)}
        assert set(due) <= set(landed) <= set(due) | self.unknown, (due, landed, self.unknown)
        for number, epoch in due.items():
            assert landed[number] == epoch, f"commit {number} was acknowledged at {epoch} and is at {landed[number]}"
        order = sorted(landed, key=lambda number: landed[number])
        assert order == sorted(landed), f"later commits lie below earlier ones: {landed}"
        tags = {tag.name: dict(tag.epochs) for tag in store.tags()}
        assert tags.keys() <= self.tags.keys() | self.maybe_tags.keys()
        for name, (table, epoch) in self.tags.items():
            assert tags.get(name) == {table: epoch}, f"tag {name} was acknowledged at {epoch} of {table}: {tags}"
        for name in names:
            self._check_table(store.table(name), [(landed[number], self.commits[number]) for number in order])
        consumers = {info.position for info in store.consumers()} or {None}
        assert consumers <= {self.acknowledged, self.acknowledging}, (consumers, self.acknowledged)
        check_jobs(store)
        check_cdc(store)
        check_expiry(store)
        check_evolution(store, self.evolution, self.evolves)

    def _landed(self, store: el.Store, names: set[str]) -> dict[int, int]:
        """The epochs of the commits that are there, each in all of its tables."""
        epochs: dict[tuple[str, int], int] = {}
        for name in names:
            history = [row for row in store.table(name).history().to_pylist() if row["operation"] != "clone"]
            assert len({row["epoch"] for row in history}) == len(history)
            epochs |= {(name, row["txn"]["id"]): row["epoch"] for row in history}
        landed = {number: epoch for (_, number), epoch in epochs.items()}
        for number, epoch in landed.items():
            expected = {(name, number): epoch for name in self.commits[number].tables if name in names}
            part = {pair: at for pair, at in epochs.items() if pair[1] == number}
            assert part == expected, f"commit {number} is there in part: {part}"
        return landed

    def _cloned_rows(self, name: str) -> State:
        """Return the rows with which a table began: those that its source had, if it is a clone."""
        source, count = self.clones.get(name, ("", 0))
        state = State()
        for number, commit in enumerate(self.commits[:count]):
            if number in self.epochs:
                for group in commit.tables.get(source, []):
                    _apply(state, group)
        return state

    def _check_table(self, table: el.Table, landed: list[tuple[int, LedgerCommit]]) -> None:
        info, state = table.info, self._cloned_rows(table.name)
        assert info.log_start_epoch >= self.truncated.get(table.name, 0)
        changes: list[Group] = []
        exists = False  # it may have been made after the first of them
        tagged = {epoch for name, epoch in self.tags.values() if name == table.name}
        for epoch, commit in landed:
            groups = commit.tables.get(table.name, [])
            exists = exists or table.name in commit.tables
            for group in groups:
                _apply(state, group)
            if epoch > info.log_start_epoch:
                changes += groups
            if exists and (epoch >= info.safe_epoch or epoch in tagged):
                assert shown(table.to_arrow(epoch=epoch)) == state, f"table {table.name} at {epoch}"
        assert shown(table.to_arrow()) == state, f"table {table.name} now"
        changes_read = table.changes(info.log_start_epoch).read_all()
        logged: dict[int, Group] = {}
        for row in changes_read.to_pylist():
            n = row["n"] if row["_change_type"] == "upsert" else None
            logged.setdefault(row["_commit_version"], {})[row["id"]] = n
        assert [logged[label] for label in sorted(logged)] == changes, f"changes of {table.name}"


def shown(table: pa.Table) -> State:
    """The rows of a table as id -> n, each whole."""
    out: State = {}
    for row in table.to_pylist():
        assert row["id"] not in out, f"key {row['id']} is there twice"
        assert row["s"] == text(row["id"], row["n"]), row
        out[row["id"]] = row["n"]
    return out


def _apply(state: State, group: Group) -> None:
    for key, n in group.items():
        if n is None:
            state.pop(key, None)
        else:
            state[key] = n
