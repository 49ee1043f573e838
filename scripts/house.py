"""Size of the product, and the length and cost of its three ways: a row in, a row out, a barrier of a job.

    python scripts/house.py                      # print the figures of this checkout
    python scripts/house.py --beside ../older    # and of another one, CPU in turns with it
    python scripts/house.py --ways               # print the functions of each way

The hops of a way are the product's functions, each code object once, that are on the stack whenever a file or a catalog
transaction is written (upsert, barrier) or a data file is read (`to_arrow`). Catalog reads are calls of `Catalog.read`
in one step of a job; transactions, bytes of records, and log entries that it makes or decodes are counted apart. CPU is
that of the whole process for one step of a job whose Python refresh copies 100 rows, and of one commit of 100 rows, on
LMDB with disk durability: medians of 60.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 60
TURNS = 5
"""Processes of each checkout that measure CPU in turns."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Return the lines and tokens of code of each folder of the product, and of the modules beside them."""
    packages = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    folders = sorted({name.split(".")[1] for name in packages if "." in name} | {"scripts"})
    modules = {folder: sorted((root / folder).rglob("*.py")) for folder in folders}
    modules["."] = sorted(root.glob("*.py"))
    return {folder: (lines_of(paths), sum(map(tokens_of, paths))) for folder, paths in modules.items()}


def lines_of(paths: list[Path]) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def tokens_of(path: Path) -> int:
    """Count the tokens of a module without comments and line ends; a docstring is one token."""
    text = path.read_text("utf-8")
    return sum(token.type not in NO_CODE for token in tokenize.generate_tokens(io.StringIO(text).readline))


