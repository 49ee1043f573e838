"""A worker process: writes the numbers it is told to, one a line of its input, and says what became of each."""

from __future__ import annotations

import sys

import epochlog as el
from control_fixture import TOKEN, attach, rows


def main(root: str, location: str, index: int, of: int) -> None:
    with el.open(root, durability="os") as store, el.Worker(location, store, token=TOKEN) as worker:
        part = attach(worker, index, of)
        print("attached", flush=True)
        for line in sys.stdin:
            try:
                part.writer("clicks").upsert(rows(int(line)))
                part.poll(state=line.strip().encode())
                print("polled", flush=True)
            except el.EpochlogError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
