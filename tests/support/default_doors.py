"""Every door of a read that names no policy, over random histories of a store beside the model of policies."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyarrow import flight

import epochlog as el
import policy_model as policies
from epoch_histories import History, HistoryEntry, JobSpec
from epochlog.__main__ import main
from epochlog.batch.default_policy import policy_text
from epochlog.exchange.transport.duplex import connect
from epochlog.store.env.clock import SystemClock
from epochlog.store.metadata.lookups import all_jobs
from policy_model import Answer, Question

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
ROOTS = ["orders", "prices"]
VIEWS = {"revenue": ["orders"], "late": ["orders"], "margin": ["revenue", "prices"]}
"""Upstreams of each view. `late` is stepped seldom, so that defaults with a bound refuse it now and then."""
INTERVAL_MS, BOUND_MS = 1_000, 60_000
START_MS = 1_767_225_600_000


class StoreHistory(History):
    """History of a store, whose answers turn at its commits: it has too many boundaries to try them all."""

    def marks(self) -> list[int]:
        epochs = {entry.epoch for log in self.log.values() for entry in log}
        return sorted({*epochs, *(epoch - 1 for epoch in epochs), self.last_epoch})


State = dict[int, int]
Seen = dict[str, State] | str
"""Rows by table, or the name of the error."""


class DefaultWorld:
    """A store on a virtual clock, with a record of the rows of each commit."""

    def __init__(self, root: Path, seed: int, start_ms: int = START_MS) -> None:
        self.root = str(root)
        self.rng = random.Random(seed)
        self.now_ms = start_ms
        self.store = el.open(
            root, checkpoint_interval_ms=INTERVAL_MS, global_max_lag=BOUND_MS / 1000,
            clock=lambda: self.now_ms,
        )  # fmt: skip
        self.states: dict[str, dict[int, State]] = {name: {} for name in (*ROOTS, *VIEWS)}
        for name in ROOTS:
            self.store.create_table(name, ROWS, ["id"])
        for name in ROOTS:
            self.commit(name)
        for view, upstreams in VIEWS.items():
            self.store.create_job(f"job_{view}", upstreams, {view: (ROWS, ["id"])}, max_lag=1)

    def commit(self, name: str) -> None:
        epoch = self.store.table(name).upsert([{"id": self.rng.randrange(4), "v": self.rng.randrange(1_000)}])
        self.states[name][epoch] = self.rows_at(name, epoch)

    def step(self, view: str) -> None:
        def refresh(ctx: el.LocalRefreshContext) -> None:
            values = [row["v"] for up in VIEWS[view] for row in ctx.table(up).to_pylist()]
            ctx.upsert(view, pa.table({"id": [0, 1], "v": [sum(values), len(values)]}, schema=ROWS))

        epoch = self.store.job(f"job_{view}").step_local(refresh)
        if epoch:
            self.states[view][epoch] = self.rows_at(view, epoch)

    def rows_at(self, name: str, epoch: int) -> State:
        return as_state(self.store.table(name).to_arrow(epoch=epoch))

    def go_on(self) -> None:
        """A few commits, pauses and steps."""
        for _ in range(self.rng.randrange(1, 5)):
            self.now_ms += self.rng.choice([7, 400, INTERVAL_MS, BOUND_MS // 2, BOUND_MS])
            for name in ROOTS:
                if self.rng.random() < 0.5:
                    self.commit(name)
            for view in VIEWS:
                first = not self.states[view] and self.rng.random() < 0.5
                if first or self.rng.random() < (0.1 if view == "late" else 0.8):
                    self.store.checkpoint()
                    self.step(view)

    # ---- the model ---------------------------------------------------------------------------------------------------

    def question(self, tables: Sequence[str]) -> Question:
        handle = self.store._handle
        jobs = {job.name.removeprefix("job_"): job for job in handle.catalog.read(lambda view: list(all_jobs(view)))}
        specs = {view: JobSpec(list(ups), interval=INTERVAL_MS) for view, ups in VIEWS.items()}
        history = StoreHistory(ROOTS, specs, last_epoch=self.store.last_epoch)
        for name, commits in self.states.items():
            before: State = {}
            for row in reversed(self.store.table(name).history().to_pylist()):
                changed = bool(row["rows_upserted"] or row["rows_deleted"])
                before = commits.get(row["epoch"], before)
                history.log[name].append(HistoryEntry(row["epoch"], {}, changed))
        away = frozenset(view for view, job in jobs.items() if job.state == "creating")
        marked = frozenset(view for view, job in jobs.items() if job.outside_ms is not None)
        return Question(history, list(tables), away, self.now_ms, BOUND_MS, marked=marked)

    def wanted(self, tables: Sequence[str] | None, own: str | None) -> Seen:
        """Return the answer to a read of these tables by definition. None: all that take part in `global`, or all."""
        if tables is None:
            question = self.question([*ROOTS, *VIEWS])
            if own == "aligned":
                return self.seen(policies.aligned_of_all(question))
            if own in (None, "global"):
                question = self.question(sorted(policies.taking_part(question)[0]))
        else:
            question = self.question(tables)
        return self.seen(policies.default(question, all_tables=tables is None, store_default=own))

    def seen(self, answer: Answer) -> Seen:
        if isinstance(answer, type):
            return answer.__name__
        return {
            name: self.states[name].get(max((e for e in self.states[name] if e <= epoch), default=0), {})
            for name, epoch in answer.items()
        }


def as_state(rows: Any) -> State:
    return {row["id"]: row["v"] for row in rows.to_pylist()}


# ---- doors

Door = Callable[["Doors", Sequence[str] | None], Mapping[str, State]]


class Doors:
    """Doors of one store. A door reads tables by name, or all (None)."""

    def __init__(self, world: DefaultWorld) -> None:
        self.world, self.store = world, world.store
        self.handles = {name: world.store.table(name) for name in (*ROOTS, *VIEWS)}
        self.server = el.serve(world.store)
        self.client = el.connect(self.server.location)
        self.plain: Any = connect(self.server.location, None)

    def close(self) -> None:
        self.plain.close()
        self.client.close()
        self.server.shutdown()
        self.store.close()

    def of_table(self, read: Callable[[str], Any]) -> Door:
        """Return the door of a call that reads one table."""

        def door(_: Doors, tables: Sequence[str] | None) -> Mapping[str, State]:
            assert tables is not None
            return {name: as_state(read(name)) for name in tables}

        return door

    def snapshot(self, tables: Sequence[str] | None) -> Mapping[str, State]:
        with self.store.snapshot(tables) as snapshot:
            again = el.Exact(snapshot.token)
            assert again.token is not None and again.token.policy == policy_text(snapshot.policy)
            return {name: as_state(snapshot[name].to_arrow()) for name in snapshot}

    def tag(self, tables: Sequence[str] | None) -> Mapping[str, State]:
        self.store.tag("now", tables, partial=tables is None)
        try:
            with self.store.snapshot(tag="now") as snapshot:
                return {name: as_state(snapshot[name].to_arrow()) for name in snapshot}
        finally:
            self.store.drop_tag("now")

    def duckdb(self, tables: Sequence[str] | None) -> Mapping[str, State]:
        with self.store.snapshot(tables) as snapshot, contextlib.closing(snapshot.duckdb()) as connection:
            return {name: dict(connection.execute(f"SELECT id, v FROM {name}").fetchall()) for name in snapshot}

    def plain_flight(self, name: str) -> pa.Table:
        info = self.plain.get_flight_info(flight.FlightDescriptor.for_path(name))
        return pa.concat_tables([self.plain.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints])

    def shell(self, tables: Sequence[str] | None) -> Mapping[str, State]:
        """The command `epochlog read`, on the clock of the world."""
        out, err = io.StringIO(), io.StringIO()
        clock = mock.patch.object(SystemClock, "__call__", return_value=self.world.now_ms)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), clock:
            code = main(["read", self.world.root, *(tables or []), "--json", "--all"])
        if code:
            raise ShellError(err.getvalue())
        seen: dict[str, State] = {name: {} for name in tables or []}
        for row in map(json.loads, out.getvalue().splitlines()):
            seen.setdefault(row["_table"], {})[row["id"]] = row["v"]
        return seen

    def all(self) -> dict[str, tuple[Door, frozenset[str]]]:
        """Return each door with the numbers of tables that it takes: a single one, several, all."""
        table, single = self.handles.__getitem__, frozenset({"single"})
        every = frozenset({"single", "several", "all"})
        return {
            "to_arrow": (self.of_table(lambda name: table(name).to_arrow()), single),
            "scan": (self.of_table(lambda name: table(name).scan().read_all()), single),
            "to_pandas": (self.of_table(lambda name: pa.Table.from_pandas(table(name).to_pandas())), single),
            "to_polars": (self.of_table(lambda name: table(name).to_polars().to_arrow()), single),
            "lazy": (self.of_table(lambda name: table(name).lazy().collect().to_arrow()), single),
            "dataset": (self.of_table(lambda name: table(name).dataset().to_table()), single),
            "stream": (self.of_table(lambda name: pa.table(table(name))), single),
            "get": (self.of_table(lambda name: table(name).get([0, 1, 2, 3])), single),
            "client": (self.of_table(lambda name: self.client.snapshot(name).read_all()), single),
            "flight": (self.of_table(self.plain_flight), single),
            "snapshot": (Doors.snapshot, every),
            "duckdb": (Doors.duckdb, every),
            "tag": (Doors.tag, every),
            "shell": (Doors.shell, every),
        }


class ShellError(Exception):
    """Error of a command."""


WORDS = {
    "TableNotReadable": ("TableNotReadable", "under global", "more than global_max_lag"),
    "NoConsistentEpoch": ("NoConsistentEpoch", "no epoch is valid for"),
}
"""Words by which the text of an error shows its class, where the class itself does not reach the caller."""


def error_name(error: Exception) -> str:
    """Return the class of an error of the library, also of one whose text a command or another library passes on."""
    if isinstance(error, el.EpochlogError):
        return type(error).__name__
    matching = [name for name, words in WORDS.items() if any(word in str(error) for word in words)]
    assert len(matching) == 1, error
    return matching[0]


def seen_by(doors: Doors, door: Door, tables: Sequence[str] | None) -> Seen:
    """Return the rows that the door shows, or the name of its error."""
    try:
        return dict(door(doors, tables))
    except (el.EpochlogError, ShellError, flight.FlightError, pa.ArrowException) as error:
        return error_name(error)
