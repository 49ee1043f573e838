"""The work of commits, steps and reads does not follow the number of commits that a store remembers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochlog.store.catalog.lmdb.catalog import LmdbView
from epochlog.store.epochs.view_reader import EpochMemory
from lab import Lab, epochs_of, mirror

pytestmark = pytest.mark.local_only

FEW, MANY = 40, 200


def records_read(root: Path, remembered: int) -> Counter[str]:
    """Return the catalog records that each call reads in a store in which each table has so many commits."""
    lab, read = Lab(root), Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        try:
            lab.root_table()
            job = lab.job("a", ["r"])
            refresh = mirror("r", "a_out")

            def advance(number: int) -> None:
                lab.put({number % 10: (0, number)})
                lab.tick()
                lab.store.checkpoint()

            def warm() -> None:
                with lab.store.snapshot() as snapshot:
                    snapshot["a_out"].to_arrow()

            for number in range(remembered):
                advance(number)
                assert job.step_local(refresh) is not None
            lab.store.compact(full=True)
            warm()
            current = [""]
            scan = LmdbView.scan_packed

            def counted(
                view: Any, start: bytes, stop: bytes, *, reverse: bool = False
            ) -> Iterator[tuple[bytes, bytes]]:
                for item in scan(view, start, stop, reverse=reverse):
                    read[current[0]] += 1
                    yield item

            patch.setattr(LmdbView, "scan_packed", counted)
            table = lab.store.table("r")
            newest = table.next_epoch(0) and epochs_of(lab.store).table("r").commits[-2]
            calls: dict[str, Callable[[], object]] = {
                "commit": lambda: lab.put({1: (1, 1)}),
                "tick": lambda: (lab.tick(), lab.store.checkpoint()),
                "step": lambda: job.step_local(refresh),
                "idle step": lambda: job.step_local(refresh),
                "snapshot": warm,
                "read": table.to_arrow,
                "get": lambda: table.get([{"k": 1}]),
                "changes": lambda: table.changes(int(newest)).read_all(),
                "tables": lab.store.tables,
                "metrics": lab.store.metrics,
                "job": lambda: job.info,
                "history": lambda: table.history(limit=3),
                "epochs": lambda: epochs_of(lab.store),
            }
            for name, call in calls.items():
                current[0] = name
                call()
            return read
        finally:
            lab.store.close()


def check(folder: Path) -> None:
    few, many = (records_read(folder / str(count), count) for count in (FEW, MANY))
    assert few["step"] > 0 and few["changes"] > 0
    assert many == few


@pytest.mark.slow
def test_calls_read_as_many_records_with_five_times_the_commits(tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.slow
@pytest.mark.planted
def test_a_memory_of_epochs_that_forgets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: each look reads all remembered commits."""
    real = EpochMemory.of
    monkeypatch.setattr(EpochMemory, "of", lambda self, *args: real(EpochMemory(), *args))
    with pytest.raises(AssertionError):
        check(tmp_path)
