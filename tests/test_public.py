"""The public face: every name loads, every error is exported, and `import epochlog` stays light."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import epochlog
import epochlog.checkpoint
import epochlog.exchange
from epochlog import errors

ERRORS = {
    name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.EpochlogError)
}
HEAVY = {"pyspark", "pyarrow", "pyarrow.flight", "numpy", "pandas", "lmdb", "redis", "duckdb", "polars", "rich"}


def modules_after(program: str) -> set[str]:
    """The modules that a fresh interpreter holds after the program."""
    code = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", [epochlog, epochlog.checkpoint, epochlog.exchange])
def test_every_public_name_loads(package: ModuleType) -> None:
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)


def test_every_error_is_exported_and_says_what_it_is() -> None:
    assert set(epochlog.__all__) >= ERRORS
    for name in ERRORS:
        error = getattr(epochlog, name)
        assert issubclass(error, epochlog.EpochlogError)
        assert error.__doc__


@pytest.mark.parametrize("package", [epochlog, epochlog.checkpoint, epochlog.exchange])
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    """The lazy table and the imports that only type checkers read name the same things from the same modules."""
    tree = ast.parse(Path(str(package.__file__)).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        node.module: {alias.name for alias in node.names} for node in block.body if isinstance(node, ast.ImportFrom)
    }
    assert seen == {home: set(names) for home, names in package._HOMES.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_that_name'"):
        _ = epochlog.nothing_of_that_name  # pyright: ignore[reportAttributeAccessIssue]


def test_import_is_light() -> None:
    assert not modules_after("import epochlog") & HEAVY
    assert not modules_after("import epochlog\nfor name in dir(epochlog): pass") & HEAVY


@pytest.mark.medium
def test_a_store_needs_neither_spark_nor_flight() -> None:
    loaded = modules_after("import epochlog\nepochlog.open, epochlog.Aligned, epochlog.Snapshot, epochlog.Job")
    assert not loaded & {"pyspark", "pyarrow.flight", "duckdb", "polars", "rich", "redis"}


@pytest.mark.medium
def test_contexts_can_be_named_without_spark() -> None:
    """As `def refresh(ctx: epochlog.SparkRefreshContext)` does, which loads the class."""
    names = "epochlog.LocalRefreshContext, epochlog.SparkRefreshContext, epochlog.PartRefreshContext"
    assert not modules_after(f"import epochlog\n{names}, epochlog.CheckReport") & {
        "pyspark",
        "pyarrow.flight",
        "duckdb",
    }


def test_names_of_checkpoints_load_nothing_before_their_use() -> None:
    program = "from epochlog import checkpoint\nfor name in dir(checkpoint): pass\n"
    assert not modules_after(program) & HEAVY
    assert modules_after(program + "checkpoint.JobSettings") & HEAVY  # the check can fail


@pytest.mark.medium
@pytest.mark.parametrize("first", ["epochlog.spark", "epochlog.register", "__import__('epochlog.spark')"])
def test_spark_is_the_function_whatever_is_imported_first(first: str) -> None:
    program = f"import epochlog\n{first}\nimport epochlog.spark\nfrom epochlog import spark\n"
    modules_after(program + "assert callable(epochlog.spark) and epochlog.spark is spark")
