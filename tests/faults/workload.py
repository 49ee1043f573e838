"""What the fault tests do to a store: each kind of write and upkeep, in a fixed order; and what comes after a crash."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import epochlog as el
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.env.paths import file_name
from faults.jobs import go_on_with_jobs, tell_jobs
from faults.ledger import APPLICATION, SCHEMA, Commit, Group, Ledger, keys, rows

Clock = Callable[[], int]


class Ticks:
    """A clock that goes on by a millisecond whenever it is asked."""

    def __init__(self) -> None:
        self.now_ms = 1_767_225_600_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


class Telling(Ledger):
    """A ledger that says everything at once on a stream without a buffer, for whoever outlives this process."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in TOLD:
            return found

        def told(*arguments: Any) -> Any:
            self._say(json.dumps([name, *map(_plain, arguments)]) + "\n")
            return found(*arguments)

        return told


TOLD = frozenset(
    [
        *("begin", "done", "refused", "creating", "created", "dropping", "dropped", "truncated_before", "founded"),
        *("acking", "acked"),
    ]
)


def _plain(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        return {table: [list(group.items()) for group in groups] for table, groups in argument.items()}
    return argument


def heard(lines: list[str]) -> Ledger:
    """The ledger of another process by what it has said."""
    ledger = Ledger()
    for line in lines:
        if line.endswith("\n"):  # else it was cut off
            name, *arguments = json.loads(line)
            if name == "begin":
                tables = arguments[0].items()
                arguments = [{table: [dict(map(tuple, group)) for group in groups] for table, groups in tables}]
            getattr(ledger, name)(*arguments)
    return ledger


# ---- the story ---------------------------------------------------------------------------------------------------


Attempt = Callable[[Callable[[], Any]], Any]


def once(action: Callable[[], Any]) -> Any:
    return action()


def tell(
    root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk", attempt: Attempt = once
) -> None:
    """From nothing to a store in which everything has happened once. `attempt` makes each call, and may make it again;
    the story ends where that raises.
    """
    with attempt(lambda: el.open(root, clock=clock, durability=durability)) as store:
        ledger.founded()
        do = Doing(store, ledger, attempt)
        do.make("a")
        do.make("b", history_retention=timedelta(0), log_retention=timedelta(0))
        do.commit({"a": [dict.fromkeys(range(40), 1)]})
        do.commit({"a": [{2: 2, 90: 2}], "b": [{1: 2, 2: 2, 3: 2}]})
        do.repeat(1)
        do.commit({"a": [dict.fromkeys(range(3, 8))]})
        do.commit({"a": [{5: 3, 6: 3}, {6: 4, 90: None}]})
        attempt(lambda: store.compact("a"))
        attempt(store.checkpoint)
        do.commit({"b": [{2: None, 4: 5}]})
        attempt(lambda: store.compact("b", full=True))
        mark = do.commit({"a": [{0: 6, 1: None}], "b": [{1: 6}]})
        do.commit({"a": [{0: 7}]})
        do.truncate("a", mark)
        do.consume("a")
        attempt(lambda: store.compact("a", full=True))
        do.make("c")
        do.commit({"c": [{1: 8}], "a": [{2: 8}]})
        do.drop("c")
        attempt(lambda: leave_behind(store))
        do.clear_away()
        do.commit({"a": [{8: 9}]})
        do.consume("a")
        do.make("d", log_retention=timedelta(0))
        do.commit({"d": [{1: 10, 2: 10}]})
        tell_jobs(store, do.commit, attempt)
        do.clear_away()


def go_on(root: Path, ledger: Ledger, clock: Clock | None = None, durability: str = "disk") -> None:
    """What a user does after a crash: open, repeat the commit whose answer was lost, write on."""
    with el.open(root, clock=clock, durability=durability) as store:
        ledger.founded()
        do = Doing(store, ledger)
        if not ledger.tables:
            do.make("a")
        for number in sorted(ledger.unknown):
            if set(ledger.commits[number].tables) <= ledger.tables:
                ledger.done(number, perform(store, ledger.commits[number]))
        do.commit({"a": [{7: 1, 8: None, 200: 1}]})
        do.consume("a")
        go_on_with_jobs(store)
        store.compact("a", full=True)
        do.clear_away()


class Doing:
    """Calls of one store, of which a ledger is told before and after."""

    def __init__(self, store: el.Store, ledger: Ledger, attempt: Attempt = once) -> None:
        self._store, self._ledger, self._attempt = store, ledger, attempt

    def make(self, name: str, **options: timedelta) -> None:
        def create() -> None:
            if name not in {info.name for info in self._store.tables()}:
                self._store.create_table(name, SCHEMA, ["id"], options=el.TableOptions(**options))

        self._ledger.creating(name)
        self._attempt(create)
        self._ledger.created(name)

    def drop(self, name: str) -> None:
        def drop() -> None:
            if name in {info.name for info in self._store.tables()}:
                self._store.drop_table(name)

        self._ledger.dropping(name)
        self._attempt(drop)
        self._ledger.dropped(name)

    def commit(self, tables: dict[str, list[Group]]) -> int:
        number = self._ledger.begin(tables)
        epoch = self._attempt(lambda: perform(self._store, self._ledger.commits[number]))
        self._ledger.done(number, epoch)
        return epoch

    def repeat(self, number: int) -> None:
        """The same commit once more, as by a user whose answer was lost: it has the first outcome."""
        again = self._attempt(lambda: perform(self._store, self._ledger.commits[number]))
        assert again == self._ledger.epochs[number]

    def truncate(self, name: str, before: int) -> None:
        self._attempt(lambda: self._store.table(name).truncate_log(before))
        self._ledger.truncated_before(name, before)

    def consume(self, table: str) -> None:
        """A consumer comes, acknowledges all there is, and goes."""
        epoch = self._store.last_epoch
        consumer = self._attempt(lambda: open_consumer(self._store._handle, "story", [table]))
        self._ledger.acking(epoch)
        self._attempt(lambda: consumer.ack(epoch))
        self._ledger.acked(epoch)
        self._attempt(consumer.close)

    def clear_away(self) -> None:
        """Vacuum what nothing reaches."""
        for _ in range(2):  # what is noted by the one is deleted by the other
            self._attempt(lambda: self._store.vacuum(grace=timedelta(0)))


def leave_behind(store: el.Store) -> None:
    """What a writer leaves that died before its commit, long ago: a file under an intent that there is no more."""
    handle = store._handle
    handle.files.write(f"{handle.table_folder(1)}/{file_name(uuid.uuid4().hex, '.arrow')}", b"nobody's")


def perform(store: el.Store, asked: Commit) -> int:
    """One commit in the way that fits it: alone, several tables, or sealed labels."""
    txn = (APPLICATION, asked.number)
    ((name, groups), *others) = asked.tables.items()
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
        for name, (group,) in asked.tables.items():
            tx.upsert(name, rows(group))
            tx.delete(name, keys(group))
    return tx.epoch
