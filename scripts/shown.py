"""List of all that the tests show, each with the first make target that shows it. The list may grow, but not shrink.

    python scripts/shown.py                         # compare the tests with the list, and count what they show
    python scripts/shown.py --write                 # add new tests, and those that moved to an earlier target
    python scripts/shown.py --write --drop TEST...  # let lines of these tests go or move to a later target

tests/docs/shown.tsv has a line for each promise of docs/GUARANTEES.md and each test of the files that its row names,
for each rule of docs/SEMANTICS.md and each test with its number as a marker, and for each planted bug: each set of
parameters of a test with the marker `planted`. `cases` counts the sets of parameters, without seeds, that the target
and those before it run. scripts/passes.py says which tests a target runs. To rename a test, drop its old name.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache

import pytest
from _pytest.mark.expression import Expression
from passes import ROOT, Selection, selections

TESTS = ROOT / "tests"
LIST = TESTS / "docs" / "shown.tsv"
PAGE = ROOT / "docs" / "GUARANTEES.md"
TARGETS = ("check", "test", "long")
HEAD = "shown\ttarget\tcases\ttest\n"
SEEDS = {"seed", "seeds", "first"}
"""Parameters that only choose among random runs: their number may change."""
PLANTING = re.compile(r"mutant|planted_(?:bug|error)")
"""Names of tests that carry the marker `planted`; parameters of PLANTED_BY have it too."""
PLANTED_BY = {"mutant", "bug", "plant"}

COLLECTED = pytest.StashKey[Sequence[pytest.Item]]()
"""All tests that a run of pytest has collected, before it deselects any."""

Promises = Mapping[str, tuple[str, ...]]
"""The places (folders or files below tests/) that each promise's row names."""
Shown = Mapping[tuple[str, str], Sequence[int]]
"""Number of cases by (shown, test), cumulated over TARGETS."""


@dataclass(frozen=True)
class Collected:
    """Collected test with one set of parameters.

    name: `folder/test_file.py::test_name` below tests/. words: its id of parameters without numbers, which are seeds.
    variant: the identities of its parameters but for seeds.
    """

    name: str
    words: str = ""
    variant: tuple[int, ...] = ()
    parameters: frozenset[str] = frozenset()
    markers: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Line:
    """Line of the list: at least so many cases of a test run in the target or one before it, and show this."""

    shown: str
    target: str
    cases: int
    test: str


def collected_test(item: pytest.Item) -> Collected:
    """Read a test that pytest has collected."""
    call = getattr(item, "callspec", None)
    name = item.nodeid.partition("[")[0].removeprefix("tests/")
    rules = frozenset(str(number) for marker in item.iter_markers("rule") for number in marker.args)
    markers = frozenset(marker.name for marker in item.iter_markers())
    if call is None:
        return Collected(name, markers=markers, rules=rules)
    words = re.sub(r"(?:^|-)\d+(?=-|$)", "", call.id).removeprefix("-")
    variant = tuple(id(value) for parameter, value in sorted(call.params.items()) if parameter not in SEEDS)
    return Collected(name, words, variant, frozenset(call.params), markers, rules)


def is_whole(items: Iterable[pytest.Item]) -> bool:
    """Return True if these are the tests of all files, as a run without paths collects them."""
    return {item.path for item in items} >= set(TESTS.rglob("test_*.py"))


def collect() -> Sequence[pytest.Item]:
    """Collect all tests in this process. Raises RuntimeError with pytest's output if it fails."""

    class Keeper:
        items: Sequence[pytest.Item] = ()

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            self.items = tuple(items)

    keeper = Keeper()
    with redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["--collect-only", "-qq", "-p", "no:xdist", str(TESTS)], plugins=[keeper])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return keeper.items


def promises_of(page: str) -> Promises:
    """Read the rows of docs/GUARANTEES.md: the folders and files of tests that they name, or take from another row."""
    promises: dict[str, tuple[str, ...]] = {}
    for number, cell in re.findall(r"^\| (G\d+) \|.* \| (.*) \|$", page, re.MULTILINE):
        promises[number] = tuple(re.findall(r"`([a-z_]+/(?:test_\w+\.py)?)`", cell))
        for other in re.findall(r"the tests of (G\d+)", cell):
            promises[number] += promises[other]
    return promises


@cache
def _compiled(markers: str) -> Expression:
    return Expression.compile(markers)


def is_selected(test: Collected, selection: Selection) -> bool:
    """Return True if a pass with this selection runs the test."""
    path = f"tests/{test.name.partition('::')[0]}"
    if selection.places and not any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in selection.places):
        return False
    return not selection.markers or _compiled(selection.markers).evaluate(lambda name, **_: name in test.markers)


