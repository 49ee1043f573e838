"""Picture of the page of the demo's store: by a browser where there is one, and a plain line where there is none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from epochlog.demo import page
from epochlog.page.port import PagePort
from page_store import break_views, make_page_store

pytestmark = pytest.mark.local_only


@pytest.mark.slow
def test_the_picture_shows_the_store(tmp_path: Path) -> None:
    """An empty page has fewer colours and bytes than one with the store."""
    lake, picture = make_page_store(tmp_path / "lake"), tmp_path / "page.png"
    with lake.store:
        break_views(lake)
        with closing(PagePort(lake.store._handle, "127.0.0.1:0")) as port:
            assert page.draw_page(port.location, picture) is None
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 120_000


def test_a_machine_without_a_browser_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert page.draw_page("http://127.0.0.1:1/", tmp_path / "page.png") == (
        "there is no chromium: sudo apt-get install chromium"
    )


def test_a_browser_that_fails_leaves_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "page.png"
    picture.write_bytes(b"an old one")
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false")
    assert page.draw_page("http://127.0.0.1:1/", picture) == "/bin/false has made no picture"
    assert not picture.exists()
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / "absent"))
    assert "absent has failed: " in str(page.draw_page("http://127.0.0.1:1/", picture))
