"""Changes a store in the ways that tables have beside plain commits, and says so; tests kill it.

Arguments: root, seed, first number; on standard input the state to begin with. It says `intent <n>` before and
`done <n> <epoch>` after each operation: an update of some columns, late changes by a sequence, an alter of the columns,
a restore, a tag, a clone, compaction and vacuum. Operation n is drawn from the seed, n and the state before it, so that
a test can follow.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import epochlog as el

KEYS = 30
PLAIN, LATE = "plain", "late"
SCHEMAS = {
    PLAIN: pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("m", pa.int64())]),
    LATE: pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("at", pa.int64())]),
}
Rows = dict[int, list[Any]]
"""Values of each row, without the key, by the key."""


@dataclass(slots=True)
class State:
    """Expected content of the store: rows of the tables, under tags and of clones; epochs to restore, and their rows.

    columns: those of the plain table without its key. version: number of its alters, now or at a tag or an epoch.
    """

    plain: Rows = field(default_factory=dict)
    columns: list[str] = field(default_factory=lambda: ["n", "m"])
    version: int = 0
    late: Rows = field(default_factory=dict)
    deleted_at: dict[int, int] = field(default_factory=dict)
    tags: dict[str, tuple[int, Rows]] = field(default_factory=dict)
    clones: dict[str, Rows] = field(default_factory=dict)
    past: list[tuple[int, int, Rows]] = field(default_factory=list)
    changed: bool = False

    def copy(self) -> State:
        return State.loads(self.dumps())

    def dumps(self) -> str:
        names = ("plain", "columns", "version", "late", "deleted_at", "tags", "clones", "past")
        return json.dumps({name: getattr(self, name) for name in names})

    @classmethod
    def loads(cls, text: str) -> State:
        def by_key(rows: dict[str, Any]) -> dict[int, Any]:
            return {int(key): values for key, values in rows.items()}

        raw = json.loads(text)
        return cls(
            plain=by_key(raw["plain"]),
            columns=raw["columns"],
            version=raw["version"],
            late=by_key(raw["late"]),
            deleted_at=by_key(raw["deleted_at"]),
            tags={name: (version, by_key(rows)) for name, (version, rows) in raw["tags"].items()},
            clones={name: by_key(rows) for name, rows in raw["clones"].items()},
            past=[(epoch, version, by_key(rows)) for epoch, version, rows in raw["past"]],
        )


def operation(seed: int, number: int, state: State) -> tuple[str, Callable[[el.Store], int | None]]:
    """Draw operation `number`, change the state by it, and return its name and the call that does it to a store."""
    dice = random.Random(f"{seed}/{number}")
    kinds = [update, update, late, late, alter, remove, tag, drop_tag, clone, drop_clone, restore, compact, vacuum]
    kind = dice.choice(kinds)
    state.changed = False
    return kind.__name__, kind(dice, number, state)


def update(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Change one column of rows, old and new ones."""
    place = dice.randrange(len(state.columns))
    keys = dice.sample(range(KEYS), 5)
    for key in keys:
        old = state.plain.get(key, [None] * len(state.columns))
        state.plain[key] = [number if at == place else value for at, value in enumerate(old)]
    state.changed = True
    rows = pa.table({"id": keys, state.columns[place]: [number] * len(keys)})
    return lambda store: store.table(PLAIN).update(rows)


def late(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Change rows at sequences of which some are older than what is there."""
    keys = dice.sample(range(KEYS), 6)
    sequences = [3 * number + dice.choice([0, 0, -10, -40]) for _ in keys]
    rows = pa.table({"id": keys, "n": [number] * len(keys), "at": sequences}, schema=SCHEMAS[LATE])
    for key, sequence in zip(keys, sequences, strict=True):
        if sequence >= max(state.late.get(key, [0, -(1 << 40)])[1], state.deleted_at.get(key, -(1 << 40))):
            state.late[key] = [number, sequence]
            state.deleted_at.pop(key, None)
    state.changed = True
    return lambda store: store.table(LATE).upsert(rows)


def alter(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Add a column, or rename or drop the one that was added."""
    *_, last = state.columns
    name = f"c{number}"
    if len(state.columns) == 2:
        state.columns = [*state.columns, name]
        state.plain = {key: [*row, None] for key, row in state.plain.items()}
        change: dict[str, Any] = {"add": [pa.field(name, pa.int64())]}
    elif dice.random() < 0.5:
        state.columns = [*state.columns[:-1], name]
        change = {"rename": {last: name}}
    else:
        state.columns = state.columns[:-1]
        state.plain = {key: row[:-1] for key, row in state.plain.items()}
        change = {"drop": [last]}
    state.version += 1
    return lambda store: store.table(PLAIN).alter(**change) and None


def remove(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Delete rows of the plain table."""
    keys = dice.sample(range(KEYS), 4)
    for key in keys:
        state.plain.pop(key, None)
    state.changed = True
    return lambda store: store.table(PLAIN).delete(keys)


def tag(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Keep the newest rows of the plain table under a name."""
    name = f"t{dice.randrange(4)}"
    if name in state.tags:
        return drop_tag(dice, number, state)
    state.tags[name] = state.version, dict(state.plain)
    return lambda store: store.tag(name, [PLAIN], consistency="latest") and None


def drop_tag(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    if not state.tags:
        return compact(dice, number, state)
    name = dice.choice(sorted(state.tags))
    del state.tags[name]
    return lambda store: store.drop_tag(name)


def clone(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Clone the plain table, as it is or as of a tag since the last alter."""
    tags = [tag for tag, (version, _) in sorted(state.tags.items()) if version == state.version]
    name, as_of = f"c{dice.randrange(3)}", dice.choice([None, *tags])
    if name in state.clones:
        return drop_clone(dice, number, state)
    state.clones[name] = dict(state.plain if as_of is None else state.tags[as_of][1])
    return lambda store: store.clone(PLAIN, name, as_of=as_of) and None


def drop_clone(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    if not state.clones:
        return compact(dice, number, state)
    name = dice.choice(sorted(state.clones))
    del state.clones[name]
    return lambda store: store.drop_table(name)


def restore(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    """Give the plain table the rows of an earlier commit since the last alter."""
    past = [(epoch, rows) for epoch, version, rows in state.past if version == state.version]
    if not past:
        return compact(dice, number, state)
    epoch, rows = dice.choice(past)
    state.plain = dict(rows)
    state.changed = True
    return lambda store: store.table(PLAIN).restore(epoch)


def compact(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    name, full = dice.choice([PLAIN, LATE, *sorted(state.clones)]), dice.random() < 0.5
    return lambda store: store.compact(name, full=full)


def vacuum(dice: random.Random, number: int, state: State) -> Callable[[el.Store], int | None]:
    return lambda store: store.vacuum(grace=0) and None


def note_epoch(state: State, epoch: int | None) -> None:
    """Keep the rows of the plain table at an acknowledged epoch, to be restored later."""
    if state.changed and epoch is not None:
        state.past = [*state.past[-5:], (epoch, state.version, dict(state.plain))]


def main(root: str, seed: int, first: int) -> None:
    state = State.loads(sys.stdin.readline())
    store = el.open(root)
    for number in range(first, first + 100_000):
        _, call = operation(seed, number, state)
        print(f"intent {number}")
        epoch = call(store)
        print(f"done {number} {epoch or 0}")
        note_epoch(state, epoch)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
