"""The conformance suite of catalogs, on the embedded one and on Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from catalog_makers import KINDS, LmdbMaker, Maker, RedisMaker
from epochlog.testing.catalog_conformance import CASES, OpenCatalog
from stores import servers

LONGER = {"large_records_in_a_range_come_whole"}


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    with ExitStack() as stack:
        yield LmdbMaker(stack, tmp_path / "c") if request.param == "lmdb" else RedisMaker(stack, servers.redis)


@pytest.mark.parametrize("case", [
    pytest.param(case, id=case.__name__, marks=[pytest.mark.medium] * (case.__name__ in LONGER)) for case in CASES
])  # fmt: skip
def test_it_keeps_the_protocol(maker: Maker, case: Callable[[OpenCatalog], None]) -> None:
    case(maker.open)
