"""Batches of a feed are cut where an epoch ends, or within one that is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.store.changelog import epoch_batches as module
from epochlog.store.changelog.change_rows import COMMIT_VERSION
from epochlog.store.changelog.epoch_batches import epoch_batches

pytestmark = pytest.mark.local_only

Cut = Callable[[Iterator[pa.RecordBatch], int, int], Iterator[tuple[int, pa.RecordBatch, bool]]]


def batches_of(epochs: Sequence[int], cuts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield rows with these epochs in batches that end at the cuts; the column `n` numbers them."""
    whole = pa.record_batch({
        "n": pa.array(range(len(epochs)), pa.int64()), COMMIT_VERSION: pa.array(epochs, pa.int64())
    })  # fmt: skip
    ends = [*sorted({cut % (len(epochs) + 1) for cut in cuts}), len(epochs)]
    start = 0
    for end in ends:
        yield whole.slice(start, end - start)
        start = end


def check(cut: Cut, sizes: Sequence[int], cuts: Sequence[int], rows: int, size: int) -> None:
    epochs = [10 * (place + 1) for place, count in enumerate(sizes) for _ in range(count)]
    numbers: list[int] = []
    ends = dict(zip(epochs, range(len(epochs)), strict=True))  # the number of the last row of each epoch
    pieces = list(cut(batches_of(epochs, cuts), rows, size))
    for epoch, batch, last in pieces:
        assert 0 < batch.num_rows <= rows
        assert batch.nbytes <= size or batch.num_rows == 1
        part = batch["n"].to_pylist()
        numbers += part
        labels = batch[COMMIT_VERSION].to_pylist()
        assert labels[-1] == epoch and last == (part[-1] == ends[epoch])
        assert last or len(set(labels)) == 1
    assert numbers == list(range(len(epochs)))


@given(
    st.lists(st.integers(1, 30), max_size=30), st.lists(st.integers(0, 500), max_size=6),
    st.integers(1, 40), st.sampled_from([16, 100, 1 << 20]),
)  # fmt: skip
def test_each_batch_ends_with_an_epoch_or_is_a_part_of_one(
    sizes: list[int], cuts: list[int], rows: int, size: int
) -> None:
    check(epoch_batches, sizes, cuts, rows, size)


def test_small_epochs_are_together_however_the_batches_are_cut() -> None:
    epochs = [number for number in range(50) for _ in (0, 1)]
    cut = epoch_batches(batches_of(epochs, []), 41, 1 << 20)
    assert [batch.num_rows for _, batch, _ in cut] == [40, 40, 20]
    check(epoch_batches, [2] * 50, [3, 51, 99], 41, 1 << 20)


def test_an_epoch_that_goes_on_in_the_next_batch_is_cut_off() -> None:
    cut = list(epoch_batches(batches_of([1, 1, 2, 2, 2, 3], [3]), 10, 1 << 20))
    assert [(epoch, batch.num_rows, last) for epoch, batch, last in cut] == [(1, 2, True), (2, 1, False), (3, 3, True)]


# planted errors


def _the_last_of_a_batch_ends_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_before", lambda batch, epochs, _: iter([(int(epochs[-1]), batch, True)]))


def _cut_anywhere(patch: pytest.MonkeyPatch) -> None:
    def pieces(
        batch: pa.RecordBatch, epochs: np.ndarray, rows: int, size: int
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        del size
        for start in range(0, len(epochs), rows):
            yield batch.slice(start, rows), epochs[start : start + rows]

    patch.setattr(module, "_slices", pieces)


def _part_with_what_is_before_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        module, "_before",
        lambda batch, epochs, following: iter([(int(epochs[-1]), batch, int(epochs[-1]) != following)]),
    )  # fmt: skip


@pytest.mark.planted
@pytest.mark.parametrize("plant", [_the_last_of_a_batch_ends_its_epoch, _cut_anywhere, _part_with_what_is_before_it])
def test_a_planted_error_of_the_cuts_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):  # noqa: PT012  # the first of these that finds it
        test_an_epoch_that_goes_on_in_the_next_batch_is_cut_off()
        test_small_epochs_are_together_however_the_batches_are_cut()
