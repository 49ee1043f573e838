"""The wheel: holds the library and nothing else, and every module of it imports in an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("*.py", "py.typed", "pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("batch", "checkpoint", "cli", "demo", "exchange", "store")

IMPORT_ALL = """
import importlib, pathlib, pkgutil, epochlog
home = pathlib.Path(epochlog.__file__).parent
names = ["epochlog"] + [module.name for module in pkgutil.walk_packages([str(home)], "epochlog.")]
for name in names:
    module = importlib.import_module(name)
    assert pathlib.Path(module.__file__).is_relative_to(home), (name, module.__file__)
print(*names)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build leaves its traces beside them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            shutil.copy(path, source)
    for package in (*PACKAGES, "tests", "bench"):
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel in it, installed by pip, and the locked dependencies within reach.

    They are reached by a path file, so no network is needed. Path files inside that folder (the editable install of
    this very project is one) have no effect from there.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=home)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_it_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"epochlog", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    inside = {Path(name).parts[1] for name in names if name.startswith("epochlog/")}
    assert {part for part in inside if "." not in part} == set(PACKAGES)
    assert {"__init__.py", "errors.py", "py.typed"} <= inside
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_every_source_module_is_in_it(wheel: Path) -> None:
    here = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    here |= {path.relative_to(ROOT) for path in ROOT.glob("*.py")}
    there = {Path(name).relative_to("epochlog") for name in ZipFile(wheel).namelist() if name.endswith(".py")}
    assert there == here


def test_every_module_imports_in_an_empty_environment(environment: Path) -> None:
    names = run(environment / "bin" / "python", "-I", "-c", IMPORT_ALL, cwd=environment).split()
    assert {f"epochlog.{package}" for package in PACKAGES} <= set(names)


def test_the_command_is_installed(environment: Path) -> None:
    assert "epochlog" in run(environment / "bin" / "epochlog", "--help", cwd=environment)
