"""Work of calls over wide tables, counted without a clock: it shows if work grows faster than the number of columns.

Counted are the instructions that epochlog's own code executes, and the columns or names that one of its instructions
goes through in C: the names of an Arrow schema, a table with one more column, a search in a list. Both are exact, so
that a few dozen columns are enough.
"""

from __future__ import annotations

import dis
import gc
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import epochlog
from epochlog.store.catalog.records import DECODED
from epochlog.store.env import lru_cache

_PACKAGE = str(Path(epochlog.__file__).parent)
_OF_ARROW = {
    *("names", "types", "column_names", "columns", "nbytes", "shape"),
    *("append_column", "add_column", "set_column", "remove_column", "drop_columns", "rename_columns"),
    *("cast", "filter", "take", "slice", "equals", "combine_chunks", "to_pylist", "to_pydict", "to_batches"),
    *("append", "insert", "remove", "set", "with_metadata", "remove_metadata", "serialize"),
}
"""Attributes of an Arrow table, batch or schema whose use goes through all columns."""
_OF_PARQUET = {"read", "read_row_group", "read_row_groups", "iter_batches", "schema_arrow"}
_OF_LISTS = {"index", "count", "insert", "remove"}
_NAMES = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_WITHOUT_EFFECT = {"CACHE", "NOP", "EXTENDED_ARG", "PUSH_NULL", "RESUME"}
MOST_GROWTH = 1.15
SLACK = {"instructions": 100, "columns": 20}
"""Work that a place may do more at one number of columns than at another for a reason of its own, such as one more
record; it is less than that of a loop over columns in a loop over columns.
"""
_IN_STEPS = "store/catalog/lmdb/page_check.py"
"""Code that goes through the pages of the catalog, whose number rises in steps."""
T = TypeVar("T")


_current: list[Callable[..., Any]] = []


@dataclass
class WidthWork:
    """Instructions by function, and columns gone through in C by line."""

    instructions: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)

    def kinds(self) -> dict[str, Counter[str]]:
        return {"instructions": self.instructions, "columns": self.columns}


class Meter:
    """Work of each named call of one run. counts: False to make the calls only. also: files with planted bugs."""

    def __init__(self, *, counts: bool = True, also: Sequence[str] = ()) -> None:
        self.works: dict[str, WidthWork] = {}
        self._counts, self._folders = counts, (_PACKAGE, *also)

    def __call__(self, name: str, call: Callable[[], T]) -> T:
        if not self._counts:
            return call()
        with counted(self._folders) as work:
            result = call()
        self.works[name] = work
        return result


def _instructions(code: CodeType) -> Iterator[tuple[dis.Instruction, int | None]]:
    """Yield the instructions of a function that have an effect, with their lines."""
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _WITHOUT_EFFECT:
            yield instruction, instruction.positions.lineno if instruction.positions else None


@cache
def _costly(code: CodeType) -> Mapping[int, tuple[str, tuple[str, ...]]]:
    """Return the instructions that may go through columns in C: by offset, the attribute used ("in": a search), and the
    path of names that leads to the object.
    """
    costly: dict[int, tuple[str, tuple[str, ...]]] = {}
    path: tuple[str, ...] = ()  # of the object on top of the stack; empty: not known
    for instruction, _ in _instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _ATTRIBUTES:
            if path and value in _OF_ARROW | _OF_LISTS | _OF_PARQUET:
                costly[instruction.offset] = value, path
            path = (*path, value) if path else ()
        elif name in _NAMES:
            path = (str(value),)
        else:
            if name == "CONTAINS_OP" and path:
                costly[instruction.offset] = "in", path
            path = ()
    return costly


def _width(frame: FrameType, attribute: str, path: tuple[str, ...]) -> int:
    """Return the number of columns or names that the instruction goes through."""
    first, *rest = path
    value: Any = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        value = getattr(value, name, None)
    if isinstance(value, list | tuple):
        return len(value) if attribute == "in" or attribute in _OF_LISTS else 0
    if isinstance(value, pq.ParquetFile):
        return value.metadata.num_columns if attribute in _OF_PARQUET else 0
    if attribute in _OF_ARROW and isinstance(value, pa.Table | pa.RecordBatch):
        return value.num_columns
    return len(value) if attribute in _OF_ARROW and isinstance(value, pa.Schema) else 0


@contextmanager
def counted(folders: tuple[str, ...]) -> Iterator[WidthWork]:
    """Count the work of the code below these folders, in this thread and in those that it starts."""
    work = WidthWork()
    tracers: dict[CodeType, Callable[..., Any]] = {}

    def tracer_of(code: CodeType) -> Callable[..., Any]:
        costly, file = _costly(code), code.co_filename.removeprefix(_PACKAGE + "/")
        function, instructions = f"{file}: {code.co_qualname}", work.instructions
        by_line = Counter(line for _, line in _instructions(code))

        def of_lines(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                instructions[function] += by_line[frame.f_lineno]
            return of_lines

        def of_instructions(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "opcode":
                instructions[function] += 1
                if frame.f_lasti in costly:
                    work.columns[f"{file}:{frame.f_lineno}"] += _width(frame, *costly[frame.f_lasti])
            return of_instructions

        return of_instructions if costly else of_lines

    def begun(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folders):
            return None
        if threading.current_thread().name == "epochlog-leases":
            return None  # its work grows with time
        if code not in tracers:
            tracers[code] = tracer_of(code)
        frame.f_trace_opcodes = bool(
            _costly(code)
        )  # an event for each takes several times as long as one for each line
        frame.f_trace_lines = not frame.f_trace_opcodes
        return tracers[code]

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # no object of another test ends within the count
    _current.append(begun)
    threading.settrace(begun)
    sys.settrace(begun)
    try:
        yield work
    finally:
        _current.pop()
        if collects:
            gc.enable()
        sys.settrace(before)
        threading.settrace(before)  # pyright: ignore[reportArgumentType]


def joining(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, which counts its thread's work from its call on: Python did not start a server's threads."""

    def joined(*args: Any, **options: Any) -> T:
        sys.settrace(_current[-1] if _current else None)
        return function(*args, **options)

    return joined


def superlinear(
    world: Callable[[int, Meter], None],
    columns: int = 12,
    also: Sequence[str] = (),
    kinds: Sequence[str] = ("instructions", "columns"),
) -> list[str]:
    """Return the calls of a world whose work grows faster than the number of columns, and where it does.

    The world makes the calls with that number of columns; it is run with once, twice and three times as many.
    """
    world(columns, Meter(counts=False))  # modules are loaded, and caches filled
    runs: list[dict[str, WidthWork]] = []
    with patch.object(lru_cache, "SWEEP_S", math.inf):  # a sweep of the caches comes by the clock, in any call
        for factor in (1, 2, 3):
            DECODED.clear()  # one that earlier tests have filled evicts as many entries as it happens to take
            meter = Meter(also=also)
            world(factor * columns, meter)
            runs.append(meter.works)
    works = {name: [run[name].kinds() for run in runs] for name in runs[0]}
    return [line for name in works for kind in kinds for line in _growing(name, kind, works[name])]


def _growing(name: str, kind: str, runs: Sequence[Mapping[str, Counter[str]]]) -> Iterator[str]:
    for place in sorted(runs[-1][kind]):
        if place.startswith(_IN_STEPS):
            continue
        first, second, third = counts = [run[kind][place] for run in runs]
        if third - second > MOST_GROWTH * max(second - first, 0) + SLACK[kind]:
            yield f"{name}: {counts} {kind} in {place}"
