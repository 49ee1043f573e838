"""Rules of docs/SEMANTICS.md and docs/VIEWS.md: each has a test, and docs/RULES.md lists the tests as they are marked.

`python tests/docs/test_rules.py` writes docs/RULES.md. Markers are read from the source, without importing the tests.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "RULES.md"
MARKER = "pytest.mark.rule"
HEAD = """# Rules and their tests

Each rule of [SEMANTICS.md](SEMANTICS.md) and of [VIEWS.md](VIEWS.md) with the tests that fail when it is broken: those
that carry its number as `@pytest.mark.rule("5.10")`. Paths are below `tests/`. `python tests/docs/test_rules.py` writes
this page, and `tests/docs/test_rules.py` compares it with the markers.

| rule | it begins | tests |
|---|---|---|
"""

Rules = Mapping[str, str]
"""The beginning of each rule's text by its number, in the order of the page."""
Marks = Mapping[str, list[str]]
"""The tests of each rule, as `folder/test_file.py::test_name` below tests/, sorted."""


def rules_of(text: str) -> Rules:
    """Read the rules of a page: list items and rows of tables that begin with a bold number of their section, and
    headings that begin with a number such as R7.

    Raises ValueError for a number that is there twice or is not of its section.
    """
    rules: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"## (\d+)\. ", line):
            section = heading[1]
        elif rule := re.match(r"(?:- |\| )\*\*((\d+)\.[1-9]\d*)\*\* (.+)|## (R\d+)\. (.+)", line):
            number, of, words = rule.groups()[:3] if rule[1] else (rule[4], section, rule[5])
            if of != section or number in rules:
                raise ValueError(f"rule {number} stands twice, or in section {section}")
            plain = re.sub(r"[*`|\\]", "", words)
            rules[number] = textwrap.shorten(plain, 64, placeholder=" …")
    return rules


def marks_in(path: str, text: str) -> Iterator[tuple[str, str]]:
    """List (rule, test) for each marker of one file.

    Raises ValueError for a marker that no test carries as a decorator, and for arguments that are not plain strings.
    """
    unread_marks = text.count(f"{MARKER}(")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == MARKER:
                    unread_marks -= 1
                    for argument in call.args:
                        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                            raise ValueError(f"{path}:{argument.lineno}: the number of a rule is a plain string")
                        yield argument.value, f"{path}::{node.name}"
    if unread_marks:
        raise ValueError(f"{path}: mark the functions of tests, one by one")


def marks_below(folder: Path) -> Marks:
    """Read the markers of all tests of a folder."""
    tests_by_rule: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("test_*.py")):
        text = file.read_text("utf-8")
        if f"{MARKER}(" in text and file != Path(__file__):
            for rule, test in marks_in(file.relative_to(folder).as_posix(), text):
                tests_by_rule.setdefault(rule, []).append(test)
    return {rule: sorted(tests) for rule, tests in tests_by_rule.items()}


def page_of(rules: Rules, marks: Marks) -> str:
    """Write docs/RULES.md: one row for each rule, in their order."""
    rows = []
    for rule, words in rules.items():
        files: dict[str, list[str]] = {}
        for test in marks.get(rule, []):
            file, _, name = test.partition("::")
            files.setdefault(file, []).append(f"`{name}`")
        cells = "<br>".join(f"`{file}`: {', '.join(names)}" for file, names in files.items())
        rows.append(f"| {rule} | {words} | {cells} |\n")
    return HEAD + "".join(rows)


def problems(rules: Rules, marks: Marks) -> list[str]:
    """List the rules that have no test, and the markers that name no rule."""
    return [f"rule {rule} ({words}) has no test: mark one" for rule, words in rules.items() if rule not in marks] + [
        f"{', '.join(tests)}: docs/SEMANTICS.md has no rule {rule}"
        for rule, tests in marks.items()
        if rule not in rules
    ]


def references(text: str) -> list[str]:
    """List the numbers of rules and sections that a text names after the name of the page."""
    lists = re.findall(r"SEMANTICS\.md\)?, ((?:\d+(?:\.\d+)?(?:,\s|\sand\s|\sto\s)?)+)", text)
    return [number for listed in lists for number in re.findall(r"\d+(?:\.\d+)?", listed)]


