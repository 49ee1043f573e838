"""Process of a machine with a clock of its own: does what the lines of standard input say, and answers each in JSON.

Arguments: root, catalog ("" for LMDB), and a planted bug: "foreign" deletes by the clock of the catalog alone,
"unwatched" waits for the end of each lease, "forgetful" does not see that the clock was put forward, "short" counts the
time of a tag from the wall clock.
The wall clock and the boot clock are those of the newest line `time`.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import epochlog as el
from epochlog.__main__ import main
from epochlog.checkpoint.job.claims import JobClaims
from epochlog.store.env import process_id
from epochlog.store.env.clock import BootTime, SystemClock
from epochlog.store.session.clock_guard import ClockGuard
from redis_time import served_time

STATE: dict[str, Any] = {"wall_ms": 0, "boot": "", "boot_ms": 0}
HELD: list[el.Snapshot] = []
RUN: list[Any] = []
"""Claims and lease of each job that the process runs."""


def set_clock(wall_ms: int, boot: str, boot_ms: int) -> None:
    STATE.update(wall_ms=wall_ms, boot=boot, boot_ms=boot_ms)


def serve(root: str, catalog: str, plant: str = "") -> None:
    if plant == "foreign":
        ClockGuard.lead_ms = lambda self, wall_ms: 0  # type: ignore[method-assign]
    if plant == "unwatched":
        ClockGuard.outlived = lambda self, *lease: False  # type: ignore[method-assign]
    if plant == "forgetful":
        ClockGuard._put_forward_ms = lambda self, now: 0  # type: ignore[method-assign]
    if plant == "short":
        ClockGuard.latest_ms = lambda self, view: self._catalog.now_ms()  # type: ignore[method-assign]
    SystemClock.__call__ = lambda self: STATE["wall_ms"]  # type: ignore[method-assign]
    process_id._read_machine = lambda: STATE["boot"]  # type: ignore[assignment]
    SystemClock.boot_time = lambda self: BootTime(STATE["boot"], STATE["boot_ms"])  # type: ignore[method-assign]
    store: el.Store | None = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer: Any = None
        try:
            if command == "time":
                set_clock(*arguments)
                if store is not None:  # the thread that does so goes by real time
                    store._handle.leases.renew()
                    store._handle.runners.renew()
            elif command == "leave":
                HELD.clear()
                if store is not None:
                    store.close()
                store = None
            elif command == "doctor":
                answer = main(["doctor", root, "--json", *(["--catalog", catalog] if catalog else []), *arguments])
                sys.stdout.flush()
            else:
                store = store or el.open(root, catalog or None, volatile=bool(catalog))
                answer = act(store, command, *arguments)
        except el.EpochlogError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print("=" + json.dumps(answer), flush=True)


def rows_of(store: el.Store, tag: el.Tag) -> list[int]:
    return sorted(store.table("t").to_arrow(epoch=tag.epochs["t"])["id"].to_pylist())


def keep(store: el.Store, name: str, length_ms: int) -> list[int]:
    """Tag the newest rows; return them."""
    with store.snapshot(["t"], consistency=el.Latest()) as snapshot:
        return rows_of(store, snapshot.tag(name, length_ms / 1000))


def act(store: el.Store, command: str, *arguments: Any) -> Any:
    table = store.table("t")
    if command == "put":
        key, at_ms = arguments
        return table.upsert([{"id": key, "at": datetime.fromtimestamp(at_ms / 1000, UTC)}])
    if command == "upkeep":
        store.compact()
        store.vacuum()
        return None
    if command in ("step", "take over"):
        job = store.job(*arguments or ["j"])
        (output,) = job.info.outputs
        return job.step_local(
            lambda ctx: ctx.upsert(output, ctx.table("t").select(["id"])), until="newest", take_over=command != "step"
        )
    if command == "run":  # as a query does, until the process dies
        runner = store.job(*arguments)._runner
        claims = JobClaims(store._handle, runner.job_id, runner.name)
        lease = claims.new_lease("query")
        claims.acquire(lease)
        RUN[:] = [claims, lease]
        return None
    if command == "running":
        claims, lease = RUN
        claims.require_lease(claims.record(), lease)
        return claims.holds(lease)
    if command == "tag":
        return keep(store, *arguments)
    if command == "tags":
        return [[tag.name, rows_of(store, tag)] for tag in store.tags()]
    if command == "hold":
        for snapshot in HELD:
            snapshot.close()
        HELD[:] = [store.snapshot(["t"])]
    if command in ("hold", "held"):
        return sorted(HELD[0]["t"].to_arrow()["id"].to_pylist())
    if command == "rows":
        return sorted(table.to_arrow(epoch=arguments[0] if arguments else None)["id"].to_pylist())
    assert command == "nothing", command
    return None


if __name__ == "__main__":
    with served_time():
        serve(*sys.argv[1:])
