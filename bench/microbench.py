"""Microbenchmarks: single calls of the core operations, in rounds of pytest-benchmark, beside their record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from core_operations import OPERATIONS, Operation, prepared


@pytest.fixture(scope="module")
def operations() -> Iterator[Mapping[str, Operation]]:
    with prepared() as operations:
        yield operations


@pytest.mark.parametrize("name", OPERATIONS)
def test_call(name: str, benchmark, operations: Mapping[str, Operation]) -> None:
    operation = operations[name]
    if operation.prepare is None:
        benchmark(operation.call)
    else:
        benchmark.pedantic(operation.call, setup=operation.prepare, rounds=20, warmup_rounds=2)
