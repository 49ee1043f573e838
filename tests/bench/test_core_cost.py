"""Gate on the CPU time of core operations: it finds an operation that does its work twice, and names it."""

from __future__ import annotations

import json
from typing import Any

import core_cost
import pytest

import epochlog as el

pytestmark = [pytest.mark.local_only, pytest.mark.medium]


def test_an_operation_above_its_record_is_named_with_what_to_do() -> None:
    record = {"commit": 1.0, "get": 0.1}
    lines, wrong = core_cost.compare({"commit": 1.25, "get": 0.2}, record)
    assert [line.split() for line in lines[1:]] == [
        ["commit", "1.2500", "1.0000", "1.25"],
        ["get", "0.2000", "0.1000", "2.00"],
    ]
    assert len(wrong) == 1 and wrong[0].startswith("get takes 2.00 times") and "--record" in wrong[0]


def test_the_record_has_each_operation_that_is_measured() -> None:
    with core_cost.prepared() as work:
        assert set(work) == {"", *json.loads(core_cost.RECORD.read_text("utf-8"))}


def test_a_read_that_does_its_work_again_and_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = core_cost.measure()
    get = el.Table.get

    def again(table: el.Table, *args: Any, **options: Any) -> Any:
        for _ in range(3):  # twice would be near the limit where other work runs beside the first measurement
            get(table, *args, **options)
        return get(table, *args, **options)

    monkeypatch.setattr(el.Table, "get", again)
    _, wrong = core_cost.compare(core_cost.measure(), before)
    assert [message.split()[0] for message in wrong] == ["get"]
