"""Queries of random job graphs, each twice: its answer from whole inputs, and how a job keeps it up to date.

All tables have the columns (k, g, v), so that any query can stand upon any table. The answer is the oracle: a plain
function of the upstreams' rows. The refresh never looks at it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Row = tuple[int, int]
"""g and v of a row."""
State = dict[int, Row]
"""The rows of a table by k."""
Writes = dict[int, Row | None]
"""What becomes of each key: its row, or None where it goes."""
Delta = dict[int, tuple[Row | None, Row | None]]
"""Each changed key's row before and after."""

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("g", pa.int64()), ("v", pa.int64())])
KEY = ["k"]
TOTAL = -1
KINDS = ("keep", "sums", "join", "union", "split", "best")
STYLES = ("images", "epochs", "lookup", "cheap")


@dataclass(frozen=True)
class Query:
    """Query of a job. `style`: its way of learning the changes; `careful`: it writes only rows that differ."""

    kind: str
    upstreams: tuple[str, ...]
    outputs: tuple[str, ...]
    style: str
    careful: bool
    total: bool  # sums: one more row, there even over empty inputs

    # ---- the oracle ----------------------------------------------------------------------------------------------

    def answer(self, inputs: Mapping[str, State]) -> dict[str, State]:
        """The rows of each output, from the whole inputs."""
        first = inputs[self.upstreams[0]]
        if self.kind == "split":
            return {
                out: {k: row for k, row in first.items() if row[1] % 2 == rest} for rest, out in enumerate(self.outputs)
            }
        return {self.outputs[0]: self._single(first, [inputs[up] for up in self.upstreams])}

    def _single(self, first: State, all_inputs: list[State]) -> State:
        if self.kind == "keep":
            return {k: row for k, row in first.items() if passes(row)}
        if self.kind == "sums":
            return with_total(sums(first), self.total)
        if self.kind == "join":
            return join(first, all_inputs[1], first)
        if self.kind == "union":
            return union(all_inputs, {k for state in all_inputs for k in state})
        best = max((v for _, v in first.values()), default=0)
        return {k: row for k, row in first.items() if row[1] == best}

    # ---- the job -------------------------------------------------------------------------------------------------

    def refresh(self, ctx: Any) -> dict[str, Writes]:
        """Decide from the context what to write to each output, and write it; returns what was written."""
        writes = self._writes(ctx)
        for out, wanted in writes.items():
            old = state_of(ctx.output(out))
            if self.careful:
                wanted = {k: row for k, row in wanted.items() if old.get(k) != row}
            writes[out] = wanted
            upserts = {k: row for k, row in wanted.items() if row is not None}
            if upserts:
                ctx.upsert(out, table_of(upserts))
            if len(upserts) < len(wanted):
                ctx.delete(out, keys_of(k for k, row in wanted.items() if row is None))
        return writes

    def _writes(self, ctx: Any) -> dict[str, Writes]:
        deltas = {up: delta(ctx, up, self.style) for up in self.upstreams}
        first = deltas[self.upstreams[0]]
        if self.kind == "split":
            return {
                out: {k: new if new and new[1] % 2 == rest else None for k, (_, new) in first.items()}
                for rest, out in enumerate(self.outputs)
            }
        out = self.outputs[0]
        if self.kind == "keep":
            return {out: {k: new if new and passes(new) else None for k, (_, new) in first.items()}}
        if self.kind == "sums":
            return {out: self._sums(state_of(ctx.output(out)), first)}
        inputs = [state_of(ctx.table(up)) for up in self.upstreams]
        if self.kind == "best":
            wanted, old = self._single(inputs[0], inputs), state_of(ctx.output(out))
            return {out: {k: wanted.get(k) for k in {*wanted, *old}}}
        if self.kind == "union":
            touched = {k for changed in deltas.values() for k in changed}
            wanted = union(inputs, touched)
        else:
            right = deltas[self.upstreams[1]]
            touched = {*first, *(k for k, (g, _) in inputs[0].items() if g in right)}
            wanted = join(inputs[0], inputs[1], touched)
        return {out: {k: wanted.get(k) for k in touched}}

    def _sums(self, old: State, changed: Delta) -> Writes:
        """Sums rolled forward: what went is taken off, what came is added."""
        sums_now = {k: row for k, row in old.items() if k != TOTAL}
        touched: set[int] = set()
        for before, after in changed.values():
            for row, sign in ((before, -1), (after, 1)):
                if row is not None:
                    group = abs(row[0])
                    count, total = sums_now.get(group, (0, 0))
                    sums_now[group] = (count + sign, total + sign * row[1])
                    touched.add(group)
        present = {k: row for k, row in sums_now.items() if row[0]}
        writes: Writes = {k: present.get(k) for k in touched}
        return {**writes, TOTAL: with_total(present, True)[TOTAL]} if self.total else writes


