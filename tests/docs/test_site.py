"""Site of the pages and the API reference: it builds without a network, its links hold, no public name is left out."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import epochlog
import epochlog.checkpoint
import epochlog.exchange

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
ENTRIES = {
    page.stem: re.findall(r"^::: (.+)$", page.read_text("utf-8"), re.MULTILINE) for page in sorted(API.glob("*.md"))
}
"""The identifiers (epochlog.Store, …) that have an entry on each page."""
OF_PACKAGES = {"exchange": epochlog.exchange, "checkpoint": epochlog.checkpoint}
OF_MODULES = {"testing": ROOT / "testing"}
BUILD = """
import socket, sys

def refuse(*_, **__):
    raise AssertionError("the build of the site asks the network")

socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli(["build", "--strict", "--site-dir", sys.argv[1]])
"""


@pytest.mark.parametrize("package", [epochlog, *OF_PACKAGES.values()])
def test_every_public_name_has_one_entry(package: ModuleType) -> None:
    listed = [
        identifier.rpartition(".")[2]
        for page, identifiers in ENTRIES.items()
        for identifier in identifiers
        if page not in OF_MODULES and OF_PACKAGES.get(page, epochlog) is package
    ]
    assert sorted(listed) == sorted(package.__all__), "add a line `::: epochlog.Name` to a page of docs/api/"


@pytest.mark.parametrize("page", OF_MODULES)
def test_every_module_of_a_package_that_is_shown_by_modules_has_an_entry(page: str) -> None:
    sources = (*OF_MODULES[page].glob("*.py"), *(path.parent for path in OF_MODULES[page].glob("*/__init__.py")))
    modules = [path.stem for path in sources if path.stem != "__init__"]
    wanted = [f"epochlog.{page}.{module}" for module in sorted(modules)]
    assert ENTRIES[page] == wanted, f"docs/api/{page}.md has a line `::: …` for each module"


def test_every_page_has_its_place_in_the_site() -> None:
    """The build says so too, later."""
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not set(pages) - set(listed), "add it to nav in mkdocs.yml"


def wrong_links(site: Path) -> list[str]:
    """List the links and sources of all pages that lead to no file or anchor of the site, or load from elsewhere."""
    texts = {page: page.read_text("utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    wrong = []
    for page, text in texts.items():
        for tag, target_text in re.findall(r'<(\w+)\b[^>]*?\s(?:href|src)="?([^"\s>]+)', text):
            link = html.unescape(target_text)
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if re.match(r"[a-z]+:|//", link):
                bad = tag != "a"
            else:
                bad = not target.is_file() or bool(
                    anchor and target in anchors and unquote(anchor) not in anchors[target]
                )
            if bad:
                wrong.append(f"{page.relative_to(site)}: <{tag}> {link}")
    return wrong


@pytest.mark.slow
def test_the_site_builds_without_a_network_and_has_every_entry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = "".join(page.read_text("utf-8") for page in (tmp_path / "docs" / "api").rglob("*.html"))
    names = [name for identifiers in ENTRIES.values() for name in identifiers]
    assert len(names) > 100
    assert not [name for name in names if not re.search(rf'<h2 id="{re.escape(name)}" class="doc ', text)]
    assert not wrong_links(tmp_path)


def test_wrong_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        '<h1 id="here"></h1><a href="#here"></a><a href="../b.html#there"></a><a class="x" href="https://example.org"></a>'
        '<a href="#gone"></a><a href="../gone/"></a><a href="../b.html#gone"></a><script src="https://example.org/x.js">'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a/"></a>')
    assert wrong_links(tmp_path) == [
        "a/index.html: <a> #gone",
        "a/index.html: <a> ../gone/",
        "a/index.html: <a> ../b.html#gone",
        "a/index.html: <script> https://example.org/x.js",
    ]
