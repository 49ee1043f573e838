"""The pages of the policies: their pictures are of what is chosen now, and their stories end as they say."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import epochlog as el
import pages
from epochlog.batch.policy_registry import BUILT_IN

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "policies"
PAGES = sorted(FOLDER.glob("*.md"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_policies", ROOT / "scripts" / "draw_policies.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_policies"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.medium
def test_the_pictures_are_those_that_would_be_drawn_now(script: ModuleType, tmp_path: Path) -> None:
    drawn = script.drawn(tmp_path / "lake")
    assert {f"{name}.svg" for name in BUILT_IN} == set(drawn)
    committed = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.svg")}
    assert committed == drawn, "run scripts/draw_policies.py"


@pytest.mark.medium
def test_what_the_pictures_show_is_what_is_read(script: ModuleType, tmp_path: Path) -> None:
    """From the pictures alone, against snapshots taken here: epochs, lags, places and words."""
    story = script.Story(tmp_path / "lake")
    start = script.START_MS
    written = story.store.table("orders").info.max_committed_epoch
    now: dict[str, Any] = {
        "global": el.Global(),
        "aligned": el.Aligned(),
        "latest": el.Latest(),
        "as_of": el.AsOf(timestamp=start + 5_600),
        "bounded": el.Bounded(max_lag=5, timeout=0),
    }
    shown = {name: reads(name) for name in BUILT_IN}
    for name, policy in now.items():
        with story.store.snapshot(list(shown[name]), consistency=policy) as snapshot:
            assert read_by(script, snapshot) == shown[name], name
    pinned = story.store.snapshot(["orders", "revenue"], consistency="aligned")
    with pytest.raises(el.NoConsistentEpoch):
        story.store.snapshot(["orders", "revenue"], consistency=el.AtLeast(written, timeout=0))
    story.step(12.1, "revenue")
    with story.store.snapshot(["orders", "revenue"], consistency=el.AtLeast(written, timeout=0)) as snapshot:
        assert read_by(script, snapshot) == shown["at_least"]
        assert min(snapshot.epochs.values()) >= written
    assert {table: epoch for table, (epoch, *_) in shown["exact"].items()} == pinned.epochs
    pinned.close()
    with pytest.raises(el.StalenessExceeded, match="balance"):
        story.store.snapshot(["orders", "balance"], consistency=el.Bounded(max_lag=5, timeout=0))
    story.store.close()


def read_by(script: ModuleType, snapshot: el.Snapshot) -> dict[str, tuple[int, int, float, str]]:
    """Return the expected picture of each table: epoch, lag, x coordinate of the epoch, and its label."""
    expected = {}
    for table, epoch in snapshot.epochs.items():
        at = script.second_of(epoch)
        expected[table] = (epoch, snapshot.lag_ms[table], script.x_of(at), f"{at:.3f} s")
    return expected


def reads(name: str) -> dict[str, tuple[int, int, float, str]]:
    """Read epoch, lag, x coordinate and label of each table from the picture."""
    root = ET.fromstring((FOLDER / f"{name}.svg").read_text("utf-8"))
    labels = {
        float(text.attrib["x"]): text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "epoch"
    }
    chosen_marks = [float(mark.attrib["x1"]) for mark in root.iter(f"{SVG}line") if mark.get("class") == "chosen"]
    pictures = {}
    for group in root.iter(f"{SVG}g"):
        lines = [float(mark.attrib["x1"]) for mark in group.iter(f"{SVG}line")] or chosen_marks
        words = [word.text or "" for word in group.iter(f"{SVG}text")]
        lag = int(group.attrib["data-lag-ms"])
        assert f"lag {lag:,} ms" in words
        (at,) = lines
        pictures[group.attrib["data-table"]] = (int(group.attrib["data-epoch"]), lag, at, labels[at])
    return pictures


def test_every_policy_has_a_page_with_its_picture() -> None:
    named = {path.stem for path in PAGES}
    assert set(BUILT_IN) <= named and "README" in named
    index = (FOLDER / "README.md").read_text("utf-8")
    for name in BUILT_IN:
        page = (FOLDER / f"{name}.md").read_text("utf-8")
        assert f"({name}.svg)" in page and f"({name}.md)" in index, name
        for heading in ("What it reads", "What it costs", "When to use it", "Errors", "Example"):
            assert re.search(rf"^## {heading}$", page, re.MULTILINE), (name, heading)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_a_policy_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = pages.follow(page, tmp_path)
    assert not wrong, wrong