def shown_by(tests: Iterable[Collected], chosen: Sequence[Sequence[Selection]], promises: Promises) -> Shown:
    """Return all that the tests show. chosen: the selections of each target."""
    variants: defaultdict[tuple[str, str], list[set[tuple[int, ...]]]] = defaultdict(lambda: [set() for _ in chosen])
    for test in tests:
        first = next((n for n, passes in enumerate(chosen) if any(is_selected(test, pass_) for pass_ in passes)), None)
        if first is None or "skip" in test.markers:  # an empty list of parameters is a skipped test
            continue
        for key in _shown_by_one(test, promises):
            for cases in variants[key][first:]:
                cases.add(test.variant)
    return {key: [len(cases) for cases in by_target] for key, by_target in variants.items()}


def _shown_by_one(test: Collected, promises: Promises) -> Iterator[tuple[str, str]]:
    for number, places in promises.items():
        if test.name.startswith(places):
            yield f"promise {number}", test.name
    for number in test.rules:
        yield f"rule {number}", test.name
    if "planted" in test.markers:
        yield "planted bug", f"{test.name}[{test.words}]" if test.words else test.name


def lines_of(shown: Shown) -> list[Line]:
    """Return the lines of the list, in the order of promises, rules and planted bugs."""
    lines = [
        Line(what, target, cases, test)
        for (what, test), numbers in shown.items()
        for target, cases, before in zip(TARGETS, numbers, [0, *numbers], strict=False)
        if cases > before
    ]
    return sorted(lines, key=lambda line: (_order(line.shown), line.test, TARGETS.index(line.target)))


def _order(what: str) -> tuple[int, list[int]]:
    return ("promise", "rule", "planted").index(what.split(maxsplit=1)[0]), [
        int(number) for number in re.findall(r"\d+", what)
    ]


def read(text: str) -> list[Line]:
    """Read the list."""
    rows = (row.split("\t") for row in text.splitlines()[1:])
    return [Line(what, target, int(cases), test) for what, target, cases, test in rows]


def written(lines: Iterable[Line]) -> str:
    """Write the list."""
    return HEAD + "".join(f"{line.shown}\t{line.target}\t{line.cases}\t{line.test}\n" for line in lines)


def losses(listed: Iterable[Line], shown: Shown, dropped: Collection[str] = ()) -> list[str]:
    """List the lines that are true no longer, but for those of the dropped tests."""
    messages: list[str] = []
    for line in listed:
        numbers = shown.get((line.shown, line.test), [0] * len(TARGETS))
        cases = numbers[TARGETS.index(line.target)]
        if cases < line.cases and not {line.test, line.test.partition("[")[0]} & set(dropped):
            now = ", ".join(f"make {target}: {number}" for target, number in zip(TARGETS, numbers, strict=True))
            messages.append(f"{line.shown}: {line.test} has {line.cases} cases in make {line.target}, and now {now}")
    return messages


def unmarked(tests: Iterable[Collected]) -> list[str]:
    """List the tests that plant bugs, as their names or parameters say, without the marker `planted`."""
    planting = {
        test.name
        for test in tests
        if "planted" not in test.markers
        and (PLANTING.search(test.name.partition("::")[2]) or test.parameters & PLANTED_BY)
    }
    return [f"{name} plants bugs: mark it `planted`" for name in sorted(planting)]


def problems(items: Iterable[pytest.Item], dropped: Collection[str] = ()) -> tuple[list[str], Shown]:
    """Compare the tests with the list. Returns the complaints, and all that the tests show."""
    tests = [collected_test(item) for item in items]
    shown = shown_by(tests, [selections(target) for target in TARGETS], promises_of(PAGE.read_text("utf-8")))
    return losses(read(LIST.read_text("utf-8")) if LIST.exists() else (), shown, dropped) + unmarked(tests), shown


def summary(lines: Sequence[Line]) -> str:
    """Count promises, rules and planted bugs by the first target that shows them."""
    first: dict[tuple[str, str], str] = {}
    for line in sorted(lines, key=lambda line: TARGETS.index(line.target)):
        kind = line.shown if line.shown.startswith("planted") else line.shown.split()[0]
        first.setdefault((kind, line.test if kind == line.shown else line.shown), line.target)
    counts = Counter((kind, target) for (kind, _), target in first.items())
    rows = [f"{'':12}" + "".join(f"{target:>8}" for target in TARGETS)]
    rows += [
        f"{kind + 's':12}" + "".join(f"{counts[kind, target]:8}" for target in TARGETS)
        for kind in ("promise", "rule", "planted bug")
    ]
    return "\n".join([*rows, f"{len({line.test.partition('[')[0] for line in lines})} tests in {len(lines)} lines"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the list anew if nothing is lost")
    parser.add_argument("--drop", nargs="+", default=[], metavar="TEST", help="tests whose lines may be lost")
    chosen = parser.parse_args()
    complaints, shown = problems(collect(), chosen.drop)
    if complaints:
        print("\n".join(complaints))
        return 1
    lines = lines_of(shown)
    if chosen.write:
        LIST.write_text(written(lines), "utf-8")
    print(summary(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
