"""Workload of the fault tests: each kind of write and maintenance in a fixed order, and the recovery after a crash."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import epochlog as el
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.compaction.packing import LEAST_COMMITS
from epochlog.store.env.paths import file_name
from faults.cdc_table import resume_cdc, run_cdc
from faults.evolution import resume_evolution, run_evolution
from faults.expiry import run_expiry
from faults.jobs import resume_jobs, run_jobs
from faults.ledger import APPLICATION, SCHEMA, Group, Ledger, LedgerCommit, keys, rows

Clock = Callable[[], int]


class Ticks:
    """Clock that advances by one millisecond at each call."""

    def __init__(self) -> None:
        self.now_ms = 1_767_225_600_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


class LedgerWriter(Ledger):
    """Ledger that also writes each call, unbuffered, to a stream that outlives this process."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name not in LOGGED_CALLS:
            return attribute

        def logged_call(*arguments: Any) -> Any:
            self._write(json.dumps([name, *map(_plain, arguments)]) + "\n")
            return attribute(*arguments)

        return logged_call


LOGGED_CALLS = frozenset(
    [
        *(
            "begin",
            "done",
            "refused",
            "creating",
            "cloning",
            "created",
            "dropping",
            "dropped",
            "truncated_before",
            "founded",
        ),
        *("acking", "acked", "tagging", "tagged", "untagging", "untagged", "evolving", "evolved"),
    ]
)


