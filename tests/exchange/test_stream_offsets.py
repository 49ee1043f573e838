"""Offsets of the stream source: whole epochs within limits, symbolic starts, and tables told apart by id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.spark.stream_offsets import BatchLimits, LogEpoch, Offset, parse_start, plan_until

pytestmark = pytest.mark.local_only

LOG = [LogEpoch(epoch, rows, rows * 10) for epoch, rows in ((3, 5), (7, 1), (8, 100), (20, 2))]


@pytest.mark.parametrize(
    ("after", "limits", "target", "until"),
    [
        (0, BatchLimits(), None, 20),
        (0, BatchLimits(), 19, 8),
        (0, BatchLimits(), 2, 0),
        (20, BatchLimits(), None, 20),
        (0, BatchLimits(epochs=1), None, 3),
        (3, BatchLimits(epochs=2), None, 8),
        (0, BatchLimits(rows=6), None, 7),
        (0, BatchLimits(rows=5), None, 3),
        (0, BatchLimits(rows=1), None, 3),  # an epoch is never split, so one at least is taken
        (7, BatchLimits(rows=1), None, 8),
        (0, BatchLimits(bytes=60), None, 7),
        (0, BatchLimits(epochs=3, rows=6), None, 7),
    ],
)
def test_plan(after: int, limits: BatchLimits, target: int | None, until: int) -> None:
    assert plan_until(LOG, after, limits, target) == until


@pytest.mark.medium
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), max_size=20, unique_by=lambda pair: pair[0]),
    st.integers(1, 20),
)
def test_batches_tile_the_log(pairs: list[tuple[int, int]], rows: int) -> None:
    log = [LogEpoch(epoch, count, count) for epoch, count in sorted(pairs)]
    after, taken = 0, []
    while (until := plan_until(log, after, BatchLimits(rows=rows))) > after:
        batch = [entry for entry in log if after < entry.epoch <= until]
        assert len(batch) == 1 or sum(entry.rows for entry in batch) <= rows
        taken += batch
        after = until
    assert taken == log


def test_the_log_is_read_no_further_than_needed() -> None:
    def endless():
        epoch = 0
        while True:
            epoch += 1
            yield LogEpoch(epoch, 1, 1)

    assert plan_until(endless(), 5, BatchLimits(epochs=3)) == 8
    assert plan_until(endless(), 5, BatchLimits(), target=100) == 100


def test_offsets_survive_json() -> None:
    for offset in (Offset(3, 17), Offset(3, start="snapshot")):
        assert Offset.from_json(offset.to_json(), 3, "t") == offset
        with pytest.raises(el.TableDropped):
            Offset.from_json(offset.to_json(), 4, "t")


def test_starts() -> None:
    assert [parse_start(given) for given in (None, "17", "Latest", "earliest", "SNAPSHOT")] == [
        None,
        17,
        "latest",
        "earliest",
        "snapshot",
    ]
    with pytest.raises(el.InvalidInput, match="startingVersion"):
        parse_start("-1")
