"""Requirements of a fresh machine: the demo's lock is part of the full one, and bare runs see no manual additions."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import browser

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).resolve().parents[1]


def locked(name: str) -> dict[str, str]:
    """Each package with its version, marker and hashes."""
    blocks = re.split(r"\n(?=\S)", (ROOT / name).read_text("utf-8").strip())
    return {block.split("==")[0]: block for block in blocks}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9-]", line)[0] for line in requirements}


def test_the_demo_takes_packages_of_the_whole_lock_and_none_of_tests_or_bench() -> None:
    demo, whole = locked("requirements-demo.lock"), locked("requirements.lock")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {extra: names(lines) for extra, lines in project["optional-dependencies"].items()}
    needed = names(project["dependencies"]) | extras["demo"]
    assert needed <= set(demo)
    assert all("--hash=sha256:" in block for block in demo.values())
    # a marker may differ: a package that many need is needed for more reasons
    assert {name: re.findall(r"==[^ ]+|sha256:\w+", block) for name, block in demo.items()} == {
        name: re.findall(r"==[^ ]+|sha256:\w+", whole[name]) for name in demo
    }
    assert not set(demo) & (extras["test"] | extras["lint"] | extras["docs"] | extras["bench"]) - needed


def test_the_set_up_installs_the_browser_that_tests_ask_for() -> None:
    packages = browser.MISSING.partition("apt-get install ")[2]
    setup, bare = ((ROOT / path).read_text("utf-8") for path in ("scripts/setup.sh", ".ci/bare"))
    assert packages == "chromium chromium-driver" and f"apt_install {packages} " in setup
    assert re.search(r"^    find_or_install_browser$", setup, re.MULTILINE)
    assert "chromium chromedriver; do" in bare


@pytest.mark.long
def test_a_bare_run_sees_debians_commands_and_nothing_that_was_put_there_by_hand(tmp_path: Path) -> None:
    tool = tmp_path / "redis-server"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "EPOCHLOG_X": "1", "PIP_CERT": "/a b"}
    asked = 'command -v redis-server git uv || true; command -v ls sed; env; ls -A "$HOME"'
    lines = subprocess.run(
        [ROOT / ".ci" / "bare", "bash", "-c", asked], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [Path(line).name for line in lines[:2]] == ["ls", "sed"]
    variables = dict(line.split("=", 1) for line in lines[2:])
    assert variables["PIP_CERT"] == "/a b" and "EPOCHLOG_X" not in variables
    assert set(variables["PATH"].split(":")) == {str(Path(lines[0]).parent)}
    assert variables["HOME"] != os.environ["HOME"]