def _plain(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        return {table: [list(group.items()) for group in groups] for table, groups in argument.items()}
    return argument


def parse_ledger(lines: list[str]) -> Ledger:
    """Rebuild the ledger of another process from the lines that it wrote."""
    ledger = Ledger()
    for line in lines:
        if line.endswith("\n"):  # else it was cut off
            name, *arguments = json.loads(line)
            if name == "begin":
                tables = arguments[0].items()
                arguments[0] = {table: [dict(map(tuple, group)) for group in groups] for table, groups in tables}
            getattr(ledger, name)(*arguments)
    return ledger


# ---- the workload ---------------------------------------------------------------------------------------------------


Attempt = Callable[[Callable[[], Any]], Any]


def once(action: Callable[[], Any]) -> Any:
    return action()


def run_workload(
    root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk", attempt: Attempt = once
) -> None:
    """Create a store and run each operation once. `attempt` makes each call and may repeat it; the workload ends at
    its first error.
    """
    with attempt(lambda: el.open(root, clock=clock, durability=durability)) as store:
        ledger.founded()
        logged = LoggedStore(store, ledger, attempt)
        logged.make("a")
        logged.make("b", history_retention=timedelta(0), log_retention=timedelta(0))
        logged.commit({"a": [dict.fromkeys(range(40), 1)]})
        logged.commit({"a": [{2: 2, 90: 2}], "b": [{1: 2, 2: 2, 3: 2}]})
        logged.repeat(1)
        logged.commit({"a": [dict.fromkeys(range(3, 8))]})
        logged.commit({"a": [{5: 3, 6: 3}, {6: 4, 90: None}]})
        attempt(lambda: store.compact("a"))
        attempt(store.checkpoint)
        logged.commit({"b": [{2: None, 4: 5}]})
        attempt(lambda: store.compact("b", full=True))
        mark = logged.commit({"a": [{0: 6, 1: None}], "b": [{1: 6}]})
        logged.commit({"a": [{0: 7}]})
        logged.truncate("a", mark)
        logged.consume("a")
        attempt(lambda: store.compact("a", full=True))
        logged.make("c")
        before = logged.commit({"c": [{1: 8}], "a": [{2: 8}]})
        logged.commit({"c": [{1: 9, 2: 9}]})
        logged.commit({"c": [{1: 8, 2: None}]}, restored=before)
        logged.drop("c")
        logged.make("e", history_retention=timedelta(0))
        logged.commit({"e": [{1: 1, 2: 1, 3: 1}]})
        logged.tag("2026-q3", "e")
        logged.commit({"e": [{1: 2, 2: 2}]})
        logged.tag("short", "e")
        for n in (3, 4):  # from the second time on only the tags see the first rows
            logged.commit({"e": [{1: n, 2: None}]})
            attempt(lambda: store.compact("e", full=True))
        logged.drop_tag("short")
        attempt(lambda: store.compact("e"))
        logged.make("g", history_retention=timedelta(0))
        logged.commit({"g": [{1: 1, 2: 1}]})
        attempt(lambda: store.compact("g", full=True))
        logged.commit({"g": [{2: 2, 3: 2}]})
        logged.clone("g", "h")
        logged.commit({"g": [{1: None}], "h": [{3: 3, 4: 3}]})
        logged.drop("g")
        attempt(lambda: leave_behind(store))
        logged.clear_away()
        logged.commit({"a": [{8: 9}], "h": [{5: 4}]})
        attempt(lambda: store.compact("h", full=True))
        logged.consume("a")
        logged.make("p")
        for n in range(LEAST_COMMITS + 1):
            logged.commit({"p": [{n % 5: n, n + 1: None if n % 3 else n}]})
        logged.commit({"p": [{1: 100}, {2: 100}]})  # two log epochs: a commit that is not packed
        logged.commit({"p": [{3: 100}]})
        attempt(lambda: store.compact("p", full=True))
        logged.make("d", log_retention=timedelta(0))
        logged.commit({"d": [{1: 10, 2: 10}]})
        run_expiry(store, attempt)
        run_jobs(store, logged.commit, attempt)
        run_cdc(store, attempt)
        run_evolution(store, ledger, attempt)
        logged.clear_away()


def resume_workload(root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk") -> None:
    """Recover as a user does after a crash: open, repeat the commit whose answer was lost, write on."""
    with el.open(root, clock=clock, durability=durability) as store:
        ledger.founded()
        logged = LoggedStore(store, ledger)
        if not ledger.tables:
            logged.make("a")
        for number in sorted(ledger.unknown):
            if set(ledger.commits[number].tables) <= ledger.tables:
                ledger.done(number, perform(store, ledger.commits[number]))
        logged.commit({"a": [{7: 1, 8: None, 200: 1}]})
        logged.consume("a")
        resume_jobs(store)
        resume_cdc(store)
        resume_evolution(store, ledger)
        store.compact("a", full=True)
        logged.clear_away()


def run_changes(root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk") -> None:
    """Create a store and run the part of altered tables alone."""
    with el.open(root, clock=clock, durability=durability) as store:
        ledger.founded()
        run_evolution(store, ledger, once)


def resume_changes(root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk") -> None:
    """Recover the part of altered tables after a crash."""
    with el.open(root, clock=clock, durability=durability) as store:
        ledger.founded()
        resume_evolution(store, ledger)


STORIES = {"workload": (run_workload, resume_workload), "changes": (run_changes, resume_changes)}
"""By name, what a process does until it is killed, and the recovery."""


class LoggedStore:
    """Store whose calls are written to a ledger before and after."""

    def __init__(self, store: el.Store, ledger: Ledger, attempt: Attempt = once) -> None:
        self._store, self._ledger, self._attempt = store, ledger, attempt

    def make(self, name: str, **options: timedelta) -> None:
        def create() -> None:
            if name not in {info.name for info in self._store.tables()}:
                self._store.create_table(name, SCHEMA, ["id"], options=el.TableOptions(**options))

        self._ledger.creating(name)
        self._attempt(create)
        self._ledger.created(name)

    def clone(self, source: str, name: str) -> None:
        def clone() -> None:
            if name not in {info.name for info in self._store.tables()}:
                self._store.clone(source, name)

        self._ledger.cloning(source, name)
        self._attempt(clone)
        self._ledger.created(name)

    def drop(self, name: str) -> None:
        def drop() -> None:
            if name in {info.name for info in self._store.tables()}:
                self._store.drop_table(name)

        self._ledger.dropping(name)
        self._attempt(drop)
        self._ledger.dropped(name)

    def commit(self, tables: dict[str, list[Group]], restored: int | None = None) -> int:
        number = self._ledger.begin(tables, restored)
        epoch = self._attempt(lambda: perform(self._store, self._ledger.commits[number]))
        self._ledger.done(number, epoch)
        return epoch

    def repeat(self, number: int) -> None:
        """Repeat a commit, as a user does whose answer was lost; it returns the first outcome."""
        again = self._attempt(lambda: perform(self._store, self._ledger.commits[number]))
        assert again == self._ledger.epochs[number]

    def truncate(self, name: str, before: int) -> None:
        self._attempt(lambda: self._store.table(name).truncate_log(before))
        self._ledger.truncated_before(name, before)

    def tag(self, name: str, table: str) -> None:
        def tag() -> el.Tag:
            tags = {tag.name: tag for tag in self._store.tags()}
            return tags.get(name) or self._store.tag(name, [table], consistency="latest")

        self._ledger.tagging(name, table)
        self._ledger.tagged(name, self._attempt(tag).epochs[table])

    def drop_tag(self, name: str) -> None:
        def drop() -> None:
            if name in {tag.name for tag in self._store.tags()}:
                self._store.drop_tag(name)

        self._ledger.untagging(name)
        self._attempt(drop)
        self._ledger.untagged(name)

    def consume(self, table: str) -> None:
        """Open a consumer, acknowledge everything, and close it."""
        epoch = self._store.last_epoch
        consumer = self._attempt(lambda: open_consumer(self._store._handle, "story", [table]))
        self._ledger.acking(epoch)
        self._attempt(lambda: consumer.ack(epoch))
        self._ledger.acked(epoch)
        self._attempt(consumer.close)

    def clear_away(self) -> None:
        """Vacuum unreachable files."""
        for _ in range(2):  # the first run notes files, the second one deletes them
            self._attempt(lambda: self._store.vacuum(grace=timedelta(0)))


def leave_behind(store: el.Store) -> None:
    """Leave a file of a writer that died before its commit, long ago: its write intent has expired."""
    handle = store._handle
    handle.files.write(f"{handle.table_folder(1)}/{file_name(uuid.uuid4().hex, '.arrow')}", b"nobody's")


def perform(store: el.Store, commit: LedgerCommit) -> int:
    """Commit by the fitting call: of one table, of several tables, of sealed labels, or by a restore."""
    txn = (APPLICATION, commit.number)
    ((name, groups), *others) = commit.tables.items()
    if commit.restored is not None:
        return store.table(name).restore(commit.restored, txn=txn)
    if len(groups) > 1:
        writer, first, segments = store.table(name).writer(), store.last_epoch + 1, []
        for label, group in enumerate(groups, start=first):
            writer.upsert(rows(group))
            writer.delete(keys(group))
            segments += writer.seal(label)
        return store.commit({name: segments}, txn=txn)
    if not others and None not in groups[0].values():
        return store.table(name).upsert(rows(groups[0]), txn=txn)
    if not others and set(groups[0].values()) == {None}:
        return store.table(name).delete(keys(groups[0]), txn=txn)
    with store.transaction(txn) as tx:
        for name, (group,) in commit.tables.items():
            tx.upsert(name, rows(group))
            tx.delete(name, keys(group))
    return tx.epoch
