"""Events of the log: the page lists them, and for each of them a test with the marker `logs` provokes it.

`python tests/docs/test_log_events.py` writes the table into docs/observability/README.md. Markers are read from the
source; tests/conftest.py checks in each marked test that its events were logged.
"""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochlog.store.env.log_events import EVENTS
from logged_events import BY_NAME

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "observability" / "README.md"
OUTSIDE = ("tests", "bench", "examples", "scripts", "docs", "testing", "demo")
CALLS = re.compile(r"getLogger\(.*|logging\.(?:basicConfig|config|warning|info|error)\b.*|addHandler\(.*")
BEGIN, END = "## Log events\n\n", "\n## Metrics\n"


def table() -> str:
    """Return the table of all events, as the page shows it."""
    lines = [
        f"| `{event.name}` | {event.logger} | {logging.getLevelName(event.level)} | {', '.join(event.fields)} "
        f"| {event.about} |"
        for event in EVENTS
    ]
    return "\n".join(["| event | logger | level | fields | meaning |", "|---|---|---|---|---|", *lines]) + "\n"


def shown(page: str) -> str:
    """Return the table that the page has."""
    section = page.partition(BEGIN)[2].partition(END)[0]
    return section[section.index("| event ") :]


def provoked(text: str) -> Iterator[str]:
    """Yield the events that the markers of a file's tests name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.logs":
                    yield from (ast.literal_eval(name) for name in mark.args)


def all_provoked() -> set[str]:
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in provoked(path.read_text("utf-8"))}


@pytest.mark.medium
def test_a_test_provokes_each_event() -> None:
    names = all_provoked()
    assert not names - BY_NAME.keys(), "these events are not in the table"
    assert not BY_NAME.keys() - names, "no test with the marker `logs` provokes these events"


def test_an_event_that_no_test_provokes_is_noticed() -> None:
    text = '@pytest.mark.medium\n@pytest.mark.logs("commit", "vacuum")\ndef test_x(): pass\n\ndef test_y(): pass\n'
    assert list(provoked(text)) == ["commit", "vacuum"]
    assert BY_NAME.keys() - set(provoked(text)) == {event.name for event in EVENTS} - {"commit", "vacuum"}


def test_the_page_lists_the_events() -> None:
    listed = shown(PAGE.read_text("utf-8"))
    assert listed == table(), (
        "docs/observability/README.md: write its table anew with `python tests/docs/test_log_events.py`"
    )


def test_names_and_fields_are_plain_words() -> None:
    assert len(BY_NAME) == len(EVENTS)
    for event in EVENTS:
        assert re.fullmatch(r"[a-z][a-z_]+", event.name)
        assert re.fullmatch(r"epochlog\.[a-z]+", event.logger)
        assert all(re.fullmatch(r"[a-z][a-z_]*", field) for field in event.fields)
        assert len(set(event.fields)) == len(event.fields) and "event" not in event.fields
        assert event.about[0].isupper() and event.about.endswith(".") and "|" not in event.about
        assert not event.traceback or "error" in event.fields


def test_the_source_logs_by_events_alone() -> None:
    """No module has a logger of its own, prints to one, or configures logging."""
    packages = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in OUTSIDE]
    wrong = []
    for path in sorted((*ROOT.glob("*.py"), *(path for package in packages for path in package.rglob("*.py")))):
        wrong += [f"{path.relative_to(ROOT)}: {call}" for call in CALLS.findall(path.read_text("utf-8"))]
    assert wrong == [
        "spark/catalog/jvm.py: getLogger(name)",  # Spark's own, of which it hides expected refusals
        'store/env/log_line.py: getLogger(f"epochlog.{logger}")',
    ]


@pytest.mark.medium
def test_an_import_adds_no_handler_and_sets_no_level() -> None:
    code = (
        "import logging, epochlog, epochlog.serving, epochlog.store.env.log_events\n"
        "root = logging.getLogger()\n"
        "ours = [logging.getLogger(n) for n in logging.root.manager.loggerDict if n.partition('.')[0] == 'epochlog']\n"
        "print(root.handlers, root.level, [l.handlers for l in ours if l.handlers], {l.level for l in ours}, "
        "all(l.propagate for l in ours), len(ours) > 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "[] 30 [] {0} True True"


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(text.replace(shown(text), table()), "utf-8")
