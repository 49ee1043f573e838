"""Parallel load of one table by four processes, exactly once; one process is killed half way and restarted.

    python examples/parallel_load.py [rows]

Each process writes its quarter of the rows through a part of the load `clicks_load`. A few times per second, the
coordinator in this process commits the rows of all four together with their offsets.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import epochlog as el
from epochlog.checkpoint import JobSettings

PARTS = 4
BATCH_ROWS = 2_000
VICTIM = 2
SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.string()), ("cents", pa.int64())])


def rows(ids: np.ndarray) -> pa.Table:
    """Return the clicks of these ids, a function of the ids alone."""
    users = pa.array([f"user-{each % 97}" for each in ids.tolist()])
    return pa.table({"id": ids, "user": users, "cents": ids * 7 % 1009}, schema=SCHEMA)


def source(part: int, count: int, start: bytes | None) -> Iterator[tuple[bytes, pa.Table]]:
    """Yield the batches of a part from the offset `start` on, each with the offset of the next batch."""
    first = int.from_bytes(start or b"\0", "big")
    for at in range(first, count, BATCH_ROWS):
        ids = np.arange(at, min(at + BATCH_ROWS, count), dtype=np.int64)
        yield (at + BATCH_ROWS).to_bytes(8, "big"), rows(ids[ids % PARTS == part])


def load(location: str, root: str, index: int, count: int, *, stop_half_way: bool) -> None:
    """Run one worker process: load one part of the rows."""
    token = os.environ["CLICKS_TOKEN"]
    with el.open(root) as store, el.Worker(location, store, token=token) as worker:
        part = worker.attach("clicks_load", index=index, of=PARTS, tables=["clicks"], finish_tables=True)
        writer = part.writer("clicks")
        while not part.finished:
            try:
                for offset, batch in source(index, count, start=part.state):
                    writer.upsert(batch)
                    part.poll(state=offset)
                    if stop_half_way and int.from_bytes(offset, "big") > count // 2:
                        stand_still(part, offset, batch)
                part.finish()
            except el.RolledBack:  # new coordinator, or a long silence: continue from part.state
                continue


def stand_still(part: el.LoadPart, offset: bytes, batch: pa.Table) -> None:
    """Wait for a commit, write rows that are not committed, and wait for the kill."""
    while not part.epoch:
        part.poll(state=offset)
        threading.Event().wait(0.01)
    part.writer("clicks").upsert(batch)
    print("half", flush=True)
    sys.stdin.read()


def start(location: str, root: str, index: int, count: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "worker", location, root, str(index), str(count), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main(count: int) -> int:
    os.environ["CLICKS_TOKEN"] = token = secrets.token_hex()
    settings = el.CoordinatorSettings(checkpoints=JobSettings(interval_ms=200))
    with tempfile.TemporaryDirectory() as folder, el.open(f"{folder}/lake", durability="os") as store:
        clicks = store.create_table("clicks", SCHEMA, ["id"])
        with el.serve(store, token=token, control=settings) as server:
            workers = [
                start(server.location, store.root, index, count, *(["--stop-half-way"] if index == VICTIM else []))
                for index in range(PARTS)
            ]
            victim = workers[VICTIM]
            assert victim.stdout is not None and victim.stdout.readline() == "half\n"
            victim.kill()
            victim.communicate()
            print(f"worker {VICTIM} was killed when {clicks.count():,} of {count:,} rows were committed")
            workers[VICTIM] = start(server.location, store.root, VICTIM, count)
            for worker in workers:
                worker.communicate()
            if any(worker.returncode for worker in workers):
                return 1
        loaded, expected = clicks.to_arrow(), rows(np.arange(count, dtype=np.int64))
        commits = clicks.history().num_rows
        print(f"{loaded.num_rows:,} rows in {commits} commits, {sum(loaded['cents'].to_pylist()):,} cents")
        equal = loaded.equals(expected.cast(loaded.schema)) and loaded.num_rows == count
        print("each row is in the table exactly once" if equal else "ROWS ARE MISSING OR DOUBLED")
        return 0 if equal and store.verify().ok else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        location, root, index, count = sys.argv[2:6]
        load(location, root, int(index), int(count), stop_half_way="--stop-half-way" in sys.argv)
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
