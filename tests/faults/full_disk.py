"""Fills a small disk under a store, to the last block, again and again; exits with 0 when the store kept its promises.

Arguments: an empty folder; "mount" to put a tmpfs of 1 MiB there, for this process alone, or "limit" to do with a limit
on the size of files where nothing can be mounted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import epochlog as el
from faults.ledger import Ledger
from faults.workload import LoggedStore, Ticks, perform

BLOCK = 4096
FULL = (el.WriteFailed, el.CatalogFull)


def fill(folder: Path, leave: int) -> None:
    """Take all room but `leave` bytes."""
    with (folder / "filler").open("ab", buffering=0) as filler:
        while (room := os.statvfs(folder).f_bavail * BLOCK - leave) > 0:
            filler.write(bytes(min(room, 1 << 16)))


def limit(folder: Path, leave: int) -> None:
    """Let no file grow beyond `leave` bytes, or the catalog beyond so much more than it has."""
    data = folder / "s" / "catalog" / "data.mdb"
    resource.setrlimit(resource.RLIMIT_FSIZE, (leave if leave < BLOCK else data.stat().st_size, resource.RLIM_INFINITY))


def make_room(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def refused(action: Callable[[], object]) -> str | None:
    """Return the message of the error that the full disk causes; None when the action succeeds."""
    try:
        action()
    except FULL as error:
        return str(error)
    return None


def creation(folder: Path) -> None:
    """A store cannot be made on a full disk, and can be made there as soon as there is room."""
    messages: list[str] = []
    for leave in range(0, 40 * BLOCK, BLOCK):
        fill(folder, leave)
        why = refused(lambda: el.open(folder / "s").close())
        make_room(folder)
        if why is None:
            assert messages and all(str(folder) in line for line in messages), messages
            return
        messages.append(why)
    raise AssertionError(messages)


def commits(folder: Path, take: Callable[[Path, int], None], leaves: range) -> set[str]:
    """Write on until the disk is full, with ever more room; the kinds of files that had none."""
    ledger, clock, met = Ledger(), Ticks(), set[str]()
    with el.open(folder / "s", clock=clock) as store:
        ledger.founded()
        logged = LoggedStore(store, ledger)
        logged.make("a")
        logged.make("b")
        logged.commit({"a": [{1: 1, 2: 1}], "b": [{1: 1}]})
        for turn, leave in enumerate(leaves):
            take(folder, leave)
            why = None
            for n in range(turn * 100, turn * 100 + 100):
                group = dict.fromkeys(range(n, n + 20), n)
                tables = {"a": [group], "b": [{n: n}]} if n % 2 else {"a": [group]}
                why = refused(lambda tables=tables: logged.commit(tables))
                if why is not None:
                    break
            assert why is not None and str(folder) in why, why
            met.add("catalog" if "the catalog" in why else "file")
            (number,) = ledger.unknown
            ledger.refused(number)
            ledger.check(store)  # reading goes on, and nothing of it is to be seen
            make_room(folder)
            ledger.done(number, perform(store, ledger.commits[number]))
            store.compact("a", full=True)
            ledger.check(store)
    with el.open(folder / "s", clock=clock) as store:
        ledger.check(store)
    return met


def main(folder: Path, how: str) -> None:
    if how == "mount":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)], check=True)
        assert os.statvfs(folder).f_blocks * BLOCK == 1 << 20
        creation(folder)
        met = commits(folder, fill, range(0, 14 * BLOCK, 2 * BLOCK))
    else:
        met = commits(folder, limit, range(0, 2 * BLOCK, BLOCK))
    assert met == {"file", "catalog"}, met


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
