"""Pictures of the page for README and guide, light and dark, of a store in which one view fails and one is slow.

    PYTHONPATH=tests:tests/support .venv/bin/python -m page_picture docs/page

writes them into the folder.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

from browser import Browser, browser
from epochlog.page.port import PagePort
from page_store import PageStore, make_page_store
from wait_until import wait_until

COMMITS = 24
PAUSE_S = 0.7
"""Time between two commits of a picture: its curves have a sample in five seconds."""
HEIGHT = 1440


def draw(folder: Path, shown: Browser, commits: int = COMMITS, pause_s: float = PAUSE_S) -> list[Path]:
    """Write light.png and dark.png."""
    with tempfile.TemporaryDirectory(prefix="epochlog-page-") as work:
        lake = make_page_store(Path(work) / "lake")
        with lake.store, closing(PagePort(lake.store._handle, "127.0.0.1:0")) as page:
            return _draw(folder, lake, page, shown, commits, pause_s)


def _draw(folder: Path, lake: PageStore, page: PagePort, shown: Browser, commits: int, pause_s: float) -> list[Path]:
    shown.open_page(page.location)
    pause = threading.Event()
    for number in range(commits):
        lake.put(*range(3 * number, 3 * number + 3))
        if number % 4 == 1:
            lake.catch_up("slow")
        if number < commits * 2 // 3:
            while lake.by_region.step_local(lake.refresh) is not None:
                pass
        else:
            lake.fail()
        pause.wait(pause_s)
    with lake.store.snapshot(["by_day", "slow"], consistency="aligned") as snapshot:
        snapshot.tag("monday")
        shown.width(1200, HEIGHT)
        shown.type_into("#one", "by_region")
        shown.type_into("#other", "slow")
        shown.run("scrollTo(0, 0); document.activeElement.blur()")
        wait_until(lambda: "by_region and slow agree" in shown.text("#agreement-body"))
        wait_until(lambda: shown.names("#lanes-svg [data-lane]", "data-lane") == ["by_region", "orders", "slow"])
        wait_until(lambda: shown.count("#lanes-svg .mark"))
        paths = []
        for dark in (False, True):
            shown.dark(dark)
            paths.append(folder / f"{'dark' if dark else 'light'}.png")
            shown.run("document.querySelector('#root').style.display = 'none'")  # a path of this machine
            shown.picture(str(paths[-1]))
        return paths


if __name__ == "__main__":
    with browser() as started:
        for path in draw(Path(sys.argv[1]), started):
            print(path)
