"""A Java that is missing or too old is named, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochlog.spark.local_session import find_java_problem


def fake(folder: Path, version_output: str) -> Path:
    """A JAVA_HOME whose java says so, and runs nothing."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_output}' >&2\nexit 1\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version_output", "version"),
    [
        ('openjdk version "11.0.25" 2024-10-15', "11"),
        ('java version "1.8.0_392"', "8"),
        ('openjdk version "16"', "16"),
    ],
)
def test_an_old_java_is_named_with_its_version(tmp_path: Path, version_output: str, version: str) -> None:
    home = fake(tmp_path / "jdk", version_output)
    problem = find_java_problem({"JAVA_HOME": str(home), "PATH": "/nowhere"}) or ""
    assert f"{home}/bin/java is version {version}, which is too old (JAVA_HOME is" in problem
    assert "Java 17 or newer" in problem and "openjdk-17-jre-headless" in problem
    problem = find_java_problem({"PATH": str(home / "bin")}) or ""
    assert "which is too old (it is the first on PATH)" in problem


@pytest.mark.parametrize(
    "version_output", ['openjdk version "17.0.13" 2024-10-15', 'openjdk version "21-ea"', 'java version "25"']
)
def test_a_java_that_is_new_enough_is_fine(tmp_path: Path, version_output: str) -> None:
    assert find_java_problem({"JAVA_HOME": str(fake(tmp_path / "jdk", version_output))}) is None


def test_a_java_that_is_missing_or_broken_is_told(tmp_path: Path) -> None:
    assert "no Java was found" in (find_java_problem({"PATH": str(tmp_path)}) or "")
    assert f"the Java at {tmp_path}/bin/java does not run" in (find_java_problem({"JAVA_HOME": str(tmp_path)}) or "")
    assert "does not print a version" in (find_java_problem({"JAVA_HOME": str(fake(tmp_path / "odd", "hello"))}) or "")


@pytest.mark.slow
def test_el_spark_raises_it(tmp_path: Path) -> None:
    home = fake(tmp_path / "jdk", 'openjdk version "11.0.25"')
    program = "import epochlog as el\ntry:\n    el.spark()\nexcept el.JavaMissing as error:\n    print(error)\n"
    environ = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)
    assert "is version 11, which is too old" in done.stdout
