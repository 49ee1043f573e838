"""Following a page finds what is wrong with it; and links of all pages lead somewhere."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import pytest

import epochlog as el
import pages
from epochlog.cli.grammar.commands import parser

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
FENCE = "```"

GOOD = f"""# A page

{FENCE}python
import random

epochs = random.sample(range(10**14, 10**15), 2)
for epoch in epochs:
    print(epoch, "took", random.randrange(1000), "ms")
{FENCE}

{FENCE}text
244000000000001 took 5 ms
244000000000002 took 51 ms
{FENCE}

{FENCE}console
$ echo read at 244000000000001
read at 244000000000001
$ mkdir lake && cd lake && pwd; export WHERE=here
lake
$ echo $WHERE $(basename $PWD) \\
    and on
here lake and on
{FENCE}

{FENCE}python
for epoch in epochs:
    print(epoch)
{FENCE}

{FENCE}text
244000000000001
244000000000002
{FENCE}
"""


def followed(tmp_path: Path, text: str, **options: bool) -> str:
    page = tmp_path / "page.md"
    page.write_text(text)
    folder = tmp_path / f"followed-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    return pages.follow(page, folder, **options).strip()


def test_a_good_page_is_as_it_says(tmp_path: Path) -> None:
    assert followed(tmp_path, GOOD) == ""


@pytest.mark.parametrize("old, new, complaint", [
    ("and on\nhere", "and on\nthere", "page.md:21: echo $WHERE $(basename $PWD) "),
    ("\n244000000000002\n", "\n244000000000001\n", "244000000000001 stands for two things"),
    ("range(10**14, 10**15), 2", "range(10**14, 10**15), 3", "page.md:3: the python block: it shows another thing"),
    ("51 ms", "51 MB", "page.md:3: the python block: it shows another thing"),
    ("$ echo read at", "$ false || echo read at", ""),
    ("$ echo read at", "$ ! echo read at", "page.md:17: exit code 1"),
    ("    print(epoch)", "    print(epoch.day)", 'page.py", line 28, in <module>'),
])  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    complaints = followed(tmp_path, GOOD.replace(old, new, 1))
    assert complaint in complaints if complaint else not complaints


@pytest.mark.parametrize("text, complaint", [
    (f"{FENCE}python\nx = 1\n", "line 1: this fence has no end"),
    (f"{FENCE}bash\nls\n{FENCE}\n", "line 1: a fence is one of"),
    (f"- item\n\n  {FENCE}python\n  x = 1\n  {FENCE}\n", "line 3: a fence is one of"),
    ("text\n\n    ls -l\n", "line 3: code stands in a fence"),
    (f"{FENCE}console\nls\n{FENCE}\n", "line 2: a console block begins with a command"),
    (f"{FENCE}text\nout\n{FENCE}\n", "line 1: a text block shows"),
])  # fmt: skip
def test_what_nobody_would_run_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        pages.things_to_do(text)


@pytest.mark.medium
def test_what_came_out_is_written_into_the_page(tmp_path: Path) -> None:
    bare = re.sub(rf"{FENCE}text\n.*?{FENCE}\n\n", "", GOOD, count=1, flags=re.DOTALL).replace("here lake and on\n", "")
    assert "another thing" in followed(tmp_path, bare, write=True)
    written = (tmp_path / "page.md").read_text()
    assert pages.plain(written) == pages.plain(GOOD)
    assert followed(tmp_path, written) == ""


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    links = 0
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        for link in LINK.findall(text):
            if "://" in link:
                continue
            links += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.relative_to(ROOT)} links to {link}"
            if anchor:
                assert anchor in anchors(target.read_text("utf-8")), f"{page.relative_to(ROOT)} links to {link}"
    assert links > 20


def test_the_architecture_names_only_modules_that_there_are() -> None:
    """And every package; a module may stand there with its package or, within its section, without."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"tests"}
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.py")} | {
        path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.py")
    }
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 60
    assert not {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in modules)}


def glossary() -> list[tuple[str, str, str]]:
    """List the rows of the glossary: the term, where it lives, and its names in the code today."""
    lines = (ROOT / "docs" / "GLOSSARY.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert all(len(row) == 6 for row in rows)
    return [(term, places, today) for term, _, places, today, _, _ in rows if term not in {"term", "---"}]


def test_the_glossary_has_a_term_once_and_names_the_code_as_it_is() -> None:
    rows = glossary()
    terms = [term for row in rows for term in row[0].split(", ")]
    assert len(terms) > 90
    assert len(set(terms)) == len(terms)
    for term, places, today in rows:
        modules = [ROOT / path for path in re.findall(r"`([\w/]+\.py)`", places)]
        assert not [path for path in modules if not path.is_file()], f"{term}: {places}"
        code = "".join(path.read_text("utf-8") for path in modules)
        lacking = [name for name in re.findall(r"`(\w+)`", today) if not re.search(rf"\b{name}\b", code)]
        assert not lacking, f"{term}: {places} do not say {lacking}; change the row with the code"


def test_decisions_are_numbered_listed_and_have_their_four_sections() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(folder.glob("0*.md"))
    index = (folder / "README.md").read_text("utf-8")
    assert [path.name[:5] for path in records] == [f"{number:04d}-" for number in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text("utf-8")
        title = text.splitlines()[0].removeprefix(f"# {path.name[:4]}. ")
        assert f"| [{path.name[:4]}]({path.name}) | {title} |" in index
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Choice", "Alternatives", "Cost"], path.name
        assert max(map(len, text.splitlines())) <= 140, path.name
        assert all((ROOT / module).is_file() for module in re.findall(r"`([\w/]+\.py)`", text)), path.name


PAGES = {ROOT / "README.md", ROOT / "docs" / "SPARK.md", ROOT / "docs" / "GLOSSARY.md"}
SPOKEN = sorted(PAGES | set((ROOT / "docs" / "guide").glob("*.md")))


def in_backticks(page: Path) -> list[str]:
    """List the inline code of a page."""
    text = re.sub(rf"^{FENCE}.*?^{FENCE}$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def test_commands_in_the_middle_of_text_are_ones_that_there_are() -> None:
    """By the grammar itself: the command, and each of its options."""
    commands = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)).choices
    mentions = [
        (page.name, code) for page in SPOKEN for code in in_backticks(page) if re.search(r"\bepochlog [a-z]", code)
    ]
    assert len(mentions) > 10
    for page, code in mentions:
        name, *words = code.split("epochlog ", 1)[1].split()
        assert name in commands, f"{page}: {code}"
        known = {option for action in commands[name]._actions for option in action.option_strings}
        assert {word for word in words if word.startswith("--")} <= known, f"{page}: {code}"


@pytest.mark.parametrize("prefix, owner", [
    ("el", el), ("epochlog", el), ("store", el.Store), ("table", el.Table), ("job", el.Job), ("moment", el.Snapshot),
    ("snapshot", el.Snapshot), ("client", el.Client), ("worker", el.Worker),
])  # fmt: skip
def test_names_in_the_middle_of_text_are_ones_that_there_are(prefix: str, owner: object) -> None:
    names = [
        (page.name, name)
        for page in SPOKEN
        for code in in_backticks(page)
        for name in re.findall(rf"(?<![\w./]){prefix}\.(\w+)", code)
    ]
    made = inspect.getsource(owner.__init__) if isinstance(owner, type) else ""  # what only an instance has
    assert not {(page, name) for page, name in names if not hasattr(owner, name) and f"self.{name} " not in made}
