"""Parts of all log readers: slices of bounded size, plans in a reader's columns, and the hold that moves on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.changelog import log_reader
from epochlog.store.changelog.log_reader import MOVE_HOLD_S, LogHold
from epochlog.store.metadata.lookups import find_table
from epochlog.store.retention.holds import all_holds
from epochlog.store.types.row_size import bounded_slices
from lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


# ---- slices ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 12), st.integers(1, 900))
def test_slices_keep_their_bounds_and_all_rows_however_uneven_the_rows_are(
    lengths: list[int], rows: int, size: int
) -> None:
    batch = pa.record_batch({"a": pa.array([b"x" * length for length in lengths], pa.binary())})
    slices = list(bounded_slices(batch, rows, size))
    assert pa.Table.from_batches(slices).to_pylist() == batch.to_pylist()
    for piece in slices:
        assert piece.num_rows <= 1 or (piece.num_rows <= rows and piece.nbytes <= size)


def test_rows_without_bytes_are_cut_by_their_number() -> None:
    batch = pa.record_batch({"a": pa.nulls(8)})
    assert [piece.num_rows for piece in bounded_slices(batch, 3, 1)] == [3, 3, 2]


# ---- the hold ----------------------------------------------------------------------------------------------------


class HeldLab:
    """A lab whose table is held by one reader, and a clock that stands still."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch, *, pre_images: bool = False) -> None:
        self.lab, self.now_s = lab, 5.0
        monkeypatch.setattr(log_reader, "monotonic_s", lambda: self.now_s)
        handle = lab.store._handle
        self.table = handle.catalog.read(lambda view: find_table(view, "r"))
        self.hold = LogHold(handle, "reader", [(self.table.id, "r")], "Begin anew", pre_images=pre_images)

    def take(self, after: int, *, rows: bool = False) -> str | None:
        return self.hold.take(lambda _: ("planned", after), rows=rows)

    @property
    def held(self) -> list[tuple[int | None, int | None]]:
        holds = self.lab.store._handle.catalog.read(lambda view: [hold for _, hold in all_holds(view)])
        return [(hold.log_epoch, hold.read_epoch) for hold in holds]


@pytest.fixture
def held_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> HeldLab:
    return HeldLab(lab, monkeypatch)


def hold_moves_as_it_should(lab: HeldLab) -> None:
    first, second, third = (lab.lab.put({key: (0, key)}) for key in range(3))
    assert lab.take(first) == "planned" and lab.held == [(first, None)]
    lab.hold.move(second)
    assert lab.held == [(first, None)], "a reader that is busy moves its hold at intervals"
    lab.now_s += MOVE_HOLD_S
    lab.hold.move(second)
    assert lab.held == [(second, None)]
    lab.hold.move(third, idle=True)
    assert lab.held == [(third, None)], "an idle one moves it at once"
    lab.now_s += MOVE_HOLD_S
    lab.hold.move(second, idle=True)
    assert lab.held == [(third, None)], "it never moves back"
    lab.hold.release()
    assert lab.held == [] and lab.take(first) is None and lab.held == [], "a released hold is not taken again"


def test_a_hold_moves_at_intervals_or_when_its_reader_is_idle(held_lab: HeldLab) -> None:
    hold_moves_as_it_should(held_lab)


def busy(hold: LogHold, after: int, *, idle: bool = False) -> None:
    hold.take(lambda _: (None, after))


def deaf(hold: LogHold, after: int, *, idle: bool = False) -> None:
    if idle:
        hold.take(lambda _: (None, after))


@pytest.mark.planted
@pytest.mark.parametrize("bug", [busy, deaf])
def test_the_check_of_moves_is_not_blind(
    held_lab: HeldLab, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., None]
) -> None:
    """It sees a hold that moves at each round, and one that moves only when its reader is idle."""
    monkeypatch.setattr(LogHold, "move", bug)
    with pytest.raises(AssertionError):
        hold_moves_as_it_should(held_lab)


def test_the_rows_are_held_until_the_first_move(held_lab: HeldLab) -> None:
    epoch = held_lab.lab.put({1: (0, 1)})
    held_lab.take(epoch, rows=True)
    assert held_lab.held == [(epoch, epoch)]
    held_lab.hold.move(epoch, idle=True)
    assert held_lab.held == [(epoch, None)]


def test_a_move_without_a_hold_takes_none(held_lab: HeldLab) -> None:
    held_lab.hold.move(held_lab.lab.put({1: (0, 1)}), idle=True)
    assert held_lab.held == []


def test_what_is_deleted_cannot_be_held(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab.put({1: (0, 1)})
    lab.store.table("r").truncate_log(lab.put({2: (0, 2)}))
    held_lab = HeldLab(lab, monkeypatch)
    with pytest.raises(el.LogTruncated, match="Begin anew$"):
        held_lab.take(first)
    assert held_lab.held == []
    lab.store.drop_table("r")
    with pytest.raises(el.TableDropped):
        held_lab.take(first)
