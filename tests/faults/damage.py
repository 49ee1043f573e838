"""Cuts a store's files short at every byte and flips every byte, and looks at it as a user does.

A read of damaged data raises Corrupt and names the file, or returns the right rows; `verify` reports it; nothing
deletes the file or writes to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])

Reads = dict[str, Callable[[], Any]]

COMES_BY = {"segment": "now", "part": "now", "history": "then", "old segment": "changes"}
MORE = 16


def build(base: Path) -> tuple[Path, dict[str, str]]:
    """A store with one small file of each format; for each format its file, relative to the root."""
    root = base / "s"
    with el.open(root, durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
        table.upsert(pa.table({"id": [2], "v": ["d"]}))
        before = set(files_of(root))
        store.compact("t", full=True)
        parts = set(files_of(root)) - before
        before = set(files_of(root))
        table.delete(pa.table({"id": [3]}))
        paths = {"segment": min(set(files_of(root)) - before)}
        for part in parts:
            paths["history" if b"_until" in (root / part).read_bytes() else "part"] = part
        paths["old segment"] = min(path for path in before if path.endswith(".arrow"))
    assert set(paths) == {"segment", "part", "history", "old segment"}, paths
    return root, paths


def files_of(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".arrow", ".parquet")]


def reads(table: el.Table) -> Reads:
    """The ways to read a table; between them they come by every file."""
    epochs = [row["epoch"] for row in table.history().to_pylist()]
    return {
        "now": lambda: table.to_arrow().to_pylist(),
        "then": lambda: table.to_arrow(epoch=epochs[-1]).to_pylist(),
        "scan": lambda: table.scan(columns=["v"]).read_all().to_pylist(),
        "get": lambda: table.get(pa.table({"id": [2, 3]})).to_pylist(),
        "count": table.count,
        "changes": lambda: table.changes(0).read_all().to_pylist(),
        "images": lambda: table.changes(epochs[0] - 1, pre_images=True).read_all().to_pylist(),
    }


def hurt(good: bytes, stride: int, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """The file cut short at every `stride`-th byte, and with every `stride`-th byte flipped; longer, and empty."""
    yield "longer", good + b"\0"
    yield "empty", b""
    for at in range(first, len(good), stride):
        yield f"cut at {at}", good[:at]
        yield f"flipped at {at}", good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]


def check_damage(base: Path, stride: int = 37, first: int = 0) -> None:
    """Every format's file damaged at every `stride`-th byte."""
    root, formats = build(base)
    with el.open(root, durability="os") as store:
        ways = reads(store.table("t"))
        right = {name: read() for name, read in ways.items()}
        for kind, path in formats.items():
            check_file(store, root / path, ways, right, hurt((root / path).read_bytes(), stride, first), kind)
        assert store.verify().ok


def check_file(
    store: el.Store,
    path: Path,
    ways: Reads,
    right: dict[str, Any],
    damages: Iterator[tuple[str, bytes]],
    kind: str,
) -> None:
    """All reads and `verify` for the first damage and for one in MORE, the read that comes by the file for each."""
    good, times = path.read_bytes(), path.stat().st_mtime_ns
    for number, (change, data) in enumerate(damages):
        times += 1_000_000_000  # clocks of file systems are coarse, and damage takes longer to come
        put(path, data, times)
        more = number % MORE == 0
        detected = [
            name
            for name in (ways if more else [COMES_BY[kind]])
            if read_or_reported(ways[name], right[name], path, f"{kind} {change}: {name}")
        ]
        assert COMES_BY[kind] in detected, f"{kind} {change}: told by {detected}"
        if more:
            report = store.verify()
            assert [problem for problem in report.problems if path.name in problem.where], f"{kind} {change}: {report}"
            assert path.read_bytes() == data, f"{kind} {change}: somebody has written to it"
    put(path, good, times + 1_000_000_000)


def put(path: Path, data: bytes, times: int) -> None:
    path.write_bytes(data)
    os.utime(path, ns=(times, times))


def read_or_reported(read: Callable[[], Any], right: Any, path: Path, location: str) -> bool:
    """Return True if the read reports damage of `path`. Raises AssertionError if it blames another file or returns
    wrong rows.
    """
    try:
        result = read()
    except el.Corrupt as error:
        blamed = error.path
    else:
        assert result == right, f"{location}: returned {result}"
        return False
    assert blamed.endswith(path.name), f"{location}: blames {blamed}"
    return True
