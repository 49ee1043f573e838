"""The pages for who extends the library keep their word: each is followed as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))


@pytest.mark.medium
@pytest.mark.parametrize("page", HOWTO, ids=lambda page: page.stem)
def test_a_page_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = pages.follow(page, tmp_path)
    assert not wrong, wrong


def test_each_extension_has_its_page() -> None:
    assert {page.stem for page in HOWTO} == {
        "add-a-catalog",
        "add-a-compaction-strategy",
        "add-a-failpoint",
        "add-a-policy",
    }
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert all(f"(docs/howto/{page.name})" in contributing for page in HOWTO)