class Way:
    """Functions of the product that are on the stack whenever a watched function is called."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.hops: dict[CodeType, None] = {}

    def note(self, frame: FrameType | None) -> None:
        stack = list[CodeType]()
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._package):
                stack.append(frame.f_code)
            frame = frame.f_back
        self.hops.update(dict.fromkeys(reversed(stack)))

    @contextmanager
    def of(self, *watched: Callable[..., Any]) -> Iterator[None]:
        """Note the stack at each call of one of the watched functions inside of the block."""
        codes = {function.__code__ for function in watched}

        def look(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code in codes:
                self.note(frame)

        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def names(self) -> list[str]:
        names = ((code.co_filename.removeprefix(self._package), code.co_qualname) for code in self.hops)
        return [f"{name} ({path})" for path, name in names if not name.endswith(("<genexpr>", "<listcomp>"))]


class Shop:
    """Store with a table of 45 commits in L0, and a job that copies the changed rows of another one."""

    def __init__(self, folder: str) -> None:
        import pyarrow as pa

        import epochlog as el

        schema = pa.schema([("id", pa.int64()), ("cents", pa.int64())])
        self._make = lambda first: pa.table({"id": list(range(first, first + 100)), "cents": [7] * 100}, schema=schema)
        self._store = el.open(folder)
        self.orders = self._store.create_table("orders", schema, ["id"])
        self.job = self._store.create_job("copies", ["orders"], {"copies": (schema, ["id"])})
        self._next = 0
        for _ in range(45):
            self.upsert()
            self._store.checkpoint()
            self.step()

    def upsert(self) -> None:
        self._next += 100
        self.orders.upsert(self._make(self._next))

    def checkpoint(self) -> None:
        self._store.checkpoint()

    def step(self) -> None:
        self.job.step_local(lambda ctx: ctx.upsert("copies", ctx.changes("orders").select(["id", "cents"])))

    def read(self) -> None:
        self.orders.to_arrow()


def ways(shop: Shop, package: str) -> dict[str, list[str]]:
    """Return the functions of each way."""
    from epochlog.store.catalog.lmdb.catalog import LmdbCatalog
    from epochlog.store.env.local_folder import LocalFiles
    from epochlog.store.scan.result_cache import set_result_cache_bytes

    row_in, row_out, barrier = Way(package), Way(package), Way(package)
    set_result_cache_bytes(0)
    with row_in.of(LocalFiles.write, LmdbCatalog.transact):
        shop.upsert()
    with row_out.of(LocalFiles.read, LocalFiles.open_input):
        shop.read()
    shop.checkpoint()
    with barrier.of(LocalFiles.write, LmdbCatalog.transact):
        shop.step()
    return {"upsert": row_in.names(), "to_arrow": row_out.names(), "barrier": barrier.names()}


def reads_of_a_step(shop: Shop) -> dict[str, int]:
    """Count the catalog reads of one step, its transactions, and what they decode."""
    from epochlog.store.catalog import protocol, records
    from epochlog.store.catalog.lmdb import catalog
    from epochlog.store.metadata.version import LogEntry

    counts = Counter[str]()

    def counted(function: Any, *names: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            counts.update(names)
            return function(*arguments, **named)

        return call

    plainly = records.unpack

    def unpack(key: bytes, value: bytes) -> records.Record:
        counts.update({"records": 1, "bytes": len(value)})
        return plainly(key, value)

    shop.upsert()
    shop.checkpoint()
    kind = catalog.LmdbCatalog
    with (
        patch.object(kind, "read", counted(kind.read, "catalog reads")),
        patch.object(kind, "transact", counted(kind.transact, "transactions")),
        patch.object(records, "unpack", unpack),
        patch.object(protocol if hasattr(protocol, "unpack") else catalog, "unpack", unpack),
        patch.object(LogEntry, "__init__", counted(LogEntry.__init__, "log entries")),
    ):
        shop.step()
    return dict(counts)


def cpu(shop: Shop) -> dict[str, float]:
    """Return the median CPU milliseconds of a step and of a commit."""

    def spent(work: Callable[[], None]) -> float:
        before = time.process_time()
        work()
        return (time.process_time() - before) * 1000

    commits, steps = list[float](), list[float]()
    for _ in range(ROUNDS):
        commits.append(spent(shop.upsert))
        shop.checkpoint()
        steps.append(spent(shop.step))
    return {"step ms": round(median(steps), 2), "commit ms": round(median(commits), 2)}


def measure(root: Path, part: str) -> dict[str, Any]:
    """Measure a checkout in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def part(name: str) -> dict[str, Any]:
    """Measure one part of the checkout that this process imports."""
    import epochlog

    logging.disable(logging.WARNING)
    package = f"{Path(epochlog.__file__).parent}/"
    with tempfile.TemporaryDirectory(prefix="epochlog-house-") as folder:
        shop = Shop(folder)
        if name == "cpu":
            return cpu(shop)
        return {"ways": ways(shop, package), "a step": reads_of_a_step(shop)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another checkout of the project")
    parser.add_argument("--ways", action="store_true", help="print the functions of each way")
    parser.add_argument("--part", choices=("ways", "cpu"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        print(json.dumps(part(chosen.part)))
        return 0
    roots = [ROOT, *(path.resolve() for path in chosen.beside)]
    turns = [[measure(root, "cpu") for root in roots] for _ in range(TURNS)]
    for number, root in enumerate(roots):
        counted = sizes(root)
        print(f"{root}\n  {'lines':>7} {'tokens':>7}")
        for folder, (lines, tokens) in counted.items():
            print(f"  {lines:7} {tokens:7}  {folder}")
        totals = [sum(column) for column in zip(*counted.values(), strict=True)]
        print(f"  {totals[0]:7} {totals[1]:7}  all")
        measured = measure(root, "ways")
        for way, hops in measured["ways"].items():
            print(f"  {len(hops):3} hops of {way}")
            if chosen.ways:
                print("".join(f"        {hop}\n" for hop in hops), end="")
        print(f"  in one step: {', '.join(f'{count} {what}' for what, count in sorted(measured['a step'].items()))}")
        for what in turns[0][number]:
            print(f"  {median(turn[number][what] for turn in turns)} {what} of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
