"""Caches of the process: the page has each with its bound, and their sum."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import epochlog as el
from epochlog.store.env.lru_cache import process_caches

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "observability" / "README.md"
APART = {"tests", "bench", "examples", "scripts", "demo", "docs", "typings", "src", "build", "site"}
"""Folders that are no part of the library, or that no store's process runs."""


@cache
def modules() -> dict[str, ast.Module]:
    trees = dict[str, ast.Module]()
    for path in sorted(ROOT.glob("**/*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] not in APART and not place.parts[0].startswith("."):
            trees[".".join(("epochlog", *place.with_suffix("").parts))] = ast.parse(path.read_text("utf-8"))
    return trees


def called(node: ast.expr | None) -> str:
    """Return the name of a function that is called, decorates or is subscripted: `LRUCache` of `LRUCache[int](…)`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def named_caches(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the LRU caches that a module makes; "" for one without a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "LRUCache":
            names = [word.value for word in node.keywords if word.arg == "name"]
            yield str(names[0].value) if names and isinstance(names[0], ast.Constant) else ""


def smaller_caches(tree: ast.Module) -> Iterator[str]:
    """Yield the functions of a module whose results are cached, and its dicts in order of use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and {called(mark) for mark in node.decorator_list} & {
            "cache",
            "lru_cache",
        }:
            yield node.name
    for node in tree.body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and called(node.value) == "OrderedDict":
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def tables(page: str) -> tuple[dict[str, str], set[str]]:
    """Return the bounds by cache of the first table of the page's section, and the names of the second."""
    section = page.partition("## Memory of caches\n")[2].partition("\n## ")[0]
    first, second = re.findall(r"(?:\|.*\n)+", section)
    bounds = {name: bound for name, _, bound in re.findall(r"\| `?(\w+)`? \| (.*) \| (\d+) MiB \|", first)}
    return bounds, {name for row in second.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def check(trees: dict[str, ast.Module], page: str) -> None:
    bounds, smaller = tables(page)
    total = int(bounds.pop("sum"))
    homes = {name: module for module, tree in trees.items() for name in named_caches(tree)}
    assert "" not in homes, f"{homes['']} makes an LRUCache without a name"
    assert bounds.keys() == homes.keys(), "docs/observability/README.md lists other caches than the library has"
    for module in homes.values():
        importlib.import_module(module)
    limits = {name: f"{lru.limit_bytes / (1 << 20):g}" for name, lru in process_caches()}
    assert limits == bounds
    assert total == sum(map(int, bounds.values()))
    assert smaller == {name for tree in trees.values() for name in smaller_caches(tree)}


@pytest.mark.medium
def test_the_page_has_every_cache_with_its_bound() -> None:
    check(modules(), PAGE.read_text("utf-8"))


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize(
    "code",
    [
        "new: LRUCache[int] = LRUCache(10, int, name='new')",
        "new: LRUCache[int] = LRUCache(10, int)",
        "new = LRUCache[int](10, int, name='new')",
        "@lru_cache(maxsize=10)\ndef new() -> int: ...",
        "class Some:\n    @functools.cache\n    def new(self) -> int: ...",
        "new: OrderedDict[str, int] = OrderedDict()",
    ],
    ids=["named", "unnamed", "subscripted", "lru_cache", "method", "dict"],
)
def test_a_cache_without_a_row_is_found(code: str) -> None:
    """Plant a bug: a module has a cache that the page does not list."""
    with pytest.raises(AssertionError):
        check({**modules(), "epochlog.store.env.lru_cache": ast.parse(code)}, PAGE.read_text("utf-8"))


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize(
    "shown, instead",
    [("| 1120 MiB |", "| 1121 MiB |"), ("| 128 MiB |", "| 64 MiB |"), ("`tail`", "`t`")],
    ids=["sum", "bound", "name"],
)
def test_a_wrong_row_is_found(shown: str, instead: str) -> None:
    """Plant a bug: the page has another bound, sum or name."""
    page = PAGE.read_text("utf-8")
    assert shown in page
    with pytest.raises(AssertionError):
        check(modules(), page.replace(shown, instead, 1))


def test_the_metrics_show_every_cache(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        text = store.metrics()
    for metric in ("bytes", "entries", "limit_bytes"):
        shown = re.findall(rf'epochlog_cache_{metric}{{cache="(\w+)"}}', text)
        assert shown and shown == [name for name, _ in process_caches()]
