"""The testing package stands alone: it needs no test runner, and nothing of the library needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.local_only, pytest.mark.medium]

FOLDER = Path(__file__).parents[2] / "testing"
WITHOUT = """
import importlib, json, sys
sys.modules.update(dict.fromkeys(("pytest", "_pytest", "hypothesis")))
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("epochlog"))))
"""


def run(code: str, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)


def modules() -> list[str]:
    """List the modules of the package by their full names."""
    paths = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py"))
    return sorted(".".join(("epochlog", "testing", *path.parts)).removesuffix(".__init__") for path in paths)


def test_every_module_imports_where_pytest_and_hypothesis_are_not_installed() -> None:
    assert "epochlog.testing" in modules()
    done = run(WITHOUT, *modules())
    assert done.returncode == 0, done.stderr
    assert run(WITHOUT, "epochlog.testing", "pytest").returncode == 1


def test_the_library_does_not_import_it() -> None:
    done = run(WITHOUT, "epochlog.api", "epochlog.__main__", "epochlog.serving", "epochlog.job")
    assert done.returncode == 0, done.stderr
    assert "epochlog.testing" not in done.stdout