def the_rules() -> Rules:
    """Read the rules of docs/SEMANTICS.md and docs/VIEWS.md."""
    return {
        number: words
        for page in ("SEMANTICS.md", "VIEWS.md")
        for number, words in rules_of((ROOT / "docs" / page).read_text("utf-8")).items()
    }


def test_each_rule_has_a_test_and_the_page_lists_what_is_marked() -> None:
    rules, marks = the_rules(), marks_below(ROOT / "tests")
    assert len(rules) > 90
    messages = problems(rules, marks)
    assert not messages, "\n" + "\n".join(messages)
    same = PAGE.read_text("utf-8") == page_of(rules, marks)
    assert same, "the markers have changed: write docs/RULES.md anew with `python tests/docs/test_rules.py`"


def test_references_name_rules_that_there_are() -> None:
    rules = the_rules()
    known = {*rules, *(rule.partition(".")[0] for rule in rules)}
    count = 0
    for file in (*ROOT.glob("*/**/*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        if any(part.startswith(".") or part == "src" for part in file.relative_to(ROOT).parts):
            continue
        text = file.read_text("utf-8")
        numbers = references(text)
        if file.name == "SEMANTICS.md":
            numbers += re.findall(r"[(,] ?(\d\.\d+)(?=[,)])", text)
        count += len(numbers)
        assert set(numbers) <= known, f"{file.relative_to(ROOT)} names {sorted(set(numbers) - known)}"
    assert count > 20


TEXT = "## 2. A\n\n- **2.1** *A* rule of `two`\n  lines.\n\n| **2.10** | `latest` | another |\n- **no** rule\n"


def test_rules_are_items_and_rows_that_begin_with_a_number() -> None:
    assert rules_of(TEXT) == {"2.1": "A rule of two", "2.10": "latest another"}
    for line in ("- **3.1** Of another section", "- **2.1** Twice"):
        with pytest.raises(ValueError, match="stands twice, or in section 2"):
            rules_of(TEXT + line)
    views = "## R0. A *rule*\n\n- no rule\n\n## R1. Another\n"
    assert rules_of(views) == {"R0": "A rule", "R1": "Another"}
    with pytest.raises(ValueError, match="rule R1 stands twice"):
        rules_of(views + "## R1. Twice\n")


def test_what_lacks_its_other_half_is_told() -> None:
    assert problems({"1.1": "a", "1.2": "b"}, {"1.2": ["x::y"], "1.9": ["x::y", "x::z"]}) == [
        "rule 1.1 (a) has no test: mark one",
        "x::y, x::z: docs/SEMANTICS.md has no rule 1.9",
    ]


def test_markers_are_read_from_decorators_of_tests() -> None:
    good = f'@{MARKER}("1.1", "2.1")\n@pytest.mark.medium\ndef test_a(): ...\n\n@rule()\ndef test_b(): ...\n'
    assert list(marks_in("x.py", good)) == [("1.1", "x.py::test_a"), ("2.1", "x.py::test_a")]
    for bad, complaint in (
        (f'pytestmark = {MARKER}("1.1")\n', "x.py: mark the functions"),
        (f'@{MARKER}("1.1")\ndef help(): ...\n', "x.py: mark the functions"),
        (f"@{MARKER}(1.1)\ndef test_a(): ...\n", "x.py:1: the number of a rule is a plain string"),
    ):
        with pytest.raises(ValueError, match=complaint):
            list(marks_in("x.py", bad))


def test_rows_name_the_tests_of_each_file() -> None:
    page = page_of({"1.1": "a", "1.2": "b"}, {"1.1": ["f.py::test_a", "f.py::test_b", "g.py::test_c"]})
    row, empty = page.splitlines()[-2:]
    assert row == "| 1.1 | a | `f.py`: `test_a`, `test_b`<br>`g.py`: `test_c` |"
    assert empty == "| 1.2 | b |  |"


def test_numbers_after_the_name_of_the_page_are_references() -> None:
    assert references("See [SEMANTICS.md](../SEMANTICS.md), 1.2, 3 and\n5.16 to 5.21; x 7.") == [
        "1.2",
        "3",
        "5.16",
        "5.21",
    ]


if __name__ == "__main__":
    PAGE.write_text(page_of(the_rules(), marks_below(ROOT / "tests")), "utf-8")
