"""Discovery of the refreshes in pages and programs: functions whose only parameter is a context.

It parses the source. A refresh of a page is compiled from its own text and runs without the page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNS = {"step_local": 0, "step": 1, "start": 1, "add": 1}
"""Methods that take a refresh, and as which argument."""
Function = ast.FunctionDef | ast.Lambda


PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sources() -> Iterator[tuple[str, str]]:
    """Everything that shows refreshes to users: its path, and the Python in it."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = PYTHON.findall(page.read_text("utf-8"))
        yield str(page.relative_to(ROOT)), "\n".join(block for block in blocks if not is_sketch(block))
    for folder in ("examples", "demo"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def is_sketch(block: str) -> bool:
    """Return True if a block has lines that are no Python, and no refresh."""
    return "…" in block and "ctx" not in block


def refreshes_in(path: str, text: str) -> dict[str, Function | None]:
    """The refreshes of one source, by `path:name.of.functions`; None for one that is made elsewhere."""
    tree = ast.parse(text)
    named = set(given_to_run(tree))
    functions: dict[str, Function | None] = dict(_functions(path, tree, named, ()))
    known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    known |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known |= {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
    return functions | {f"{path}:{name}": None for name in sorted(named - known)}


def given_to_run(tree: ast.AST) -> Iterator[str]:
    """Return the plain names passed as a refresh to whatever runs a job."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in RUNS:
            place = RUNS[call.func.attr]
            if len(call.args) > place and isinstance(argument := call.args[place], ast.Name):
                yield argument.id


def _functions(path: str, node: ast.AST, named: set[str], inside: tuple[str, ...]) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        here = inside
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            here = (*inside, "lambda" if isinstance(child, ast.Lambda) else child.name)
        if isinstance(child, ast.FunctionDef | ast.Lambda) and (_takes_context(child) or here[-1] in named):
            yield f"{path}:{'.'.join(here)}", child
        yield from _functions(path, child, named, here)


def _takes_context(function: Function) -> bool:
    args = function.args
    names = [argument.arg for argument in (*args.posonlyargs, *args.args)]
    return [name for name in names if name != "self"] == ["ctx"] and not args.kwonlyargs and not args.vararg


def made_of(function: Function, folder: Path, names: Mapping[str, Any]) -> Any:
    """The function itself, out of its source, in a module of its own with these names."""
    assert isinstance(function, ast.FunctionDef)
    path = folder / f"{function.name}.py"
    path.write_text(f"from __future__ import annotations\n\n{ast.unparse(function)}\n", "utf-8")
    spec = spec_from_file_location(function.name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return getattr(module, function.name)