def random_query(rng: random.Random, name: str, pool: list[str]) -> Query:
    """A query over tables of the pool; its outputs bear the job's name."""
    kind = rng.choice([kind for kind in KINDS if kind != "join" or len(pool) > 1])
    count = {"join": 2, "union": rng.randint(1, min(3, len(pool)))}.get(kind, 1)
    return Query(
        kind=kind,
        upstreams=tuple(rng.sample(pool, count)),
        outputs=(f"{name}_even", f"{name}_odd") if kind == "split" else (f"{name}_{kind}",),
        style=rng.choice(STYLES),
        careful=rng.random() < 0.5,
        total=rng.random() < 0.5,
    )


# ---- the parts of the answers ----------------------------------------------------------------------------------------


def passes(row: Row) -> bool:
    return row[1] % 3 != 0


def sums(rows: State) -> State:
    """Per |g|: how many rows, and the sum of their values."""
    out: State = {}
    for g, v in rows.values():
        count, total = out.get(abs(g), (0, 0))
        out[abs(g)] = (count + 1, total + v)
    return out


def with_total(rows: State, total: bool) -> State:
    return {**rows, TOTAL: (len(rows), sum(v for _, v in rows.values()))} if total else rows


def join(left: State, right: State, keys: Iterable[int]) -> State:
    """Rows of the left with the row of the right that their g names."""
    return {
        k: (right[left[k][0]][0], left[k][1] + right[left[k][0]][1]) for k in keys if k in left and left[k][0] in right
    }


def union(inputs: list[State], keys: set[int]) -> State:
    """Map each key to the number of inputs that have it and the sum of their values."""
    values_by_key = {k: [state[k][1] for state in inputs if k in state] for k in keys}
    return {k: (len(values), sum(values)) for k, values in values_by_key.items() if values}


# ---- rows and tables -------------------------------------------------------------------------------------------------


def state_of(table: pa.Table) -> State:
    k, g, v = (table.column(name).to_pylist() for name in ("k", "g", "v"))
    assert len(set(k)) == len(k), f"a key is there twice: {k}"
    return dict(zip(k, zip(g, v, strict=True), strict=True))


def table_of(rows: State) -> pa.Table:
    g, v = [row[0] for row in rows.values()], [row[1] for row in rows.values()]
    return pa.table({"k": pa.array(list(rows), pa.int64()), "g": pa.array(g, pa.int64()), "v": pa.array(v, pa.int64())})


def keys_of(keys: Iterable[int]) -> pa.Table:
    return pa.table({"k": pa.array(list(keys), pa.int64())})


def delta(ctx: Any, upstream: str, style: str) -> Delta:
    """Return the changes of the upstream in (prev, curr], by one of several ways that must agree."""
    images, mode = style in ("images", "epochs"), "epochs" if style in ("epochs", "cheap") else "net"
    changes = ctx.changes(upstream, mode=mode, pre_images=images)
    names = ("k", "g", "v", "_change_type")
    rows = list(zip(*(changes.column(name).to_pylist() for name in names), strict=True))
    if images:
        return _from_images(rows)
    before = state_of(ctx.previous(upstream))
    if style == "lookup":
        after = state_of(ctx.table(upstream))
        return {k: (before.get(k), after.get(k)) for k, _, _, _ in rows}
    out: Delta = {}
    for k, g, v, kind in rows:
        assert kind in ("insert", "upsert", "delete"), kind
        out[k] = (before.get(k), None if kind == "delete" else (g, v))
    return out


def _from_images(rows: Iterable[tuple[int, int, int, str]]) -> Delta:
    out: Delta = {}
    for k, g, v, kind in rows:
        assert kind in ("insert", "update_preimage", "update_postimage", "delete"), kind
        before = out[k][0] if k in out else (g, v) if kind in ("update_preimage", "delete") else None
        out[k] = (before, (g, v) if kind in ("insert", "update_postimage") else None)
    return out
