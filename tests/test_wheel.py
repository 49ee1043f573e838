"""The wheel holds the library and nothing else; it and the clone, installed, work in Python and in editors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("*.py", "py.typed", "pyproject.toml", "README.md", "LICENSE")
PACKAGES = (
    *("batch", "checkpoint", "cli", "demo", "exchange", "facts", "lineage", "page", "spark", "store", "testing"),
    "views",
)

MODULES = ("pyspark_epochlog", "pyspark_epochlog_exchange")
"""Modules beside the package, by which Spark finds the data sources."""

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
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: a build leaves its traces beside them."""
    source = tmp_path_factory.mktemp("source")
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            shutil.copy(path, source)
    for package in (*PACKAGES, "tests", "bench"):
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", source / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def installed(home: Path, *what: str | Path) -> Path:
    """A new virtual environment with that in it, installed by pip, and the locked dependencies within reach.

    They are reached by a path file, so no network is needed. Path files inside that folder (the editable install of
    this very project is one) have no effect from there.
    """
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (site / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n"
    )
    options = ("-q", "--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, *what, cwd=home)
    return home


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("environment"), wheel)


def test_it_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"epochlog", *(f"{name}.py" for name in MODULES), f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    inside = {Path(name).parts[1] for name in names if name.startswith("epochlog/")}
    assert {part for part in inside if "." not in part} == set(PACKAGES)
    assert {"__init__.py", "errors.py", "py.typed"} <= inside
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_every_source_module_is_in_it(wheel: Path) -> None:
    here = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    here |= {path.relative_to(ROOT) for path in ROOT.glob("*.py")}
    names = (Path(name) for name in ZipFile(wheel).namelist() if name.endswith(".py"))
    there = {name.relative_to("epochlog") for name in names if name.parts[0] == "epochlog"}
    assert there == here


def test_the_files_of_the_page_are_in_it(wheel: Path) -> None:
    here = {path.name for path in (ROOT / "page" / "static").iterdir()}
    assert {"index.html", "page.js", "uplot.js", "uplot-license.txt"} <= here
    folder = "epochlog/page/static/"
    assert {name.removeprefix(folder) for name in ZipFile(wheel).namelist() if name.startswith(folder)} == here


def test_every_module_imports_in_an_empty_environment(environment: Path) -> None:
    names = run(environment / "bin" / "python", "-I", "-c", IMPORT_ALL, cwd=environment).split()
    assert {f"epochlog.{package}" for package in PACKAGES} <= set(names)


def test_spark_finds_the_data_sources_by_their_modules(environment: Path) -> None:
    names = "print(*(__import__(name).DefaultSource.name() for name in sys.argv[1:]))"
    printed = run(environment / "bin" / "python", "-I", "-c", f"import sys; {names}", *MODULES, cwd=environment)
    assert printed.split() == ["epochlog", "epochlog.exchange"]


def test_the_command_is_installed(environment: Path) -> None:
    assert "epochlog" in run(environment / "bin" / "epochlog", "--help", cwd=environment)


USERS_CODE = """
import epochlog as el

with el.open("lake") as store:
    reveal_type(store)
    reveal_type(el.Global())
    store.no_such_method()
el.no_such_name
el.open(no_such_option=1)
"""


@pytest.mark.parametrize(
    "how", ["clone", *(pytest.param(how, marks=pytest.mark.long) for how in ("wheel", "editable"))]
)
def test_a_users_editor_knows_the_types(how: str, source: Path, wheel: Path, tmp_path: Path) -> None:
    """Pyright, which is what Pylance asks, in a project of the user's and with the user's environment."""
    what = {"wheel": [wheel], "clone": [source], "editable": ["--editable", source]}[how]
    python = installed(tmp_path / "environment", *what) / "bin" / "python"
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text(USERS_CODE)
    checker = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run(
        [checker, "--outputjson", "--pythonpath", python, "main.py"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    reports = {
        (report["severity"], report["message"].split("\n")[0])
        for report in json.loads(done.stdout)["generalDiagnostics"]
    }
    assert {
        ("information", 'Type of "store" is "Store"'),
        ("information", 'Type of "el.Global()" is "Global"'),
        ("error", 'Cannot access attribute "no_such_method" for class "Store"'),
        ("error", '"no_such_name" is not a known attribute of module "epochlog"'),
        ("error", 'No parameter named "no_such_option"'),
    } <= reports
    assert run(python, "-c", "import epochlog; print(epochlog.open)", cwd=project).startswith("<function open")
