"""List of the tests that `make test` runs again with files on S3 and the catalog in Redis; far_calls.py writes it.

PYTHONPATH=scripts:tests/support python -m far    # compare the list with the tests and the library
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from passes import AGAIN, QUICK, ROOT, Selection
from shown import PAGE, collect, collected_test, is_selected, promises_of

LIST = Path(__file__).with_name("far.tsv")
FILES = ("write", "read", "open_input", "size", "stamp", "exists", "list", "delete")
"""Calls of the file system whose places the list has."""
NOBODY = "-"
"""Stands in the list for the test of a rule or promise whose tests come to no place."""


def write(chosen: Mapping[str, Iterable[str]]) -> None:
    """Write the list: a line for each test and what it is chosen for."""
    lines = sorted(f"{test}\t{place}\n" for test, places in chosen.items() for place in places)
    LIST.write_text("".join(lines), "utf-8")


def read() -> dict[str, list[str]]:
    """Read the list: what each of its tests is chosen for."""
    chosen: dict[str, list[str]] = {}
    for line in LIST.read_text("utf-8").splitlines():
        test, _, place = line.partition("\t")
        chosen.setdefault(test, []).append(place)
    return chosen


def shown_by(items: Iterable[pytest.Item]) -> set[str]:
    """Return the rules and promises that quick tests show which may run again."""
    promises, selection, shown = promises_of(PAGE.read_text("utf-8")), Selection(AGAIN, QUICK), set[str]()
    for test in map(collected_test, items):
        if is_selected(test, selection) and "local_only" not in test.markers:
            shown |= {f"rule {number}" for number in test.rules}
            shown |= {f"promise {number}" for number, places in promises.items() if test.name.startswith(places)}
    return shown


def complaints(items: Sequence[pytest.Item], chosen: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """List what is not as the list has it: tests, rules, promises, and functions of the library."""
    collected = {_without_numbers(item.nodeid) for item in items}
    for test in chosen:
        if test != NOBODY and _without_numbers(test) not in collected:
            yield f"{test} is not there"
    listed = {place for places in chosen.values() for place in places}
    yield from sorted(f"no test of {shown} runs again" for shown in shown_by(items) - listed)
    for place in sorted(set(re.findall(r"\S+\.py:\w+", "\n".join(listed)))):
        path, name = place.split(":")
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text("utf-8"):
            yield f"the library has no {place}"


def _without_numbers(test: str) -> str:
    name, bracket, parameters = test.partition("[")
    return name + bracket + re.sub(r"\d+", "", parameters)


def main() -> int:
    wrong = [*complaints(collect(), read())]
    print("\n".join([*wrong, *["tests/support/far_calls.py says how to write the list anew"] * bool(wrong)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
