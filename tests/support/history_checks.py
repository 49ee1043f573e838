"""Checks of a random history: the library agrees with the definitions, the law holds, and everything catches up."""

from __future__ import annotations

import random
from collections.abc import Mapping

from epoch_histories import History
from history_runs import by_library, decide_barrier, forget


def by_definition(history: History, job: str) -> int | None:
    return history.next_barrier(job, history.position(job), first=not history.log[job])


def check_against_definitions(
    seed: int, rng: random.Random, history: History, empty_entries_count: bool = False
) -> None:
    forget(history, rng)
    view, marks = history.view(empty_entries_count), rng.sample(history.marks(), min(24, len(history.marks())))
    for table in history.names:
        starts, ends = view.valid_intervals(table)
        assert all(starts[1:] > ends[:-1]), (seed, table)
        for epoch in [*marks, history.last_epoch]:
            assert view.complete(table, epoch) == history.complete(table, epoch), (seed, table, epoch, "complete")
            valid = history.valid(table, epoch)
            assert view.valid(table, epoch) == valid, (seed, table, epoch, "valid")
            assert any((starts <= epoch) & (epoch <= ends)) == valid, (seed, table, epoch, "valid interval")
            unreadable = epoch < history.safe_epoch.get(table, 0)
            assert bool(view.why_not([table], epoch)) == (unreadable or not valid), (seed, table, epoch, "why not")
        behind = not history.valid(table, history.last_epoch)
        assert (view.lag_ms(table) > 0) == (behind and lacks_something(history, table)), (seed, table, "lag")
    for _ in range(4):
        tables = rng.sample(history.names, rng.randint(1, len(history.names)))
        until = rng.choice([history.last_epoch, rng.randint(0, history.last_epoch)])
        assert view.largest_valid_at_most(tables, until) == history.aligned(tables, until), (seed, tables, until)
    for job in history.jobs:
        for after in [history.position(job), rng.randint(0, history.last_epoch)]:
            first = rng.random() < 0.5
            barrier = decide_barrier(history, view, job, after, first)
            assert barrier == history.next_barrier(job, after, first), (seed, job, after, first, "barrier")
    history.known_from.clear()
    history.safe_epoch.clear()


def lacks_something(history: History, table: str) -> bool:
    """Return True if the newest state of the table, or of one it descends from, misses a change of an upstream."""
    position, last = history.position(table), history.last_epoch
    return not history.ended(table) and any(
        lacks_something(history, up)
        or not history.remembers(up, position)
        or any(entry.changed and position < entry.epoch <= last for entry in history.log[up])
        for up in history.upstreams(table)
    )


def check_law(seed: int, history: History) -> None:
    """Check that a table at each valid epoch equals its query over its upstreams, and over the roots, at that epoch."""
    view = history.view()
    for table in history.jobs:
        for epoch in history.marks():
            if view.valid(table, epoch):
                state = history.state(table, epoch)
                end = history.position(table) if history.ended(table) else epoch
                assert state == history.query(table, min(epoch, end)), (seed, table, epoch, "the law")
                assert state == from_roots(history, table, dict.fromkeys(history.roots, epoch)), (
                    seed,
                    table,
                    epoch,
                    "the law",
                )


def from_roots(history: History, table: str, epochs: Mapping[str, int]) -> dict[str, int]:
    """The answer of a table made anew from the root tables as of the chosen epochs; of an ended one, as of its end."""
    spec, out = history.jobs.get(table), {}
    if spec is not None and history.ended(table):
        epochs = {root: min(epoch, history.position(table)) for root, epoch in epochs.items()}
    if spec is None:
        return history.state(table, epochs[table])
    for upstream in spec.upstreams:
        for key, value in from_roots(history, upstream, epochs).items():
            out[key] = out.get(key, 0) + value
    return {**out, "rows": len(out)} if spec.counts else out


def catch_up(seed: int, history: History) -> None:
    """With the load gone every job catches up, and the newest epoch becomes valid for all."""
    for interval in {spec.interval for spec in history.jobs.values()}:
        while (history.last_epoch + 1) % (interval * 4096):
            history.seal()
    for _ in range(30):  # one interval of every job for each level of the graph
        history.seal()
        while sum(history.step(job, by_library) for job in history.jobs):
            pass
    view = history.view()
    assert view.largest_valid_at_most(history.names) == history.last_epoch, (seed, "not caught up")
    assert {view.lag_ms(table) for table in history.names} == {0}, (seed, "lag")
