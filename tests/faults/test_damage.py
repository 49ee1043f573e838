"""Damage at any byte of any format is reported as Corrupt with its file, and never returned, skipped or deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import epochlog as el
from faults.damage import COMES_BY, build, check_damage, hurt, read_or_reported, reads
from faults.power import seeded

pytestmark = pytest.mark.local_only


def test_damage_here_and_there(tmp_path: Path) -> None:
    check_damage(tmp_path, stride=97, first=seeded().randrange(97))


@pytest.mark.long
def test_damage_at_every_byte(tmp_path: Path) -> None:
    check_damage(tmp_path, stride=1)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    root, formats = build(tmp_path)
    with el.open(root, durability="os") as store:
        ways = reads(store.table("t"))
        right = {name: read() for name, read in ways.items()}
        for path in formats.values():
            shutil.move(root / path, tmp_path / "away")
            detected = [read_or_reported(read, right[name], root / path, path) for name, read in ways.items()]
            assert any(detected)
            assert any(path in problem.where for problem in store.verify().problems)
            shutil.move(tmp_path / "away", root / path)
        assert store.verify().ok


@pytest.mark.parametrize("kind", ["segment", "part", "history"])
def test_compaction_takes_no_damage_along(tmp_path: Path, kind: str) -> None:
    """It stops, or lets the damaged file alone; either way the file and the damage stay, and reads are told."""
    root, formats = build(tmp_path)
    path = root / formats[kind]
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    with el.open(root, durability="os") as store:
        try:
            store.compact("t", full=True)
        except el.Corrupt as error:
            assert error.path.endswith(path.name)  # noqa: PT017  it may also let the file alone
        assert any(path.name in problem.where for problem in store.verify().problems)
        ways = reads(store.table("t"))
        with pytest.raises(el.Corrupt, match=path.name):
            ways[COMES_BY[kind]]()
        path.write_bytes(good)
        assert ways["now"]() == [{"id": 1, "v": "a"}, {"id": 2, "v": "d"}]
        assert store.verify().ok


def test_a_marker_damaged_at_any_byte(tmp_path: Path) -> None:
    """It is refused, or it is still the same store; a marker cut short is that of no store that is in use."""
    root, _ = build(tmp_path)
    marker = root / "epochlog.json"
    good = marker.read_bytes()
    for change, data in hurt(good, 1):
        marker.write_bytes(data)
        try:
            with el.open(root, durability="os") as store:
                assert store.table("t").count() == 2, change
                assert change == "longer" or b'"' not in data[len(good) :], change
        except el.EpochlogError:
            pass
        assert marker.read_bytes() == data, f"{change}: somebody has written to it"
    marker.write_bytes(good)
    with el.open(root, durability="os") as store:
        assert store.verify().ok
